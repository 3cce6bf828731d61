"""Answers that follow a JSON schema: response_format and tools, strict and not."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest

from helpers.json_schemas import PERSON
from helpers.serving import Serving


def test_a_strict_request_names_what_it_cannot_enforce(server: Serving) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert server.chat(response_format=wanted, max_tokens=3).choices
    wanted["json_schema"]["strict"] = True
    with pytest.raises(openai.BadRequestError, match="uniqueItems cannot be enforced") as caught:
        server.chat(response_format=wanted, max_tokens=3)
    assert caught.value.param == "response_format"
    for route in ("/v1/completions", "/v1/chat/completions"):
        body = {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}
        made = server.post(route, **body, max_tokens=3, response_format=wanted)
        assert made.status_code == 400
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": schema}}
    tool["function"]["strict"] = True
    with pytest.raises(openai.BadRequestError, match=r"tools\.f: uniqueItems"):
        server.chat(tools=[tool], tool_choice="required", max_tokens=3)
    tool["function"]["strict"] = False
    assert server.chat(tools=[tool], tool_choice="required", max_tokens=3).choices


def test_a_strict_answer_stays_within_its_bounds(server: Serving) -> None:
    number = {"type": "integer", "minimum": 1, "maximum": 5}
    words = {"type": "string", "pattern": "^[a-z]+( [a-z]+)*$", "maxLength": 9}
    schema = {"properties": {"n": number, "s": words}, "required": ["n", "s"],
              "type": "object", "additionalProperties": False}  # fmt: skip
    wanted: Any = {"type": "json_schema",
                   "json_schema": {"name": "x", "schema": schema, "strict": True}}  # fmt: skip
    for seed in (1, 2, 3):
        made = server.chat(response_format=wanted, temperature=2, seed=seed, max_tokens=200)
        jsonschema.validate(json.loads(made.choices[0].message.content), schema)


def test_endless_and_huge_schemas_are_refused(server: Serving) -> None:
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    wide = {"properties": {f"p{i}": {"type": "string", "maxLength": i} for i in range(3000)}}
    for schema in (deep, wide, {"$ref": "#"}):
        made = server.post("/completion", prompt="x", n_predict=1, json_schema=schema)
        assert made.status_code == 400


def test_an_answer_follows_its_schema(server: Serving) -> None:
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    for seed in (1, 2):
        made = server.chat(response_format=wanted, temperature=1.5, seed=seed, max_tokens=300)
        person = json.loads(made.choices[0].message.content)
        assert len(person["name"]) <= 8
        assert set(person) <= {"name", "age", "tags"}
        assert made.choices[0].finish_reason == "stop"


def test_json_mode_gives_an_object(server: Serving) -> None:
    extra = {"logit_bias": {"}": 8}}
    made = server.chat(response_format={"type": "json_object"}, max_tokens=200, extra=extra)
    assert isinstance(json.loads(made.choices[0].message.content), dict)
    shaped = server.chat(
        extra={"response_format": {"type": "json_object", "schema": {"const": {"a": 1}}}},
        max_tokens=40,
    )
    assert json.loads(shaped.choices[0].message.content) == {"a": 1}
    plain = server.chat(response_format={"type": "text"}, max_tokens=3)
    assert plain.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    "given", [{"type": "xml"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": 5}]
)
def test_bad_response_formats_are_refused(server: Serving, given: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        server.chat(extra={"response_format": given}, max_tokens=3)
    assert caught.value.param == "response_format"
