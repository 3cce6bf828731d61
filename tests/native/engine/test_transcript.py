"""Transcript beside its slow twin: the same text, stop text, length and flags, in any portions."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngramspec._native.engine.transcript import (
    END_TOKEN,
    FULL,
    GOES_ON,
    STOP_TEXT,
    Pieces,
    Transcript,
)
from ngramspec.errors import InputError
from reference.text_stream import Span, TextStream

TEXTS = ["a", "b", "ab", "", " ", "\n", "é", "€b", "zz", "😀", "a b"]
PARTS = [b"\xc3", b"\xa9", b"\xe2\x82", b"\xac", b"\xf0\x9f", b"\x98\x80", b"\xf8", b"\xff"]
PIECES = [*(text.encode() for text in TEXTS), *PARTS, b"<end>"]
END = len(PIECES) - 1
STOPS = ["ab", "b\n", "é", "zz", "€b", "aa", "b b", "a bz"]
STEP = st.tuples(st.lists(st.integers(0, END), min_size=1, max_size=5), st.integers(0, 5))


def characters(spans: tuple[Span, ...]) -> list[Span]:
    return [(character, accepted) for text, accepted in spans for character in text]


def slow(
    steps: list[tuple[list[int], int]], stops: list[str], most: int
) -> tuple[list[list[Span]], str, int, int]:
    """Return the slow twin's characters of each take, stop text, number of tokens and reason."""
    stream, count, reason = TextStream(stops), 0, GOES_ON
    takes: list[list[Span]] = []
    for tokens, accepted in steps:
        for index, token in enumerate(tokens):
            if count == most or token == END:
                reason = FULL if count == most else END_TOKEN
                break
            count += 1
            if stream.feed(PIECES[token], index < accepted):
                reason = STOP_TEXT
                break
        else:
            reason = FULL if count == most else GOES_ON
        takes.append(characters(stream.take(reason != GOES_ON)))
        if reason != GOES_ON:
            return takes, stream.stop_text, count, reason
    takes.append(characters(stream.take(True)))
    return takes, stream.stop_text, count, reason


@given(
    steps=st.lists(STEP, max_size=12),
    stops=st.lists(st.sampled_from(STOPS), max_size=3),
    most=st.sampled_from([-1, 0, 1, 7]),
)
def test_it_is_its_slow_twin(
    steps: list[tuple[list[int], int]], stops: list[str], most: int
) -> None:
    transcript = Transcript(Pieces(PIECES, [END]), [stop.encode() for stop in stops], most)
    takes: list[list[Span]] = []  # by take
    reason, fed = GOES_ON, []
    for tokens, accepted in steps:
        before = len(transcript)
        reason = transcript.feed(np.array(tokens, np.int32), accepted)
        fed += tokens[: len(transcript) - before]
        takes.append(characters(transcript.take(reason != GOES_ON)))
        if reason != GOES_ON:
            break
    else:
        takes.append(characters(transcript.take(True)))
    assert transcript.take(True) == ()
    expected, stop_text, count, why = slow(steps, stops, most)
    assert [[c for c, _ in take] for take in takes] == [[c for c, _ in take] for take in expected]
    assert (reason, len(transcript), transcript.token_ids().tolist()) == (why, count, fed)
    assert (stops[transcript.stop] if transcript.stop >= 0 else "") == stop_text
    assert transcript.text == "".join(c for take in takes for c, _ in take)
    if "\ufffd" not in transcript.text:  # whose bytes are nobody's character
        assert takes == expected


def test_text_that_may_begin_a_stop_text_is_held_back() -> None:
    transcript = Transcript(Pieces([b"x", b"st", b"op", b"ay"]), [b"stop"])
    assert transcript.feed([0, 1]) == GOES_ON
    assert transcript.take() == (("x", False),)
    assert transcript.feed([3]) == GOES_ON
    assert transcript.take() == (("stay", False),)
    assert transcript.feed([1, 2, 0]) == STOP_TEXT
    assert transcript.take(True) == ()
    assert (transcript.text, transcript.stop, len(transcript)) == ("xstay", 0, 5)


