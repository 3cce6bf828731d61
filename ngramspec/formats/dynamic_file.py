"""A dynamic cache in a file: loaded once, saved now and then, merged with what others saved."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np

from ngramspec._cache import NgramCache
from ngramspec._entries import entries_of_records
from ngramspec._merge import EntryMerger, entries_beyond
from ngramspec._unpack import EntryReader
from ngramspec.errors import CapacityError, NgramspecError
from ngramspec.formats.cache_file import (
    SIZES,
    Origin,
    about_of,
    cache_in_memory,
    cache_of,
    check_tokenizer,
    write_cache,
)
from ngramspec.formats.container import Container, is_container, open_container
from ngramspec.formats.entries import ArraySource, Entries, no_entries, read_all
from ngramspec.formats.llama_lookup import read_lookup_records, write_lookup_cache
from ngramspec.formats.prune import useful_sources

LOOKUP_SUFFIX = ".bin"  # a new file of that name is one of llama.cpp's
CONTAINER_SUFFIX = ".ngc"  # a file of that name is never one of llama.cpp's
KIND = "ngram-cache"
_BySize = dict[int, Entries]


class DynamicFile:
    """DynamicFile(path, ...): the file behind a dynamic cache.

    Args:
        path: A statistics file of kind ngram-cache or one of llama.cpp's lookup caches; need not
            exist yet.
        ngram_min, ngram_max, max_ngrams: Of the cache, as NgramCache has them. The file keeps the
            most useful max_ngrams.
        origin: The tokenizer of the target.
        any_tokenizer: Take a file that was made with another tokenizer.

    Attributes:
        cache: The NgramCache to draft from and to learn with.

    Raises:
        FormatError: The file is not a whole, unharmed one.
        CapacityError: It holds more than max_ngrams.
        VocabMismatchError: It was made with another tokenizer.
        OSError: It cannot be read.

    Thread-safety: all methods, from any thread.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        ngram_min: int = 1,
        ngram_max: int = 4,
        max_ngrams: int = 1 << 22,
        origin: Origin | None = None,
        any_tokenizer: bool = False,
    ) -> None:
        self.path = Path(path)
        self.cache = NgramCache(ngram_min, ngram_max, max_ngrams)
        self._origin = origin or Origin()
        self._any_tokenizer = any_tokenizer
        self._saving = threading.Lock()
        self._process = os.getpid()
        self._stamp = self._file_stamp()  # before reading: what others save meanwhile is noticed
        self._known = self._read()  # what file and cache had in common last
        self._absorb(self._known)
        if _num_ngrams(self._known) > max_ngrams:
            raise CapacityError(
                f"{self.path} holds {_num_ngrams(self._known)} n-grams, max_ngrams is {max_ngrams}"
            )
        self._num_saved = self.cache.num_updates

    def save(self) -> bool:
        """Add what was learned since the last time to the file, and take what others added.

        Returns:
            bool: Whether there was anything to save.

        Raises:
            FormatError: The file has been damaged meanwhile; it stays as it is.
            OSError: It cannot be written; it stays as it is.

        Cost: O(n-grams). Threads: others may go on learning.
        """
        from filelock import FileLock

        with self._saving:
            if self.cache.num_updates == self._num_saved:
                return False
            with FileLock(f"{self.path}.lock"):
                self._save_locked()
            return True

    def close(self) -> None:
        """Save, unless this is a fork of the process that opened the file. May be called again."""
        if os.getpid() == self._process:
            self.save()

    def _save_locked(self) -> None:
        num_updates = self.cache.num_updates
        ours = {size: self.cache.entries(size) for size in SIZES}
        learned = {s: entries_beyond(ours[s], self._known.get(s, no_entries())) for s in SIZES}
        changed = self._file_stamp() != self._stamp
        on_disk = self._read() if changed else self._known
        merged = {size: _sum(on_disk.get(size, no_entries()), learned[size]) for size in SIZES}
        written = self._write({size: entries for size, entries in merged.items() if len(entries)})
        if changed:
            known = self._known
            others = {s: entries_beyond(e, known.get(s, no_entries())) for s, e in on_disk.items()}
            self._absorb(others)
            num_updates += sum(map(len, others.values()))
            ours = {s: _sum(ours[s], others.get(s, no_entries())) for s in SIZES}
        # What was too much for the file is known too: it must not count as learned again.
        self._known = {s: _largest(written.get(s, no_entries()), ours[s]) for s in SIZES}
        self._stamp, self._num_saved = self._file_stamp(), num_updates

    def _absorb(self, entries: _BySize) -> None:
        for size, some in entries.items():
            self.cache.add_entries(some, size)

    def _read(self) -> _BySize:
        """Return all entries of the file by size, {} when there is none."""
        if not self.path.exists():
            return {}
        if self._is_lookup_cache():
            records = read_lookup_records(self.path)
            found = {size: entries_of_records(records, size) for size in SIZES}
            return {size: entries for size, entries in found.items() if len(entries)}
        container = open_container(self.path, KIND, verify=True)
        fingerprint = container.header.fingerprint
        check_tokenizer(self.path, fingerprint, self._origin.fingerprint, self._any_tokenizer)
        self._adopt(container)
        cache = cache_of(container)
        return {s: read_all(EntryReader(cache, s)) for s in SIZES if cache.num_ngrams(s)}

    def _adopt(self, container: Container) -> None:
        """Go on stating what the file states about tokenizer and provenance."""
        header, mine = container.header, self._origin
        fingerprint = mine.fingerprint or header.fingerprint
        vocab_size = mine.vocab_size or (header.vocab_size if header.fingerprint else 0)
        self._origin = Origin(fingerprint, vocab_size, mine.about or about_of(container))

    def _write(self, entries: _BySize) -> _BySize:
        """Write them, the most useful ones if they are too many, and return what was written."""
        most = self.cache.max_ngrams
        if _num_ngrams(entries) > most:
            full = cache_in_memory({size: ArraySource(some) for size, some in entries.items()})
            sources = useful_sources(full, max_ngrams=most)
            entries = {size: read_all(source) for size, source in sources.items()}
        if self._is_lookup_cache():
            cache = NgramCache(1, 4, 1 << 30)
            for size, some in entries.items():
                cache.add_entries(some, size)
            write_lookup_cache(cache, self.path)
        else:
            write_cache(self.path, {s: ArraySource(e) for s, e in entries.items()}, self._origin)
        return entries

    def _is_lookup_cache(self) -> bool:
        if self.path.exists() and self.path.suffix != CONTAINER_SUFFIX:
            return not is_container(self.path)
        return self.path.suffix == LOOKUP_SUFFIX

    def _file_stamp(self) -> tuple[int, ...]:
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            return ()
        return stat.st_ino, stat.st_size, stat.st_mtime_ns


