"""POST /v1/chat/completions, asked by OpenAI's own client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from helpers.serving import ANSWER, CHAT, REPEAT, Serving
from ngramspec.engine.sampling import SAMPLERS

# There is no such function, so the model has no idea.
OPEN = [{"role": "user", "content": "Show the function `f` from this file:\n\n```python\n```"}]


def test_a_chat_is_answered_in_openais_shape(server: Serving) -> None:
    answer = server.chat(max_tokens=64)
    choice = answer.choices[0]
    assert choice.message.content == ANSWER
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert choice.index == 0
    assert choice.logprobs is None
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.system_fingerprint.startswith("b")
    assert answer.model == "tiny"


def test_usage_and_timings_add_up(server: Serving) -> None:
    answer = server.chat(max_tokens=64)
    timings = answer.model_extra["timings"]
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert timings["cache_n"] == answer.usage.prompt_tokens_details.cached_tokens
    assert timings["cache_n"] + timings["prompt_n"] == answer.usage.prompt_tokens
    assert timings["predicted_n"] == answer.usage.completion_tokens
    assert 0 < timings["draft_n_accepted"] <= timings["draft_n"]
    assert timings["predicted_per_second"] > 0


def test_a_verbose_answer_has_llama_servers_object_too(server: Serving) -> None:
    answer = server.chat(max_tokens=4, extra={"verbose": True})
    verbose = answer.model_extra["__verbose"]
    assert verbose["content"] == answer.choices[0].message.content
    assert verbose["prompt"].endswith("<|im_start|>assistant\n")
    assert verbose["generation_settings"]["max_tokens"] == 4
    assert len(verbose["tokens"]) == 4
    text = server.openai.completions.create(
        model="tiny", prompt="x", max_tokens=2, extra_body={"verbose": True}
    )
    assert text.model_extra["__verbose"]["prompt"] == "x"
    assert "__verbose" not in server.chat(max_tokens=1).model_extra


def test_a_server_can_be_verbose_by_default(start) -> None:
    server = start(slots=1, verbose=True)
    assert "__verbose" in server.chat(max_tokens=1).model_extra
    assert "__verbose" not in server.chat(max_tokens=1, extra={"verbose": False}).model_extra


def test_the_rate_leaves_out_the_first_token(server: Serving) -> None:
    first = server.chat(max_tokens=1).model_extra["timings"]
    assert first["predicted_n"] == 1
    assert first["predicted_per_second"] == first["predicted_per_token_ms"] == 0
    timings = server.chat(max_tokens=9).model_extra["timings"]
    assert timings["predicted_per_token_ms"] == pytest.approx(timings["predicted_ms"] / 8, abs=1e-3)


def test_draft_figures_are_there_only_when_something_was_drafted(server: Serving) -> None:
    answer = server.chat(max_tokens=8, extra={"speculative.enabled": False})
    assert "draft_n" not in answer.model_extra["timings"]


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_the_answer_ends_at_its_limit(server: Serving, field: str) -> None:
    answer = server.chat(**{field: 5})
    assert answer.usage.completion_tokens == 5
    assert answer.choices[0].finish_reason == "length"


def test_contents_may_be_lists_of_text_parts(server: Serving) -> None:
    parts = [{"type": "text", "text": CHAT[0]["content"]}]
    answer = server.chat(messages=[{"role": "user", "content": parts}], max_tokens=64)
    assert answer.choices[0].message.content == ANSWER


def test_all_roles_reach_the_template(server: Serving) -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "again"},
    ]
    prompt = server.post("/apply-template", messages=messages).json()["prompt"]
    assert prompt == (
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
        "<|im_start|>assistant\nhello<|im_end|>\n<|im_start|>user\nagain<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert server.chat(messages=messages, max_tokens=3).usage.completion_tokens <= 3


def test_a_begun_answer_is_continued(server: Serving) -> None:
    messages = [*CHAT, {"role": "assistant", "content": "```python\ndef area("}]
    answer = server.chat(messages=messages, max_tokens=64)
    assert answer.choices[0].message.content == ANSWER.removeprefix("```python\ndef area(")


def test_a_stop_text_may_stand_alone(server: Serving) -> None:
    assert server.chat(stop=":", max_tokens=64).choices[0].message.content.endswith("height)")


def test_n_gives_choices_from_seeds_that_count_up(server: Serving) -> None:
    settings = {"messages": OPEN, "temperature": 4.0, "max_tokens": 24}
    answer = server.chat(n=2, seed=7, **settings)
    first, second = (choice.message.content for choice in answer.choices)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert first == server.chat(seed=7, **settings).choices[0].message.content
    assert second == server.chat(seed=8, **settings).choices[0].message.content
    assert first != second
    assert answer.usage.completion_tokens <= 48
    one = server.chat(messages=OPEN, max_tokens=1)
    assert answer.usage.prompt_tokens == one.usage.prompt_tokens


def test_a_seed_makes_an_answer_reproducible(server: Serving) -> None:
    def answer(seed: int | None) -> str:
        chat = server.chat(messages=OPEN, seed=seed, temperature=1.5, max_tokens=24)
        return str(chat.choices[0].message.content)

    assert answer(11) == answer(11)
    assert answer(-5) == answer(-5)
    assert len({answer(seed) for seed in (1, 2, 3, None, None)}) > 1


def test_logprobs_are_there_for_every_token(server: Serving) -> None:
    answer = server.chat(max_tokens=6, logprobs=True, top_logprobs=3)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == 6
    assert b"".join(bytes(e.bytes) for e in entries).decode() == answer.choices[0].message.content
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert entry.top_logprobs[0].token == entry.token  # greedy
        assert entry.logprob == pytest.approx(entry.top_logprobs[0].logprob, abs=1e-4)
        assert entry.logprob <= 0


def test_logprobs_alone_bring_no_other_tokens(server: Serving) -> None:
    answer = server.chat(max_tokens=2, logprobs=True)
    assert [entry.top_logprobs for entry in answer.choices[0].logprobs.content] == [[], []]


@pytest.mark.parametrize("asked", [{}, {"logprobs": False}, {"logprobs": None}])
def test_no_likeliest_tokens_ask_for_no_log_probabilities(
    server: Serving, asked: dict[str, Any]
) -> None:
    answer = server.chat(max_tokens=2, top_logprobs=0, **asked)
    assert answer.choices[0].logprobs is None


def test_logit_bias_takes_ids_texts_and_pairs(server: Serving) -> None:
    token = server.post("/tokenize", content="X").json()["tokens"][0]
    ways = [{"logit_bias": {str(token): 100}}, {"logit_bias": {"X": 100}}]
    ways += [{"logit_bias": [[token, 100]]}, {"logit_bias": [["X", 100]]}]
    for extra in ways:
        answer = server.chat(max_tokens=3, extra=extra)
        assert answer.choices[0].message.content == "XXX"


def test_a_bias_of_false_bans_a_token(server: Serving) -> None:
    plain = server.chat(max_tokens=1, logprobs=True).choices[0]
    banned = server.chat(max_tokens=1, extra={"logit_bias": [[plain.message.content, False]]})
    assert banned.choices[0].message.content != plain.message.content


def test_penalties_change_the_answer(server: Serving) -> None:
    prompt = "one two three four, one two three four, one two three"
    plain = server.complete(prompt=prompt, max_tokens=16).choices[0].text
    strict = server.complete(prompt=prompt, max_tokens=16, frequency_penalty=2.0).choices[0].text
    assert plain != strict


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": 7, "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "assistant", "content": "I"}] * 2}, "messages"),
        ({"extra": {"top_k": 1.5}}, "top_k"),
        ({"extra": {"top_k": "4"}}, "top_k"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"logit_bias": [["x"]]}, "logit_bias"),
        ({"extra": {"top_logprobs": 2}}, "top_logprobs"),
        ({"extra": {"temperature": "hot"}}, "temperature"),
        ({"extra": {"samplers": 5}}, "samplers"),
        ({"extra": {"id_slot": 99}}, "id_slot"),
        ({"extra": {"reasoning_format": "other"}}, "reasoning_format"),
        ({"prediction": {"type": "other", "content": "x"}}, "prediction"),
        ({"prediction": {"type": "content"}}, "prediction.content"),
        ({"stream_options": {"include_usage": "x"}}, "stream_options.include_usage"),
    ],
)
def test_bad_fields_are_named(server: Serving, fields: dict[str, object], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        server.chat(max_tokens=2, **fields)
    assert caught.value.type == "invalid_request_error"
    assert caught.value.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
        {"modalities": ["text", "audio"]},
        {"extra": {"functions": [{"name": "f"}]}},
        {"extra": {"lora": [{"id": 0}]}},
        {"extra": {"adaptive_target": 0.5}},
    ],
)
def test_what_cannot_be_done_is_refused(server: Serving, fields: dict[str, object]) -> None:
    with pytest.raises(openai.APIStatusError) as caught:
        server.chat(max_tokens=2, **fields)
    assert caught.value.status_code == 400  # clients try again after 501
    assert str(caught.value.param).startswith(next(iter(fields.get("extra", fields))))  # type: ignore[call-overload]


def test_a_part_that_is_no_text_is_told_apart_from_a_wrong_one(server: Serving) -> None:
    for kind, code in (("image_url", "not_supported"), ("text", None)):
        parts = [{"type": kind}]
        with pytest.raises(openai.BadRequestError) as caught:
            server.chat(messages=[{"role": "user", "content": parts}], max_tokens=2)
        assert caught.value.param == "messages[0].content[0]"
        assert caught.value.code == code


def test_values_beyond_their_bounds_are_the_nearest(server: Serving) -> None:
    def text(**fields: Any) -> str | None:
        answer = server.chat(messages=OPEN, max_tokens=16, seed=3, **fields)
        return answer.choices[0].message.content

    assert text(temperature=-1) == text(temperature=0)
    assert text(temperature=1.5, top_p=2) == text(temperature=1.5, top_p=1)
    assert text(extra={"top_k": -1}) == text(extra={"top_k": 0})
    assert text(extra={"top_k": 3.0}, temperature=1.5) == text(extra={"top_k": 3}, temperature=1.5)
    assert text(logit_bias={"99999": 1}) == text()
    assert server.post("/completion", prompt="x", n_predict=4.0).json()["tokens_predicted"] == 4


@pytest.mark.parametrize(
    ("names", "used"),
    [
        (["temperature", "top_k"], ["temperature", "top_k"]),
        (["top_k", "top_p", "infill"], ["top_k", "top_p", "infill"]),
        (["min-p", "typical_p", "adaptive_p", "temp"], ["min_p", "typ_p", "temperature"]),
        ("ktk", ["top_k", "temperature"]),
        ([], None),
    ],
)
def test_samplers_run_in_the_order_of_the_request(
    server: Serving, names: Any, used: list[str] | None
) -> None:
    answer = server.post("/completion", prompt="x", n_predict=3, samplers=names).json()
    assert answer["generation_settings"]["samplers"] == list(used or SAMPLERS)


REFUSES_SYSTEM = (
    "{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    "[{{ m.role }}] {{ m.content }}{% endfor %}"
)
DROPS_SYSTEM = (
    "{% for m in messages if m.role != 'system' %}[{{ m.role }}] {{ m.content }}{% endfor %}"
)


@pytest.mark.parametrize("template", [REFUSES_SYSTEM, DROPS_SYSTEM])
def test_a_system_message_joins_the_next_where_the_template_takes_none(
    start, template: str
) -> None:
    server = start(slots=1, served={"template": template})

    def prompt(*messages: tuple[str, str]) -> Any:
        chat = [{"role": role, "content": text} for role, text in messages]
        return server.post("/apply-template", messages=chat).json()

    assert prompt(("system", "be brief"), ("user", "hi")) == {"prompt": "[user] be brief\nhi"}
    assert prompt(("user", "hi")) == {"prompt": "[user] hi"}
    assert prompt(("system", ""), ("user", "hi")) == {"prompt": "[user] \nhi"}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    answer = server.chat(messages=OPEN, tools=tools, max_tokens=2)
    assert answer.choices[0].finish_reason in ("length", "stop")


def test_a_line_with_too_little_indent_ends_an_answer(server: Serving) -> None:
    begun = f"<|im_start|>user\n{REPEAT}<|im_end|>\n<|im_start|>assistant\n```python\ndef area("
    body = {"prompt": begun, "n_predict": 60, "temperature": 0}
    answer = server.post("/completion", **body, n_indent=3).json()
    whole = server.post("/completion", **body).json()["content"]
    assert answer["stop_type"] == "limit"
    assert whole.startswith(answer["content"])
    assert len(answer["content"]) < len(whole)


def test_names_that_clients_send_cannot_write_lines_of_the_log(
    server: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("x\n2026-01-01 ERROR all is lost", "\ud800"):
        native = {"prompt": "x", "samplers": [name], "n_predict": 1}
        server.client.post("/completion", content=json.dumps(native))
        chat = {"model": "tiny", "options": {name: 1, "num_predict": 1}}
        server.client.post("/api/chat", content=json.dumps(chat))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 4
    assert all(line.isascii() and line.isprintable() for line in lines)


def test_samplers_that_are_left_out_are_off(server: Serving) -> None:
    settings = {"messages": OPEN, "temperature": 1.5, "max_tokens": 16, "seed": 3}
    neutral = {"top_k": 0, "top_p": 1, "min_p": 0}
    named = server.chat(**settings, extra={"samplers": ["temperature"]})
    spelled = server.chat(**settings, extra={"samplers": "t"})
    by_hand = server.chat(**settings, extra=neutral)
    texts = {answer.choices[0].message.content for answer in (named, spelled, by_hand)}
    assert len(texts) == 1


def test_a_model_without_a_template_says_so(start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start(slots=1)
    monkeypatch.setattr(server.served.model, "chat_template", None)
    with pytest.raises(openai.BadRequestError, match="no chat template"):
        server.chat(max_tokens=2)


def test_the_servers_own_defaults_apply(start) -> None:
    server = start(slots=1, served={"max_tokens": 3, "system": "be brief", "stop": ("never",)})
    answer = server.openai.chat.completions.create(model="tiny", messages=CHAT)
    assert answer.usage.completion_tokens == 3
    prompt = server.post("/apply-template", messages=CHAT).json()["prompt"]
    assert prompt.startswith("<|im_start|>system\nbe brief<|im_end|>")
