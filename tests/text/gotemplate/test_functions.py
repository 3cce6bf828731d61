"""The functions of Go templates; what they write was compared with Go's own."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest

from ngramspec.errors import FormatError
from ngramspec.text.gotemplate import (
    JsonList,
    JsonMap,
    Record,
    Template,
    TemplateFunction,
    json_text,
)
from ngramspec.text.gotemplate.values import TemplateProblem, to_json

# As a caller adds its own ones.
JSON = {"json": TemplateFunction(lambda values, budget: budget.text(json_text(values[0])), 1, 1)}
DATA = {
    "s": 'h\u00e9 "w"<&>',
    "e": "",
    "i": 3,
    "z": 0,
    "f": 1.5,
    "whole": 2.0,
    "big": 1e21,
    "t": True,
    "list": ["a", "b", "c"],
    "none": [],
    "ints": [1, 2, 3],
    "nested": {"b": "x", "a": [1, None]},
    "map": {"b": 1, "a": [1, None, "x"]},
    "record": Record({"Name": "n"}, {"name": "n", "size": 2}),
    "json": JsonMap({"b": "<", "a": JsonList([1, 2.0])}),
}


def written(text: str) -> str:
    return Template.parse(text, JSON).render(DATA)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("and .t .s", 'h\u00e9 "w"<&>'),
        ("and .e .missing.x (index .none 9)", ""),
        ("or .z .e .i", "3"),
        ("or .t (index .none 9)", "true"),
        (".i | and .t", "3"),
        ("not .e", "true"),
        ("eq .i 1 2 3", "true"),
        ('eq .s "x" "y"', "false"),
        ("eq .whole 2", "true"),
        ("eq .missing nil", "true"),
        ("eq .s nil", "false"),
        ("ne .i 3", "false"),
        ("lt 1 2", "true"),
        ('le "a" "a"', "true"),
        ("gt .f 1", "true"),
        ('ge "b" "a"', "true"),
        ("len .s", "10"),
        ("len .list", "3"),
        ("len .map", "2"),
        ("index .list 1", "b"),
        ('index .map "a" 2', "x"),
        ('index .map "zz"', ""),
        ("index .s 1", "195"),
        ("index .i", "3"),
        ("slice .list 1", "[b c]"),
        ("slice .list 1 2", "[b]"),
        ("slice .list", "[a b c]"),
        ("slice .s 0 3", "h\u00e9"),
        ("slice .s 2 3", "\ufffd"),
        ("print 1 2 .s 3 4", '1 2h\u00e9 "w"<&>3 4'),
        ("print", ""),
        ('println "a" 1', "a 1\n"),
        ("print nil .none .map", "<nil> [] map[a:[1 <nil> x] b:1]"),
        ("print .f .whole .big 1e-7 123456.0 1234567.0", "1.5 2 1e+21 1e-07 123456 1.234567e+06"),
        ('printf "%s|%5s|%-5s|%.1s" "ab" "ab" "ab" "ab"', "ab|   ab|ab   |a"),
        ('printf "%d|%5d|%05d|%-5d|%+d|% d|%.3d" 7 7 7 7 7 7 7', "7|    7|00007|7    |+7| 7|007"),
        ('printf "%v %v %v %v" .t .f .list nil', "true 1.5 [a b c] <nil>"),
        ('printf "%.2f|%8.3f|%e|%g|%.3g" .f .f .f .f .f', "1.50|   1.500|1.500000e+00|1.5|1.5"),
        ('printf "%q %q" .s "\\x01\\n\\u00a0"', '"h\u00e9 \\"w\\"<&>" "\\x01\\n\\u00a0"'),
        ('printf "%x %X %x %c %t" 255 255 "h\u00e9" 233 .t', "ff FF 68c3a9 \u00e9 true"),
        ('printf "100%%"', "100%"),
        (
            'printf "%-3s|%q|%02d" .list .list (slice .ints 1)',
            '[a   b   c  ]|["a" "b" "c"]|[02 03]',
        ),
        ('printf "%3v|%v" .nested .none', "map[  a:[  1 <nil>]   b:  x]|[]"),
        ('printf "%s %v" .record .json', '{"name":"n","size":2} {"a":[1,2],"b":"\\u003c"}'),
        ("json .s", '"h\u00e9 \\"w\\"\\u003c\\u0026\\u003e"'),
        ("json .map", '{"a":[1,null,"x"],"b":1}'),
        ("json .record", '{"name":"n","size":2}'),
        ("json .missing", "null"),
        ("json .list", '["a","b","c"]'),
        ("json .big", "1e+21"),
        ("print (json 1e20) (json 1e-7) (json 0.000001)", "1000000000000000000001e-70.000001"),
        ("json `\\`", '"\\\\"'),
        (".json", '{"a":[1,2],"b":"\\u003c"}'),
        (".record", '{"name":"n","size":2}'),
        (".record.Name", "n"),
        (".record.name", ""),
    ],
)
def test_functions_write_what_go_writes(text: str, expected: str) -> None:
    assert written("{{ " + text + " }}") == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (".s.Name", "expected something with the field Name, found string"),
        (".i.Name", "found int"),
        ("range .s", "expected a list, a map or a count to range over, found string"),
        ("range .t", "found bool"),
        ("range .f", "found float"),
        ("range $a, $b := 3", "expected one variable to range over a count, found two"),
        ("and false ($y := 1) | print $y", "expected a variable that has a value, found $y"),
        ("and false ($y := 1) }}{{ $y = 2", "expected a variable that has a value, found $y"),
        (".s 1", "expected a function in front of an argument, found a value"),
        ("1 | .s", "expected a function in front of an argument, found a value"),
        ("(.s) 1", "expected a function in front of an argument"),
        ("nil", "expected a value, found nil"),
        ("not", "expected 1 to 1 arguments for not, found 0"),
        ("not 1 2", "expected 1 to 1 arguments for not, found 2"),
        ("1 | not 2", "found 2"),
        ("and", "expected 1 or more arguments for and, found 0"),
        ("eq 1", "expected 2 or more arguments for eq, found 1"),
        ("eq .s 1", "expected two values of one simple kind, found string and int"),
        ("eq .list .list", "found list and list"),
        ("eq .t 1", "found bool and int"),
        ("lt .s 1", "expected two numbers or two texts to compare, found string and int"),
        ("lt .t .t", "found bool and bool"),
        ("lt .missing 1", "found nil and int"),
        ("len .missing", "expected a text, a list or a map for len, found nil"),
        ("len 3", "found int"),
        ("index .missing 1", "expected a text, a list or a map for index, found nil"),
        ("index .i 1", "expected a text, a list or a map for index, found int"),
        ("index .list 3", "expected an index from 0 to 2, found 3"),
        ("index .list -1", "found -1"),
        ('index .list "a"', "expected an integer as index, found string"),
        ("index .list .t", "expected an integer as index, found bool"),
        ("index .map 1", "expected a text as the key of a map, found int"),
        ("slice .list 2 1", "expected a slice from left to right, found 2 and 1"),
        ("slice .list 0 4", "expected an index from 0 to 3, found 4"),
        ("slice .map 1", "expected a text or a list for slice, found map"),
        ("slice .list 0 1 2", "expected 1 to 3 arguments for slice, found 4"),
        ("printf 1", "expected a text as the layout of printf, found int"),
        ('printf "%d" .s', "expected int for %d, found string"),
        ('printf "%s" 1', "expected string or list or map or record for %s, found int"),
        ('printf "%z" 1', "expected one of %s %d"),
        ('printf "%"', "expected a value for %, found only 0"),
        ('printf "%s %s" "a"', "expected a value for %s, found only 1"),
        ('printf "a" 1', "expected 0 values for 'a', found 1"),
        ('printf "%101d" 1', "expected a width up to 100, found %101d"),
        ('printf "%.99999999f" 1.0', "expected a width up to 100"),
        ('template "t"', "expected a defined template ('u'), found 't'"),
    ],
)
def test_what_does_not_fit_the_data_names_line_and_reason(text: str, reason: str) -> None:
    end = "{{ end }}" if text.startswith("range") else ""
    define = '{{ define "u" }}x{{ end }}'
    template = Template.parse(f"{define}\n\n{{{{ {text} }}}}{end}\n\n")
    with pytest.raises(FormatError) as caught:
        template.render(DATA)
    assert str(caught.value).startswith("template, line 3: ")
    assert reason in str(caught.value)


def test_the_line_of_an_error_is_that_of_its_function() -> None:
    template = Template.parse('{{ if eq .s\n(print "a")\n}}{{ end }}{{ eq 1\n(print 1) }}')
    with pytest.raises(FormatError, match="line 3: expected two values of one simple kind"):
        template.render(DATA)


@dataclass
class Message:
    role: str = "user"
    tool_calls: list[str] = field(default_factory=list)
    _secret: str = "secret"

    def method(self) -> str:
        return "called"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ .m.role }} {{ .m.Role }} {{ len .m.ToolCalls }}", "user user 0"),
        ("{{ .m._secret }}{{ .m.method }}{{ .m.__class__ }}{{ .m.unknown }}", ""),
        ("{{ .m }}{{ if .m }}yes{{ end }}", '{"role":"user","tool_calls":[]}yes'),
    ],
)
def test_dataclasses_show_their_fields_and_nothing_else(text: str, expected: str) -> None:
    assert Template.parse(text).render({"m": Message()}) == expected


@pytest.mark.parametrize(
    "text", ["{{ .o }}", "{{ if .o }}{{ end }}", "{{ .o.x }}", "{{ json .o }}", "{{ print .o }}"]
)
def test_other_objects_are_refused(text: str) -> None:
    template = Template.parse(text, JSON)
    for value in (object(), {1, 2}, Message, b"bytes"):
        with pytest.raises(FormatError, match="expected a template value, found a"):
            template.render({"o": value})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_json_has_finite_numbers_only(value: float) -> None:
    assert Template.parse("{{ .f }}").render({"f": value}) in ("NaN", "+Inf", "-Inf")
    with pytest.raises(FormatError, match="expected a finite number"):
        Template.parse("{{ json .f }}", JSON).render({"f": value})


def test_json_has_no_other_values() -> None:
    with pytest.raises(TemplateProblem, match="expected a value of JSON, found a set"):
        to_json({"a": [{1}]})


def test_half_a_pair_of_utf_16_is_no_character() -> None:
    data = {"s": "a\ud800b"}
    template = Template.parse('{{ json .s }}{{ len .s }}{{ printf "%q" .s }}', JSON)
    assert template.render(data) == '"a\\ufffdb"5"a\\ufffdb"'


def test_functions_of_the_caller_may_differ_from_rendering_to_rendering() -> None:
    def day(name: str) -> dict[str, TemplateFunction]:
        return {"day": TemplateFunction(lambda values, budget: name, 0)}

    template = Template.parse("{{ day }}, {{ day | len }}", day("Monday"))
    assert template.render({}) == "Monday, 6"
    assert template.render({}, functions=day("Friday 1")) == "Friday 1, 8"
    assert template.with_main(template.main).render({}) == "Monday, 6"
    with pytest.raises(FormatError, match="expected a function"):
        Template.parse("{{ day }}")
