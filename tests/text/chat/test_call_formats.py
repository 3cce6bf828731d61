"""Every family's tool calls: chosen by the template, read from any pieces, and forced.

What is read was written by helpers.written_calls, which knows nothing of the server's formats.
"""

from __future__ import annotations

import functools
import json
import random
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from helpers.json_schemas import matcher_of
from helpers.machines import examples
from helpers.written_calls import FAMILIES, Calls, Family, real_python
from ngramspec._native.grammar.guidance import GuidanceMatcher
from ngramspec.errors import GrammarError
from ngramspec.text.chat.calls import CALL_FORMATS, call_format_of
from ngramspec.text.chat.calls.harmony import HarmonyCalls
from ngramspec.text.chat.calls.json_calls import JsonCalls
from ngramspec.text.chat.calls.named_calls import NamedCalls
from ngramspec.text.chat.calls.python_calls import PythonCalls
from ngramspec.text.chat.calls.typed_value import types_of
from ngramspec.text.chat.delta import ChatMessage
from ngramspec.text.chat.format import ChatFormat, chat_format
from ngramspec.text.chat.grammar import chat_grammar
from ngramspec.text.chat.reasoning import reasoning_format_of
from ngramspec.text.chat.tools import Tool, Tools

EXAMPLES = examples(8)
PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "hourly": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "place": {"$ref": "#/$defs/place"},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city"],
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"lat": {"type": "number"}},
            "required": ["lat"],
            "additionalProperties": False,
        }
    },
}
EMPTY = {"type": "object", "properties": {}}
TOOLS = Tools((Tool("get_weather", PARAMETERS, {}), Tool("now", EMPTY, {})), required=True)
# Strings are written as they are in some formats; a value must not begin with a mark.
TEXTS = st.text(st.sampled_from("ab1 .,:;=é☃\n\t\"'\\{}[]()<>|/_-"), max_size=12) | st.sampled_from(
    ["", "True", "17", "null", "</", "a\n", "\nb", "<parameter", "```"]
)
ARGUMENTS = st.fixed_dictionaries(
    {"city": TEXTS},
    optional={
        "days": st.integers(-5, 10**9),
        "hourly": st.booleans(),
        "tags": st.lists(TEXTS, max_size=3),
        "place": st.fixed_dictionaries({"lat": st.sampled_from([0.5, -12.25, 3])}),
        "unit": st.sampled_from(["C", "F"]),
    },
)
CALL = st.tuples(st.just("get_weather"), ARGUMENTS) | st.just(("now", {}))
CUTS = st.lists(st.integers(0, 400), max_size=8)
IN_HEADERS = ("gpt-oss", "Muse")  # whose reasoning is a message of its own
NAMED = ("Llama 3", "Llama 4", "Functionary 3.2", "Muse")  # the name of a tool tells a call
BROKEN = (  # families whose calls are JSON with an end of its own
    "Hermes, Qwen", "Mistral", "DeepSeek V3.1", "Kimi K2", "Functionary 3.1", "Nemotron Nano 2",
    "Mistral Small 3, Devstral, Ministral", "Apertus",
)  # fmt: skip


def answers(family: Family) -> ChatFormat:
    return chat_format(family.template, "", TOOLS, parses_reasoning=True)


def thought(family: Family) -> str:
    open, close = family.reasoning
    return f"{open}I see.{close}" if open else ""


def read(format: ChatFormat, text: str, cuts: list[int]) -> ChatMessage:
    parser, message = format.parser(), ChatMessage()
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for start, end in pairwise(places):
        for delta in parser.feed(text[start:end]):
            message.add(delta)
    for delta in parser.feed("", last=True):
        message.add(delta)
    assert parser.called == bool(message.calls)
    return message


def calls_of(message: ChatMessage) -> list[tuple[str, Any]]:
    functions = (call["function"] for call in message.calls)
    return [(function["name"], json.loads(function["arguments"])) for function in functions]


def in_order(calls: Calls) -> list[tuple[str, dict[str, Any]]]:
    """Return calls whose arguments have the order of their schema, as grammars force it."""
    keys = list(PARAMETERS["properties"])
    return [
        (name, dict(sorted(a.items(), key=lambda one: keys.index(one[0])))) for name, a in calls
    ]


