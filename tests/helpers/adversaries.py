"""Drafters written to do harm; they follow the contract of the native Drafter."""

from __future__ import annotations

from typing import Any

import numpy as np

from ngramspec.errors import InputError


class FakeDrafter:
    """Records calls and proposes what `plan(history, limit)` says."""

    sources = ("fake",)
    policy = None
    top = 0

    def __init__(self, plan: Any = None, slots: int = 4) -> None:
        self.slots = slots
        self.histories: dict[int, np.ndarray] = {}
        self.follows: list[tuple[int, int]] = []
        self.limits: list[int] = []
        self.plan = plan or (lambda history, limit: [])

    def follow(self, slot: int, token_ids: np.ndarray, vocab_size: int = 0) -> int:
        if token_ids.min(initial=0) < 0 or token_ids.max(initial=0) >= (vocab_size or 2**31):
            raise InputError(f"token_ids must hold token ids in 0..{vocab_size - 1}")
        before = self.histories.get(slot, np.empty(0, np.intc))
        self.histories[slot] = token_ids.copy()
        same = token_ids.size >= before.size and np.array_equal(token_ids[: before.size], before)
        self.follows.append((slot, 0 if same and before.size else -1))
        return self.follows[-1][1]

    def accept(self, slot: int, token_ids: np.ndarray, num_accepted: int) -> None:
        self.histories[slot] = np.append(self.histories[slot], token_ids)

    def propose(self, slot: int, max_tokens: int) -> np.ndarray:
        self.limits.append(max_tokens)
        return np.array(self.plan(self.histories[slot], max_tokens), dtype=np.int32)

    def shorten(self, slot: int, length: int) -> None:
        pass

    def stats(self) -> dict[str, Any]:
        return {}


def garbage(n_vocab: int, seed: int = 0) -> FakeDrafter:
    """Propose random tokens of the vocabulary, end tokens and ids beyond it included."""
    rng = np.random.default_rng(seed)
    return FakeDrafter(lambda history, limit: rng.integers(0, n_vocab + 5, size=limit))


def half_right(answers: list[list[int]], n_vocab: int, seed: int = 0) -> FakeDrafter:
    """Propose the known answer up to a random place, then wrong tokens: rollbacks of any length."""
    rng = np.random.default_rng(seed)
    texts = [np.array(answer, dtype=np.int32) for answer in answers]

    def plan(history: np.ndarray, limit: int) -> np.ndarray:
        size = history.size
        matches = [t for t in texts if t.size > size and np.array_equal(t[:size], history)]
        draft = matches[0][size : size + limit].copy() if matches else np.empty(0, np.int32)
        cut = int(rng.integers(0, draft.size + 1)) if draft.size else 0
        draft[cut:] = rng.integers(0, n_vocab, size=draft.size - cut)
        return draft

    return FakeDrafter(plan)
