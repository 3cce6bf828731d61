"""ReasoningBudget: how long a request may reason, and how that ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ngramspec.engine.sampling import is_int
from ngramspec.errors import InputError

MAX_TOKENS = (1 << 31) - 1
MAX_MARKS = 16
MAX_MARK_BYTES = 1024
MAX_END = 4096  # tokens


@dataclass(frozen=True, kw_only=True, eq=False)
class ReasoningBudget:
    """A bound on reasoning: after `tokens` of it, its end is written for the model.

    Reasoning is what comes between the marks, in the text with special tokens; each one in an
    answer has the same budget. An unfinished character is completed first. With a grammar the end
    comes as soon as that allows it; one that does not allow it where an answer begins within
    reasoning leaves no room for reasoning, so there is nothing to end.
    """

    tokens: int  # of a reasoning, without its open mark; 0 = ended as soon as it begins
    open: str
    closes: tuple[str, ...]  # each ends it
    end_ids: npt.NDArray[np.int32]  # what is written then: a close mark, perhaps a text before it
    begun: bool = False  # the prompt ends within reasoning

    def __post_init__(self) -> None:
        """Check the bounds; the engine checks the token ids.

        Raises:
            InputError: A field has the wrong type or is out of its bounds.
        """
        tokens = self.tokens
        if not is_int(tokens) or not 0 <= tokens <= MAX_TOKENS:
            raise InputError(f"a reasoning budget must be in 0..{MAX_TOKENS}, got {tokens!r}")
        if not 1 <= len(self.closes) <= MAX_MARKS:
            raise InputError(f"reasoning needs 1..{MAX_MARKS} close marks, got {len(self.closes)}")
        for mark in (self.open, *self.closes):
            size = len(mark.encode("utf-8", "replace"))
            if not 1 <= size <= MAX_MARK_BYTES:
                raise InputError(f"a mark of reasoning must have 1..{MAX_MARK_BYTES} bytes")
        ids = self.end_ids
        if not isinstance(ids, np.ndarray) or ids.dtype != np.int32 or ids.ndim != 1:
            raise InputError("end_ids must be an int32 array of one dimension")
        if not 1 <= ids.size <= MAX_END:
            raise InputError(f"the end of reasoning must have 1..{MAX_END} tokens, got {ids.size}")
