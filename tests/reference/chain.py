"""The driver: slots with a history each, sources asked in order, feedback to the draft's owner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from .cache import CacheSource
from .map import MapSource
from .mod import HashPool, ModSource
from .recycle import Claims, RecycleSource, SuccessorPool
from .simple import SimpleSource
from .source import InputError, Source, StateError, Tree, common_prefix, right_path
from .suffix_model import Model
from .suffix_pool import SuffixPool
from .suffix_tree import TreeSource

MAKERS: dict[str, Callable[..., Source]] = {  # in the order of priority
    "ngram-simple": SimpleSource,
    "ngram-map-k": MapSource,
    "ngram-map-k4v": partial(MapSource, vote=True),
    "ngram-mod": ModSource,
    "ngram-cache": CacheSource,
    "suffix": TreeSource,
    "recycle": RecycleSource,
}
POOL_PARAMETERS = ("capacity", "check_bits", "max_occupancy")


@dataclass
class Slot:
    """One running sequence."""

    sources: list[Source]
    history: list[int] = field(default_factory=list)
    active: bool = False
    draft: list[int] = field(default_factory=list)  # the pending draft
    parents: list[int] | None = None  # of a tree
    owner: Source | None = None  # who made it
    ahead: list[int] = field(default_factory=list)  # another source's draft that comes before it

    def behind(self, tokens: list[int]) -> list[int]:
        """What the tokens tell of the pending draft."""
        right = tokens[: len(self.ahead)] == self.ahead
        return tokens[len(self.ahead) :] if right else []

    def right(self, tokens: list[int]) -> int:
        """How many of the tokens the pending draft has."""
        tokens = self.behind(tokens)
        if self.parents is None:
            return common_prefix(self.draft, tokens)
        return right_path((self.draft, self.parents), tokens)


class Replay(NamedTuple):
    """Sums over one replayed output."""

    steps: int
    drafts: int
    drafted: int
    accepted: int


class ReferenceDrafter:
    """The contract of the native drafter, on lists of tokens."""

    def __init__(self, names: list[str], slots: list[list[Source]]) -> None:
        self.sources = tuple(names)
        self.slots = [Slot(sources) for sources in slots]

    def begin(self, slot: int, token_ids: list[int]) -> None:
        state = self._slot(slot)
        self._check_tokens(token_ids)
        tokens = list(token_ids)
        state.active = True
        self._cut(state, common_prefix(state.history, tokens))
        self._join(state, tokens[len(state.history) :], committed=False)

    def propose(self, slot: int, max_tokens: int) -> list[int]:
        self._active(slot)
        if max_tokens < 0:
            raise InputError(f"max_tokens must be at least 0, got {max_tokens}")
        return self.propose_after(slot, [], max_tokens)

    def propose_after(self, slot: int, other: list[int], max_tokens: int) -> list[int]:
        """Draft what comes after another source's draft."""
        state = self._active(slot)
        state.draft, state.parents, state.owner, state.ahead = [], None, None, list(other)
        for source in state.sources:
            source.ambiguous = False
            if other:
                draft = source.propose_after(list(state.history), other, max_tokens)[:max_tokens]
            else:
                draft = source.propose(list(state.history), max_tokens)[:max_tokens]
            if draft or source.ambiguous:
                state.draft, state.owner = draft, source
                break
        return list(state.draft)

    def propose_tree(
        self, slot: int, max_tokens: int, max_width: int = 8, other: Tree | None = None
    ) -> Tree:
        """Where the native side drafted a tree, it is `other`, to follow it in ties."""
        state = self._active(slot)
        if max_tokens < 0 or max_width < 1:
            raise InputError("max_tokens must be at least 0 and max_width at least 1")
        state.draft, state.parents, state.owner, state.ahead = [], [], None, []
        for source in state.sources:
            tree = source.propose_tree(list(state.history), max_tokens, max_width, other)
            if tree[0]:
                state.draft, state.parents, state.owner = *tree, source
                break
        return list(state.draft), list(state.parents)

    def is_ambiguous(self, slot: int) -> bool:
        """Does the pending draft rest on a tie that the rules leave open?"""
        owner = self.slots[slot].owner
        return owner is not None and owner.ambiguous

    def adopt(self, slot: int, draft: list[int]) -> None:
        """After an ambiguous step: take the other side's draft as the pending one."""
        state = self.slots[slot]
        state.draft = list(draft)
        if state.owner is not None:
            state.owner.adopt(list(state.history), state.draft)

    def confidence(self, slot: int) -> list[float]:
        state = self._active(slot)
        return list(state.owner.claims[: len(state.draft)]) if state.owner is not None else []

    def shorten(self, slot: int, length: int) -> None:
        state = self._active(slot)
        if not 0 <= length <= len(state.draft):
            raise InputError(f"length must be 0 to {len(state.draft)}, got {length}")
        del state.draft[length:]

    def accept(self, slot: int, token_ids: list[int], num_accepted: int) -> None:
        state = self._active(slot)
        self._check_tokens(token_ids)
        tokens = list(token_ids)
        if not 0 <= num_accepted <= min(len(tokens), len(state.draft)):
            raise InputError("num_accepted exceeds the tokens or the pending draft")
        if num_accepted > state.right(tokens):
            raise InputError("accepted tokens differ from the pending draft")
        if state.owner is not None and state.draft:
            state.owner.feedback(state.draft, state.behind(tokens))
        self._join(state, tokens, committed=True)

    def observe_top(
        self, slot: int, tokens: list[list[int]], logprobs: list[list[float]], first: int | None
    ) -> None:
        """Rows of the pending draft's pass, or from a position of the request on."""
        state = self._active(slot)
        texts = self._texts(state) if first is None else self._prefixes(state.history, first)
        if len(tokens) > len(texts):
            raise InputError(f"{len(tokens)} rows for {len(texts)} places")
        for source in state.sources:
            if any(len({*row[: source.top]}) < len(row[: source.top]) for row in tokens):
                raise InputError("a token comes twice in a row")
        for text, row, logs in zip(texts, tokens, logprobs, strict=False):
            for source in state.sources:
                source.observe(text, row, logs)

    def _prefixes(self, history: list[int], first: int) -> list[list[int]]:
        if not 0 <= first <= len(history):
            raise InputError(f"first must be 0 to {len(history)}, got {first}")
        return [history[: i + 1] for i in range(first, len(history))]

    def _texts(self, state: Slot) -> list[list[int]]:
        """The history, and what each token of the pending draft comes at the end of."""
        if not state.history:
            return []
        texts = [state.history]
        for i, token in enumerate(state.draft):
            parent = i - 1 if state.parents is None else state.parents[i]
            texts.append([*texts[parent + 1], token])
        return texts

    def truncate(self, slot: int, length: int) -> None:
        state = self._active(slot)
        if not 0 <= length <= len(state.history):
            raise InputError(f"length must be 0 to {len(state.history)}, got {length}")
        self._cut(state, length)

    def end(self, slot: int) -> None:
        state = self._active(slot)
        state.active, state.draft, state.owner = False, [], None
        for source in state.sources:
            source.finish()

    def forget(self, slot: int) -> None:
        state = self._slot(slot)
        if state.active:
            raise StateError(f"slot {slot} has a request: end it first")
        self._cut(state, 0)

    def follow(self, slot: int, token_ids: list[int]) -> int:
        state = self._slot(slot)
        self._check_tokens(token_ids)
        tokens = list(token_ids)
        if state.active and tokens == state.history:
            return 0
        if not state.active or tokens[: len(state.history)] != state.history:
            self.begin(slot, tokens)
            return -1
        new = tokens[len(state.history) :]
        num_accepted = min(state.right(new), len(new) - 1)
        self.accept(slot, new, num_accepted)
        return num_accepted

    def history(self, slot: int) -> list[int]:
        return list(self._slot(slot).history)

    def length(self, slot: int) -> int:
        return len(self._slot(slot).history)

    def replay(
        self, prompt: list[int], output: list[int], max_tokens: int = 0, slot: int = 0
    ) -> Replay:
        """Let the recorded output be the target's choice; a draft counts up to its first error."""
        self.begin(slot, prompt)
        self.accept(slot, output[:1], 0)
        done, steps, drafts, drafted, accepted = 0, 0, 0, 0, 0
        while done + 1 < len(output):
            room = len(output) - done - 1
            draft = self.propose(slot, min(room, max_tokens or room))
            right = common_prefix(draft, output[done + 1 :])
            self.accept(slot, output[done + 1 : done + 2 + right], right)
            done += right + 1
            steps += 1
            drafts += bool(draft)
            drafted += len(draft)
            accepted += right
        return Replay(steps, drafts, drafted, accepted)

    def _slot(self, slot: int) -> Slot:
        if not 0 <= slot < len(self.slots):
            raise InputError(f"slot must be 0 to {len(self.slots) - 1}, got {slot}")
        return self.slots[slot]

    def _active(self, slot: int) -> Slot:
        state = self._slot(slot)
        if not state.active:
            raise StateError(f"slot {slot} is idle: begin first")
        return state

    def _check_tokens(self, token_ids: list[int]) -> None:
        if any(token < 0 for token in token_ids):
            raise InputError("token ids must be at least 0")

    def _cut(self, state: Slot, length: int) -> None:
        for source in state.sources:
            source.rewind(length)
            source.start()
        del state.history[length:]
        state.draft, state.owner, state.ahead = [], None, []

    def _join(self, state: Slot, tokens: list[int], committed: bool) -> None:
        start = len(state.history)
        state.history += tokens
        for source in state.sources:
            source.learn(state.history, start, committed)
        state.draft, state.owner, state.ahead = [], None, []


