"""Custom tools: their input is a text, which the model writes as the one argument of a function."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ngramspec.errors import ChatError, GrammarError
from ngramspec.text.structured.lark_input import LarkInput, lark_input, regex_input

INPUT = "input"  # the argument
SYNTAXES = ("lark", "regex")


def custom_function(custom: Any, field: str) -> dict[str, Any]:
    """Return a custom tool as a function; its description tells the grammar of its input.

    Args:
        custom: Its name, description and format, in the shape of chats or of responses.
        field: Its place in the body.

    Raises:
        ChatError: It does not have that shape.
    """
    name = custom.get("name") if isinstance(custom, dict) else None
    if not isinstance(name, str) or not name:
        raise ChatError(f"{field} must have a name", field)
    texts = [custom.get("description"), f"The argument `{INPUT}` is the raw text for the tool."]
    grammar = _grammar_of(custom, field)
    if grammar:
        syntax, definition = grammar
        texts.append(f"It follows this grammar ({syntax}):\n{definition}")
    description = "\n\n".join(text for text in texts if isinstance(text, str) and text)
    return {"name": name, "description": description, "parameters": input_schema()}


def input_schema() -> dict[str, Any]:
    return {"type": "object", "properties": {INPUT: {"type": "string"}}, "required": [INPUT]}


def enforced_input(custom: Mapping[str, Any], field: str) -> LarkInput | None:
    """Return the grammar of the text that the arguments hold, None if it is any text.

    Raises:
        ChatError: No grammar here can express it; names what stands in the way.
    """
    grammar = _grammar_of(custom, field)
    if grammar is None:
        return None
    syntax, definition = grammar
    where = f"{field}.format of {custom.get('name')!r:.80}"
    try:
        if syntax == "lark":
            return lark_input(definition)
        return regex_input(definition)
    except GrammarError as error:
        raise ChatError(f"{where}: {error.message}", f"{field}.format") from error
    except RecursionError:
        words = f"{where}: the grammar is nested too deep"
        raise ChatError(words, f"{field}.format") from None


def input_of(arguments: str) -> str:
    """Return the text that arguments hold, or all of them where that is not what they are."""
    try:
        text = json.loads(arguments)[INPUT]
    except (ValueError, KeyError, TypeError, RecursionError):
        return arguments
    return text if isinstance(text, str) else arguments


def _grammar_of(custom: Mapping[str, Any], field: str) -> tuple[str, str] | None:
    """Return syntax and definition of a custom tool's grammar, None if its input is any text.

    Raises:
        ChatError: The format does not have its shape.
    """
    shape = custom.get("format")
    if shape is None or (isinstance(shape, dict) and shape.get("type") == "text"):
        return None
    place = f"{field}.format"
    if not isinstance(shape, dict) or shape.get("type") != "grammar":
        raise ChatError(f"{place} must be of type text or grammar", place)
    inner = shape.get("grammar", shape)  # as chats have it, or responses
    syntax, definition = (
        (inner.get("syntax"), inner.get("definition")) if isinstance(inner, dict) else (None, None)
    )
    if syntax not in SYNTAXES:
        words = f"{place} must have one of the syntaxes {', '.join(SYNTAXES)}, got {syntax!r:.80}"
        raise ChatError(words, place)
    if not isinstance(definition, str):
        raise ChatError(f"{place} must have a definition", place)
    return syntax, definition
