"""Translation of a growing text, beside a reference that starts over each time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.machines import SETTINGS
from helpers.paths import VOCABULARY_WITH_SPACES
from ngramspec import embedded_model
from ngramspec.engine.sources.spelling import MOST_CONTEXT, Exchange, Speller, whole
from ngramspec.engine.sources.translation import LOOSE, NEAR, Translation, Translator, check_texts
from ngramspec.errors import BackendError, InputError
from ngramspec.llamacpp.model import LlamaModel
from reference.translation import SlowTranslation

pytest.importorskip("gguf")
from helpers.other_vocabularies import chain_model, permuted, spm_vocabulary

PAIRS = [("<|im_start|>", "<start>"), ("<|im", "<"), ("ab", "x"), ("abc", "yy"), ("\n\n", "\n")]
PIECES = [
    "the ", "quick", " fox", "\n", "  ", "<|im_start|>", "<|im_end|>", "<|im", "_start|>", "<", "a",
    "b", "abc", "ab", "é", "漢字", "😀", "1234", "();", "x" * 50, " word" * 9,
]  # fmt: skip
KINDS = ["embedded", "with spaces", "llama 3", "qwen", "words", "llama", "llama with a space"]


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("vocabularies")
    paths = {
        "embedded": embedded_model(),
        "with spaces": VOCABULARY_WITH_SPACES,
        "llama 3": permuted(folder / "llama3.gguf", pre="llama-bpe", source=VOCABULARY_WITH_SPACES),
        "qwen": permuted(folder / "qwen.gguf", pre="qwen2", source=VOCABULARY_WITH_SPACES),
        "words": chain_model(folder / "words.gguf", parts=2),
        "llama": spm_vocabulary(folder / "spm.gguf", add_space=False),
        "llama with a space": spm_vocabulary(folder / "prefix.gguf", add_space=True),
    }
    models = {name: LlamaModel(path, vocab_only=True) for name, path in paths.items()}
    yield {name: model.vocabulary for name, model in models.items()}
    for model in models.values():
        model.close()


BYTES = st.lists(st.sampled_from(PIECES), max_size=30).map(lambda parts: "".join(parts).encode())


class Pieces:
    """A vocabulary of a few texts, each with the token of its index."""

    def __init__(self, texts: list[bytes]) -> None:
        self.texts, self.vocab_size = texts, len(texts)

    def tokenize(self, text: str, **_: bool) -> Any:
        return np.array([self.texts.index(one.encode()) for one in text], np.int32)

    def piece(self, token: int, special: bool) -> bytes:
        return self.texts[token]


def parts_of(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut a text at some places."""
    places = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(places)]


def spells(vocabulary: Any, translation: Translation) -> bool:
    """Tell whether the tokens spell the text; a tokenizer may put a space in front."""
    data = Speller(vocabulary).spell(translation.ids().tolist())
    return data in (translation.text, b" " + translation.text)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pairs", [[], PAIRS])
@given(data=BYTES, cuts=st.lists(st.integers(0, 1 << 16), max_size=12))
@settings(SETTINGS)
def test_a_text_that_comes_in_parts_is_translated_as_a_whole_one(
    vocabularies: dict[str, Any], kind: str, pairs: Any, data: bytes, cuts: list[int]
) -> None:
    vocabulary = vocabularies[kind]
    slow = SlowTranslation(vocabulary, pairs)
    translation = Translation(
        Speller(vocabulary), Exchange([(old.encode(), new.encode()) for old, new in pairs])
    )
    for part in parts_of(data, cuts):
        slow.data += part
        before = translation.ids().tolist()
        first, tail, partial = translation.preview(part)
        assert translation.append(part) == first or not part
        assert translation.ids().tolist()[:first] == before[:first]
        if part:
            assert translation.ids(first).tolist() == tail.tolist()
        assert partial == translation.partial == slow.partial
        assert translation.text == slow.text.encode()
        assert spells(vocabulary, translation)
    assert translation.ids().tolist() == slow.ids


