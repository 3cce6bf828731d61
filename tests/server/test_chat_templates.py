"""Prompts of chat templates are those of llama-server, and any messages get one or an error.

What llama-server makes of the templates in helpers/chat_templates.py is recorded:
python tools/chat_templates.py --llama-server llama-server --record
"""

from __future__ import annotations

import datetime
import gzip
import json
import string
import time
from typing import Any

import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.chat_templates import TEMPLATES
from helpers.chats import ANSWER, CONVERSATIONS, HELLO, TOOLS, our_answer
from helpers.paths import GOLDEN_DATA
from helpers.serving import Serving, Start
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.server import ServedModel

RECORDED = json.loads(gzip.decompress((GOLDEN_DATA / "chat_prompts.json.gz").read_bytes()))


def served_by(model: LlamaModel, template: str) -> ServedModel:
    return ServedModel(name="x", model=model, engine=None, template=template)  # type: ignore[arg-type]


def written_as_text(body: dict[str, Any], caps: dict[str, bool]) -> bool:
    """Return whether we write tools and calls as text, where llama-server leaves them out."""
    calls = body.get("tools") or any("tool_calls" in message for message in body["messages"])
    tools = any(message["role"] == "tool" for message in body["messages"])
    return bool(calls or tools) and not (caps["supports_tools"] or caps["supports_tool_calls"])


@pytest.mark.parametrize("name", TEMPLATES)
def test_prompts_are_those_of_llama_server(model: LlamaModel, name: str) -> None:
    served, recorded = served_by(model, TEMPLATES[name]), RECORDED[name]
    assert dict(served.chat_capabilities) == recorded["caps"]
    compared = 0
    for chat, body in CONVERSATIONS.items():
        if not written_as_text(body, recorded["caps"]):
            assert our_answer(body, served) == recorded["answers"][chat], chat
            compared += 1
    assert compared >= len(CONVERSATIONS) // 2


def test_recorded_prompts_are_of_these_templates_and_chats() -> None:
    assert set(RECORDED) == set(TEMPLATES)
    for recorded in RECORDED.values():
        assert set(recorded["answers"]) == set(CONVERSATIONS)
    refused = [
        text for record in RECORDED.values() for text in record["answers"].values() if not text
    ]
    assert refused


def test_templates_know_the_day_and_whether_to_think(model: LlamaModel) -> None:
    served = served_by(
        model,
        "{{ date_string }}|{{ datetime }}|{% for m in messages %}{{ m.content }}{% endfor %}"
        "{% if enable_thinking %}<think>{% endif %}",
    )
    now = datetime.datetime.now()
    days = {(now + datetime.timedelta(minutes=n)).strftime("%d %b %Y|%b %d %Y|") for n in (-1, 0)}
    on = our_answer({"messages": [HELLO]}, served)
    assert on in {f"{day}Hello there<think>" for day in days}
    off = our_answer({"messages": [HELLO], "reasoning_effort": "none"}, served)
    assert off in {f"{day}Hello there" for day in days}


def test_props_tell_what_the_template_can_do(server: Serving) -> None:
    caps = server.client.get("/props").json()["chat_template_caps"]
    assert caps["supports_string_content"]
    assert not caps["supports_tools"]
    assert set(caps) == set(RECORDED["plain"]["caps"])


@pytest.mark.parametrize("name", ["llama3", "mistral-v7", "gemma", "phi3"])
def test_llama_cpps_own_templates_have_names(model: LlamaModel, name: str) -> None:
    served = served_by(model, name)
    marks = {
        "llama3": "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|>",
        "mistral-v7": "[INST] {}[/INST]",
        "gemma": "<start_of_turn>user\n{}<end_of_turn>\n",
        "phi3": "<|user|>\n{}<|end|>\n",
    }
    user = marks[name].format("Hello there")
    prompt = our_answer({"messages": [HELLO]}, served)
    assert prompt is not None
    assert prompt.startswith(user)
    begun = {"messages": [HELLO, {"role": "assistant", "content": "Well, "}]}
    assert our_answer(begun, served) == f"{prompt}Well, "
    closed = our_answer({"messages": [HELLO], "add_generation_prompt": False}, served)
    assert closed == user
    assert "<tool_call>" in str(our_answer({"messages": [HELLO], "tools": TOOLS}, served))
    assert our_answer({"messages": [ANSWER]}, served) is None