def families() -> Any:
    return pytest.mark.parametrize("name", FAMILIES)


def accepts(matcher: GuidanceMatcher, text: str) -> int:
    """Return how many bytes of a text a grammar allows, all of them if it may end there."""
    data = text.encode()
    for at, byte in enumerate(data):
        if not matcher.allows(byte):
            return at
        matcher.accept(byte)
    return len(data) if matcher.may_end else -1


def forced(format: ChatFormat) -> GuidanceMatcher:
    return matcher_of(chat_grammar("", None, "json_schema", format))


def test_every_format_has_a_family() -> None:
    assert {one.name for one in CALL_FORMATS} == set(FAMILIES)


@families()
def test_the_template_tells_the_formats(name: str) -> None:
    family = FAMILIES[name]
    assert call_format_of(family.template).name == name
    if family.reasoning[0] and name not in IN_HEADERS:
        assert reasoning_format_of(family.template).open == family.reasoning[0].strip()


@families()
@given(calls=st.lists(CALL, min_size=1, max_size=3), cuts=CUTS, before=st.booleans())
@settings(max_examples=EXAMPLES, deadline=None)
def test_calls_are_read_as_they_were_written(
    name: str, calls: Calls, cuts: list[int], before: bool
) -> None:
    family = FAMILIES[name]
    calls = calls[:1] if family.single else calls
    assume(not family.bare or family.bare not in repr(calls))
    text = thought(family)
    content = "Wait.\n" if before and not family.alone else ""
    message = read(answers(family), text + content + family.write(calls), cuts)
    assert calls_of(message) == [(called, dict(arguments)) for called, arguments in calls]
    assert message.reasoning == ("I see." if text else "")
    keeps = answers(family).calls.keeps_space
    assert message.content == (content if keeps else content.strip())


@given(calls=st.lists(CALL, min_size=1, max_size=3), cuts=CUTS)
@settings(max_examples=EXAMPLES * 5, deadline=None)
def test_python_literals_become_json(calls: Calls, cuts: list[int]) -> None:
    message = read(answers(FAMILIES["LFM2"]), real_python(calls), cuts)
    assert calls_of(message) == [(called, dict(arguments)) for called, arguments in calls]


@families()
@given(call=CALL, cuts=CUTS, end=st.integers(0, 400), reasoned=st.booleans())
@settings(max_examples=EXAMPLES, deadline=None)
def test_where_an_answer_is_cut_off_makes_no_difference_to_its_pieces(
    name: str, call: Any, cuts: list[int], end: int, reasoned: bool
) -> None:
    family = FAMILIES[name]
    text = (f"{family.reasoning[0]}Hm. {family.reasoning[1]}" if reasoned else "") + family.write(
        [call]
    )
    text = text[: end % len(text)]
    format = answers(family)
    whole, cut = format.message(text), read(format, text, cuts)
    assert (cut.content, cut.reasoning) == (whole.content, whole.reasoning)
    functions = [[one["function"] for one in message.calls] for message in (whole, cut)]
    assert functions[0] == functions[1]
    for function in functions[0]:
        assert function["name"] == call[0]
        assert function["arguments"] == "" or function["arguments"][0] == "{"


@families()
@given(
    parts=st.lists(
        st.integers(0, 10**6) | st.sampled_from(["{", "}", '"', "x", "\n", "<", "["]), max_size=9
    ),
    cuts=CUTS,
)
@settings(max_examples=EXAMPLES, deadline=None)
def test_any_text_is_read_alike_in_any_pieces_and_none_is_lost(
    name: str, parts: list[Any], cuts: list[int]
) -> None:
    family = FAMILIES[name]
    sample = family.write([("get_weather", {"city": "Rome"}), ("now", {})])
    scraps = [part if isinstance(part, str) else sample[part % len(sample) :][:9] for part in parts]
    text, format = "".join(scraps), answers(family)
    whole, cut = format.message(text), read(format, text, cuts)
    assert (cut.content, cut.reasoning) == (whole.content, whole.reasoning)
    assert [c["function"] for c in cut.calls] == [c["function"] for c in whole.calls]
    if not any(mark in text for mark in marks_of(format)) and not whole.calls:
        assert whole.content == text


