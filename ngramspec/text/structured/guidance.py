"""Grammars for llguidance: JSON schemas as its Lark, and the bounds of the Lark that it gets.

A grammar that begins with MARK is llguidance's, as llama-server has it; all others are GBNF.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ngramspec.errors import BackendError, GrammarError, InputError
from ngramspec.messages import not_installed
from ngramspec.text.structured.json_plain import plain_schema

MARK = "%llguidance"
ANY_OBJECT = {"type": "object"}
# One space, or a line end and an indent, once at a place: a model cannot write them without end.
SPACE = r" |\n[ \t]{0,20}"
MAX_CHARS = 1 << 20  # of a grammar
MAX_RULES = 4000
MAX_LITERALS = 8000  # strings and regular expressions
MAX_CHAIN = 400  # of rules and groups within one another
LIMITS = {
    "max_items_in_row": 16_000,  # as many members as an object may have
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 500_000,  # 35 ms for a mask
    "step_max_items": 400_000,  # 20 ms
    "max_lexer_states": 50_000,  # 1 to 2 KB each
    "max_grammar_size": 500_000,
}
_REASON = re.compile(r"(?:at \d+\(\d+\): )?(?:failed to compile JSON schema: )?(.*)")


class GrammarText(str):
    """A grammar that was made of what a request holds.

    field: Of the request, which errors of the grammar name; "" for none.
    """

    field = ""


def schema_grammar(schema: Any, field: str = "json_schema", strict: bool = False) -> GrammarText:
    """Return the grammar of a JSON schema; an empty schema means an object.

    Args:
        schema, field, strict: As for schema_lark.

    Raises:
        GrammarError, BackendError: As for schema_lark.
    """
    expression = schema_lark(ANY_OBJECT if schema == {} else schema, field, strict)
    text = GrammarText(f"{MARK} {{}}\nstart: {expression}\n")
    text.field = field
    return text


def schema_lark(
    schema: Any,
    field: str = "json_schema",
    strict: bool = False,
    whole: Any = None,
    spend: Callable[[int], None] | None = None,
) -> str:
    """Return a JSON schema as an expression in a rule of llguidance's Lark, `%json {...}`.

    Args:
        schema: The schema.
        field: Name of what holds it, for errors.
        strict: Refuse what cannot be enforced; it is left out otherwise.
        whole: What the schema is a part of, in which its references are; None = it is all.
        spend: Is called with numbers of parts, and may refuse them; None = nothing is.

    Raises:
        GrammarError: It is not a JSON schema, no grammar can express it, no value fits it, or it
            is too large; names the field.
        BackendError: llguidance is not installed.

    Cost: linear in its parts, those that references repeat included; llguidance reads it once.
    """
    with errors_of(field):
        whole = schema if whole is None else whole
        plain = plain_schema(schema, whole, strict, spend=spend)
        expression, reason = _expression(plain)
        if "not disjoint" in reason and not strict:
            plain = plain_schema(schema, whole, strict, joined=True, spend=spend)
            expression, reason = _expression(plain)
        if reason:
            raise GrammarError(f"the JSON schema cannot be enforced: {reason}")
        return expression


def _expression(plain: Mapping[str, Any]) -> tuple[str, str]:
    """Return the expression of a schema, and why llguidance does not take it, "" if it does."""
    text = json.dumps({"x-guidance": {"whitespace_pattern": SPACE}, **plain})
    return f"%json {text}", problem_of(f"start: %json {text}")


def problem_of(lark: str) -> str:
    """Return why llguidance does not take a grammar, "" if it does.

    Args:
        lark: The grammar, within the bounds of this module.

    Raises:
        BackendError: llguidance is not installed.
    """
    module = guidance_module()
    limits = module.LLParserLimits(**LIMITS)
    failed, messages = module.LLMatcher.validate_grammar_with_warnings(lark, limits=limits)
    return reason_in(messages[0]) if failed else ""


def reason_in(message: str) -> str:
    """Return what llguidance says without the place in a text that the client did not write."""
    lines = [line.strip() for line in message.splitlines()]
    match = _REASON.match(lines[0] if lines else "")
    reason = match.group(1) if match else message
    if reason.endswith("regex parse error:"):  # its reason comes last, behind "error:"
        reason = next(
            (f"{reason} {line[7:]}" for line in lines if line.startswith("error: ")), reason
        )
    return reason[:300]


def guidance_module() -> Any:
    """Return the module llguidance. Raises: BackendError: It is not installed."""
    try:
        import llguidance
    except ImportError as error:
        words = not_installed("JSON schemas and Lark need llguidance", "llama")
        raise BackendError(words) from error
    return llguidance


@contextmanager
def errors_of(field: str) -> Iterator[None]:
    """Name the field in the errors of a schema."""
    try:
        yield
    except GrammarError as error:
        raise GrammarError(f"{field}: {error.message}", field) from error
    except RecursionError:
        raise GrammarError(f"{field}: the JSON schema is nested too deep", field) from None
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise GrammarError(f"{field}: the JSON schema is not valid: {error}", field) from error


def check_text(text: str) -> None:
    """Check the text of a grammar.

    Raises:
        InputError: It is too large, holds a NUL character or is not valid Unicode.
    """
    if len(text) > MAX_CHARS:
        raise InputError(f"the grammar has {len(text)} characters, the most is {MAX_CHARS}")
    if "\0" in text:
        raise InputError("the grammar holds a NUL character")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError("the grammar is not valid Unicode") from None
