"""The metadata of a GGUF file, read without llama.cpp: what a fingerprint and a loader need.

A GGUF file starts with magic, uint32 version, uint64 number of tensors, uint64 number of keys; then
per key a string, a uint32 type and a value. A string is a uint64 length and its bytes, an array a
uint32 type, a uint64 length and its items. Source: ggml/src/gguf.cpp. A model split over several
files has its metadata in the first.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ngramspec.errors import FormatError

MAGIC = b"GGUF"
Value: TypeAlias = int | float | bool | str | list[bytes] | npt.NDArray[np.generic] | None

_HEAD = struct.Struct("<IQQ")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_STRING, _ARRAY = 8, 9
_KINDS = (*("u1", "i1", "u2", "i2", "u4", "i4", "f4", "?"), "", "", *("u8", "i8", "f8"))
_DTYPES = {kind: np.dtype("<" + name) for kind, name in enumerate(_KINDS) if name}
_MOST_NESTED = 8


def is_gguf(path: str | os.PathLike[str]) -> bool:
    """Return whether a file starts like a GGUF file."""
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_metadata(path: str | os.PathLike[str], wanted: Callable[[str], bool]) -> dict[str, Value]:
    """Read keys of a GGUF file; tensors are not looked at.

    Args:
        path: The file; of a split model, the first.
        wanted: Returns by name whether to read a key; the other values are skipped.

    Returns:
        dict: Numbers, str, for arrays of strings a list of bytes, for other arrays a numpy array;
        None for an array of arrays.

    Raises:
        FormatError: Not GGUF, truncated or damaged; names file and offset.
        OSError: The file cannot be read.

    Cost: one walk over the keys, 0.1 us per string; memory for what is wanted only.
    """
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise FormatError(f"{os.fspath(path)}: the file is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Walk(os.fspath(path), data).metadata(wanted)


class _Walk:
    """One walk over the keys of a mapped file.

    position: Offset of the next byte to read.
    """

    def __init__(self, path: str, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.position = 0

    def metadata(self, wanted: Callable[[str], bool]) -> dict[str, Value]:
        """Return the wanted keys."""
        found: dict[str, Value] = {}
        for _ in range(self.head()):
            key = self.string().decode("utf-8", "replace")
            kind = self.number(_U32)
            if wanted(key):
                found[key] = self.value(kind)
            else:
                self.skip(kind)
        return found

    def head(self) -> int:
        """Check magic and version; return the number of keys."""
        if self.data[: len(MAGIC)] != MAGIC:
            raise self.error(f"expected {MAGIC!r}, found {self.data[: len(MAGIC)]!r}")
        self.position = len(MAGIC)
        self.need(_HEAD.size)
        version, _, num_keys = _HEAD.unpack_from(self.data, self.position)
        if version & 0xFFFF == 0:
            raise self.error("the file is big-endian, which is not supported")
        if version not in (2, 3):
            raise self.error(f"GGUF version {version}, supported are 2 and 3")
        self.position += _HEAD.size
        return int(num_keys)  # not trusted: every key takes bytes that must be there

    def value(self, kind: int) -> Value:
        """Read the value at the position."""
        if kind == _STRING:
            return self.string().decode("utf-8", "replace")
        if kind == _ARRAY:
            return self.array()
        dtype = self.dtype(kind)
        self.need(dtype.itemsize)
        item = np.frombuffer(self.data, dtype, 1, self.position)[0].item()
        self.position += dtype.itemsize
        return item  # type: ignore[no-any-return]

    def array(self) -> Value:
        """Read the array at the position."""
        start = self.position
        kind, length = self.array_head()
        if kind == _STRING:
            return self.strings(length)
        if kind == _ARRAY:
            self.position = start
            self.skip(_ARRAY)
            return None
        dtype = self.dtype(kind)
        self.need(dtype.itemsize * length)
        items = np.frombuffer(self.data, dtype, length, self.position).copy()
        self.position += items.nbytes
        return items

    def skip(self, kind: int, depth: int = 0) -> None:
        """Step over the value at the position."""
        if kind == _STRING:
            self.string()
        elif kind != _ARRAY:
            self.step(self.dtype(kind).itemsize)
        else:
            inner, length = self.array_head()
            if inner == _STRING:
                self.skip_strings(length)
            elif inner != _ARRAY:
                self.step(self.dtype(inner).itemsize * length)
            elif depth == _MOST_NESTED:
                raise self.error("arrays are nested too deep")
            else:
                for _ in range(length):
                    self.skip(_ARRAY, depth + 1)

    def array_head(self) -> tuple[int, int]:
        """Read an array's item type and length; every item takes a byte at least."""
        kind, length = self.number(_U32), self.number(_U64)
        if length > self.size - self.position:
            raise self.error(f"an array of {length} items is longer than the file")
        return kind, length

    def string(self) -> bytes:
        """Read the string at the position."""
        length = self.number(_U64)
        self.need(length)
        start = self.position
        self.position += length
        return self.data[start : self.position]

    def strings(self, count: int) -> list[bytes]:
        """Read `count` strings."""
        data, unpack, size, position = self.data, _U64.unpack_from, self.size, self.position
        items = []
        for i in range(count):
            start = position + 8
            end = start + unpack(data, position)[0] if start <= size else size + 1
            if end > size:
                raise self.error(f"string {i} of {count} reaches beyond the end of the file")
            items.append(data[start:end])
            position = end
        self.position = position
        return items

    def skip_strings(self, count: int) -> None:
        """Step over `count` strings."""
        data, unpack, last, position = self.data, _U64.unpack_from, self.size - 8, self.position
        for i in range(count):
            if position > last:
                raise self.error(f"string {i} of {count} reaches beyond the end of the file")
            position += 8 + unpack(data, position)[0]
        self.position = position
        self.need(0)

    def number(self, layout: struct.Struct) -> int:
        """Read one integer."""
        self.need(layout.size)
        (number,) = layout.unpack_from(self.data, self.position)
        self.position += layout.size
        return int(number)

    def dtype(self, kind: int) -> np.dtype[np.generic]:
        """Return the numpy type of a scalar type."""
        if kind not in _DTYPES:
            raise self.error(f"unknown value type {kind}")
        return _DTYPES[kind]

    def step(self, num_bytes: int) -> None:
        """Step over bytes."""
        self.need(num_bytes)
        self.position += num_bytes

    def need(self, num_bytes: int) -> None:
        """Raise FormatError unless that many bytes are left."""
        if num_bytes > self.size - self.position:
            left = self.size - self.position
            raise self.error(f"{num_bytes} bytes expected, {left} left: truncated or damaged")

    def error(self, reason: str) -> FormatError:
        """Return the exception that names file and offset."""
        return FormatError(f"{self.path}: {reason}, at offset {self.position}")
