"""Saving: what slots hold, taken out and put back between decodes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ngramspec._native.engine.slot import Slot
from ngramspec.engine.request import NO_TOKENS, Speculation
from ngramspec.engine.sequences import Sequences
from ngramspec.engine.sources.drafters import Drafters
from ngramspec.engine.target import Target
from ngramspec.errors import CapacityError, InputError, QuotaError
from ngramspec.files.slot_file import NO_STATE, SavedSlot

TAIL = 32  # newest tokens that tell whose history a drafter holds


class Saving:
    """Takes out and puts back what the target's cache and the drafters hold of an idle slot.

    Only the engine's thread calls it.

    Args:
        target: The model.
        sequences: The slots' sequences.
        drafters: The n-gram drafters.
        touch: Marks a slot as the one used last.
    """

    def __init__(
        self,
        target: Target,
        sequences: Sequences,
        drafters: Drafters,
        touch: Callable[[Slot], None],
    ) -> None:
        self._target, self._sequences, self._drafters = target, sequences, drafters
        self._touch = touch

    def take(self, slot: Slot, owner: str) -> SavedSlot:
        """Return a copy of what the slot holds; nothing if it is another owner's.

        Of a sliding window, the slot then holds what the copy does.

        Raises:
            BackendError: The target cannot save it.

        Cost: a copy of the slot's part of the cache; of a sliding window also one back into it.
        """
        held = self._held(slot, owner)
        identity, vocab_size = self._target.identity, self._target.vocab_size
        if not held:
            return SavedSlot(NO_TOKENS, NO_STATE, NO_TOKENS, identity, vocab_size, namespace=owner)
        tokens, history = slot.tokens[:held].copy(), self._history(slot)
        state = self._target.dump(slot.id)
        self._sequences.save_window(slot, state)
        window, num_window = self._sequences.windows.get(slot, (NO_STATE, 0))
        return SavedSlot(
            tokens=tokens,
            state=state,
            history=history,
            identity=identity,
            vocab_size=vocab_size,
            num_prompt=min(slot.num_prompt, held),
            num_reusable=min(slot.num_reusable, held),
            namespace=slot.namespace,
            adapters=slot.adapters,
            window=window,
            num_window=num_window,
        )

    def put_back(self, slot: Slot, saved: SavedSlot, owner: str, tenant: str) -> int:
        """Make the slot hold what was saved; return how many tokens.

        What does not fit is refused before anything changes.

        Raises:
            InputError: It was saved by another owner, with another model or other settings, or is
                longer than the context.
            CapacityError: The cache has no room; the slot is empty then.
            BackendError: The target refuses it; the slot is empty then.

        Cost: a copy into the cache; the drafters index their text as they do a prompt.
        """
        self._check(slot, saved, owner)
        size = int(saved.tokens.size)
        self._empty(slot)
        slot.namespace, slot.adapters = saved.namespace, saved.adapters
        if not size:
            return 0
        while not self._target.load(slot.id, saved.state, size):
            if not self._sequences.empty_idle():
                raise CapacityError(f"the cache has no room for {size} tokens")
        slot.tokens[:size] = saved.tokens
        slot.length = slot.num_past = size
        slot.num_prompt = saved.num_prompt
        slot.num_reusable = slot.size if saved.num_reusable == size else saved.num_reusable
        if saved.num_window:
            self._sequences.windows[slot] = saved.window, saved.num_window
        self._touch(slot)
        self._teach(slot, saved, tenant)
        return size

    def erase(self, slot: Slot, owner: str) -> int:
        """Empty the slot, and its histories in drafters; return how many tokens the cache held."""
        held = self._held(slot, owner)
        if slot.namespace.startswith(owner):
            self._empty(slot)
        self._drafters.forget(slot.id, owner)  # also where another request has emptied the cache
        return held

    def _held(self, slot: Slot, owner: str) -> int:
        """Return how many tokens the cache holds for an owner, settled."""
        if owner and not slot.namespace.startswith(owner):
            return 0
        if slot in self._sequences.unsettled:
            # The cache would change its keys in a next decode only. Nothing is lost: such a slot
            # holds what another holds too, or a request that was given up.
            self._sequences.drop(slot)
        return slot.num_past

    def _empty(self, slot: Slot) -> None:
        self._sequences.drop(slot)
        slot.length = slot.num_prompt = 0
        slot.num_reusable = slot.size

    def _check(self, slot: Slot, saved: SavedSlot, owner: str) -> None:
        if owner and not saved.namespace.startswith(owner):
            raise InputError("the slot was saved by another key")
        if saved.identity != self._target.identity or saved.vocab_size != self._target.vocab_size:
            raise InputError(
                "the slot was saved with another model, or with other settings of the cache"
            )
        if saved.tokens.size > slot.size:
            raise InputError(f"the slot has {slot.size} tokens, {saved.tokens.size} were saved")

    def _history(self, slot: Slot) -> npt.NDArray[np.int32]:
        """Return the longest text that ends as the slot's, of all drafters of its namespace."""
        text = slot.tokens[: slot.length]
        joined = 0 if slot.num_reusable >= slot.length else slot.num_reusable
        best = NO_TOKENS
        for drafter in self._drafters.of_namespace(slot.namespace):
            history = drafter.history(slot.id)
            count = min(TAIL, history.size, text.size - joined)
            if history.size > best.size and np.array_equal(
                history[history.size - count :], text[text.size - count :]
            ):
                best = history
        return best

    def _teach(self, slot: Slot, saved: SavedSlot, tenant: str) -> None:
        """Let the default drafter of the namespace know the text again."""
        with contextlib.suppress(QuotaError):
            source, key = self._drafters.hold(Speculation(namespace=saved.namespace), tenant)
            if source is not None:
                source.begin(slot.id, saved.history)
                source.end(slot.id)
            self._drafters.release(key)
