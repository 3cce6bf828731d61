"""The options that are defaults of requests: how tokens are chosen, and what they must follow."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ngramspec.cli.llama_cpp.words import unescaped
from ngramspec.cli.options import read_utf8
from ngramspec.engine import Sampling
from ngramspec.errors import InputError
from ngramspec.server.errors import ApiError
from ngramspec.server.request.grammar import schema_grammar
from ngramspec.server.request.sampling import chosen_samplers

NO_BREAKERS = "none"
_FIELDS = {field.name for field in dataclasses.fields(Sampling)}
_BIAS = re.compile(r"(\d+)([+-])(\S+)")


def default_sampling(options: Mapping[str, Any]) -> Sampling:
    """Return how tokens are chosen where a request does not say.

    Raises:
        InputError: A value is out of its bounds, or grammar, schema or bias is not valid.
        OSError: A file cannot be read.
    """
    given = {name: options[name] for name in _FIELDS - {"samplers", "grammar"} & set(options)}
    given["seed"] = None if options["seed"] == -1 else options["seed"]
    given["grammar"] = default_grammar(options)
    given["logit_bias"] = dict(map(bias_of, options["logit_bias"]))
    breakers = [text for text in options["dry_sequence_breaker"] if text != NO_BREAKERS]
    if options["dry_sequence_breaker"]:
        given["dry_sequence_breakers"] = tuple(texts_of(options, breakers))
    samplers = options["sampler_seq"] or list(filter(None, options["samplers"].split(";")))
    if samplers:
        given.update(chosen_samplers(samplers))
    return Sampling(**given)


def default_stops(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the stop texts of requests that have none."""
    return tuple(filter(None, texts_of(options, options["reverse_prompt"])))


def texts_of(options: Mapping[str, Any], texts: Iterable[str]) -> list[str]:
    """Return texts with what `\\n` and the like stand for, unless --no-escape is given."""
    return [unescaped(text) if options["escape"] else text for text in texts]


def default_grammar(options: Mapping[str, Any]) -> str:
    """Return the grammar of requests that have none, "" for no grammar.

    Raises:
        InputError: More than one is given, or the schema is not valid.
        OSError: A file cannot be read.
    """
    names = ("grammar", "grammar_file", "json_schema", "json_schema_file")
    given = [name for name in names if options[name]]
    if len(given) > 1:
        flags = " or ".join(f"--{name.replace('_', '-')}" for name in given)
        raise InputError(f"give either {flags}")
    if not given:
        return ""
    name, value = given[0], options[given[0]]
    text = read_utf8(value) if name.endswith("_file") else str(value)
    if name.startswith("grammar"):
        return text
    try:
        return schema_grammar(json.loads(text), "json_schema")
    except ValueError as error:
        raise InputError(f"--json-schema must be JSON: {error}") from None
    except ApiError as error:
        raise InputError(f"--json-schema: {error}") from None


def bias_of(text: str) -> tuple[int, float]:
    """Return the token id and the bias of a text such as 15043+1 or 2-inf.

    Raises:
        InputError: It has another form.
    """
    found = _BIAS.fullmatch(text.strip())
    try:
        if found is not None:
            return int(found[1]), float(found[2] + found[3])
    except ValueError:
        pass
    raise InputError(f"--logit-bias must be a token id and a bias, as 15043+1, got {text!r}")