def test_a_begun_answer_is_continued_from_its_reasoning(
    start: Start,
) -> None:
    server = start(slots=1, served={"template": TEMPLATES["opened reasoning"]})
    begun = {"role": "assistant", "content": "", "reasoning_content": "They greet"}
    body = {"messages": [HELLO, begun], "max_tokens": 2, "logit_bias": [["them", 100]]}
    message = server.post("/v1/chat/completions", **body).json()["choices"][0]["message"]
    assert message["reasoning_content"]
    assert not message["content"]
    prompt = server.post("/apply-template", **body).json()["prompt"]
    assert prompt.endswith("<|im_start|>assistant\n<think>\nThey greet")


def test_what_cannot_be_continued_is_told(server: Serving) -> None:
    reasons = {
        "messages must not end with two messages of": {"messages": [HELLO, ANSWER, ANSWER]},
        "messages must not end with calls of tools": CONVERSATIONS["calls at the end"],
        "add_generation_prompt must be false": CONVERSATIONS["continued and begun"],
    }
    for reason, body in reasons.items():
        more = {key: value for key, value in body.items() if key != "messages"}
        with pytest.raises(openai.BadRequestError, match=reason):
            server.chat(messages=body["messages"], max_tokens=1, extra=more)


@pytest.fixture(scope="module")
def every_template(model: LlamaModel) -> list[ServedModel]:
    names = [*TEMPLATES.values(), "llama3"]
    return [served_by(model, template) for template in names]


TEXT = st.text(max_size=8) | st.sampled_from(["", "</think>", "\0", "\ud800", "{{ 1 }}", "{}", "{"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ROLE = st.sampled_from(["system", "developer", "user", "assistant", "tool", "function", "x"])
PART = st.fixed_dictionaries({"type": st.sampled_from(["text", "refusal", "image_url"])},
                             optional={"text": TEXT, "refusal": TEXT})  # fmt: skip
CONTENT = TEXT | st.none() | st.lists(PART, max_size=3) | JSON
FUNCTION = st.fixed_dictionaries(
    {"name": TEXT}, optional={"arguments": TEXT | JSON, "description": JSON, "parameters": JSON}
)
CALL = st.fixed_dictionaries(
    {"function": FUNCTION}, optional={"id": TEXT, "type": st.just("function")}
)
MESSAGE = st.fixed_dictionaries(
    {"role": ROLE | JSON},
    optional={
        "content": CONTENT,
        "tool_calls": st.lists(CALL, max_size=2) | JSON,
        "reasoning_content": TEXT | JSON,
        "name": TEXT | JSON,
        "tool_call_id": TEXT,
    },
)
TOOL = st.fixed_dictionaries({"type": st.just("function"), "function": FUNCTION})
NAMES = st.sampled_from(
    ["enable_thinking", "reasoning_effort", "date_string", "self", "loop", "range", "messages",
     "preserve_reasoning", "continue_final_message", "namespace", "template"]
)  # fmt: skip
CHAT = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGE, max_size=4)},
    optional={
        "tools": st.lists(TOOL, max_size=2),
        "tool_choice": st.sampled_from(["auto", "none", "required"]),
        "chat_template_kwargs": st.dictionaries(NAMES | TEXT, JSON, max_size=2),
        "continue_final_message": st.sampled_from([True, "content", "reasoning_content"]) | JSON,
        "add_generation_prompt": st.none() | st.booleans(),
        "reasoning_effort": st.none() | TEXT,
    },
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # many ways to be wrong
@given(body=CHAT)
def test_any_messages_get_a_prompt_or_an_error(
    every_template: list[ServedModel], body: dict[str, Any]
) -> None:
    for served in every_template:
        prompt = our_answer(body, served)  # any other exception would fail
        assert prompt is None or isinstance(prompt, str)


def seconds(served: ServedModel, count: int) -> float:
    messages = [HELLO, ANSWER] * count + [HELLO]
    least = float("inf")
    for _ in range(3):
        started = time.process_time()
        assert our_answer({"messages": messages}, served)
        least = min(least, time.process_time() - started)
    return least


@pytest.mark.parametrize("name", ["object arguments", "deepseek-4", "mistral-3", "gpt-oss"])
def test_the_time_of_a_prompt_grows_with_its_messages_only(model: LlamaModel, name: str) -> None:
    served = served_by(model, TEMPLATES[name])
    seconds(served, 1)  # compiled and known by now
    assert seconds(served, 4000) < 10 * seconds(served, 1000)  # 4 if linear, 16 if quadratic


def test_long_texts_take_no_longer_than_their_length(model: LlamaModel) -> None:
    served = served_by(model, TEMPLATES["object arguments"])
    text = string.ascii_letters * 20_000
    for content in (text, "<think>" * 100_000, "{" * 500_000, [{"type": "text", "text": text}]):
        started = time.process_time()
        begun = {"role": "assistant", "content": content, "reasoning_content": text}
        assert our_answer({"messages": [HELLO, begun]}, served)
        assert time.process_time() - started < 5
