"""JSON schemas: refused, or made into a grammar of bounded size.

What is then written by the grammar must be JSON, and valid by jsonschema if the schema passes as a
strict one, of which nothing is left out.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import jsonschema
import referencing.exceptions

from fuzz import json_inputs
from fuzz.grammar_writer import Writer
from fuzz.target import Finding, Run, Target
from ngramspec.errors import GrammarError, InputError
from ngramspec.server.request.bodies import SamplingBody
from ngramspec.server.request.sampling import grammar_of as grammar_of_body

MOST_CHARS = 4 << 20  # of a grammar; the schemas have 4 KB at most
MOST_DIGITS = 1000  # of a number without a fraction that is an int
MOST_SECONDS = 5.0  # of processor time; milliseconds are usual
SMALL: tuple[Any, ...] = (
    *({"type": "string"}, {"type": "integer"}, {"type": "null"}, {"type": "boolean"}, {}, True),
    *({"type": "object"}, {"type": "array"}, {"const": 1}, {"enum": ["a", 1, None]}, False),
    *({"$ref": "#"}, {"$ref": "#/$defs/a"}, {"type": "string", "maxLength": 2}),
    *({"pattern": "^a+$"}, {"type": ["string", "null"]}, {"type": "number", "minimum": 0}),
    {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]},
)
TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
MEMBERS: dict[str, tuple[Any, ...]] = {
    "type": (*TYPES, ["string", "null"], ["object", "array"], list(TYPES)),
    "properties": ({"a": {}}, {"a": {"type": "null"}, "b": {"type": "integer"}}, {"é\n": {}}),
    "required": (["a"], ["b"], ["a", "b"], ["c"], []),
    "additionalProperties": (True, False, *SMALL),
    "items": (*SMALL, [{"type": "null"}]),
    "prefixItems": ([{"type": "null"}], [{"type": "integer"}, {"type": "string"}], []),
    "minItems": (0, 1, 2, 3, 2000, 2001),
    "maxItems": (0, 1, 2, 3, 2000, 2001),
    "enum": (["a"], [1, "b", None], [[], {}], [True, False], [0.5]),
    "const": (1, "x", None, {"a": [1]}, [], "\n☃"),
    "anyOf": ([{"type": "null"}, {"type": "integer"}], list(SMALL[:4])),
    "oneOf": ([{"type": "null"}, {"required": ["a"]}], list(SMALL[:2])),
    "allOf": ([{"type": "object"}, {"properties": {"a": {}}}], [{"$ref": "#/$defs/a"}]),
    "$ref": ("#", "#/$defs/a", "#/$defs/b", "#/properties/a", "#/items", "#/anyOf/0", "#/a~1b"),
    "$defs": ({"a": {"type": "null"}}, {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}),
    "pattern": ("^a$", "x", "^[a-c]{2,3}$", "\\d+", "^(yes|no)$", "^\\S\\s$", "(", "^[^x]*$"),
    "minLength": (0, 1, 2, 2000, 2001),
    "maxLength": (0, 1, 2, 2000, 2001),
    "format": ("date", "time", "date-time", "uuid", "email", "ipv6", "uri", "iri"),
    "multipleOf": (1, 2, 3, 7, 100, 0.5, 0.01, 2.5, 1e-300, 1e300, 0, 99991),
    "minProperties": (0, 1, 2, 3),
    "maxProperties": (0, 1, 2, 3),
    "patternProperties": ({"^a": {"type": "null"}}, {"b": {}, "^[a-c]+$": {"type": "integer"}}),
    "propertyNames": ({"pattern": "^[ab]"}, {"maxLength": 1}, {"enum": ["a", "x"]}, False),
    "dependentRequired": ({"a": ["b"]}, {"b": ["a"]}, {"a": ["c"]}, {"a": ["b"], "b": ["a"]}),
    "uniqueItems": (True, False),
    "not": ({"type": "null"}, {"const": 1}),
    "unevaluatedProperties": (False, True),
    "minimum": (0, 1, -1, 0.5, 12, -(10**17)),
    "maximum": (0, 100, -7, 99.5, 1234567, 10**400),
    "exclusiveMinimum": (0, 9, -10.5),
    "exclusiveMaximum": (10, 65536, 0.5),
    "a": SMALL,
    "b": SMALL,
}


@contextmanager
def opened() -> Iterator[Run]:
    writer = Writer()

    def run(data: bytes) -> None:
        try:
            schema = json.loads(data)
        except (ValueError, RecursionError):
            return
        grammar = grammar_of(schema)
        for value in [] if grammar is None else written(writer, grammar, data):
            if (reason := wrong(value, schema)) is not None:
                raise Finding(f"what the grammar wrote does not fit: {reason}")

    try:
        yield run
    finally:
        writer.close()


def grammar_of(schema: Any) -> str | None:
    """Return the grammar of a schema, None if there is none or it is refused."""
    started = time.process_time()
    try:
        grammar = grammar_of_body(SamplingBody(), schema)
    except GrammarError:
        return None
    finally:
        if time.process_time() - started > MOST_SECONDS:
            raise Finding("a small schema takes seconds")
    if len(grammar) > MOST_CHARS:
        raise Finding("a small schema makes a huge grammar")
    return grammar or None


def number(text: str) -> Decimal | int:
    """Return a number with all its digits; to jsonschema no Decimal is an integer, not even 1.0."""
    value = Decimal(text)
    whole = value.adjusted() < MOST_DIGITS and value == value.to_integral_value()
    return int(value) if whole else value


def wrong(value: Any, schema: Any) -> str | None:
    """Return why a value is not valid, None if it is or that cannot be told."""
    try:
        grammar_of_body(SamplingBody(), schema, strict=True)
        exact = json.loads(json.dumps(schema), parse_float=number)
        jsonschema.Draft202012Validator.check_schema(exact)
        error = jsonschema.exceptions.best_match(
            jsonschema.Draft202012Validator(exact).iter_errors(value)
        )
    except (GrammarError, jsonschema.SchemaError, RecursionError, ArithmeticError):
        return None
    except (referencing.exceptions.Unresolvable, re.error):
        return None
    return None if error is None else f"{value!r}: {error.message}"


def written(writer: Writer, grammar: str, choices: bytes) -> list[Any]:
    """Write by a grammar; return the value in a list, nothing if it did not end."""
    try:
        output = writer.write(grammar, choices[-16:])
    except InputError:
        return []  # refused like a grammar that was given: too large, or without an end
    if not output.ended:
        return []
    try:
        return [json.loads(output.text, parse_float=number)]
    except ValueError as error:
        raise Finding(f"the grammar wrote no JSON: {output.text!r}") from error


TARGET = Target(
    opened=opened,
    instrumented=(
        "ngramspec.text.structured.guidance",
        "ngramspec.text.structured.json_plain",
        "ngramspec.text.structured.pattern",
        "ngramspec.text.structured.chains",
    ),
    mutate=json_inputs.mutation(MEMBERS),
    words=tuple(f'"{name}"' for name in MEMBERS),
    max_bytes=2048,
    seconds=60,
)
