"""What the drop-in must know about the Llama object it serves, and how it finds that object.

llama-cpp-python calls `draft_model(input_ids)` and nothing else: no model, no batch size, no end
tokens. But `input_ids` is always a view of one buffer that the Llama owns, so the caller can be
recognised with certainty: it is the object up the call stack whose `input_ids` is that buffer.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from typing import Any, Protocol

import numpy as np

from ngramspec._native.core.flags import leading_flagged
from ngramspec.adapters.llama_cpp.batch import LastBatch
from ngramspec.adapters.llama_cpp.guard import Unverified
from ngramspec.arrays import TokenIds

MAX_FRAMES = 10
UNKNOWN, GOES_ON, ENDS = 0, 1, 2


class Armed(Protocol):
    """What a host needs from its Attachment."""

    def arm(self, draft: TokenIds, length: int) -> None:
        """Announce a draft that follows the first `length` tokens."""


class Host:
    """The facts of one Llama object; holds it weakly.

    heal_failed: an attempt to attach was made and failed; it is not repeated.
    refusal: why this model cannot verify drafts, "" when it can.
    unverified: follows the Llama's generators.
    """

    __slots__ = (
        *("__weakref__", "_attachment", "_batch", "_ends", "_vocab", "heal_failed"),
        *("llama", "n_batch", "n_vocab", "refusal", "unverified"),
    )

    def __init__(self, llama: Any) -> None:
        self.llama = weakref.ref(llama)
        self.n_batch = int(llama.n_batch)
        self.n_vocab = int(llama.n_vocab())
        self.attachment = None
        self.heal_failed = False
        self.refusal = ""
        self.unverified = Unverified()
        if getattr(llama, "_is_recurrent", False) or getattr(llama, "_is_hybrid", False):
            self.refusal = "a recurrent or hybrid model cannot take back rejected draft tokens"
        self._batch: LastBatch | None = None
        self._vocab = llama._model.vocab
        self._ends = np.zeros(self.n_vocab, dtype=np.uint8)

    @property
    def attachment(self) -> Armed | None:
        """Return the Attachment that patched the Llama, or None; the patches keep it alive."""
        return None if self._attachment is None else self._attachment()

    @attachment.setter
    def attachment(self, attachment: Armed | None) -> None:
        self._attachment = None if attachment is None else weakref.ref(attachment)

    def has_processor(self) -> bool:
        """Return whether the running request has a logits processor."""
        sampler = getattr(self.llama(), "_sampler", None)
        return bool(getattr(sampler, "custom_samplers", ()))

    def pending(self, length: int) -> int:
        """Return how many of the newest `length` ids the next batch decodes, at least 1."""
        return max(1, length - int(getattr(self.llama(), "n_tokens", length - 1)))

    def last_batch(self) -> LastBatch | None:
        """Return what the Llama decoded last, None where that cannot be known."""
        llama = self.llama()
        if self._batch is None and getattr(getattr(llama, "_batch", None), "batch", None):
            self._batch = LastBatch(llama)
        return self._batch

    def score_rows(self) -> int:
        """Return how many positions a batch with a draft may reach, in tokens.

        A Llama with a draft model copies the logits of every position into `scores`; one that got
        its draft model later makes no logits for drafts at all. Attached, neither matters.
        """
        llama = self.llama()
        if self.attachment is not None:
            return sys.maxsize
        if llama is None or not getattr(llama, "_logits_all", False):
            return 0
        return int(llama.scores.shape[0])

    def usable_len(self, draft: TokenIds) -> int:
        """Return the length of the draft before its first end or out-of-range token."""
        while True:
            length = leading_flagged(draft, self._ends, GOES_ON)
            if length == draft.size or int(draft[length]) >= self.n_vocab:
                return length
            token = int(draft[length])
            if self._ends[token] == ENDS or self._is_end(token):
                self._ends[token] = ENDS
                return length
            self._ends[token] = GOES_ON

    def _is_end(self, token: int) -> bool:
        import llama_cpp.llama_cpp as lib

        return bool(lib.llama_vocab_is_eog(self._vocab, token))


def find_llama(buffer: Any) -> Any | None:
    """Return the object up the call stack whose `input_ids` is `buffer`, or None.

    Cost: a few microseconds; called once per buffer that has an owner.
    """
    frame = sys._getframe(1)
    for _ in range(MAX_FRAMES):
        if frame.f_back is None:
            return None
        frame = frame.f_back
        candidate = frame.f_locals.get("self")
        with contextlib.suppress(Exception):  # any object may be there, and raise anything
            if candidate.input_ids is buffer and candidate.n_batch:  # type: ignore[union-attr]
                return candidate
    return None
