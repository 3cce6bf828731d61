"""A Hypothesis machine that drives a native drafter and its reference side by side."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from .backends import Backend, Native, Reference, int32, outcome

NUM_SLOTS = 2
# The same examples every time by default; NGRAMSPEC_MAX_EXAMPLES asks for more, and new ones.
# Explaining a failure takes minutes and adds nothing to the shrunk list of calls.


def examples(usual: int) -> int:
    """Return how many examples a test is asked for: NGRAMSPEC_MAX_EXAMPLES or the usual number."""
    return int(os.environ.get("NGRAMSPEC_MAX_EXAMPLES", usual))


SETTINGS = settings(
    max_examples=examples(12),
    derandomize="NGRAMSPEC_MAX_EXAMPLES" not in os.environ,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    stateful_step_count=20,
    deadline=None,
    report_multiple_bugs=False,
    database=None,
)
Options = Callable[[Backend], dict[str, Any]]  # made anew for each side: pools are not shared
SLOTS = st.integers(0, NUM_SLOTS - 1)


@st.composite
def texts(draw: st.DrawFn, max_token: int, max_size: int = 12) -> list[int]:
    """A few tokens, once or as a loop."""
    block = draw(st.lists(st.integers(0, max_token), max_size=max_size))
    return block * draw(st.sampled_from([1, 1, 1, 2, 5]))


class SideBySide(RuleBasedStateMachine):
    """Every call goes to both; drafts, histories and errors must agree."""

    spec = "ngram-simple"
    max_token = 3
    tails = False  # drafts behind another source's, too
    options: Options = staticmethod(lambda backend: {})

    def __init__(self) -> None:
        super().__init__()
        self.native = Native().drafter(self.spec, NUM_SLOTS, **self.options(Native()))
        self.reference = Reference().drafter(self.spec, NUM_SLOTS, **self.options(Reference()))

    def both(self, method: str, *arguments: Any) -> Any:
        """The agreed outcome of one call."""
        expected = outcome(lambda: getattr(self.reference, method)(*arguments))
        assert outcome(lambda: getattr(self.native, method)(*arguments)) == expected, method
        return expected

    def is_active(self, slot: int) -> bool:
        return self.reference.slots[slot].active

    def text(self, data: st.DataObject, slot: int) -> list[int]:
        """New tokens, or a piece of the history once more."""
        history = self.reference.history(slot)
        if history and data.draw(st.booleans()):
            start = data.draw(st.integers(0, len(history) - 1))
            return history[start : start + data.draw(st.integers(1, 20))]
        return data.draw(texts(self.max_token))

    def propose(self, slot: int, max_tokens: int, other: list[int] | None = None) -> None:
        """Both draft, behind another source's draft if there is one."""
        ask = [slot, max_tokens] if other is None else [slot, other, max_tokens]
        method = "propose" if other is None else "propose_after"
        expected = outcome(lambda: getattr(self.reference, method)(*ask))
        draft = outcome(lambda: getattr(self.native, method)(*ask))
        if self.reference.is_ambiguous(slot) and self.is_active(slot):
            assert len(draft) <= max_tokens
            assert set(draft) <= set(range(6))  # the caches know no other token
            self.reference.adopt(slot, draft)
        else:
            assert draft == expected

    def accept(self, slot: int, style: str, data: st.DataObject) -> None:
        """`all`: the draft was right, `wrong`: up to some token, `cut`: no more was verified."""
        draft, ahead = self.reference.slots[slot].draft, self.reference.slots[slot].ahead
        token = data.draw(st.integers(0, self.max_token))
        right = len(draft) if style == "all" else data.draw(st.integers(0, len(draft)))
        if style == "other":
            self.both("accept", slot, self.text(data, slot), 0)
        elif style == "cut":
            self.both("accept", slot, [*ahead, *draft[:right]], right)
        else:
            self.both("accept", slot, [*ahead, *draft[:right], token], right)

    def accept_path(self, slot: int, style: str, data: st.DataObject) -> None:
        """Some path of the pending tree was right; `cut`: no more was verified."""
        state = self.reference.slots[slot]
        assert state.parents is not None
        at = data.draw(st.integers(-1, len(state.draft) - 1))
        path: list[int] = []
        while at >= 0:
            path.insert(0, state.draft[at])
            at = state.parents[at]
        target = [] if style == "cut" else [data.draw(st.integers(0, self.max_token))]
        self.both("accept", slot, path + target, len(path))

    def decode(self, slot: int, data: st.DataObject) -> None:
        """A few steps of an engine."""
        styles = st.sampled_from(["all", "all", "all", "wrong", "wrong", "cut", "other"])
        for style in data.draw(st.lists(styles, max_size=6)):
            self.propose(slot, data.draw(st.sampled_from([64, 64, 64, 1, 2, 5, 0])))
            if self.tails and data.draw(st.integers(0, 3)) == 0:
                self.propose(
                    slot, data.draw(st.sampled_from([64, 3, 0])), self.text(data, slot)[:3]
                )
            self.accept(slot, style, data)
        self.propose(slot, 64)

    @initialize(first=texts(5, 30), second=texts(5, 30), data=st.data())
    def start(self, first: list[int], second: list[int], data: st.DataObject) -> None:
        self.both("begin", 0, first)
        self.both("begin", 1, second)
        self.decode(0, data)

    @rule(slot=SLOTS, data=st.data())
    def begin(self, slot: int, data: st.DataObject) -> None:
        history = self.reference.history(slot)
        shared = data.draw(st.integers(0, len(history)))
        self.both("begin", slot, history[:shared] + self.text(data, slot))
        self.decode(slot, data)

    @rule(slot=SLOTS, data=st.data())
    def generate(self, slot: int, data: st.DataObject) -> None:
        self.decode(slot, data)

    @rule(slot=SLOTS, data=st.data(), few=st.booleans())
    def truncate(self, slot: int, data: st.DataObject, few: bool) -> None:
        length = self.reference.length(slot)
        removed = data.draw(st.integers(0, min(length, 3 if few else length)))
        self.both("truncate", slot, length - removed)
        self.decode(slot, data)

    @rule(slot=SLOTS, data=st.data())
    def follow(self, slot: int, data: st.DataObject) -> None:
        history = self.reference.history(slot)
        shared = data.draw(st.sampled_from([len(history)] * 3 + [len(history) // 2]))
        draft = self.reference.slots[slot].draft
        shown = draft[: data.draw(st.integers(0, len(draft)))]
        new = data.draw(st.sampled_from(["text", "token", "none"]))
        tail = self.text(data, slot) if new == "text" else [1] if new == "token" else []
        self.both("follow", slot, history[:shared] + shown + tail)
        self.decode(slot, data)

    @precondition(lambda self: self.is_active(0))
    @rule(slot=SLOTS)
    def end(self, slot: int) -> None:
        self.both("end", slot)

    @rule(slot=SLOTS)
    def forget(self, slot: int) -> None:
        self.both("forget", slot)

    @rule(slot=SLOTS, data=st.data())
    def bad_call(self, slot: int, data: st.DataObject) -> None:
        length, draft = self.reference.length(slot), self.reference.slots[slot].draft
        calls: list[tuple[Any, ...]] = [
            ("begin", NUM_SLOTS, [1]),
            ("begin", slot, [1, -1]),
            ("propose", -1, 5),
            ("propose", slot, -1),
            ("accept", slot, [1, -2], 0),
            ("accept", slot, [1], 2),
            ("accept", slot, [1], -1),
            ("accept", slot, [*draft, 1], len(draft) + 1),
            ("accept", slot, [9] * len(draft), len(draft)),
            ("truncate", slot, length + 1),
            ("truncate", slot, -1),
            ("end", NUM_SLOTS),
            ("follow", -1, [1]),
            ("follow", slot, [-1]),
        ]
        method, *arguments = data.draw(st.sampled_from(calls))
        if self.is_active(slot) or method in ("begin", "follow"):
            harmless = method == "accept" and arguments[1:] == [[*draft], len(draft)]
            assert self.both(method, *arguments) == (None if harmless else "InputError")

    @rule(slot=SLOTS, dtype=st.sampled_from([np.int64, np.uint32, np.float32]))
    def wrong_array(self, slot: int, dtype: type) -> None:
        core = self.native.core
        assert outcome(lambda: core.begin(slot, np.array([1, 2], dtype))) == "InputError"
        assert outcome(lambda: core.follow(slot, np.array([1, 2], dtype))) == "InputError"
        assert outcome(lambda: core.begin(slot, int32([1, 2]).reshape(1, 2))) == "InputError"

    @invariant()
    def histories_agree_and_the_structure_is_sound(self) -> None:
        assert self.native.check() == ""
        for slot in range(NUM_SLOTS):
            assert self.native.history(slot) == self.reference.history(slot)
            assert self.native.length(slot) == self.reference.length(slot)
