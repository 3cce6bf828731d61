"""The metadata of a GGUF file, read without llama.cpp: what a fingerprint and a loader need.

A GGUF file starts with magic, uint32 version, uint64 number of tensors, uint64 number of keys; then
per key a string, a uint32 type and a value. A string is a uint64 length and its bytes, an array a
uint32 type, a uint64 length and its items. Source: ggml/src/gguf.cpp. A model split over several
files has its metadata in the first.

The `gguf` package makes objects of every token: for the 151,936 of Qwen2.5 its reader takes 7
seconds, this one 0.06.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ngramspec.errors import FormatError
from ngramspec.files.atomic import kind_unless_file

MAGIC = b"GGUF"
_SAFETENSORS_AT = 8  # after its length, the head of a safetensors file is JSON
_MOST_NAMED = 3
Value: TypeAlias = int | float | bool | str | list[bytes] | npt.NDArray[np.generic] | None

_HEAD = struct.Struct("<IQQ")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_STRING, _ARRAY = 8, 9
_KINDS = (*("u1", "i1", "u2", "i2", "u4", "i4", "f4", "?"), "", "", *("u8", "i8", "f8"))
_DTYPES = {kind: np.dtype("<" + name) for kind, name in enumerate(_KINDS) if name}
_MOST_NESTED = 8
_MOST_DIMENSIONS = 8
_ALIGNMENT = "general.alignment"
_SPLIT = re.compile(r"(.+)-00001-of-(\d{5})\.gguf")


def is_gguf(path: str | os.PathLike[str]) -> bool:
    """Return whether a file starts like a GGUF file."""
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def check_gguf(path: str | os.PathLike[str]) -> None:
    """Raise FormatError unless a file starts like a GGUF file, OSError if it cannot be read."""
    path = Path(path)
    if path.is_dir():
        raise FormatError(f"{path} is a folder, not a GGUF file{_within(path)}")
    if what := kind_unless_file(path):
        raise FormatError(f"{path} is {what}, not a GGUF file")
    with open(path, "rb") as file:
        start = file.read(_SAFETENSORS_AT + 1)
    if start.startswith(MAGIC):
        return
    if not start:
        raise FormatError(f"{path} is empty, not a GGUF file")
    if start[_SAFETENSORS_AT:] == b"{":
        raise FormatError(
            f"{path} is a safetensors file, not a GGUF file: llama.cpp's convert_hf_to_gguf.py "
            "converts the folder that it lies in"
        )
    start = start[: len(MAGIC)]
    raise FormatError(f"{path} is not a GGUF file: it starts with {start!r}, not {MAGIC!r}")


def _within(folder: Path) -> str:
    names = sorted(one.name for one in folder.glob("*.gguf"))[:_MOST_NAMED]
    return f"; it holds {', '.join(names)}" if names else ""


def read_metadata(path: str | os.PathLike[str], selects: Callable[[str], bool]) -> dict[str, Value]:
    """Read keys of a GGUF file; tensors are not looked at.

    Args:
        path: The file; of a split model, the first.
        selects: Returns by name whether to read a key; the other values are skipped.

    Returns:
        dict: Numbers, str, for arrays of strings a list of bytes, for other arrays a numpy array;
        None for an array of arrays.

    Raises:
        FormatError: Not GGUF, truncated or damaged; names file and offset.
        OSError: The file cannot be read.

    Cost: one walk over the keys, 0.1 us per string; memory for what is wanted only.
    """
    check_gguf(path)
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _Walk(os.fspath(path), data).metadata(selects)


def read_tensors(path: str | os.PathLike[str]) -> dict[str, int]:
    """Return the bytes of the tensors of a GGUF file by name, padding included.

    path: The file; of a split model, the first: the tensors of all are returned.

    Raises:
        FormatError: Not GGUF, truncated or damaged; names file and offset.
        OSError: A file cannot be read.
    """
    sizes: dict[str, int] = {}
    for one in _files_of(Path(path)):
        check_gguf(one)
        with open(one, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            sizes.update(_Walk(os.fspath(one), data).tensors())
    return sizes


def _files_of(path: Path) -> list[Path]:
    name = _SPLIT.fullmatch(path.name)
    if name is None:
        return [path]
    count = int(name[2])
    return [path.with_name(f"{name[1]}-{i:05d}-of-{count:05d}.gguf") for i in range(1, count + 1)]


class _Walk:
    """One walk over the keys of a mapped file.

    position: Offset of the next byte to read.
    """

    def __init__(self, path: str, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.position = 0

    def metadata(self, selects: Callable[[str], bool]) -> dict[str, Value]:
        values: dict[str, Value] = {}
        _, num_keys = self.head()
        for _ in range(num_keys):
            key = self.string().decode("utf-8", "replace")
            kind = self.number(_U32)
            if selects(key):
                values[key] = self.value(kind)
            else:
                self.skip(kind)
        return values

    def tensors(self) -> dict[str, int]:
        """Return the bytes of the tensors by name."""
        num_tensors, _ = self.head()
        self.position = 0
        padding = self.metadata(lambda key: key == _ALIGNMENT).get(_ALIGNMENT, 32)
        offsets: dict[str, int] = {}
        for _ in range(num_tensors):
            name = self.string().decode("utf-8", "replace")
            dimensions = self.number(_U32)
            if dimensions > _MOST_DIMENSIONS:
                raise self.error(f"a tensor of {dimensions} dimensions")
            self.step(dimensions * _U64.size + _U32.size)
            offsets[name] = self.number(_U64)
        unit = max(1, padding) if isinstance(padding, int) else 32
        length = self.size - -(-self.position // unit) * unit  # of all tensors
        names = sorted(offsets, key=offsets.__getitem__)
        ends = [offsets[name] for name in names[1:]] + [length]
        return {name: max(0, end - offsets[name]) for name, end in zip(names, ends, strict=False)}

    def head(self) -> tuple[int, int]:
        """Check magic and version; return the numbers of tensors and of keys."""
        self.position = len(MAGIC)
        self.need(_HEAD.size)
        version, num_tensors, num_keys = _HEAD.unpack_from(self.data, self.position)
        if version & 0xFFFF == 0:
            raise self.error("the file is big-endian, which is not supported")
        if version not in (2, 3):
            raise self.error(f"GGUF version {version}, supported are 2 and 3")
        self.position += _HEAD.size
        # not trusted: each of them takes bytes that must be there
        return int(num_tensors), int(num_keys)

    def value(self, kind: int) -> Value:
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
        length = self.number(_U64)
        self.need(length)
        start = self.position
        self.position += length
        return self.data[start : self.position]

    def strings(self, count: int) -> list[bytes]:
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
        data, unpack, last, position = self.data, _U64.unpack_from, self.size - 8, self.position
        for i in range(count):
            if position > last:
                raise self.error(f"string {i} of {count} reaches beyond the end of the file")
            position += 8 + unpack(data, position)[0]
        self.position = position
        self.need(0)

    def number(self, layout: struct.Struct) -> int:
        self.need(layout.size)
        (number,) = layout.unpack_from(self.data, self.position)
        self.position += layout.size
        return int(number)

    def dtype(self, kind: int) -> np.dtype[np.generic]:
        if kind not in _DTYPES:
            raise self.error(f"unknown value type {kind}")
        return _DTYPES[kind]

    def step(self, num_bytes: int) -> None:
        self.need(num_bytes)
        self.position += num_bytes

    def need(self, num_bytes: int) -> None:
        """Raise FormatError unless that many bytes are left."""
        if num_bytes > self.size - self.position:
            left = self.size - self.position
            raise self.error(f"{num_bytes} bytes expected, {left} left: truncated or damaged")

    def error(self, reason: str) -> FormatError:
        return FormatError(f"{self.path}: {reason}, at offset {self.position}")
