"""What the suffix drafters of many requests share: texts in blocks, found by their contexts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

SIZES = (1, 2, 3, 6, 16)  # tokens of a context, by order
SAME = 4  # positions kept per context
WORDS = 16  # positions kept per line
BLOCK = 256  # tokens
PREFIX = 32  # tokens repeated from before a text
PROMPT, OUTPUT = "prompt", "output"
FACTORS = [pow(6364136223846793005, power, 2**64) for power in range(SIZES[-1])]


@lru_cache(1 << 16)
def context_hash(tokens: tuple[int, ...], order: int) -> int:
    """The 64-bit hash of a context, oldest token first; its bits are spread."""
    value = order
    for factor, token in zip(FACTORS, reversed(tokens), strict=False):
        value += (token + 1) * factor
    value %= 2**64
    value ^= value >> 32
    value = value * 0x9E3779B97F4A7C15 % 2**64
    return value ^ value >> 29


def context_hashes(text: list[int], end: int) -> list[int]:
    """The hashes of the contexts before text[end], shortest first."""
    sizes = enumerate(SIZES)
    return [context_hash(tuple(text[end - size : end]), k) for k, size in sizes if size <= end]


class Lines:
    """Positions by context, newest first; contexts of one line and tag are not told apart."""

    def __init__(self, num_tokens: int) -> None:
        self.num_lines = num_tokens * len(SIZES) // 12 + 1
        self.lines: dict[int, list[tuple[int, int]]] = {}

    def insert(self, text: list[int], end: int, position: int) -> None:
        """Enter all contexts before text[end]."""
        for value in context_hashes(text, end):
            words = self._line(value)
            same = [i for i, (tag, _) in enumerate(words) if tag == self._tag(value)]
            if len(same) >= SAME:
                del words[same[SAME - 1]]
            words.insert(0, (self._tag(value), position))
            del words[WORDS:]

    def find(self, value: int) -> list[int]:
        """Positions that a context was seen at; some may hold another text by now."""
        return [at for tag, at in self._line(value) if tag == self._tag(value)][:SAME]

    def _line(self, value: int) -> list[tuple[int, int]]:
        return self.lines.setdefault((value >> 32) * self.num_lines >> 32, [])

    def _tag(self, value: int) -> int:
        return value >> 25 & 127


@dataclass
class Block:
    """A piece of one request's text, of up to BLOCK tokens; its first may repeat another's last."""

    stream: int
    kind: str
    prev: int = -1  # block that it goes on from
    next: int = -1
    len: int = 0
    stored: int = 0  # indexed tokens
    useful: int = 1
    open: bool = True  # a request still writes to it


@dataclass
class Writer:
    """Where a request writes."""

    block: int = -1
    stream: int = 0
    end: int = -1  # of what was written last, in the request's text


class SuffixPool:
    """Blocks, all in one list of tokens, -1 between texts; position = 256 * block + offset."""

    def __init__(self, capacity: int = 1 << 20) -> None:
        own = BLOCK - PREFIX
        self.num_blocks = -(-capacity // own)
        self.tokens = [-1] * (self.num_blocks * BLOCK)
        self.blocks: list[Block] = []
        self.lines = Lines(self.num_blocks * own)
        self.hand = self.streams = 0
        self.num_tokens = self.num_known = self.num_evicted = 0

    def clear(self) -> None:
        for block in self.blocks:
            block.len = block.stored = block.useful = 0
        self.num_tokens = 0

    def next(self, position: int) -> int:
        """The position after one, -1 at the end of a text."""
        number, after = position // BLOCK, position % BLOCK + 1
        block = self.blocks[number]
        if after < block.len:
            return position + 1 if self.tokens[position + 1] >= 0 else -1
        if after < BLOCK or block.next < 0:
            return -1
        other = self.blocks[block.next]
        goes_on = other.prev == number and other.len > PREFIX
        return block.next * BLOCK + PREFIX if goes_on else -1

    def before(self, position: int) -> int:
        """How many tokens before a position can be compared, -1 when it holds none."""
        number, offset = position // BLOCK, position % BLOCK
        held = number < len(self.blocks) and offset < self.blocks[number].len
        return offset if held and self.tokens[position] >= 0 else -1

    def praise(self, position: int) -> None:
        block = self.blocks[position // BLOCK]
        block.useful = min(8, block.useful + 1)

    def write(self, writer: Writer, text: list[int], start: int, end: int, kind: str) -> None:
        """Store text[start:end], after what was written last; of prompts what is not there yet."""
        block = self.blocks[writer.block] if writer.block >= 0 else None
        goes_on = block is not None and writer.end == start
        running, at = goes_on and block.kind == kind and block.len > 0, -1
        writer.end = -1
        for i in range(start, end):
            if kind == PROMPT:
                at = self._place(text, i, at)
                if at >= 0:
                    running = False
                    self.num_known += 1
                    continue
            if not running and not self._begin_text(writer, text, i, kind):
                return
            if not self._add(writer, text, i):
                return
            running = True
        writer.end = end if running else -1

    def close(self, writer: Writer) -> None:
        if writer.block >= 0:
            self.blocks[writer.block].open = False
        writer.block, writer.stream = -1, 0

    def _place(self, text: list[int], i: int, last: int) -> int:
        """Where text[i] stands after the same PREFIX tokens; `last` is where text[i - 1] does."""
        if last >= 0:
            at = self.next(last)
            if at >= 0 and self.tokens[at] == text[i]:
                return at
        if i < PREFIX:
            return -1
        for at in self.lines.find(context_hashes(text, i)[-1]):
            same = self.tokens[max(0, at - PREFIX) : at] == text[i - PREFIX : i]
            if self.before(at) >= PREFIX and same and self.tokens[at] == text[i]:
                return at
        return -1

    def _begin_text(self, writer: Writer, text: list[int], start: int, kind: str) -> bool:
        """Write a gap and the tokens before text[start]; False when there is no room."""
        before = min(start, PREFIX)
        block = self.blocks[writer.block] if writer.block >= 0 else None
        fits = block is not None and block.kind == kind and block.len + before + 2 <= BLOCK
        if not fits and not self._open(writer, kind):
            return False
        for _ in range(1 if self.blocks[writer.block].len else PREFIX - before):
            self._put(writer, -1)
        for token in text[start - before : start]:
            self._put(writer, token)
        return True

    def _add(self, writer: Writer, text: list[int], i: int) -> bool:
        block = self.blocks[writer.block]
        if block.len == BLOCK:
            last = writer.block
            if not self._open(writer, block.kind):
                return False
            for token in self.tokens[(last + 1) * BLOCK - PREFIX : (last + 1) * BLOCK]:
                self._put(writer, token)
            self.blocks[writer.block].prev, self.blocks[last].next = last, writer.block
            block = self.blocks[writer.block]
        self.lines.insert(text, i, writer.block * BLOCK + block.len)
        self._put(writer, text[i])
        block.stored += 1
        self.num_tokens += 1
        return True

    def _put(self, writer: Writer, token: int) -> None:
        block = self.blocks[writer.block]
        self.tokens[writer.block * BLOCK + block.len] = token
        block.len += 1

    def _open(self, writer: Writer, kind: str) -> bool:
        at = self._free_block()
        if at < 0:
            return False
        self.blocks[at : at + 1] = [Block(writer.stream, kind)]
        if writer.block >= 0:
            self.blocks[writer.block].open = False
        writer.block = at
        return True

    def _free_block(self) -> int:
        """A new block; when all are in use, one that was not right lately; -1 for none."""
        if len(self.blocks) < self.num_blocks:
            return len(self.blocks)
        at = self._least_useful()
        if at >= 0:
            self.num_tokens -= self.blocks[at].stored
            self.num_evicted += self.blocks[at].stored
        return at

    def _least_useful(self) -> int:
        """Wear down what the hand passes, until a block is of no use."""
        best = -1
        for _ in range(64):
            at, self.hand = self.hand, (self.hand + 1) % self.num_blocks
            block = self.blocks[at]
            if block.open:
                continue
            if block.useful == 0:
                return at
            block.useful -= 1
            if best < 0 or block.useful < self.blocks[best].useful:
                best = at
        return best
