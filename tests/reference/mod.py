"""ngram-mod: a fixed pool of cells from the hash of n tokens to the token after them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from .source import Source

MULTIPLIER = 6364136223846793005
MAX_POOLED = 4194303  # tokens from here on do not fit a cell
MAX_CONFIDENCE = 3
MAX_STEPS = 1024  # cells that the hand passes for a new entry
MAX_FREED = 2  # that it empties


@lru_cache(1 << 16)
def ngram_hash(tokens: tuple[int, ...]) -> int:
    """The 64-bit hash of an n-gram, oldest token first."""
    value = 0
    for token in tokens:
        value = (value * MULTIPLIER + token) % 2**64
    return value


@dataclass
class Cell:
    """What the pool keeps of one n-gram; the n-gram itself is gone."""

    token: int
    check: int
    confidence: int = 0


class HashPool:
    """The cells in use, by index, and the hand of the clock that empties them."""

    def __init__(
        self, capacity: int = 1 << 22, check_bits: int = 8, max_occupancy: float = 0.5
    ) -> None:
        self.capacity = capacity
        self.check_bits = check_bits
        self.max_occupancy = max_occupancy
        self.cells: dict[int, Cell] = {}
        self.hand = 0

    @property
    def num_used(self) -> int:
        return len(self.cells)

    def index_of(self, token_ids: list[int]) -> int:
        return ngram_hash(tuple(token_ids)) % self.capacity

    def check_of(self, token_ids: list[int]) -> int:
        return ngram_hash(tuple(token_ids)) >> (64 - self.check_bits)

    def lookup(self, token_ids: list[int]) -> int:
        cell = self.cells.get(self.index_of(token_ids))
        if cell is None or cell.check != self.check_of(token_ids):
            return -1
        return cell.token

    def insert(self, token_ids: list[int], token: int) -> None:
        if token >= MAX_POOLED:
            return
        index = self.index_of(token_ids)
        new = Cell(token, self.check_of(token_ids))
        old = self.cells.get(index)
        if old is not None and (old.token, old.check) == (new.token, new.check):
            old.confidence = min(MAX_CONFIDENCE, old.confidence + 1)
            return
        self.cells[index] = new
        if old is None:
            self.make_room(spare=index)

    def make_room(self, spare: int) -> None:
        """Move the hand while too many cells are in use: wear confidence down or empty them."""
        freed = steps = 0
        most = int(self.max_occupancy * self.capacity)
        while self.num_used > most and freed < MAX_FREED and steps < MAX_STEPS:
            index = self.hand
            self.hand = (self.hand + 1) % self.capacity
            steps += 1
            cell = self.cells.get(index)
            if cell is None:
                continue
            if cell.confidence > 0:
                cell.confidence -= 1
            elif index != spare:
                del self.cells[index]
                freed += 1

    def entries(self) -> list[int]:
        """The token of every cell, -1 for an empty one."""
        return [
            self.cells[index].token if index in self.cells else -1 for index in range(self.capacity)
        ]

    def clear(self) -> None:
        self.cells = {}
        self.hand = 0


class ModSource(Source):
    """One slot's view of a pool that slots share."""

    def __init__(
        self, n_match: int = 24, n_min: int = 48, n_max: int = 64, pool: HashPool | None = None
    ) -> None:
        self.n_match = n_match
        self.n_min = min(n_min, n_max)  # more means: full drafts only
        self.n_max = n_max
        self.pool = pool if pool is not None else HashPool()
        self.streak = 0  # newest committed tokens in a row that the pool knew beforehand

    def start(self) -> None:
        self.streak = 0

    def learn(self, history: list[int], start: int, committed: bool) -> None:
        for position in range(start, len(history)):
            token = history[position]
            right = False
            if position >= self.n_match:
                key = history[position - self.n_match : position]
                right = self.pool.lookup(key) == token
                self.pool.insert(key, token)
            if committed:
                self.streak = self.streak + 1 if right else 0

    def propose(self, history: list[int], max_tokens: int) -> list[int]:
        return self.propose_after(history, [], max_tokens)

    def propose_after(self, history: list[int], other: list[int], max_tokens: int) -> list[int]:
        text, streak = [*history, *other], self.streak
        if len(text) < self.n_match:
            return []
        for position in range(max(len(history), self.n_match), len(text)):
            key = text[position - self.n_match : position]
            streak = streak + 1 if self.pool.lookup(key) == text[position] else 0
        extended = list(text)
        while len(extended) - len(text) < self.n_max:
            token = self.pool.lookup(extended[-self.n_match :])
            if token < 0:
                break
            extended.append(token)
        draft = extended[len(text) :]
        return [] if len(draft) + streak < self.n_min else draft
