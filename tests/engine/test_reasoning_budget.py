"""Reasoning budgets: the end comes after so many tokens, whatever is drafted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from helpers.backends import int32
from helpers.fake_target import FakeTarget, Garbage, Oracle
from helpers.machines import SETTINGS
from ngramspec._native.engine.decode import GreedySampler, Rows, Sampler
from ngramspec._native.engine.reasoning import ReasoningSampler
from ngramspec._native.engine.transcript import Pieces
from ngramspec.engine import (
    AutoPolicy,
    Engine,
    Generation,
    ReasoningBudget,
    Request,
    Sampling,
    Speculation,
)
from ngramspec.errors import InputError
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.models import embedded_model

TEXTS = ["<", "think", ">", "</", "/", "x", "y\n", "<think>", "</think>", "think></", "é", "<<"]
PIECES = [*(text.encode() for text in TEXTS), b"\xf0\x9f", b"\x98", b"\x80", b"", b"\xff"]
OPEN, CLOSES = b"<think>", (b"</think>", b"/x/", b"xxy")
# What random tokens rarely spell: an open mark, a close mark begun, ended, and with a start too
# many; a character in three tokens, one that is never complete, bytes that are no character.
SPELLED = [[7], [3], [9], [5, 5, 5, 6], [12, 13, 14], [12, 15, 15, 15, 15], [16] * 6]


class SlowBudget:
    """The obvious reference: looks through the whole text after every token."""

    def __init__(self, budget: int, end: Sequence[int], begun: bool) -> None:
        self.budget, self.end = budget, list(end)
        self.inside, self.left, self.text = begun, budget, b""
        self.forcing = list(end) if begun and not budget else []

    def accept(self, token: int) -> None:
        if self.forcing:
            self.forcing.pop(0)
            if not self.forcing:
                self.inside, self.text = False, b""
            return
        turned = False
        for byte in PIECES[token]:
            self.text += bytes([byte])
            marks = CLOSES if self.inside else (OPEN,)
            if any(self.text.endswith(mark) for mark in marks):
                self.inside, self.text, turned = not self.inside, b"", True
                self.left = self.budget
            self.tail = (getattr(self, "tail", b"") + bytes([byte]))[-4:]
        if not self.inside:
            return
        self.left -= not turned
        if self.left <= 0 and (not self.unfinished() or self.left <= -4):
            self.forcing = list(self.end)

    def unfinished(self) -> bool:
        """Return whether the text ends within a character."""
        tail = getattr(self, "tail", b"")
        for back in range(1, min(4, len(tail)) + 1):
            byte = tail[-back]
            if byte < 0x80:
                return False
            if byte >= 0xC0:
                return back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
        return False


@settings(SETTINGS)
@given(
    tokens=st.lists(
        st.sampled_from(SPELLED) | st.integers(0, len(PIECES) - 1).map(lambda token: [token]),
        max_size=40,
    ).map(lambda parts: [token for part in parts for token in part]),
    budget=st.integers(0, 6),
    begun=st.booleans(),
    end=st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=4),
)
# A close mark with a start too many ends the reasoning, so nothing is forced later.
@example(tokens=[5, 5, 5, 6] + [0] * 8, budget=6, begun=True, end=[1])
# The budget ends within a close mark, whose rest closes no later reasoning.
@example(tokens=[5, 3, 0, 7, 1, 2, 0, 0, 0], budget=2, begun=True, end=[1])
# The budget ends within a character of four bytes, in three tokens, and before what is none.
@example(tokens=[12, 13, 14, 5, 5], budget=1, begun=True, end=[1])
@example(tokens=[12, 15, 15, 15, 15, 15, 15, 15], budget=1, begun=True, end=[1])
def test_the_sampler_does_what_the_slow_one_does(
    tokens: list[int], budget: int, begun: bool, end: list[int]
) -> None:
    pieces = Pieces(PIECES)
    sampler = ReasoningSampler(GreedySampler(), pieces, OPEN, CLOSES, budget, end, begun)
    slow = SlowBudget(budget, end, begun)
    rows = Rows(len(PIECES))
    for token in tokens:
        logits = np.zeros((1, len(PIECES)), np.float32)
        logits[0, token] = 1
        rows.set(logits)
        expected = slow.forcing[0] if slow.forcing else token
        assert sampler.choose(rows, 0) == expected
        sampler.accept(expected)
        slow.accept(expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"open": b""}, "mark of reasoning must not be empty"),
        ({"closes": [b""]}, "mark of reasoning must not be empty"),
        ({"closes": []}, "have a close mark"),
        ({"budget": -1}, "must be >= 0"),
        ({"end_ids": []}, "at least one token"),
        ({"end_ids": [len(PIECES)]}, "ids in 0.."),
    ],
)
def test_wrong_arguments_are_refused(change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"open": OPEN, "closes": CLOSES, "budget": 1, "end_ids": [1]}
    with pytest.raises(InputError, match=message):
        ReasoningSampler(GreedySampler(), Pieces(PIECES), **{**arguments, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": -1}, {"tokens": 1 << 31}, {"tokens": 1.0}, {"tokens": True}, {"open": ""},
        {"open": "a" * 1025}, {"closes": ()}, {"closes": ("a",) * 17}, {"closes": ("",)},
        {"end_ids": int32([])}, {"end_ids": [1]}, {"end_ids": np.zeros(4097, np.int32)},
    ],
)  # fmt: skip
def test_wrong_budgets_are_refused(change: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"tokens": 1, "open": "a", "closes": ("b",), "end_ids": int32([1])}
    with pytest.raises(InputError):
        ReasoningBudget(**{**fields, **change})
    with pytest.raises(InputError, match="must be a ReasoningBudget"):
        Request(prompt_ids=int32([1]), reasoning_budget=3)  # type: ignore[arg-type]


class Thinker(FakeTarget):
    """A target whose tokens are the pieces above."""

    def __init__(self, **options: Any) -> None:
        super().__init__(vocab_size=len(PIECES), **options)

    def piece(self, token_id: int, special: bool) -> bytes:
        return PIECES[token_id]

    def is_end(self, token_id: int) -> bool:
        return False

    def with_budget(self, prompt: list[int], num_tokens: int, budget: ReasoningBudget) -> list[int]:
        """Return what is emitted with a budget, obvious and slow."""
        tokens, slow = list(prompt), SlowBudget(budget.tokens, budget.end_ids, budget.begun)
        while len(tokens) < len(prompt) + num_tokens:
            tokens.append(slow.forcing[0] if slow.forcing else self.next_token(tokens))
            slow.accept(tokens[-1])
        return tokens[len(prompt) :]


@settings(SETTINGS)
@given(
    prompt=st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=9),
    tokens=st.integers(0, 30),
    end=st.lists(st.integers(0, len(PIECES) - 1), min_size=1, max_size=9),
    begun=st.booleans(),
    kind=st.sampled_from(["none", "suffix", "oracle", "garbage"]),
    memory=st.sampled_from([{}, {"max_rollback": 0}, {"max_rollback": 0, "can_save": True}]),
)
def test_drafts_change_nothing(
    prompt: list[int], tokens: int, end: list[int], begun: bool, kind: str, memory: Any
) -> None:
    target = Thinker(sequences=2, **memory)
    drafter: Any = {
        "none": None,
        "suffix": "suffix",
        "oracle": Oracle(target, 0.9),
        "garbage": Garbage(target.vocab_size),
    }[kind]
    budget = ReasoningBudget(
        tokens=tokens,
        open=OPEN.decode(),
        closes=tuple(mark.decode() for mark in CLOSES),
        end_ids=int32(end),
        begun=begun,
    )
    engine = Engine(target, drafter, slots=2, policy=AutoPolicy(fixed=7))
    asked = [
        Request(prompt_ids=int32(prompt), max_tokens=80, reasoning_budget=budget, logprobs=0),
        Request(prompt_ids=int32(prompt), max_tokens=80),
    ]
    limited, free = engine.generate(asked)
    assert limited.token_ids == target.with_budget(prompt, 80, budget)
    assert free.token_ids == target.expected(prompt, 80)
    assert sum(limited.accepted) == limited.timings.num_accepted_tokens
    assert getattr(drafter, "complaints", []) == []


def ended(tokens: int, end: list[int], **fields: Any) -> tuple[Generation, Thinker]:
    """Return the answer of a model that says one thing only, and the model; its end is forced."""
    target = Thinker()
    target.next_token = lambda tokens: 5  # type: ignore[method-assign]
    budget = ReasoningBudget(
        tokens=tokens, open="<think>", closes=("</think>",), end_ids=int32(end), begun=True
    )
    request = Request(prompt_ids=int32([5]), reasoning_budget=budget, **fields)
    return Engine(target, None).generate([request])[0], target


def test_the_forced_end_is_read_in_one_decode() -> None:
    end = [5, 6, 5, 6, 8]
    answer, target = ended(4, end, max_tokens=10)
    assert answer.token_ids[4:9] == end
    # the prompt, three tokens, the fourth with the end behind it
    assert target.batches[:5] == [1, 1, 1, 1, 6]
    assert answer.timings.num_draft_tokens == 0
    assert not any(answer.accepted)


def test_a_long_forced_end_goes_on_where_the_last_draft_ended() -> None:
    end = [5, 6, 8, 7, 9, 3, 4]
    answer, target = ended(1, end, max_tokens=9, speculation=Speculation(max_draft=2))
    assert answer.token_ids == [5, *end, 5]
    assert target.batches == [1, 3, 3, 2]  # the prompt; then two drafted and one more at a time


def test_penalties_see_the_forced_end() -> None:
    with LlamaModel(embedded_model()) as model:
        target = LlamaTarget(model, context_size=64, threads=1)
        inner = target.sampler(Sampling(temperature=0, repeat_penalty=2.0), 1)
        pieces = Pieces([b"x"] * model.vocab_size)
        sampler = ReasoningSampler(inner, pieces, b"<", [b">"], 0, [60, 61], True)
        rows, logits = Rows(model.vocab_size), np.zeros((1, model.vocab_size), np.float32)
        logits[0, 61], logits[0, 70] = 1.0, 0.9
        rows.set(logits)
        chosen = []
        for _ in range(3):
            chosen.append(sampler.choose(rows, 0))
            sampler.accept(chosen[-1])
    assert chosen == [60, 61, 70]


def test_the_forced_end_needs_no_drafts() -> None:
    target = Thinker(period=0)
    budget = ReasoningBudget(
        tokens=4, open="<think>", closes=("</think>",), end_ids=int32([5, 6, 8]), begun=True
    )
    texts = []
    for speculation in (Speculation(enabled=False), Speculation(max_draft=0), Speculation()):
        request = Request(
            prompt_ids=int32([5]),
            max_tokens=40,
            reasoning_budget=budget,
            speculation=speculation,
        )
        texts.append(Engine(target, "ngram-simple").generate([request])[0].token_ids)
    assert texts[0] == texts[1] == texts[2]


def test_the_problem_of_a_grammar_is_still_told() -> None:
    class Problem(Sampler):
        @property
        def problem(self) -> str:
            return "too many stacks"

    sampler = ReasoningSampler(Problem(), Pieces(PIECES), OPEN, CLOSES, 1, [1])
    assert sampler.problem == "too many stacks"


@pytest.mark.parametrize(
    ("grammar", "begun", "text"),
    [
        ('root ::= "I say " ("yes" | "no") " to this and that"', True, "I say "),  # no reasoning
        ('root ::= "{\\"w\\": \\"" [a-z<>/ ]{40} "\\"}"', True, '{"w": "'),  # nor in its string
        ('root ::= "<think>" [a-z]{8} "</think>" "x"', False, "<think>"),  # it ends later
        ('root ::= "<think>" ("ab" "c"){3} "x"', False, "<think>abcabcabcx"),  # it never ends
    ],
)
@pytest.mark.parametrize("budget", [0, 3])
def test_a_grammar_decides_where_reasoning_may_end(
    grammar: str, begun: bool, text: str, budget: int
) -> None:
    with LlamaModel(embedded_model()) as model:
        target = LlamaTarget(model, context_size=256, threads=1)
        end = model.tokenize("</think>", add_special=False)
        request = Request(
            prompt_ids=model.tokenize("Think: "),
            max_tokens=80,
            sampling=Sampling(temperature=0, grammar=grammar),
            reasoning_budget=ReasoningBudget(
                tokens=budget, open="<think>", closes=("</think>",), end_ids=end, begun=begun
            ),
        )
        answer = Engine(target, "suffix").generate([request])[0]
        assert answer.error is None
        assert answer.finish_reason == "stop"
        assert answer.text.startswith(text)
        assert ("</think>" in answer.text) == ("</think>" in grammar)


def test_the_end_is_forced_as_soon_as_the_grammar_allows_it() -> None:
    with LlamaModel(embedded_model()) as model:
        target = LlamaTarget(model, context_size=256, threads=1)
        close = model.tokenize("</think>", add_special=False)
        marks = [t for t in range(model.vocab_size) if model.piece(t, True).startswith(b"<")]
        sampling = Sampling(
            temperature=0,
            grammar='root ::= ([a-z]{9} " "?)* "</think>" "x"',
            logit_bias={token: float("-inf") for token in marks},  # the model does not end it
        )
        texts = []
        for end in ("", " so"):
            budget = ReasoningBudget(
                tokens=1, open="<think>", closes=("</think>",), begun=True,
                end_ids=int32([*model.tokenize(end, add_special=False), *close]),
            )  # fmt: skip
            prompt_ids = model.tokenize("Think: ")
            request = Request(
                prompt_ids=prompt_ids, max_tokens=80, sampling=sampling, reasoning_budget=budget
            )
            texts.append(Engine(target, None).generate([request])[0].text)
    assert re.fullmatch("([a-z]{9} ?)+</think>x", texts[0])
    assert "</think>" not in texts[1]  # " so" never fits before it


def test_a_request_may_end_within_the_forced_end() -> None:
    target = Thinker()
    target.next_token = lambda tokens: 5  # type: ignore[method-assign]
    budget = ReasoningBudget(
        tokens=4, open="<think>", closes=("</think>",), end_ids=int32([5, 6, 5, 6, 8]), begun=True
    )
    for most in range(1, 10):
        request = Request(prompt_ids=int32([5]), max_tokens=most, reasoning_budget=budget)
        engine = Engine(target, "suffix")
        answer = engine.generate([request])[0]
        assert len(answer.token_ids) == most
        held = engine.slots()[0]
        assert (held.num_tokens, held.num_past) == (1 + most, most)
    stopped = Request(
        prompt_ids=int32([5]), max_tokens=30, reasoning_budget=budget, stop=("xy\nx",)
    )
    answer = Engine(target, "suffix").generate([stopped])[0]
    assert answer.stop_text == "xy\nx"


def test_sampling_draws_nothing_for_what_is_forced() -> None:
    """The seed's random numbers are those of the chosen tokens only, so it is lossless too."""
    from ngramspec import LLM

    budget = ReasoningBudget(
        tokens=5, open="<think>", closes=("</think>",), end_ids=int32([60, 61, 62]), begun=True
    )
    with LLM(exact=True, slots=1, context_size=512) as llm:
        sampling = Sampling(temperature=1.0, seed=3)
        options: dict[str, Any] = {
            "max_tokens": 60,
            "sampling": sampling,
            "reasoning_budget": budget,
        }
        texts = [
            llm.generate("def f(x):\n", speculation=drafts, **options).token_ids
            for drafts in (False, True)
        ]
    assert texts[0] == texts[1]
    assert texts[0][5:8] == [60, 61, 62]
