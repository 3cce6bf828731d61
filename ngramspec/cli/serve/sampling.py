"""The options that are defaults of requests: how tokens are chosen, and what they must follow."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ngramspec.cli.grammar import grammar_of
from ngramspec.cli.llama_cpp.words import unescaped
from ngramspec.engine import Sampling
from ngramspec.errors import InputError
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
    settings = {name: options[name] for name in _FIELDS - {"samplers", "grammar"} & set(options)}
    settings["seed"] = None if options["seed"] == -1 else options["seed"]
    settings["grammar"] = grammar_of(options)
    settings["logit_bias"] = dict(map(bias_of, options["logit_bias"]))
    breakers = [text for text in options["dry_sequence_breaker"] if text != NO_BREAKERS]
    if options["dry_sequence_breaker"]:
        settings["dry_sequence_breakers"] = tuple(texts_of(options, breakers))
    samplers = options["sampler_seq"] or list(filter(None, options["samplers"].split(";")))
    if samplers:
        settings.update(chosen_samplers(samplers))
    return Sampling(**settings)


def default_stops(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the stop texts of requests that have none."""
    return tuple(filter(None, texts_of(options, options["reverse_prompt"])))


def texts_of(options: Mapping[str, Any], texts: Iterable[str]) -> list[str]:
    """Return texts with what `\\n` and the like stand for, unless --no-escape is given."""
    return [unescaped(text) if options["escape"] else text for text in texts]


def bias_of(text: str) -> tuple[int, float]:
    """Return the token id and the bias of a text such as 15043+1 or 2-inf.

    Raises:
        InputError: It has another form.
    """
    match = _BIAS.fullmatch(text.strip())
    try:
        if match is not None:
            return int(match[1]), float(match[2] + match[3])
    except ValueError:
        pass
    raise InputError(f"--logit-bias must be a token id and a bias, as 15043+1, got {text!r}")
