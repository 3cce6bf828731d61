"""Replay: recorded texts decoded in a batch by a real model, drafts judged by what was recorded.

The model computes every pass in full, over the newest token of each text and its draft; what it
would choose is brought to the host as in any engine, and is not looked at: the weights are random.
The token that was recorded counts as its choice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from packed_passes import Passes, Timing
from replay_modes import SOURCE, Mode
from replay_texts import Text, Tokens


@dataclass
class Run:
    """What one replay did. Times in seconds, of steps in which all rows decode.

    emitted: tokens; drafted, accepted: tokens of drafts.
    row_steps: passes, each counted for each of its rows.
    seconds: of all steps, from the first draft to the last accepted token; no prompts, no captures.
    draft, accept: of these, in the drafter and its policy, before and after the pass.
    harness: of these, in what is this replay's: laying out inputs, judging drafts, in Python.
    steps: of each, seconds, and passes what the device says of each.
    """

    emitted: int = 0
    drafted: int = 0
    accepted: int = 0
    row_steps: int = 0
    seconds: float = 0.0
    draft: list[float] = field(default_factory=list)
    accept: list[float] = field(default_factory=list)
    harness: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    passes: list[Timing] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Return tokens per second."""
        return self.emitted / self.seconds


def no_mark(name: str) -> AbstractContextManager[Any]:
    """Mark nothing; a profiler's marks have the same shape."""
    return nullcontext()