@pytest.mark.parametrize("cuts", [[], range(40), range(0, 40, 3)], ids=["whole", "bytes", "parts"])
@pytest.mark.parametrize(
    ("text", "least", "answer"),
    [
        ("a\n  b\n  c", 2, "a\n  b\n  c"),
        ("a\n  b\n c\n  d", 2, "a\n  b\n "),
        ("a\n\t\tb\nc", 2, "a\n\t\tb\n"),
        ("a\n\n  b", 2, "a\n"),
        ("a", 9, "a"),
        ("  a\n \u00e9", 1, "  a\n \u00e9"),
        ("  a\n \u00e9", 2, "  a\n "),
        ("a\nb", 0, "a\nb"),
    ],
)
def test_a_line_with_too_little_indent_ends_the_answer(
    cuts: Iterable[int], text: str, least: int, answer: str
) -> None:
    data = text.encode()
    ends = [0, *(cut for cut in cuts if 0 < cut < len(data)), len(data)]
    pieces = [data[start:end] for start, end in pairwise(ends)]
    transcript = Transcript(Pieces(pieces), (), -1, least)
    reasons = []
    for token in range(len(pieces)):
        reasons.append(transcript.feed([token]))
        transcript.take(reasons[-1] != GOES_ON)
        if reasons[-1] != GOES_ON:
            break
    transcript.take(True)
    assert transcript.text == answer
    assert reasons[-1] == (GOES_ON if answer == text else FULL)
    with pytest.raises(InputError, match="min_indent must be >= 0, got -1"):
        Transcript(Pieces(pieces), (), -1, -1)


def test_many_and_long_stop_texts_cost_little_per_token() -> None:
    pieces = Pieces([b"<end>", b"aa", b"ab ", b"the", b" "], [0])
    many = [b"the" * 1300 + b"z", *(b"stop text number %d, a" % i for i in range(127))]

    def seconds(stops: list[bytes]) -> float:
        transcript = Transcript(pieces, stops)
        transcript.feed(np.array([1, 2, 3, 4, 1, 1] * 1000, np.int32))
        taken = []
        for _ in range(20):
            started = time.thread_time()
            for token in (1, 2, 3, 4) * 10:
                transcript.feed(np.array([token], np.int32))
            taken.append(time.thread_time() - started)
        return min(taken)

    assert seconds(many) < 60 * seconds([])


def test_a_character_belongs_to_the_token_that_completes_it() -> None:
    transcript = Transcript(Pieces([b"\xe2\x82", b"\xac", b"a"]))
    transcript.feed([2, 0], 2)
    assert transcript.take() == (("a", True),)
    transcript.feed([1, 2], 0)
    assert transcript.take() == (("€a", False),)


def test_neighbours_of_one_kind_are_one_piece() -> None:
    transcript = Transcript(Pieces([b"a", b"b"]))
    transcript.feed([0, 1, 0, 1, 1], 3)
    spans = transcript.take()
    assert spans == (("aba", True), ("bb", False))
    assert all(one[1] != other[1] for one, other in pairwise(spans))
    assert transcript.accepted().tolist() == [True] * 3 + [False] * 2


def test_many_tokens_keep_their_text() -> None:
    transcript = Transcript(Pieces([b"abc", b"de"]))
    for _ in range(500):
        transcript.feed([0, 1, 1])
        transcript.take()
    assert transcript.text == "abcdede" * 500
    assert transcript.token_ids(1497).tolist() == [0, 1, 1]
    assert transcript.token_ids(5000).size == 0


def test_bad_arguments_are_refused_and_change_nothing() -> None:
    pieces = Pieces([b"a"])
    with pytest.raises(InputError, match="at least one"):
        Pieces([])
    with pytest.raises(InputError, match=r"0\.\.0"):
        Pieces([b"a"], [1])
    with pytest.raises(InputError, match="max_tokens"):
        Transcript(pieces, (), -2)
    with pytest.raises(InputError, match="empty"):
        Transcript(pieces, [b""])
    transcript = Transcript(pieces)
    for wrong in ([0, 1], [0, -1]):
        with pytest.raises(InputError):
            transcript.feed(wrong)
    assert len(transcript) == len(pieces) - 1 == 0