@pytest.mark.parametrize("kind", KINDS)
@given(data=BYTES, other=BYTES, size=st.integers(0, 1 << 16), tail=BYTES)
@settings(SETTINGS)
def test_a_text_may_be_replaced(
    vocabularies: dict[str, Any], kind: str, data: bytes, other: bytes, size: int, tail: bytes
) -> None:
    vocabulary = vocabularies[kind]
    pairs = [(old.encode(), new.encode()) for old, new in PAIRS]
    translation = Translation(Speller(vocabulary), Exchange(pairs))
    slow = SlowTranslation(vocabulary, PAIRS)
    translation.append(data)
    before = translation.ids().tolist()
    slow.data = data[: size % (len(data) + 1)] + other
    first = translation.replace(slow.data)
    assert translation.ids().tolist()[:first] == before[:first]
    assert (translation.text, translation.partial) == (slow.text.encode(), slow.partial)
    translation.append(tail)
    slow.data += tail
    assert (translation.text, translation.ids().tolist()) == (slow.text.encode(), slow.ids)


@given(data=st.binary(max_size=80), cuts=st.lists(st.integers(0, 80), max_size=9))
@settings(SETTINGS)
def test_bytes_that_are_no_text_become_replacement_characters(
    vocabularies: dict[str, Any], data: bytes, cuts: list[int]
) -> None:
    vocabulary = vocabularies["embedded"]
    native, slow = Translation(Speller(vocabulary), Exchange([])), SlowTranslation(vocabulary, [])
    for part in parts_of(data, cuts):
        native.append(part)
        slow.data += part
        assert (native.text, native.partial) == (slow.text.encode(), slow.partial)
        assert whole(slow.data) == (slow.text.encode(), slow.partial)


@pytest.mark.parametrize("text", ["def f(a, b):\n    return a\n", "\u6f22\u5b57", "x"])
def test_a_step_costs_the_new_text_whatever_the_context(
    vocabularies: dict[str, Any], text: str
) -> None:
    speller = Speller(vocabularies["embedded"])
    costs = []
    for size in (1_000, 16_000):
        translation = Translation(speller, Exchange([(b"<|im_end|>", b"</s>")]))
        translation.append((text * size).encode()[:size])
        speller.num_bytes, most = 0, 0
        for _ in range(50):
            before = speller.num_bytes
            translation.append(text.encode())
            most = max(most, speller.num_bytes - before)
        costs.append(speller.num_bytes)
        assert most <= LOOSE + NEAR + 2 * len(text.encode()) + 16
    assert abs(costs[1] - costs[0]) < 0.2 * costs[0]


@pytest.mark.parametrize("kind", KINDS)
@given(data=BYTES, bounds=st.tuples(st.integers(0, 1 << 16), st.integers(0, 1 << 16)), tail=BYTES)
@settings(SETTINGS)
def test_what_is_discarded_is_gone_but_for_parts_of_tokens(
    vocabularies: dict[str, Any], kind: str, data: bytes, bounds: tuple[int, int], tail: bytes
) -> None:
    speller = Speller(vocabularies[kind])
    translation = Translation(speller, Exchange([]))
    translation.append(data)
    ids, text = translation.ids().tolist(), translation.text
    first, last = sorted(bound % (len(text) + 1) for bound in bounds)
    here, count = translation.discard(text[:first], text[last:])
    assert translation.ids().tolist() == ids[:here] + ids[here + count :]
    left = translation.text
    start = len(whole(text[:first])[0])
    assert left.startswith(text[:start])
    after = text[last:]
    while after and after[0] & 0xC0 == 0x80:
        after = after[1:]
    lost = max((len(speller.piece(token)) for token in ids), default=0) + 3
    assert left.endswith(after[lost:])
    assert len(left) <= first + len(text) - last + lost
    length = len(left)
    translation.append(tail)
    assert translation.text[:length] == left
    translation.replace(data + tail)
    assert translation.text == whole(data + tail)[0]


