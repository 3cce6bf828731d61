"""Strategies for texts and counts: few tokens that repeat, small and large ids and counts."""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st

import reference.statistics as slow
from helpers.statistics_files import ENTRY_COUNT_MAX, LARGEST_TOKEN, SIZES, Sizes

Documents = list[list[int]]
COUNT_MAX = slow.COUNT_MAX
ALPHABETS = ([0, 1, 2], [0, LARGEST_TOKEN], [5, 1 << 20, 4096, LARGEST_TOKEN, LARGEST_TOKEN - 1])
LARGE_COUNTS = (1, 2, 3, ENTRY_COUNT_MAX, ENTRY_COUNT_MAX + 1, 2 * ENTRY_COUNT_MAX, COUNT_MAX)


@st.composite
def documents(draw: st.DrawFn, max_documents: int = 5) -> Documents:
    """Texts over few tokens, small or as large as files hold, with repeats."""
    token = st.sampled_from(draw(st.sampled_from(ALPHABETS)))
    if draw(st.booleans()):
        token = st.one_of(token, st.integers(0, LARGEST_TOKEN))
    block = st.lists(token, max_size=12)
    repeats = st.sampled_from([1, 1, 1, 2, 9])
    return [draw(block) * draw(repeats) for _ in range(draw(st.integers(0, max_documents)))]


@st.composite
def counts(draw: st.DrawFn, size: int, max_pairs: int = 30) -> slow.Counts:
    """Pairs of n-grams and followers with counts of any size."""
    token = st.sampled_from([*draw(st.sampled_from(ALPHABETS)), 7, 8])
    pair = st.tuples(*[token] * (size + 1))
    count = st.one_of(st.sampled_from(LARGE_COUNTS), st.integers(1, 9))
    return Counter(draw(st.dictionaries(pair, count, max_size=max_pairs)))


@st.composite
def many_sizes(draw: st.DrawFn) -> Sizes:
    """Counts of some n-gram sizes, of documents or with counts of any size."""
    chosen = draw(st.sets(st.sampled_from(SIZES), min_size=1))
    if draw(st.booleans()):
        texts = draw(documents())
        return {size: slow.count_pairs(texts, size) for size in sorted(chosen)}
    return {size: draw(counts(size)) for size in sorted(chosen)}