def reference_drafter(
    spec: str | list[str],
    slots: int = 1,
    *,
    order: str = "priority",
    params: dict[str, dict[str, Any]] | None = None,
    **shared: Any,
) -> ReferenceDrafter:
    """The reference of `create_drafter`; a shared parameter goes to every member that has it."""
    names = spec.split(",") if isinstance(spec, str) else list(spec)
    if order == "priority":
        names = [name for name in MAKERS if name in names]
    by_name = {name: {**shared, **(params or {}).get(name, {})} for name in names}
    options = {name: _fitting(name, by_name[name]) for name in names}
    rows = [[MAKERS[name](**options[name]) for name in names] for _ in range(slots)]
    return ReferenceDrafter(names, rows)


def _fitting(name: str, params: dict[str, Any]) -> dict[str, Any]:
    """The parameters that this drafter has; what slots share is made here."""
    maker = MAKERS[name]
    target = maker.func if isinstance(maker, partial) else maker
    parameters = target.__init__.__annotations__
    options = {key: value for key, value in params.items() if key in parameters and key != "vote"}
    if name == "ngram-mod" and options.get("pool") is None:
        pool_options = {key: params[key] for key in POOL_PARAMETERS if key in params}
        options["pool"] = HashPool(**pool_options)
    if name == "suffix":
        if options.get("pool") is None:
            options["pool"] = SuffixPool(options.get("capacity", 1 << 20))
        options["model"] = Model()
    if name == "recycle":
        if options.get("pool") is None:
            shape = {key: params[key] for key in ("capacity", "top") if key in params}
            options["pool"] = SuccessorPool(**shape)
        options["model"] = Claims()
    return options
