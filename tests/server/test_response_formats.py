"""Answers that follow a JSON schema: response_format and tools, strict and not."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest

from helpers.json_schemas import PERSON
from helpers.protocols import PROTOCOLS, Chat, Messages, Protocol
from helpers.serving import Serving


def test_a_strict_request_names_what_it_cannot_enforce(server: Serving) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    shape: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert server.chat(response_format=shape, max_tokens=3).choices
    shape["json_schema"]["strict"] = True
    with pytest.raises(openai.BadRequestError, match="uniqueItems cannot be enforced") as caught:
        server.chat(response_format=shape, max_tokens=3)
    assert caught.value.param == "response_format"
    for route in ("/v1/completions", "/v1/chat/completions"):
        body = {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}
        reply = server.post(route, **body, max_tokens=3, response_format=shape)
        assert reply.status_code == 400
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
    shape: Any = {"type": "json_schema",
                  "json_schema": {"name": "x", "schema": schema, "strict": True}}  # fmt: skip
    for seed in (1, 2, 3):
        answer = server.chat(response_format=shape, temperature=2, seed=seed, max_tokens=200)
        jsonschema.validate(json.loads(answer.choices[0].message.content), schema)


def test_endless_and_huge_schemas_are_refused(server: Serving) -> None:
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    wide = {"enum": list(range(100_001))}
    for schema in (deep, wide, {"$ref": "#"}):
        reply = server.post("/completion", prompt="x", n_predict=1, json_schema=schema)
        assert reply.status_code == 400


A = {"$ref": "#/$defs/A"}
ENDLESS: dict[str, tuple[str, Any]] = {
    "a required property": ("A", {"$defs": {"A": A}, "properties": {"x": A}, "required": ["x"]}),
    "one by way of another": ("A", {"$defs": {"A": {"$ref": "#/$defs/B"}, "B": A}, **A}),
    "alternatives": ("schema", {"anyOf": [{"$ref": "#"}]}),
    "an item": ("schema", {"type": "array", "items": {"$ref": "#"}, "minItems": 1}),
    "longer each time": ("A", {"$defs": {"A": {"properties": {"a": A}, "required": ["a"]}}, **A}),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_schema_without_a_value_that_ends_is_refused(server: Serving, name: str) -> None:
    rule, schema = ENDLESS[name]
    shape: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": schema}}
    for strict in (False, True):
        shape["json_schema"]["strict"] = tool["function"]["strict"] = strict
        for fields in ({"response_format": shape}, {"tools": [tool], "tool_choice": "required"}):
            with pytest.raises(
                openai.BadRequestError, match=f"never be completed: .*'{rule}'"
            ) as caught:
                server.chat(**fields, max_tokens=9, stream=True)
            assert caught.value.param == ("tools.f" if "tools" in fields else "response_format")


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/completion", {"prompt": "x", "json_schema": ENDLESS["an item"][1]}, "json_schema"),
        ("/completion", {"prompt": "x", "grammar": "root ::= root2\nroot2 ::= root"}, "grammar"),
        (
            "/v1/responses",
            {"input": "x", "text": {"format": {"type": "json_schema", "name": "x",
                                               "schema": ENDLESS["an item"][1]}}},
            "text.format",
        ),
    ],
)  # fmt: skip
def test_what_never_ends_is_named_as_the_client_sent_it(
    server: Serving, path: str, fields: dict[str, Any], param: str
) -> None:
    reply = server.post(path, **fields)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert "never be completed" in error["message"]
    if path != "/completion":  # whose errors have no such member
        assert error["param"] == param
    assert error["message"].startswith("the grammar" if param == "grammar" else f"{param}: ")


def test_what_could_never_end_is_left_out_where_it_may_be(server: Serving) -> None:
    schema = {"$defs": {"A": A}, "type": "object", "properties": {"x": A, "n": {"const": 1}}}
    for more, texts in (({}, {"{}", '{"n":1}'}), ({"required": ["n"]}, {'{"n":1}'})):
        answer = server.post("/completion", prompt="x", json_schema={**schema, **more}).json()
        assert answer["content"].replace(" ", "").replace("\n", "") in texts


ARGUMENTS = {"type": "object", "properties": {"x": {"const": 1}}, "required": ["x"]}
STRICT = {"name": "f", "schema": ARGUMENTS, "strict": True}
SHAPES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "response_format": {"type": "json_schema", "json_schema": STRICT},
    },
    "/v1/completions": {"grammar": 'root ::= "a1"'},
    "/completion": {"json_schema": ARGUMENTS},
    "/v1/responses": {"text": {"format": {"type": "json_schema", **STRICT}}},
}
CALLED = {"name": "f", "parameters": ARGUMENTS}
BROKEN_OFF = [(one, SHAPES[one.path]) for one in PROTOCOLS if one.path in SHAPES]
BROKEN_OFF += [(one, one.tools(CALLED, forced=True)) for one in (Chat(), Messages())]


def ban(server: Serving, text: bytes) -> list[list[Any]]:
    """Return a logit_bias that rules out all tokens with the text in them."""
    model = server.served.model
    return [[token, False] for token in range(model.vocab_size) if text in model.piece(token, True)]


@pytest.mark.parametrize(("protocol", "shape"), BROKEN_OFF)
def test_an_answer_that_breaks_off_within_its_grammar_is_an_error(
    server: Serving, protocol: Protocol, shape: dict[str, Any]
) -> None:
    path, body = protocol.path, protocol.body("x", 99, **shape, logit_bias=ban(server, b"1"))
    reply = server.post(path, **body)
    assert (reply.status_code, "breaks off" in reply.text) == (400, True)
    streamed = server.post(path, **body, stream=True).text
    assert "breaks off" in streamed
    for end in ('"finish_reason": "', '"stop": true', "response.completed", "message_stop"):
        assert end not in streamed


def test_a_grammar_that_may_end_ends_without_an_end_token(server: Serving) -> None:
    body = {"prompt": "x", "grammar": 'root ::= "a" "b"*', "logit_bias": ban(server, b"b")}
    choice = server.post("/v1/completions", **body, ignore_eos=True).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("a", "stop")


def test_an_answer_follows_its_schema(server: Serving) -> None:
    shape: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    for seed in (1, 2):
        answer = server.chat(response_format=shape, temperature=1.5, seed=seed, max_tokens=300)
        person = json.loads(answer.choices[0].message.content)
        assert len(person["name"]) <= 8
        assert set(person) <= {"name", "age", "tags"}
        assert answer.choices[0].finish_reason == "stop"


def test_json_mode_gives_an_object(server: Serving) -> None:
    extra = {"logit_bias": {"}": 8}}
    answer = server.chat(response_format={"type": "json_object"}, max_tokens=200, extra=extra)
    assert isinstance(json.loads(answer.choices[0].message.content), dict)
    shaped = server.chat(
        extra={"response_format": {"type": "json_object", "schema": {"const": {"a": 1}}}},
        max_tokens=40,
    )
    assert json.loads(shaped.choices[0].message.content) == {"a": 1}
    plain = server.chat(response_format={"type": "text"}, max_tokens=3)
    assert plain.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    "shape", [{"type": "xml"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": 5}]
)
def test_bad_response_formats_are_refused(server: Serving, shape: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        server.chat(extra={"response_format": shape}, max_tokens=3)
    assert caught.value.param == "response_format"
