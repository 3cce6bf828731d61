"""Seeds, biases and log-probabilities at their edges."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.serving import Serving, serving
from ngramspec.engine import Sampling, TokenLogprob
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.server.reply.logprobs import LogprobFormat
from ngramspec.server.request.bodies import SamplingBody
from ngramspec.server.request.sampling import ANY_SEED, sampling_of, with_seed


@pytest.fixture(scope="module")
def server(model: LlamaModel) -> Iterator[Serving]:
    """A server that looks for no exact setting, as nothing is decoded."""
    with serving(model, exact=False) as server:
        yield server


@pytest.mark.parametrize(
    ("seed", "expected"),
    [(5, [5, 6, 7]), (ANY_SEED - 1, [ANY_SEED - 1, 0, 1]), (ANY_SEED - 2, [ANY_SEED - 2,
      ANY_SEED - 1, 0]), (None, [None] * 3)],
)  # fmt: skip
def test_seeds_of_choices_differ_and_none_means_any(
    seed: int | None, expected: list[int | None]
) -> None:
    seeds = [with_seed(Sampling(seed=seed), index).seed for index in range(3)]
    assert seeds == expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [(-1, None), (ANY_SEED, None), (-2, ANY_SEED - 1), (1 << 32, 0), ((1 << 64) - 1, ANY_SEED - 1)],
)
def test_seeds_of_clients_become_those_of_32_bits(
    server: Serving, number: int, expected: int | None
) -> None:
    assert sampling_of(SamplingBody(seed=number), server.served, "").seed == expected


@pytest.mark.parametrize("bias", [False, -1e300, -100])
def test_a_bias_may_name_a_token_in_several_ways(server: Serving, bias: float) -> None:
    token = int(server.served.model.tokenize("x", add_special=False)[0])
    ways: list[Any] = [{str(token): bias}, {f" {token} ": bias}, [[token, bias]], [["x", bias]]]
    samplings = [sampling_of(SamplingBody(logit_bias=way), server.served, "") for way in ways]
    expected = float("-inf") if bias is False else bias
    assert [dict(one.logit_bias) for one in samplings] == [{token: expected}] * 4


def test_of_tokens_that_read_alike_the_likeliest_is_told() -> None:
    pieces = {1: b"a", 2: b"a", 3: b"\xff", 4: b"\xfe"}
    model = SimpleNamespace(piece=lambda token, special: pieces[token])
    served: Any = SimpleNamespace(model=model)
    top = ((1, -0.5), (2, -1.5), (3, -2.0), (4, -3.0))
    probs = LogprobFormat(served).completion([TokenLogprob(2, -1.5, top)], 7)
    assert probs["top_logprobs"] == [{"a": -0.5, "\ufffd": -2.0}]
    assert (probs["tokens"], probs["token_logprobs"], probs["text_offset"]) == (["a"], [-1.5], [7])
