"""The container of statistics files: a header, a table of sections, checksums.

docs/reference/formats.md describes every byte.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ngramspec._version import __version__
from ngramspec.errors import FormatError, FormatVersionError
from ngramspec.files.atomic import kind_unless_file, new_file

MAGIC = b"\x89NGRAM\r\n"
VERSION = 1
KINDS = {1: "ngram-cache", 2: "hash-pool", 3: "suffix", 4: "slot", 5: "successors"}
# The options that read files of a kind, for whoever gives one to another option.
OPTIONS = {
    "ngram-cache": "-lcs",
    "hash-pool": "--pool",
    "suffix": "--suffix-index",
    "successors": "--recycle-file",
}
HEAD_BYTES = 1024  # header and table of sections; sections follow
ALIGNMENT = 64
MOST_SECTIONS = 28
# Files up to this size are read into memory and checked byte by byte; larger ones are mapped, and
# checked on request.
READ_BYTES = 1 << 25

_HEADER = struct.Struct("<8sHHIQQ16sIHHQQ24s32s")
_SECTION = struct.Struct("<8sQQQ")
_CHECKSUM_AT = 24


@dataclass(frozen=True)
class Header:
    """The header of a file; num_ngrams and num_pairs where the kind has them."""

    kind: str
    fingerprint: bytes | None = None  # of the tokenizer, 16 bytes; None = unknown
    vocab_size: int = 1  # every token id is below it
    ngram_min: int = 0
    ngram_max: int = 0
    num_ngrams: int = 0
    num_pairs: int = 0  # pairs of an n-gram and a follower
    producer: str = f"ngramspec {__version__}"
    version: int = VERSION


@dataclass(frozen=True)
class Section:
    """A range of bytes in the file. checksum 0: it changes in place and has none."""

    name: str
    offset: int
    size: int
    checksum: int


class Container:
    """An open file: header, sections, and views of them that keep its bytes alive."""

    def __init__(
        self, path: Path, header: Header, sections: dict[str, Section], data: memoryview
    ) -> None:
        self.path = path
        self.header = header
        self.sections = sections
        self._data = data

    def view(self, name: str) -> memoryview:
        """Return a section's bytes in place.

        Raises:
            FormatError: The file has no such section.
        """
        section = self.sections.get(name)
        if section is None:
            raise FormatError(f"{self.path}: expected a section {name!r}, found {[*self.sections]}")
        return self._data[section.offset : section.offset + section.size]

    def place(self, name: str) -> str:
        """Return the file, a section and its offset, as messages begin."""
        return f"{self.path}: section {name!r} at offset {self.sections[name].offset}"

    def array(self, name: str, dtype: str, columns: int = 0) -> NDArray[Any]:
        """Return the numbers of a section in place, in rows if it has columns.

        Raises:
            FormatError: The file has no such section, or not whole rows in it.
        """
        view, size = self.view(name), np.dtype(dtype).itemsize * max(columns, 1)
        if len(view) % size:
            raise FormatError(
                f"{self.place(name)}: expected a multiple of {size} bytes, found {len(view)} bytes"
            )
        numbers = np.frombuffer(view, dtype)
        return numbers.reshape(-1, columns) if columns else numbers

    def shape(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Return the numbers in the section "shape".

        Raises:
            FormatError: The file has no such section, or it has another size.
        """
        raw = bytes(self.view("shape"))
        if len(raw) != layout.size:
            raise FormatError(
                f"{self.place('shape')}: expected {layout.size} bytes, found {len(raw)}"
            )
        return layout.unpack(raw)

    def verify(self) -> None:
        """Compare every section with its checksum. O(bytes).

        Raises:
            FormatError: A checksum differs, or the padding before a section is not zero.
        """
        end = HEAD_BYTES
        for section in self.sections.values():
            if any(self._data[end : section.offset]):
                raise FormatError(f"{self.path}: expected zeros at offset {end}")
            end = section.offset + section.size
            actual = _checksum(self.view(section.name)) if section.checksum else 0
            if actual != section.checksum:
                raise FormatError(
                    f"{self.place(section.name)}: expected checksum {section.checksum:016x}, "
                    f"found {actual:016x}"
                )


