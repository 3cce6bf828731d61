"""From the fields of a body to Sampling and its grammar, with the server's defaults."""

from __future__ import annotations

import dataclasses
import logging
import math
import re
import sys
from collections.abc import Iterable
from typing import Any

from ngramspec.engine.sampling import BOUNDS, Sampling
from ngramspec.server.errors import bad_request
from ngramspec.server.model import ServedModel
from ngramspec.server.request.bodies import SamplingBody
from ngramspec.text.structured.guidance import schema_grammar

SAME_NAME = tuple(
    field.name
    for field in dataclasses.fields(Sampling)
    if field.name not in ("seed", "logit_bias", "grammar", "dry_sequence_breakers", "samplers")
)
ANY_SEED = 0xFFFFFFFF
RANDOM_SEEDS = (-1, ANY_SEED)  # llama-server and its clients write these for a random seed
# llama-server's samplers in their order, with the letter of each and the values that turn it off.
SAMPLERS: dict[str, tuple[str, dict[str, Any]]] = {
    "penalties": ("e", {"repeat_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0}),
    "dry": ("d", {"dry_multiplier": 0.0}),
    "top_n_sigma": ("s", {"top_n_sigma": -1.0}),
    "top_k": ("k", {"top_k": 0}),
    "typ_p": ("y", {"typical_p": 1.0}),
    "top_p": ("p", {"top_p": 1.0}),
    "min_p": ("m", {"min_p": 0.0}),
    "xtc": ("x", {"xtc_probability": 0.0}),
    "temperature": ("t", {"temperature": 1.0, "dynatemp_range": 0.0}),
    "infill": ("i", {}),
}
_INTEGER = re.compile(r"\s*-?[0-9]{1,20}\s*")
OTHER_NAMES = {
    "typical_p": "typ_p", "typical": "typ_p", "typical-p": "typ_p", "top-k": "top_k",
    "top-p": "top_p", "min-p": "min_p", "top-n-sigma": "top_n_sigma", "temp": "temperature",
    "nucleus": "top_p",
}  # fmt: skip
log = logging.getLogger(__name__)
MAX_GRAMMAR = 1 << 20  # characters


def sampling_of(body: SamplingBody, served: ServedModel, grammar: str) -> Sampling:
    """Return how the tokens of a request are chosen.

    Raises:
        ApiError: A field that cannot be used.
        InputError: A value out of its bounds.
    """
    fields: dict[str, Any] = {name: getattr(body, name, None) for name in SAME_NAME}
    fields = {name: value for name, value in fields.items() if value is not None}
    for name, (low, high) in BOUNDS.items():
        if name in fields:  # values beyond become the nearest; -1 for top_k 0, which is all tokens
            fields[name] = min(max(fields[name], low), high)
    if body.seed is not None:
        seed = body.seed % (1 << 32)
        fields["seed"] = None if body.seed in RANDOM_SEEDS else min(seed, ANY_SEED - 1)
    if body.dry_sequence_breakers is not None:
        fields["dry_sequence_breakers"] = tuple(body.dry_sequence_breakers)
    if body.logit_bias is not None:
        fields["logit_bias"] = dict(_biases(body.logit_bias, served))
    if body.samplers:
        fields.update(chosen_samplers(body.samplers))
    fields["grammar"] = grammar or served.sampling.grammar
    return dataclasses.replace(served.sampling, **fields)


def with_seed(sampling: Sampling, index: int) -> Sampling:
    """Return the sampling of a request's choice number `index`: seeds count up, past ANY_SEED."""
    if sampling.seed is None or not index:
        return sampling
    return dataclasses.replace(sampling, seed=(sampling.seed + index) % ANY_SEED)


def stops_of(body: SamplingBody, served: ServedModel) -> tuple[str, ...]:
    """Return the stop texts of a request, or the server's if it has none."""
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    return tuple(text for text in stops if text) or served.stop


def _biases(
    biases: dict[str, float | bool] | list[list[Any]], served: ServedModel
) -> Iterable[Any]:
    """Yield (token id, bias); a text stands for all of its tokens, false for never.

    Ids beyond the vocabulary are skipped, as llama-server does.
    """
    pairs = biases.items() if isinstance(biases, dict) else biases
    for pair in pairs:
        if len(pair) != 2:
            raise bad_request("logit_bias must hold pairs of a token and a bias", "logit_bias")
        token, bias = pair
        if bias is False:
            bias = -math.inf
        if isinstance(bias, bool) or not isinstance(bias, (int, float)):
            raise bad_request(f"logit_bias must be numbers or false, got {bias!r}", "logit_bias")
        if bias < -sys.float_info.max:
            bias = -math.inf  # an integer may have more digits than a number of JSON should
        for token_id in _tokens(token, served):
            yield token_id, bias


def _tokens(token: Any, served: ServedModel) -> list[int]:
    if isinstance(token, str) and not _INTEGER.fullmatch(token):
        return [int(i) for i in served.model.tokenize(token, add_special=False)]
    if isinstance(token, bool) or not isinstance(token, (int, str)):
        raise bad_request("logit_bias must name tokens by texts or integers", "logit_bias")
    return [int(token)] if 0 <= int(token) < served.model.vocab_size else []


def chosen_samplers(samplers: list[str] | str) -> dict[str, Any]:
    """Return the samplers of a list in its order, and the values that switch the others off.

    Unknown names are skipped, as llama-server does: clients list samplers of newer versions.
    """
    letters = {letter: name for name, (letter, _) in SAMPLERS.items()}
    if isinstance(samplers, str):
        samplers = [letters.get(letter, letter) for letter in samplers]
    names = [OTHER_NAMES.get(name, name) for name in samplers]
    unknown = sorted({name for name in names if name not in SAMPLERS})
    if unknown:
        log.warning("skipped samplers that are unknown: %.200a", ", ".join(unknown))
    settings: dict[str, Any] = {}
    for name, (_, values) in SAMPLERS.items():
        if name not in names:
            settings.update(values)
    return {**settings, "samplers": tuple(dict.fromkeys(n for n in names if n in SAMPLERS))}


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
