"""Files of every format: recognised by what they hold, wrong lines left out and named."""

from __future__ import annotations

import contextlib
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.letters import Letters
from ngramspec.errors import FormatError, InputError, VocabMismatchError
from ngramspec.lab.corpus.problems import Problems
from ngramspec.lab.recordings.formats import FORMATS, recognise
from ngramspec.lab.recordings.lines import collect
from ngramspec.lab.recordings.record import Head
from ngramspec.lab.recordings.traces import Recording

Put = Callable[[Path], Path]
START, END = "<|im_start|>", "<|im_end|>"
ZERO = "00" * 16
HEAD = Head(model="m", tokenizer=ZERO, vocab_size=9, drafter="", started=0, apart=False, salt="")
QUESTION, ANSWER = "What is it?", "It is this."


def message(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def load(path: Path, letters: Any, format: str | None = None) -> tuple[list[tuple[str, str]], Any]:
    """Return the texts of all requests, and the problems."""
    problems = Problems()
    source = recognise(path, format)
    recording = Recording(source, lambda: letters, bad=collect(path, problems))
    pairs = [(letters.decode(one.prompt), letters.decode(one.output)) for one in recording]
    return pairs, problems


def lines(*values: Any) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


ONE = [message("user", QUESTION), message("assistant", ANSWER)]
PROMPT = f"{START}user\n{QUESTION}{END}\n{START}assistant\n"
SHARE = {"conversations": [{"from": "human", "value": QUESTION}, {"from": "gpt", "value": ANSWER}]}
API = {"choices": [{"message": message("assistant", ANSWER)}]}
CHATS = {
    "messages": (lines({"messages": ONE}), "chats in OpenAI's format"),
    "bare messages": (lines(ONE), "chats in OpenAI's format"),
    "response": (lines({"messages": ONE[:1], "response": ANSWER}), "chats in OpenAI's format"),
    "log": (lines({"request": {"messages": ONE[:1]}, "response": API}), "chats in OpenAI's format"),
    "batch": (
        lines({"body": {"messages": ONE[:1]}, "response": {"body": API}}),
        "chats in OpenAI's format",
    ),
    "flat": (lines({"messages": ONE[:1], **API}), "chats in OpenAI's format"),
    "sharegpt lines": (lines(SHARE), "ShareGPT's conversations"),
    "sharegpt array": (json.dumps([SHARE]), "ShareGPT's conversations"),
    "sharegpt pretty": (json.dumps([SHARE], indent=1), "ShareGPT's conversations"),
    "one pretty": (json.dumps(SHARE, indent=2), "ShareGPT's conversations"),
    "prompts": (lines({"prompt": QUESTION, "completion": ANSWER}), "prompts and answers"),
    "instructions": (
        lines({"instruction": QUESTION, "input": "", "output": ANSWER}),
        "prompts and answers",
    ),
    "parts": (
        lines({"messages": [message("user", [{"type": "text", "text": QUESTION}]), ONE[1]]}),
        "chats in OpenAI's format",
    ),
    "byte order mark": ("\ufeff" + lines({"messages": ONE}), "chats in OpenAI's format"),
    "windows": (lines({"messages": ONE}).replace("\n", "\r\n"), "chats in OpenAI's format"),
}


@pytest.mark.parametrize("name", CHATS)
def test_chats(tmp_path: Path, letters: Letters, name: str) -> None:
    text, about = CHATS[name]
    path = tmp_path / "log"
    path.write_bytes(text.encode())
    assert recognise(path).about == about
    pairs, problems = load(path, letters)
    assert pairs == [(PROMPT, ANSWER)]
    assert problems.total == 0


def test_a_damaged_first_line_costs_no_other(tmp_path: Path, letters: Letters) -> None:
    path = tmp_path / "chats.jsonl"
    chat = lines({"messages": ONE})
    path.write_text('{"messages": [{"role": "us\n' + chat * 3)
    pairs, problems = load(path, letters)
    assert pairs == [(PROMPT, ANSWER)] * 3
    assert problems.total == 1


@pytest.mark.parametrize(
    ("name", "pack"), [("a.jsonl.gz", gzip.compress), ("a.json.xz", lzma.compress)]
)
def test_packed_files(tmp_path: Path, letters: Letters, name: str, pack: Any) -> None:
    path = tmp_path / name
    path.write_bytes(pack(json.dumps([SHARE, SHARE], indent=1).encode()))
    assert len(load(path, letters)[0]) == 2


def test_every_answer_of_a_chat_is_a_request(tmp_path: Path, letters: Letters) -> None:
    path = tmp_path / "chat.jsonl"
    call = {"function": {"name": "f", "arguments": '{"a": 1}'}}
    path.write_text(
        lines(
            {
                "messages": [
                    message("system", "Be kind."),
                    message("assistant", "Hello."),
                    message("user", "Go"),
                    message("assistant", None, tool_calls=[call]),
                    message("tool", "1"),
                    message("assistant", "Done", reasoning_content="hm"),
                    message("user", "unanswered"),
                ]
            }
        )
    )
    (hello, first, second), problems = load(path, letters)
    assert problems.total == 0
    assert hello[1] == "Hello."
    assert first[0].count(START) == 4
    assert first[1] == '\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    assert second[0].startswith(first[0] + first[1])
    assert second[1] == "<think>\nhm\n</think>\n\nDone"


def test_wrong_lines_are_counted_and_named(tmp_path: Path, letters: Letters) -> None:
    path = tmp_path / "chat.jsonl"
    good = json.dumps({"messages": ONE})
    wrong = ["no json", "5", '{"a": 1}', '{"messages": [1]}', '{"messages": []}', "[" * 100_000]
    path.write_bytes(
        "\n".join([good, *wrong, "", good]).encode() + b'\n{"messages": [{"role": "us\xff'
    )
    pairs, problems = load(path, letters)
    assert len(pairs) == 2
    assert problems.num_records == len(wrong) + 1
    first = f"{path}, line 2: not JSON: Expecting value"
    assert str(problems.first[0]).startswith(first)
    reasons = [problem.reason for problem in problems.first]
    assert reasons[1] == "expected a conversation, found int"
    assert reasons[2] == "no conversation in a"
    assert reasons[3] == "message 1 has no role"
    assert reasons[4] == "no answer of the assistant in it"
    assert reasons[-1] == "the last line is cut off"


def test_text_that_is_not_utf8_is_read_with_marks(tmp_path: Path, letters: Letters) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_bytes(b'{"prompt": "a\xff\xfeb", "completion": "\\ud800 yes"}\n')
    (one,), problems = load(path, letters)
    assert problems.total == 0
    assert one[1].endswith(" yes")


def test_a_damaged_item_of_an_array_ends_it(tmp_path: Path, letters: Letters) -> None:
    path = tmp_path / "share.json"
    text = json.dumps([SHARE, SHARE, SHARE], indent=1)
    path.write_text(text[: len(text) * 2 // 3 + 20])
    pairs, problems = load(path, letters)
    assert len(pairs) == 2
    assert "not JSON, and nothing behind it was read" in str(problems.first[0])
    assert int(str(problems.first[0]).split("line ")[1].split(":")[0]) > 10


def test_an_array_that_is_too_large_to_read_whole_is_refused(
    tmp_path: Path, letters: Letters, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ngramspec.lab.recordings.lines.MOST_BYTES", 1 << 20)
    path = tmp_path / "share.json.gz"
    text = json.dumps([SHARE]).encode()
    path.write_bytes(gzip.compress(text.ljust(1 << 20)))
    assert len(load(path, letters)[0]) == 1
    path.write_bytes(gzip.compress(text.ljust((1 << 20) + 1)))
    with pytest.raises(FormatError, match=r"share\.json\.gz: more than 1\.0 MiB .* as JSON Lines"):
        load(path, letters)


def test_a_format_can_be_forced(tmp_path: Path, letters: Letters) -> None:
    path = tmp_path / "a.txt"
    path.write_text("2 11 12 13 14\n")
    assert recognise(path).format == "tokens"
    pairs, problems = load(path, letters, "chats")
    assert (pairs, problems.num_records) == ([], 1)
    path.write_text("# my tokens\n2 11 12 13 14\n")
    with pytest.raises(FormatError, match="--format tells what it holds"):
        recognise(path)
    pairs, problems = load(path, letters, "tokens")
    assert len(pairs) == problems.num_records == 1
    assert set(FORMATS) == {"tokens", "requests", "chats"}


def record(**more: Any) -> dict[str, Any]:
    return {"session": 0, "turn": 0, "prompt_ids": [1, 2], "output_ids": [3, 4], **more}


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"session": 0, "turn": 0, "output_ids": []}, "no 'prompt_ids'"),
        ({"session": 0, "turn": 0, "prompt_ids": []}, "no 'output_ids'"),
        (record(session="s"), "session must be a number"),
        (record(turn=-1), "turn must be a number"),
        (record(prompt_ids=[1.5]), "token ids must be whole"),
        (record(prompt_ids=[True]), "token ids must be whole"),
        (record(prompt_ids="12"), "token ids must be a list"),
        (record(output_ids=[-1]), "token ids must be 0.."),
        (record(output_ids=[1 << 31]), "token ids must be 0.."),
        (record(kept=[5, 0, 1]), "the text that it continues is missing"),
        (record(kept=[0, 1, 1]), "the text that it continues is missing"),
        (record(kept=[0, 0, 5]), "the text that it continues is missing"),
        (record(kept=[0, 0, -1]), "the text that it continues is missing"),
        (record(kept=[0, 0, 1.0]), "the text that it continues is missing"),
        (record(kept=7), "the text that it continues is missing"),
        (record(kept=[[], 0, 1]), "the text that it continues is missing"),
        ([], "expected an object"),
    ],
)
def test_wrong_records_cost_only_themselves(
    tmp_path: Path, letters: Letters, wrong: Any, why: str
) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(HEAD.line() + lines(record(), wrong, record(turn=1, kept=[0, 0, 4])).encode())
    problems = Problems()
    recording = Recording(recognise(path), lambda: letters, bad=collect(path, problems))
    assert [one.prompt.tolist() for one in recording] == [[1, 2], [1, 2, 3, 4, 1, 2]]
    assert problems.num_records == 1
    assert f"line 3: not a recorded request: {why}" in str(problems.first[0])
    with pytest.raises(FormatError, match=r"line 3: not a recorded request"):
        list(Recording(recognise(path), lambda: letters))


