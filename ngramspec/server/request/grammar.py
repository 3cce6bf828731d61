"""The grammar of a request: given as GBNF, made from a JSON schema, or forcing a tool call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ngramspec.server.chat.tools import CallStyle, Tools, call_rule
from ngramspec.server.errors import bad_request
from ngramspec.server.request.bodies import SamplingBody
from ngramspec.server.structured.gbnf import Rules
from ngramspec.server.structured.json_schema import add_schema

MAX_GRAMMAR = 1 << 20  # characters
# What a model that was made to think first writes before the answer that the grammar is for.
THINKING = '([^<] | "<" [^/])* "</think>" [ \\n]{0,4}'
ANY_OBJECT = {"type": "object"}


def grammar_of(body: SamplingBody, response_format: Mapping[str, Any] | None = None) -> str:
    """Return the GBNF that an answer must follow, "" for none.

    Raises:
        ApiError: Two of grammar, json_schema and response_format, or one that is not valid.
    """
    schema = schema_of(body, response_format)
    if schema is None:
        return _given(body)
    rules = Rules()
    field = "json_schema" if response_format is None else "response_format"
    return rules.grammar(add_schema(rules, schema, "answer", field))


def chat_grammar(
    body: SamplingBody,
    response_format: Mapping[str, Any] | None,
    tools: Tools,
    style: CallStyle,
    thinking: bool,
    field: str,
) -> str:
    """Return the grammar of a chat's answer, "" for none.

    A required call is forced; with a schema and tools that may be called, either is allowed.
    thinking: The prompt makes the model think first.
    field: That has the schema.
    """
    schema = schema_of(body, response_format)
    if tools and body.grammar:
        raise bad_request("grammar cannot be used with tools", "grammar")
    if schema is None and not tools.required:
        return _given(body)
    rules = Rules()
    parts = []
    if tools:
        parts.append(call_rule(rules, tools, style))
    if schema is not None and not tools.required:
        parts.append(add_schema(rules, schema, "answer", field))
    root = " | ".join(parts)
    return rules.grammar(f"{THINKING} ({root})" if thinking else root)


def schema_of(body: SamplingBody, response_format: Mapping[str, Any] | None) -> Any:
    """Return the JSON schema that an answer must follow, None for none."""
    schema = body.json_schema
    kind = None if response_format is None else response_format.get("type", "text")
    if kind == "json_object":
        schema = (response_format or {}).get("schema", schema)
        schema = ANY_OBJECT if schema is None else schema
    elif kind == "json_schema":
        given = response_format or {}
        wrapper = given.get("json_schema", given)
        schema = wrapper.get("schema") if isinstance(wrapper, dict) else None
        if schema is None:
            raise bad_request("response_format.json_schema must have a schema", "response_format")
    elif kind not in (None, "text"):
        raise bad_request(
            f"response_format.type must be text, json_object or json_schema, got {kind!r}",
            "response_format",
        )
    if schema is not None and body.grammar:
        raise bad_request("give either a grammar or a JSON schema", "grammar")
    return ANY_OBJECT if schema == {} else schema


def _given(body: SamplingBody) -> str:
    grammar = body.grammar or ""
    if len(grammar) > MAX_GRAMMAR:
        raise bad_request(f"the grammar has more than {MAX_GRAMMAR} characters", "grammar")
    return grammar
