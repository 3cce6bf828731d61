"""Schemas beside an independent validator: what a grammar writes is valid, and takes what is.

Schemas come together with values that fit them. All is strict, so nothing may be left out.
"""

from __future__ import annotations

import ipaddress
import random
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Context, Decimal, localcontext
from typing import Any
from urllib.parse import urlsplit

from hypothesis import HealthCheck, assume, event, given, reject, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, FormatChecker

from helpers.json_schemas import exact, grammar_of, sample, takes, written
from helpers.machines import examples
from ngramspec.errors import GrammarError

Draw = Callable[[st.SearchStrategy[Any]], Any]
Made = tuple[dict[str, Any], st.SearchStrategy[Any]]  # a schema, and values that fit it
PATTERNS = (
    *("^[a-z]+( [a-z]+)*$", "^(yes|no)+$", "\\d{2}", "^[A-Z]{3}-[0-9]{4}$", "^a*b*$", "x|^y$"),
    *("^\\S\\s?$", "^[^x]{2,}", "(a|b)c?$", '^["\\\\é☃]*$', "^(?:[0-9a-f]{2}:){0,3}z$", ""),
)
KEY_PATTERNS = ("^x", "[0-9]$", "^[a-c]{1,3}$")
KEYS = ("a", "b", "cc", "x1", "name", "é\n")
SAMPLES = 4


def schemas(depth: int) -> st.SearchStrategy[Made]:
    plain = [integers(), numbers(), texts(), formats(), listed(), anything()]
    if not depth:
        return st.one_of(plain)
    inner = schemas(depth - 1)
    return st.one_of(*plain, arrays(inner), objects(inner), choices(inner), joined(inner))