def test_whose_token_ids_they_are_is_checked(tmp_path: Path, letters: Letters) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(HEAD.line() + lines(record()).encode())
    fingerprint: Any = letters.fingerprint
    with pytest.raises(VocabMismatchError, match="recorded with the model m"):
        list(Recording(recognise(path), fingerprint=fingerprint))
    newer = {"format": "ngramspec-requests", "version": 2}
    path.write_text(lines(newer, record()))
    with pytest.raises(FormatError, match="version 2, this is for version 1"):
        list(Recording(recognise(path)))
    for head in ({}, {"tokenizer": "00", "vocab_size": 5}, {"tokenizer": "", "vocab_size": 1e999}):
        path.write_text(lines({**newer, "version": 1, **head}, record()))
        with pytest.raises(FormatError, match="a damaged head"):
            list(Recording(recognise(path)))


def test_a_head_ends_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(
        (HEAD.line() + lines(record()).encode())
        + (HEAD.line() + lines(record(kept=[0, 0, 1])).encode())
    )
    problems = Problems()
    requests = list(Recording(recognise(path), bad=collect(path, problems)))
    assert len(requests) == problems.num_records == 1


def test_text_needs_a_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(lines({"messages": ONE}))
    with pytest.raises(InputError, match="give the target's tokenizer"):
        list(Recording(recognise(path)))


def test_numbers_that_no_token_has(tmp_path: Path, letters: Letters) -> None:
    path, huge = tmp_path / "a.txt", "9" * 5000
    path.write_text(f"2 11 12 13 14\n{huge}\n\f\n")
    pairs, problems = load(path, letters)
    assert (len(pairs), problems.num_records) == (1, 2)


STARTS = (b"", b'{"messages": [', HEAD.line(), lines(record()).encode(), b"1 2 3\n")


@given(
    start=st.sampled_from(STARTS),
    data=st.binary(max_size=400),
    format=st.sampled_from((None, *FORMATS)),
)
def test_no_file_raises_anything_but_our_errors(
    start: bytes, data: bytes, format: str | None, tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.mktemp("any") / "a.jsonl"
    path.write_bytes(start + data)
    letters: Any = Letters()
    with contextlib.suppress(FormatError):
        load(path, letters, format)


def test_ids_are_what_numpy_takes(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(lines(record()))
    (one,) = Recording(recognise(path))
    assert one.prompt.dtype == one.output.dtype == np.int32
