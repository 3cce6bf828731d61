"""The file of recorded requests: what is written is read again, whatever happens in between."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import json
import os
import stat
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngramspec.arrays import TokenIds
from ngramspec.errors import FormatError, InputError, VocabMismatchError
from ngramspec.lab.recordings import RecordedRequest
from ngramspec.lab.recordings.formats import recognise
from ngramspec.lab.recordings.lines import Bad
from ngramspec.lab.recordings.record import LEAST_KEPT, Head, Sessions, num_common
from ngramspec.lab.recordings.traces import Recording
from ngramspec.lab.recordings.writer import LEAST_BYTES, RecordFile, TooLongError

HEAD = Head(model="m", tokenizer="", vocab_size=1000, drafter="suffix", started=1.5, apart=True)
Texts = list[tuple[TokenIds, TokenIds]]


def ids(*values: int) -> TokenIds:
    return np.array(values, dtype=np.int32)


def random_ids(count: int, seed: int) -> TokenIds:
    return np.random.default_rng(seed).integers(0, 1000, count, dtype=np.int32)


def read(path: Path, bad: Bad | None = None) -> list[RecordedRequest]:
    return list(Recording(recognise(path), bad=bad))


def texts(requests: list[RecordedRequest]) -> list[tuple[list[int], list[int]]]:
    return [(one.prompt.tolist(), one.output.tolist()) for one in requests]


def plain(pairs: Texts) -> list[tuple[list[int], list[int]]]:
    return [(prompt.tolist(), output.tolist()) for prompt, output in pairs]


def write(path: Path, pairs: Texts, tenant: str = "", **settings: Any) -> None:
    file = RecordFile(path, HEAD, **settings)
    for prompt, output in pairs:
        file.append(tenant, prompt, output, {"time": 1.0})
    file.close()


def chat(turns: int = 4, seed: int = 0) -> Texts:
    """A conversation whose prompts begin with all that was said before."""
    prompt = random_ids(40, seed)
    pairs: Texts = []
    for turn in range(turns):
        answer = random_ids(20, seed + 100 + turn)
        pairs.append((prompt, answer))
        prompt = np.concatenate([prompt, answer, random_ids(10, seed + 200 + turn)])
    return pairs


@given(data=st.data())
def test_what_is_written_is_read(data: st.DataObject, tmp_path_factory: Any) -> None:
    """Texts grow out of earlier ones, of the same key or of another."""
    path = tmp_path_factory.mktemp("w") / "r.jsonl"
    file = RecordFile(path, HEAD)
    bases: list[TokenIds] = [ids(), random_ids(50, 1)]
    expected = []
    for _ in range(data.draw(st.integers(1, 12))):
        base = data.draw(st.sampled_from(bases))
        start = base[: data.draw(st.integers(0, len(base)))]
        new = data.draw(st.lists(st.integers(0, 5), max_size=30))
        prompt = np.concatenate([start, ids(*new)])
        output = ids(*data.draw(st.lists(st.integers(0, 5), max_size=30)))
        tenant = data.draw(st.sampled_from(["a", "b"]))
        file._digests = {"a": "0a", "b": "0b"}  # the real ones are slow on purpose
        file.append(tenant, prompt, output, {})
        bases.append(np.concatenate([prompt, output]))
        expected.append((prompt.tolist(), output.tolist(), f"0{tenant}"))
    file.close()
    assert [(*pair, one.key) for pair, one in zip(texts(read(path)), read(path), strict=True)] == (
        expected
    )
    sessions: dict[int, str] = {}
    for line in path.read_text().splitlines()[1:]:
        record = json.loads(line)
        key = sessions.setdefault(record["session"], record["key"])
        assert key == record["key"]
        assert "kept" not in record or sessions[record["kept"][0]] == key


@given(st.lists(st.integers(0, 2), max_size=200), st.lists(st.integers(0, 2), max_size=200))
def test_common_tokens_are_counted(first: list[int], second: list[int]) -> None:
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    shared = len(list(pairs))
    for least in (0, 3, LEAST_KEPT):
        expected = shared if shared > least else 0
        assert num_common(ids(*first), ids(*second), least) == expected


def test_a_chat_is_a_session_and_is_not_written_twice(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    pairs = [one for pair in zip(chat(), chat(seed=7), strict=True) for one in pair]
    write(path, pairs)
    assert texts(read(path)) == plain(pairs)
    records = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    assert [(one["session"], one["turn"]) for one in records] == [
        (session, turn) for turn in range(4) for session in (0, 1)
    ]
    assert [len(one["prompt_ids"]) for one in records] == [40, 40, *[10] * 6]


def test_two_answers_to_one_prompt(tmp_path: Path) -> None:
    prompt = random_ids(100, 3)
    pairs = [(prompt, ids(1, 2)), (prompt, ids(3, 4)), (prompt[:60], ids(5, 6))]
    write(tmp_path / "r.jsonl", pairs)
    assert texts(read(tmp_path / "r.jsonl")) == plain(pairs)


def test_a_reader_keeps_no_more_texts_than_their_writer_may_go_on(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    start = random_ids(20_000, 1)
    pairs = [(np.concatenate([start, random_ids(20, seed)]), ids(1)) for seed in range(700)]
    write(path, pairs)
    assert path.stat().st_size < 1_000_000
    tracemalloc.start()
    try:
        assert sum(1 for _ in Recording(recognise(path))) == 700
        assert tracemalloc.get_traced_memory()[1] < 45e6  # 56 MB if it kept all
    finally:
        tracemalloc.stop()


def test_texts_that_were_not_used_for_long_are_forgotten() -> None:
    sessions = Sessions(most_texts=2, most_tokens=1000)
    first = random_ids(50, 1)
    for seed in (1, 2, 3):
        prompt = random_ids(50, seed)
        sessions.add("", sessions.place("", prompt), prompt, ids(1))
    assert sessions.place("", first).prefix is None
    assert sessions.place("", random_ids(50, 2)).prefix == (1, 0, 50)
    assert sessions.place("other", random_ids(50, 2)).prefix is None
    sessions.add("", sessions.place("", first), first, random_ids(990, 9))
    assert sessions.place("", random_ids(50, 3)).prefix is None


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.touch()
    for count in (1, 2):
        path.chmod(0o644)
        write(path, chat(1))
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert len(read(path)) == count


def test_keys_are_told_apart_without_being_told(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    for _ in range(2):  # also after a restart
        file = RecordFile(path, HEAD)
        for tenant in ("alice", "bob", "alice"):
            file.append(tenant, random_ids(50, 1), ids(1, 2), {})
        file.close()
    first, second, *_ = keys = [one.key for one in read(path)]
    assert keys == [first, second, first] * 2
    assert first != second
    assert len(first) == 12
    assert "alice" not in path.read_text()
    write(tmp_path / "other.jsonl", chat(1), "alice")
    assert read(tmp_path / "other.jsonl")[0].key != first


@pytest.mark.parametrize("cut", [2, 30, 200])
def test_a_cut_last_line_costs_only_itself(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "r.jsonl"
    write(path, chat(4))
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    assert texts(read(path)) == plain(chat(3))  # also where no line may be wrong
    noted: list[str] = []
    read(path, lambda number, why: noted.append(f"{number}: {why}"))
    assert noted == ["5: the last line is cut off"]
    write(path, chat(2, seed=5))
    assert texts(read(path)) == plain([*chat(3), *chat(2, seed=5)])


def test_a_process_that_is_killed_loses_the_last_line_at_most(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    script = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_writer import *
file = RecordFile(Path({str(path)!r}), HEAD)
for seed in range(100_000):
    file.append("", random_ids(5000, seed), random_ids(200, seed), {{}})
    print(seed, flush=True)
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= 20:
                break
        process.kill()
        printed = [int(line) for line in process.stdout.read().split()]
    requests = read(path)
    assert len(requests) >= max([20, *printed]) + 1
    for seed, one in enumerate(requests):
        assert one.prompt.tolist() == random_ids(5000, seed).tolist()


def test_a_full_file_becomes_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    pairs = [(random_ids(900, seed), random_ids(100, seed + 1000)) for seed in range(60)]
    write(path, pairs, max_bytes=LEAST_BYTES)
    older = tmp_path / "r.1.jsonl"
    assert path.stat().st_size + older.stat().st_size <= LEAST_BYTES
    assert stat.S_IMODE(older.stat().st_mode) == 0o600
    expected = plain(pairs)[-len(read(older)) - len(read(path)) :]
    assert texts(read(older)) + texts(read(path)) == expected
    assert len(expected) > 8
    before = read(path)
    write(path, pairs[:1], max_bytes=LEAST_BYTES)  # goes on where it was
    assert texts(read(path))[: len(before)] == texts(before)


def test_a_chat_that_goes_on_in_the_next_file_is_whole_there(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    pairs = chat(400)
    write(path, pairs, max_bytes=2 * LEAST_BYTES)
    rest = texts(read(path))
    assert rest == plain(pairs)[-len(rest) :]
    assert (tmp_path / "r.1.jsonl").exists()


def test_a_record_that_no_file_can_hold_is_refused(tmp_path: Path) -> None:
    file = RecordFile(tmp_path / "r.jsonl", HEAD, max_bytes=LEAST_BYTES)
    file.append("", random_ids(50, 1), ids(1, 2), {})
    for _ in range(2):
        with pytest.raises(TooLongError):
            file.append("", random_ids(20_000, 1), ids(1, 2), {})
    file.append("", random_ids(50, 2), ids(3, 4), {})
    file.close()
    assert texts(read(tmp_path / "r.jsonl"))[-1] == (random_ids(50, 2).tolist(), [3, 4])


def decision(sent: int, accepted: int, shadow: bool = False) -> dict[str, Any]:
    return {"drafters": "suffix", "shadow": shadow, "sent": sent, "accepted": accepted}


def test_decisions_are_told_apart_from_requests(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    file = RecordFile(path, HEAD)
    pairs = chat(2)
    file.append_decisions([decision(3, 2), decision(0, 0), decision(5, 5, shadow=True)])
    file.append("", *pairs[0], {})
    file.append_decisions([decision(4, 0)])
    file.append("", *pairs[1], {})
    file.close()
    recording = Recording(recognise(path))
    assert texts(list(recording)) == plain(pairs)
    assert recording.decided == {"as sent": [(3, 2), (0, 0), (4, 0)], "shadow suffix": [(5, 5)]}
    wrong: list[str] = []
    path.write_bytes(path.read_bytes() + b'{"decision": {"sent": 3}}\n{"decision": 3}\n')
    assert texts(read(path, lambda _, why: wrong.append(why))) == plain(pairs)
    assert len(wrong) == 2


def test_decisions_begin_a_new_file_too(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    file = RecordFile(path, HEAD, max_bytes=LEAST_BYTES)
    long = decision(1, 1) | {"emitted_ids": list(range(900))}
    for _ in range(30):
        file.append_decisions([long])
        assert path.stat().st_size <= LEAST_BYTES // 2
    with pytest.raises(TooLongError):
        file.append_decisions([decision(1, 1) | {"emitted_ids": list(range(20_000))}])
    file.append_decisions([decision(2, 1)])
    file.append("", ids(1, 2), ids(3, 4), {})
    file.close()
    recording = Recording(recognise(path))
    assert texts(list(recording)) == [([1, 2], [3, 4])]
    assert recording.decided == {"as sent": [(2, 1)]}
    assert (tmp_path / "r.1.jsonl").exists()


def test_what_a_full_disk_left_of_a_line_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.jsonl"
    file = RecordFile(path, HEAD)
    first, second, third, fourth = chat(4)
    file.append("", *first, {})
    real = os.write
    parts = iter([100])

    def full(fd: int, data: Any) -> int:
        size = next(parts, None)
        if size is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, bytes(data)[:size])

    monkeypatch.setattr("ngramspec.lab.recordings.writer.os.write", full)
    with pytest.raises(OSError, match="No space"):
        file.append("", *second, {})
    monkeypatch.undo()
    file.append("", *third, {})
    file.append("", *fourth, {})
    file.close()
    assert texts(read(path)) == plain([first, third, fourth])


def fill(file: RecordFile, path: Path) -> int:
    """Append until the next record needs a new file; return how many that were."""
    for seed in itertools.count():
        file.append("", random_ids(900, seed), ids(1, 2), {})
        if path.stat().st_size > LEAST_BYTES // 2 - 4096:
            return seed + 1


def test_a_disk_that_is_full_when_a_file_begins_leaves_no_file_without_a_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.jsonl"
    file = RecordFile(path, HEAD, max_bytes=LEAST_BYTES)
    fill(file, path)

    def full(fd: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ngramspec.lab.recordings.writer.os.write", full)
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            file.append("", random_ids(2000, 1), ids(3), {})
    monkeypatch.undo()
    file.append("", random_ids(2000, 2), ids(4), {})
    file.close()
    assert texts(read(path)) == [(random_ids(2000, 2).tolist(), [4])]
    RecordFile(path, HEAD).close()  # which asks for the head


def test_a_file_that_somebody_took_away_begins_anew_when_it_is_full(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    file = RecordFile(path, HEAD, max_bytes=LEAST_BYTES)
    fill(file, path)
    path.unlink()
    for seed in range(3):
        file.append("", random_ids(900, 100 + seed), ids(4), {})
    file.close()
    assert texts(read(path))[-1] == (random_ids(900, 102).tolist(), [4])


def test_windows_has_no_fchmod_no_pread_and_renames_no_open_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ngramspec.lab.recordings.writer.fcntl", None)
    monkeypatch.delattr("ngramspec.lab.recordings.writer.os.fchmod")
    monkeypatch.delattr("ngramspec.lab.recordings.writer.os.pread")
    path, real = tmp_path / "r.jsonl", os.replace
    write(path, [(ids(1, 2), ids(3))])
    with open(path, "ab") as cut:
        cut.write(b'{"cut')
    file = RecordFile(path, HEAD, max_bytes=LEAST_BYTES)
    num = fill(file, path)

    def replace(source: Path, target: Path) -> None:
        if file._fd >= 0:
            raise PermissionError(errno.EACCES, "used by another process", str(source))
        real(source, target)

    def fail(*_: Any) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("ngramspec.lab.recordings.writer.os.replace", replace)
    with monkeypatch.context() as patch:
        patch.setattr("ngramspec.lab.recordings.writer.os.open", fail)
        with pytest.raises(OSError, match="Too many"):
            file.append("", random_ids(2000, 1), ids(3), {})
    file.append("", random_ids(2000, 2), ids(4), {})
    file.close()
    assert len(read(tmp_path / "r.1.jsonl")) == num + 1
    assert texts(read(path)) == [(random_ids(2000, 2).tolist(), [4])]


def put_text(path: Path) -> None:
    path.write_text("my notes\n")


def put_json(path: Path) -> None:
    path.write_text('{"format": "ngramspec-requests", "salt": "no hex"}\n')


def put_cut_head(path: Path) -> None:
    path.write_text('{"format": "ngramspec-requests"')


@pytest.mark.parametrize("put", [put_text, put_json, put_cut_head])
def test_other_files_are_not_touched(tmp_path: Path, put: Callable[[Path], None]) -> None:
    path = tmp_path / "r.jsonl"
    put(path)
    path.chmod(0o644)
    before = path.read_bytes()
    with pytest.raises(FormatError, match="holds no recorded requests"):
        RecordFile(path, HEAD)
    assert path.read_bytes() == before
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


def test_a_file_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    RecordFile(path, dataclasses.replace(HEAD, tokenizer="00" * 16)).close()
    before = path.read_bytes()
    with pytest.raises(VocabMismatchError, match="requests of another tokenizer"):
        RecordFile(path, dataclasses.replace(HEAD, tokenizer="01" * 16))
    assert path.read_bytes() == before


def test_what_cannot_be_recorded_to(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write(path, chat(1))
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "pipe")
    for name, message in (("link", "is a link"), ("pipe", "not a regular file")):
        with pytest.raises(InputError, match=message):
            RecordFile(tmp_path / name, HEAD)
    with pytest.raises(IsADirectoryError):
        RecordFile(tmp_path, HEAD)
    with pytest.raises(FileNotFoundError):
        RecordFile(tmp_path / "none" / "r.jsonl", HEAD)
    with pytest.raises(InputError, match="at least"):
        RecordFile(path, HEAD, max_bytes=100)
    file = RecordFile(path, HEAD)
    with pytest.raises(InputError, match="another process records"):
        RecordFile(path, HEAD)
    file.close()
    RecordFile(path, HEAD).close()
