"""Reading traces: token lines and chats, cut, and what is wrong with them."""

from __future__ import annotations

import lzma
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.letters import Letters
from helpers.recordings import load_trace
from helpers.replays import request
from ngramspec.errors import FormatError, InputError
from ngramspec.lab.recordings.traces import Cut, Trace, find_traces, token_lines

LINES = "2 11 12 13 14 15\n\n1 21 22 23\n"


def test_token_lines_plain_and_packed(tmp_path: Path) -> None:
    (tmp_path / "a.b.txt").write_text(LINES)
    with lzma.open(tmp_path / "c.txt.xz", "wt") as file:
        file.write(LINES)
    for name in ("a.b.txt", "c.txt.xz"):
        trace = load_trace(tmp_path / name)
        assert trace.name == name.removesuffix(".xz").removesuffix(".txt")
        first, second = trace.requests
        assert first.prompt.tolist() == [11, 12]
        assert first.output.tolist() == [13, 14, 15]
        assert second.prompt.dtype == np.int32
        assert "".join(token_lines(trace.requests)) == LINES.replace("\n\n", "\n")


def test_a_cut_keeps_the_last_of_a_prompt_and_the_first_of_an_output(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("3 1 2 3 4 5 6 7\n1 8 9\n0 8 9\n1 5 6 7\n2 8 9 10 11\n")
    trace = load_trace(path, None, Cut(limit=2, max_prompt=2, max_output=3))
    first, second = trace.requests  # one output token, or no prompt: nothing to replay
    assert (first.prompt.tolist(), first.output.tolist()) == ([2, 3], [4, 5, 6])
    assert second.prompt.tolist() == [5]
    assert len(load_trace(path, None, Cut()).requests) == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("3 1 2", "a prompt of 3 tokens in a line of 2"),
        ("-1 1 2", "a prompt of -1 tokens"),
        ("1 2 x", "invalid literal"),
        ("1 2 3.5", "invalid literal"),
        ("1 2 -3", "token ids must be"),
        ("1 2 2147483648", "token ids must be"),
        ("1 2 99999999999999999999", "line 2"),
    ],
)
def test_malformed_token_lines_name_the_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "a.txt"
    path.write_text(f"1 1 2 3\n{line}\n")
    with pytest.raises(FormatError, match=message) as caught:
        load_trace(path)
    assert f"{path}, line 2: " in str(caught.value)


def test_damaged_files(tmp_path: Path) -> None:
    whole = lzma.compress(LINES.encode() * 200)
    for content in (b"no xz", whole[: len(whole) // 2]):
        path = tmp_path / "a.txt.xz"
        path.write_bytes(content)
        with pytest.raises(FormatError, match=str(path)):
            load_trace(path)
    for name, content in (("b.txt", b"1 2 \xff\n"), ("c.txt", b""), ("d.txt", b"1 2 3\n")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FormatError, match=name):
            load_trace(tmp_path / name)


def test_finding_traces(tmp_path: Path) -> None:
    for name in ("b.txt.xz", "a.txt", "c.jsonl", "load.py", "README.md"):
        (tmp_path / name).touch()
    names = [path.name for path in find_traces([tmp_path, tmp_path / "a.txt"])]
    assert names == ["a.txt", "b.txt.xz", "c.jsonl"]
    assert find_traces([tmp_path / "load.py"]) == [tmp_path / "load.py"]  # what it holds decides
    with pytest.raises(FileNotFoundError):
        find_traces([tmp_path / "none.txt"])
    (tmp_path / "a.jsonl.xz").touch()
    with pytest.raises(InputError, match="two sets of one name"):
        find_traces([tmp_path])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no traces"):
        find_traces([tmp_path / "empty"])


def test_only_files_of_a_folder_are_traces(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    (tmp_path / "folder.txt").mkdir()
    os.mkfifo(tmp_path / "pipe.txt")  # opening it would wait for a writer
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "a.txt")
    (tmp_path / "self.log").symlink_to(tmp_path)
    assert [path.name for path in find_traces([tmp_path])] == ["a.txt", "link.jsonl"]
    (tmp_path / "broken.txt").symlink_to(tmp_path / "absent")  # no set is lost silently
    assert "broken.txt" in [path.name for path in find_traces([tmp_path])]
    (tmp_path / "folder.txt" / "b.txt").mkdir()
    with pytest.raises(InputError, match="no traces"):
        find_traces([tmp_path / "folder.txt"])


@pytest.mark.parametrize("name", ["-", "pipe"])
def test_traces_that_cannot_be_read_twice_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What tells their format would be missing from them."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    place = "standard input" if name == "-" else name
    with pytest.raises(InputError, match=f"{place} is no file: recorded requests are read more"):
        find_traces([Path(name)])


def test_the_digest_tells_tokens_apart() -> None:
    digests = {
        Trace("name", (request([1, 2], [3, 4]),)).digest(),
        Trace("other", (request([1, 2], [3, 4]),)).digest(),
        Trace("name", (request([1], [2, 3, 4]),)).digest(),
        Trace("name", (request([1, 2], [3, 5]),)).digest(),
    }
    assert len(digests) == 3


def test_markers_are_tokens_where_the_vocabulary_has_them_and_text_in_messages(
    tmp_path: Path,
) -> None:
    tokenizer: Any = Letters("<|im_start|>", "<|im_end|>")
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "<|im_end|>", "output": "ok"}\n')
    (one,) = load_trace(path, tokenizer).requests
    ids = one.prompt.tolist()
    assert (ids.count(128), ids.count(129)) == (2, 1)
    assert tokenizer.decode(ids).count("<|im_end|>") == 2


@pytest.mark.parametrize("text", ["{\n", "def f(): pass\n", '{"a": 1}\n'])
def test_other_files_are_no_traces(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    tokenizer: Any = Letters()
    with pytest.raises(FormatError, match="no recorded requests were recognised"):
        load_trace(path, tokenizer)
