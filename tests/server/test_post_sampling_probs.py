"""post_sampling_probs: probabilities after the sampler chain, in llama-server's shape."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from helpers.serving import CHAT, Serving

PROMPT = "def area("
ENTRY = {"id", "token", "bytes", "prob"}
SAMPLED = {"temperature": 0.8, "seed": 5, "cache_prompt": False}


def complete(server: Serving, **body: Any) -> Any:
    defaults = {"prompt": PROMPT, "n_predict": 12, "n_probs": 4, "post_sampling_probs": True}
    reply = server.post("/completion", **{**defaults, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


def events(server: Serving, path: str, **body: Any) -> list[dict[str, Any]]:
    reply = server.post(path, stream=True, post_sampling_probs=True, **body)
    assert reply.status_code == 200, reply.text
    parts = [part.removeprefix("data: ") for part in reply.text.split("\n\n")]
    return [json.loads(part) for part in parts if part and part != "[DONE]"]


def test_each_token_has_its_probability_and_the_likeliest(server: Serving) -> None:
    answer = complete(server, return_tokens=True, **SAMPLED)
    entries = answer["completion_probabilities"]
    assert [one["id"] for one in entries] == answer["tokens"]
    assert answer["generation_settings"]["post_sampling_probs"] is True
    for one in entries:
        assert set(one) == {*ENTRY, "top_probs"}
        assert 1 <= len(one["top_probs"]) <= 4
        values = [other["prob"] for other in one["top_probs"]]
        assert values == sorted(values, reverse=True)
        assert all(0 < value <= 1 for value in values)
        assert all(set(other) == ENTRY for other in one["top_probs"])
        assert bytes(one["bytes"]).decode() == one["token"]
        probs = {other["id"]: other["prob"] for other in one["top_probs"]}
        assert probs.get(one["id"], one["prob"]) == one["prob"]
        if len(values) < 4:
            assert sum(values) == pytest.approx(1.0, abs=1e-5)
    assert any(0 < one["prob"] < 1 for one in entries)


def test_a_stream_tells_the_same(server: Serving) -> None:
    whole = complete(server, **SAMPLED)["completion_probabilities"]
    fields = {"prompt": PROMPT, "n_predict": 12, "n_probs": 4, **SAMPLED}
    streamed = events(server, "/completion", **fields)
    assert [one for event in streamed for one in event.get("completion_probabilities", ())] == whole
    assert len(streamed) > 2


def test_a_greedy_token_has_one(server: Serving) -> None:
    for more in ({}, {"grammar": "root ::= [a-z]+"}, {"ignore_eos": True}):
        entries = complete(server, temperature=0, **more)["completion_probabilities"]
        for one in entries:
            assert one["prob"] == 1.0
            assert [(other["id"], other["prob"]) for other in one["top_probs"]] == [
                (one["id"], 1.0)
            ]


def test_drafts_change_none(server: Serving) -> None:
    """Repeated code is drafted; the first token that rounding could change would show."""
    text = "def area(width, height):\n    return width * height\n" * 3 + "def area("
    with_drafts, without = (
        complete(
            server, prompt=text, temperature=0.3, seed=3, n_predict=30, cache_prompt=False, **more
        )
        for more in ({}, {"speculative.n_max": 0})
    )
    assert with_drafts["timings"]["draft_n_accepted"] >= 5
    assert with_drafts["content"] == without["content"]
    both = zip(
        with_drafts["completion_probabilities"], without["completion_probabilities"], strict=True
    )
    for one, other in both:
        assert one["id"] == other["id"]
        assert one["prob"] == pytest.approx(other["prob"], abs=1e-3)


def test_chats_and_texts_have_the_same_shape(server: Serving) -> None:
    asked = {"max_tokens": 6, **SAMPLED}
    chat = server.post(
        "/v1/chat/completions", messages=CHAT, logprobs=True, top_logprobs=3,
        post_sampling_probs=True, **asked,
    ).json()["choices"][0]["logprobs"]["content"]  # fmt: skip
    text = server.post(
        "/v1/completions", prompt=PROMPT, logprobs=3, post_sampling_probs=True, **asked
    ).json()["choices"][0]["logprobs"]["content"]
    for entries in (chat, text):
        assert len(entries) == 6
        for one in entries:
            assert set(one) == {*ENTRY, "top_probs"}
            assert 1 <= len(one["top_probs"]) <= 3
    by_number = server.post(
        "/v1/completions", prompt=PROMPT, n_probs=3, post_sampling_probs=True, **asked
    ).json()["choices"][0]["logprobs"]["content"]
    assert by_number == text
    streams = {
        "/v1/chat/completions": ({"messages": CHAT, "n_probs": 3}, chat),
        "/v1/completions": ({"prompt": PROMPT, "logprobs": 3}, text),
    }
    for path, (body, whole) in streams.items():
        choices = [event["choices"][0] for event in events(server, path, **body, **asked)]
        entries = [one for c in choices if c.get("logprobs") for one in c["logprobs"]["content"]]
        assert entries == whole


def test_logprobs_is_another_name_of_n_probs(server: Serving) -> None:
    named = complete(server, n_probs=None, logprobs=4, **SAMPLED)
    assert (
        named["completion_probabilities"] == complete(server, **SAMPLED)["completion_probabilities"]
    )
    assert "completion_probabilities" not in complete(server, n_probs=0, logprobs=4)


def test_without_a_number_none_are_told(server: Serving) -> None:
    assert "completion_probabilities" not in complete(server, n_probs=None)
    entries = complete(server, post_sampling_probs=False)["completion_probabilities"]
    assert all(one["logprob"] <= 0 and "prob" not in one for one in entries)


def test_a_grammar_leaves_what_it_allows(server: Serving) -> None:
    asked = {"temperature": 2.0, "seed": 3, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    answer = complete(server, grammar="root ::= [0-9]{20}", n_predict=20, n_probs=1000, **asked)
    entries = answer["completion_probabilities"]
    digits = [all(o["token"].isdigit() for o in one["top_probs"]) for one in entries]
    assert sum(digits) > 2  # elsewhere the free choice was a digit
    for one in entries:
        assert one["token"].isdigit()
        assert math.fsum(other["prob"] for other in one["top_probs"]) <= 1.0 + 1e-4


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "x", "max_output_tokens": 1}),
        ("/v1/messages", {"messages": CHAT, "max_tokens": 1, "model": "m"}),
    ],
)
def test_protocols_without_a_place_for_it_refuse_it(
    server: Serving, path: str, body: dict[str, Any]
) -> None:
    reply = server.post(path, post_sampling_probs=True, **body)
    assert reply.status_code == 400
    assert "post_sampling_probs is not supported" in reply.text
