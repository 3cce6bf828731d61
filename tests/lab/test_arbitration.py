"""Our drafter beside a second source with a price: by hand, and never far behind the better."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from helpers.replays import request, tokens
from ngramspec.costs import PROFILES, CostTable
from ngramspec.errors import InputError
from ngramspec.lab.recordings import RecordedRequest
from ngramspec.lab.recordings.traces import Trace
from ngramspec.lab.replay.arbitration import OtherSource, arbitrate, parse_other

LINE = CostTable(((1, 10.0), (2, 11.0), (3, 12.0)))
EAGLE = OtherSource("eagle", 4, 0.05, 0.05)
Run = Callable[..., Result]


def with_lengths(one: RecordedRequest, lengths: Sequence[int]) -> RecordedRequest:
    return dataclasses.replace(one, other_lengths={"eagle": tokens(*lengths)})


def made_up(trace: Trace, chance: Callable[[int, int], float]) -> Trace:
    """Return the set with lengths that are right by chance(request, position)."""
    rng = random.Random(0)
    requests = []
    for index, one in enumerate(trace.requests):
        lengths = [1] * len(one.output)
        for at in range(len(lengths)):
            while lengths[at] <= EAGLE.tokens and rng.random() < chance(index, at):
                lengths[at] += 1
        requests.append(with_lengths(one, lengths))
    return Trace(trace.name, tuple(requests))


def test_counted_by_hand() -> None:
    # All tokens differ, so that ours never drafts. The source's first pass, at the second output
    # token, would emit 3 tokens with two drafted ones, the next 1, and the last 1.
    one = with_lengths(request([1, 2], [3, 4, 5, 6, 7, 8]), [9, 3, 1, 1, 1, 1])
    speedups = arbitrate(Trace("set", (one,)), OtherSource("eagle", 2, 0.0, 0.1), LINE)
    assert speedups.ours == 1.0
    # By best length 2: (1.2 + 0.1) for three tokens, then twice (1.2 or 1.1 + 0.1) for one.
    by_length = {1: 5 / (4 * 1.2), 2: 5 / (1.3 + 1.3 + 1.2)}
    assert speedups.other == pytest.approx(by_length[2])
    assert speedups.other_tokens == 2
    assert speedups.perfect == pytest.approx(5 / (1.3 + 1 + 1))
    assert speedups.passes >= 3
    assert speedups.arbiter > 1.0


def test_a_source_that_never_helps_costs_a_hundredth(trace_of: Callable[..., Trace]) -> None:
    trace = made_up(trace_of("code_edit.debugbench", 20), lambda *_: 0.0)
    for profile in PROFILES.values():
        speedups = arbitrate(trace, EAGLE, profile)
        assert speedups.other_tokens == 0
        assert 1.001 * speedups.ours > speedups.arbiter > 0.985 * speedups.ours
        assert speedups.perfect == pytest.approx(speedups.ours, rel=0.02)


def test_tokens_of_both_in_a_pass_are_faster_where_passes_are_cheap(
    trace_of: Callable[..., Trace],
) -> None:
    trace = made_up(trace_of("chat_revise.mt_redundant", 20), lambda *_: 0.8)
    speedups = arbitrate(trace, EAGLE, PROFILES["h100-8b"], branches=4)
    assert speedups.arbiter > 1.05 * speedups.either > 1.05 * max(speedups.ours, speedups.other)
    dear = arbitrate(trace, EAGLE, PROFILES["moe-a3b"], branches=4)
    assert dear.arbiter > 0.98 * dear.either


def test_a_source_that_never_helps_costs_little_beside_trees(
    trace_of: Callable[..., Trace],
) -> None:
    trace = made_up(trace_of("code_edit.debugbench", 20), lambda *_: 0.0)
    for profile in PROFILES.values():
        speedups = arbitrate(trace, EAGLE, profile, branches=4)
        assert speedups.arbiter > 0.98 * speedups.ours


def test_both_together_are_faster_than_either(trace_of: Callable[..., Trace]) -> None:
    kinds: dict[str, Callable[[int, int], float]] = {
        "always": lambda *_: 0.9,
        "by request": lambda index, _: 0.9 * (index % 2),
        "in runs": lambda _, at: 1.0 * (at // 150 % 2),
    }
    trace = trace_of("chat_revise.mt_redundant", 30)
    for kind, chance in kinds.items():
        speedups = arbitrate(made_up(trace, chance), EAGLE, PROFILES["h100-8b"])
        better = max(speedups.ours, speedups.other)
        assert speedups.arbiter > 1.03 * better, kind
        assert speedups.arbiter <= 1.05 * speedups.perfect, kind


def test_a_request_without_lengths_is_named() -> None:
    trace = Trace("set", (with_lengths(request([1], [2, 3]), [1, 1]), request([1], [2, 3])))
    with pytest.raises(InputError, match="set, request 2: no other_lengths of 'eagle', only none"):
        arbitrate(trace, EAGLE, LINE)


def test_specifications() -> None:
    assert parse_other("eagle:tokens=4,price=0.05,start=0.05") == EAGLE
    assert parse_other("m:tokens=1,price=0").start == 0.0


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("eagle", "expected NAME:tokens=K,price=P"),
        (":tokens=4,price=1", "expected NAME:tokens=K,price=P"),
        ("m:tokens=4,price=1,length=2", "expected NAME:tokens=K,price=P"),
        ("m:tokens=0,price=1", "tokens must be a whole number"),
        ("m:tokens=1.5,price=1", "tokens must be a whole number"),
        ("m:tokens=4,price=-1", "price must be a number >= 0"),
        ("m:tokens=4,price=1,start=x", "start must be a number >= 0"),
    ],
)
def test_wrong_specifications(spec: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_other(spec)


def write(path: Path, trace: Trace) -> Path:
    lines = []
    for index, one in enumerate(trace.requests):
        line: dict[str, Any] = {"session": index, "turn": 0, "prompt_ids": one.prompt.tolist()}
        line["output_ids"] = one.output.tolist()
        line["other_lengths"] = {"eagle": one.other_lengths["eagle"].tolist()}
        lines.append(json.dumps(line) + "\n")
    path.write_text("".join(lines))
    return path


def test_the_command(
    bench_replay: Run, trace_of: Callable[..., Trace], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    trace = made_up(trace_of("structured.spider_sql", 20), lambda *_: 0.9)
    path = write(tmp_path / "reasoning.misguided_attention.jsonl", trace)
    spec = "eagle:tokens=4,price=0.05,start=0.05"
    result = bench_replay(path, "--other", spec)
    assert result.exit_code == 0, result.output
    assert "at most 4 tokens for 0.05 + 0.05 passes per token" in " ".join(result.stdout.split())
    assert max(map(len, result.stdout.splitlines())) <= 80
    report = json.loads(bench_replay(path, "--other", spec, "--json").stdout)["other"]
    assert (report["name"], report["tokens"], report["price"], report["start"]) == (
        "eagle", 4, 0.05, 0.05,
    )  # fmt: skip
    row = report["sets"]["reasoning.misguided_attention"]
    assert list(row) == list(PROFILES)
    expected = arbitrate(Trace("set", trace.requests), EAGLE, PROFILES["cpu"]).as_json()
    assert row["cpu"] == expected
    refused = bench_replay(path, "--other", "mtp:tokens=4,price=0.05")
    assert refused.exit_code == 2
    assert "no other_lengths of 'mtp', only eagle" in refused.output
