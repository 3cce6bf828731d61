"""Whether two texts are the same, and if not, where and how narrowly they part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ngramspec.bench.rounds import first_difference


@dataclass(frozen=True)
class Parting:
    """Where a text with drafts leaves the one without.

    position: index of the first token that differs.
    expected, got: that token without and with drafts, -1 where the text had ended.
    margin: by how many logits the model, asked once more, prefers `expected`; None if one ended.
    """

    position: int
    expected: int
    got: int
    margin: float | None

    def line(self) -> str:
        """Return it in words."""
        if self.margin is None:
            return f"the texts part at token {self.position + 1}, where one of them ends"
        return (
            f"the texts part at token {self.position + 1}, "
            f"where the two candidates are {abs(self.margin):.4f} logits apart"
        )


def find_parting(
    llama: Any, prompt_ids: Sequence[int], expected: Iterable[int], got: Iterable[int]
) -> Parting | None:
    """Return where `got` leaves `expected`, None if they are equal; evaluates the prefix anew."""
    from ngramspec.cli.model import logit_margin

    expected, got = [int(t) for t in expected], [int(t) for t in got]
    position = first_difference(expected, got)
    if position is None:
        return None
    a = expected[position] if position < len(expected) else -1
    b = got[position] if position < len(got) else -1
    if a < 0 or b < 0:
        return Parting(position, a, b, None)
    prefix = [*prompt_ids, *expected[:position]]
    return Parting(position, a, b, logit_margin(llama, prefix, a, b))
