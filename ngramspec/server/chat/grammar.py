"""The grammar of a chat's answer: reasoning, then a forced call or the requested format."""

from __future__ import annotations

from typing import Any

from ngramspec.server.chat.format import ChatFormat
from ngramspec.server.errors import bad_request
from ngramspec.server.request.bodies import SamplingBody
from ngramspec.server.request.grammar import answer_rule, check_constraint
from ngramspec.server.structured.gbnf import Rules


def chat_grammar(
    body: SamplingBody, schema: Any, field: str, format: ChatFormat, strict: bool = False
) -> str:
    """Return the GBNF that an answer must follow, "" for none.

    A required call is forced; with a schema and optional tools, either is allowed.

    Args:
        body: The body, which may have a grammar.
        schema: JSON schema, None for none.
        field: Name of the field that holds the schema.
        format: How the model answers.
        strict: Refuse what a grammar cannot enforce of the schema; it is left out otherwise.

    Raises:
        ApiError: A grammar comes with a schema or tools, or one of them is not valid.
    """
    tools = format.tools
    check_constraint(body, schema)
    if tools and body.grammar:
        raise bad_request("grammar cannot be used with tools", "grammar")
    if schema is None and not tools.required:
        return body.grammar or ""
    rules = Rules()
    parts = []
    if tools:
        parts.append(format.calls.rule(rules, tools))
    if schema is not None and not tools.required:
        answer = answer_rule(rules, schema, field, strict)
        parts.append(format.calls.answer_rule(rules, answer))
    root = " | ".join(parts)
    if format.begun:
        return rules.grammar(f"{format.reasoning.rule(rules)} ({root})")
    if format.may_reason:
        return rules.grammar(f"({format.reasoning.whole_rule(rules)})? ({root})")
    return rules.grammar(root)
