"""The verdict of ngramspec check, from rounds whose times are known."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.fake_target import FakeTarget
from ngramspec.lab.e2e.bench import Bench, PromptOutcome, Run, parse_mode
from ngramspec.lab.e2e.check import TEMPERATURES, Finding, conclude, measure
from ngramspec.lab.e2e.tasks import Task

SUFFIX = parse_mode("suffix")
SERVER = "at temperature 0.8, the server's default,"


def run(rate: float) -> Run:
    return Run(tuple(range(11)), (False,) * 11, 10 / rate, 0.1, 0.0, 9, 4, 2, "length")


def finding(
    name: str, ratios: list[float], plain: list[float] | None = None, temperature: float = 0.0
) -> Finding:
    """Return a finding with runs of these speeds without drafts and with them."""
    rates = plain or [100.0] * len(ratios)
    drafted = tuple(run(rate * ratio) for rate, ratio in zip(rates, ratios, strict=True))
    return Finding(name, temperature, PromptOutcome(SUFFIX, drafted, tuple(map(run, rates))))


@pytest.mark.parametrize(
    ("ratios", "plain", "change"),
    [
        ([1.4, 1.5], None, "faster"),
        ([0.8, 0.9], None, "slower"),
        ([1.0, 1.03], None, "same"),
        ([0.97, 1.2], None, "unclear"),  # rounds disagree
        ([1.4], None, "unclear"),  # of one round
        ([1.1, 1.12, 1.11], [100, 115, 108], "unclear"),  # as large as the noise
        ([1.4, 1.5, 1.4], [100, 150, 120], "unclear"),  # too noisy
        ([1.4, 1.5, 1.4, 1.4, 0.5, 1.4], [100, 99, 98, 97, 20, 100], "faster"),  # but for one
    ],
)
def test_what_drafts_do_with_a_kind_of_work(
    ratios: list[float], plain: list[float] | None, change: str
) -> None:
    assert finding("copies", ratios, plain).change == change


@pytest.mark.parametrize(
    ("findings", "answer", "text"),
    [
        (
            [finding("copies", [1.5, 1.6]), finding("edits", [1.2, 1.3], temperature=0.8)],
            "yes",
            f"Yes: at temperature 0 copies 1.55 times as fast; {SERVER} edits 1.25 times as fast.",
        ),
        (
            [finding("copies", [1.5, 1.6]), finding("edits", [1.2, 1.3]),
             finding("chats", [0.9, 0.9]), finding("copies", [1.0, 1.0], temperature=0.8)],
            "some",
            "Only for copies and edits: at temperature 0 copies 1.55, edits 1.25 and chats 0.90 "
            f"times as fast; {SERVER} nothing changes. So send temperature 0 where it will do.",
        ),
        (
            [finding("copies", [1.0, 1.0]), finding("copies", [0.99, 1.0], temperature=0.8)],
            "no",
            f"No: at temperature 0 nothing changes; {SERVER} nothing changes.",
        ),
        (
            [finding("copies", [1.0, 1.0]), finding("edits", [1.9])],  # which may gain
            "unknown",
            f"No conclusion: at temperature 0 nothing changes; {SERVER} too little was measured.",
        ),
        (
            [finding("copies", [0.9, 1.4]), finding("copies", [1.9], temperature=0.8)],
            "unknown",
            f"No conclusion: at temperature 0 unclear for copies; {SERVER} too little was "
            "measured.",
        ),
        (
            [finding("copies", [1.9])],
            "unknown",
            "No conclusion: fewer than 2 rounds were measured; --seconds N takes more time.",
        ),
        (
            [finding("copies", [1.9, 1.9]), finding("edits", [1.9])],  # not all is known
            "some",
            f"Only for copies: at temperature 0 copies 1.90 times as fast; {SERVER} too little "
            "was measured.",
        ),
        ([], "unknown", "No conclusion: fewer than 2 rounds were measured"),
        (
            [finding("copies", [1.9, 1.9], [100, 160])],
            "unknown",
            "No conclusion: the machine is too busy, or its speed varies too much: equal runs "
            "without drafts differ by 60%.",
        ),
        (
            [finding(name, [2.0, 2.0]) for name in "abcdef"] + [finding("g", [1.0, 1.0])],
            "some",
            "Only for a, b, c, d and 2 more: at",
        ),
    ],
)  # fmt: skip
def test_the_verdict_in_words(findings: list[Finding], answer: str, text: str) -> None:
    verdict = conclude(findings)
    assert (verdict.answer, verdict.text[: len(text)]) == (answer, text)
    assert answer == "unknown" or len(verdict.text) == len(text) or "more" in text


def test_runs_come_in_pairs_until_the_time_is_over() -> None:
    log: list[str] = []
    target = FakeTarget()
    bench = Bench(target, [parse_mode("none"), parse_mode("ngram-simple")])
    tasks = [Task("same", "", ("x",)), Task("same", "", ("y",))]  # names need not differ
    prompts = [np.array([1, 2], dtype=np.int32), np.array([3], dtype=np.int32)]
    findings = measure(bench, tasks, prompts, 4, advance=log.append, stopped=lambda: len(log) > 9)
    assert log[:5] == ["same at temperature 0"] * 4 + ["same at temperature 0.8"]
    assert [(f.name, f.temperature) for f in findings] == [
        ("same", temperature) for temperature in TEMPERATURES for _ in tasks
    ]
    assert [len(f.outcome.runs) for f in findings] == [3, 2, 2, 2]
    assert [len(f.outcome.plain) for f in findings] == [3, 2, 2, 2]
    row = findings[0].as_json()
    assert row["name"] == "same"
    assert len(row["runs"]) == 3
