"""A recorded run of recycle: requests with what the target held likely after each token."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from itertools import cycle
from math import log
from typing import Any

from helpers.paths import GOLDEN_DATA
from reference.source import right_path

PATH = GOLDEN_DATA / "recycle.jsonl.gz"
WHOLE = 65535  # probabilities are kept in 65,535ths, as the pool does
TOP = 8
MAX_DRAFT = 16
WIDTHS = (1, 4, 2)  # of the drafts, in turn
SLOTS = 2
NEVER = -30.0  # a log-probability that rounds to 0
DrafterFace = Any  # of helpers.backends


@dataclass(frozen=True)
class Session:
    """One request. Row i: the likeliest tokens after i + 1 tokens of the text, and how likely."""

    prompt: list[int]
    output: list[int]
    rows: list[tuple[list[int], list[int]]]

    def show(self, drafter: DrafterFace, slot: int, first: int, stop: int) -> None:
        """Show a drafter the rows first..stop - 1."""
        ids, logs = [], []
        for tokens, p in self.rows[first:stop]:
            unused = [t for t in range(2 * TOP) if t not in tokens][: TOP - len(tokens)]
            ids.append([*tokens, *unused])
            logs.append([*(log(one / WHOLE) for one in p), *[NEVER] * len(unused)])
        drafter.observe_top(slot, ids, logs, first)


def run(drafter: DrafterFace, sessions: list[Session]) -> list[dict[str, Any]]:
    """Draft for all requests, some slots at a time; return the steps as they are recorded.

    Chains and trees take turns. Each step's rows are shown before what came is committed.
    """
    steps: list[dict[str, Any]] = []
    widths = cycle(WIDTHS)
    for start in range(0, len(sessions), SLOTS):
        running = dict(enumerate(sessions[start : start + SLOTS]))
        for slot, session in running.items():
            drafter.begin(slot, session.prompt)
            session.show(drafter, slot, 0, len(session.prompt) - 1)
        while running:
            for slot, session in list(running.items()):
                done = drafter.length(slot)
                rest = session.output[done - len(session.prompt) :]
                if not rest:
                    del running[slot]
                    continue
                width = next(widths)
                tokens, parents = drafter.propose_tree(slot, MAX_DRAFT, width)
                right = min(right_path((tokens, parents), rest), len(rest) - 1)
                session.show(drafter, slot, done - 1, done)
                drafter.accept(slot, rest[: right + 1], right)
                session.show(drafter, slot, done, done + right)
                steps.append(
                    {"kind": "step", "slot": slot, "session": start + slot, "history_len": done,
                     "width": width, "draft": tokens, "parents": parents, "accepted": right}
                )  # fmt: skip
    return steps


def read() -> tuple[list[Session], list[dict[str, Any]]]:
    """Return the recorded requests and steps."""
    with gzip.open(PATH, "rt", encoding="utf-8") as lines:
        _, *rows = [json.loads(line) for line in lines]
    sessions = []
    for row in rows:
        if row["kind"] == "session":
            pairs = [(one[: len(one) // 2], one[len(one) // 2 :]) for one in row["rows"]]
            sessions.append(Session(row["prompt"], row["output"], pairs))
    return sessions, [row for row in rows if row["kind"] == "step"]


def write(sessions: list[Session], steps: list[dict[str, Any]]) -> None:
    """Write requests and steps, a line each."""
    header = {
        "kind": "header", "drafter": "recycle", "params": {}, "slots": SLOTS,
        "sessions": len(sessions), "steps": len(steps),
        "loop": f"{SLOTS} requests at a time, drafts of {MAX_DRAFT} tokens, as wide as {WIDTHS}",
    }  # fmt: skip
    lines = [header]
    for i, one in enumerate(sessions):
        rows = [[*tokens, *p] for tokens, p in one.rows]
        lines.append(
            {"kind": "session", "id": i, "prompt": one.prompt, "output": one.output, "rows": rows}
        )
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in [*lines, *steps])
    PATH.write_bytes(gzip.compress(text.encode(), mtime=0))