def marks_of(format: ChatFormat) -> list[str]:
    """Return marks that may be left out of the content though no call follows."""
    reasoning = (format.reasoning.open, format.reasoning.close, *format.reasoning.around_content)
    whole = [mark.text for mark in format.calls.marks] if format.calls.whole else []
    return [mark for mark in (*reasoning, *whole) if mark]


@families()
@given(calls=st.lists(CALL, min_size=1, max_size=3))
@settings(max_examples=EXAMPLES, deadline=None)
def test_the_forced_grammar_allows_what_the_model_writes(name: str, calls: Calls) -> None:
    family = FAMILIES[name]
    calls = in_order(calls[:1] if family.single else calls)
    assume(not family.bare or family.bare not in repr(calls))
    text = family.write(calls)
    assert accepts(matcher_of(grammar_of(name)), text) == len(text.encode())


@functools.cache
def grammar_of(name: str, optional: bool = False) -> str:
    """Return the grammar of answers of a family, which must call a tool unless that is optional."""
    format = answers(FAMILIES[name])
    if optional:
        free = Tools(tuple(replace(tool, strict=True) for tool in TOOLS.tools))
        format = replace(format, tools=free)
    return chat_grammar("", None, "json_schema", format)


def optional(name: str) -> GuidanceMatcher:
    """Return the matcher of answers of a model that may call a tool or not."""
    return matcher_of(grammar_of(name, optional=True))


@families()
@given(calls=st.lists(CALL, min_size=1, max_size=3), before=TEXTS, reasoned=st.booleans())
@settings(max_examples=EXAMPLES, deadline=None)
def test_optional_calls_are_allowed_as_models_write_them(
    name: str, calls: Calls, before: str, reasoned: bool
) -> None:
    family = FAMILIES[name]
    calls = in_order(calls[:1] if family.single else calls)
    assume(not family.bare or family.bare not in repr(calls))
    text = thought(family) if reasoned else ""
    text += ("" if family.alone else before) + family.write(calls)
    assert accepts(optional(name), text) == len(text.encode())


@families()
@given(before=TEXTS, reasoned=st.booleans(), unknown=st.booleans())
@settings(max_examples=EXAMPLES, deadline=None)
def test_an_optional_call_follows_its_schema_once_it_is_begun(
    name: str, before: str, reasoned: bool, unknown: bool
) -> None:
    """Where the name tells a call, one of an unknown tool is content."""
    family = FAMILIES[name]
    text = thought(family) if reasoned else ""
    text += "" if family.alone else before
    good = family.write([("get_weather", {"city": "Oslo", "days": 36})])
    assume(not unknown or name not in NAMED)
    bad = good.replace("get_weather", "get_rain") if unknown else good.replace("36", "tomorrow")
    assert good != bad
    end = len((text + bad[: bad.index("rain" if unknown else "tomorrow")]).encode())
    assert accepts(optional(name), text + bad) == end


@families()
@given(text=TEXTS, opened=st.booleans())
@settings(max_examples=EXAMPLES, deadline=None)
def test_answers_without_calls_are_free(name: str, text: str, opened: bool) -> None:
    family, format = FAMILIES[name], answers(FAMILIES[name])
    anywhere, first = format.calls.triggers(TOOLS)
    assume(not any(mark in text for mark in anywhere))
    assume(not text.lstrip().startswith(tuple(first)))
    whole = (family.reasoning[0] if opened else "") + text
    matcher = optional(name)
    assert matcher.may_end
    for character in whole:
        for byte in character.encode():
            assert matcher.allows(byte)
            matcher.accept(byte)
        assert matcher.may_end


@families()
def test_marks_within_reasoning_begin_no_call(name: str) -> None:
    family, format = FAMILIES[name], answers(FAMILIES[name])
    if not family.reasoning[0] or name == "gpt-oss":
        return
    call = family.write([("get_weather", {"city": "Oslo"})])
    text = f"{family.reasoning[0]}I would write {call[:-3]}but I do not{family.reasoning[1]}No."
    allowed = accepts(optional(name), text) == len(text.encode())
    assert allowed == (not format.calls.ends_reasoning)
    assert allowed == (not read(format, text, []).calls)


