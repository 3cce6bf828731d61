"""Lines and rows: which texts they hold, and that splitting a file changes nothing."""

from __future__ import annotations

import base64
import gzip
import json
import struct
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reading import Write, messages, read

from ngramspec.errors import BackendError, InputError
from ngramspec.lab.corpus import Problems, ReadOptions, Unit, read_documents
from ngramspec.lab.corpus.parquet import ParquetRows
from ngramspec.lab.corpus.records import RecordError, texts_of

pyarrow = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.parquet")

CHAT = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": [{"type": "text", "text": "u1"}, {"type": "image_url"}, "u2"]},
    {"role": "assistant", "content": "a", "reasoning": "r"},
    {"role": "assistant", "content": None, "tool_calls": []},
]
SHARED = [{"from": "human", "value": "u"}, {"from": "gpt", "value": "a"}]


def lines(*records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


@pytest.mark.parametrize(
    ("record", "texts"),
    [
        ({"content": "c", "text": "t"}, ["t"]),
        ({"content": "c", "text": None}, ["c"]),
        ({"code": "x", "messages": CHAT}, ["x"]),
        ({"messages": CHAT}, ["s", "u1", "u2", "a"]),
        ({"conversations": SHARED, "prompt": "p"}, ["u", "a"]),
        ({"conversation": ["u", "a"]}, ["u", "a"]),
        ({"output": "o", "instruction": "i", "input": ""}, ["i", "o"]),
        ({"prompt": "p", "completion": "c", "id": 7}, ["p", "c"]),
        ({"text": ""}, []),
        ("just text", ["just text"]),
        (CHAT, ["s", "u1", "u2", "a"]),
    ],
)
def test_known_fields_are_found(record: Any, texts: list[str]) -> None:
    assert texts_of(record, None, ()) == texts


@pytest.mark.parametrize(
    ("record", "field", "roles", "texts"),
    [
        ({"content": "c", "text": "t"}, "content", (), ["c"]),
        ({"a": {"b": "c"}}, "a.b", (), ["c"]),
        ({"a.b": "c"}, "a.b", (), ["c"]),
        ({"chat": CHAT}, "chat", ("assistant",), ["a"]),
        ({"conversations": SHARED}, None, ("assistant",), ["a"]),
        ({"conversations": SHARED}, None, ("user", "assistant"), ["u", "a"]),
        ([{"from": "AI", "value": "a"}, {"from": "USER", "value": "u"}], None, ("User",), ["u"]),
        ([{"from": "ChatGPT", "value": "a"}], None, ("assistant",), ["a"]),
        ({"texts": ["a", "", "b"]}, "texts", (), ["a", "b"]),
    ],
)
def test_field_and_roles_choose(
    record: Any, field: str | None, roles: tuple[str, ...], texts: list[str]
) -> None:
    assert texts_of(record, field, roles) == texts


@pytest.mark.parametrize(
    ("record", "field", "reason"),
    [
        (7, None, "expected an object, found int"),
        (None, None, "expected an object, found NoneType"),
        ({}, None, "no field with text among none"),
        ({"id": 7, "url": "x"}, None, "no field with text among id, url"),
        ({"text": "t"}, "body", "no field 'body'"),
        ({"a": {"b": 1}}, "a.c", "no field 'a.c'"),
        ({"a": {"b": 1}}, "a.b", "field 'a.b' is int, not text"),
        ({"messages": [1]}, None, "field 'messages' holds neither texts nor messages"),
        ({"messages": [{"role": "user"}]}, None, "field 'messages' holds neither"),
    ],
)
def test_records_without_text_are_refused(record: Any, field: str | None, reason: str) -> None:
    with pytest.raises(RecordError, match=f"^{reason}"):
        texts_of(record, field, ())


def test_bad_lines_are_counted_and_the_others_read(write: Write) -> None:
    content = lines({"text": "a"}) + '{"text": \n\n \n' + lines({"x": 1}, {"text": "b\u00e9"})
    path = write("a.jsonl", content.encode() + b'{"text": "\xff"}\n{"text": "no end"}')
    texts, problems = read(path)
    assert texts == ["a", "b\u00e9", "\ufffd", "no end"]
    assert (problems.num_records, problems.num_recoded, problems.total) == (2, 1, 3)
    first, second, third = messages(problems)
    assert first.startswith("a.jsonl, line 2: not JSON: Expecting value")
    assert second == "a.jsonl, line 5: no field with text among x"
    assert third.startswith("a.jsonl: not UTF-8 everywhere")


def test_deeply_nested_json_is_a_problem_not_a_crash(write: Write) -> None:
    path = write("a.jsonl", "[" * 200_000 + "\n" + lines({"text": "a"}))
    texts, problems = read(path)
    assert (texts, problems.num_records) == (["a"], 1)


def test_a_byte_order_mark_and_compression_are_taken(write: Write) -> None:
    path = write("a.jsonl.gz", gzip.compress(b"\xef\xbb\xbf" + lines({"text": "a"}).encode()))
    assert read(path) == (["a"], Problems())


def test_a_line_may_be_as_long_as_the_limit_and_no_longer(write: Write) -> None:
    line = '{"text": "12345"}'
    path = write("a.jsonl", f"{line}\n{line} \n{line}  \n{line}\n{line} ")
    texts, problems = read(path, max_document_bytes=len(line))
    assert texts == ["12345"] * 2
    assert messages(problems) == [
        f"a.jsonl, line {number}: longer than {len(line)} bytes" for number in (2, 3, 5)
    ]


def test_only_the_first_problems_are_kept(write: Write) -> None:
    _, problems = read(write("a.jsonl", "x\n" * 1000))
    assert problems.num_records == 1000
    assert len(problems.first) == 20
    total = Problems()
    total.merge(problems)
    total.merge(problems)
    assert total.num_records == 2000
    assert total.first == problems.first


TEXT = st.sampled_from(["", "a", "bb", "\u00e9\n", "ccccccccccccccc"])
LINE = (
    st.builds(lambda text: json.dumps({"text": text}), TEXT)
    | st.just("")
    | st.just("{bad")
    | st.builds(lambda text: json.dumps({"messages": [{"role": "user", "content": text}]}), TEXT)
)


@given(
    rows=st.lists(LINE, max_size=12),
    ends=st.booleans(),
    chunk_bytes=st.integers(1, 80),
    most=st.integers(10, 60),
)
def test_splitting_a_jsonl_file_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[str],
    ends: bool,
    chunk_bytes: int,
    most: int,
) -> None:
    path = tmp_path_factory.getbasetemp() / "split.jsonl"
    path.write_text("\n".join(rows) + "\n" * ends)
    whole, problems = read(path, max_document_bytes=most)
    split, split_problems = read(path, max_document_bytes=most, chunk_bytes=chunk_bytes)
    assert split == whole
    assert split_problems.num_records == problems.num_records
    assert [p.reason for p in split_problems.first] == [p.reason for p in problems.first]