def is_container(path: str | os.PathLike[str]) -> bool:
    """Return whether a file starts with a container's magic; False if it cannot be read."""
    try:
        if kind_unless_file(path):
            return False
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def open_container(
    path: str | os.PathLike[str],
    kind: str | None = None,
    *,
    verify: bool | None = None,
    writable: bool = False,
) -> Container:
    """Open a file and check its head.

    A file up to 32 MiB is read into memory, so later changes to it do not matter. A larger or a
    writable one is mapped: truncating it kills the processes that access the missing part. So
    replace files by renaming, never overwrite them.

    Args:
        path: The file, on a local disk.
        kind: The required kind, None = any.
        verify: Compare all bytes with the checksums; None = up to 32 MiB only.
        writable: Map it shared, so that writes reach the file and all processes that map it.

    Raises:
        FormatError: It is of another kind, incomplete or damaged; names file, offset and what was
            expected.
        FormatVersionError: It is of a newer version.
        OSError: It cannot be read.

    Cost: O(bytes) up to 32 MiB or with verify, otherwise O(1).
    """
    path = Path(path)
    if what := kind_unless_file(path):
        raise FormatError(f"{path}: expected a statistics file, found {what}")
    with open(path, "r+b" if writable else "rb") as file:
        size = os.fstat(file.fileno()).st_size
        head = file.read(HEAD_BYTES)
        header, sections = _parse(path, head, size)
        if kind is not None and header.kind != kind:
            reader = OPTIONS.get(header.kind)
            hint = f", which {reader} reads" if reader else ""
            raise FormatError(f"{path}: expected a file of kind {kind}, found {header.kind}{hint}")
        if writable:
            data = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_WRITE))
        elif size > READ_BYTES:
            data = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
        else:
            data = _read(path, file, head, size)
    container = Container(path, header, sections, data)
    if verify or (verify is None and size <= READ_BYTES):
        container.verify()
    return container


def _read(path: Path, file: BinaryIO, head: bytes, size: int) -> memoryview:
    """Read the rest of a file after its head; return all of it in page-aligned memory."""
    pages = mmap.mmap(-1, size)
    pages.write(head)
    with memoryview(pages) as whole:
        at = len(head)
        while at < size:
            num = file.readinto(whole[at:])  # type: ignore[attr-defined]
            if not num:
                raise FormatError(f"{path}: expected {size} bytes (offset 16), found {at}")
            at += num
    return memoryview(pages).toreadonly()


def _parse(path: Path, head: bytes, size: int) -> tuple[Header, dict[str, Section]]:
    if head[: len(MAGIC)] != MAGIC[: len(head)] or not head:
        what = "not a statistics file of ngramspec"
        if not head:
            raise FormatError(f"{path}: the file is empty, {what}")
        if head.startswith(b"GGUF"):
            raise FormatError(f"{path}: a GGUF model, {what}")
        raise FormatError(f"{path}: {what}: it begins with {head[: len(MAGIC)]!r}")
    if len(head) < HEAD_BYTES:
        raise FormatError(f"{path}: expected {HEAD_BYTES} bytes of head, found {len(head)}")
    fields = _HEADER.unpack_from(head)
    version, kind, num_sections, file_size, checksum = fields[1:6]
    if version > VERSION:
        raise FormatVersionError(
            f"{path}: version {version} at offset 8 is newer than {VERSION}: update ngramspec"
        )
    actual = _checksum(head[:_CHECKSUM_AT] + bytes(8) + head[_CHECKSUM_AT + 8 :])
    if actual != checksum:
        raise FormatError(
            f"{path}: expected checksum {checksum:016x} of the head at offset {_CHECKSUM_AT}, "
            f"found {actual:016x}"
        )
    if kind not in KINDS or version < 1 or num_sections > MOST_SECTIONS:
        raise FormatError(
            f"{path}: kind {kind}, version {version} or {num_sections} sections: unknown"
        )
    if file_size != size:
        raise FormatError(f"{path}: expected {file_size} bytes (offset 16), found {size}")
    fingerprint, vocab_size, ngram_min, ngram_max, num_ngrams, num_pairs, producer = fields[6:13]
    header = Header(
        kind=KINDS[kind],
        fingerprint=fingerprint if any(fingerprint) else None,
        vocab_size=vocab_size,
        ngram_min=ngram_min,
        ngram_max=ngram_max,
        num_ngrams=num_ngrams,
        num_pairs=num_pairs,
        producer=producer.rstrip(b"\0").decode("ascii", "replace"),
        version=version,
    )
    return header, _parse_sections(path, head, num_sections, size)


