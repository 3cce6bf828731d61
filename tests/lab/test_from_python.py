"""What the commands of `ngramspec bench` do, from Python."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from helpers.recordings import TRACES
from ngramspec.costs import CostTable, save_costs
from ngramspec.engine.calibration import Calibration
from ngramspec.engine.exactness import Exactness, Setting, combinations
from ngramspec.errors import FormatError, InputError
from ngramspec.lab.e2e.bench import (
    PromptOutcome,
    PromptResult,
    Run,
    parse_mode,
    tokenize_tasks,
    totals,
)
from ngramspec.lab.e2e.tasks import Task, load_tasks
from ngramspec.lab.recordings.traces import Cut, find_traces, load_traces
from ngramspec.lab.replay.sets import load_profiles, replay_sets
from ngramspec.lab.replay.subjects import subject
from ngramspec.models import embedded_model


def test_sets_are_read_and_replayed() -> None:
    seen: list[str] = []
    shown: list[tuple[str, int]] = []

    @contextmanager
    def progress(title: str, total: int) -> Iterator[Callable[[], object]]:
        shown.append((title, total))
        yield lambda: seen.append(title)

    paths = find_traces([TRACES / "structured.spider_sql.txt.xz"])
    traces = load_traces(paths, cut=Cut(4), advance=lambda: seen.append("read"))
    subjects = [subject("ngram-simple:size_n=3"), subject("ngram-cache")]
    replays = replay_sets(traces, subjects, cold=True, progress=progress)
    assert shown == [("replaying", 8)]
    assert seen == ["read", *["replaying"] * 8]
    assert replays.drafters == ["ngram-simple:size_n=3", "ngram-cache"]
    (outcomes,) = replays.sets.values()
    assert outcomes["ngram-cache"].first.requests == 4
    assert replays.cold


def test_profiles_have_names_of_their_own(tmp_path: Path) -> None:
    save_costs(CostTable(((1, 1.0), (2, 1.5)), "mine"), tmp_path / "mine.json")
    save_costs(CostTable(((1, 1.0), (2, 1.5)), "cpu"), tmp_path / "cpu.json")
    assert list(load_profiles([tmp_path / "mine.json"]))[-1] == "mine"
    with pytest.raises(InputError, match="there is already a profile named 'cpu'"):
        load_profiles([tmp_path / "cpu.json"])


def test_tasks_come_from_texts_and_lines(tmp_path: Path) -> None:
    (tmp_path / "edit.txt").write_text("Rename x.\nNow.")
    (tmp_path / "chats.jsonl").write_text('{"prompt": "a"}\n\n{"prompt": "b", "name": "second"}\n')
    tasks = load_tasks([tmp_path / "edit.txt", tmp_path / "chats.jsonl"])
    assert [task.name for task in tasks] == ["edit", "chats:1", "second"]
    assert tasks[0].messages == [{"role": "user", "content": "Rename x.\nNow."}]
    assert tasks[0].request == "Rename x."
    (tmp_path / "chats.jsonl").write_text("[]")
    with pytest.raises(FormatError, match=r"chats\.jsonl, line 1: expected a JSON object"):
        load_tasks([tmp_path / "chats.jsonl"])


def test_chats_are_tasks_without_the_answer_at_their_end(tmp_path: Path) -> None:
    asked = [("system", "Be brief."), ("user", "a"), ("assistant", "b"), ("user", "c\nd")]
    messages = [{"role": role, "content": text} for role, text in asked]
    parts = [*messages[:-1], {"role": "user", "content": [{"type": "text", "text": "c\nd"}]}]
    answered = [*messages, {"role": "assistant", "content": "e"}]
    shared = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]
    lines = [{"messages": messages}, {"messages": parts, "name": "x"}, {"messages": answered}]
    path = tmp_path / "chats.jsonl"
    path.write_text("\n".join(map(json.dumps, [*lines, {"conversations": shared}])))
    *tasks, last = load_tasks([path])
    assert [task.name for task in tasks] == ["chats:1", "x", "chats:3"]
    assert all(task.messages == messages and task.request == "c" for task in tasks)
    assert last.messages == [{"role": "user", "content": "a"}]
    for line, message in (
        ({"messages": []}, 'line 1: expected a JSON object with "prompt", or with a question in'),
        ({"messages": [{"content": "a"}]}, "line 1: message 1 has no role"),
        ({"messages": answered[-1:]}, 'or with a question in "messages"'),
        ({"messages": messages, "name": 3}, '"prompt" and "name" must be texts'),
    ):
        path.write_text(json.dumps(line))
        with pytest.raises(FormatError, match=message):
            load_tasks([path])


def test_tasks_in_the_tokens_of_a_model() -> None:
    pytest.importorskip("llama_cpp", reason="the model is llama.cpp's")
    from ngramspec.llamacpp import LlamaModel

    task = Task("one", "One", ("def area(width",))
    with LlamaModel(embedded_model()) as model:
        (chat,), (raw,) = tokenize_tasks(model, [task]), tokenize_tasks(model, [task], chat=False)
        assert chat.size > raw.size
        assert model.detokenize(raw) == "def area(width"
        with pytest.raises(
            InputError, match=r"prompt 'long' has .* tokens, the model's context is"
        ):
            tokenize_tasks(model, [Task("long", "Long", ("word " * 3000,))])


def test_totals_are_over_all_prompts() -> None:
    def one(tokens: int, seconds: float) -> Run:
        return Run(tuple(range(tokens)), (False,) * tokens, seconds, 0.1, 0.0, 5, 4, 2, "length")

    none, drafted = parse_mode("none"), parse_mode("ngram-simple:size_n=3")
    plain = (one(11, 2.0),)
    outcomes = (PromptOutcome(none, plain, plain), PromptOutcome(drafted, (one(11, 0.5),), plain))
    prompts = [PromptResult("a", 3, "text", outcomes), PromptResult("b", 3, "text", outcomes)]
    first, second = totals(prompts)
    assert (first.drafter, first.ratio) == ("none", 1.0)
    assert (second.ratio, second.tokens_per_second) == (pytest.approx(4.0), 20.0)
    assert (second.drafted, second.accepted, second.same, second.texts) == (8, 4, 2, 2)
    assert second.as_json()["identical_texts"] == 2
    row = prompts[0].as_json()["runs"][1]
    assert row["parameters"] == {"ngram-simple": {"size_n": 3}}
    assert row["runs"][0]["tokens"] == 11


def test_rows_of_a_calibration() -> None:
    calibration = Calibration({1: [0.2, 0.1, 0.3], 4: [0.4, 0.4, 0.6]}, 0, True)
    one, four = calibration.rows()
    assert (one["seconds"], one["relative"], one["slowest_seconds"]) == (0.2, 1.0, 0.3)
    assert (four["relative"], four["seconds_per_token"], four["samples"]) == (2.0, 0.1, 3)
    assert Calibration({4: [0.4]}, 0, False).rows()[0]["relative"] is None


def test_settings_that_llama_cpp_has() -> None:
    settings = combinations([1, 2], [True, False], ["q8_0"])
    assert settings == [
        Setting(1, True, "q8_0", True),
        Setting(1, True, "q8_0", False),
        Setting(2, True, "q8_0", True),
        Setting(2, True, "q8_0", True, padded=True),
        Setting(2, True, "q8_0", False),
    ]
    assert len(combinations([1], [True, False], ["f16"])) == 4
    exactness = Exactness(settings[0], {"alone": {1: 0, 2: 0, 3: 1}}, 8).as_json()
    assert (exactness["threads"], exactness["exact_batch"], exactness["rows"]) == (1, 2, 8)
