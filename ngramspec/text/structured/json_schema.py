"""From JSON schemas to GBNF rules, so that an answer follows a schema token by token.

docs/server/apis.md lists the keywords. What a grammar cannot enforce is left out, or
refused where the request is strict. A schema without a type has the one that its other keywords
imply.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import unquote

from ngramspec.text.structured import automaton as automata
from ngramspec.text.structured.automaton import TooLargeError
from ngramspec.text.structured.context import Context, NothingError
from ngramspec.text.structured.errors import GrammarError
from ngramspec.text.structured.gbnf import Rules, json_text, literal, one_of
from ngramspec.text.structured.json_apart import excludes
from ngramspec.text.structured.json_array import array_text
from ngramspec.text.structured.json_merge import Merger
from ngramspec.text.structured.json_number import Limits, limits_of, number_automaton
from ngramspec.text.structured.json_object import object_text
from ngramspec.text.structured.json_string import bare_text, string_text
from ngramspec.text.structured.json_value import BY_TYPE, NUMBER_WORDS, implied_type, listed

MAX_DEPTH = 64
ANY_OBJECT = {"type": "object"}
TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
APPLIED = ("anyOf", "oneOf", "allOf", "$ref")  # keywords with schemas for the same value
# Of the others, which do the same: what no grammar here enforces.
UNENFORCED = ("not", "if", "$dynamicRef", "$recursiveRef")
UNENFORCED_OF = {
    "object": ("dependentSchemas", "dependencies"),
    "array": ("contains",),
}
# Keywords that say something about a value; the others only describe it.
SAYING = frozenset(("type", "enum", "const", *APPLIED, *UNENFORCED)).union(*BY_TYPE.values())
Schema = Mapping[str, Any]


def add_schema(
    rules: Rules, schema: Any, name: str, field: str, strict: bool = False, whole: Any = None
) -> str:
    """Add rules for the values that a schema allows and return the name of the first.

    Args:
        rules: The grammar; its bounds hold for all of its schemas together.
        schema: The schema.
        name: Name of the rule.
        field: Field of the body, for error messages.
        strict: Refuse what cannot be enforced; it is left out otherwise.
        whole: What the schema is a part of, in which its references are; None = it is all.

    Raises:
        GrammarError: It is not a JSON schema, a grammar cannot express it, or it is too large.

    Cost: linear in the schema; parts that are shared by $ref become one rule. What counts, excludes
    names or joins patterns costs as many steps as its automaton has states.
    """
    if schema is True or schema == {}:
        return rules.primitive("value")
    rules.primitive("space")
    with _errors_of(field):
        whole = schema if whole is None else whole
        return _Converter(Context(rules, strict), whole).visit(schema, name, 0)


def schema_grammar(schema: Any, field: str = "json_schema", strict: bool = False) -> str:
    """Return the GBNF of a JSON schema; an empty schema means an object.

    Args:
        schema: The schema.
        field: Name of what holds it, for errors.
        strict: Refuse what a grammar cannot enforce; it is left out otherwise.

    Raises:
        GrammarError: As for add_schema; names the field.

    Cost: as add_schema.
    """
    rules = Rules()
    return rules.grammar(answer_rule(rules, schema, field, strict), field)


def answer_rule(rules: Rules, schema: Any, field: str, strict: bool = False) -> str:
    """Add the rules of a JSON schema to a grammar and return the name of the first.

    Args:
        rules: The grammar.
        schema, field, strict: As for schema_grammar.

    Raises:
        GrammarError: As for add_schema.
    """
    return add_schema(rules, ANY_OBJECT if schema == {} else schema, "answer", field, strict)


def add_string(
    rules: Rules, schema: Any, name: str, field: str, strict: bool, whole: Any, mark: str
) -> str | None:
    """Add a rule for the strings of a schema, written as they are, and return its name.

    Args:
        rules, schema, name, field, strict, whole: As for add_schema; all values are strings.
        mark: What ends a string; it must not be in it.

    Returns:
        None if any text will do.

    Raises:
        GrammarError: As for add_schema.
    """
    with _errors_of(field):
        return _Converter(Context(rules, strict), whole).visit_bare(schema, name, mark, 0)


@contextmanager
def _errors_of(field: str) -> Iterator[None]:
    """Name the field in the errors of a schema."""
    try:
        yield
    except GrammarError as error:
        raise GrammarError(f"{field}: {error.message}", field) from error
    except RecursionError:
        raise GrammarError(f"{field}: the JSON schema is nested too deep", field) from None
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise GrammarError(f"{field}: the JSON schema is not valid: {error}", field) from error


class _Converter:
    def __init__(self, context: Context, whole: Any) -> None:
        self._context = context
        self._rules = context.rules
        self._merger = Merger(context)
        self._whole = whole
        self._refs: dict[str, str] = {}  # reference -> rule
        self._numbers: dict[tuple[Limits, bool], str] = {}
        # By id of a schema: the schema, which keeps the id unique, and its rule or flat form.
        self._visited: dict[int, tuple[Any, str]] = {}
        self._flattened: dict[int, tuple[Any, Schema]] = {}

    def visit(self, schema: Any, name: str, depth: int) -> str:
        """Return the name of a rule for a schema; a schema that occurs again shares its rule."""
        entry = self._visited.get(id(schema))
        if entry is None:
            entry = self._visited[id(schema)] = schema, self._visit(schema, name, depth)
        return entry[1]

    def visit_bare(self, schema: Any, name: str, mark: str, depth: int) -> str | None:
        """Return the name of a rule for strings as they are; None if any text will do."""
        self._rules.spend(1)
        flat = self._flat(schema, depth)
        for word in UNENFORCED:
            if word in flat:
                self._context.cannot(word)
        if "enum" in flat or "const" in flat:
            texts = [text for text in self._values(flat) if isinstance(text, str)]
            if not (texts := [text for text in texts if mark not in text]):
                raise NothingError("an enum holds no text that can be written here")
            return self._rules.add(name, one_of(texts))
        for word in ("anyOf", "oneOf"):
            if word in flat:
                parts = [self._merger.both(one, _less(flat, word)) for one in flat[word]]
                rules = [
                    self.visit_bare(part, f"{name}-{i}", mark, depth + 1)
                    for i, part in enumerate(parts)
                ]
                bare = [one for one in rules if one is not None]
                return self._rules.add(name, " | ".join(bare)) if bare == rules else None
        text = bare_text(flat, self._context, name, mark)
        return None if text is None else self._rules.add(name, text)

    def _visit(self, schema: Any, name: str, depth: int) -> str:
        self._rules.spend(1)
        if depth > MAX_DEPTH:
            raise GrammarError(f"the JSON schema is nested deeper than {MAX_DEPTH}")
        if schema is True or schema == {}:
            return self._rules.primitive("value")
        if schema is False:
            raise NothingError("the JSON schema allows no value")
        if not isinstance(schema, Mapping):
            raise GrammarError(f"a JSON schema must be an object, got {schema!r:.80}")
        if "$ref" in schema and SAYING.isdisjoint(schema.keys() - {"$ref"}):
            return self._reference(schema["$ref"], depth)
        if "$ref" in schema or "allOf" in schema:
            name = self._rules.reserve(name)
            self._visited[id(schema)] = schema, name  # as for $ref: it may contain itself
            try:
                return self._rules.set(name, self.visit(self._flat(schema, depth), name, depth + 1))
            except NothingError:
                del self._visited[id(schema)]
                raise
        for word in UNENFORCED:
            if word in schema and (word != "if" or "then" in schema or "else" in schema):
                self._context.cannot(word)
        if "enum" in schema or "const" in schema:
            return self._listed(schema, name)
        for word in ("anyOf", "oneOf"):
            if word in schema:
                return self._one_of(schema, word, name, depth)
        return self._typed(schema, name, depth)

    def _typed(self, schema: Schema, name: str, depth: int) -> str:
        kind = schema.get("type")
        if kind is None:
            kind = implied_type(schema)
        if isinstance(kind, list):
            self._rules.spend(len(kind) * len(schema))
            parts = [{**schema, "type": one} for one in kind]
            return self._rules.add(name, self._alternatives(parts, name, depth))
        if kind is None:
            return self._rules.primitive("value")
        if kind not in TYPES:
            raise GrammarError(f"{kind!r:.80} is not a JSON schema type; known: {', '.join(TYPES)}")
        for word in UNENFORCED_OF.get(kind, ()):
            if word in schema:
                self._context.cannot(word)
        if kind == "object":
            return self._object(schema, name, depth)
        if kind == "array":
            gbnf = array_text(schema, self._context, name, lambda s, n: self.visit(s, n, depth + 1))
            return self._rules.add(name, gbnf)
        if kind == "string":
            text = string_text(schema, self._context, name)
            if text is None:
                return self._rules.primitive("string")
            quote = literal('"')
            return self._rules.add(name, f"{quote} {text} {quote}")
        if kind in ("integer", "number"):
            return self._number(schema, name, kind)
        return self._rules.primitive(kind)

    def _reference(self, ref: Any, depth: int) -> str:
        if ref not in self._refs:
            name = self._rules.reserve("schema" if ref == "#" else ref.rsplit("/", 1)[-1])
            self._refs[ref] = name  # known before it is visited: it may contain itself
            try:
                self._rules.set(name, self.visit(self._resolve(ref), name, depth + 1))
            except NothingError:
                del self._refs[ref]
                raise
        return self._refs[ref]

    def _resolve(self, ref: str) -> Any:
        if ref != "#" and not ref.startswith("#/"):
            raise GrammarError(f"$ref must be a path within the schema, got {ref!r:.80}")
        schema = self._whole
        for part in ref[1:].split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            try:
                schema = schema[int(key)] if isinstance(schema, list) else schema[key]
            except (KeyError, IndexError, ValueError, TypeError) as error:
                raise GrammarError(f"$ref {ref!r:.80} is not in the schema") from error
        return schema

    def _listed(self, schema: Schema, name: str) -> str:
        """Return a rule for the values of an enum or const that fit the rest of the schema."""
        return self._rules.add(name, one_of(map(json_text, self._values(schema))))

    def _values(self, schema: Schema) -> list[Any]:
        """Return the values of an enum or const that fit the rest of the schema."""
        values = [schema["const"]] if "const" in schema else schema["enum"]
        if not isinstance(values, list) or not values:
            raise GrammarError("an enum must be a list with a value")
        self._rules.spend(len(values))
        if "const" in schema and "enum" in schema:
            schema = self._merger.merged({"enum": values}, _less(schema, "const"))
            return self._values(schema)
        for word in ("anyOf", "oneOf"):
            if word in schema:
                self._context.cannot(f"{word} beside enum or const")
        if not SAYING.isdisjoint(schema.keys() - {"const", "enum", *APPLIED, *UNENFORCED}):
            values = [value for value in values if self._fits(value, schema)]
        if not values:
            raise NothingError("no value of an enum fits the rest of its schema")
        return values

    def _fits(self, value: Any, schema: Schema) -> bool:
        try:
            return listed(value, schema, self._context)
        except TooLargeError:
            self._context.cannot("a pattern beside enum or const")
            return True

    def _one_of(self, schema: Schema, word: str, name: str, depth: int) -> str:
        parts, rest = schema[word], _less(schema, word)
        if not isinstance(parts, list) or not parts:
            raise GrammarError(f"{word} must be a list with a schema")
        if not SAYING.isdisjoint(rest):
            parts = [self._merger.both(one, rest) for one in parts]
        if word == "oneOf" and self._context.strict:
            self._check_apart(parts, depth)
        return self._rules.add(name, self._alternatives(parts, name, depth))

    def _check_apart(self, parts: list[Any], depth: int) -> None:
        def flat(schema: Any) -> Schema:
            return self._flat(schema, depth + 1)

        for one, other in itertools.permutations(parts, 2):
            if not excludes(one, other, flat, self._context):
                self._context.cannot("oneOf", "has alternatives that may both fit a value")

    def _alternatives(self, parts: list[Any], name: str, depth: int) -> str:
        if not parts:
            raise GrammarError("a list of types must not be empty")
        rules: dict[str, None] = {}
        nothing = None
        for i, one in enumerate(parts):
            try:
                rules[self.visit(one, f"{name}-{i}", depth + 1)] = None
            except NothingError as error:
                nothing = error
        if not rules and nothing:
            raise nothing
        return " | ".join(rules)

    def _flat(self, schema: Any, depth: int) -> Schema:
        """Return a schema with its $ref and allOf replaced by their contents."""
        if schema is True:
            return {}
        if schema is False:
            raise NothingError("the JSON schema allows no value")
        if "$ref" not in schema and "allOf" not in schema:
            return cast("Schema", schema)
        if depth > MAX_DEPTH:
            raise GrammarError(f"the JSON schema is nested deeper than {MAX_DEPTH}")
        entry = self._flattened.get(id(schema))
        if entry is None:
            parts = [self._resolve(schema["$ref"])] if "$ref" in schema else []
            own = _less(schema, "$ref", "allOf")
            whole: Schema = {}
            for part in (*parts, own, *schema.get("allOf", ())):
                whole = self._merger.merged(whole, self._flat(part, depth + 1))
            entry = self._flattened[id(schema)] = schema, whole
        return entry[1]

    def _object(self, schema: Schema, name: str, depth: int) -> str:
        if schema.get("unevaluatedProperties", True) is not True:
            if schema["unevaluatedProperties"] is not False:
                self._context.cannot("unevaluatedProperties with a schema")
            schema = {"additionalProperties": False, **schema}
        if all(schema.get(word, True) is True for word in BY_TYPE["object"]):
            return self._rules.primitive("object")
        gbnf = object_text(
            schema, self._context, self._merger, name, lambda s, n: self.visit(s, n, depth + 1)
        )
        return self._rules.add(name, gbnf)

    def _number(self, schema: Schema, name: str, kind: str) -> str:
        limits, whole = limits_of(schema), kind == "integer"
        if limits is None:
            return self._rules.primitive(kind)
        if limits.is_sign and not whole:
            return self._rules.primitive("positive")
        key = limits, whole
        if key not in self._numbers:
            try:
                automaton = number_automaton(limits, whole, self._rules.spend)
            except TooLargeError:
                self._context.cannot("multipleOf", "would take too large a grammar")
                return self._number(_less(schema, "multipleOf"), name, kind)
            if automaton.is_empty:
                words = {word: schema[word] for word in NUMBER_WORDS if word in schema}
                shown = json.dumps(words, default=str)  # allOf makes fractions of several steps
                raise NothingError(f"no {kind} that can be written here fits {shown}")
            self._numbers[key] = self._rules.add(name, automata.gbnf(automaton, self._rules, name))
        return self._numbers[key]


def _less(schema: Schema, *words: str) -> dict[str, Any]:
    """Return a schema without some keywords."""
    return {word: value for word, value in schema.items() if word not in words}