@pytest.mark.parametrize("kind", KINDS)
@given(data=BYTES, tail=BYTES, cut=st.integers(0, 1 << 16))
@settings(SETTINGS)
def test_tokens_after_a_text_spell_what_follows(
    vocabularies: dict[str, Any], kind: str, data: bytes, tail: bytes, cut: int
) -> None:
    speller = Speller(vocabularies[kind])
    ids = speller.tokenize(data, begins=True)[0]
    context = ids[: cut % (len(ids) + 1)]
    tokens = speller.after(context[-MOST_CONTEXT:], tail) if tail else []
    assert speller.spell(tokens) == tail
    # What the tokenizer itself says goes on as it would.
    size = len(speller.spell(context))
    text = speller.spell(ids)[size:]
    if text and whole(text)[1] == b"" and text[0] & 0xC0 != 0x80 and kind == "embedded":
        assert speller.spell(speller.after(context[-MOST_CONTEXT:], text)) == text


def test_a_word_that_was_begun_is_completed(vocabularies: dict[str, Any]) -> None:
    speller = Speller(vocabularies["with spaces"])
    vocabulary = vocabularies["with spaces"]

    def ids(text: str) -> list[int]:
        tokens: list[int] = vocabulary.tokenize(
            text, add_special=False, parse_special=False
        ).tolist()
        return tokens

    assert ids(" return") == ids(" return")[:1]
    begun = [*ids("    x ="), *ids(" ret")]
    rest = speller.after(begun, b"urn 1")
    assert rest == [*ids("urn"), *ids(" 1")]
    assert not speller.splits(begun, b"urn 1")  # the target would have said " return"
    assert speller.splits(ids("    x ="), b" return")
    accent = speller.tokenize("\u00e9".encode(), begins=True)[0]
    assert len(accent) == 2
    assert speller.after(accent[:1], b"\xa9x") == [accent[1], *ids("x")]
    assert speller.after([], b"\xa9x") == [accent[1], *ids("x")]


def test_an_end_may_grow_into_a_token_that_only_the_target_has() -> None:
    both = Translator(
        Speller(Pieces([b"a", b"b", b"ab", b"abc", b" a", b"d"])),
        Speller(Pieces([b"a", b"b", b"c", b"ab", b" a", b"d"])),
    )
    a, b, ab, _, word, d = range(6)
    assert both.may_grow([d, ab], 2), "abc"
    assert both.may_grow([d, a], 2), "abc too"
    assert not both.may_grow([a, b], 2), "no token goes on from it"
    assert not both.may_grow([d], 1)
    assert both.may_grow([ab, d], 1)
    assert not both.may_grow([ab, word], 1), "another word has begun"
    same = Translator(Speller(Pieces([b"a", b"ab"])), Speller(Pieces([b"ab", b"a"])))
    assert not same.may_grow([0], 1), "it would have said ab"


def test_strings_are_exchanged_both_ways() -> None:
    there = Exchange([(old.encode(), new.encode()) for old, new in PAIRS])
    assert there.apply(b"<|im_start|>abcab") == b"<start>yyx"
    places = [0, 1, 2, 3, 4, 7, 8, 9]
    assert there.apply_to(b"1ab2abc3<|im_", places) == (b"1x2yy3", [0, 1, 1, 2, 3, 5, 6, 6])
    assert there.apply_to(b"1<|i", [0, 1, 3]) == (b"1", [0, 1, 1])
    assert Exchange([(b"a", b"b"), (b"a", b"c")]).apply(b"a") == b"b"
    assert Exchange([]).apply_to(b"abc", [0, 2, 3]) == (b"abc", [0, 2, 3])
    with pytest.raises(InputError, match="a string that is to be replaced is empty"):
        Exchange([(b"", b"x")])


def translator(vocabularies: dict[str, Any], own: str, other: str, **options: Any) -> Translator:
    return Translator(Speller(vocabularies[own]), Speller(vocabularies[other]), **options)