@families()
def test_schemas_that_no_grammar_can_express_leave_optional_calls_free(name: str) -> None:
    parameters = {"type": "object", "properties": {"x": {"type": "integer", "not": {"const": 1}}}}
    hard = {
        "type": "object",
        "properties": {"x": {"type": "array", "items": {"type": "string", "pattern": "(?=a)"}}},
    }
    if name == "Gemma 4":
        return  # it enforces types only
    for schema, strict, refused in (
        (parameters, True, True),
        (hard, True, True),
        (hard, False, False),
    ):
        tools = Tools((Tool("now", schema, {}, strict),))
        format = chat_format(FAMILIES[name].template, "", tools, parses_reasoning=True)
        if refused:
            with pytest.raises(GrammarError, match=r"tools\.now"):
                forced(format)
        else:
            text = FAMILIES[name].write([("now", {"x": ["b"]})])
            assert accepts(forced(format), text) == len(text.encode())


# One family of each of these kinds: the arguments are one JSON object, or calls of Python.
ALIKE = ((HarmonyCalls, JsonCalls, NamedCalls), PythonCalls)
UNLIKE = {
    next((kind for kind in ALIKE if isinstance(one, kind)), one): one.name for one in CALL_FORMATS
}


@pytest.mark.parametrize("name", UNLIKE.values())
@pytest.mark.parametrize(
    "large",
    [
        {"anyOf": [{"$ref": "#/$defs/y"}] * 127},
        {"type": "array", "items": {"allOf": [True] * 50_000}},
    ],
    ids=["types", "parts"],
)
def test_parameters_that_all_refer_to_something_large_take_no_time(name: str, large: Any) -> None:
    """They are refused where each of them has a grammar of its own."""
    parameters = {
        "type": "object",
        "properties": {f"p{i}": {"$ref": "#/$defs/x"} for i in range(3000)},
        "$defs": {"x": large, "y": {"type": "string"}},
    }
    tools = Tools((Tool("now", parameters, {}, strict=True),))
    format = chat_format(FAMILIES[name].template, "", tools, parses_reasoning=True)
    began = time.process_time()
    reason = ""
    try:
        forced(format)
    except GrammarError as error:
        reason = error.message
    assert time.process_time() - began < 10
    assert re.search(
        r"^$|parts, repeated ones included|more than [0-9]+ (rules|characters)", reason
    )


def test_references_deeper_than_schemas_are_not_followed() -> None:
    root: Any = {"type": "string"}
    for _ in range(80):
        root = {"a": root}
    for depth in (64, 65):
        inner = root
        for _ in range(80 - depth):
            inner = inner["a"]
        types = types_of({"$ref": "#" + "/a" * depth}, inner)
        assert types == ({"string"} if depth == 64 else set())
    assert types_of({"$ref": "#/" + "a/" * 10_000_000}, root) == set()


@pytest.mark.parametrize(
    "name", ["LFM2", "MiniMax M2", "Qwen3-Coder, Qwen 3.5, Nemotron 3, StepFun 3.5"]
)
def test_a_parameter_that_is_an_object_has_its_own_members_only(name: str) -> None:
    """Formats that write parameters one by one took the tool's members for those of the object."""
    place = {**PARAMETERS["$defs"]["place"], "required": ["lat"]}
    schema = {"type": "object", "properties": {"place": place}, "additionalProperties": False}
    tools = Tools((Tool("find", schema, {}, strict=True),), required=True)
    format = chat_format(FAMILIES[name].template, "", tools, parses_reasoning=True)
    good = FAMILIES[name].write([("find", {"place": {"lat": 1}})])
    bad = FAMILIES[name].write([("find", {"place": {"lat": 1, "place": {}}})])
    assert accepts(forced(format), good) == len(good)
    assert 0 < accepts(forced(format), bad) < len(bad)


