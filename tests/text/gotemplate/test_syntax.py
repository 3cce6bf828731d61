"""The syntax of Go templates: what is read as in Go, and what is refused with line and reason."""

from __future__ import annotations

import pytest

from ngramspec.errors import FormatError, InputError
from ngramspec.text.gotemplate import Template
from ngramspec.text.gotemplate.parser import MOST_NESTED
from ngramspec.text.gotemplate.template import MOST_CHARACTERS

DATA = {
    "a": "A",
    "n": 3,
    "yes": True,
    "no": False,
    "list": ["x", "y"],
    "empty": [],
    "map": {"k": "v", "b": "w"},
}


def written(text: str) -> str:
    return Template.parse(text).render(DATA)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("plain } }} { text", "plain } }} { text"),
        ("{{.a}}{{ .a }}{{\n.a\n}}", "AAA"),
        (" x {{- .a -}} y ", " xAy "),
        ("x \t\r\n{{-  .a\t-}}\r\n y", "xAy"),
        ("x {{ .a -}} {{- .a }} y", "x AA y"),
        ("{{- 3 -}} | {{-3}}", "3| -3"),
        ("x {{/* a }} comment */}} y", "x  y"),
        ("x {{- /* comment */ -}} y", "xy"),
        ("x {{/**/ -}}\n{{- /**/}} y", "x  y"),
        ('{{ "}}" }}{{ `}}"\\n` }}', '}}}}"\\n'),
        (
            r'{{ "a\tb\n\"\\\x41\101\u00e9\U0001F600\xc3\xa9" }}',
            'a\tb\n"\\AA\u00e9\U0001f600\u00e9',
        ),
        ("{{ 'a' }} {{ '\\n' }} {{ '\\'' }}", "97 10 39"),
        ("{{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 017 }} {{ 1_000 }} {{ -5 }}", "31 5 15 15 1000 -5"),
        ("{{ 1.5 }} {{ .5 }} {{ 1e3 }} {{ 2. }} {{ +1.0 }}", "1.5 0.5 1000 2 1"),
        ("{{ true }} {{ false }}", "true false"),
        ("{{ $ }}", "map[a:A empty:[] list:[x y] map:map[b:w k:v] n:3 no:false yes:true]"),
        ("{{ $.a }}{{ .map.k }}{{ (.map).k }}{{ $.map.k }}", "Avvv"),
        ("{{ $x := .map }}{{ $x.k }}", "v"),
        ("{{ $x:=1 }}{{ $x }}{{$x =2}}{{ $x}}", "12"),
        ("{{ $x := 1 }}{{ if .yes }}{{ $x = 2 }}{{ $x := 3 }}{{ end }}{{ $x }}", "2"),
        (
            "{{ $x := 0 }}{{ range $i, $e := .list }}{{ $x = $i }}{{ $x := 9 }}{{ end }}{{ $x }}",
            "1",
        ),
        ("{{ if .no }}1{{ else if .yes }}2{{ else }}3{{ end }}", "2"),
        ("{{ if .no }}1{{ else if .no }}2{{ else }}3{{ end }}", "3"),
        ("{{ if $x := .a }}{{ $x }}{{ end }}", "A"),
        ("{{ with .map }}{{ .k }}{{ $.a }}{{ else }}no{{ end }}", "vA"),
        ("{{ with .no }}1{{ else with .a }}{{ . }}{{ else }}3{{ end }}", "A"),
        ("{{ with $x := .a }}{{ $x }}{{ . }}{{ end }}", "AA"),
        ("{{ range .list }}{{ . }},{{ end }}", "x,y,"),
        ("{{ range $x := .list }}{{ $x }},{{ end }}", "x,y,"),
        ("{{ range $i, $x := .list }}{{ $i }}{{ $x }}{{ . }},{{ end }}", "0xx,1yy,"),
        ("{{ range $k, $v := .map }}{{ $k }}={{ $v }};{{ end }}", "b=w;k=v;"),
        ("{{ range .n }}{{ . }}{{ end }}{{ range $i := 2 }}{{ $i }}{{ end }}", "01201"),
        ("{{ range .missing }}1{{ else }}none{{ end }}", "none"),
        ("{{ range $i, $x := .empty }}1{{ else }}{{ $i }}{{ $x }}{{ end }}", "[][]"),
        ("{{ $i := 1 }}{{ range $i = .empty }}{{ end }}{{ $i }}", "[]"),
        ("{{ range 0 }}1{{ else }}none{{ end }}", "none"),
        ("{{ range .list }}{{ break }}{{ . }}{{ end }}|", "|"),
        ('{{ range .list }}{{ if eq . "x" }}{{ continue }}{{ end }}{{ . }}{{ end }}', "y"),
        ("{{ range .list }}{{ range 0 }}{{ else }}{{ break }}{{ end }}1{{ end }}", "11"),
        ("{{ range .list }}{{ range 0 }}{{ else }}{{ continue }}{{ end }}1{{ end }}", ""),
        ("{{ range .list }}{{ range $.list }}{{ continue }}{{ end }}1{{ end }}2", "112"),
        ("{{ range .list }}{{ range $.list }}{{ . }}{{ break }}{{ end }}1{{ end }}2", "x1x12"),
        ("{{ range .list }}{{ if true }}{{ break }}{{ end }}1{{ end }}", ""),
        ("{{ range .list }}{{ with true }}{{ else }}{{ end }}{{ continue }}1{{ end }}", ""),
        ("{{ $i := 0 }}{{ $v := 0 }}{{ range $i, $v = .list }}{{ end }}{{ $i }}{{ $v }}", "1y"),
        (
            '{{ define "t" }}<{{ . }}{{ $ }}>{{ end }}{{ template "t" .a }}{{ template `t` }}',
            "<AA><>",
        ),
        ('{{ block "t" .a }}<{{ . }}>{{ end }}{{ template "t" 1 }}', "<A><1>"),
        ('{{ template "t" . }}{{ define "t" }}{{ .a }}{{ end }}', "A"),
        ('{{ define "t" }} {{ end }}{{ define "t" }}2{{ end }}{{ template "t" }}', "2"),
        ('{{ define "t" }}2{{ end }}{{ define "t" }} {{ end }}{{ template "t" }}', "2"),
        ("{{ and false ($y := 1) }}{{ and true ($y := 2) }}{{ $y }}", "false22"),
        ('{{ .a | printf "%s%s" "b" }}', "bA"),
        ('{{ .a | print | printf "<%s>" }}', "<A>"),
        ("{{ .a | }}", "A"),
        ('{{ (eq .a "A") | not }}{{ not (and .yes (or .no .a)) }}', "falsefalse"),
        ('{{ (print "x" (len .list)) }}', "x2"),
        ("{{ .missing }}{{ .missing.deeper }}{{ (index .map `x`) }}|", "|"),
        ("{{ print nil }}", "<nil>"),
    ],
)
def test_a_template_is_written_as_in_go(text: str, expected: str) -> None:
    assert written(text) == expected


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("a\n{{ .a", 2, "expected }} to end the action"),
        ("{{ .a }", 1, "found '}'"),
        ("{{ }}", 1, "expected a value, found }}"),
        ("{{ /* c */ }}", 1, "found '/'"),
        ("\n{{/* c", 2, "expected */ to end the comment"),
        ("{{/* c */ }}", 1, "expected }} or -}} after the comment"),
        ('{{ "a }}', 1, "expected a closing quote"),
        ('{{ "a\n" }}', 1, "expected a closing quote"),
        ("{{ `a }}", 1, "expected a closing back quote"),
        ("{{ 'a }}", 1, "expected a closing single quote"),
        ("{{ 'ab' }}", 1, "expected one character between single quotes, found 'ab'"),
        (r'{{ "\q" }}', 1, "expected a Go escape"),
        (r'{{ "\'" }}', 1, "expected a Go escape"),
        (r'{{ "\777" }}', 1, "expected an octal escape"),
        (r'{{ "\ud800" }}', 1, "expected a Unicode character"),
        ("{{ 089 }}", 1, "expected a number, found 089"),
        ("{{ 1x }}", 1, "expected a number, found 1x"),
        ("{{ 0x1p3 }}", 1, "expected a number, found 0x1p3"),
        ("{{ 1e999 }}", 1, "expected a number of 64 bits, found 1e999"),
        ("{{ 9223372036854775808 }}", 1, "expected an integer of 64 bits"),
        ("{{ " + "9" * 5000 + " }}", 1, "expected an integer of 64 bits"),
        ("{{ " + "9" * 5000 + ".0 }}", 1, "expected a number of 64 bits"),
        ("{{ - }}", 1, "found '-'"),
        ("{{ .a; }}", 1, "expected a space after .a, found ';'"),
        ("{{ $x := 1 }}{{ $x=2 }}", 1, "expected a space after $x, found '='"),
        ('{{ .a"b" }}', 1, "expected a space after .a"),
        ('{{ eq .a("b") }}', 1, "expected a space between arguments, found ("),
        ("{{ 1.5.a }}", 1, "expected a number, found 1.5.a"),
        ('{{ "a".b }}', 1, "expected something that has fields, found a"),
        ("{{ (.a }}", 1, "found }}"),
        ("{{ .a) }}", 1, "found )"),
        ("{{ () }}", 1, "expected a value in parentheses, found )"),
        ("{{ | .a }}", 1, "expected a value, found |"),
        ("{{ .a | .b | 3 }}", 1, "expected a function after |"),
        ("{{ unknown .a }}", 1, "expected a function (and, eq, ge, gt"),
        ("\n\n{{ $x }}", 3, "expected a variable ($), found $x"),
        ("{{ $x = 1 }}", 1, "expected a variable ($), found $x"),
        ("{{ if $x := 1 }}{{ end }}{{ $x }}", 1, "expected a variable ($), found $x"),
        ('{{ $x := 1 }}{{ define "t" }}{{ $x }}{{ end }}', 1, "expected a variable ($), found $x"),
        ("{{ $x, $y := .list }}", 1, "expected at most two variables, and only in a range"),
        ("{{ range $x, $y, $z := .list }}{{ end }}", 1, "expected at most two variables"),
        ("{{ range $x, .a }}{{ end }}", 1, "expected at most two variables"),
        ("{{ range $x, $y .a }}{{ end }}", 1, "expected := or = after the variables"),
        ("{{ if }}{{ end }}", 1, "expected a value after if, found }}"),
        ("{{ if .a }}\nb", 2, "expected {{end}} or {{else}}, found the end of the template"),
        ("{{ if .a }}{{ else }}{{ else }}{{ end }}", 1, "expected {{end}}, found else"),
        ("{{ if .a }}{{ else with .a }}{{ end }}", 1, "expected }} after else, found with"),
        ("{{ end }}", 1, "expected text or an action, found end"),
        ("{{ else }}", 1, "expected text or an action, found else"),
        ("{{ if .a }}{{ end .a }}", 1, "expected }} after end, found a"),
        ("{{ break }}", 1, "expected break inside a range"),
        ("{{ range .a }}{{ block `t` . }}{{ continue }}{{ end }}{{ end }}", 1, "inside a range"),
        ("{{ range .a }}{{ break .a }}{{ end }}", 1, "expected }} after break"),
        ("{{ template .a }}", 1, "expected a name in quotes after template, found a"),
        ("{{ define t }}{{ end }}", 1, "expected a name in quotes after define, found t"),
        ('{{ define "t" . }}{{ end }}', 1, "expected }} after the name of a define"),
        ('{{ if .a }}{{ define "t" }}{{ end }}{{ end }}', 1, "found define"),
        (
            '{{ define "t" }}1{{ end }}\n{{ define "t" }}2{{ end }}',
            2,
            "expected one template named",
        ),
        ('{{ block "t" }}{{ end }}', 1, "expected a value after block 't', found }}"),
        ("{{ range }}{{ end }}", 1, "expected a value after range"),
        ("{{ and if }}", 1, "expected a value, found if"),
    ],
)
def test_bad_syntax_names_line_and_reason(text: str, line: int, reason: str) -> None:
    with pytest.raises(FormatError) as caught:
        Template.parse(text)
    assert str(caught.value).startswith(f"template, line {line}: ")
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("opening", "closing"),
    [("{{ if .a }}", "{{ end }}"), ("{{ if .a }}{{ else }}", "{{ end }}"), ("", "")],
)
def test_nesting_has_a_bound(opening: str, closing: str) -> None:
    def text(depth: int) -> str:
        if opening:
            return opening * depth + "x" + closing * depth
        return "{{ " + "(" * depth + ".a" + ")" * depth + " }}"

    assert Template.parse(text(MOST_NESTED)).render(DATA) in ("x", "A", "")
    with pytest.raises(InputError, match=f"nested deeper than {MOST_NESTED} levels"):
        Template.parse(text(MOST_NESTED + 1))
    with pytest.raises(InputError, match="nested deeper"):
        Template.parse(text(3_000))  # no recursion of Python goes so deep


def test_a_chain_of_else_if_is_nesting() -> None:
    def text(length: int) -> str:
        return "{{ if .no }}" + "{{ else if .no }}" * length + "{{ else }}x{{ end }}"

    assert written(text(20)) == "x"
    with pytest.raises(InputError, match="nested deeper"):
        Template.parse(text(MOST_NESTED))


def test_length_has_a_bound() -> None:
    text = "x" * MOST_CHARACTERS
    assert Template.parse(text).render({}) == text
    with pytest.raises(InputError, match=f"more than {MOST_CHARACTERS}"):
        Template.parse(text + "x")


def test_the_names_that_a_template_uses_are_known() -> None:
    text = "{{ if .System }}{{ range $i, $m := .Messages }}{{ $m.Role }}{{ end }}{{ end }}"
    text += "{{ if true }}{{ print (.Content) }}"
    text += '{{ else }}{{ with $.Tools }}{{ end }}{{ end }}{{ define "t" }}{{ .Think }}{{ end }}'
    text += '{{ template "t" .Suffix }}'
    names = Template.parse(text).names()
    assert names >= {"system", "messages", "role", "content", "tools", "think", "suffix"}
    assert "response" not in names
