"""ngram-map-k and ngram-map-k4v: as ngram-simple, with a draft length learnt per occurrence."""

from __future__ import annotations

from dataclasses import dataclass

from .source import Source, common_prefix, copy_from, occurrences

MIN_CAP = 4  # a rejected draft never shortens a cap below this (or below size_m, if smaller)
VOTE_FACTOR = 1  # the winner needs at least this many times the votes of all others


@dataclass
class Value:
    """One distinct continuation found by the vote."""

    tokens: list[int]
    start: int  # its newest occurrence
    count: int = 1


class MapSource(Source):
    """`vote` off: ngram-map-k. `vote` on: ngram-map-k4v."""

    def __init__(
        self,
        size_n: int = 12,
        size_m: int = 48,
        min_hits: int = 1,
        vote: bool = False,
        max_values: int = 4,
        window: int = 16,
    ) -> None:
        self.size_n = size_n
        self.size_m = size_m
        self.min_hits = min_hits
        self.vote = vote
        self.max_values = max_values
        self.window = window
        self.caps: list[int] = []  # caps[p] for each start p with a known next token
        self.drafted_from = -1  # the latest occurrence at the last draft

    def rewind(self, length: int) -> None:
        del self.caps[max(0, length - self.size_n) :]

    def learn(self, history: list[int], start: int, committed: bool) -> None:
        while len(self.caps) < len(history) - self.size_n:
            end = len(self.caps) + self.size_n
            earlier = occurrences(history[:end], self.size_n)
            self.caps.append(self.caps[earlier[-1]] if earlier else self.size_m)

    def propose(self, history: list[int], max_tokens: int) -> list[int]:
        return self.propose_after(history, [], max_tokens)

    def propose_after(self, history: list[int], other: list[int], max_tokens: int) -> list[int]:
        text = [*history, *other]
        starts = [p for p in occurrences(text, self.size_n) if p + self.size_n < len(history)]
        if not starts or len(starts) < self.min_hits:
            return []
        chosen = self.elect(text, starts) if self.vote else starts[-1]
        if chosen is None:
            return []
        self.drafted_from = starts[-1]
        return copy_from(text, chosen + self.size_n, self.caps[starts[-1]])

    def elect(self, history: list[int], starts: list[int]) -> int | None:
        """The newest occurrence of the continuation with the most votes, if it has enough."""
        walked = starts[-self.window :]
        values: list[Value] = []
        for start in reversed(walked):
            begin = start + self.size_n
            self.count_vote(values, history[begin : begin + self.size_m], start)
        winner = max(values, key=lambda value: (value.count, value.start))
        if winner.count < VOTE_FACTOR * (len(walked) - winner.count):
            return None
        return winner.start

    def count_vote(self, values: list[Value], tokens: list[int], start: int) -> None:
        """A vote for the first value that agrees, for a new one, or for none at all."""
        for value in values:
            shared = min(len(value.tokens), len(tokens))
            if value.tokens[:shared] == tokens[:shared]:
                value.count += 1
                return
        if len(values) < self.max_values:
            values.append(Value(tokens, start))

    def feedback(self, draft: list[int], committed: list[int]) -> None:
        right = common_prefix(draft, committed)
        cap = self.caps[self.drafted_from]
        if right < min(len(draft), len(committed)):
            cap = max(min(MIN_CAP, self.size_m), min(self.size_m, 2 * right))
        elif right == cap:
            cap = min(self.size_m, 2 * cap)
        self.caps[self.drafted_from] = cap
