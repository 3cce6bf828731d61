"""How many tokens of an answer are reasoning, from where it stood in the text."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from ngramspec.server.model import ChatModel

if TYPE_CHECKING:
    from ngramspec.engine import Generation


def reasoning_tokens(
    generation: Generation, thoughts: Sequence[tuple[int, int]], model: ChatModel
) -> int:
    """Return how many tokens of a finished answer hold reasoning or its marks.

    A token that holds the end of a mark and the begin of the answer counts, too. Where the model
    wrote bytes that are no UTF-8, the count may be off by as many tokens.

    Args:
        generation: The answer.
        thoughts: Where reasoning stood in its text, in order, as ChatParser has it.
        model: Has the bytes of the tokens.

    Cost: O(tokens of the answer), some tenths of a microsecond each; nothing is tokenized.
    """
    if not thoughts:
        return 0
    text, shown = generation.text, generation.request.special
    # where the bytes of each token end in the answer
    ends = list(accumulate(len(model.piece(token, shown)) for token in generation.token_ids))
    count = last = 0
    for start, end in thoughts:
        first = max(last, bisect_right(ends, len(text[:start].encode())))
        last = min(len(ends), bisect_left(ends, len(text[:end].encode())) + 1)
        count += max(0, last - first)
    return count
