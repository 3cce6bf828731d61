"""JSON schemas as grammars, followed byte by byte: which texts they take, and texts they make."""

from __future__ import annotations

import functools
import json
import random
from decimal import Decimal
from typing import Any

import numpy as np

from ngramspec._native.grammar.guidance import GuidanceMatcher, GuidanceTokens
from ngramspec._native.grammar.matcher import Tokens
from ngramspec.text.grammar.lark import guidance_tokens, lark_matcher
from ngramspec.text.structured.guidance import MARK, GrammarText, schema_lark

BYTES = Tokens([bytes([byte]) for byte in range(256)], [False] * 256)
CLOSING = np.frombuffer(b'"]},:', np.uint8)
MOST_BYTES = 4000
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name"],
}


def grammar_of(schema: Any, strict: bool = False) -> GrammarText:
    """Return the grammar of a schema. Raises: GrammarError."""
    return GrammarText(f"{MARK} {{}}\nstart: {schema_lark(schema, strict=strict)}")


@functools.cache
def _tokens() -> GuidanceTokens:
    return guidance_tokens(BYTES)


@functools.lru_cache(maxsize=4)
def _begun(grammar: str) -> GuidanceMatcher:
    return lark_matcher(grammar, _tokens(), lambda text: -1)[0]


def matcher_of(grammar: str) -> GuidanceMatcher:
    """Return what follows a text in a grammar, byte by byte."""
    return _begun(grammar).copy()


def takes(grammar: str, text: str) -> bool:
    """Tell whether a grammar takes a text, to its end."""
    matcher = matcher_of(grammar)
    return all(map(matcher.accept, text.encode())) and matcher.may_end


def sample(grammar: GrammarText, rng: random.Random) -> str | None:
    """Return a random text by a grammar, None if it does not come to an end."""
    matcher = matcher_of(grammar)
    text = bytearray()
    while len(text) < MOST_BYTES:
        allowed = np.flatnonzero(matcher.mask())
        if matcher.may_end and (not len(allowed) or rng.random() < 0.5):
            return text.decode()
        closing = np.intersect1d(allowed, CLOSING)
        if len(closing) and rng.random() < 0.5:
            allowed = closing
        elif rng.random() < 0.8 and len(plain := allowed[allowed > 32]):
            allowed = plain
        assert len(allowed), f"the grammar leads nowhere after {bytes(text)!r}"
        text.append(int(rng.choice(allowed)))
        assert matcher.accept(text[-1])
    return None


def exact(text: str) -> Any:
    """Return JSON with its numbers as exact decimals."""
    return json.loads(text, parse_float=Decimal)


def written(value: Any) -> str:
    """Return a value as JSON; decimals without an exponent."""
    if isinstance(value, Decimal):
        return f"{value.normalize():f}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(n)}: {written(v)}" for n, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return _text(value)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
