"""The options for what a text must follow: a grammar, or a JSON schema, from which one is made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ngramspec.cli.options import FILE, Decorator, option, options, read_utf8
from ngramspec.errors import InputError

NAMES = ("grammar", "grammar_file", "json_schema", "json_schema_file")


def grammar_options(section: str) -> Decorator:
    """Return the options, under a heading of --help."""
    return options(
        option(section, "--grammar", metavar="GBNF", help="Grammar that texts follow."),
        option(section, "--grammar-file", type=FILE, help="File with a GBNF grammar."),
        option(section, "-j", "--json-schema", metavar="JSON", help="JSON schema of texts."),
        option(section, "-jf", "--json-schema-file", type=FILE, help="File with a JSON schema."),
    )


def grammar_of(values: Mapping[str, Any]) -> str:
    """Return the grammar that the options give, "" for none.

    Raises:
        InputError: More than one is given, or the schema is not valid.
        OSError: A file cannot be read.
    """
    from ngramspec.text.structured.json_schema import schema_grammar

    names = [name for name in NAMES if values[name]]
    if len(names) > 1:
        flags = " or ".join(f"--{name.replace('_', '-')}" for name in names)
        raise InputError(f"give either {flags}")
    if not names:
        return ""
    name, value = names[0], values[names[0]]
    text = read_utf8(value) if name.endswith("_file") else str(value)
    if name.startswith("grammar"):
        return text
    place = f"--json-schema-file {value}" if name.endswith("_file") else "--json-schema"
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{place} must be JSON: {error}") from None
    return schema_grammar(schema, place)
