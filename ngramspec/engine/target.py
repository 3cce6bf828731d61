"""Target: what the engine needs from a model."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ngramspec._native.engine.decode import Batch, Rows, Sampler
from ngramspec.engine.request import Adapters
from ngramspec.engine.sampling import Sampling


class Target(Protocol):
    """A model with a key-value cache for several sequences.

    Used by one thread at a time, except `sampler`.

    Verification needs to take tokens back (`truncate`). max_rollback is how far that works after a
    decode: None = any distance (attention), n = up to n tokens (snapshots), 0 = not at
    all. Where it is 0, `save` and `restore` may still bring a sequence back.
    """

    vocab_size: int
    num_sequences: int  # sequence ids are 0..num_sequences - 1
    context_size: int  # tokens that each sequence may hold
    max_batch: int  # tokens in one decode
    max_outputs: int  # rows of logits in one decode, 0 = one for each token
    max_rollback: int | None
    can_save: bool  # save and restore work
    window: int  # tokens that attention looks back on: dumps lack those behind it. 0 = all
    min_copy: int | None  # fewest tokens that are cheaper to copy than to decode; None = no copies
    cells: int | None  # tokens that all sequences hold together; None = they share no cache
    num_adapters: int  # adapters that `adapt` knows, by numbers from 0 on
    no_shift: str  # why tokens cannot move to other positions, "" = they can
    shares_copies: bool  # a copy is made of the source's cells: a shift would move them for both
    contiguous: bool  # sequences share a pass only if their ids are consecutive
    max_branches: int  # of a tree of drafted tokens; 1 = only drafts without branches
    no_branches: str  # why max_branches is 1
    branch_bytes: int  # what branches take at most, in all sequences, for monitoring
    state_bytes: int  # of a state that tokens are taken back with, as measured; 0 = none is needed
    exact_batch: (
        int  # tokens per decode up to which logits have the same bits in any batch; 0: none
    )
    aside: float  # seconds of the last decode that were no part of the pass but the price of drafts

    @property
    def identity(self) -> bytes:
        """Return 16 bytes that tell model and settings apart, as far as dumped sequences differ."""

    def decode(self, batch: Batch, rows: Rows) -> None:
        """Compute a batch; `rows` then shows the logits of its outputs, in order.

        Raises:
            BackendError: It failed; sequences of the batch have not changed, or are empty now.
            CapacityError: The cache has no room for it; nothing has changed.
        """

    def truncate(self, sequence: int, length: int) -> bool:
        """Remove the tokens from position `length` on; False when it cannot and nothing changed."""

    def adopt(self, sequence: int, branch: int) -> bool:
        """Make a sequence hold what branch >= 1 of its last decode's tree holds.

        Before that it holds what branch 0 holds. `truncate` comes next. False where it cannot: then
        it holds what it held before the decode.
        """

    def copy(self, source: int, sequence: int, length: int) -> None:
        """Make an empty sequence hold the first `length` tokens of another; needs min_copy."""

    def shift(self, sequence: int, first: int, count: int) -> bool:
        """Remove `count` tokens from position `first` on; those after them move down.

        False when it cannot and nothing changed.
        """

    def save(self, sequence: int) -> Any:
        """Return what `restore` needs, as an opaque object: the state, or the window.

        It needs can_save or a window.
        """

    def restore(self, sequence: int, state: Any, length: int) -> bool:
        """Bring back what save returned when the sequence held `length` tokens, without branches.

        Of a window: while it still holds these tokens. What was behind the window stays lost.

        False when it cannot; `truncate` to nothing comes next.
        """

    def adapt(self, adapters: Adapters) -> None:
        """Compute with these adapters from now on, and with no others."""

    def dump(self, sequence: int, most: int | None = None) -> npt.NDArray[np.uint8]:
        """Return all that the cache holds of a sequence; nothing if that is above `most` bytes."""

    def load(self, sequence: int, state: npt.NDArray[np.uint8], length: int) -> bool:
        """Make an empty sequence hold what was dumped when it held `length` tokens.

        False when it cannot, such as for want of room; the sequence is empty then.
        """

    def sampler(self, sampling: Sampling, seed: int) -> Sampler:
        """Return a fresh sampler for one request; called by several threads at once.

        Raises:
            InputError: Its grammar or a token id is not valid.
        """

    def piece(self, token_id: int, special: bool) -> bytes:
        """Return the text of a token in UTF-8, possibly a part of a character."""

    def is_end(self, token_id: int) -> bool:
        """Return whether the token ends a generation."""