BARE = [name for name, family in FAMILIES.items() if family.bare]  # strings have no quotes there
CODE = {"type": "string", "pattern": "^[a-c<-]{2,4}$"}
# Schemas of strings, and what they allow.
STRINGS: list[tuple[dict[str, Any], Callable[[str], bool]]] = [
    (CODE, lambda text: bool(re.fullmatch("[a-c<-]{2,4}", text))),
    ({"type": "string", "pattern": "a.*a"}, lambda text: bool(re.search("a.*a", text))),
    ({"type": "string", "minLength": 2, "maxLength": 4}, lambda text: 2 <= len(text) <= 4),
    ({"type": "string", "minLength": 3}, lambda text: len(text) >= 3),
    ({"type": "string", "maxLength": 3000}, lambda text: True),
    (
        {"type": "string", "pattern": "^a", "maxLength": 3},
        lambda text: text.startswith("a") and len(text) <= 3,
    ),
    ({"type": "string", "enum": ["ab", "a", "<b>"]}, lambda text: text in ("ab", "a", "<b>")),
    ({"enum": ["ab", "c"], "minLength": 2, "type": "string"}, lambda text: text == "ab"),
    ({"$ref": "#/$defs/code"}, lambda text: bool(re.fullmatch("[a-c<-]{2,4}", text))),
    (
        {"anyOf": [{"type": "string", "const": "c"}, {"$ref": "#/$defs/code"}]},
        lambda text: text == "c" or bool(re.fullmatch("[a-c<-]{2,4}", text)),
    ),
    ({"type": "string", "format": "date"}, lambda text: text == "2026-11-23"),
]


@pytest.mark.parametrize("name", BARE)
@given(
    case=st.sampled_from(STRINGS),
    text=st.text(st.sampled_from("abc<-"), max_size=5) | st.sampled_from(["2026-11-23", "2026"]),
)
@settings(max_examples=EXAMPLES * 3, deadline=None)
def test_strings_without_quotes_follow_their_schema(name: str, case: Any, text: str) -> None:
    schema, allowed = case
    parameters = {
        "type": "object",
        "properties": {"x": schema},
        "required": ["x"],
        "$defs": {"code": CODE},
    }
    tools = Tools((Tool("f", parameters, {}, strict=True),), required=True)
    format = chat_format(FAMILIES[name].template, "", tools, parses_reasoning=True)
    written = FAMILIES[name].write([("f", {"x": text})])
    assert (accepts(forced(format), written) == len(written.encode())) == allowed(text)


@pytest.mark.parametrize("name", BARE)
def test_a_string_with_a_bound_cannot_run_over_its_end(name: str) -> None:
    """What must be longer cannot be filled up with the mark that ends it."""
    family = FAMILIES[name]
    schema = {"type": "object", "properties": {"x": {"type": "string", "minLength": 9}}}
    tools = Tools((Tool("f", schema, {}),), required=True)
    matcher = forced(chat_format(family.template, "", tools, parses_reasoning=True))
    written = family.write([("f", {"x": "ab"})])
    end = written.index(family.bare, written.index("ab"))
    assert 0 < accepts(matcher, written) < end + len(f"{family.bare}</x>")


@pytest.mark.parametrize("name", BARE)
def test_bounds_that_take_too_large_a_grammar_are_left_out_or_refused(name: str) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string", "minLength": 3000}}}
    written = FAMILIES[name].write([("f", {"x": "ab"})])
    loose, strict = (
        chat_format(
            FAMILIES[name].template, "", Tools((Tool("f", schema, {}, one),), required=True), True
        )
        for one in (False, True)
    )
    assert accepts(forced(loose), written) == len(written.encode())
    with pytest.raises(GrammarError, match=r"tools\.f: minLength would take too large a grammar"):
        forced(strict)


@functools.cache
def followers(sample: bytes, last: bytes) -> list[int]:
    """Return the bytes that follow `last` in a sample."""
    return [sample[at] for at in range(len(last), len(sample)) if sample.endswith(last, 0, at)]


