"""Difference: where a text with drafts departs from the one without, and by what margin."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ngramspec.engine import Generation, Request, Sampling
from ngramspec.engine.request import MAX_LOGPROBS
from ngramspec.lab.e2e.bench import first_difference


@dataclass(frozen=True)
class Difference:
    """Where a text with drafts departs from the one without.

    position: Index of the first token that differs.
    expected, got: That token without and with drafts, -1 if the text had ended.
    margin: By how many logits the model, asked once more, prefers `expected`. None: one of the
        texts ended, or one of the tokens is not among the 1,000 likeliest.
    """

    position: int
    expected: int
    got: int
    margin: float | None

    def line(self) -> str:
        """Return it in words."""
        where = f"the texts part at token {self.position + 1}"
        if min(self.expected, self.got) < 0:
            return f"{where}, where one of them ends"
        if self.margin is None:
            return f"{where}, where one of the two candidates is unlikely"
        return f"{where}, where the two candidates are {abs(self.margin):.4f} logits apart"


def find_difference(
    prompt_ids: npt.NDArray[np.int32],
    expected: Iterable[int],
    got: Iterable[int],
    run: Callable[[Request], Generation],
) -> Difference | None:
    """Return where `got` departs from `expected`, None if they are equal.

    Args:
        prompt_ids: int32, what both texts continue.
        expected: The token ids without drafts.
        got: The token ids with drafts.
        run: Runs a request on the model, which is asked once where the texts part.

    Raises:
        As run.
    """
    expected, got = [int(t) for t in expected], [int(t) for t in got]
    position = first_difference(expected, got)
    if position is None:
        return None
    a = expected[position] if position < len(expected) else -1
    b = got[position] if position < len(got) else -1
    if a < 0 or b < 0:
        return Difference(position, a, b, None)
    prefix = np.concatenate([prompt_ids, np.array(expected[:position], dtype=np.int32)])
    asked = Request(
        prompt_ids=prefix,
        max_tokens=1,
        sampling=Sampling(temperature=0, ignore_eos=True),
        logprobs=MAX_LOGPROBS,
        cache_prompt=False,
    )
    likely = dict(run(asked).logprobs[0].top)
    margin = likely[a] - likely[b] if a in likely and b in likely else None
    return Difference(position, a, b, margin)
