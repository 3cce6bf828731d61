"""Templates of strangers: bounds on steps, text and depth, and no error that is not ours."""

from __future__ import annotations

import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ngramspec.errors import InputError, NgramspecError
from ngramspec.text.gotemplate import Template, TemplateFunction, json_text
from ngramspec.text.limits import Budget, RenderLimits

SMALL = RenderLimits(steps=1000, characters=1000, depth=20)
# As a caller adds its own ones.
JSON = {"json": TemplateFunction(lambda values, budget: budget.text(json_text(values[0])), 1, 1)}


def refused(text: str, data: object = None) -> str:
    """Return why a template is refused."""
    with pytest.raises(InputError) as caught:
        Template.parse(text, JSON).render(data, Budget(SMALL))
    return str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "{{ range 1000000000000 }}{{ end }}",
        "{{ range 100 }}{{ range 100 }}{{ end }}{{ end }}",
        "{{ range 600 }}{{ $ }}{{ end }}",
        "{{ range 300 }}{{ and 1 2 3 }}{{ end }}",
        "{{ $a := 1 }}" * 300 + "{{ range 90 }}{{ $ }}{{ end }}",
    ],
)
def test_steps_have_a_bound(text: str) -> None:
    assert "the template takes more than 1000 steps" in refused(text)


def test_a_map_that_is_put_in_order_takes_steps() -> None:
    many = {f"k{i}": i for i in range(5000)}
    assert "steps" in refused("{{ range 10 }}{{ range $ }}{{ break }}{{ end }}{{ end }}", many)


@pytest.mark.parametrize(
    "call", ["len .", 'eq . ""', "slice . 1 2", "index . 1", "not .", "and . ."]
)
def test_long_arguments_take_steps(call: str) -> None:
    template = Template.parse(f"{{{{ range $x := 100 }}}}{{{{ with $ }}}}{{{{ $y := {call} }}}}"
                                "{{ end }}{{ end }}")  # fmt: skip
    assert template.render("x" * 1000, Budget(SMALL)) == ""
    with pytest.raises(InputError, match="steps"):
        template.render("x" * 100_000, Budget(SMALL))


@pytest.mark.parametrize(
    "text",
    [
        "{{ range 20 }}" + "x" * 100 + "{{ end }}",
        "{{ range 20 }}{{ . }}{{ $ }}{{ end }}",
        '{{ $x := "ab" }}{{ range 40 }}{{ $x = print $x $x }}{{ end }}',
        '{{ $x := "ab" }}{{ range 40 }}{{ $x = printf "%s%s" $x $x }}{{ end }}',
        '{{ $x := "ab" }}{{ range 40 }}{{ $x = println $x $x }}{{ end }}',
        "{{ $x := `\\` }}{{ range 40 }}{{ $x = json $x }}{{ end }}",
        '{{ printf "' + "%99d" * 11 + '"' + " 1" * 11 + " }}",
        "{{ $y := print " + "$ " * 100 + "}}",
    ],
)
def test_text_has_a_bound(text: str) -> None:
    assert "more than 1000 characters of text" in refused(text, "y" * 50)


@pytest.mark.parametrize(
    "text",
    [
        '{{ define "t" }}{{ template "t" . }}{{ end }}{{ template "t" . }}',
        '{{ define "a" }}{{ template "b" }}{{ end }}{{ define "b" }}{{ template "a" }}{{ end }}'
        '{{ template "a" }}',
        "{{ range . }}" * 20 + "{{ end }}" * 20,
        "{{ " + "(" * 20 + "." + ")" * 20 + " }}",
    ],
)
def test_depth_has_a_bound(text: str) -> None:
    data: object = [1]
    for _ in range(30):
        data = [data]
    assert "nested deeper than 20 levels" in refused(text, data)


def test_several_renderings_may_share_a_budget() -> None:
    template, budget = Template.parse("{{ range 40 }}.{{ end }}"), Budget(SMALL)
    for _ in range(10):
        assert template.render(None, budget) == "." * 40
    with pytest.raises(InputError, match="steps"):
        "".join(template.render(None, budget) for _ in range(10))