class Autosave:
    """Autosave(file, seconds): saves a DynamicFile at intervals until it is stopped.

    A save that fails is reported once by a warning; what was learned stays and is tried again.
    """

    def __init__(self, file: DynamicFile, seconds: float) -> None:
        self._file = file
        self._seconds = seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ngramspec-save", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Save a last time and end. May be called again."""
        self._stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        self._file.close()

    def _run(self) -> None:
        warned = False
        while not self._stopped.wait(self._seconds):
            try:
                self._file.save()
            except (OSError, NgramspecError) as error:
                if not warned:
                    import warnings

                    warnings.warn(f"cannot save {self._file.path}: {error}", stacklevel=1)
                warned = True


def _num_ngrams(entries: _BySize) -> int:
    return sum(_num_keys(some) for some in entries.values())


def _num_keys(entries: Entries) -> int:
    """Return the number of n-grams among sorted entries."""
    if not len(entries):
        return 0
    oldest = entries[:, 1] >> np.uint64(43)
    new = (entries[1:, 0] != entries[:-1, 0]) | (oldest[1:] != oldest[:-1])
    return 1 + int(np.count_nonzero(new))


def _largest(first: Entries, second: Entries) -> Entries:
    """Return the larger count of each pair."""
    return _sum(first, entries_beyond(second, first))


def _sum(first: Entries, second: Entries) -> Entries:
    return read_all(EntryMerger([ArraySource(first), ArraySource(second)]))
