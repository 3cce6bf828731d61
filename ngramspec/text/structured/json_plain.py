"""From JSON schemas to the ones that llguidance gets: bounded, and with the meaning of this house.

A schema without a type gets the one that its other keywords imply. An object with `properties` has
no others unless it says so; parts of one schema, as of allOf, are closed together. Patterns,
formats and alternatives are written in the keywords that llguidance enforces.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

from ngramspec.errors import GrammarError
from ngramspec.text.structured.chains import longest_chain
from ngramspec.text.structured.formats import FORMATS, format_pattern
from ngramspec.text.structured.pattern import rust_pattern

MAX_DEPTH = 64  # of parts in one another, references followed
MAX_CHAIN = 400  # the same, by any way through the references
MAX_PARTS = 100_000  # of a schema, those that are repeated included
MAX_COUNT = 1_000_000  # of characters, items or members
MAX_DEPENDENT = 5  # members that dependentRequired names
MAX_STEP = 10_000  # digits of multipleOf: a grammar has as many states, each counts as a part
MAX_NAME_PATTERNS = 64  # of one object: each is compared with all others
MAX_WAYS = 64  # in which a number of members can be there
SHARE_DEPTH = 16  # parts this deep become definitions: JSON is read 128 deep
LARGEST = 1e300  # of a bound; one beyond it is not needed, or nothing fits it
LEAST_WHOLE, MOST_WHOLE = -(2**62), 2**63 - 1  # of whole numbers
EXACT = 2**53  # up to it a double holds every whole number
TYPES = ("array", "object", "string", "integer", "number", "boolean", "null")
OBJECT_WORDS = (
    *("properties", "required", "additionalProperties", "patternProperties", "propertyNames"),
    *("minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies"),
    "unevaluatedProperties",
)
ARRAY_WORDS = (
    *("items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"),
    *("contains", "minContains", "maxContains", "unevaluatedItems"),
)
STRING_WORDS = ("pattern", "format", "minLength", "maxLength")
NUMBER_WORDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")
BY_TYPE = {
    "object": OBJECT_WORDS,
    "array": ARRAY_WORDS,
    "string": STRING_WORDS,
    "number": NUMBER_WORDS,
}
APPLIED = ("$ref", "allOf", "anyOf", "oneOf")
LISTED = ("const", "enum")
UNENFORCED = ("not", "if", "$dynamicRef", "$recursiveRef")
# Keywords that say something about a value; the others only describe it.
SAYING = frozenset(("type", *LISTED, *APPLIED, *UNENFORCED)).union(*BY_TYPE.values())
Schema = Mapping[str, Any]


def plain_schema(
    schema: Any,
    whole: Any,
    strict: bool,
    joined: bool = False,
    spend: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Return a schema as llguidance is to get it, with all definitions that it refers to.

    Args:
        schema: The schema.
        whole: What it is a part of, in which its references are.
        strict: Refuse what cannot be enforced; it is left out otherwise.
        joined: A member that fits any of the patterns of an object may have the value of any.
        spend: Is called with numbers of parts, and may refuse them; None = nothing is.

    Raises:
        GrammarError: It is not a JSON schema, it is too large, no value fits it, or the request is
            strict and something cannot be enforced.

    Cost: linear in the parts, those that references and combinations repeat included.
    """
    reader = _Reader(whole, strict, joined, spend)
    root = reader.closed(schema, 0)
    return reader.completed(root)


@dataclass
class _Shape:
    """What the parts of one schema say together about objects, and which keywords they have."""

    words: set[str] = field(default_factory=set)
    names: dict[str, None] = field(default_factory=dict)
    required: dict[str, None] = field(default_factory=dict)  # allowed too unless `ends_all`
    patterns: dict[str, None] = field(default_factory=dict)
    stays_open: bool = False  # a part says what further members are like
    ends_all: bool = False  # unevaluatedProperties: false


