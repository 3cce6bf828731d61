"""What the tests of Ollama's routes share."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from helpers.paths import ROOT
from helpers.serving import CODE, Serving, wait_until

ANSWER = f"```python\n{CODE}```"
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


@contextlib.contextmanager
def command(folder: Path, *arguments: str, store: Path | None = None) -> Iterator[tuple[str, Path]]:
    """Run `ngramspec serve` on a free port; its URL and what it writes to stderr.

    store: Ollama's folder of models, as OLLAMA_MODELS names it.
    """
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LLAMA_", "OLLAMA_"))}
    log = folder / "stderr.txt"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "ngramspec", "serve", "--port", "0", *arguments],
            stderr=stderr,
            env={**clean, "OLLAMA_MODELS": str(store or folder / "none")},
            cwd=ROOT,
        )
    try:
        wait_until(lambda: "listening on" in log.read_text() or process.poll() is not None)
        match = re.search(r"listening on (\S+)", log.read_text())
        assert match is not None, log.read_text()
        yield match[1], log
    finally:
        process.terminate()
        assert process.wait(30) == 0
