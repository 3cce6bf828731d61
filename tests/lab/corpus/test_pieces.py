"""Pieces: joined they are the text, and cuts are where they do least harm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngramspec.errors import InputError
from ngramspec.lab.corpus import pieces


@given(text=st.text("ab \n\u00e9", max_size=80), limit=st.integers(1, 20))
def test_joined_pieces_are_the_text(text: str, limit: int) -> None:
    parts = list(pieces(text, limit))
    assert "".join(parts) == text
    assert all(0 < len(piece) <= limit for piece in parts)
    # No piece but the last is shorter than half of the limit.
    assert all(2 * len(piece) >= limit for piece in parts[:-1])


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("abcdef\n\nxy\nz 12", "abcdef\n\n"),
        ("abcdefgh\nz 1234", "abcdefgh\n"),
        ("abcdefgh z1234", "abcdefgh"),
        ("abcdefghijklmn", "abcdefghij"),
        ("a\n\nb\nc defghijk", "a\n\nb\nc"),  # the line ends are too early
        ("abcdefghi\n\nxyz", "abcdefghi\n"),
    ],
)
def test_a_cut_is_at_a_blank_line_or_line_end_or_space(text: str, first: str) -> None:
    assert next(pieces(text, 10)) == first


def test_a_short_text_is_one_piece() -> None:
    assert list(pieces("a b", 3)) == ["a b"]
    assert list(pieces("", 1)) == []


def test_a_limit_must_be_positive() -> None:
    with pytest.raises(InputError, match="limit must be at least 1, got 0"):
        pieces("a", 0)
