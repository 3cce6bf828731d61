"""The lines of a static index against their slow reference, whole and in parts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from helpers.backends import int32
from helpers.machines import texts
from ngramspec._native.files.suffix_image import SuffixImage
from reference import SuffixIndex


def wave(seed: int) -> list[int]:
    """A text in which contexts of all lengths come again, with several followers."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 2 + 4 * seed, 150).tolist() + np.tile(rng.integers(0, 9, 20), 6).tolist()


CORPORA = st.lists(
    st.one_of(
        texts(3, 30).filter(bool),
        st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=8),
        st.integers(0, 3).map(wave),
    ),
    min_size=1,
    max_size=6,
)


@given(CORPORA, st.lists(st.floats(0, 1), max_size=3))
def test_lines_hold_what_the_reference_keeps(corpus: list[list[int]], cuts: list[float]) -> None:
    slow = SuffixIndex(corpus)
    image = SuffixImage(int32(slow.tokens))
    num_lines = slow.lines.num_lines
    assert image.num_words() // 12 + 1 == num_lines
    assert (image.num_texts, image.position_bits) == (len(corpus), 25)
    assert image.num_tokens == sum(map(len, corpus))
    assert image.largest_token == max(map(max, corpus))
    lines = image.lines(num_lines, 0, num_lines)
    for line, words in enumerate(lines):
        expected = slow.lines.lines.get(line, [])
        tagged = [tag << 25 | at + 1 for tag, at in expected]
        assert words.tolist() == [*tagged, *[0] * (16 - len(tagged))]
    bounds = [0, *sorted(int(cut * num_lines) for cut in cuts), num_lines]
    parts = [image.lines(num_lines, a, b) for a, b in pairwise(bounds)]
    assert (np.concatenate(parts) == lines).all()
