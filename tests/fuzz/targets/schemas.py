"""JSON schemas: refused, or made into a grammar of bounded size.

What is then written by the grammar must be JSON, and fit the schema where a slow validator
(tests/reference/json_schema.py) knows all of its keywords.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fuzz import json_inputs
from fuzz.grammar_writer import Writer
from fuzz.target import Finding, Run, Target
from ngramspec.errors import InputError
from ngramspec.server.errors import ApiError
from ngramspec.server.request.bodies import SamplingBody
from ngramspec.server.request.grammar import grammar_of as grammar_of_body
from reference.json_schema import fits, is_plain

MOST_CHARS = 4 << 20  # of a grammar; the schemas have 4 KB at most
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
    "format": ("date", "time", "date-time", "uuid", "email"),
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
            if is_plain(schema) and not fits(value, schema):
                raise Finding(f"what the grammar wrote does not fit: {value!r}")

    try:
        yield run
    finally:
        writer.close()


def grammar_of(schema: Any) -> str | None:
    """Return the grammar of a schema, None if there is none or it is refused."""
    started = time.process_time()
    try:
        grammar = grammar_of_body(SamplingBody(), schema)
    except ApiError as error:
        if error.status != 400:
            raise
        return None
    finally:
        if time.process_time() - started > MOST_SECONDS:
            raise Finding("a small schema takes seconds")
    if len(grammar) > MOST_CHARS:
        raise Finding("a small schema makes a huge grammar")
    return grammar or None


def written(writer: Writer, grammar: str, choices: bytes) -> list[Any]:
    """Write by a grammar; return the value in a list, nothing if it did not end."""
    try:
        made = writer.write(grammar, choices[-16:])
    except InputError:
        return []  # refused like a grammar that was given: too large, or without an end
    if not made.ended:
        return []
    try:
        return [json.loads(made.text)]
    except ValueError as error:
        raise Finding(f"the grammar wrote no JSON: {made.text!r}") from error


TARGET = Target(
    opened=opened,
    instrumented=(
        "ngramspec.server.structured.json_schema",
        "ngramspec.server.structured.json_pattern",
        "ngramspec.server.structured.gbnf",
    ),
    mutate=json_inputs.mutation(MEMBERS),
    words=tuple(f'"{name}"' for name in MEMBERS),
    max_bytes=2048,
    seconds=60,
)
