"""The grammar of a chat's answer: reasoning, then a forced call or the requested format, or text
whose calls follow their schemas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ngramspec.errors import ChatError, GrammarError
from ngramspec.text.chat.format import ChatFormat
from ngramspec.text.structured.guidance import ANY_OBJECT, schema_lark
from ngramspec.text.structured.lark_rules import (
    BLANK,
    Part,
    Rules,
    Source,
    either,
    many,
    optional,
    row,
)


def chat_grammar(
    grammar: str, schema: Any, field: str, format: ChatFormat, strict: bool = False
) -> str:
    """Return the grammar that an answer must follow, "" for none.

    A required call is forced; with a schema and optional tools, either is allowed. With optional
    tools alone any text is, and from the mark of a call on only calls that follow their schemas.

    Args:
        grammar: A grammar, "" for none. Only one of it, a schema and tools may be given.
        schema: JSON schema, None for none.
        field: Name of the field that holds the schema.
        format: How the model answers.
        strict: Refuse what a grammar cannot enforce of the schema; it is left out otherwise.

    Raises:
        ChatError: A grammar comes with tools.
        GrammarError: A schema is not valid; names its field.
    """
    tools = format.tools
    if tools and grammar:
        raise ChatError("grammar cannot be used with tools", "grammar")
    if schema is None and not tools.required:
        return _optional_calls(format) if tools else grammar
    rules = Rules()
    parts: list[Part] = []
    if tools:
        parts.append(format.calls.rule(rules, tools))
    if schema is not None and not tools.required:
        source = schema_lark(ANY_OBJECT if schema == {} else schema, field, strict)
        answer = rules.add("answer", Source(source))
        parts.append(format.calls.answer_rule(rules, answer))
    root = either(*parts)
    if format.begun:
        root = row(format.reasoning.rule(rules), root)
    elif format.may_reason:
        root = row(optional(format.reasoning.whole_rule(rules)), root)
    return rules.grammar(root, "tools" if tools.required else field)


def _optional_calls(format: ChatFormat) -> str:
    """Return the grammar of text, free up to a trigger of calls, "" where none tells them.

    Arguments whose schema no grammar can express are free, unless their tool is strict.

    Raises:
        GrammarError: A tool is strict, and its schema or all of them together are too large.
    """
    calls, tools = format.calls, format.tools
    anywhere, first = calls.triggers(tools)
    if not (anywhere or first):
        return ""
    offered = tuple(tool if tool.strict else replace(tool, loose=True) for tool in tools.tools)
    rules = Rules()
    try:
        part = calls.begun_rule(rules, replace(tools, tools=offered))
        begun = rules.begun(anywhere, first, part)
        return rules.grammar(_free_answer(rules, format, begun))
    except GrammarError:
        if any(tool.strict for tool in offered):
            raise
        return ""


def _free_answer(rules: Rules, format: ChatFormat, calls: list[Part]) -> Part:
    """Return the grammar of text, reasoning and then calls; the text may end anywhere.

    Nothing begins a call within reasoning, unless the format says so.

    Args:
        rules: The grammar.
        format: How the model answers.
        calls: Texts that go on with calls from some mark on.
    """
    reasoning, reasons = format.reasoning, format.begun or format.may_reason
    answer = either(*calls, rules.anything)
    if format.calls.ends_reasoning or not reasons:
        return answer
    thought = rules.until(reasoning.close)
    if reasoning.again:
        opened = rules.until(reasoning.open)
        turns = many(row(opened, thought))
        answer = row(turns, either(*calls, rules.anything, row(opened, rules.anything)))
    answer = rules.add("answer", answer)
    if format.begun:
        return either(row(thought, answer), rules.anything)
    if reasoning.again:
        return answer
    opened = rules.until(reasoning.open, BLANK)
    return either(row(opened, either(row(thought, answer), rules.anything)), answer)