@st.composite
def integers(draw: Draw) -> Made:
    low = draw(st.none() | st.integers(-1500, 1500))
    high = draw(st.none() | st.integers(0 if low is None else low, 2000))
    step = draw(st.none() | st.sampled_from([1, 2, 3, 5, 10, 12, 60, 100, 2.5]))
    least, most = -9999 if low is None else low, 99999 if high is None else high
    every = int(step * 2 if step == 2.5 else step or 1)
    first, last = -(-least // every), most // every
    assume(first <= last)
    schema = {"type": "integer", **draw(bounds(low, high)), **some(multipleOf=step)}
    return schema, st.integers(first, last).map(lambda n: n * every)


@st.composite
def bounds(draw: Draw, low: Any, high: Any, unit: Any = 1) -> dict[str, Any]:
    """Write bounds one of two ways; a whole number may be a float."""
    limits = {}
    if low is not None:
        limits.update(draw(st.sampled_from([{"minimum": low}, {"exclusiveMinimum": low - unit}])))
    if high is not None:
        limits.update(draw(st.sampled_from([{"maximum": high}, {"exclusiveMaximum": high + unit}])))
    return {word: draw(st.sampled_from([value, float(value)])) for word, value in limits.items()}


@st.composite
def numbers(draw: Draw) -> Made:
    places = draw(st.integers(0, 3))
    unit = Decimal(1).scaleb(-places)
    low = draw(st.none() | st.integers(-3000, 3000))
    high = draw(st.none() | st.integers(0 if low is None else low, 4000))
    steps = [None, unit, unit * 5, unit * 25, Decimal(2), Decimal("1.5")]
    step = draw(st.sampled_from(steps))
    every = int((step or unit) / unit)
    least, most = -99999 if low is None else low, 99999 if high is None else high
    assume(every and step in (None, every * unit))
    first, last = -(-least // every), most // every
    assume(first <= last)
    schema: dict[str, Any] = {"type": "number"}
    if low is not None:
        schema["minimum"] = float(low * unit)
    if high is not None:
        schema["maximum"] = float(high * unit)
    if step is not None:
        schema["multipleOf"] = float(step)
    return schema, st.integers(first, last).map(lambda n: n * every * unit)


@st.composite
def texts(draw: Draw) -> Made:
    pattern = draw(st.none() | st.sampled_from(PATTERNS))
    low = draw(st.none() | st.integers(0, 6))
    high = draw(st.none() | st.integers(low or 0, 30))
    schema = {"type": "string", **some(pattern=pattern, minLength=low, maxLength=high)}
    if pattern is None:
        return schema, st.text(writable(), min_size=low or 0, max_size=high)
    same = re.compile(pattern.replace("$", "\\Z"), re.ASCII)
    fitting = st.from_regex(same, alphabet=writable()).filter(
        lambda text: (low or 0) <= len(text) and (high is None or len(text) <= high)
    )
    return schema, fitting


def writable() -> st.SearchStrategy[str]:
    """Return characters that patterns here cover: no control characters but the common ones."""
    return st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from("\n\t\r")


def formats() -> st.SearchStrategy[Made]:
    offset = st.sampled_from(["Z", "+01:00", "-23:59"])
    times = st.builds(lambda t, o: t.strftime("%H:%M:%S") + o, st.times(), offset)
    dates = st.dates().map(str)
    label = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
    hosts = st.lists(label, min_size=2, max_size=3).map(".".join)
    strategies = {
        "date": dates,
        "time": times,
        "date-time": st.builds(lambda d, t: f"{d}T{t}", dates, times),
        "uuid": st.uuids().map(str),
        "ipv4": st.ip_addresses(v=4).map(str),
        "ipv6": st.ip_addresses(v=6).flatmap(
            lambda a: st.sampled_from([str(a), ipaddress.IPv6Address(a).exploded])
        ),
        "hostname": hosts,
        "email": st.builds(lambda n, h: f"{n}@{h}", label, hosts),
        "duration": st.sampled_from(["P1D", "PT5M", "P3Y6M4DT12H30M5S", "P2W", "PT1H30M", "P1Y"]),
        "uri": st.builds(lambda h, p: f"https://{h}/{p}?q=%20#x", hosts, label),
    }
    return st.sampled_from(list(strategies)).map(
        lambda n: ({"type": "string", "format": n}, strategies[n])
    )


def listed() -> st.SearchStrategy[Made]:
    values = ["a", 'b"', "", 1, 2.5, None, True, ["a"], {"k": [1]}]
    enum = st.lists(st.sampled_from(values), min_size=1, max_size=5)
    plain = enum.map(lambda members: ({"enum": members}, st.sampled_from(members)))
    one = st.sampled_from(values).map(lambda value: ({"const": value}, st.just(value)))
    mixed = ({"type": ["string", "null"], "enum": [1, "a", None]}, st.sampled_from(["a", None]))
    return st.one_of(plain, one, st.just(mixed))


def anything() -> st.SearchStrategy[Made]:
    booleans: Made = ({"type": "boolean"}, st.booleans())
    both: Made = ({"type": ["null", "boolean"]}, st.sampled_from([None, True]))
    free: Made = ({}, st.sampled_from([{"x": [1, None]}, [], "x", -2]))
    return st.sampled_from([booleans, both, free])


@st.composite
def arrays(draw: Draw, inner: st.SearchStrategy[Made]) -> Made:
    first = draw(st.lists(inner, max_size=2))
    items, item = draw(inner)
    low = draw(st.none() | st.integers(0, 3))
    high = draw(st.none() | st.integers(low or 0, 4))
    schema = {"type": "array", "items": items, **some(minItems=low, maxItems=high)}
    if first:
        schema["prefixItems"] = [one for one, _ in first]
    usual = len(first) if high is None else min(len(first), high)
    size = draw(st.integers(usual if low is None else low, 4 if high is None else high))
    parts = [value for _, value in first[:size]] + [item] * (size - len(first))
    return schema, st.tuples(*parts).map(list)


@st.composite
def objects(draw: Draw, inner: st.SearchStrategy[Made]) -> Made:
    names = draw(st.lists(st.sampled_from(KEYS), unique=True, max_size=4))
    members = {name: draw(inner) for name in names}
    required = [name for name in names if draw(st.booleans())]
    schema: dict[str, Any] = {"type": "object", "required": required}
    schema["properties"] = {name: part for name, (part, _) in members.items()}
    there = [name for name in names if name in required or draw(st.booleans())]
    more: dict[str, st.SearchStrategy[Any]] = {}
    kind = draw(st.sampled_from(["closed", "open", "patterns"]))
    schema["additionalProperties"] = False
    if kind == "open":
        rest, value = draw(inner)
        schema["additionalProperties"] = rest
        more = dict.fromkeys(draw(st.lists(st.sampled_from(["zz", "ccc", "ü"]), max_size=2)), value)
    elif kind == "patterns":
        rest, value = draw(inner)
        pattern = draw(st.sampled_from(KEY_PATTERNS))
        assume(not any(re.search(pattern, name) for name in names))
        schema["patternProperties"] = {pattern: rest}
        more = {name: value for name in ("x", "z9", "ab") if re.search(pattern, name)}
    size = len(there) + len(more)
    if draw(st.booleans()):
        schema["maxProperties"] = draw(st.integers(size, size + 2))
    if draw(st.booleans()):
        schema["minProperties"] = draw(st.integers(0, size))
    if len(names) > 1 and draw(st.booleans()):
        one, other = draw(st.permutations(names))[:2]
        assume(one not in there or other in there)
        schema["dependentRequired"] = {one: [other]}
    values = {name: value for name, (_, value) in members.items() if name in there}
    return schema, ordered({**values, **more}, {})


def ordered(there: Mapping[str, Any], perhaps: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Return objects whose members come in order, as grammars want them."""
    names = (*there, *perhaps)
    dictionaries = st.fixed_dictionaries({**there}, optional={**perhaps})
    return dictionaries.map(lambda drawn: {name: drawn[name] for name in names if name in drawn})


@st.composite
def choices(draw: Draw, inner: st.SearchStrategy[Made]) -> Made:
    parts = draw(st.lists(inner, min_size=1, max_size=3))
    word = draw(st.sampled_from(["anyOf", "oneOf", "tagged"]))
    if word == "tagged":
        tags = [
            {"type": "object", "properties": {"tag": {"const": i}, "of": one},
             "required": ["tag", "of"], "additionalProperties": False}
            for i, (one, _) in enumerate(parts)
        ]  # fmt: skip
        values = [
            st.builds(lambda of, i=i: {"tag": i, "of": of}, v) for i, (_, v) in enumerate(parts)
        ]
        return {"oneOf": tags}, st.one_of(values)
    return {word: [one for one, _ in parts]}, st.one_of([value for _, value in parts])


@st.composite
def joined(draw: Draw, inner: st.SearchStrategy[Made]) -> Made:
    """Make a schema of parts that a value must fit together."""
    (one, value), (two, other) = draw(inner), draw(inner)
    parts = {
        "ref": ({"$ref": "#/$defs/a", "description": "a", "$defs": {"a": one}}, value),
        "same": ({"allOf": [one, one]}, value),
        "properties": (
            {"allOf": [{"properties": {"p": one}, "required": ["p"]}, {"properties": {"q": two}}],
             "type": "object"}, ordered({"p": value}, {"q": other})),
        "type beside": ({"anyOf": [one, two], "type": ["object", "string", "array", "integer"]},
                        st.one_of(value, other).filter(lambda v: isinstance(v, str | list | dict))),
        "bounds": ({"allOf": [{"type": "number", "minimum": 1}, {"type": "integer", "maximum": 9},
                              {"multipleOf": 2}]}, st.sampled_from([2, 4, 6, 8])),
        "patterns": ({"type": "string", "allOf": [{"pattern": "^[a-z]*$"}, {"pattern": "x"}],
                      "maxLength": 3}, st.sampled_from(["x", "axb", "xx"])),
    }  # fmt: skip
    kind = draw(st.sampled_from(list(parts)))
    # a path leads from the root, so it can only stand there
    assume(kind != "ref" or "$ref" not in str(one))
    return parts[kind]


def some(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def validator(schema: Any) -> Draft202012Validator:
    return Draft202012Validator(exact(written(schema)), format_checker=CHECKER)


CHECKER = FormatChecker(["date", "email", "ipv4", "ipv6", "uuid"])


@CHECKER.checks("date-time", ValueError)
def is_date_time(text: Any) -> bool:
    return not isinstance(text, str) or _zoned(text.replace("Z", "+00:00"))


@CHECKER.checks("time", ValueError)
def is_time(text: Any) -> bool:
    return not isinstance(text, str) or is_date_time(f"2000-01-01T{text}")


@CHECKER.checks("uri", ValueError)
def is_uri(text: Any) -> bool:
    if not isinstance(text, str):
        return True
    parts = urlsplit(text)
    return bool(parts.scheme) and not re.search(r'[\s"<>\\^`{|}]|%(?![0-9a-fA-F]{2})', text)


@CHECKER.checks("hostname")
def is_hostname(text: Any) -> bool:
    if not isinstance(text, str):
        return True
    labels = text.split(".")
    label = re.compile(r"(?!-)[a-zA-Z0-9-]{1,63}(?<!-)")
    return len(text) < 254 and all(map(label.fullmatch, labels))


@CHECKER.checks("duration")
def is_duration(text: Any) -> bool:
    if not isinstance(text, str):
        return True
    days, time, most = r"(\d+Y)?(\d+M)?(\d+D)?", r"(\d+H)?(\d+M)?(\d+S)?", text[-1:] not in "PT"
    return most and bool(re.fullmatch(rf"P(\d+W|{days}(T{time})?)", text))


def _zoned(text: str) -> bool:
    return datetime.fromisoformat(text).tzinfo is not None


SLOW = settings(max_examples=examples(150), deadline=None, suppress_health_check=[*HealthCheck])


@SLOW
@given(schemas(2), st.data(), st.randoms(use_true_random=False))
def test_what_a_strict_grammar_writes_is_valid_and_what_is_valid_is_taken(
    pair: Made, data: st.DataObject, rng: random.Random
) -> None:
    schema, values = pair
    assume(str(schema).count("$ref") == ("$ref" in schema))
    try:
        grammar = grammar_of(schema, strict=True)
    except GrammarError as error:
        event(f"refused: {error.message[:50]}")
        reject()
    judge = validator(schema)
    for _ in range(SAMPLES):
        text = sample(grammar, rng)
        if text is not None:
            with localcontext(Context(prec=10_000)):  # to divide numbers of any length
                judge.validate(exact(text))
    value = data.draw(values)
    judge.validate(exact(written(value)))  # else the test is wrong
    assert takes(grammar, written(value)), written(value)
