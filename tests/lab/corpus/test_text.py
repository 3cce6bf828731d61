"""Text files: encodings, binary files, long files, compression and damage."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading import Write, messages, read

from ngramspec.errors import BackendError
from ngramspec.lab.corpus import Problems, ReadOptions, Unit, find_units, read_documents
from ngramspec.lab.corpus.documents import DAMAGED

zstandard = pytest.importorskip("zstandard")

TEXT = "def f():\r\n    return 'h\u00e9'\n"
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "bz2": bz2.compress,
    "zst": zstandard.ZstdCompressor().compress,
}


def test_a_file_is_one_document(write: Write) -> None:
    assert read(write("a.py", TEXT)) == ([TEXT], Problems())
    assert read(write("empty.py", "")) == ([], Problems())


@pytest.mark.parametrize(
    ("bom", "encoding"),
    [
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
        (codecs.BOM_UTF32_LE, "utf-32-le"),
        (codecs.BOM_UTF32_BE, "utf-32-be"),
    ],
)
def test_a_byte_order_mark_tells_the_encoding(write: Write, bom: bytes, encoding: str) -> None:
    text = TEXT * 9000  # more than the window that is looked at first
    assert read(write("a.txt", bom + text.encode(encoding)))[0] == [text]
    assert read(write("a.txt", bom)) == ([], Problems())


def test_a_few_bytes_that_are_not_utf8_are_replaced(write: Write) -> None:
    path = write("cut.txt", ("plain text " * 9 + "\u00e9\u00e8").encode()[:-1])
    texts, problems = read(path)
    assert texts == ["plain text " * 9 + "\u00e9\ufffd"]
    assert messages(problems) == [f"cut.txt: {DAMAGED}"]


WESTERN = {
    "French": "Le caf\u00e9 cr\u00e8me co\u00fbte 3 \u20ac \u00e0 l\u2019\u00c9lys\u00e9e.\n",
    "German": "Gr\u00f6\u00dfere B\u00e4ume st\u00fcnden schr\u00e4g \u2013 \u00dcbung macht.\n",
    "code": "# \u00a9 2004 Jos\u00e9\ndef f(x):\n    return x + 1\n" * 40,
    "short": "caf\u00e9",
}


@pytest.mark.parametrize("language", WESTERN)
def test_windows_1252_is_read_as_such_and_told(write: Write, language: str) -> None:
    text = WESTERN[language]
    texts, problems = read(write("old.txt", text.encode("cp1252")))
    assert texts == [text]
    assert messages(problems) == ["old.txt: not UTF-8, read as Windows-1252"]
    assert (problems.num_recoded, problems.total) == (1, 1)


def test_a_damaged_utf8_file_stays_utf8(write: Write) -> None:
    text = "\u00fcber \u4e2d\u6587 " * 20
    damaged = text.encode() + b"\xe9 x"
    texts, problems = read(write("a.txt", damaged))
    assert texts == [text + "\ufffd x"]
    assert messages(problems) == [f"a.txt: {DAMAGED}"]
    assert read(write("b.txt", texts[0])) == (
        texts,
        Problems(),
    )  # the character itself is no damage


def test_bytes_of_another_encoding_are_told_wherever_they_are(write: Write) -> None:
    late = "x = 1\n" * 20_000
    texts, problems = read(write("late.txt", late.encode() + b"caf\xe9\n" * 3))
    assert texts == [late + "caf\ufffd\n" * 3]
    assert messages(problems) == [f"late.txt: {DAMAGED}"]
    lines = b'{"text": "caf\xe9"}\n' * 2
    texts, problems = read(write("old.jsonl", lines))
    assert texts == ["caf\ufffd"] * 2
    assert messages(problems) == [f"old.jsonl: {DAMAGED}"]


def test_a_character_across_the_first_window_is_no_damage(write: Write) -> None:
    text = "x" * ((64 << 10) - 1) + "\u4e2d"
    assert read(write("a.txt", text))[0] == [text]


UNKNOWN = "text in an encoding that cannot be told: convert it to UTF-8, as with iconv"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"text" * 2047 + b"\0", "binary: it holds NUL bytes"),
        ("\u0416\u0418\u0412\u041e ".encode("koi8-r"), UNKNOWN),
        ("x \u0416\u0418\u0412\u041e\n".encode("cp1251"), UNKNOWN),
        ("\u65e5\u672c\u8a9e\n".encode("shift-jis"), UNKNOWN),
        (bytes(range(1, 256)) * 9, "binary: it holds control characters"),
    ],
)
def test_binary_files_are_left_out_and_reported(write: Write, content: bytes, reason: str) -> None:
    write("in/b.bin", content)
    path = write("in/c.txt", "text")
    texts, problems = read(path.parent)
    assert texts == ["text"]
    assert messages(problems) == [f"b.bin: {reason}"]
    assert (problems.num_skipped, problems.total) == (1, 1)


def test_a_late_nul_is_text(write: Write) -> None:
    text = "x" * (8 << 10) + "\0"
    assert read(write("a.txt", text))[0] == [text]


@given(
    text=st.lists(st.sampled_from(["a", "\u00e9", "\U0001f600", "\n", "line\n"])).map("".join),
    most=st.integers(1, 12),
    encoding=st.sampled_from(["utf-8", "utf-16"]),
)
def test_long_files_are_cut_at_line_ends(
    tmp_path_factory: pytest.TempPathFactory, text: str, most: int, encoding: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "long.txt"
    path.write_bytes(text.encode(encoding))
    texts, problems = read(path, max_document_bytes=most)
    assert "".join(texts) == text
    assert "" not in texts
    assert problems.total == 0
    for part in texts[:-1]:
        assert part.endswith("\n") or "\n" not in part


def test_documents_are_cut_after_the_last_line_end_of_a_block(write: Write) -> None:
    path = write("a.txt", "aa\nbb\ncc\ndddddddddddd\ne")
    assert read(path, max_document_bytes=8)[0] == ["aa\nbb\n", "cc\n", "dddddddddddd\ne"]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compressed_files_are_read(write: Write, suffix: str) -> None:
    path = write(f"a.py.{suffix}", COMPRESS[suffix](TEXT.encode()))
    assert read(path) == ([TEXT], Problems())
    twice = write(f"b.py.{suffix}", COMPRESS[suffix](b"one\n") + COMPRESS[suffix](b"two\n"))
    assert read(twice) == (["one\ntwo\n"], Problems())
    large = "".join(f"{i}\n" for i in range(100_000))
    path = write(f"c.txt.{suffix}", COMPRESS[suffix](large.encode()))
    texts, problems = read(path, max_document_bytes=150_000)
    assert ("".join(texts) == large, len(texts), problems.total) == (True, 4, 0)


@pytest.mark.parametrize("suffix", COMPRESS)
def test_truncated_and_damaged_files_are_reported_and_the_rest_is_read(
    write: Write, suffix: str
) -> None:
    whole = COMPRESS[suffix](b"".join(b"line %d\n" % (i * i) for i in range(1000)))
    write(f"in/a.txt.{suffix}", whole[: len(whole) // 2])
    write(f"in/b.txt.{suffix}", whole[:-1])
    middle = len(whole) // 2
    flipped = bytes(255 - byte for byte in whole[middle : middle + 40])
    write(f"in/c.txt.{suffix}", whole[:middle] + flipped + whole[middle + 40 :])
    write(f"in/d.txt.{suffix}", b"not compressed at all")
    path = write("in/e.txt", "fine")
    texts, problems = read(path.parent)
    assert texts[-1] == "fine"
    assert problems.num_files == (3 if suffix == "zst" and len(texts) == 2 else 4)
    for message, name in zip(messages(problems), "abcd", strict=False):
        assert message.startswith(f"{name}.txt.{suffix}: the {suffix} data is truncated or damaged")


def test_documents_before_damage_count(write: Write) -> None:
    data = "".join(f"line {i * i}\n" for i in range(100_000)).encode()
    path = write("a.txt.gz", gzip.compress(data)[:-9])
    texts, problems = read(path, max_document_bytes=200_000)
    assert problems.num_files == 1
    assert data.decode().startswith("".join(texts))
    assert len(texts) >= 6


def test_a_small_file_that_decompresses_to_much_needs_little_memory(write: Write) -> None:
    line = b"x" * 99 + b"\n"
    path = write("bomb.txt.zst", zstandard.ZstdCompressor().compress(line * 3_000_000))
    assert path.stat().st_size < 100_000
    (unit,) = find_units([path]).units
    tracemalloc.start()
    total = sum(
        len(document.text)
        for document in read_documents(unit, ReadOptions(max_document_bytes=1 << 20))
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 300_000_000
    assert peak < 200 << 20


def test_a_missing_library_names_the_extra(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(BackendError, match=r'pip install "ngramspec\[corpus\]"'):
        read(write("a.txt.zst", b""))


def test_a_file_that_has_gone_is_reported(tmp_path: Path) -> None:
    problems = Problems()
    unit = Unit(str(tmp_path / "gone.txt"), "gone.txt")
    assert list(read_documents(unit, problems=problems)) == []
    assert messages(problems) == ["gone.txt: No such file or directory"]
    assert problems.num_files == 1


def test_standard_input_is_read_as_text_or_jsonl(monkeypatch: pytest.MonkeyPatch) -> None:
    def stdin(data: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))

    stdin(b"one\ntwo\n")
    assert read("-")[0] == ["one\ntwo\n"]
    stdin(b'{"text": "one"}\n{"text": "two"}')
    assert read("-", format="jsonl")[0] == ["one", "two"]


def test_an_xz_file_that_wants_too_much_memory_is_refused(write: Write) -> None:
    """As an attacker's may: xz allows 4 GiB. What `xz -9` makes is read."""
    text = b"some text\n" * 1000
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 512 << 20}]
    greedy = lzma.LZMACompressor(filters=filters)
    problems = Problems()
    path = write("greedy.txt.xz", greedy.compress(text) + greedy.flush())
    (unit,) = find_units([path]).units
    assert list(read_documents(unit, problems=problems)) == []
    assert problems.first[0].reason == "more than 256 MiB are needed to unpack it: use `xz -d`"
    (unit,) = find_units([write("nine.txt.xz", lzma.compress(text, preset=9))]).units
    assert [document.text for document in read_documents(unit)] == [text.decode()]


