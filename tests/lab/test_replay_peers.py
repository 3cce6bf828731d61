"""benchmarks/replay_peers.py: ours beside recorded peers, and beside those that run."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import replay_peers
from helpers.recordings import TRACES
from ngramspec.errors import FormatError, InputError

SET = "structured.spider_sql"
SQL = TRACES / f"{SET}.txt.xz"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Return a function that runs the script and returns its JSON."""

    def call(*words: str | Path) -> dict[str, Any]:
        path = tmp_path / "out.json"
        line = ["replay_peers.py", str(SQL), "--json", str(path), *map(str, words)]
        monkeypatch.setattr(sys, "argv", line)
        replay_peers.main()
        report: dict[str, Any] = json.loads(path.read_bytes())
        return report

    return call


def test_recorded_peers_are_compared(
    run: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    report = run("--drafter", "ngram-mod")
    length = report["peers"]["lcp-pld(2,10)"]["sets"][SET]["mean_accepted_length"]
    assert length == pytest.approx(1.317, abs=0.001)
    assert report["against_peers"]["ngram-mod"]["moe"]["best_peer"] == {SET: "arctic-default"}
    text = capsys.readouterr().out
    assert "ngram-mod: speed-up over that of the best peer" in text
    assert "of the oracle's" in text


def test_a_record_of_other_tokens_is_refused(run: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match="has none of these sets with these tokens"):
        run("--limit", "3")
    with pytest.raises(FormatError, match="in file order, knowledge kept"):
        run("--limit", "3", "--cold")
    with pytest.raises(SystemExit, match="2"):
        run("--save", "peers.json")


def test_peers_that_run_are_saved(
    run: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("llama_cpp", reason="the peer is llama-cpp-python")
    record = tmp_path / "peers.json"
    report = run("--limit", "5", "--cold", "--run", "--save", record)
    assert "lcp-pld(2,10)" in report["peers"]
    assert "llamacpp-ngram-simple" in report["missing_peers"]
    assert "Missing: llamacpp-ngram-simple" in capsys.readouterr().err
    report = run("--limit", "5", "--cold", "--record", record)
    assert "lcp-pld(2,10)" in report["peers"]
    assert report["knowledge"] == "cold"