class _Reader:
    def __init__(
        self,
        whole: Any,
        strict: bool,
        joined: bool,
        spend: Callable[[int], None] | None,
        literal: bool = False,
    ) -> None:
        self._also_spend = spend
        self._literal = literal  # no type is implied, and nothing is closed
        self._wide: _Reader | None = None  # reads alternatives literally
        self._whole = whole
        self._strict = strict
        self._joined = joined
        self._parts = 0
        self._defs: dict[str, Any] = {}
        # By id of a schema and whether it is closed: the schema, which keeps the id unique, and
        # the name of its definition.
        self._names: dict[tuple[int, bool], tuple[Any, str]] = {}
        self._origins: dict[str, str] = {}  # of definitions: the last part of their reference
        self._depths: dict[str, int] = {}  # of definitions: parts in one another

    # -- the whole ---------------------------------------------------------------------------------

    def completed(self, root: Any) -> dict[str, Any]:
        """Return the root with its definitions; what refers to those that never end is False."""
        depths = {"": (_depth(root), _references(root))}
        depths |= {n: (_depth(one), _references(one)) for n, one in self._defs.items()}
        if longest_chain(depths) > MAX_CHAIN:
            raise GrammarError(f"the references of the JSON schema lead deeper than {MAX_CHAIN}")
        ending = self._ending()
        if not _ends(root, ending):
            endless = [name for name in self._defs if name not in ending]
            used = [name for name in _references(root) if name in endless] or endless
            rule = self._origins[used[0]] if used else "schema"
            raise GrammarError(
                f"the JSON schema can never be completed: its part {rule!r} always leads back to "
                "itself or to nothing"
            )
        if root is False:
            raise GrammarError("the JSON schema allows no value")
        definitions = {n: one for n, one in self._defs.items() if n in ending}
        whole = {} if root is True else dict(root)
        if len(ending) < len(self._defs):  # llguidance takes no reference to what allows nothing
            missing = self._defs.keys() - ending
            whole, definitions = _without(whole, missing), _without(definitions, missing)
        return {**whole, "$defs": definitions} if definitions else whole

    def _ending(self) -> set[str]:
        """Return the definitions of which a value comes to an end."""
        ending: set[str] = set()
        while True:
            more = [n for n in reversed(self._defs) if n not in ending]
            self._spend(len(more))
            before = len(ending)
            for name in more:
                if _ends(self._defs[name], ending):
                    ending.add(name)
            if len(ending) == before:
                return ending

    def _spend(self, parts: int) -> None:
        if self._also_spend is not None:
            self._also_spend(parts)
        self._parts += parts
        if self._parts > MAX_PARTS:
            raise GrammarError(
                f"the schema has more than {MAX_PARTS} parts, repeated ones included"
            )

    def _cannot(self, keyword: str, reason: str = "cannot be enforced") -> None:
        if self._strict:
            raise GrammarError(f"{keyword} {reason}; leave it out, or ask without strict")

    # -- one schema --------------------------------------------------------------------------------

    def closed(self, schema: Any, depth: int, shared: bool = False) -> Any:
        """Return a schema that stands for itself: no other part says more about its values.

        shared: It is a definition, or deep schemas become one.
        """
        words = self._words(schema, depth)
        if isinstance(words, bool) or not words:
            return True if words == {} else words
        applied = [word for word in APPLIED if word in words]
        if len(words) == 1 and applied:
            if applied == ["$ref"]:
                return self._reference(words["$ref"], True, depth)
            if applied != ["allOf"]:
                return self._any_of(words, applied[0], True, depth)
            if len(parts := _schemas(words["allOf"], "allOf")) == 1:
                return self.closed(parts[0], depth + 1)
        if depth and depth % SHARE_DEPTH == 0 and not shared:
            return self._definition(schema, True, depth, "schema")
        return self._closed(words, depth)

    def _closed(self, words: dict[str, Any], depth: int) -> Any:
        if self._literal:
            return self._part(words, depth)
        shape = _Shape()
        self._gather(words, shape, set(), depth)
        if len(shape.patterns) > MAX_NAME_PATTERNS:
            raise GrammarError(
                f"patternProperties may have {MAX_NAME_PATTERNS} patterns for one object, "
                f"got {len(shape.patterns)}"
            )
        self._spend(2 * len(shape.patterns) ** 2)
        more: dict[str, Any] = {}
        if "type" not in shape.words and shape.words.isdisjoint(LISTED):
            more["type"] = next(
                (kind for kind, own in BY_TYPE.items() if not shape.words.isdisjoint(own)), None
            )
        if not any(word in words for word in APPLIED):
            kinds = {"type": more["type"]} if more.get("type") else {}
            return self._own({**words, **kinds}, depth, True)
        names = shape.names if shape.ends_all else {**shape.names, **shape.required}
        result = self._part(words, depth)
        is_open = shape.stays_open or (self._joined and shape.patterns)
        if not is_open and (names or shape.patterns or shape.ends_all):
            more["properties"] = dict.fromkeys(names, True)
            more["additionalProperties"] = False
            if shape.patterns:
                more["patternProperties"] = dict.fromkeys(shape.patterns, True)
        more = {word: value for word, value in more.items() if value is not None}
        return _all([result, more]) if more else result

    def _words(self, schema: Any, depth: int) -> Any:
        """Return the keywords that say something, or True or False."""
        self._spend(1)
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            raise GrammarError(f"a JSON schema must be an object, got {schema!r:.80}")
        if depth > MAX_DEPTH:
            raise GrammarError(f"the JSON schema is nested deeper than {MAX_DEPTH}")
        words = {word: value for word, value in schema.items() if word in SAYING}
        for word in UNENFORCED:
            if word in words:
                if word != "if" or "then" in schema or "else" in schema:
                    self._cannot(word)
                del words[word]
        return words

    def part(self, schema: Any, depth: int) -> Any:
        """Return a schema of which another part of the same says more."""
        words = self._words(schema, depth)
        return words if isinstance(words, bool) else self._part(words, depth)

    def _part(self, words: dict[str, Any], depth: int) -> Any:
        parts = []
        if "$ref" in words:
            parts.append(self._reference(words["$ref"], False, depth))
        own = {word: value for word, value in words.items() if word not in APPLIED}
        if own:
            parts.append(self._own(own, depth, False))
        for one in _schemas(words["allOf"], "allOf") if "allOf" in words else ():
            parts.append(self.part(one, depth + 1))
        for word in ("anyOf", "oneOf"):
            if word in words:
                parts.append(self._any_of(words, word, False, depth))
        return _all(parts)

    def _any_of(self, words: Schema, word: str, closed: bool, depth: int) -> Any:
        parts = _schemas(words[word], word)
        visit = self.closed if closed else self.part
        schemas = [visit(one, depth + 1) for one in parts]
        if word == "oneOf" and self._strict:
            self._check_apart(schemas, parts, depth)
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}

    def _reference(self, ref: Any, closed: bool, depth: int) -> Any:
        target = self._resolved(ref)
        if isinstance(target, bool):
            return target
        origin = "schema" if ref == "#" else ref.rsplit("/", 1)[-1]
        return self._definition(target, closed, depth, origin)

    def _definition(self, schema: Any, closed: bool, depth: int, origin: str) -> Any:
        key = id(schema), closed
        if key not in self._names:
            name = str(len(self._names))
            self._names[key] = schema, name
            self._origins[name] = origin
            if closed:
                self._defs[name] = self.closed(schema, depth + 1, shared=True)
            else:
                self._defs[name] = self.part(schema, depth + 1)
        return {"$ref": f"#/$defs/{self._names[key][1]}"}

    def _resolved(self, ref: Any) -> Any:
        if not isinstance(ref, str) or (ref != "#" and not ref.startswith("#/")):
            raise GrammarError(f"$ref must be a path within the schema, got {ref!r:.80}")
        schema = self._whole
        for step in ref[1:].split("/")[1:]:
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            try:
                schema = schema[int(key)] if isinstance(schema, list) else schema[key]
            except (KeyError, IndexError, ValueError, TypeError) as error:
                raise GrammarError(f"$ref {ref!r:.80} is not in the schema") from error
        return schema

    def _gather(self, schema: Any, shape: _Shape, seen: set[int], depth: int) -> None:
        """Add what a schema and its parts say about objects; alternatives count together."""
        if not isinstance(schema, Mapping) or id(schema) in seen:
            return
        if depth > MAX_DEPTH:
            raise GrammarError(f"the JSON schema is nested deeper than {MAX_DEPTH}")
        self._spend(1)
        seen.add(id(schema))
        shape.words.update(word for word in schema if word in SAYING)
        shape.names.update(dict.fromkeys(_mapping(schema, "properties")))
        shape.patterns.update(
            dict.fromkeys(map(rust_pattern, _mapping(schema, "patternProperties")))
        )
        if schema.get("additionalProperties", False) is not False:
            shape.stays_open = True
        else:
            shape.required.update(dict.fromkeys(_names(schema)))
        ends = schema.get("unevaluatedProperties")
        if ends is False and len(seen) > 1:
            self._cannot("unevaluatedProperties beside what another part allows")
        shape.ends_all |= ends is False
        shape.stays_open |= ends is True
        if "$ref" in schema:
            self._gather(self._resolved(schema["$ref"]), shape, seen, depth + 1)
        for one in _schemas(schema["allOf"], "allOf") if "allOf" in schema else ():
            self._gather(one, shape, seen, depth + 1)
        for word in ("anyOf", "oneOf"):
            inner = _Shape()
            for one in _schemas(schema[word], word) if word in schema else ():
                self._gather(one, inner, seen, depth + 1)
            if shape.ends_all and (inner.names or inner.patterns or inner.stays_open):
                self._cannot("unevaluatedProperties beside alternatives with members")
            shape.names.update(inner.names)
            shape.required.update(inner.required)
            shape.patterns.update(inner.patterns)
            shape.stays_open |= inner.stays_open
            shape.words |= inner.words & {"type", *LISTED}

    # -- keywords ----------------------------------------------------------------------------------

    def _own(self, words: Schema, depth: int, closed: bool) -> Any:
        """Return keywords that apply no other schema to the same value."""
        kinds = _kinds(words)
        result: dict[str, Any] = {}
        if kinds is not None:
            result["type"] = kinds[0] if len(kinds) == 1 else kinds
        more: list[Any] = []
        if not kinds or "array" in kinds:
            result |= self._array(words, depth)
        if not kinds or "object" in kinds:
            members = self._object(words, depth, closed, more)
            if members is False:
                return False
            result |= members
        if not kinds or "string" in kinds:
            result |= self._string(words, more)
        if not kinds or "integer" in kinds or "number" in kinds:
            result |= self._number(words, kinds)
        if any(word in words for word in LISTED):
            listed = self._listed(words, kinds)
            if listed is None:
                return False
            result |= listed
        return _all([result, *more])

    def _array(self, words: Schema, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {**self._counts(words, "minItems", "maxItems")}
        items, first = words.get("items"), words.get("prefixItems")
        if first is None and isinstance(items, list):
            first, items = items, words.get("additionalItems")
        first = [] if first is None else first
        if not isinstance(first, list):
            raise GrammarError(f"prefixItems must be a list of schemas, got {first!r:.80}")
        low, high = result.get("minItems", 0), result.get("maxItems")
        if items is None and (first or words.get("unevaluatedItems") is False):
            items = words.get("unevaluatedItems") is not False and low > len(first)
        if first:
            result["prefixItems"] = [self.closed(one, depth + 1) for one in first]
            if "minItems" not in words:
                result["minItems"] = len(first) if high is None else min(high, len(first))
        if items is not None:
            result["items"] = self.closed(items, depth + 1)
        most = len(first) if items is False else high
        if words.get("uniqueItems") is True and (most is None or most > 1):
            self._cannot("uniqueItems")
        for word in ("contains", "minContains", "maxContains"):
            if word in words:
                self._cannot(word)
        if words.get("unevaluatedItems", False) not in (True, False):
            self._cannot("unevaluatedItems with a schema")
        return result

    def _object(self, words: Schema, depth: int, closed: bool, more: list[Any]) -> Any:
        for word in ("dependentSchemas", "dependencies"):
            if word in words:
                self._cannot(word)
        if words.get("unevaluatedProperties", False) not in (True, False):
            self._cannot("unevaluatedProperties with a schema")
        named, patterns = _mapping(words, "properties"), _mapping(words, "patternProperties")
        required, rest = _names(words), words.get("additionalProperties")
        ends = words.get("unevaluatedProperties")
        if rest is None and closed and ends is not True:
            has = "properties" in words or "patternProperties" in words
            if has or ends is False:
                rest = False
                if ends is not False:  # a name that is only required is one that is not evaluated
                    named = {**named, **{name: True for name in required if name not in named}}
        elif rest is False and not (closed or self._strict or self._literal):
            rest = None  # people mean all parts together, which are closed together
        result: dict[str, Any] = {}
        if named or "properties" in words:
            result["properties"] = {n: self.closed(one, depth + 1) for n, one in named.items()}
        if patterns:
            values = {rust_pattern(n): self.closed(one, depth + 1) for n, one in patterns.items()}
            if self._joined:
                values = {"|".join(f"(?:{n})" for n in values): {"anyOf": [*values.values()]}}
            result["patternProperties"] = values
        if rest is not None:
            result["additionalProperties"] = self.closed(rest, depth + 1)
        if required:
            result["required"] = required
        self._name_rule(words, result)
        if not self._number_of_members(words, result, more):
            return False
        if (needs := _mapping(words, "dependentRequired")) and not self._depend(needs, more):
            self._cannot("dependentRequired", f"of more than {MAX_DEPENDENT} members")
        return result

    def _depend(self, needs: Schema, more: list[Any]) -> bool:
        if len(needs) > MAX_DEPENDENT:
            return False
        for name, others in needs.items():
            there = {"type": "object", "required": _strings(others, "dependentRequired")}
            more.append({"anyOf": [{"type": "object", "properties": {name: False}}, there]})
        return True

    def _name_rule(self, words: Schema, result: dict[str, Any]) -> None:
        """Write propertyNames in other keywords."""
        rule = words.get("propertyNames", True)
        if rule is True or rule == {}:
            return
        if rule is False:
            result["properties"], result["additionalProperties"] = {}, False
            return
        if not isinstance(rule, Mapping):
            raise GrammarError(f"propertyNames must be a schema, got {rule!r:.80}")
        asked = {word: value for word, value in rule.items() if word in SAYING and word != "type"}
        rest, named = result.get("additionalProperties", True), result.get("properties", {})
        alone = len(asked) == 1 or asked.keys() <= {"minLength", "maxLength"}
        if not alone or "patternProperties" in result:
            self._cannot("propertyNames", "with such neighbours cannot be enforced")
            if "pattern" not in asked or "patternProperties" in result:
                return
        if any(word in asked for word in LISTED):
            names = [asked["const"]] if "const" in asked else asked["enum"]
            names = [name for name in names if isinstance(name, str)]
            result["properties"] = {name: named.get(name, rest) for name in names}
            result["additionalProperties"] = False
            return
        if "pattern" in asked:
            pattern = rust_pattern(asked["pattern"])
        elif set(asked) <= {"minLength", "maxLength"}:
            counts = self._counts(asked, "minLength", "maxLength")
            high = counts.get("maxLength", "")
            pattern = f"^(?s:.){{{counts.get('minLength', 0)},{high}}}$"
        else:
            self._cannot(f"{next(iter(asked), 'type')} in propertyNames")
            return
        if named:
            self._cannot("propertyNames beside properties")
        result["patternProperties"] = {pattern: rest}
        result["additionalProperties"] = False

    def _number_of_members(self, words: Schema, result: dict[str, Any], more: list[Any]) -> bool:
        """Write minProperties and maxProperties; return False if no object fits them."""
        counts = self._counts(words, "minProperties", "maxProperties")
        required, named = result.get("required", []), result.get("properties", {})
        low = counts.get("minProperties", 0) - len(required)
        high = counts.get("maxProperties", MAX_COUNT) - len(required)
        optional = [n for n, one in named.items() if n not in required and one is not False]
        is_closed = result.get("additionalProperties", True) is False
        is_closed &= "patternProperties" not in result
        if high < 0 or (is_closed and low > len(optional)):
            return False
        if is_closed:
            left_out = len(optional) - high
            if low > 0 and not self._some(more, optional, low, lambda names: {"required": names}):
                self._cannot("minProperties")
            if left_out > 0 and not self._some(
                more, optional, left_out, lambda names: {"properties": dict.fromkeys(names, False)}
            ):
                self._cannot("maxProperties")
            return True
        if low > 1 or (low > 0 and optional):  # a free name can come twice
            self._cannot("minProperties")
            del counts["minProperties"]
        if optional and "maxProperties" in counts:
            self._cannot("maxProperties")
            del counts["maxProperties"]
        result |= counts
        return True

    def _some(
        self, more: list[Any], names: list[str], size: int, rule: Callable[[list[str]], Schema]
    ) -> bool:
        """Ask that a rule holds for some of the names; return False if those are too many ways."""
        if math.comb(len(names), size) > MAX_WAYS:
            return False
        ways = itertools.combinations(names, size)
        more.append({"anyOf": [{"type": "object", **rule(list(way))} for way in ways]})
        return True

    def _string(self, words: Schema, more: list[Any]) -> dict[str, Any]:
        result: dict[str, Any] = {**self._counts(words, "minLength", "maxLength")}
        patterns = [rust_pattern(words["pattern"])] if "pattern" in words else []
        if (name := words.get("format")) is not None:
            if isinstance(name, str) and name in FORMATS:
                patterns.append(format_pattern(name))
            else:
                self._cannot("format", f"{name!r:.80} is not one of {', '.join(FORMATS)}")
        if patterns:
            result["pattern"] = patterns[0]
        more += [{"pattern": one} for one in patterns[1:]]
        return result

    def _number(self, words: Schema, kinds: list[str] | None) -> dict[str, Any]:
        whole = kinds is not None and "number" not in kinds
        result: dict[str, Any] = {}
        for word in NUMBER_WORDS:
            if word not in words:
                continue
            value = words[word]
            if isinstance(value, bool) and word.startswith("exclusive"):
                result[word] = value
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise GrammarError(f"{word} must be a number, got {value!r:.80}")
            if word != "multipleOf":
                result[word] = self._double(word, value, whole)
            elif not 0 < value < LARGEST:
                raise GrammarError(f"multipleOf must be a number above 0, got {value!r:.80}")
            elif (step := digits_of(value)) <= MAX_STEP:
                self._spend(step)
                result[word] = value
            else:
                self._cannot("multipleOf", "would take too large a grammar")
        if whole and not any(word in words for word in LISTED):  # no digits without end
            if "minimum" not in result and "exclusiveMinimum" not in result:
                result["minimum"] = LEAST_WHOLE
            if "maximum" not in result and "exclusiveMaximum" not in result:
                result["maximum"] = MOST_WHOLE
        return result

    def _double(self, word: str, value: float, whole: bool) -> float:
        """Return a bound as a double, on its inner side where no double is the same."""
        is_upper = word in ("maximum", "exclusiveMaximum")
        most = (MOST_WHOLE if is_upper else -LEAST_WHOLE) if whole else LARGEST
        if abs(value) > most:
            if (value > 0) != is_upper or (isinstance(value, float) and math.isinf(value)):
                raise GrammarError(
                    f"{word} must be at most {most:.0f} away from 0, got {value!r:.80}"
                )
            return most if is_upper else -most
        if isinstance(value, float) or value == most or int(near := float(value)) == value:
            return value
        inside = near < value if is_upper else near > value
        return near if inside else math.nextafter(near, -math.inf if is_upper else math.inf)

    def _listed(self, words: Schema, kinds: list[str] | None) -> dict[str, Any] | None:
        """Return the values of const and enum that have one of the types, None if there is none."""
        values = words.get("enum", [words.get("const")])
        if not isinstance(values, list) or not values:
            raise GrammarError("an enum must be a list with a value")
        self._spend(len(values))
        if "const" in words and "enum" in words:
            key = _key(words["const"])
            values = [value for value in values if _key(value) == key]
        listed: list[Any] = []
        free: list[str] = []
        for value in values:
            if kinds is not None and set(kinds).isdisjoint(_types_of(value)):
                continue
            if _is_exact(value):
                listed.append(_written(value))
            else:
                self._cannot("const", f"{value!r:.80} is beyond 2^53")
                free += _types_of(value)[:1]
        if free:
            return {"type": free[0]}
        return {"enum": listed} if listed else None

    def _counts(self, words: Schema, low_word: str, high_word: str) -> dict[str, int]:
        """Return two bounds of a count; 3.0 is an integer in JSON schemas."""
        result = {}
        for word in (low_word, high_word):
            if word not in words:
                continue
            value = words[word]
            whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
            if not whole or isinstance(value, bool) or value < 0:
                raise GrammarError(f"{word} must be an integer of 0 or more, got {value!r:.80}")
            if value > MAX_COUNT:
                raise GrammarError(f"{word} may be {MAX_COUNT} at most, got {value!r:.80}")
            result[word] = int(value)
        if low_word in result and high_word in result and result[high_word] < result[low_word]:
            raise GrammarError(f"{high_word} is below {low_word}")
        return result

    # -- alternatives ------------------------------------------------------------------------------

    def _check_apart(self, plain: list[Any], parts: list[Any], depth: int) -> None:
        """Check that what one alternative allows here fits no other one, taken as it is written."""
        if self._wide is None:
            self._wide = _Reader(self._whole, False, False, self._spend, literal=True)
        for number, part in enumerate(parts):
            wide = self._wide.closed(part, depth + 1)
            others = plain[:number] + plain[number + 1 :]
            if not all(self._apart(one, self._wide, wide, 0) for one in others):
                self._cannot("oneOf", "has alternatives that may both fit a value")

    def _apart(self, one: Any, reader: _Reader, other: Any, depth: int) -> bool:
        """Tell whether surely no value fits two schemas, one made here, one by another reader."""
        self._spend(1)
        if one is False or other is False:
            return True
        if depth > MAX_DEPTH or one is True or other is True:
            return False
        for mine, first, theirs, second in ((self, one, reader, other), (reader, other, self, one)):
            if "$ref" in first:
                target = mine._defs.get(first["$ref"].rsplit("/", 1)[-1], True)
                return mine._apart(target, theirs, second, depth + 1)
            if "allOf" in first:
                ways = (mine._apart(part, theirs, second, depth + 1) for part in first["allOf"])
                return any(ways)
            if "anyOf" in first:
                ways = (mine._apart(part, theirs, second, depth + 1) for part in first["anyOf"])
                return all(ways)
        if "enum" in one and "enum" in other:
            keys = set(map(_key, one["enum"]))
            return not any(_key(value) in keys for value in other["enum"])
        kinds = _wide_types(one) & _wide_types(other)
        if kinds != {"object"}:
            return not kinds
        names = {*one.get("required", ()), *other.get("required", ())}
        return any(
            self._apart(_member(one, n), reader, _member(other, n), depth + 1) for n in names
        )


def _member(schema: Schema, name: str) -> Any:
    """Return what a member must fit, True where that cannot be told at once."""
    if "patternProperties" in schema:
        return True
    return schema.get("properties", {}).get(name, schema.get("additionalProperties", True))


def _wide_types(schema: Schema) -> set[str]:
    """Return the types that values of a schema may have, with number for integer."""
    kinds = schema.get("type", TYPES)
    if "enum" in schema:
        kinds = [kind for value in schema["enum"] for kind in _types_of(value)]
    kinds = [kinds] if isinstance(kinds, str) else kinds
    return {"number" if kind == "integer" else kind for kind in kinds}


def _all(parts: list[Any]) -> Any:
    if any(part is False for part in parts):
        return False
    parts = [part for part in parts if part is not True and part != {}]
    return parts[0] if len(parts) == 1 else {"allOf": parts} if parts else True


def _ends(schema: Any, ending: set[str]) -> bool:
    """Tell whether a value of a schema comes to an end.

    ending: The definitions of which this is known.
    """
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        return schema["$ref"].rsplit("/", 1)[-1] in ending
    if "allOf" in schema:
        return all(_ends(part, ending) for part in schema["allOf"])
    if "anyOf" in schema:
        return any(_ends(part, ending) for part in schema["anyOf"])
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds or TYPES
    if "enum" in schema or not set(kinds) <= {"object", "array"}:
        return True
    if "object" in kinds and all(
        _ends(_member(schema, n), ending) for n in schema.get("required", ())
    ):
        return True
    if "array" not in kinds:
        return False
    first, rest = schema.get("prefixItems", []), schema.get("items", True)
    low = schema.get("minItems", 0)
    needed = [*first[:low], *([rest] if low > len(first) else [])]
    return all(_ends(part, ending) for part in needed)


def _inner(schema: Any) -> Iterable[Any]:
    if not isinstance(schema, dict):
        return ()
    single = (schema[word] for word in ("items", "additionalProperties") if word in schema)
    lists = (schema[word] for word in ("allOf", "anyOf", "prefixItems") if word in schema)
    maps = (schema[word].values() for word in ("properties", "patternProperties") if word in schema)
    return itertools.chain(single, *lists, *maps)


def _references(schema: Any) -> list[str]:
    names: dict[str, None] = {}
    todo = [schema]
    while todo:
        one = todo.pop()
        if isinstance(one, dict) and "$ref" in one:
            names[one["$ref"].rsplit("/", 1)[-1]] = None
        todo += _inner(one)
    return list(names)


def _without(part: Any, endless: Collection[str]) -> Any:
    """Return a part of a schema made here with False for what refers to some definitions."""
    if isinstance(part, list):
        return [_without(one, endless) for one in part]
    if not isinstance(part, dict):
        return part
    reference = part.get("$ref")
    if isinstance(reference, str) and reference.rsplit("/", 1)[-1] in endless:
        return False
    return {
        key: one if key in ("const", "enum") else _without(one, endless)
        for key, one in part.items()
    }


def _depth(schema: Any) -> int:
    return 1 + max(map(_depth, _inner(schema)), default=0)


def _kinds(words: Schema) -> list[str] | None:
    """Return the types that a schema names, in the order in which llguidance is to read them."""
    kinds = words.get("type")
    if kinds is None:
        return None
    kinds = kinds if isinstance(kinds, list) else [kinds]
    for kind in kinds:
        if kind not in TYPES:
            raise GrammarError(f"{kind!r:.80} is not a JSON schema type; known: {', '.join(TYPES)}")
    if not kinds:
        raise GrammarError("a list of types must not be empty")
    return [kind for kind in TYPES if kind in kinds]


def _schemas(value: Any, word: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise GrammarError(f"{word} must be a list with a schema")
    return value


def _mapping(words: Schema, word: str) -> Schema:
    value = words.get(word, {})
    if not isinstance(value, Mapping):
        raise GrammarError(f"{word} must be an object, got {value!r:.80}")
    return value


def _names(words: Schema) -> list[str]:
    return _strings(words.get("required", []), "required")


def _strings(value: Any, word: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise GrammarError(f"{word} must be a list of names, got {value!r:.80}")
    return list(dict.fromkeys(value))


def _types_of(value: Any) -> tuple[str, ...]:
    if isinstance(value, bool):
        return ("boolean",)
    if isinstance(value, int):
        return ("integer", "number")
    if isinstance(value, float):
        return ("integer", "number") if value.is_integer() else ("number",)
    return ({str: "string", list: "array", dict: "object", type(None): "null"}[type(value)],)


def _key(value: Any) -> str:
    """Return a text that is the same for equal values: 1 and 1.0, but not true."""
    return json.dumps(_written(value), sort_keys=True)


def digits_of(value: float) -> int:
    """Return the digits of a number as a whole number: 25 of 0.25."""
    return int("".join(map(str, Decimal(repr(value)).as_tuple().digits)))


def _is_exact(value: Any) -> bool:
    """Tell whether llguidance writes all numbers in a value as they are.

    Raises:
        GrammarError: One is not finite.
    """
    if isinstance(value, (list, dict)):
        return all(map(_is_exact, value.values() if isinstance(value, dict) else value))
    if isinstance(value, float) and not math.isfinite(value):
        raise GrammarError("a schema must hold finite numbers")
    return not isinstance(value, (int, float)) or abs(value) <= EXACT


def _written(value: Any) -> Any:
    """Return a value whose whole numbers are integers."""
    if isinstance(value, list):
        return list(map(_written, value))
    if isinstance(value, dict):
        return {name: _written(one) for name, one in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value
