"""A build on Ray gives the bytes and figures of a local one, whatever happens to its workers."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray_jobs import Outcome

from ngramspec.lab.builder import BuildResult

EQUAL = (
    *("many-shards", "one-shard", "several-options", "no-provenance", "pool", "held-out-pool"),
    *("index", "pruned-index", "resumed", "resumed-with-other-shards", "resumed-index"),
    *(
        "restarted",
        "large-tokenizer",
        "address",
        "much-memory",
        "killed-worker",
        "lost-host",
    ),
)
Outcomes = dict[str, Outcome]


@pytest.mark.parametrize("name", EQUAL)
def test_bytes_and_figures_are_those_of_a_local_build(
    name: str, outcomes: Outcomes, build_here: Callable[[dict[str, Any]], BuildResult]
) -> None:
    outcome = outcomes[name]
    assert outcome.result is not None, outcome.error
    here = build_here(outcome.job)
    assert outcome.file.read_bytes() == Path(here.path).read_bytes()
    expected = here.as_dict()
    for key in ("header", "file_bytes", "totals", "problems", "held_out"):
        assert outcome.result[key] == expected[key], key


def test_the_corpus_has_what_the_comparison_is_about(outcomes: Outcomes) -> None:
    result = outcomes["several-options"].result
    assert result is not None
    assert result["totals"]["duplicates"] > 50
    assert result["totals"]["held_out"] > 10
    assert result["problems"]["num_records"] == 8
    assert result["problems"]["num_skipped"] == 1
    assert 30_000 < result["file_bytes"] <= 60_000
    assert result["held_out"]["with_file"]["right"] > 0


def test_a_worker_was_killed_at_its_task(outcomes: Outcomes) -> None:
    outcome = outcomes["killed-worker"]
    assert outcome.done_with
    assert len(outcome.done_with) == 1


def test_a_host_was_lost_when_shards_were_counted(outcomes: Outcomes) -> None:
    outcome = outcomes["lost-host"]
    assert outcome.done_with
    assert outcome.amounts
    assert sum(tokens > 0 for _, tokens in outcome.amounts) > 1


def test_progress_tells_phases_bytes_and_tokens(outcomes: Outcomes) -> None:
    outcome = outcomes["several-options"]
    assert outcome.result is not None
    assert outcome.phases == ["finding duplicates", "reading", "writing", "measuring"]
    assert outcome.amounts
    size = sum(path.stat().st_size for path in Path(outcome.job["paths"][0]).iterdir())
    first, second = [each for each in outcome.amounts if each[0] == size]
    assert first[1] == 0
    assert second[1] == outcome.result["totals"]["tokens"]


def work_of(outcome: Outcome) -> Path:
    return outcome.file.with_name(f".{outcome.file.name}.build")


@pytest.mark.parametrize("name", [*EQUAL, "stopped-early", "no-text", "missing-tokenizer"])
def test_a_build_that_ends_or_has_counted_nothing_leaves_no_folder(
    name: str, outcomes: Outcomes
) -> None:
    assert not work_of(outcomes[name]).exists()


def test_a_build_that_is_stopped_keeps_what_was_counted(outcomes: Outcomes) -> None:
    for name, there in (("stopped-early", False), ("stopped-late", True)):
        assert outcomes[name].error == ["BuildStopped", "stopped"]
        assert not outcomes[name].file.exists()
        assert any(work_of(outcomes[name]).glob("shard-*")) == there


@pytest.mark.parametrize("name", ["resumed", "resumed-with-other-shards", "resumed-index"])
def test_counted_shards_are_not_counted_again(name: str, outcomes: Outcomes) -> None:
    """Not even if the shards of the resumed build were to be of another size."""
    assert outcomes[name].shard_files is not None
    before, after = outcomes[name].shard_files
    assert len(before) >= 3
    assert len(after) > len(before)
    assert before.items() <= after.items()


def test_all_is_counted_again_after_restart(outcomes: Outcomes) -> None:
    assert outcomes["restarted"].shard_files is not None
    before, after = outcomes["restarted"].shard_files
    assert before.keys() <= after.keys()
    assert not before.items() & after.items()


def test_an_unfinished_build_is_not_continued_by_accident(outcomes: Outcomes) -> None:
    outcome = outcomes["not-resumed"]
    assert outcome.error is not None
    assert outcome.error[0] == "InputError"
    assert "holds an unfinished build: --resume continues it, --restart" in outcome.error[1]
    assert any(work_of(outcome).glob("shard-*"))


def test_ctrl_c_ends_a_build(outcomes: Outcomes) -> None:
    outcome = outcomes["interrupted"]
    assert outcome.error
    assert outcome.error[0] == "KeyboardInterrupt"
    assert not outcome.file.exists()


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("missing-file", "InputError", ("records3.jsonl", "on a shared file system")),
        ("changed-file", "InputError", ("records3.jsonl", "other documents", "than before")),
        ("missing-tokenizer", "InputError", ("lost.gguf", "on a shared file system")),
        ("no-text", "InputError", ("no text to count",)),
        ("no-cluster", "BackendError", ("no Ray at 127.0.0.1:1",)),
    ],
)
def test_errors_name_what_is_wrong(
    name: str, error: str, words: tuple[str, ...], outcomes: Outcomes
) -> None:
    outcome = outcomes[name]
    assert outcome.error is not None
    kind, message = outcome.error
    assert kind == error
    assert all(word in message for word in words), message
    if "file" in outcome.job:
        assert f"host {socket.gethostname()}" in message
    assert not outcome.file.exists()
