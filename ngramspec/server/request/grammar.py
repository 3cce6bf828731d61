"""The grammar of a request: as the client sends it, or made from a JSON schema."""

from __future__ import annotations

from typing import Any

from ngramspec.server.errors import bad_request
from ngramspec.server.request.bodies import SamplingBody
from ngramspec.text.structured.guidance import schema_grammar

MAX_GRAMMAR = 1 << 20  # characters


def grammar_of(
    body: SamplingBody, schema: Any, field: str = "json_schema", strict: bool = False
) -> str:
    """Return the grammar that an answer must follow, "" for none.

    Args:
        body: The body, which may have a grammar.
        schema: JSON schema, None for none.
        field: Name of the field that holds the schema.
        strict: Refuse what a grammar cannot enforce; it is left out otherwise.

    Raises:
        ApiError: Both are given, or the grammar is too long.
        GrammarError: The schema is not valid; names the field.
    """
    check_constraint(body, schema)
    return (body.grammar or "") if schema is None else schema_grammar(schema, field, strict)


def check_constraint(body: SamplingBody, schema: Any) -> None:
    """Refuse a grammar together with a JSON schema, and a grammar that is too long.

    Raises:
        ApiError: There are both, or the grammar has more than MAX_GRAMMAR characters.
    """
    if body.grammar and schema is not None:
        raise bad_request("give either a grammar or a JSON schema", "grammar")
    if len(body.grammar or "") > MAX_GRAMMAR:
        raise bad_request(f"the grammar has more than {MAX_GRAMMAR} characters", "grammar")
