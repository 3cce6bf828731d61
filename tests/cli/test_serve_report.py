"""The figures that serve prints, at its end and at SIGUSR1."""

from __future__ import annotations

import time
from typing import Any

import pytest

pytest.importorskip("starlette", reason="needs the extra 'server'")

from helpers.backends import int32
from helpers.fake_target import FakeTarget, Oracle
from ngramspec.cli.serve import run
from ngramspec.cli.serve.run import report
from ngramspec.costs import CostTable
from ngramspec.engine import AutoPolicy, Engine, Request, Speculation


def test_passes_without_a_draft_count_as_they_do_for_one_request(
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = FakeTarget()
    engine = Engine(target, Oracle(target), slots=2, policy=AutoPolicy(fixed=4))
    report(engine)
    assert "draft acceptance = 0.0% (0 accepted / 0 drafted)\n" in capsys.readouterr().err
    kinds = (Speculation(), Speculation(enabled=False))
    answers = engine.generate(
        [Request(prompt_ids=int32([9] * 20), max_tokens=11, speculation=one) for one in kinds]
    )
    assert [one.mean_accepted_length for one in answers] == [5.0, 1.0]
    report(engine)
    # Ten tokens in two passes, ten in ten.
    assert f"mean accepted length = {20 / 12:.2f}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("busy", "seconds", "tells"), [("load 3.0", 0.02, 1), ("", 0.02, 0), ("load 3.0", 0.002, 0)]
)
def test_passes_that_others_slow_down_are_told_once(
    busy: str,
    seconds: float,
    tells: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "overload", lambda: busy)
    target = FakeTarget()
    decode = target.decode

    def slow(*arguments: Any) -> None:
        time.sleep(seconds)
        decode(*arguments)

    monkeypatch.setattr(target, "decode", slow)
    engine = Engine(target, None)
    watch = run.SpeedWatch(engine, CostTable(((1, 0.002), (8, 0.004)), "model"))
    for _ in range(3):
        engine.generate([Request(prompt_ids=int32([9] * 20), max_tokens=25)])
        watch.look()
    lines = [line for line in capsys.readouterr().err.splitlines() if "-t with" in line]
    assert len(lines) == tells
