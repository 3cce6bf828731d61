"""Replay token lines through llama.cpp's compiled drafters, by an external program."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ngramspec.errors import BackendError
from ngramspec.lab.replay.tally import ReplayTally


def replay_compiled(program: Path, kind: str, tokens: Path, *, cold: bool = False) -> ReplayTally:
    """Replay a set through one of llama.cpp's drafters.

    Args:
        program: Reads and prints what "The replay program" in benchmarks/README.md describes.
        kind: Such as "ngram-mod".
        tokens: The set, as NAME.txt.
        cold: Ask for a fresh drafter for every request.

    Raises:
        BackendError: The program failed or prints something else.
        OSError: It cannot be started.
    """
    with tokens.open("rb") as lines:
        done = subprocess.run(
            [str(program.absolute()), kind, "1", *(["fresh=1"] if cold else [])],
            stdin=lines,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
        )
    try:
        if done.returncode:
            raise ValueError((done.stderr.strip().splitlines() or ["no message on stderr"])[-1])
        summary = next(line for line in done.stderr.splitlines() if line.startswith("{"))
        return _tally(done.stdout.splitlines(), json.loads(summary))
    except (ValueError, KeyError, IndexError, StopIteration) as error:
        raise BackendError(f"{program} {kind} failed: {error or 'no summary'}") from None


def _tally(lines: Iterable[str], summary: dict[str, Any]) -> ReplayTally:
    drafted: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for line in lines:
        step, mark, draft = line.partition(" :")
        if mark:
            accepted[int(step.split()[-1])] += 1
            drafted[len(draft.split())] += 1
    if drafted.total() != summary["steps"]:
        raise ValueError(f"{drafted.total()} lines for {summary['steps']} steps")
    step_us = summary["draft_us_per_step"] * summary["steps"]
    step_us += summary["accept_us_per_draft"] * summary["drafts"]
    return ReplayTally(
        requests=summary["sessions"],
        draft_lengths=tuple(drafted[n] for n in range(max(drafted, default=0) + 1)),
        accepted_lengths=tuple(accepted[n] for n in range(max(accepted, default=0) + 1)),
        begin_ns=int(summary["begin_us_per_session"] * summary["sessions"] * 1e3),
        step_ns=int(step_us * 1e3),
        nbytes=None,
    )