def test_every_split_of_a_file_reads_every_line_once(write: Write) -> None:
    rows = [{"text": "a" * (i % 4)} for i in range(1, 9)]
    path = write("a.jsonl", lines(*rows).replace("\n", "\n\n", 1))
    whole = read(path)[0]
    assert len(whole) == 6
    for chunk_bytes in range(1, path.stat().st_size):
        assert read(path, chunk_bytes=chunk_bytes) == (whole, Problems())


def test_the_place_of_a_problem_in_a_split_file_is_told(write: Write) -> None:
    path = write("a.jsonl", lines({"text": "a"}) * 3 + "bad\n")
    _, problems = read(path, chunk_bytes=30)
    assert messages(problems)[0].startswith("a.jsonl, line 1 after byte 30: not JSON")


def write_parquet(path: Path, rows: list[dict[str, Any]], group_rows: int = 3) -> Path:
    table = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, path, row_group_size=group_rows)
    return path


def test_parquet_rows_are_documents(tmp_path: Path) -> None:
    rows = [{"id": i, "text": f"row {i}"} for i in range(10)]
    path = write_parquet(tmp_path / "a.parquet", rows)
    assert read(path) == ([row["text"] for row in rows], Problems())
    texts, problems = read(path, field="id")
    assert (texts, problems.num_records) == ([], 10)
    assert messages(problems)[0] == "a.parquet, row group 0, row 1: field 'id' is int, not text"


