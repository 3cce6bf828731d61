"""Batch: one batch size of a replay, with what its rounds have in common."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from messages import say
from packed_passes import Passes
from replay_loop import Replay, Run
from replay_modes import Mode
from replay_options import make_passes
from replay_texts import Text


class Batch:
    """Passes over a cache of its own, the texts, and a policy per mode, which goes on learning.

    Args:
        model: From make_model.
        options: Settled ones.
        rows: Texts at a time.
        texts: At least as many.
        modes: What is compared.
        max_steps: Of one run.

    A group for run_rounds.
    """

    def __init__(
        self,
        model: Any,
        options: argparse.Namespace,
        rows: int,
        texts: Sequence[Text],
        modes: Sequence[Mode],
        max_steps: int = 1 << 30,
    ) -> None:
        self.rows, self.name = rows, f"batch {rows}"
        self.texts, self._max_draft = texts, options.max_draft
        self.passes: Passes = make_passes(model, options, rows, options.prompts)
        self.replay = Replay(self.passes, texts, rows, options.max_draft)
        self._modes, self._max_steps = modes, max_steps
        self.policies: dict[Mode, Any] = {}
        self.restart()

    @property
    def once(self) -> float:
        """Return the seconds spent on capturing graphs."""
        return self.passes.capture_seconds

    def restart(self) -> None:
        """Make fresh policies."""
        self.policies = {mode: mode.make_policy(self._max_draft) for mode in self._modes}

    def run(self, mode: Mode) -> Run:
        """Replay the texts."""
        run = self.replay.run(mode, self.policies[mode], self._max_steps)
        say(f"{self.name}: {mode.name} {run.rate:.0f} tokens/s")
        return run


def facts_of(passes: Passes) -> dict[str, Any]:
    """Return how passes ran, and how many of each size."""
    return {
        "graphs": passes.graphs,
        "graph_error": passes.graph_error,
        "eager_sizes": [[*size] for size in sorted(passes.eager_sizes)],
        "attention_parts_error": passes.parts_error,
        "capture_seconds": passes.capture_seconds,
        "sizes": [[*size, count] for size, count in sorted(passes.sizes.items())],
    }
