"""What a request teaches a suffix drafter: its own lines, the pool, and how right it was."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .source import Source
from .suffix_index import SuffixIndex
from .suffix_model import OWN, POOL, STATIC, Candidate, Choice, Lately, Model, single
from .suffix_pool import OUTPUT, PROMPT, Lines, SuffixPool, Writer


@dataclass
class Record:
    """What was considered for one position of a draft."""

    choices: list[Choice]  # those that were judged
    chosen: Choice
    votes: list[tuple[int, tuple]] = field(default_factory=list)  # token, reliability of the voter
    sure: tuple | None = None  # a unanimous vote that was not judged
    next: dict[int, Record | None] = field(default_factory=dict)  # by the token drafted here


class Learner(Source):
    """One slot; the model is that of all slots of a drafter, the pool perhaps of more."""

    def __init__(
        self,
        max_draft: int = 64,
        min_probability: float = 0.01,
        share: bool = True,
        pool_prompts: bool = True,
        capacity: int = 1 << 20,
        pool: SuffixPool | None = None,
        model: Model | None = None,
        static: SuffixIndex | None = None,
        room: int = 4096,
    ) -> None:
        self.max_draft = max_draft
        self.floor = single(min_probability)
        self.pool = (pool or SuffixPool(capacity)) if share else None
        self.index = static
        self.pool_prompts = pool_prompts
        self.model = model or Model()
        self.writer = Writer()
        self.lately = Lately()
        self.history: list[int] = []  # the driver's own list
        self.first_room = room
        self.room = 0  # tokens that the lines have room for
        self.lines = Lines(0)
        self.num_indexed = self.prompt_len = self.prompt_from = self.output_from = 0
        self.expected = {OWN: -1, POOL: -1, STATIC: -1}  # where the text that was followed goes on
        self.lost = {OWN: 0, POOL: 0, STATIC: 0}  # tokens since it agreed
        self.candidates: list[Candidate] = []  # of the last proposal, as they were found
        self.records: list[Record] = []
        self.base = -1  # length of the history then
        self.limit = 0

    def finish(self) -> None:
        self.give(over=True)
        if self.pool is not None:
            self.pool.close(self.writer)

    def rewind(self, length: int) -> None:
        self.finish()
        if length == 0:
            self.lines.lines.clear()
        self.num_indexed = min(self.num_indexed, length)
        self.prompt_len = self.prompt_from = self.output_from = length
        self.lately.run, self.lately.history = 0, []
        self.forget()

    def forget(self) -> None:
        self.expected = {OWN: -1, POOL: -1, STATIC: -1}
        self.candidates, self.records = [], []

    def learn(self, history: list[int], start: int, committed: bool) -> None:
        self.history = history
        if len(history) > self.room:
            larger = self.room * 3 // 2
            fits = len(history) <= larger
            self.room = larger if fits else max(self.first_room, len(history) * 3 // 2)
            self.lines, self.num_indexed = Lines(self.room), 0
        if committed and self.base == start and (self.candidates or self.records):
            self.compare(start)
            self.candidates, self.records = [], []
        else:
            self.forget()
        for i in range(self.num_indexed, len(history)):
            self.lines.insert(history, i, i)
        self.num_indexed = len(history)
        if not committed:
            self.prompt_len = self.output_from = len(history)
        elif len(history) - self.output_from >= 64:
            self.give(over=False)

    def give(self, over: bool) -> None:
        """Write to the pool what it has not been given yet, the prompt when the request is over."""
        prompt = over and self.pool_prompts and self.prompt_from < self.prompt_len
        if self.pool is None or not (prompt or self.output_from < len(self.history)):
            return
        if self.writer.stream == 0:
            self.pool.streams += 1
            self.writer.stream = self.pool.streams
        start, self.output_from = self.output_from, len(self.history)
        self.pool.write(self.writer, self.history, start, len(self.history), OUTPUT)
        if prompt:
            start, self.prompt_from = self.prompt_from, self.prompt_len
            self.pool.write(self.writer, self.history, start, self.prompt_len, PROMPT)

    def compare(self, start: int) -> None:
        """Compare what was considered with what came."""
        record = self.records[0] if self.records else None
        for i, token in enumerate(self.history[start:]):
            if record is None:
                break
            right = record.chosen.token == token
            if record.sure is not None:
                self.model.sureness(record.sure).learn(right)
            for choice in record.choices:
                self.model.learn(choice, i, choice.token == token)
            for voted, key in record.votes:
                self.model.reliability(key).learn(voted == token)
            if i == 0:
                hits, step = np.float32(self.lately.hits), np.float32(0.1)
                self.lately.hits = float(hits + step * (np.float32(right) - hits))
                self.lately.history = [right, *self.lately.history[:2]]
            self.lately.run = self.lately.run + 1 if right else 0
            record = record.next.get(token)
        self.follow(start, OWN)
        if self.pool is not None:
            self.follow(start, POOL)
        if self.index is not None:
            self.follow(start, STATIC)

    def follow(self, start: int, place: str) -> None:
        """Expect the text to go on where the best candidate's does."""
        num_new = len(self.history) - start
        best, longest, expected = 0, -1, -1
        for candidate in self.candidates:
            if candidate.place != place:
                continue
            right, after = self.agreed(candidate, start)
            if right > best or (right == best > 0 and candidate.run > longest):
                best, longest, expected = right, candidate.run, after
                if place == POOL:
                    self.pool.praise(candidate.position)
        if best:
            self.expected[place] = expected
            self.lost[place] = 0 if best == num_new else 1
            return
        self.lost[place] += num_new
        if self.lost[place] > 16:
            self.expected[place] = -1
        for _ in range(num_new):
            if self.expected[place] >= 0:
                self.expected[place] = self.next(place, self.expected[place])

    def agreed(self, candidate: Candidate, start: int) -> tuple[int, int]:
        """How many new tokens it had right at once, and its place behind all of them, or -1."""
        at, right, agrees = candidate.position, 0, True
        own = candidate.place == OWN
        tokens = self.tokens(candidate.place)
        for token in self.history[start:]:
            if at < 0 or (own and at >= len(self.history)):
                return right, -1
            agrees = agrees and tokens[at] == token
            right += agrees
            at = self.next(candidate.place, at)
        return right, -1 if own and at >= len(self.history) else at

    def tokens(self, place: str) -> list[int]:
        if place == OWN:
            return self.history
        return self.pool.tokens if place == POOL else self.index.tokens

    def next(self, place: str, position: int) -> int:
        if place == OWN:
            return position + 1
        return self.pool.next(position) if place == POOL else self.index.next(position)
