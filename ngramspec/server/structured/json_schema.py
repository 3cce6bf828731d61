"""From JSON schemas to GBNF rules, so that an answer follows a schema token by token.

Supported: type (also lists of types), properties, required, additionalProperties, items,
prefixItems, minItems, maxItems, enum, const, anyOf, oneOf, allOf, $ref within the schema, pattern,
minLength, maxLength, the formats date, time, date-time and uuid, bounds of integers, and bounds of
numbers as far as json_number supports them. Other keywords are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import unquote

from ngramspec.server.errors import ApiError, bad_request
from ngramspec.server.structured.gbnf import (
    MAX_NAME,
    Rules,
    json_literal,
    json_text,
    literal,
    one_of,
    repeated,
)
from ngramspec.server.structured.json_number import has_no_sign, integer_text, number_text
from ngramspec.server.structured.json_pattern import pattern_text

MAX_DEPTH = 64
TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
FORMATS = ("date", "time", "date-time", "uuid")
_HALF = MAX_NAME // 2
COMMA = ' space "," space '
Schema = Mapping[str, Any]


def add_schema(rules: Rules, schema: Any, name: str, field: str) -> str:
    """Add rules for the values that a schema allows and return the name of the first.

    Args:
        rules: The grammar; its bounds hold for all of its schemas together.
        schema: The schema.
        name: Name of the rule.
        field: Field of the body, for error messages.

    Raises:
        ApiError: It is not a JSON schema, a grammar cannot express it, or it is too large.

    Cost: linear in the schema; parts that are shared by $ref become one rule.
    """
    if schema is True or schema == {}:
        return rules.primitive("value")
    rules.primitive("space")
    try:
        return _Converter(rules, schema).visit(schema, name, 0)
    except ApiError as error:
        raise bad_request(f"{field}: {error.message}", field) from error
    except RecursionError:
        raise bad_request(f"{field}: the JSON schema is nested too deep", field) from None
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise bad_request(f"{field}: the JSON schema is not valid: {error}", field) from error


class _Converter:
    def __init__(self, rules: Rules, whole: Any) -> None:
        self._rules = rules
        self._whole = whole
        self._refs: dict[str, str] = {}  # reference -> rule
        # By id of a schema: the schema, which keeps the id unique, and its rule or flat form.
        self._made: dict[int, tuple[Any, str]] = {}
        self._flattened: dict[int, tuple[Any, Schema]] = {}

    def visit(self, schema: Any, name: str, depth: int) -> str:
        """Return the name of a rule for a schema; a schema that occurs again shares its rule."""
        known = self._made.get(id(schema))
        if known is None:
            known = self._made[id(schema)] = schema, self._visit(schema, name, depth)
        return known[1]

    def _visit(self, schema: Any, name: str, depth: int) -> str:
        self._rules.spend(1)
        if depth > MAX_DEPTH:
            raise bad_request(f"the JSON schema is nested deeper than {MAX_DEPTH}")
        if schema is True or schema == {}:
            return self._rules.primitive("value")
        if not isinstance(schema, Mapping):
            raise bad_request(f"a JSON schema must be an object, got {schema!r:.80}")
        if "$ref" in schema:
            return self._reference(schema["$ref"], depth)
        if "const" in schema:
            return self._rules.add(name, json_literal(schema["const"]))
        if "enum" in schema:
            if not schema["enum"]:
                raise bad_request("an enum must not be empty")
            self._rules.spend(len(schema["enum"]))
            return self._rules.add(name, one_of(map(json_text, schema["enum"])))
        for word in ("anyOf", "oneOf"):
            if schema.get(word):
                return self._one_of(schema, word, name, depth)
        if "allOf" in schema:
            name = self._rules.reserve(name)
            self._made[id(schema)] = schema, name  # as for $ref: it may contain itself
            return self._rules.set(name, self.visit(self._flat(schema, depth), name, depth + 1))
        return self._typed(schema, name, depth)

    def _typed(self, schema: Schema, name: str, depth: int) -> str:
        kind = schema.get("type", _guess(schema))
        if isinstance(kind, list):
            self._rules.spend(len(kind) * len(schema))
            parts = [{**schema, "type": one} for one in kind]
            return self._rules.add(name, self._alternatives(parts, name, depth))
        if kind is None:
            return self._rules.primitive("value")
        if kind not in TYPES:
            raise bad_request(f"{kind!r:.80} is not a JSON schema type; known: {', '.join(TYPES)}")
        if kind == "object":
            return self._object(schema, name, depth)
        if kind == "array":
            return self._array(schema, name, depth)
        if kind == "string":
            return self._string(schema, name)
        if kind == "integer":
            text = integer_text(schema)
            return self._rules.primitive(kind) if text is None else self._rules.add(name, text)
        if kind == "number":
            return self._number(schema, name)
        return self._rules.primitive(kind)

    def _reference(self, ref: str, depth: int) -> str:
        if ref not in self._refs:
            name = self._rules.reserve(ref.rsplit("/", 1)[-1])
            self._refs[ref] = name  # known before it is visited: it may contain itself
            self._rules.set(name, self.visit(self._resolve(ref), name, depth + 1))
        return self._refs[ref]

    def _resolve(self, ref: str) -> Any:
        if not ref.startswith("#"):
            raise bad_request(f"$ref must stay within the schema, got {ref!r:.80}")
        found = self._whole
        for part in ref[1:].split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(key)] if isinstance(found, list) else found[key]
            except (KeyError, IndexError, ValueError, TypeError) as error:
                raise bad_request(f"$ref {ref!r:.80} is not in the schema") from error
        return found

    def _one_of(self, schema: Schema, word: str, name: str, depth: int) -> str:
        rest = {key: value for key, value in schema.items() if key != word}
        shared = any(key in rest for key in ("properties", "required", "items", "type"))
        parts = [self._merged([rest, one], depth) if shared else one for one in schema[word]]
        return self._rules.add(name, self._alternatives(parts, name, depth))

    def _alternatives(self, parts: list[Any], name: str, depth: int) -> str:
        if not parts:
            raise bad_request("a list of types must not be empty")
        made = (self.visit(one, f"{name}-{i}", depth + 1) for i, one in enumerate(parts))
        return " | ".join(dict.fromkeys(made))

    def _flat(self, schema: Any, depth: int) -> Schema:
        """Return a schema with its $ref and allOf replaced by their contents."""
        if "$ref" not in schema and "allOf" not in schema:
            return cast("Schema", schema)
        if depth > MAX_DEPTH:
            raise bad_request(f"the JSON schema is nested deeper than {MAX_DEPTH}")
        known = self._flattened.get(id(schema))
        if known is None:
            own = {key: value for key, value in schema.items() if key not in ("$ref", "allOf")}
            self._rules.spend(len(schema))
            if "$ref" in schema:
                base = self._flat(self._resolve(schema["$ref"]), depth + 1)
                self._rules.spend(len(base))
                own = {**base, **own}
            made = self._merged([own, *schema.get("allOf", ())], depth)
            known = self._flattened[id(schema)] = schema, made
        return known[1]

    def _merged(self, parts: list[Any], depth: int) -> dict[str, Any]:
        """Return one schema with the members of all parts; later parts override earlier ones."""
        whole: dict[str, Any] = {}
        properties: dict[str, Any] = {}
        required: dict[str, None] = {}
        for given in parts:
            part = self._flat(given, depth + 1)
            more, needed = part.get("properties", {}), part.get("required", ())
            self._rules.spend(len(part) + len(more) + len(needed))
            whole.update(part)
            properties.update(more)
            required.update(dict.fromkeys(needed))
        if properties:
            whole["properties"] = properties
        if required:
            whole["required"] = list(required)
        return whole

    def _object(self, schema: Schema, name: str, depth: int) -> str:
        properties = schema.get("properties", {})
        more = schema.get("additionalProperties", "properties" not in schema)
        required = set(schema.get("required", ())) & set(properties)
        if not properties and more is True:
            return self._rules.primitive("object")
        members = [
            (self._member(key, value, f"{name[:_HALF]}-{key[:_HALF]}", depth), key in required)
            for key, value in properties.items()
        ]
        extra = None
        if more is not False:
            value = self.visit({} if more is True else more, f"{name}-more", depth + 1)
            string = self._rules.primitive("string")
            extra = self._rules.add(f"{name}-more-member", f'{string} space ":" space {value}')
        text = self._members(members, extra, name)
        return self._rules.add(name, f'"{{" space {text} "}}"' if text else '"{" space "}"')

    def _member(self, key: str, schema: Any, name: str, depth: int) -> str:
        value = self.visit(schema, name, depth + 1)
        return self._rules.add(f"{name}-member", f'{json_literal(key)} space ":" space {value}')

    def _members(self, members: list[tuple[str, bool]], extra: str | None, name: str) -> str:
        """Return the inside of an object: members in order, each optional member present or not."""
        tail = f"({COMMA}{extra})*" if extra else ""
        first = next((i for i, (_, needed) in enumerate(members) if needed), None)
        if first is not None:
            parts = [f"({member}{COMMA})?" for member, _ in members[:first]]
            parts.append(members[first][0])
            for member, needed in members[first + 1 :]:
                parts.append(f"{COMMA}{member}" if needed else f"({COMMA}{member})?")
            return " ".join([*parts, tail, "space"])
        if not members and not extra:
            return ""
        # Without a required member any can be the first: make a rule for what can follow each.
        rest = self._rules.add(f"{name}-rest", tail)
        starts = [f"{extra} {rest}"] if extra else []
        for member, _ in reversed(members):
            starts.append(f"{member} {rest}")
            rest = self._rules.add(f"{name}-rest", f"({COMMA}{member})? {rest}")
        return f"(({' | '.join(reversed(starts))}) space)?"

    def _array(self, schema: Schema, name: str, depth: int) -> str:
        items = schema.get("items", True)
        prefix = schema.get("prefixItems", items if isinstance(items, list) else None)
        if prefix is not None:
            made = (self.visit(one, f"{name}-{i}", depth + 1) for i, one in enumerate(prefix))
            return self._rules.add(name, f'"[" space {COMMA.join(made)} space "]"')
        low, high = _bounds(schema, "minItems", "maxItems")
        item = self.visit(items, f"{name}-item", depth + 1)
        if high == 0:
            return self._rules.add(name, '"[" space "]"')
        next_item = self._rules.add(f"{name}-next", f"{COMMA}{item}")
        more = repeated(next_item, max(0, low - 1), None if high is None else high - 1)
        inside = f"{item} {more} space"
        return self._rules.add(name, f'"[" space {inside if low else f"({inside})?"} "]"')

    def _number(self, schema: Schema, name: str) -> str:
        text = number_text(schema)
        if text is not None:
            return self._rules.add(name, text)
        return self._rules.primitive("positive" if has_no_sign(schema) else "number")

    def _string(self, schema: Schema, name: str) -> str:
        quote = literal('"')
        if "pattern" in schema:
            text = pattern_text(schema["pattern"], self._rules, name)
            return self._rules.add(name, f"{quote} {text} {quote}")
        if schema.get("format") in FORMATS:
            inner = self._rules.primitive(schema["format"])
            return self._rules.add(name, f"{quote} {inner} {quote}")
        low, high = _bounds(schema, "minLength", "maxLength")
        if not low and high is None:
            return self._rules.primitive("string")
        char = self._rules.primitive("char")
        return self._rules.add(name, f"{quote} {repeated(char, low, high)} {quote}")


def _guess(schema: Schema) -> str | None:
    """Return the type that the other keywords of a schema imply."""
    if "properties" in schema or "additionalProperties" in schema or "required" in schema:
        return "object"
    if "items" in schema or "prefixItems" in schema:
        return "array"
    if "pattern" in schema or schema.get("format") in FORMATS or "maxLength" in schema:
        return "string"
    return None


def _bounds(schema: Schema, low_name: str, high_name: str) -> tuple[int, int | None]:
    low, high = schema.get(low_name, 0), schema.get(high_name)
    for name, value in ((low_name, low), (high_name, 0 if high is None else high)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise bad_request(f"{name} must be an integer of 0 or more, got {value!r:.80}")
    if high is not None and high < low:
        raise bad_request(f"{high_name} {high} is below {low_name} {low}")
    return low, high
