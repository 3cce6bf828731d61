"""A dynamic cache in a file: loaded once, saved periodically, merged with what others saved."""

from __future__ import annotations

import errno
import logging
import os
import threading
from pathlib import Path
from typing import Protocol

import numpy as np

from ngramspec._native.cache.ngram_cache import NgramCache
from ngramspec._native.files.entries import EntryMerger, EntryReader, entries_beyond
from ngramspec.errors import CapacityError, InputError
from ngramspec.files.atomic import LOCK_SECONDS, locked, remove_temporaries
from ngramspec.files.cache_file import (
    KIND,
    SIZES,
    Origin,
    cache_in_memory,
    cache_of,
    check_tokenizer,
    origin_kept,
    write_cache,
)
from ngramspec.files.container import is_container, open_container
from ngramspec.files.entries import ArraySource, Entries, no_entries, read_all
from ngramspec.files.llama_lookup import LOOKUP_SUFFIX, read_lookup_entries, write_lookup_cache
from ngramspec.files.prune import useful_sources

log = logging.getLogger(__name__)
STOP_SECONDS = 60.0  # how long Autosave.stop waits for the last save
CONTAINER_SUFFIX = ".ngc"  # a file with this suffix is never read as llama.cpp's
_BySize = dict[int, Entries]


class DynamicFile:
    """DynamicFile(path, ...): the file behind a dynamic cache.

    Args:
        path: A statistics file of kind ngram-cache or one of llama.cpp's lookup caches; need not
            exist yet. On a local disk: processes of one host may share it.
        ngram_min, ngram_max, max_ngrams: As for NgramCache. The file keeps the max_ngrams most
            useful n-grams.
        origin: The tokenizer of the target; None = the file goes on stating its own.
        any_tokenizer: Accept a file made with another tokenizer; it states the target's from the
            first save on.
        lock_seconds: How long a save waits for another process that is saving, > 0.

    Attributes:
        cache: The NgramCache to draft from and to update.
        num_saves: Saves that wrote the file.
        num_save_failures: Saves that raised or timed out.
        save_error: Why the latest save failed, "" if it did not.

    Raises:
        FormatError: The file is incomplete or damaged.
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
        lock_seconds: float = LOCK_SECONDS,
    ) -> None:
        if not lock_seconds > 0:
            raise InputError(f"lock_seconds must be above 0, got {lock_seconds}")
        self.path = Path(path)
        self.num_saves = 0
        self.num_save_failures = 0
        self.save_error = ""
        self.cache = NgramCache(ngram_min, ngram_max, max_ngrams)
        self._origin = origin or Origin()
        self._any_tokenizer = any_tokenizer
        self._lock_seconds = lock_seconds
        self._saving = threading.Lock()
        self._process = os.getpid()
        remove_temporaries(self.path)
        self._stamp = self._file_stamp()  # before reading, to notice what others save meanwhile
        self._common = self._read()  # entries last common to file and cache
        self._absorb(self._common)
        if _num_ngrams(self._common) > max_ngrams:
            raise CapacityError(
                f"{self.path} holds {_num_ngrams(self._common)} n-grams, max_ngrams is {max_ngrams}"
            )
        self._counted = self._common  # entries of the cache that are no news to the file
        if len(self.cache) < _num_ngrams(self._common):  # its parts fill unevenly
            self._counted = self._entries()
        self._num_saved = self.cache.num_updates

    def save(self) -> bool:
        """Add what was learned since the last save to the file, and load what others added.

        Returns:
            bool: Whether there was anything to save.

        Raises:
            InputError: A token id was learned that is above 2097151, or that the tokenizer does not
                have; the file stays as it is.
            FormatError: The file has been damaged meanwhile; it stays as it is.
            TimeoutError: Another process or thread has been saving for lock_seconds.
            OSError: It cannot be written; it stays as it is.

        What a failed save did not write stays in the cache for the next one.

        Cost: O(n-grams). Other threads may update the cache meanwhile.
        """
        try:
            saved = self._save()
        except BaseException as error:
            self.failed(error)
            raise
        self.num_saves += saved
        self.save_error = ""
        return saved

    def failed(self, error: BaseException) -> None:
        """Count a save that failed."""
        self.num_save_failures += 1
        self.save_error = f"{type(error).__name__}: {error}"

    def close(self) -> None:
        """Save, except in a fork of the process that opened the file. May be called again."""
        if os.getpid() == self._process:
            self.save()

    def _save(self) -> bool:
        if not self._saving.acquire(timeout=self._lock_seconds):
            raise TimeoutError(
                errno.ETIMEDOUT,
                f"another thread has been saving for {self._lock_seconds:g} s",
                str(self.path),
            )
        try:
            if self.cache.num_updates == self._num_saved:
                return False
            with locked(self.path, self._lock_seconds):
                self._save_locked()
            return True
        finally:
            self._saving.release()

    def _save_locked(self) -> None:
        num_updates = self.cache.num_updates
        ours = self._entries()
        # Not beyond what the file has: what was evicted since, and is learnt again, is news.
        learned = {s: entries_beyond(ours[s], self._counted.get(s, no_entries())) for s in SIZES}
        stamp = self._file_stamp()
        on_disk = self._common
        if stamp != self._stamp:
            on_disk = self._read()
            common = self._common
            others = {s: entries_beyond(e, common.get(s, no_entries())) for s, e in on_disk.items()}
            ours = _sums(ours, others)
            self._common = _sums(common, others)
            self._counted = _sums(self._counted, others)
            self._stamp = stamp
            self._absorb(others)
            num_updates += sum(map(len, others.values()))
        merged = {size: _sum(on_disk.get(size, no_entries()), learned[size]) for size in SIZES}
        stored = self._most_useful({s: entries for s, entries in merged.items() if len(entries)})
        # Entries that did not fit into the file are known too: they must not count as new again.
        common = {s: _largest(stored.get(s, no_entries()), ours[s]) for s in SIZES}
        self._write(stored)
        # Nothing may fail from here on: what is in the file must not be added twice.
        self._common, self._counted, self._num_saved = common, ours, num_updates
        self._stamp = self._file_stamp()

    def _entries(self) -> _BySize:
        return {size: self.cache.entries(size) for size in SIZES}

    def _absorb(self, entries: _BySize) -> None:
        for size, some in entries.items():
            self.cache.add_entries(some, size)

    def _read(self) -> _BySize:
        """Return all entries of the file by size, {} when there is none."""
        if not self.path.exists():
            return {}
        if self._is_lookup_cache():
            return read_lookup_entries(self.path)
        container = open_container(self.path, KIND, verify=True)
        check_tokenizer(container, self._origin.fingerprint, self._any_tokenizer)
        self._origin = origin_kept(container, self._origin)
        cache = cache_of(container)
        return {s: read_all(EntryReader(cache, s)) for s in SIZES if cache.num_ngrams(s)}

    def _most_useful(self, entries: _BySize) -> _BySize:
        """Return the most useful entries that fit into the file."""
        most = self.cache.max_ngrams
        if _num_ngrams(entries) <= most:
            return entries
        full = cache_in_memory({size: ArraySource(some) for size, some in entries.items()})
        sources = useful_sources(full, max_ngrams=most)
        return {size: read_all(source) for size, source in sources.items()}

    def _write(self, entries: _BySize) -> None:
        if self._is_lookup_cache():
            cache = NgramCache(1, 4, 1 << 30)
            for size, some in entries.items():
                cache.add_entries(some, size)
            write_lookup_cache(cache, self.path)
        else:
            write_cache(self.path, {s: ArraySource(e) for s, e in entries.items()}, self._origin)

    def _is_lookup_cache(self) -> bool:
        if self.path.exists() and self.path.suffix != CONTAINER_SUFFIX:
            return not is_container(self.path)
        return self.path.suffix == LOOKUP_SUFFIX

    def _file_stamp(self) -> tuple[int, ...]:
        try:
            stat = self.path.stat()
        except OSError:  # missing or inaccessible
            return ()
        return stat.st_ino, stat.st_size, stat.st_mtime_ns


class SavedFile(Protocol):
    """What Autosave saves."""

    @property
    def path(self) -> Path: ...

    def close(self) -> None:
        """Save; may be called again."""

    def failed(self, error: BaseException) -> None:
        """Count a save that failed."""


class Autosave:
    """Autosave(file, seconds): saves a file, such as a DynamicFile, at intervals until stopped.

    The file counts every failed save; the first of several in a row is also logged. What was
    learned stays in the cache for the next save. 0 seconds: only when told to, and at the end.

    Thread-safety: all methods, from any thread.
    """

    def __init__(self, file: SavedFile, seconds: float) -> None:
        self._file = file
        self._seconds = seconds or None
        self._due = threading.Event()  # a save before the interval is over
        self._stopped = threading.Event()
        self._last_error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="ngramspec-save", daemon=True)
        self._thread.start()

    def save_soon(self) -> None:
        """Save now, in the thread that saves at intervals, without waiting for it."""
        self._due.set()

    def stop(self, seconds: float = STOP_SECONDS) -> None:
        """Save a last time and end. May be called again.

        Args:
            seconds: How long to wait for the last save, as the disk may hang. After that the save
                is abandoned, counted as failed and logged; the process can exit.

        Raises:
            What DynamicFile.save raises in the last save.
        """
        self._stopped.set()
        self._due.set()
        if self._thread is threading.current_thread():
            return  # _run saves next
        if not self._thread.is_alive():  # in a fork, or stopped before
            self._file.close()
            return
        self._thread.join(seconds)
        if self._thread.is_alive():
            error = TimeoutError(errno.ETIMEDOUT, f"the last save took more than {seconds:g} s")
            self._file.failed(error)
            self._warn(error)
        elif self._last_error is not None:
            raise self._last_error

    def _run(self) -> None:
        warned = False
        while True:
            self._due.wait(self._seconds)
            self._due.clear()  # before the save: what is learned during it may be wanted too
            if self._stopped.is_set():
                break
            error = self._save()
            if error is not None and not warned:
                self._warn(error)
            warned = error is not None
        self._last_error = self._save()

    def _save(self) -> Exception | None:
        try:
            self._file.close()
        except Exception as error:
            return error
        return None

    def _warn(self, error: Exception) -> None:
        log.warning("cannot save %s: %s", self._file.path, error)


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


def _sums(first: _BySize, second: _BySize) -> _BySize:
    return {s: _sum(first.get(s, no_entries()), second.get(s, no_entries())) for s in SIZES}


def _sum(first: Entries, second: Entries) -> Entries:
    return read_all(EntryMerger([ArraySource(first), ArraySource(second)]))
