"""The figures that serve prints, at its end and at SIGUSR1."""

from __future__ import annotations

import pytest

pytest.importorskip("starlette", reason="needs the extra 'server'")

from helpers.backends import int32
from helpers.fake_target import FakeTarget, Oracle
from ngramspec.cli.serve.run import report
from ngramspec.engine import AutoPolicy, Engine, Request, Speculation


def test_passes_without_a_draft_count_as_they_do_for_one_request(
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = FakeTarget()
    engine = Engine(target, Oracle(target), slots=2, policy=AutoPolicy(fixed=4))
    report(engine)
    assert "mean accepted length =  0.00\n" in capsys.readouterr().err
    wanted = (Speculation(), Speculation(enabled=False))
    made = engine.generate(
        [Request(prompt_ids=int32([9] * 20), max_tokens=11, speculation=one) for one in wanted]
    )
    assert [one.mean_accepted_length for one in made] == [5.0, 1.0]
    report(engine)
    # Ten tokens in two passes, ten in ten.
    assert f"mean accepted length = {20 / 12:5.2f}\n" in capsys.readouterr().err