class Replay:
    """Replays texts on the rows of a batch; a row takes the next text when its own is done.

    It ends when a row is done and no text is left: all steps have a full batch. A text's prompt is
    put into the cache when a row takes it, off the clock.

    Args:
        passes: Runs the model.
        texts: At least one per row.
        rows: Rows of the batch.
        max_draft: Longest draft in tokens.
        mark: Opens a named span, for a profiler.
    """

    def __init__(
        self,
        passes: Passes,
        texts: Sequence[Text],
        rows: int,
        max_draft: int,
        mark: Callable[[str], AbstractContextManager[Any]] = no_mark,
    ) -> None:
        self._passes, self._texts, self._mark = passes, texts, mark
        self._slots = np.arange(rows, dtype=np.int32)
        width = max(len(text.ids) for text in texts)
        self._table = np.zeros((rows, width), np.int32)  # each row's text, its end included
        self._lengths = np.zeros(rows, np.int32)  # tokens of it that are there
        self._ends = np.zeros(rows, np.int32)
        self._drafts = np.zeros((rows, max_draft), np.int32)
        self._parents = np.zeros((rows, max_draft), np.int32)  # where drafts are trees
        self._counts = np.zeros(rows, np.int32)  # tokens of the drafts
        self._width = 0  # most tokens of a draft at one depth, 0 = chains
        self._follows = np.zeros(rows, np.int32)
        self._max_draft = max_draft

    def run(
        self,
        mode: Mode,
        policy: Any,
        max_steps: int = 1 << 30,
        ready: Callable[[], object] = lambda: None,
    ) -> Run:
        """Replay the texts with a fresh drafter and a policy, which may know the model already.

        ready: Called before the first step, when the prompts of all rows are in the cache.
        """
        drafter = mode.make_drafter(len(self._slots), policy)
        self._width = mode.tree_width
        waiting = iter(self._texts)
        self._counts[:] = 0
        for row in range(len(self._slots)):
            self._take(row, next(waiting), drafter, policy)
        self._passes.timings()  # those of others
        ready()
        run = Run()
        while len(run.steps) < max_steps:
            self._step(drafter, policy, run)
            for row in np.flatnonzero(self._lengths >= self._ends).tolist():
                if drafter is not None:
                    drafter.end(row)
                text = next(waiting, None)
                if text is None:
                    run.passes = self._passes.timings()
                    return run
                self._take(row, text, drafter, policy)
        run.passes = self._passes.timings()
        return run

    def _take(self, row: int, text: Text, drafter: Any, policy: Any) -> None:
        """Begin a text: its prompt gives the first token of the output."""
        size, prompt = len(text.ids), text.num_prompt
        self._table[row, :size] = text.ids
        self._lengths[row], self._ends[row] = prompt + 1, size
        self._passes.fill(row, text.ids[:prompt])
        if drafter is not None:
            drafter.begin(row, text.ids[:prompt])
            drafter.accept(row, text.ids[prompt : prompt + 1], 0)
            policy.begin(row)

    def _step(self, drafter: Any, policy: Any, run: Run) -> None:
        """Draft, verify, accept."""
        mark, passes = self._mark, self._passes
        captured, staged = passes.capture_seconds, passes.staging_seconds
        started = time.perf_counter()
        if drafter is not None:
            with mark("propose"):
                self._propose(drafter, policy)
        drafted = time.perf_counter()
        at = self._lengths - 1
        newest: Tokens = self._table[self._slots, at]
        with mark("launch"):
            parents = self._tree()
            passes.launch(newest, at, self._drafts, self._counts, parents)
        with mark("wait"):
            passes.wait()
        verified = time.perf_counter()
        captured = passes.capture_seconds - captured
        with mark("judge"):
            right = self._judge() if parents is None else self._judge_trees()
        judged = time.perf_counter()
        if drafter is not None:
            with mark("accept"):
                self._accept(drafter, policy, right, verified - drafted - captured)
        ended = time.perf_counter()
        run.draft.append(drafted - started)
        run.accept.append(ended - judged)
        run.harness.append(judged - verified + passes.staging_seconds - staged)
        run.steps.append(ended - started - captured)
        run.seconds += run.steps[-1]
        run.emitted += int(right.sum()) + len(right)
        run.drafted += int(self._counts.sum())
        run.accepted += int(right.sum())
        run.row_steps += len(right)

    def _propose(self, drafter: Any, policy: Any) -> None:
        """Draft for all rows, up to one token before the end of each text."""
        room = np.minimum(self._ends - self._lengths - 1, self._max_draft)
        if not policy.weighs:
            most = [policy.limit(row, SOURCE) for row in range(len(room))]
            room = np.minimum(room, most)
        limits = room.astype(np.int32)
        trees = (self._parents, self._width) if self._width else ()
        drafter.propose_batch(self._slots, limits, self._drafts, self._counts, *trees)

    def _tree(self) -> Tokens | None:
        """Return the parents of the drafts if any of them branches."""
        index = np.arange(self._max_draft)
        drafted = index < self._counts[:, None]
        branched = self._width and bool((drafted & (self._parents != index - 1)).any())
        return self._parents if branched else None

    def _judge(self) -> Any:
        """Return how many tokens of each draft were recorded so; take them and one more."""
        index = np.arange(self._max_draft)
        columns = np.minimum(self._lengths[:, None] + index, self._table.shape[1] - 1)
        same = self._drafts == self._table[self._slots[:, None], columns]
        same &= index < self._counts[:, None]
        right = np.logical_and.accumulate(same, axis=1).sum(axis=1)
        self._lengths += right.astype(np.int32) + 1
        return right

    def _judge_trees(self) -> Any:
        """Do the same for trees, and move the tokens of a side branch to where its text is."""
        right = np.zeros(len(self._slots), np.int64)
        moves: list[tuple[int, int, int]] = []
        for row, (count, start) in enumerate(
            zip(self._counts.tolist(), self._lengths.tolist(), strict=True)
        ):
            at = -1
            for node in range(count):
                token = self._table[row, start + right[row]]
                if self._parents[row, node] == at and self._drafts[row, node] == token:
                    if node != right[row]:
                        moves.append((row, start + node, start + int(right[row])))
                    at, right[row] = node, right[row] + 1
        if moves:
            rows, sources, targets = np.array(moves, np.int32).T
            self._passes.move(rows, sources, targets)
        self._lengths += right.astype(np.int32) + 1
        return right

    def _accept(self, drafter: Any, policy: Any, right: Any, seconds: float) -> None:
        """Teach the drafter what was said, and the policy what the pass cost and what it gave."""
        policy.observe(int(self._counts.sum()) + len(right), seconds)
        drafter.follow_batch(self._slots, self._table, self._lengths, self._follows)
        if self._follows.min() < 0:
            raise RuntimeError("the drafter lost a text")  # its figures would mean nothing
        if not policy.weighs:
            for row, (drafted, accepted) in enumerate(
                zip(self._counts.tolist(), right.tolist(), strict=True)
            ):
                if drafted:
                    policy.record(row, SOURCE, drafted, accepted)