def test_deep_data_is_refused_and_not_a_crash() -> None:
    data: object = 1
    for _ in range(sys.getrecursionlimit() * 2):
        data = {"x": [data]}
    for text in ("{{ . }}", "{{ json . }}", '{{ printf "%v" . }}'):
        assert "nested too deep" in refused(text, data)
    assert Template.parse("{{ len .x }}").render(data) == "1"
    assert "nested too deep" in refused("{{ .x }}", data)


def test_a_template_of_the_greatest_depth_fits_into_the_stack_of_a_thread() -> None:
    text = "{{ if . }}" * 40 + "{{ print " + "(" * 20 + "." + ")" * 20 + " }}" + "{{ end }}" * 40
    outputs: list[str] = []
    thread = threading.Thread(target=lambda: outputs.append(Template.parse(text).render("deep")))
    thread.start()
    thread.join()
    assert outputs == ["deep"]


def test_a_call_from_a_deep_stack_is_refused_and_not_a_crash() -> None:
    text = "{{ if . }}" * 60 + "{{ . }}" + "{{ end }}" * 60
    template = Template.parse(text)

    def deeper(levels: int, act: object) -> object:
        return act() if levels == 0 else deeper(levels - 1, act)  # type: ignore[operator]

    seen = set()
    for levels in range(0, sys.getrecursionlimit(), 20):
        for act in (lambda: template.render("x"), lambda: Template.parse(text)):
            try:
                deeper(levels, act)
            except InputError as error:
                seen.add(str(error))
            except RecursionError:
                break  # in this test itself
    assert seen == {
        "the template is nested too deep for the stack",
        "the template or its data is nested too deep",
    }


PIECES = [
    *("{{", "}}", "{{-", "-}}", " ", "\n", "text", "/*", "*/", "(", ")", "|", ",", ":=", "=", "."),
    *("$", "$x", "$x := ", "$x, $y := ", ".a", ".Messages", ".Role", '"a"', "`b`", "'c'", "1", "0"),
    *("-1", "1.5", "nil", "true", "if ", "else ", "else if ", "end", "range ", "with ", "break"),
    *("continue", "define ", "template ", "block ", '"t" ', "and ", "or ", "not ", "eq ", "lt "),
    *(
        "len ",
        "index ",
        "slice ",
        "print ",
        "println ",
        'printf "%s%d%v" ',
        "json ",
        "\\",
        '"',
        "`",
    ),
    *("{{ if .a }}", "{{ range .Messages }}", "{{ end }}", "{{ else }}", "{{ $x := . }}", "\u00e9"),
    *("{{ .a }}", "{{ range $x, $y := .map }}", "{{ with .map }}", "{{ break }}", "{{ $x }}"),
]
WHOLE = [piece for piece in PIECES if piece.startswith("{{ ")] + ["text", "{{ print $ }}", "\n"]
DATA = {
    "a": "A",
    "Messages": [{"Role": "user", "Content": "x" * 100}, {"Role": "assistant", "Content": None}],
    "map": {"b": 1.5, "c": [True, None, {"d": "\ud800"}]},
}


def written_or_refused(text: str) -> bool:
    """Tell that nothing but our own errors comes out."""
    try:
        template = Template.parse(text, JSON)
        written = template.render(DATA, Budget(RenderLimits(steps=5000, characters=20_000)))
    except NgramspecError as error:
        return str(error) != ""
    return len(written) <= 20_000 and "" not in template.names()


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=2), max_size=25).map("".join))
def test_any_text_is_rendered_or_refused(text: str) -> None:
    assert written_or_refused(text)
    assert written_or_refused("{{ $x := .map }}{{ " + text + " }}")


@given(st.lists(st.sampled_from(WHOLE), max_size=12).map("".join), st.integers(0, 4))
def test_any_row_of_actions_is_rendered_or_refused(text: str, ends: int) -> None:
    assert written_or_refused("{{ $x := 1 }}" + text + "{{ end }}" * ends)


@given(st.text(alphabet="{}- a\n", max_size=20))
def test_text_without_actions_is_written_as_it_is(text: str) -> None:
    if "{{" not in text:
        assert Template.parse(text).render({}) == text
    else:
        assert written_or_refused(text)
