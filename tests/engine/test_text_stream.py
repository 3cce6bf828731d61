"""TextStream beside a slow, obvious reference: characters, stop texts, accepted spans."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from helpers.machines import SETTINGS
from ngramspec.engine.text import Span, TextStream

Fed = list[tuple[bytes, bool]]  # a token's bytes, and whether a draft had guessed it
MANY = settings(SETTINGS, max_examples=10 * SETTINGS.max_examples)
EURO = "€".encode()


class Reference:
    """Decodes everything anew for every token, marks each character, and cuts at the first stop."""

    def __init__(self, fed: Fed, stops: tuple[str, ...]) -> None:
        self.marked: list[Span] = []  # one per character; the token that completes it marks it
        self.stop, self.used = "", 0
        for count in range(1, len(fed) + 1):
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            text = decoder.decode(b"".join(piece for piece, _ in fed[:count]))
            new = text[len(self.marked) :]
            self.marked += [(character, fed[count - 1][1]) for character in new]
            self.used = count
            found = sorted((text.find(stop), i) for i, stop in enumerate(stops) if stop in text)
            if found:
                self.stop = stops[found[0][1]]
                self.marked = self.marked[: found[0][0]]
                return
        text = b"".join(piece for piece, _ in fed).decode("utf-8", "replace")
        self.marked += [(character, False) for character in text[len(self.marked) :]]

    @property
    def text(self) -> str:
        return "".join(character for character, _ in self.marked)


def marks(spans: list[Span]) -> list[Span]:
    """Return one span per character."""
    return [(character, accepted) for text, accepted in spans for character in text]


def stream(fed: Fed, stops: tuple[str, ...], takes: list[bool]) -> tuple[list[Span], str, int]:
    """Return all spans, the stop text and how many tokens were fed; takes: after which tokens."""
    made, spans, used = TextStream(stops), [], 0
    for (piece, accepted), take in zip(fed, takes, strict=True):
        used += 1
        if made.feed(piece, accepted):
            break
        spans += made.take() if take else ()
    return [*spans, *made.take(True)], made.stop_text, used


PIECES = st.sampled_from(
    [b"a", b"b", b"ab", b"", b"ba", EURO, EURO[:1], EURO[1:2], EURO[1:], b"\xff", b"a" + EURO[:2]]
)
FED = st.lists(st.tuples(PIECES, st.booleans()), max_size=12)
STOPS = st.lists(
    st.sampled_from(["a", "ab", "ba", "aba", "abb", "b€", "€", "\ufffd", "aab", "€€a"]), max_size=3
).map(tuple)


@given(fed=FED, stops=STOPS, data=st.data())
@example(fed=[(b"a", True), (b"b", False), (b"a", True)], stops=("abb", "ba"), data=None)
@example(fed=[(EURO[:1], True), (EURO[1:], False)], stops=("€",), data=None)
@MANY
def test_the_stream_agrees_with_the_reference(
    fed: Fed, stops: tuple[str, ...], data: st.DataObject | None
) -> None:
    most = st.lists(st.booleans(), min_size=len(fed), max_size=len(fed))
    takes = [True] * len(fed) if data is None else data.draw(most)
    expected = Reference(fed, stops)
    spans, stop, used = stream(fed, stops, takes)
    assert marks(spans) == expected.marked
    assert (stop, used) == (expected.stop, expected.used)
    assert all(text for text, _ in spans)


@given(fed=FED, stops=STOPS)
@MANY
def test_only_text_that_may_begin_a_stop_text_is_held_back(
    fed: Fed, stops: tuple[str, ...]
) -> None:
    made, taken = TextStream(stops), ""
    final = Reference(fed, stops).text
    decoder, decoded = codecs.getincrementaldecoder("utf-8")("replace"), ""
    for piece, accepted in fed:
        decoded += decoder.decode(piece)
        stopped = made.feed(piece, accepted)
        taken += "".join(text for text, _ in made.take(stopped))
        assert final.startswith(taken)
        if stopped:
            break
        held = decoded[len(taken) :]
        assert decoded.startswith(taken)
        assert not held or any(stop.startswith(held) for stop in stops)
    assert taken + "".join(text for text, _ in made.take(True)) == final


def test_text_without_stop_texts_comes_at_once() -> None:
    made = TextStream(())
    assert not made.feed(b"one", True)
    assert not made.feed(b" two", False)
    assert made.take() == (("one", True), (" two", False))
    assert made.take() == made.take(True) == ()


def test_a_character_split_over_tokens_comes_whole_with_the_last_of_them() -> None:
    made = TextStream(())
    grin = "😀".encode()
    for byte in range(3):
        made.feed(grin[byte : byte + 1], True)
        assert made.take() == ()
    made.feed(grin[3:] + b"!", False)
    assert made.take() == (("😀!", False),)


def test_an_unfinished_character_shows_as_a_replacement_at_the_end() -> None:
    made = TextStream(("x",))
    made.feed(b"a" + EURO[:2], True)
    assert made.take() == (("a", True),)
    assert made.take(True) == (("\ufffd", False),)


def test_an_unfinished_character_after_a_stop_text_is_cut_off() -> None:
    made = TextStream(("b",))
    assert made.feed(b"ab" + EURO[:2], True)
    assert (made.take(True), made.stop_text) == ((("a", True),), "b")


def test_the_beginning_of_a_stop_text_is_held_back_until_it_is_clear() -> None:
    made = TextStream(("stop", "opera"))
    for piece, released in ((b"a st", "a "), (b"o", ""), (b"p", None)):
        assert made.feed(piece, False) == (released is None)
        if released is not None:
            assert "".join(text for text, _ in made.take()) == released
    assert (made.take(True), made.stop_text) == ((), "stop")
    made = TextStream(("stop", "opera"))
    made.feed(b"sto", False)
    assert made.take() == ()
    made.feed(b"rm", True)
    assert made.take() == (("sto", False), ("rm", True))


def test_a_held_text_that_begins_another_stop_text_stays_held_in_part() -> None:
    made = TextStream(("aab",))
    made.feed(b"aaa", True)
    assert made.take() == (("a", True),)
    assert made.feed(b"b", False)
    assert made.take(True) == ()


@pytest.mark.parametrize("stops", [("bc", "abcd"), ("abcd", "bc")])
def test_the_stop_text_that_is_complete_first_wins(stops: tuple[str, ...]) -> None:
    made = TextStream(stops)
    assert [made.feed(piece, True) for piece in (b"xa", b"b", b"c")] == [False, False, True]
    assert (made.take(True), made.stop_text) == ((("xa", True),), "bc")


@pytest.mark.parametrize("stops", [("bc", "abcd"), ("abcd", "bc")])
def test_of_two_in_one_token_the_earlier_one_wins(stops: tuple[str, ...]) -> None:
    made = TextStream(stops)
    assert made.feed(b"xabcde", True)
    assert (made.take(True), made.stop_text) == ((("x", True),), "abcd")


def test_of_two_at_one_place_the_first_one_given_wins() -> None:
    for stops in (("ab", "abc"), ("abc", "ab")):
        made = TextStream(stops)
        assert made.feed(b"abc", False)
        assert made.stop_text == stops[0]


def test_spans_are_cut_where_the_stop_text_begins() -> None:
    made = TextStream(("cde",))
    assert not made.feed(b"abc", True)
    assert not made.feed(b"d", False)
    assert made.feed(b"ef", True)
    assert made.take(True) == (("ab", True),)


def test_the_end_releases_what_was_held() -> None:
    made = TextStream(("abc",))
    made.feed(b"xa", True)
    made.feed(b"b", False)
    assert made.take(True) == (("xa", True), ("b", False))
    assert made.stop_text == ""
