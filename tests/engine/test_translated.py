"""TranslatedDraftModel: cache, text and translation stay in step, whatever is accepted."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.backends import int32
from helpers.fake_target import FakeTarget
from helpers.machines import SETTINGS
from ngramspec._native.engine.decode import GreedySampler
from ngramspec.engine import AutoPolicy, Engine, Request, Speculation
from ngramspec.engine.sources.spelling import Speller
from ngramspec.engine.sources.translated_model import TranslatedDraftModel
from ngramspec.engine.sources.translation import Translator

pytestmark = pytest.mark.usefixtures("still")

DIGITS = [b"<end>", *(b"%d" % digit for digit in range(10)), b" "]
WORDS = [*DIGITS, *(b" %d" % number for number in range(10, 60)), b"<m>"]
LETTERS = [*DIGITS, *(b"%d" % number for number in range(10, 30)), b"<mark>"]


class Tokens:
    """A vocabulary that takes the longest token at each place."""

    def __init__(self, tokens: list[bytes]) -> None:
        self.tokens, self.vocab_size = tokens, len(tokens)
        longest = sorted(tokens, key=len, reverse=True)
        self.pattern = re.compile(b"|".join(map(re.escape, longest)))

    def tokenize(self, text: str, **_: bool) -> Any:
        words = self.pattern.findall(text.encode())
        return int32([self.tokens.index(one) for one in words])

    def piece(self, token: int, special: bool) -> bytes:
        return self.tokens[token] if special or self.tokens[token][:1] != b"<" else b""


def make(n_max: int = 4, size: int = 256, **target: Any) -> tuple[TranslatedDraftModel, Any, Any]:
    own, other = Tokens(WORDS), Tokens(LETTERS)
    options = {"sequences": 2, "context_size": 256, **target}
    model = FakeTarget(vocab_size=len(LETTERS), **options)
    model.piece = other.piece  # type: ignore[method-assign]
    both = Translator(Speller(own), Speller(other), [("<m>", "<mark>")])
    return TranslatedDraftModel(model, both, size, n_max, 0, 0.0), model, own


def check(drafts: TranslatedDraftModel, model: FakeTarget, own: Tokens, slot: int) -> None:
    """Check that the cache holds a beginning of the translation, and that this is the text."""
    text, seq = drafts._texts[slot], drafts._sequences[slot]
    held = model.held[slot]
    assert seq.num_past == len(held)
    expected = b"".join(own.tokens[token] for token in text.ids[: text.length].tolist())
    if text.translated == text.length and not text.fresh and not text.rough:
        assert text.translation.text == expected.replace(b"<m>", b"<mark>")
        shared = min(text.changed, seq.length)
        assert seq.tokens[:shared].tolist() == text.translation.ids()[:shared].tolist()
    sequence = [*seq.tokens[: seq.length].tolist(), *seq.draft]
    assert held[: len(sequence)] == sequence[: len(held)]


@pytest.mark.parametrize("options", [{}, {"context_size": 40}, {"max_rollback": 9}])
@given(data=st.data())
@settings(SETTINGS)
def test_cache_and_translation_follow_the_text(options: Any, data: st.DataObject) -> None:
    drafts, model, own = make(period=data.draw(st.sampled_from([0, 3])), **options)
    tokens = st.lists(st.integers(1, len(WORDS) - 1), min_size=1, max_size=9)
    texts = {slot: data.draw(tokens) for slot in (0, 1)}
    for slot, text in texts.items():
        drafts.begin(slot, int32(text))
    for _ in range(data.draw(st.integers(1, 6))):
        slots = data.draw(st.sampled_from([[0], [1], [0, 1]]))
        before = [data.draw(st.one_of(st.just([]), tokens)) for _ in slots]
        limits = [data.draw(st.integers(1, 6)) for _ in slots]
        proposals = drafts.extend(slots, [int32(one) for one in before], limits)
        for slot, first, draft, limit in zip(slots, before, proposals, limits, strict=True):
            assert draft.size <= min(limit, drafts.max_draft)
            claims = drafts.confidence(slot)
            assert claims.shape == draft.shape
            assert ((claims > 0) & (claims <= 1)).all()
            check(drafts, model, own, slot)
            guessed = first + draft.tolist()
            right = data.draw(st.integers(0, len(guessed)))
            tail = data.draw(tokens)[:2]
            drafts.accept(slot, int32(guessed[:right] + tail), max(right - len(first), 0))
            texts[slot] += guessed[:right] + tail
            assert drafts._texts[slot].ids[: len(texts[slot])].tolist() == texts[slot]
        action = data.draw(st.sampled_from(["", "", "begin", "shift", "end", "enter"]))
        slot = data.draw(st.sampled_from([0, 1]))
        if action == "shift" and len(texts[slot]) > 3:
            first = data.draw(st.integers(0, len(texts[slot]) - 2))
            count = data.draw(st.integers(1, len(texts[slot]) - 1 - first))
            drafts.shift(slot, first, count)
            del texts[slot][first : first + count]
            assert drafts._texts[slot].ids[: len(texts[slot])].tolist() == texts[slot]
            if data.draw(st.booleans()):
                drafts.begin(slot, int32(texts[slot]))
        elif action in ("begin", "enter"):
            drafts.end(slot)
            if action == "enter":
                speculation = Speculation(namespace=str(data.draw(st.integers(0, 3))))
                request = Request(prompt_ids=int32([1]), speculation=speculation)
                drafts.start(slot, request, GreedySampler())
            texts[slot] = texts[slot][: data.draw(st.integers(1, 30))] + data.draw(tokens)
            drafts.begin(slot, int32(texts[slot]))
        elif action == "end":
            drafts.end(slot)
            drafts.begin(slot, int32(texts[slot]))
        assert drafts.backlog(slot) >= 0.0
        assert min(drafts.price()) >= 0.0


def test_drafts_are_what_the_model_says_as_text() -> None:
    drafts, model, own = make(n_max=6)
    prompt = own.tokenize(" 12 34<m> 56")
    drafts.begin(0, prompt)
    (draft,) = drafts.propose([0], [6])
    ids = Tokens(LETTERS).tokenize(" 12 34<mark> 56").tolist()
    spelt = b"".join(LETTERS[token] for token in model.expected(ids, 20))
    text = b"".join(WORDS[token] for token in draft.tolist())
    assert spelt.replace(b"<mark>", b"<m>").startswith(text)


def test_texts_of_an_engine_stay_with_contexts_that_shift() -> None:
    for shifts in (False, True):
        texts = []
        for with_model in (False, True):
            target = FakeTarget(vocab_size=len(WORDS), context_size=48, period=7)
            target.piece = Tokens(WORDS).piece  # type: ignore[method-assign]
            small = make(size=48, context_size=60)[0] if with_model else None
            engine = Engine(
                target,
                None,
                slots=2,
                draft_model=small,
                policy=AutoPolicy(fixed=4),
                context_shift=shifts,
            )
            prompts = [int32([12, 13, 14]), int32([62, 20, 21, 22])]
            asked = [Request(prompt_ids=one, max_tokens=200, num_keep=2) for one in prompts]
            texts.append([answer.token_ids for answer in engine.generate(asked)])
            assert engine.source_failures() == {}
            assert not with_model or engine.stats().num_draft_tokens > 10
        assert texts[0] == texts[1]
        assert np.all([len(text) > 30 for text in texts[0]])


def test_a_draft_that_cannot_complete_the_text_ends_at_once() -> None:
    drafts, model, own = make(n_max=6, period=3)
    drafts.begin(0, own.tokenize(" 12 34"))
    drafts.propose([0], [6])
    drafts.accept(0, int32([11]), 0)
    model.batches.clear()
    follow = drafts._follow

    def begun(slot: int, before: Any) -> None:
        follow(slot, before)
        drafts._texts[slot].partial = b"\xc3"  # which no token of the model begins with

    drafts._follow = begun  # type: ignore[method-assign]
    assert drafts.propose([0], [6])[0].size == 0
    assert len(model.batches) <= 2
