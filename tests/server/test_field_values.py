"""Whatever a field holds, the answer is no bug: it is taken, or refused with the reason."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest

from helpers.serving import Serving, serving
from ngramspec.drafting.config import CONFIGS
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.models.ollama.parameters import KINDS
from ngramspec.server.llama_server.plan import NativeBody
from ngramspec.server.ollama.bodies import GenerateBody, OllamaChatBody
from ngramspec.server.openai.plan import ChatBody, CompletionBody

VALUES = (-1, 1 << 63, 10**310, float("nan"), "\ud800", [[]], [{}], {"x": 1})
HELLO = {"role": "user", "content": "x"}
BODIES = {
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/completion": NativeBody,
    "/infill": NativeBody,
    "/api/generate": GenerateBody,
    "/api/chat": OllamaChatBody,
}
SCHEMA_WORDS = (
    *("type", "properties", "required", "items", "prefixItems", "minItems", "maxItems", "enum"),
    *("const", "anyOf", "oneOf", "allOf", "$ref", "pattern", "minLength", "maxLength", "format"),
    *("minimum", "additionalProperties"),
)


@pytest.fixture(scope="module")
def small(model: LlamaModel) -> Iterator[Serving]:
    """A server whose answers are short, whatever was asked for."""
    with serving(model, context_size=48) as server:
        yield server


def bugs(server: Serving, path: str, bodies: list[dict[str, Any]]) -> list[Any]:
    """Return the bodies that are answered with a bug."""
    base: dict[str, Any] = {"model": "tiny", "prompt": "x", "messages": [HELLO], "max_tokens": 1}
    base |= {"input_prefix": "a", "input_suffix": "b"}
    options = {"num_predict": 1}
    if path.startswith("/api/"):
        base = {"model": "tiny"} | ({"prompt": "x"} if path[5] == "g" else {"messages": [HELLO]})
    failures = []
    place = urlsplit(server.url)
    with contextlib.closing(HTTPConnection(place.hostname or "", place.port)) as client:
        for body in bodies:
            whole = {**base, "options": options, **body}
            if isinstance(whole["options"], dict):
                whole["options"] = {**options, **whole["options"]}
            client.request("POST", path, json.dumps(whole))
            answer = client.getresponse()
            text = answer.read()
            if answer.status not in (200, 400, 404, 501):
                failures.append((body, answer.status, text))
    return failures


def values(path: str, name: str) -> Sequence[Any]:
    """Return all for the first body with such a field, and some of them for each of the others."""
    field = repr(BODIES[path].model_fields[name])
    same = [one for one in BODIES if repr(BODIES[one].model_fields.get(name)) == field]
    place = same.index(path)
    return VALUES[place % 4 :: 4] if place else VALUES


@pytest.mark.parametrize("path", BODIES)
def test_fields_of_bodies(small: Serving, path: str) -> None:
    bodies = [{name: value} for name in BODIES[path].model_fields for value in values(path, name)]
    assert ascii(bugs(small, path, bodies)) == "[]"


@pytest.mark.parametrize("path", BODIES)
def test_names_of_fields(small: Serving, path: str) -> None:
    names = ("\ud800", "speculative.\udfff", "options.\ud800", "x" * 100_000, "\n", "")
    assert bugs(small, path, [{name: 1} for name in names]) == []


def test_fields_of_drafters(small: Serving) -> None:
    bodies = [
        {f"speculative.{name.replace('-', '_')}.{field.name}": value, "speculative.types": name}
        for name, config in CONFIGS.items()
        for field in fields(config)
        for value in VALUES
    ]
    assert bugs(small, "/completion", bodies) == []


def test_fields_of_ollama(small: Serving) -> None:
    bodies = [{"options": {name: value}} for name in KINDS for value in VALUES]
    assert bugs(small, "/api/generate", bodies) == []


def test_fields_of_messages_and_tools(small: Serving) -> None:
    names = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content")
    messages = [{**HELLO, name: value} for name in names for value in VALUES]
    bodies: list[dict[str, Any]] = [{"messages": [one, HELLO]} for one in messages]
    for name in ("name", "parameters", "description"):
        tools = [{"type": "function", "function": {"name": "f", name: value}} for value in VALUES]
        bodies += [{"tools": [tool], "tool_choice": "required"} for tool in tools]
    assert bugs(small, "/v1/chat/completions", bodies) == []
    assert bugs(small, "/api/chat", bodies) == []


def test_words_of_schemas(small: Serving) -> None:
    schemas: list[Any] = [{word: value} for word in SCHEMA_WORDS for value in VALUES]
    schemas += [{"type": "string", **one} for one in schemas]
    schemas += [{"properties": {"a": one}, "required": ["a"]} for one in schemas[::3]]
    assert bugs(small, "/completion", [{"json_schema": schema} for schema in schemas]) == []
