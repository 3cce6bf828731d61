"""ngramspec check: what it measures of the embedded model, its lines, JSON, and Ctrl-C."""

from __future__ import annotations

import importlib
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from helpers.cli import assert_one_error, succeed
from ngramspec.cli.check import SIZES
from ngramspec.cli.output import gain_line
from ngramspec.costs import CostTable
from ngramspec.lab.e2e.check import Verdict

pytestmark = pytest.mark.usefixtures("empty_folder", "few")
QUICK = ("check", "-t", "1")
LINE = "ngramspec serve --threads 1 --flash-attn on --ctx-size 4096"


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it end after two rounds of short answers, however fast the machine is."""
    for name, number in (("ROUNDS", 1), ("LONGEST", 8), ("FOR_PASSES", 1.0)):
        monkeypatch.setattr(importlib.import_module("ngramspec.cli.check"), name, number)
    monkeypatch.setattr("ngramspec.lab.e2e.check.MOST_ROUNDS", 2)
    monkeypatch.setattr("ngramspec.llamacpp.saved_costs.overload", str)


def test_json_of_passes_kinds_of_work_and_the_verdict() -> None:
    result = succeed(*QUICK, "--json")
    report = json.loads(result.stdout)
    assert report["model"] == "tiny-code-q8_0.gguf"
    assert [row["tokens"] for row in report["passes"]] == list(SIZES)
    names = [(row["name"], row["temperature"]) for row in report["findings"]]
    kinds = ("copies", "edits", "chats")
    assert names == [(kind, temperature) for temperature in (0, 0.8) for kind in kinds]
    for row in report["findings"]:
        assert len(row["runs"]) == 2
        assert row["low"] <= row["ratio"] <= row["high"]
    assert report["answer"] in ("yes", "some", "no", "unknown")
    assert report["verdict"].endswith(".")
    assert report["serve"].startswith("ngramspec serve --threads 1")


@pytest.mark.parametrize(
    ("answer", "busy", "line"),
    [
        ("some", False, f"  {LINE}"),
        ("no", False, f"  {LINE} --spec-type none"),
        ("unknown", True, "It is so."),
    ],
)
def test_the_text_fits_80_columns_and_ends_with_the_line_of_the_server(
    monkeypatch: pytest.MonkeyPatch, answer: str, busy: bool, line: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    Path("mine.jsonl").write_text('{"prompt": "Repeat: a b c a b c", "name": "abc"}\n')
    verdict = Verdict(answer, "It is so.", 1.0, busy)
    monkeypatch.setattr("ngramspec.lab.e2e.check.conclude", lambda *_: verdict)
    result = succeed(*QUICK, "-fa", "on", "-c", "4096", "--prompts", "mine.jsonl")
    lines = result.stdout.splitlines()
    assert lines[-1] == line
    assert max(map(len, lines)) <= 80
    assert any(one.split()[:4] == ["tokens", "in", "a", "pass"] for one in lines)
    assert any(one.split()[:2] == ["abc", "0.8"] for one in lines)
    assert ("So " in result.stdout) == (not busy)  # nothing is concluded from noise


def test_ctrl_c_shows_what_was_measured(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ngramspec.lab.e2e.bench import Bench

    run = Bench.run

    def interrupted(*arguments: Any, **more: Any) -> Any:
        outcomes = run(*arguments, **more)
        monkeypatch.setattr(Bench, "run", run)
        signal.raise_signal(signal.SIGINT)
        return outcomes

    monkeypatch.setattr(Bench, "run", interrupted)
    result = invoke(*QUICK, "--json")
    assert result.exit_code == 130, result.output
    report = json.loads(result.stdout)
    assert [(row["name"], row["temperature"]) for row in report["findings"]] == [("copies", 0)]
    assert "fewer than 2 rounds" in report["verdict"]


def test_a_ctrl_c_while_passes_are_timed(invoke: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ngramspec.engine.calibration import _Probe

    monkeypatch.setattr(_Probe, "seconds", lambda *_: signal.raise_signal(signal.SIGINT) or 1.0)
    result = invoke(*QUICK)
    assert result.exit_code == 130, result.output
    assert "No conclusion: fewer than 2 rounds" in result.stdout


def test_help_says_how_to_use_it_and_wrong_options_are_one_line(invoke: Any) -> None:
    assert "ngramspec check --model model.gguf -t 4" in invoke("check", "--help").output
    assert_one_error(invoke("check", "--seconds", "0"), "0.0 is not in the range x>0", 2)
    assert_one_error(invoke("check", "-m", "absent.gguf"), "absent.gguf: No such file", 2)
    assert_one_error(invoke("check", "--prompts", "absent"), "'absent' does not exist", 2)


def test_the_line_on_what_right_drafts_can_give() -> None:
    costs = CostTable(((1, 2.0), (2, 3.0), (4, 3.8), (16, 32.0), (32, 33.0)))
    assert gain_line(costs) == (
        "a pass over 4 tokens costs 1.9 times one: right drafts make answers up to 2.1 times as "
        "fast here"
    )
    assert "a pass over 2 tokens costs 1.5 times one" in gain_line(costs, 1)
    assert gain_line(CostTable(((1, 1.0), (2, 2.5), (64, 90.0)))) == ""


def test_nothing_is_concluded_on_a_machine_with_more_to_do_than_it_can(
    invoke: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = "ngramspec.llamacpp.saved_costs.overload"
    monkeypatch.setattr(path, lambda: "load 9.5 on 2 processors")
    report = json.loads(invoke(*QUICK, "--json").stdout)
    assert (report["answer"], report["busy"]) == ("unknown", True)
    assert "varies too much: load 9.5 on 2 processors. Close what" in report["verdict"]