def _parse_sections(path: Path, head: bytes, num: int, size: int) -> dict[str, Section]:
    sections: dict[str, Section] = {}
    end = HEAD_BYTES
    for i in range(num):
        at = _HEADER.size + i * _SECTION.size
        raw, offset, length, checksum = _SECTION.unpack_from(head, at)
        if (
            offset % ALIGNMENT
            or offset < end
            or offset - end >= ALIGNMENT
            or length > size - offset
        ):
            raise FormatError(
                f"{path}: section {i} at offset {at}: expected an offset from {end} on, within "
                f"{size} bytes, found {offset} + {length}"
            )
        end = offset + length
        section = Section(raw.rstrip(b"\0").decode("ascii", "replace"), offset, length, checksum)
        sections[section.name] = section
    if end != size:
        raise FormatError(
            f"{path}: expected the last section to end the file, {size - end} bytes left"
        )
    return sections


class ContainerWriter:
    """Writes the sections of a file one after another; made by `new_container`."""

    def __init__(self, file: BinaryIO) -> None:
        self.sections: list[Section] = []
        self._file = file
        file.write(bytes(HEAD_BYTES))

    @property
    def offset(self) -> int:
        return self._file.tell()

    def begin(self, name: str) -> None:
        """Start a section at the next aligned offset."""
        from xxhash import xxh3_64

        self._file.write(bytes(-self.offset % ALIGNMENT))
        self._name, self._start, self._hash = name, self.offset, xxh3_64()

    def write(self, data: Any) -> None:
        self._hash.update(data)
        self._file.write(data)

    def end(self, *, checked: bool = True) -> Section:
        """Finish the section; checked=False: it will change in place and has no checksum."""
        checksum = (self._hash.intdigest() or 1) if checked else 0
        section = Section(self._name, self._start, self.offset - self._start, checksum)
        self.sections.append(section)
        return section

    def add(self, name: str, data: Any, *, checked: bool = True) -> Section:
        self.begin(name)
        self.write(data)
        return self.end(checked=checked)

    def read_back(self, section: Section, chunk_bytes: int) -> Iterator[bytes]:
        """Yield what was written to a section, a chunk at a time."""
        end = self.offset
        for at in range(section.offset, section.offset + section.size, chunk_bytes):
            self._file.seek(at)
            yield self._file.read(min(chunk_bytes, section.offset + section.size - at))
        self._file.seek(end)

    def finish(self, header: Header) -> None:
        """Write the head; write nothing after this."""
        size = self.offset
        table = b"".join(
            _SECTION.pack(s.name.encode(), s.offset, s.size, s.checksum) for s in self.sections
        )
        kind = next(number for number, name in KINDS.items() if name == header.kind)
        fields = (
            len(self.sections), size, 0, header.fingerprint or bytes(16), header.vocab_size,
            header.ngram_min, header.ngram_max, header.num_ngrams, header.num_pairs,
        )  # fmt: skip
        head = _HEADER.pack(MAGIC, VERSION, kind, *fields, header.producer.encode(), b"") + table
        head = head.ljust(HEAD_BYTES, b"\0")
        checksum = struct.pack("<Q", _checksum(head))
        self._file.seek(0)
        self._file.write(head[:_CHECKSUM_AT] + checksum + head[_CHECKSUM_AT + 8 :])


@contextmanager
def new_container(
    path: str | os.PathLike[str], *, replace: bool = True
) -> Iterator[ContainerWriter]:
    """Write a container as `new_file` writes a file; the block must call `finish`."""
    with new_file(path, replace=replace) as file:
        yield ContainerWriter(file)


def _checksum(data: Any) -> int:
    from xxhash import xxh3_64_intdigest

    return xxh3_64_intdigest(data) or 1
