"""The grammar of any text up to a mark."""

from __future__ import annotations

from ngramspec.server.structured.gbnf import Rules, class_char, literal


def until(rules: Rules, mark: str) -> str:
    """Add rules for any text that ends with the first mark in it, and return the first's name.

    Args:
        rules: The grammar.
        mark: One character or more.

    Cost: one rule per character of the mark: rule i follows a text that ends with its first i.
    """
    names = [rules.reserve("until") for _ in mark]
    for size, name in enumerate(names):
        known = {char: _longest_start(mark[:size] + char, mark) for char in dict.fromkeys(mark)}
        parts = [
            literal(char) if end == len(mark) else f"{literal(char)} {names[end]}"
            for char, end in known.items()
            if end
        ]
        others = "".join(class_char(char) for char, end in known.items() if end)
        rules.set(name, " | ".join([f"[^{others}] {names[0]}", *parts]))
    return names[0]


def _longest_start(text: str, mark: str) -> int:
    """Return how many characters at the end of a text are the beginning of a mark."""
    sizes = range(min(len(text), len(mark)), 0, -1)
    return next((size for size in sizes if text.endswith(mark[:size])), 0)
