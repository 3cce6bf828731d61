"""Ways of drafting measured in turns on held-out requests."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from helpers.backends import int32
from helpers.fake_target import FakeTarget
from ngramspec.lab.e2e.bench import Bench, Mode
from ngramspec.lab.e2e.bench import Run as OneRun
from ngramspec.lab.recordings import RecordedRequest
from ngramspec.lab.tune.candidates import Candidate
from ngramspec.lab.tune.measured import measure
from ngramspec.runtime import DraftSetup


def test_no_way_of_drafting_is_always_first(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    inner = Bench._run

    def watched(self: Bench, mode: Mode, request: Any, *prompt: Any) -> OneRun:
        if request.max_tokens == 20:  # not to warm up
            ran.append(mode.spec)
        return inner(self, mode, request, *prompt)

    monkeypatch.setattr(Bench, "_run", watched)
    requests = [RecordedRequest(int32([3, 5, n]), int32([1] * 20)) for n in (7, 8)]
    found = measure(FakeTarget(), requests, Candidate("ngram-cache", {}, True), {}, DraftSetup())
    ways = [row.name for row in found.rows]
    assert ways == ["none", "default", "recommended"]
    assert Counter(ran) == dict.fromkeys(ways, 6)
    assert Counter(ran[::3]) == dict.fromkeys(ways, 2)
    assert [row.same for row in found.rows] == [2, 2, 2]
