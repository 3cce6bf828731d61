"""The limits of a rendering, by Jinja or Go: templates are untrusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ngramspec.errors import InputError

MOST_STEPS = 1_000_000  # for a client, whatever it sends


@dataclass(frozen=True)
class RenderLimits:
    """The bounds of a rendering, or of several that share a budget.

    steps: Nodes, items of ranges and arguments; a thousand messages take up to 550,000 (Gemma 4).
    characters: Of the output and of all texts that functions return, together.
    depth: Blocks, parentheses and templates inside one another.
    """

    steps: int = 2_000_000
    characters: int = 64 << 20
    depth: int = 80

    @classmethod
    def for_data(cls, *data: object) -> RenderLimits:
        """Return limits for the data of a client.

        A step takes one or two microseconds, so no template runs much longer than a second. Known
        templates take up to 17 steps per value, or some that grow with the square of the messages.
        """
        texts, values = _measure(data)
        return cls(min(800_000 + 20 * values, MOST_STEPS), (1 << 20) + 16 * texts)


def _measure(data: object) -> tuple[int, int]:
    """Return the characters of all texts in JSON data, and how many values there are."""
    texts = values = 0
    left = [data]
    while left:
        value = left.pop()
        values += 1
        if isinstance(value, str):
            texts += len(value)
        elif isinstance(value, Mapping):
            texts += sum(map(len, value))
            left += value.values()
        elif isinstance(value, list | tuple):
            left += value
    return texts, values


class Budget:
    """What is left of the limits; using more raises InputError.

    limits: Default: RenderLimits().
    """

    def __init__(self, limits: RenderLimits | None = None) -> None:
        self.limits = limits = limits or RenderLimits()
        self.steps = limits.steps
        self.characters = limits.characters
        self.depth = 0

    def step(self, count: int = 1) -> None:
        self.steps -= count
        if self.steps < 0:
            raise InputError(f"the template takes more than {self.limits.steps} steps")

    def text(self, text: str) -> str:
        """Count a text's characters against the limit; return the text."""
        self.size(len(text))
        return text

    def size(self, count: int) -> None:
        self.characters -= count
        if self.characters < 0:
            most = self.limits.characters
            raise InputError(f"the template makes more than {most} characters of text")

    def enter(self) -> None:
        self.depth += 1
        if self.depth > self.limits.depth:
            raise InputError(f"the template is nested deeper than {self.limits.depth} levels")

    def leave(self) -> None:
        self.depth -= 1
