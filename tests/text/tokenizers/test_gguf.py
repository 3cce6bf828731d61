"""The metadata reader against the gguf package, and against truncated and damaged files."""

from __future__ import annotations

import contextlib
import re
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from hypothesis import given
from hypothesis import strategies as st
from vocabularies import read_gguf

from ngramspec.errors import FormatError
from ngramspec.text.tokenizers.gguf import is_gguf, read_metadata, read_tensors


def everything(_: str) -> bool:
    return True


def nothing(_: str) -> bool:
    return False


def header(num_keys: int, *parts: bytes, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, 0, num_keys) + b"".join(parts)


def key(name: bytes, kind: int, value: bytes = b"") -> bytes:
    return struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + value


def array(kind: int, length: int, items: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, length) + items


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a key of every type."""
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    writer = GGUFWriter(path, "llama")
    for bits in (8, 16, 32, 64):
        getattr(writer, f"add_uint{bits}")(f"u{bits}", 200)
        getattr(writer, f"add_int{bits}")(f"i{bits}", -100)
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("bool", True)
    writer.add_string("text", "h\u00e9")
    writer.add_array("strings", ["a", "", "\u2581the"])
    writer.add_array("numbers", [1, -2, 3])
    writer.add_array("nested", [["a", "b"], ["c"]])
    writer.add_array("nested_numbers", [[1, 2], [3]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_every_type_is_read(small: Path) -> None:
    metadata = read_metadata(small, everything)
    numbers = metadata.pop("numbers")
    assert isinstance(numbers, np.ndarray)
    assert numbers.tolist() == [1, -2, 3]
    assert metadata == {
        **{"general.architecture": "llama", "u8": 200, "u16": 200, "u32": 200, "u64": 200},
        **{"i8": -100, "i16": -100, "i32": -100, "i64": -100, "f32": 0.5, "f64": 0.1},
        **{"bool": True, "text": "h\u00e9", "strings": [b"a", b"", "\u2581the".encode()]},
        **{"nested": None, "nested_numbers": None},
    }


def test_unwanted_keys_are_stepped_over(small: Path) -> None:
    for name, value in read_metadata(small, everything).items():
        metadata = read_metadata(small, name.__eq__)
        assert list(metadata) == [name]
        assert np.array_equal(metadata[name], value)  # type: ignore[arg-type]
    assert read_metadata(small, nothing) == {}


def test_the_embedded_model_reads_as_with_the_gguf_package(gguf_path: Path) -> None:
    expected = read_gguf(gguf_path)
    metadata = read_metadata(gguf_path, lambda name: name.startswith("tokenizer."))
    assert list(metadata) == list(expected)
    for name, value in metadata.items():
        plain: Any = value.tolist() if isinstance(value, np.ndarray) else value
        if isinstance(plain, list) and isinstance(plain[0], bytes):
            plain = [item.decode() for item in plain]
        assert plain == expected[name]


@pytest.mark.parametrize("select", [everything, nothing])
def test_every_prefix_is_refused_with_name_and_offset(
    small: Path, tmp_path: Path, select: Any
) -> None:
    data = small.read_bytes()
    end = data.index(b"nested_numbers") + len("nested_numbers") + 4 + 12 + 2 * 12 + 3 * 4
    path = tmp_path / "cut.gguf"
    path.write_bytes(data[:end])
    read_metadata(path, select)
    for length in range(end):
        path.write_bytes(data[:length])
        with pytest.raises(
            FormatError, match=r"cut\.gguf(: .*offset \d+$| is empty| is not a GGUF)"
        ):
            read_metadata(path, select)


@given(damage=st.lists(st.tuples(st.integers(0, 700), st.binary(min_size=1, max_size=9))))
@pytest.mark.parametrize("select", [everything, nothing])
def test_damage_gives_a_result_or_a_format_error(
    small: Path, tmp_path_factory: pytest.TempPathFactory, select: Any, damage: list[Any]
) -> None:
    data = bytearray(small.read_bytes())
    for offset, replacement in damage:
        data[offset : offset + len(replacement)] = replacement
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    path.write_bytes(data)
    with contextlib.suppress(FormatError):  # anything else fails the test
        assert isinstance(read_metadata(path, select), dict)


HUGE = 1 << 60


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (header(1, key(b"k", 8, struct.pack("<Q", HUGE))), "bytes expected, 0 left"),
        (header(1, struct.pack("<Q", 2**64 - 1)), "bytes expected, 0 left"),
        (header(1, key(b"k", 9, array(4, HUGE))), "longer than the file"),
        (header(1, key(b"k", 9, array(8, 2, b"\0" * 8))), "string 1 of 2"),
        (header(1, key(b"k", 9, array(8, 1, b"\xff" * 8))), "of 1|bytes expected"),
        (header(1, key(b"k", 9, array(12, 2, b"\0" * 8))), "16 bytes expected, 8 left"),
        (header(HUGE), "8 bytes expected, 0 left"),
        (header(1, key(b"k", 13)), "unknown value type 13"),
        (header(1, key(b"k", 9, array(13, 0))), "unknown value type 13"),
        (header(1, key(b"k", 9, array(9, 1) * 20)), "nested too deep"),
        (header(0, version=1), "version 1, supported are 2 and 3"),
        (header(0, version=0x03000000), "big-endian"),
    ],
)
@pytest.mark.parametrize("select", [everything, nothing])
def test_impossible_lengths_are_refused_without_memory(
    tmp_path: Path, data: bytes, reason: str, select: Any
) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=f"bad.gguf: .*({reason}).* offset"):
            read_metadata(path, select)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_other_files_are_told_apart(small: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert is_gguf(small)
    assert not is_gguf(tmp_path / "empty")
    with pytest.raises(FormatError, match="empty is empty, not a GGUF file"):
        read_metadata(tmp_path / "empty", everything)
    with pytest.raises(FileNotFoundError):
        read_metadata(tmp_path / "missing", everything)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", " is empty, not a GGUF file"),
        (b"GG", " is not a GGUF file: it starts with b'GG', not b'GGUF'"),
        (b"GGML" + bytes(40), " is not a GGUF file: it starts with b'GGML', not b'GGUF'"),
        (bytes(8) + b'{"a": 1}', " is a safetensors file, not a GGUF file"),
    ],
)
def test_what_is_no_gguf_is_told_by_what_it_is(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    for read in (lambda: read_metadata(path, everything), lambda: read_tensors(path)):
        with pytest.raises(FormatError, match=re.escape(f"bad.gguf{reason}")):
            read()


def tensors_file(path: Path, alignment: int | None = None, **sizes: int) -> Path:
    """Write a file with a vector of each size."""
    writer = GGUFWriter(path, "llama")
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    writer.add_array("strings", ["a", "b"])
    for name, size in sizes.items():
        writer.add_tensor(name, np.zeros(size, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("alignment", [None, 32, 256])
def test_sizes_of_tensors_are_those_of_the_package(tmp_path: Path, alignment: int | None) -> None:
    path = tensors_file(tmp_path / "a.gguf", alignment, one=1, two=1000, three=64)
    sizes, padding = read_tensors(path), alignment or 32
    expected = {tensor.name: int(tensor.n_bytes) for tensor in GGUFReader(path).tensors}
    assert sizes.keys() == expected.keys()
    assert all(0 <= sizes[name] - size < padding for name, size in expected.items())
    assert read_tensors(tensors_file(tmp_path / "none.gguf")) == {}


def test_tensors_of_a_split_model_are_in_all_its_files(tmp_path: Path) -> None:
    first = tensors_file(tmp_path / "m-00001-of-00002.gguf", a=8)
    with pytest.raises(OSError, match=r"m-00002-of-00002\.gguf"):
        read_tensors(first)
    tensors_file(tmp_path / "m-00002-of-00002.gguf", b=16)
    assert read_tensors(first) == {"a": 32, "b": 64}


def test_truncated_and_damaged_tables_of_tensors_are_refused(tmp_path: Path) -> None:
    whole = tensors_file(tmp_path / "a.gguf", one=1, two=1000).read_bytes()
    path = tmp_path / "b.gguf"
    for end in range(4, whole.index(b"two") + 23):
        path.write_bytes(whole[:end])
        with pytest.raises(FormatError, match=r"b\.gguf: "):
            read_tensors(path)
    at = whole.index(b"one") + 3
    path.write_bytes(whole[:at] + struct.pack("<I", 2**31) + whole[at + 4 :])
    with pytest.raises(FormatError, match="a tensor of 2147483648 dimensions"):
        read_tensors(path)


@given(data=st.binary(max_size=200), at=st.integers(0, 200))
def test_random_tables_of_tensors_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, at: int
) -> None:
    path = tmp_path_factory.mktemp("gguf") / "a.gguf"
    whole = bytearray(tensors_file(path, one=1, two=10).read_bytes())
    whole[at : at + len(data)] = data
    path.write_bytes(whole)
    with contextlib.suppress(FormatError):
        assert all(size >= 0 for size in read_tensors(path).values())
