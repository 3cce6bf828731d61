"""The strings that a JSON schema allows, as they are and not as JSON, for a grammar in Lark.

Regular texts can be joined, met and left out, so that no keyword is left that takes a rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from ngramspec.errors import GrammarError
from ngramspec.text.structured.formats import FORMATS, format_pattern
from ngramspec.text.structured.json_plain import MAX_COUNT, SAYING
from ngramspec.text.structured.lark_rules import ANY, Part, Rules, literal, regex
from ngramspec.text.structured.pattern import rust_pattern, whole_pattern

MAX_DEPTH = 64
MAX_COUNTED = 1000  # characters; the marks in what is counted would take too many states beyond
NOTHING = "/[a&&b]/"  # a character that does not exist
Schema = Mapping[str, Any]


def string_part(rules: Rules, schema: Any, root: Any, strict: bool, end: str, mark: str) -> Part:
    """Return the strings that a schema allows, up to and with what ends them.

    Args:
        rules: The grammar, which gets their terminals.
        schema: The schema.
        root: What the schema is a part of, in which its references are.
        strict: Refuse what cannot be enforced; it is left out otherwise.
        end: What ends a string.
        mark: What must not be in a string; `end` ends with it.

    Raises:
        GrammarError: A keyword is not valid, no text fits, or the request is strict and something
            cannot be enforced.
    """
    strings = _Strings(rules, root, strict, mark)
    if isinstance(schema, Mapping) and SAYING.intersection(schema) == {"type", "maxLength"}:
        most = _count(schema["maxLength"], "maxLength")
        if most is not None and most <= MAX_COUNT:
            return rules.until(mark, regex(f"(?s:.{{0,{most}}})").text)
    texts = strings.of(schema, 0)
    if texts is None:
        return rules.until(mark)
    if texts == NOTHING:
        raise GrammarError("the JSON schema allows no text that can be written here")
    return rules.fenced(texts, end, mark)


class _Strings:
    """Terminals by their schema; None stands for any text."""

    def __init__(self, rules: Rules, root: Any, strict: bool, mark: str) -> None:
        self._rules, self._root, self._strict, self._mark = rules, root, strict, mark

    def of(self, schema: Any, depth: int) -> str | None:
        self._rules.spend(1)
        if depth > MAX_DEPTH:
            raise GrammarError(f"the JSON schema is nested deeper than {MAX_DEPTH}")
        if schema is True or schema is False:
            return None if schema else NOTHING
        if not isinstance(schema, Mapping):
            raise GrammarError(f"a JSON schema must be an object, got {schema!r:.80}")
        if "$dynamicRef" in schema or "$recursiveRef" in schema:
            self._cannot("$dynamicRef", "cannot be enforced")
        kinds = schema.get("type", "string")
        if "string" not in (kinds if isinstance(kinds, list) else [kinds]):
            return NOTHING
        return self._all([*self._own(schema), *self._applied(schema, depth + 1)])

    def _own(self, schema: Schema) -> list[str | None]:
        """Return the strings of each keyword that holds no schema."""
        parts: list[str | None] = []
        if "const" in schema:
            parts.append(self._words([schema["const"]]))
        if "enum" in schema:
            parts.append(self._words(schema["enum"]))
        if "pattern" in schema:
            parts.append(self._regex(whole_pattern(rust_pattern(schema["pattern"]))))
        if "format" in schema:
            name = schema["format"]
            if name in FORMATS:
                parts.append(self._regex(format_pattern(name).strip("^$")))
            else:
                self._cannot("format", f"{name!r:.80} is not one of {', '.join(FORMATS)}")
        low, high = (_count(schema.get(word), word) or 0 for word in ("minLength", "maxLength"))
        for word, count in (("minLength", low), ("maxLength", high)):
            if count > MAX_COUNTED:
                self._cannot(word, f"would take too large a grammar before {self._mark}")
        if low > MAX_COUNTED:
            return parts
        if "maxLength" in schema and high < low:
            return [NOTHING]
        most = high if "maxLength" in schema and high <= MAX_COUNTED else ""
        if low or most != "":
            parts.append(self._regex(f"(?s:.{{{low},{most}}})"))
        return parts

    def _applied(self, schema: Schema, depth: int) -> list[str | None]:
        """Return the strings of each keyword with schemas for the same value."""
        parts: list[str | None] = []
        if "$ref" in schema:
            parts.append(self.of(referred(schema["$ref"], self._root), depth))
        for word in ("allOf", "anyOf", "oneOf"):
            if word not in schema:
                continue
            some = [self.of(one, depth) for one in schema[word]]
            if word == "oneOf":
                some = [
                    self._all([one, *(self._not(other) for j, other in enumerate(some) if j != i)])
                    for i, one in enumerate(some)
                ]
            parts += some if word == "allOf" else [self._any(some)]
        if "not" in schema:
            parts.append(self._not(self.of(schema["not"], depth)))
        if "if" in schema:
            test = self.of(schema["if"], depth)
            then, other = (self.of(schema.get(word, True), depth) for word in ("then", "else"))
            parts.append(self._any([self._all([test, then]), self._all([self._not(test), other])]))
        return parts

    def _words(self, values: Iterable[Any]) -> str:
        texts = dict.fromkeys(literal(value) for value in values if isinstance(value, str))
        return self._terminal(" | ".join(texts)) if texts else NOTHING

    def _regex(self, pattern: str) -> str:
        return self._terminal(regex(pattern).text)

    def _terminal(self, source: str) -> str:
        return self._rules.terminal("text", source)

    def _all(self, parts: Iterable[str | None]) -> str | None:
        some = list(dict.fromkeys(part for part in parts if part is not None))
        if NOTHING in some:
            return NOTHING
        if len(some) < 2:
            return some[0] if some else None
        return self._terminal(" & ".join(some))

    def _any(self, parts: Iterable[str | None]) -> str | None:
        some = list(dict.fromkeys(part for part in parts if part != NOTHING))
        if None in some:
            return None
        if len(some) < 2:
            return some[0] if some else NOTHING
        return self._terminal(" | ".join(map(str, some)))

    def _not(self, part: str | None) -> str | None:
        if part is None or part == NOTHING:
            return NOTHING if part is None else None
        return self._terminal(f"{self._terminal(ANY)} & ~{part}")

    def _cannot(self, keyword: str, reason: str) -> None:
        """Leave a keyword out.

        Raises:
            GrammarError: The request is strict.
        """
        if self._strict:
            raise GrammarError(f"{keyword} {reason}; leave it out, or ask without strict")


def referred(reference: str, root: Any) -> Any:
    """Return what a reference names within a schema.

    Raises:
        GrammarError: That is nothing, or deeper than schemas may be.
    """
    schema = root
    names = reference.split("/", MAX_DEPTH + 1)
    try:
        if names[0] != "#" or len(names) > MAX_DEPTH + 1:
            raise KeyError
        for name in names[1:]:
            key = unquote(name).replace("~1", "/").replace("~0", "~")
            schema = schema[int(key) if isinstance(schema, list) else key]
    except (LookupError, TypeError, ValueError):
        raise GrammarError(f"$ref {reference!r:.80} is not in the schema") from None
    return schema


def _count(value: Any, name: str) -> int | None:
    """Return a bound; 3.0 is an integer in JSON schemas."""
    if value is None:
        return None
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if not whole or isinstance(value, bool) or value < 0:
        raise GrammarError(f"{name} must be an integer of 0 or more, got {value!r:.80}")
    return int(value)
