"""What the tests of Ollama's routes share."""

from __future__ import annotations

import json
import re
from typing import Any

from helpers.serving import Serving

GREEDY = {"temperature": 0, "num_predict": 64}
DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z")


def lines(server: Serving, path: str, **body: Any) -> list[dict[str, Any]]:
    """Return the lines of a stream as they are."""
    answer = server.post(path, model="tiny", **body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.text.endswith("\n")
    return [json.loads(line) for line in answer.text.splitlines()]


def check_figures(last: dict[str, Any]) -> None:
    """Check that counts and times are integers that belong together."""
    drafts = {name for name in last if name.startswith("draft_n")}
    assert drafts in (set(), {"draft_n", "draft_n_accepted"})  # as in llama-server's timings
    for name in (*DURATIONS, "prompt_eval_count", "eval_count", *drafts):
        assert type(last[name]) is int, name
        assert last[name] >= 0, name
    assert sum(last[name] for name in DURATIONS[1:]) <= last["total_duration"] < 60e9
    assert last["eval_duration"] > 0
    assert last["prompt_eval_duration"] > 0
    if drafts:
        assert last["draft_n_accepted"] <= min(last["draft_n"], last["eval_count"])
        assert last["draft_n"] > 0
