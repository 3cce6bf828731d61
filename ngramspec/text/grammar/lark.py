"""Grammars of llguidance's Lark, bounded before llguidance reads them, and what follows them.

llguidance calls itself once for every rule that a rule leads to, and for every schema that a schema
refers to, so the length of such chains is bounded here.
"""

from __future__ import annotations

import ctypes
import json
import re
from collections.abc import Callable, Iterator

from ngramspec._native.grammar.guidance import NAMES, GuidanceMatcher, GuidanceTokens
from ngramspec._native.grammar.matcher import Tokens
from ngramspec.errors import BackendError, GrammarError, InputError
from ngramspec.text.structured.chains import longest_chain
from ngramspec.text.structured.guidance import (
    LIMITS,
    MARK,
    MAX_CHAIN,
    MAX_LITERALS,
    MAX_RULES,
    GrammarText,
    check_text,
    guidance_module,
    reason_in,
    schema_lark,
)
from ngramspec.text.structured.json_plain import MAX_PARTS, digits_of

__all__ = ["MARK", "guidance_tokens", "lark_matcher"]
MAX_OWN_CHARS = 1 << 16  # without schemas
BYTES = 220  # of a grammar, by character of its text and by digit of a step
_MULTIPLE = re.compile(r'"multipleOf": (\d+(?:\.\d+)?(?:e[+-]?\d+)?)')

_TOKEN = re.compile(
    r"""
    (?P<blank>[\s;]+|//[^\n]*|\#[^\n]*)
    |(?P<literal>"(?:\\.|[^"\\\n])*"i?|/(?:\\.|[^/\\\n])+/[imslux]*)
    |(?P<json>%json\b\s*)
    |(?P<options>%(?:regex|llguidance)\b\s*)
    |(?P<id><\[[^\]>]*\]>)
    |(?P<special><[^<>\s]+>)
    |(?P<rule>[?!]?[A-Za-z_][\w-]*(?=(?:\[[^\]\n]*\]|\.\d+|::\w+)*\s*:(?!:)))
    |(?P<name>[A-Za-z_][\w-]*)
    |(?P<open>[(\[{])
    |(?P<close>[)\]}])
    |(?P<other>.)
    """,
    re.VERBOSE,
)
TokenOf = Callable[[str], int]


def guidance_tokens(tokens: Tokens, tokenize: int = 0, vocab: int = 0) -> GuidanceTokens:
    """Return a vocabulary for grammars of llguidance.

    Args:
        tokens: The vocabulary.
        tokenize, vocab: As for GuidanceTokens.

    Raises:
        BackendError: llguidance is not installed, or its library does not fit.

    Cost: some 100 ms for 150,000 tokens.
    """
    module = guidance_module()
    path = module._lib.__file__
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise BackendError(f"the library of llguidance cannot be loaded: {error}") from error
    functions = ((name, getattr(library, name, None)) for name in NAMES)
    addresses = {name: ctypes.cast(one, ctypes.c_void_p).value for name, one in functions if one}
    return GuidanceTokens(tokens, library, addresses, tokenize, vocab)


def lark_matcher(
    text: str, tokens: GuidanceTokens, token_of: TokenOf
) -> tuple[GuidanceMatcher, int]:
    """Return a matcher at the beginning of a grammar in llguidance's Lark, and the bytes it takes.

    The bytes are what it takes at most, by its text; llguidance does not tell.

    Schemas in the text of a client are written anew, as schema_lark does it.

    Args:
        text: The grammar; a GrammarText was made here, and its schemas are fit already.
        tokens: The vocabulary.
        token_of: Returns the id of a text such as "<think>" if it is one token, -1 if not.

    Raises:
        InputError: llguidance does not take the text, or it is too large.

    Cost: 1 us per character, and what llguidance takes; without the GIL for the latter.
    """
    check_text(text)
    lark = _Reader(text, token_of).read()
    try:
        return GuidanceMatcher(tokens, lark, LIMITS), _num_bytes(lark)
    except InputError as error:
        raise InputError(f"the grammar is not valid: {reason_in(str(error))}") from error


def _num_bytes(lark: str) -> int:
    """Return how many bytes a grammar takes at most, as 40 of all kinds were measured."""
    steps = map(float, _MULTIPLE.findall(lark))
    return BYTES * (len(lark) + sum(map(digits_of, steps)))


class _Reader:
    """Reads the rules of a grammar as far as their bounds need it."""

    def __init__(self, text: str, token_of: TokenOf) -> None:
        self._text, self._token_of = text, token_of
        self._is_own = isinstance(text, GrammarText)
        self._at = 0
        self._parts_left = MAX_PARTS  # of all schemas
        # By name: how deep its groups are in one another, and the names in it.
        self._rules: dict[str, tuple[int, dict[str, None]]] = {"": (1, {})}

    def read(self) -> str:
        """Return the text as llguidance is to get it.

        Raises:
            InputError: It is too large, or leads too deep.
        """
        parts = list(self._parts())
        if longest_chain(self._rules) > MAX_CHAIN:
            raise InputError(f"the rules of the grammar lead deeper than {MAX_CHAIN}")
        return "".join(parts)

    def _parts(self) -> Iterator[str]:
        rule, depth, own, literals = "", 0, 0, 0
        while self._at < len(self._text):
            match = _TOKEN.match(self._text, self._at)
            assert match is not None  # any character is a token
            kind, part = match.lastgroup, match.group()
            self._at = match.end()
            own += len(part)
            literals += kind == "literal"
            if kind in ("json", "options"):
                yield part + self._value(kind == "json")
                continue
            if kind == "rule":
                rule, depth = part.lstrip("?!"), 0
                self._rules.setdefault(rule, (1, {}))
            elif kind == "name":
                self._rules[rule][1][part] = None
            elif kind in ("open", "close"):
                depth += 1 if kind == "open" else -1
                deepest, names = self._rules[rule]
                self._rules[rule] = max(deepest, 1 + depth), names
            elif kind == "special":
                part = f"<[{self._token(part)}]>"
            yield part
            if own > MAX_OWN_CHARS and not self._is_own:
                raise InputError(f"the grammar has more than {MAX_OWN_CHARS} characters")
            if len(self._rules) > MAX_RULES:
                raise InputError(f"the grammar has more than {MAX_RULES} rules")
            if literals > MAX_LITERALS:
                raise InputError(f"the grammar has more than {MAX_LITERALS} literals")

    def _token(self, text: str) -> int:
        token = self._token_of(text)
        if token < 0:
            raise self._error(f"{text[:40]!r} is not one token")
        return token

    def _value(self, is_schema: bool) -> str:
        """Read the JSON that is next; return it as llguidance is to get it."""
        start = self._at
        try:
            value, self._at = json.JSONDecoder().raw_decode(self._text, start)
        except (ValueError, RecursionError) as error:
            raise self._error(f"expected JSON: {error}") from None
        if self._is_own or not is_schema:
            return self._text[start : self._at]
        try:
            expression = schema_lark(value, "the grammar", strict=True, spend=self._spend)
        except GrammarError as error:
            raise InputError(error.message) from error
        return expression.removeprefix("%json ")

    def _spend(self, parts: int) -> None:
        self._parts_left -= parts
        if self._parts_left < 0:
            raise GrammarError(f"its schemas have more than {MAX_PARTS} parts together")

    def _error(self, reason: str) -> InputError:
        line = self._text.count("\n", 0, self._at) + 1
        return InputError(f"the grammar is not valid: {reason}, in line {line}")
