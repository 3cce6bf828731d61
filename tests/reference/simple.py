"""ngram-simple: copy what followed the latest earlier occurrence of the newest tokens."""

from __future__ import annotations

from .source import Source, copy_from, occurrences


class SimpleSource(Source):
    """Stateless: the history says everything."""

    def __init__(self, size_n: int = 12, size_m: int = 48, min_hits: int = 1) -> None:
        self.size_n = size_n
        self.size_m = size_m
        self.min_hits = min_hits

    def propose(self, history: list[int], max_tokens: int) -> list[int]:
        return self.propose_after(history, [], max_tokens)

    def propose_after(self, history: list[int], other: list[int], max_tokens: int) -> list[int]:
        text = [*history, *other]
        starts = [p for p in occurrences(text, self.size_n) if p + self.size_n < len(history)]
        if not starts or len(starts) < self.min_hits:
            return []
        return copy_from(text, starts[-1] + self.size_n, self.size_m)
