"""A target without a model, and drafters that are right, wrong or broken on purpose.

The next token is a function of the last few, repetitive by choice. The target keeps the tokens of
every sequence and refuses what llama.cpp would refuse: gaps in positions, batches that are too
large, rollbacks that its kind of memory cannot do.
"""

from __future__ import annotations

import codecs
import functools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from ngramspec._native.engine.decode import Batch, GreedySampler, Rows, Sampler
from ngramspec.costs import CostTable
from ngramspec.engine import DraftSource, Sampling
from ngramspec.engine.request import Adapters
from ngramspec.errors import BackendError, CapacityError

END = 0
SPLIT = (b"a", b"b", "é".encode(), b"\xe2", b"\x82", b"\xac", b"\xf0\x9f", b"\x98\x80", b"ab")


@functools.cache
def choice(seed: int, number: int) -> int:
    """Return the first random number below a number that a seed gives."""
    return random.Random(seed).randrange(number)


class FakeTarget:
    """Implements ngramspec.engine.Target.

    Args:
        period: Texts repeat themselves with this period after a while; 0 = they never do.
        max_rollback, can_save, min_copy: What the memory can do.
        contiguous: Slots had better stand side by side.
        cells: Tokens that all sequences hold together, None = enough.
        shares_copies: A copy takes no cells of its own.
        end_every: About one token in so many is the end token; 0 = none.
        refusal: Share of the rollbacks that it refuses although its kind of memory could.
        split: Tokens are parts of characters, some of them of no valid one.
        costs: What a decode takes by `now`, its own clock; None = nothing.
        no_shift: Why tokens cannot move.
        max_branches: Of a tree.
        forks: The text is made of so many phrases of five tokens, which begin alike; 0 = it is not.
        window: Tokens that attention looks back on; what is loaded lacks those behind it. 0 = all.
    """

    def __init__(
        self,
        *,
        vocab_size: int = 97,
        sequences: int = 4,
        context_size: int = 256,
        max_batch: int = 64,
        max_outputs: int = 0,
        period: int = 11,
        max_rollback: int | None = None,
        can_save: bool = False,
        min_copy: int | None = 32,
        contiguous: bool = False,
        exact_batch: int = 64,
        cells: int | None = None,
        shares_copies: bool = False,
        end_every: int = 0,
        refusal: float = 0.0,
        split: bool = False,
        costs: CostTable | None = None,
        no_shift: str = "",
        max_branches: int = 4,
        forks: int = 0,
        window: int = 0,
    ) -> None:
        self.vocab_size = vocab_size
        self.num_sequences = sequences
        self.context_size = context_size
        self.max_batch = max_batch
        self.max_outputs = max_outputs
        self.max_rollback = max_rollback
        self.can_save = can_save
        self.min_copy = min_copy
        self.contiguous = contiguous
        self.no_shift, self.shares_copies = no_shift, shares_copies
        self.identity = b"the fake target."
        self.exact_batch = exact_batch
        self.forks = forks
        self.max_branches = max_branches
        self.no_branches = "" if max_branches > 1 else "this target knows none"
        self.branch_bytes = self.state_bytes = 0
        self.num_adapters = 2
        self.adapters: Adapters = ()
        self.computed_with: list[Adapters] = [()] * sequences
        self.period = period
        self.cells = cells
        self.end_every = end_every
        self.refusal, self.chance = refusal, random.Random(0)
        self.split = split
        self.costs, self.now, self.aside = costs, 0.0, 0.0
        self.held: list[list[int]] = [[] for _ in range(sequences)]
        self.window = window
        self.first = [0] * sequences  # tokens that are behind the window of what was loaded
        self.copied: list[list[object]] = [[] for _ in range(sequences)]  # cells of first tokens
        # By sequence, then branch: what it holds after a tree; the sequence itself holds branch 0.
        self.others: list[dict[int, list[int]]] = [{} for _ in range(sequences)]
        self.adopted = 0  # branches other than the first one that were right
        self.undoable = [0] * sequences  # tokens of the last decode
        self.batches: list[int] = []  # sizes of all decodes
        self.fail_next: Exception | None = None

    def next_token(self, tokens: list[int]) -> int:
        """Return what this model says after the tokens."""
        position = len(tokens)
        if self.adapters:  # another model: what it says depends on the scales
            number = hash(self.adapters) + tokens[-1] * 31 + position
            return 1 + number % (self.vocab_size - 1)
        if self.end_every and (sum(tokens) * 31 + position) % self.end_every == 0:
            return END
        if self.forks:
            phrase, offset = divmod(position, 5)
            fork = choice(phrase * 1000 + tokens[0], self.forks)
            place = offset and offset + 4 * fork
            return 1 + place % (self.vocab_size - 1)
        if self.period:
            return 1 + (tokens[0] * 7 + position % self.period) % (self.vocab_size - 1)
        mixed = (tokens[-1] * 2654435761 + position * 40503 + tokens[0]) & 0xFFFFFFFF
        return 1 + (mixed >> 7) % (self.vocab_size - 1)

    def adapt(self, adapters: Adapters) -> None:
        self.adapters = adapters

    def decode(self, batch: Batch, rows: Rows) -> None:
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        if len(batch) > self.max_batch:
            raise BackendError("batch too large")
        if self.max_outputs and batch.num_outputs > self.max_outputs:
            raise BackendError("too many rows of logits")
        assert not any(self.others), "branches of the last tree were not taken back"
        tokens, positions, sequences, outputs = batch.arrays()
        if self.cells is not None and self.used() + tokens.size > self.cells:
            raise CapacityError("no room")
        self.batches.append(len(batch))
        self.now += self.costs.cost(len(batch)) if self.costs else 0.0
        logits = []
        self.undoable = [0] * self.num_sequences
        before = [len(held) for held in self.held]
        for token, position, sequence, output, branches in zip(
            *(part.tolist() for part in (tokens, positions, sequences, outputs)),
            batch.branches_of().tolist(),
            strict=True,
        ):
            own = [b for b in range(self.max_branches) if branches >> b & 1]
            assert own, "a token belongs to no branch"
            assert branches < 1 << self.max_branches, "there are not that many branches"
            held = self.held[sequence]
            if not before[sequence]:
                self.computed_with[sequence] = self.adapters
            assert self.computed_with[sequence] == self.adapters, "computed with other adapters"
            assert 0 <= token < self.vocab_size
            assert position < self.context_size
            for branch in own:
                if branch:
                    texts = self.others[sequence]
                    if branch not in texts:
                        texts[branch] = self.held[sequence][: before[sequence]]
                    held = texts[branch]
                else:
                    held = self.held[sequence]
                    self.undoable[sequence] += 1
                assert position == len(held), "positions must follow one another"
                held.append(token)
            if output:
                logits.append(self.row(held))
        rows.set(np.array(logits, np.float32).reshape(len(logits), self.vocab_size))

    def row(self, tokens: list[int]) -> np.ndarray:
        """Return the logits after the tokens."""
        row = np.full(self.vocab_size, -5.0, np.float32)
        row[self.next_token(tokens)] = 5.0
        return row

    def used(self) -> int:
        """Return how many cells hold a token."""
        shared = [cell for own in self.copied for cell in own]
        return sum(map(len, self.held)) - len(shared) + len(set(shared))

    def truncate(self, sequence: int, length: int) -> bool:
        held = self.held[sequence]
        back = len(held) - length
        limited = length > 0 and self.max_rollback is not None
        if limited and back > min(self.max_rollback or 0, self.undoable[sequence]):
            return False
        if length and back > 0 and self.chance.random() < self.refusal:
            return False
        if 0 < length < len(held) and self.first[sequence] > max(0, length - self.window + 1):
            return False
        if not length:
            self.first[sequence] = 0
        del held[length:], self.copied[sequence][length:]
        self.others[sequence].clear()
        return True

    def adopt(self, sequence: int, branch: int) -> bool:
        assert branch >= 1
        if self.chance.random() < self.refusal:
            held = self.held[sequence]
            del held[len(held) - self.undoable[sequence] :]
            return False
        self.held[sequence] = self.others[sequence][branch]
        self.adopted += 1
        return True

    def copy(self, source: int, sequence: int, length: int) -> None:
        assert self.min_copy is not None
        assert not self.held[sequence]
        assert not self.window
        self.held[sequence] = self.held[source][:length]
        if self.shares_copies:
            own = self.copied[source]
            own += [object() for _ in range(length - len(own))]
            self.copied[sequence] = own[:length]
        self.computed_with[sequence] = self.computed_with[source]

    def shift(self, sequence: int, first: int, count: int) -> bool:
        assert not self.no_shift
        held = self.held[sequence]
        assert 0 <= first < first + count < len(held)
        del held[first : first + count]
        behind = self.first[sequence]
        self.first[sequence] = min(behind, max(first, behind - count))
        self.undoable[sequence] = 0
        return True

    def save(self, sequence: int) -> Any:
        assert self.can_save or self.window
        return self.dump(sequence)

    def restore(self, sequence: int, state: Any, length: int) -> bool:
        assert self.can_save or self.window
        tokens = state.view(np.int32).tolist()
        assert len(tokens) == length
        if self.chance.random() < self.refusal:
            return False
        if self.window:
            assert self.held[sequence][:length] == tokens, "the window is another text's"
            self.first[sequence] = max(0, length - self.window)
        self.held[sequence] = tokens
        self.others[sequence].clear()  # when it was saved it had no branches
        return True

    def dump(self, sequence: int, most: int | None = None) -> np.ndarray:
        state = np.array(self.held[sequence], np.int32).view(np.uint8)
        return state[:0] if most is not None and state.nbytes > most else state

    def load(self, sequence: int, state: np.ndarray, length: int) -> bool:
        assert not self.held[sequence]
        tokens = state.view(np.int32).tolist()
        assert len(tokens) == length
        if self.cells is not None and self.used() + length > self.cells:
            return False
        self.held[sequence] = tokens
        self.first[sequence] = max(0, length - self.window) if self.window else 0
        return True

    def sampler(self, sampling: Sampling, seed: int) -> Sampler:
        return GreedySampler()

    def piece(self, token_id: int, special: bool) -> bytes:
        if token_id == END:
            return b"<end>" if special else b""
        return SPLIT[token_id % len(SPLIT)] if self.split else b" %d" % token_id

    def is_end(self, token_id: int) -> bool:
        return token_id == END

    def expected(self, prompt: list[int], max_tokens: int) -> list[int]:
        """Return what plain decoding emits: the reference."""
        tokens = list(prompt)
        while len(tokens) - len(prompt) < max_tokens and len(tokens) < self.context_size:
            token = self.next_token(tokens)
            if token == END:
                break
            tokens.append(token)
        return tokens[len(prompt) :]

    def endless(
        self, prompt: list[int], num_tokens: int, num_keep: int = 0, num_discard: int = 0
    ) -> list[int]:
        """Return what plain decoding emits in contexts that shift, obvious and slow."""
        held, emitted = list(prompt), list[int]()
        keep = min(len(prompt) if num_keep < 0 else num_keep, self.context_size - 4)
        while len(emitted) < num_tokens:
            if len(held) == self.context_size:  # the newest token is not in the cache yet
                left = self.context_size - 1 - keep
                count = min(num_discard or left // 2, left - 1)
                held = held[:keep] + held[keep + count :]
            token = self.next_token(held)
            if token == END:
                break
            held.append(token)
            emitted.append(token)
        return emitted

    def outcome(
        self, prompt: list[int], max_tokens: int = -1, stops: Sequence[str] = ()
    ) -> tuple[list[int], str, str]:
        """Return tokens, text and finish reason of plain decoding, obvious and slow."""
        most = max_tokens if max_tokens >= 0 else self.context_size
        tokens = self.expected(prompt, most)
        decode, text = codecs.getincrementaldecoder("utf-8")("replace").decode, ""
        for count, token in enumerate(tokens if stops else (), start=1):
            text += decode(self.piece(token, False))
            places = [text.find(stop) for stop in stops if stop in text]
            if places:
                return tokens[:count], text[: min(places)], "stop"
        pieces = b"".join(self.piece(token, False) for token in tokens)
        full = len(tokens) == most or len(tokens) + len(prompt) == self.context_size
        return tokens, pieces.decode("utf-8", "replace"), "length" if full else "stop"


class Oracle(DraftSource):
    """A drafter that knows the target: right with a chance, else wrong from a random place on.

    It notes in `complaints` what an engine must not do to a drafter.
    """

    name = "oracle"

    def __init__(self, target: FakeTarget, right: float = 1.0, seed: int = 0) -> None:
        self.target, self.right, self.chance = target, right, random.Random(seed)
        self.texts: dict[int, list[int]] = {}
        self.drafts: dict[int, list[int]] = {}
        self.complaints: list[str] = []
        self.begun = self.ended = 0

    def begin(self, slot: int, token_ids: np.ndarray) -> None:
        self.check(slot not in self.texts, "begin of a slot that is active")
        self.texts[slot], self.drafts[slot] = token_ids.tolist(), []
        self.begun += 1

    def draft(self, slot: int, limit: int) -> np.ndarray:
        self.check(slot in self.texts, "propose before begin")
        self.check(limit > 0, "propose without room")
        draft = self.target.expected(self.texts[slot], limit)
        if draft and self.chance.random() >= self.right:
            place = self.chance.randrange(len(draft))
            draft[place] = 1 + (draft[place] + 1) % (self.target.vocab_size - 1)
        self.drafts[slot] = draft
        return np.array(draft, dtype=np.int32)

    def accept(self, slot: int, token_ids: np.ndarray, num_accepted: int) -> None:
        self.check(slot in self.texts, "accept before begin")
        tokens = token_ids.tolist()
        self.check(num_accepted <= len(tokens), "more accepted than emitted")
        accepted = tokens[:num_accepted]
        self.check(self.drafts[slot][:num_accepted] == accepted, "accepted was not drafted")
        self.texts[slot] += tokens
        self.drafts[slot] = []

    def end(self, slot: int) -> None:
        self.check(slot in self.texts, "end before begin")
        del self.texts[slot]
        self.ended += 1

    def check(self, condition: bool, complaint: str) -> None:
        if not condition:
            self.complaints.append(complaint)


class Garbage(DraftSource):
    """A drafter whose drafts are wrong, and now and then not even drafts."""

    name = "garbage"

    def __init__(self, vocab_size: int, seed: int = 0, broken: bool = True) -> None:
        self.vocab_size, self.chance, self.broken = vocab_size, random.Random(seed), broken
        self.buffer = np.zeros(64, dtype=np.int32)  # the same for every draft

    def draft(self, slot: int, limit: int) -> Any:
        self.scribble()
        if not self.broken or self.chance.random() < 0.8:
            return self.buffer[:limit]
        ids = [self.chance.randrange(-2, self.vocab_size + 2) for _ in range(limit + 3)]
        wrong: list[Any] = [
            np.array(ids, np.int32), np.array(ids, np.int64), np.array(ids, np.float32), ids,
            np.array([ids], np.int32), np.int32(3), None, 7, "text", [1.5], [2**40], [[1]], [END],
            np.array([END, 1], np.int32), np.full(limit + 9, 2, np.int32)[::2], [1, 2], (3,),
        ]  # fmt: skip
        return self.chance.choice(wrong)

    def accept(self, slot: int, token_ids: np.ndarray, num_accepted: int) -> None:
        self.scribble()

    def scribble(self) -> None:
        self.buffer[:] = self.chance.choices(range(self.vocab_size), k=self.buffer.size)


class Failing(DraftSource):
    """A drafter that raises now and then, otherwise another one."""

    name = "failing"
    METHODS = ("begin", "draft", "accept", "end")

    def __init__(
        self, inner: Any, rate: float = 0.05, seed: int = 0, only: Sequence[str] = METHODS
    ) -> None:
        self.inner, self.rate, self.only = inner, rate, only
        self.chance = random.Random(seed)
        self.raised = 0

    def call(self, name: str, *arguments: Any) -> Any:
        if name in self.only and self.chance.random() < self.rate:
            self.raised += 1
            raise ZeroDivisionError(name)
        return getattr(self.inner, name)(*arguments)

    begin = functools.partialmethod(call, "begin")  # type: ignore[assignment]
    draft = functools.partialmethod(call, "draft")  # type: ignore[assignment]
    accept = functools.partialmethod(call, "accept")  # type: ignore[assignment]
    end = functools.partialmethod(call, "end")  # type: ignore[assignment]