@pytest.mark.parametrize("chunk_bytes", [1, 300, 1000])
def test_splitting_a_parquet_file_changes_nothing(tmp_path: Path, chunk_bytes: int) -> None:
    rows = [{"text": f"row {i}" if i % 5 else None, "n": i} for i in range(40)]
    path = write_parquet(tmp_path / "a.parquet", rows)
    texts, problems = read(path)
    assert len(texts) == 32
    assert problems.num_records == 8
    split, split_problems = read(path, chunk_bytes=chunk_bytes)
    assert split == texts
    assert split_problems.num_records == 8


def test_parquet_conversations_are_read(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]
    path = write_parquet(tmp_path / "a.parquet", [{"messages": chat}, {"messages": chat[:1]}])
    assert read(path)[0] == ["u", "a", "u"]
    assert read(path, roles=("assistant",))[0] == ["a"]
    nested = write_parquet(tmp_path / "b.parquet", [{"a": {"b": "x", "c": "y"}}])
    assert read(nested, field="a.b")[0] == ["x"]


def with_an_unknown_type(parquet: bytes) -> bytes:
    """Return a file whose Arrow schema gives the numbers 128 bits, which Arrow does not read."""
    metadata = pyarrow.parquet.read_metadata(pyarrow.BufferReader(parquet)).metadata
    schema = base64.b64decode(metadata[b"ARROW:schema"])
    bits = struct.pack("<i", 64)
    assert schema.count(bits) == 1
    changed = base64.b64encode(schema.replace(bits, struct.pack("<i", 128)))
    return parquet.replace(metadata[b"ARROW:schema"], changed)


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20])
def test_bad_parquet_files_are_reported(write: Write, tmp_path: Path, chunk_bytes: int) -> None:
    write_parquet(tmp_path / "in.parquet", [{"text": "row " * 100, "id": 1}] * 5)
    whole = (tmp_path / "in.parquet").read_bytes()
    (tmp_path / "in.parquet").unlink()
    write("in/a.parquet", whole[: len(whole) // 2])
    write("in/b.parquet", b"not parquet")
    write("in/c.parquet", whole[:20] + bytes(60) + whole[80:])
    write("in/d.parquet.gz", gzip.compress(whole))
    write_parquet(write("in/e.parquet", ""), [{"id": 1}])
    write("in/f.parquet", with_an_unknown_type(whole))
    write("in/g.txt", "fine")
    texts, problems = read(tmp_path / "in", chunk_bytes=chunk_bytes)
    assert texts == ["row " * 100] * 2 + ["fine"]  # the second row group of c is whole
    assert problems.num_files == 6
    reasons = messages(problems)
    assert [message[:1] for message in reasons] == list("abcdef")
    assert "unpack it" in reasons[3]
    assert "no column to read among id" in reasons[4]
    assert "not implemented" in reasons[5]
    assert str(tmp_path) not in reasons[0]


def test_a_missing_library_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_parquet(tmp_path / "a.parquet", [{"text": "a"}])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    for chunk_bytes in (1, 1 << 20):
        with pytest.raises(BackendError, match=r'pip install "ngramspec\[corpus\]"'):
            read(path, chunk_bytes=chunk_bytes)


def test_bad_options_are_refused() -> None:
    with pytest.raises(InputError, match="max_document_bytes must be at least 1"):
        ReadOptions(max_document_bytes=0)
    with pytest.raises(InputError, match="field must not be empty"):
        ReadOptions(field="")
    with pytest.raises(InputError, match="roles must be a list, got 'user': write"):
        ReadOptions(roles="user")  # type: ignore[arg-type]


def test_parquet_rows_that_share_a_large_value_take_the_memory_of_one(tmp_path: Path) -> None:
    """A file of some kilobytes whose 128 rows hold 2 MiB each: a dictionary of one value."""
    path = write_parquet(tmp_path / "a.parquet", [{"text": "word " * ((2 << 20) // 5)}] * 128, 128)
    assert path.stat().st_size < 1 << 20
    unit = Unit(str(path), "a.parquet", "parquet", num_bytes=path.stat().st_size)
    tracemalloc.start()
    try:
        num = sum(1 for _ in read_documents(unit, ReadOptions(max_document_bytes=4 << 20)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert num == 128
    assert peak < 30 << 20  # 256 MiB when all rows of a batch were unpacked at once


@pytest.mark.parametrize("dictionary", [True, False])
def test_parquet_rows_that_are_too_long_are_left_out(tmp_path: Path, dictionary: bool) -> None:
    long, short = "long " * 1000, "short"
    rows: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": long if i in (3, 130) else short}] * (1 + i % 3)}
        for i in range(300)
    ]
    rows[200]["messages"] = [{"role": "user", "content": "word " * 50}] * 100  # small but many
    path = tmp_path / "a.parquet"
    table = pyarrow.Table.from_pylist(rows)
    pyarrow.parquet.write_table(table, path, row_group_size=150, use_dictionary=dictionary)
    problems = Problems()
    unit = Unit(str(path), "a.parquet", "parquet", num_bytes=path.stat().st_size)
    documents = read_documents(unit, ReadOptions(max_document_bytes=4999), problems)
    expected = sum(len(row["messages"]) for i, row in enumerate(rows) if i not in (3, 130, 200))
    assert [document.text for document in documents] == [short] * expected
    assert messages(problems) == [
        "a.parquet, row group 0, row 4: longer than 4999 bytes",
        "a.parquet, row group 0, row 131: longer than 4999 bytes",
        "a.parquet, row group 1, row 51: longer than 4999 bytes",
    ]


@pytest.mark.parametrize("dictionary", [True, False])
def test_a_parquet_row_that_is_no_value_of_pythons_costs_no_other(
    tmp_path: Path, dictionary: bool
) -> None:
    texts = [b"row %d" % i for i in range(300)]
    texts[1] = texts[200] = b"caf\xe9"  # as strings, though they are not UTF-8
    days = pyarrow.array([10**9 if i == 299 else None for i in range(300)], pyarrow.int32())
    table = pyarrow.table(
        {
            "text": pyarrow.array(texts).view(pyarrow.string()),
            "output": days.view(pyarrow.date32()),
        }
    )
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(table, path, use_dictionary=dictionary)
    rows, problems = read(path)
    assert rows == [f"row {i}" for i in range(300) if i not in (1, 200, 299)]
    assert (problems.num_records, problems.total) == (3, 3)
    wrong = messages(problems)
    assert [message.partition(": ")[0] for message in wrong] == [
        f"a.parquet, row group 0, row {number}" for number in (2, 201, 300)
    ]
    assert "'utf-8' codec can't decode byte 0xe9" in wrong[0]


def test_values_of_every_type_are_measured(tmp_path: Path) -> None:
    kinds = {
        "text": pyarrow.array(["a" * 10, None, "b" * 20]),
        "code": pyarrow.array([["a" * 3, "b"], None, []]),
        "content": pyarrow.array(
            [[("k", "v" * 5)], [], None], pyarrow.map_(*[pyarrow.string()] * 2)
        ),
        "prompt": pyarrow.array([{"x": "abc", "y": 1}] * 3),
        "answer": pyarrow.array([["ab", "cd"]] * 3, pyarrow.list_(pyarrow.string(), 2)),
        "input": pyarrow.array([1.5, 2.5, 3.5]),
        "output": pyarrow.array(["x", "y", "x"]).dictionary_encode(),
    }
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table(kinds), path)
    with ParquetRows(str(path), tuple(kinds)) as table:
        whole = list(table.rows(0, 1 << 20))
        assert whole == pyarrow.table(kinds).to_pylist()
        # Texts and numbers of 8 bytes: 24 in each row, 20 more in the first and the last one, and
        # what tells that there are none.
        for most, fitting in ((20, ""), (23, ""), (35, "1"), (43, "1"), (60, "012")):
            rows = [None if isinstance(row, RecordError) else row for row in table.rows(0, most)]
            assert rows == [row if str(i) in fitting else None for i, row in enumerate(whole)], most
