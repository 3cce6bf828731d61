"""POST /v1/completions, asked by OpenAI's own client."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from helpers.serving import Serving

PROMPT = "def area("


def tokens_of(server: Serving, text: str) -> list[int]:
    ids: list[int] = server.post("/tokenize", content=text).json()["tokens"]
    return ids


def test_a_text_is_continued_in_openais_shape(server: Serving) -> None:
    answer = server.complete(max_tokens=8)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.choices[0].text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 8
    assert answer.model_extra["timings"]["predicted_n"] == 8


def test_prompts_may_be_texts_ids_or_lists_of_them(server: Serving) -> None:
    ids = tokens_of(server, PROMPT)
    text = server.complete(max_tokens=8).choices[0].text
    assert server.complete(prompt=ids, max_tokens=8).choices[0].text == text
    both = server.complete(prompt=[PROMPT, "class "], max_tokens=8)
    lists = server.complete(prompt=[ids, tokens_of(server, "class ")], max_tokens=8)
    assert [choice.text for choice in both.choices] == [choice.text for choice in lists.choices]
    assert both.choices[0].text == text
    assert both.choices[1].text != text
    assert both.usage.prompt_tokens == len(ids) + len(tokens_of(server, "class "))


def test_n_counts_for_every_prompt(server: Serving) -> None:
    answer = server.complete(prompt=[PROMPT, "class "], n=2, max_tokens=4, temperature=1.0, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage.completion_tokens <= 16
    one = server.complete(prompt=[PROMPT, "class "], max_tokens=1)
    assert answer.usage.prompt_tokens == one.usage.prompt_tokens


def test_echo_puts_the_prompt_before_the_text(server: Serving) -> None:
    plain = server.complete(max_tokens=4).choices[0].text
    assert server.complete(max_tokens=4, echo=True).choices[0].text == PROMPT + plain
    ids = tokens_of(server, PROMPT)
    events = server.complete(prompt=ids, max_tokens=4, echo=True, stream=True)
    assert "".join(event.choices[0].text for event in events) == PROMPT + plain


def test_echo_repeats_texts_of_a_list_as_they_were_written(server: Serving) -> None:
    texts = ["<|im_start|>user\n", PROMPT, "<|im_end|>"]
    ids = tokens_of(server, PROMPT)
    prompts = [*texts[:2], {"prompt_string": texts[2]}, ids]
    answer = server.complete(
        prompt=[PROMPT], max_tokens=0, n=2, echo=True, extra={"prompt": prompts}
    )
    expected = [text for text in (*texts, PROMPT) for _ in range(2)]
    assert [choice.text for choice in answer.choices] == expected


def test_no_tokens_are_made_when_none_are_wanted(server: Serving) -> None:
    answer = server.complete(max_tokens=0, echo=True)
    assert answer.choices[0].text == PROMPT
    assert answer.usage.completion_tokens == 0


def test_logprobs_have_openais_older_shape(server: Serving) -> None:
    choice = server.complete(max_tokens=5, logprobs=2).choices[0]
    probs = choice.logprobs
    assert "".join(probs.tokens) == choice.text
    assert len(probs.token_logprobs) == len(probs.top_logprobs) == len(probs.text_offset) == 5
    assert probs.text_offset == [len("".join(probs.tokens[:i])) for i in range(5)]
    assert [next(iter(top)) for top in probs.top_logprobs] == probs.tokens  # greedy
    best = [top[token] for token, top in zip(probs.tokens, probs.top_logprobs, strict=True)]
    assert probs.token_logprobs == pytest.approx(best, abs=1e-4)


def test_streamed_logprobs_are_those_of_the_whole(server: Serving) -> None:
    whole = server.complete(max_tokens=9, logprobs=1).choices[0].logprobs
    tokens: list[str] = []
    offsets: list[int] = []
    for event in server.complete(max_tokens=9, logprobs=1, stream=True):
        if event.choices[0].logprobs:
            tokens += event.choices[0].logprobs.tokens
            offsets += event.choices[0].logprobs.text_offset
    assert tokens == whole.tokens
    assert offsets == whole.text_offset


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": [1, -1]}, 400, "prompt"),
        ({"prompt": [1 << 20]}, 400, "prompt"),
        ({"extra": {"prompt": 5}}, 400, "prompt"),
        ({"extra": {"prompt": {"text": "x"}}}, 400, "prompt"),
        ({"suffix": "return 1"}, 400, "suffix"),
        ({"best_of": 3}, 400, "best_of"),
        ({"logprobs": 5000}, 400, "logprobs"),
        ({"extra": {"grammar": "no grammar"}}, 400, "grammar"),
        ({"extra": {"grammar": 'root ::= "a"', "json_schema": {}}}, 400, "grammar"),
    ],
)
def test_bad_fields_are_named(
    server: Serving, fields: dict[str, Any], status: int, param: str | None
) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        server.complete(max_tokens=2, **fields)
    assert caught.value.status_code == status
    assert caught.value.param == param


def test_a_missing_prompt_is_told(server: Serving) -> None:
    reply = server.post("/v1/completions", max_tokens=2)
    assert reply.status_code == 400
    assert reply.json()["error"]["message"] == "prompt is required"


def test_a_grammar_shapes_the_text(server: Serving) -> None:
    grammar = 'root ::= ("yes" | "no") " and " ("yes" | "no")'
    answer = server.complete(max_tokens=20, extra={"grammar": grammar})
    first, word, second = answer.choices[0].text.split()
    assert {first, second} <= {"yes", "no"}
    assert word == "and"
    assert answer.choices[0].finish_reason == "stop"


def test_the_answer_ends_when_the_context_is_full(start) -> None:
    server = start(slots=1, context_size=64)
    answer = server.complete(extra={"ignore_eos": True})
    assert answer.usage.total_tokens == 64
    assert answer.choices[0].finish_reason == "length"
