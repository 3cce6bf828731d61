"""Where a text with drafts leaves the one without, and by how many logits."""

from __future__ import annotations

import numpy as np
import pytest

from helpers.fake_target import FakeTarget
from ngramspec.engine import Generation, Request
from ngramspec.lab.e2e.bench import Bench, parse_mode
from ngramspec.lab.e2e.difference import Difference, find_difference

PROMPT = np.arange(1, 9, dtype=np.int32)


@pytest.fixture
def bench() -> Bench:
    return Bench(FakeTarget(exact_batch=0, period=0), [parse_mode("none")])


@pytest.fixture
def text(bench: Bench) -> list[int]:
    return bench.ask(Request(prompt_ids=PROMPT, max_tokens=12)).token_ids


def refuse(request: Request) -> Generation:
    raise AssertionError("the model need not be asked")


def test_equal_texts_do_not_part(text: list[int]) -> None:
    assert find_difference(PROMPT, text, text, refuse) is None


def test_the_margin_is_that_of_the_model_where_they_part(bench: Bench, text: list[int]) -> None:
    other = (text[4] + 1) % 50
    asked = []

    def run(request: Request) -> Generation:
        asked.append(request.prompt_ids.tolist())
        return bench.ask(request)

    difference = find_difference(PROMPT, text, [*text[:4], other, *text[5:]], run)
    assert difference is not None
    assert (difference.position, difference.expected, difference.got) == (4, text[4], other)
    assert asked == [[*PROMPT.tolist(), *text[:4]]]
    assert difference.margin is not None
    back = find_difference(PROMPT, [*text[:4], other], text, bench.ask)
    assert back is not None
    assert back.margin == pytest.approx(-difference.margin)
    assert "part at token 5, where the two candidates are " in difference.line()


def test_a_text_that_ends_first_has_no_margin(text: list[int]) -> None:
    for expected, got, tokens in ((text, text[:3], (text[3], -1)), (text[:3], text, (-1, text[3]))):
        difference = find_difference(PROMPT, expected, got, refuse)
        assert difference == Difference(3, *tokens, None)
        assert difference.line() == "the texts part at token 4, where one of them ends"


def test_a_token_that_the_model_did_not_name_has_no_margin() -> None:
    assert Difference(0, 5, 6, None).line().endswith("where one of the two candidates is unlikely")