def test_a_zst_file_with_a_window_that_is_too_large_says_how_to_unpack_it(write: Write) -> None:
    """As `zstd --long=28` makes them: the text may be short, but the frame asks for 256 MiB."""
    texts = {}
    for log in (27, 28):
        window, block = (log - 10) << 3, 5 << 3 | 1  # a descriptor each; the last block, as it is
        frame = b"\x28\xb5\x2f\xfd\0" + bytes([window, block, 0, 0]) + b"hello"
        texts[log] = read(write(f"{log}.txt.zst", frame))
    assert texts[27] == (["hello"], Problems())
    assert texts[28][0] == []
    assert messages(texts[28][1]) == [
        "28.txt.zst: more than 128 MiB are needed to unpack it: use `zstd -d --long=31`"
    ]


def test_streams_of_xz_are_read_one_after_another(write: Write) -> None:
    """What is no stream behind the last one is passed over, as by Python's lzma; damage is not."""
    first, second = (lzma.compress(text) for text in (b"one\n", b"two\n" * 100_000))
    for tail, num_files in ((b"", 0), (b"no stream", 0), (second[:-30], 1)):
        problems = Problems()
        (unit,) = find_units([write("a.txt.xz", first + second + tail)]).units
        texts = [document.text for document in read_documents(unit, problems=problems)]
        assert "".join(texts).startswith("one\n" + "two\n" * 100_000) or num_files
        assert problems.num_files == num_files
