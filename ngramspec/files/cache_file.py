"""Files of kind "ngram-cache": n-grams and their followers, looked up in place."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramspec._native.cache.static import StaticCache
from ngramspec._native.files.entries import EntryMerger, EntryReader
from ngramspec._native.files.image import ImageWriter, IndexWriter
from ngramspec.errors import FormatError, InputError, VocabMismatchError
from ngramspec.files.atomic import temporary_file
from ngramspec.files.container import (
    Container,
    ContainerWriter,
    Header,
    new_container,
    open_container,
)
from ngramspec.files.entries import EntrySource

KIND = "ngram-cache"
SIZES = (1, 2, 3, 4)
ABOUT = "about"
MOST_LEVELS = 400  # of a provenance: what is nested deeper, Python may not write again
_CHUNK_WORDS = 60 * 4096  # a whole number of records of any size
_WORD = np.dtype("<u4")


@dataclass(frozen=True)
class Origin:
    """The tokenizer and provenance of statistics.

    fingerprint: of the tokenizer, 16 bytes; None = unknown. vocab_size: its number of tokens, 0 =
    the largest id that occurs, plus 1. about: provenance, plain data.
    """

    fingerprint: bytes | None = None
    vocab_size: int = 0
    about: Mapping[str, Any] | None = None


def open_cache(
    path: str | os.PathLike[str],
    *,
    fingerprint: bytes | None = None,
    any_tokenizer: bool = False,
    verify: bool | None = None,
) -> StaticCache:
    """Open a statistics file for lookups in place.

    Args:
        path: A file of kind ngram-cache, on a local disk.
        fingerprint: Of the target's tokenizer, 16 bytes; None = not known, nothing is compared.
        any_tokenizer: Accept a file built with another tokenizer.
        verify: Compare all bytes with their checksums; None = files up to 32 MiB only.

    Returns:
        StaticCache: Keeps the file's bytes alive. The file may be replaced by renaming; above 32
        MiB it is mapped and must not be overwritten or truncated in place.

    Raises:
        FormatError: The file is of another kind, incomplete or damaged.
        VocabMismatchError: It was built with another tokenizer.
        OSError: It cannot be read.

    Cost: O(bytes) up to 32 MiB or with verify; otherwise O(1), lookups read pages on demand.
    """
    container = open_container(path, KIND, verify=verify)
    check_tokenizer(container, fingerprint, any_tokenizer)
    return cache_of(container)


def check_tokenizer(container: Container, expected: bytes | None, any_tokenizer: bool) -> None:
    """Raise VocabMismatchError if both fingerprints are known and differ, unless any_tokenizer."""
    fingerprint = container.header.fingerprint
    if fingerprint is None or expected is None or fingerprint == expected or any_tokenizer:
        return
    model = about_of(container).get("tokenizer")
    raise VocabMismatchError(
        f"{container.path} was built with another tokenizer{f', of {model}' if model else ''}: its "
        f"fingerprint is {fingerprint.hex()}, the target's is {expected.hex()}; drafts would be "
        "nonsense (--any-tokenizer or any_tokenizer=True overrides)"
    )


def cache_of(container: Container) -> StaticCache:
    sections, offsets = {}, {}
    for size in SIZES:
        names = section_names(size)
        if names[0] in container.sections:
            records, lists, index = (container.array(name, "<u4") for name in names)
            sections[size] = records, lists, index
            start = container.sections[names[0]].offset
            offsets[size] = start, container.sections[names[1]].offset
    header, path = container.header, str(container.path)
    try:
        return StaticCache(sections, header.vocab_size, path, header.fingerprint, offsets)
    except InputError as error:
        raise FormatError(f"{path}: {error}") from None


def section_names(size: int) -> tuple[str, str, str]:
    return f"records{size}", f"lists{size}", f"index{size}"


def about_of(container: Container) -> dict[str, Any]:
    """Return the provenance in a file, {} if it has none.

    Raises:
        FormatError: The section is not a JSON object, or a member of it is of a wrong type.
    """
    if ABOUT not in container.sections:
        return {}
    about: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        about = json.loads(bytes(container.view(ABOUT)))
    if expected := _expected(about):
        raise FormatError(f"{container.place(ABOUT)}: expected {expected}")
    return dict(about)


def origin_kept(container: Container, mine: Origin) -> Origin:
    """Return what a file states when it is written again: its own, where the caller knows none.

    Args:
        container: The file, whose tokenizer the caller accepts.
        mine: Tokenizer and provenance that the caller knows.

    Returns:
        Origin: Its vocab_size admits all tokens of the file.

    Raises:
        FormatError: The file's provenance is damaged.
    """
    header, vocab_size = container.header, mine.vocab_size
    if vocab_size or header.fingerprint:
        vocab_size = max(vocab_size, header.vocab_size)
    fingerprint = mine.fingerprint or header.fingerprint
    return Origin(fingerprint, vocab_size, mine.about or about_of(container))


def write_cache(
    path: str | os.PathLike[str],
    sources: Mapping[int, EntrySource],
    origin: Origin,
    *,
    min_count: int = 1,
) -> Header:
    """Write sorted entries as a statistics file: equal entries give equal bytes.

    Args:
        path: Replaced atomically once all bytes are on disk.
        sources: By n-gram size 1..4: its entries.
        origin: Tokenizer and provenance.
        min_count: Leave out pairs of n-gram and follower with smaller counts, >= 1.

    Returns:
        Header: What was written.

    Raises:
        InputError: A token id is not below origin.vocab_size.
        CapacityError: More n-grams than a file can hold.
        OSError: The file cannot be written; an existing one is kept.

    Cost: O(entries); memory: the index of a size, 1.0 to 1.6 bytes per n-gram, and a few megabytes.
    """
    with new_container(path) as writer:
        return fill_cache(writer, path, sources, origin, min_count=min_count)


def about_bytes(about: Mapping[str, Any]) -> bytes:
    """Return a provenance as JSON; names of files need not be UTF-8.

    Raises:
        InputError: A member of it is of a wrong type: about_of would refuse it.
    """
    if expected := _expected(about):
        raise InputError(f"the provenance of a file is wrong: expected {expected}")
    text = json.dumps(about, sort_keys=True, ensure_ascii=False)
    return text.encode("utf-8", "backslashreplace")  # a lone surrogate as JSON writes it


def fill_cache(
    writer: ContainerWriter,
    path: str | os.PathLike[str],
    sources: Mapping[int, EntrySource],
    origin: Origin,
    *,
    min_count: int = 1,
) -> Header:
    """Do as write_cache, through a writer; temporary files lie beside `path`."""
    parts = [_write_size(writer, size, sources[size], min_count, path) for size in sorted(sources)]
    if origin.about:
        writer.add(ABOUT, about_bytes(origin.about))
    largest = max((part[2] for part in parts), default=0)
    if origin.vocab_size and largest >= origin.vocab_size:
        raise InputError(f"token id {largest} is not below vocab_size, {origin.vocab_size}")
    header = Header(
        KIND,
        origin.fingerprint,
        origin.vocab_size or largest + 1,
        min(sources, default=0),
        max(sources, default=0),
        sum(part[0] for part in parts),
        sum(part[1] for part in parts),
    )
    writer.finish(header)
    return header


def cache_in_memory(sources: Mapping[int, EntrySource], vocab_size: int = 0) -> StaticCache:
    """Build a StaticCache from sorted entries, without a file."""
    sections, largest = {}, 0
    for size, source in sources.items():
        image = ImageWriter(size)
        parts = [*_image_parts(image, source)]
        records, lists = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        index = IndexWriter(size, image.num_ngrams)
        index.feed(records)
        sections[size] = records, lists, index.finish()
        largest = max(largest, image.largest_token)
    return StaticCache(sections, vocab_size or largest + 1)


def check_cache(cache: StaticCache) -> None:
    """Check every n-gram, follower and index word. O(bytes).

    Raises:
        FormatError: A value is impossible; names file, offset and what was expected.
    """
    for size in SIZES:
        sections = cache.sections(size)
        if sections is None:
            continue
        reader = EntryReader(cache, size)
        while len(reader.read()):
            pass
        index = IndexWriter(size, cache.num_ngrams(size))
        index.feed(sections[0])
        reader.check_index(index.finish())


def _expected(about: Any) -> str:
    """Return what a provenance should have been, "" if nothing is wrong with it."""
    if not isinstance(about, Mapping):
        return "a JSON object"
    level: list[Any] = [about]
    for _ in range(MOST_LEVELS):
        level = [inner for outer in level for inner in _inside(outer)]
    if level:
        return f"at most {MOST_LEVELS} levels"
    parts = [about]
    while parts:
        part = parts.pop()
        for name, (fits, what) in _MEMBERS.items():
            if name in part and not fits(part[name]):
                return f"{name!r} to be {what}"
        parts += part.get("merged", ())
    return ""


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


def _are(kind: type, value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, kind) for one in value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


# The members of a provenance that commands read; it may have any others.
_MEMBERS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "corpus": (partial(_are, str), "a list of names"),
    "merged": (partial(_are, Mapping), "a list of objects"),
    "pruned": (partial(_are, Mapping), "a list of objects"),
    "options": (lambda value: isinstance(value, Mapping), "an object"),
    **dict.fromkeys(("documents", "tokens", "more_files"), (_is_number, "a number")),
}


def _image_parts(
    image: ImageWriter, source: EntrySource
) -> Iterator[tuple[NDArray[np.uint32], NDArray[np.uint32]]]:
    """Yield records and follower lists while reading the entries."""
    while len(entries := source.read()):
        image.feed(entries)
        yield image.take()
    image.finish()
    yield image.take()


def _write_size(
    writer: ContainerWriter,
    size: int,
    source: EntrySource,
    min_count: int,
    path: str | os.PathLike[str],
) -> tuple[int, int, int]:
    """Write the sections of one size; return n-grams, pairs and the largest token."""
    image = ImageWriter(size)
    names = section_names(size)
    if min_count > 1:
        source = EntryMerger([source], min_count)
    writer.begin(names[0])
    with temporary_file(path) as spool:  # the lists follow all records
        for records, lists in _image_parts(image, source):
            writer.write(records.astype(_WORD, copy=False))
            spool.write(lists.astype(_WORD, copy=False).data)
        section = writer.end()
        spool.seek(0)
        writer.begin(names[1])
        shutil.copyfileobj(spool, writer, 1 << 20)
        writer.end()
    index = IndexWriter(size, image.num_ngrams)
    for chunk in writer.read_back(section, 4 * _CHUNK_WORDS):
        index.feed(np.frombuffer(chunk, dtype=_WORD).astype(np.uint32, copy=False))
    writer.add(names[2], index.finish().astype(_WORD, copy=False))
    return image.num_ngrams, image.num_pairs, image.largest_token