@families()
@given(seed=st.integers(0, 10**6))
@settings(max_examples=max(3, EXAMPLES // 5), deadline=None)
def test_what_the_forced_grammar_makes_is_read_as_calls(name: str, seed: int) -> None:
    """A walk through the grammar that prefers what families write."""
    family, draw = FAMILIES[name], random.Random(seed)
    format = answers(family)
    sample = family.write(
        [("get_weather", {"city": "Rome", "days": 3, "tags": ["a", "b"], "place": {"lat": 1.5}})]
    ).encode()
    matcher, text = forced(format), bytearray()
    while not (matcher.may_end and (len(text) > 600 or draw.random() < 0.3)):
        mask = matcher.mask()
        after = (followers(sample, bytes(text[-n:])) for n in (12, 6, 3))
        likely = next(filter(None, ([byte for byte in one if mask[byte]] for one in after)), [])
        usual = [byte for byte in {*sample, *b'ab"}0'} if mask[byte]]
        some = usual or [byte for byte in range(256) if mask[byte]]
        if not some:
            break
        byte = draw.choice(likely if likely and (draw.random() < 0.97 or len(text) > 600) else some)
        matcher.accept(byte)
        text.append(byte)
        assume(len(text) < 4000)
    message = read(format, text.decode(errors="replace"), [])
    assert message.calls
    assert not message.content
    for called, arguments in calls_of(message):
        assert called in ("get_weather", "now")
        assert set(arguments) <= set(PARAMETERS["properties"])
        assert called == "now" or isinstance(arguments["city"], str)


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(0, 3)
    | st.sampled_from(["string", "#/properties/x", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "properties", "required", "$ref", "enum", "anyOf", "allOf", "const", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@families()
@given(junk=JUNK, member=JUNK)
@settings(max_examples=EXAMPLES, deadline=None)
def test_bad_schemas_are_refused_and_read_without_harm(name: str, junk: Any, member: Any) -> None:
    family = FAMILIES[name]
    for parameters in (junk, {"properties": junk}, {"properties": {"x": junk}, "required": member}):
        schema = parameters if isinstance(parameters, dict) else {"properties": parameters}
        tools = Tools((Tool("now", schema, {}),), required=True)
        format = chat_format(family.template, "", tools, parses_reasoning=True)
        with suppress(GrammarError):
            forced(format)
        message = read(format, family.write([("now", {"x": "1"})]), [])
        assert [call["function"]["name"] for call in message.calls] == ["now"]


@pytest.mark.parametrize("name", BROKEN)
def test_a_call_behind_one_that_lacks_a_brace_is_found(name: str) -> None:
    family = FAMILIES[name]
    good = family.write([("get_weather", {"city": "Oslo", "days": 1})])
    broken = good.replace("1}", "1", 1)
    message = read(answers(family), f"{broken}\n{good}", list(range(300)))
    assert calls_of(message) == [("get_weather", {"city": "Oslo", "days": 1})] * 2


@families()
def test_a_call_that_is_not_finished_is_a_call(name: str) -> None:
    """A stream's finish_reason follows from `called`, that of a whole answer from its calls."""
    family = FAMILIES[name]
    text = family.write([("get_weather", {"city": "Oslo", "days": 1})])
    message = read(answers(family), text[: text.index("Oslo") + 2], [])
    assert [call["function"]["name"] for call in message.calls] == ["get_weather"]
    assert "Os" in message.calls[0]["function"]["arguments"]
    assert message.content == ""


@families()
def test_one_call_is_read_if_only_one_is_allowed(name: str) -> None:
    family = FAMILIES[name]
    one = Tools(TOOLS.tools, required=True, parallel=False)
    format = chat_format(family.template, "", one, parses_reasoning=True)
    text = family.write([("now", {}), ("get_weather", {"city": "Oslo"})])
    assert calls_of(read(format, text, list(range(300)))) == [("now", {})]


@families()
def test_without_tools_calls_are_content(name: str) -> None:
    family = FAMILIES[name]
    format = chat_format(family.template, "", None, parses_reasoning=True)
    if not format.calls.whole:
        text = family.write([("now", {})])
        shown = read(format, text, [3, 9]).content
        for mark in format.reasoning.around_content:
            text = text.replace(mark, "")
        assert shown.strip() == text.strip()