def test_claims_are_products_of_those_of_the_tokens_that_begin_there(
    vocabularies: dict[str, Any],
) -> None:
    both = translator(vocabularies, "words", "with spaces")
    own, other = both.target, both.draft
    ids = [other.tokenize(text, begins=True)[0] for text in (b" A", b"a", b" B", b"b")]
    assert [len(one) for one in ids] == [1, 1, 1, 1]
    flat = [one[0] for one in ids]
    chances = [0.5, 0.5, 0.25, 0.5]
    tokens, claims = both.back(np.empty(0, np.int32), b"", flat, chances)
    assert own.spell(tokens) == b" Aa Bb"
    assert len(tokens) == 4  # " A", "a", " B", "b"
    assert claims == chances
    back = translator(vocabularies, "with spaces", "words")
    word = other.tokenize(b" return", begins=True)[0]
    assert len(word) == 1
    letters = own.tokenize(b" return", begins=True)[0]
    assert back.back(np.empty(0, np.int32), b"", letters, [0.5] * len(letters)) == (
        word, [0.5 ** len(letters)],
    )  # fmt: skip
    tokens, claims = both.back(np.empty(0, np.int32), b"", word, [0.5])
    assert own.spell(tokens) == b" return"
    assert claims == [0.5] + [1.0] * (len(tokens) - 1)
    # What the text has already is no part of the draft, and certain.
    tokens, claims = back.back(
        np.array(other.tokenize(b" ret", begins=True)[0], np.int32), b" ret", letters, [0.5] * 7
    )
    assert other.spell(tokens) == b"urn"
    assert np.prod(claims) == 0.5**3
    assert both.back(np.empty(0, np.int32), b" x", word, [0.5]) == ([], [])
    assert both.back(np.empty(0, np.int32), b"", [], []) == ([], [])


def test_strings_come_back_as_the_target_has_them(vocabularies: dict[str, Any]) -> None:
    both = translator(vocabularies, "embedded", "words", pairs=[("<|im_end|>", "<|sep|>")])
    text = both.translation()
    text.append(b"a<|im_e")
    assert text.text == b"a<|im_e"
    assert text.append(b"nd|>b") <= 1
    assert text.text == b"a<|sep|>b"
    marker = [token for token in text.ids().tolist() if both.draft.piece(token) == b"<|sep|>"]
    assert len(marker) == 1, "which is a special token of the draft model's"
    tokens, claims = both.back(np.empty(0, np.int32), b"", text.ids().tolist(), [0.5, 0.25, 0.5])
    assert [both.target.piece(token) for token in tokens] == [b"a", b"<|im_end|>", b"b"]
    assert claims == [0.5, 0.25, 0.5]


def test_the_begin_token_is_each_models_own(vocabularies: dict[str, Any]) -> None:
    own, other = vocabularies["llama"], vocabularies["words"]
    both = Translator(Speller(own, bos=1), Speller(other, bos=0, add_bos=True))
    assert both.spell(np.array([1, 259], np.int32), True) == b" "
    assert both.spell(np.array([1, 259], np.int32), False) == b"<s> "
    text = both.translation()
    text.append(b" Aa")
    assert text.ids().tolist()[0] == 0
    assert text.discard(b"", b"a")[0] == 0, "a context that shifts may lose it"
    text.replace(b" Aa")
    assert both.draft.piece(text.ids().tolist()[0]) == b"<bos>"


def test_vocabularies_that_change_texts_are_refused() -> None:
    class Lower:
        vocab_size = 128

        def tokenize(self, text: str, **_: bool) -> Any:
            if "!" in text and self.fails:
                raise BackendError("no token for it")
            return np.array([ord(one) % 128 for one in text.lower()], np.int32)

        def piece(self, token: int, special: bool) -> bytes:
            return bytes([token])

        fails = False

    with pytest.raises(BackendError, match="the target's vocabulary changes texts, such as 'Ab "):
        check_texts(Speller(Lower()), "target's")
    Lower.fails = True
    with pytest.raises(BackendError, match="to 'no token for it': no draft can go from one model"):
        check_texts(Speller(Lower()), "target's")
