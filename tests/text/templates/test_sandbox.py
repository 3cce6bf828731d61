"""Chat templates of strangers: what takes too long, or makes too much, is refused in good time."""

from __future__ import annotations

import contextlib
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ngramspec.errors import InputError
from ngramspec.text import limits
from ngramspec.text.limits import MOST_STEPS, RenderLimits
from ngramspec.text.templates.templates import ChatTemplates

NEST = (
    "{% set ns = namespace(x=[0], y=[0]) %}{% for i in range(64) %}"
    "{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}"
)
TUPLES = NEST.replace("[ns.x, ns.x]", "(ns.x, ns.x)").replace("x=[0]", "x=(0,)")
GROWN = (
    "{% set ns = namespace(x=[0]) %}{% for i in range(64) %}{% set y = [] %}"
    "{% set _ = y.append(ns.x) %}{% set _ = y.append(ns.x) %}{% set ns.x = y %}{% endfor %}"
)
ITSELF = "{% set x = [] %}{% set _ = x.append(x) %}"
HELLO = [{"role": "user", "content": "Hello"}]
DOUBLE = "{% set ns = namespace(x='ab') %}{% for i in range(64) %}{% set ns.x = OF %}{% endfor %}"
BOMBS = {
    "loops": "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
    "output": "{% for a in range(90000) %}0123456789012345678901234567890{% endfor %}",
    "captured": "{% set x %}{% for a in range(90000) %}0123456789012345678{% endfor %}{% endset %}",
    "recursion": "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "macros": "{% macro f() %}" + "x" * 9999 + "{% endmacro %}"
    "{% for i in range(999) %}{% set x = f() %}{% endfor %}",
    "concat": DOUBLE.replace("OF", "ns.x ~ ns.x"),
    "plus": DOUBLE.replace("OF", "ns.x + ns.x"),
    "times": DOUBLE.replace("OF", "ns.x * 1000"),
    "lists": "{% set x = [0] * 90000 * 90000 %}",
    "replace": DOUBLE.replace("OF", "ns.x.replace('a', 'aa')"),
    "empty replace": DOUBLE.replace("OF", "ns.x.replace('', ns.x)"),
    "replace filter": DOUBLE.replace("OF", "ns.x | replace('a', ns.x)"),
    "join": DOUBLE.replace("OF", "ns.x.join(ns.x)"),
    "format": DOUBLE.replace("OF", "'%s%s' % (ns.x, ns.x)"),
    "width": "{{ '%1000000000d' % 1 }}",
    "method width": "{{ '{:1000000000}'.format(1) }}",
    "filter width": "{{ '%1000000000d' | format(1) }}",
    "map width": "{{ '{:{w}}'.format_map({'w': 1000000000}) }}",
    "list width": "{{ '{0:{1[0]}}'.format(1, [1000000000]) }}",
    "indent": r"{{ ('\n' * 90000) | indent(90000, blank=true) }}",
    "indent by text": r"{{ ('\n' * 90000) | indent('x' * 90000, blank=true) }}",
    "wordwrap": "{{ ('x' * 90000) | wordwrap(1, wrapstring='x' * 90000) }}",
    "tabs": r"{{ ('\t' * 90000).expandtabs(90000) }}",
    "tojson": "{{ ([0] * 90000) | tojson(indent=90000) }}",
    "join filter": "{{ ([0] * 90000) | join('x' * 90000) }}",
    "lipsum": "{{ lipsum(90000, false, 80000, 90000) }}",
    "center": "{{ 'x' | center(1000000000) }}",
    "ljust": "{{ 'x'.ljust(1000000000) }}",
    "constant": "{{ 'x' * 1000000000 }}",
    "power": "{{ 10 ** 90000 }}",
    "product": "{% set ns = namespace(x=3) %}{% for i in range(64) %}"
    "{% set ns.x = ns.x * ns.x %}{% endfor %}{{ ns.x }}",
    **{
        f"nested: {part}": f"{NEST}{{{{ {part} }}}}"
        for part in (
            "ns.x",
            "ns.x ~ 'a'",
            "'a' + ns.x",
            "ns.x | tojson",
            "ns.x | string",
            "ns.x | join",
            "ns.x == ns.y",
            "ns.x in [ns.y]",
            "1 < ns.x < ns.y",
            "ns.x is eq(ns.y)",
            "[ns.x] | select('eq', ns.y) | list",
            "[ns.x].index(ns.y)",
            "[ns.x].count(ns.y)",
            "'%s' % (ns.x,)",
            "'%s' % ns.x",
            "'{}'.format(ns.x)",
            "ns.x | trim",
            "ns.x | upper",
            "[ns.x, ns.y] | sort",
            "ns.x | map('string') | list",
            "'a'.join([ns.x])",
            "raise_exception(ns.x)",
        )
    },
    **{
        f"tuples: {part}": f"{TUPLES}{{{{ {part} }}}}"
        for part in (
            "{ns.x: 1}",
            "{}[ns.x]",
            "{}.get(ns.x)",
            "dict([(ns.x, 1)])",
            "ns.x in {}",
            "[ns.x] | unique | list",
        )
    },
    "grown": GROWN + "{{ ns.x }}",
    "grown as JSON": GROWN + "{{ ns.x | tojson }}",
    "a list in itself": ITSELF + "{{ x }}",
    "a list in itself, as JSON": ITSELF + "{{ x | tojson }}",
    "a list in itself, compared": ITSELF + "{{ x == x }}",
    "a list that grows in its loop": "{% set x = [0] %}{% for i in x %}{% set _ = x.append(i) %}"
    "{% endfor %}",
    "doubled lists": "{% set ns = namespace(x=[0]) %}{% for i in range(64) %}"
    "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "set": "{% set ns = namespace(x='ab') %}{% for i in range(64) %}"
    "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
}


def render(template: str, messages: Any = HELLO, **variables: Any) -> str:
    return ChatTemplates("<s>", "</s>").render(template, messages, None, True, variables)


@contextmanager
def memory_below(size: int) -> Iterator[None]:
    """Let allocations fail beyond `size` more bytes, on Linux."""
    if sys.platform != "linux":
        yield
        return
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.fixture
def quarter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let templates take a quarter of the steps, and so of the time."""
    monkeypatch.setattr(limits, "MOST_STEPS", MOST_STEPS // 4)


@pytest.mark.usefixtures("quarter")
@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_in_good_time(name: str) -> None:
    started = time.process_time()
    with pytest.raises(InputError, match="template"), memory_below(256 << 20):
        render(BOMBS[name])
    assert time.process_time() - started < 5 / 4


def test_a_bomb_leaves_the_next_template_its_own_budget() -> None:
    templates = ChatTemplates("<s>", "</s>")
    for _ in range(2):
        with pytest.raises(InputError):
            templates.render(BOMBS["loops"], HELLO, None, True, {})
        assert templates.render("{{ messages[0].content }}", HELLO, None, True, {}) == "Hello"


def test_ordinary_filters_take_long_texts() -> None:
    text = "word " * 100
    for filters in ("wordwrap(60)", "indent(4)", "tojson(indent=2)", "replace('word', 'x')"):
        assert render("{{ messages[0].content | " + filters + " }}", [{"content": text}])
    assert render("{{ [messages[0].content, 'b'] | join(', ') }}", [{"content": text}])
    assert render("{{ '{:>10} {}'.format(1, messages[0].content) }}", [{"content": text}])


def test_what_a_client_sends_may_be_large() -> None:
    long = [{"role": "user", "content": "word " * 200_000}, *HELLO * 2000]
    template = (
        "{% macro one(m) %}{{ '<|' + m['role'] + '|>' + m['content'] | trim + '<|end|>' }}"
        "{% endmacro %}{{ bos_token }}{% for m in messages %}{% generation %}{{ one(m) }}"
        "{% endgeneration %}{% if loop.index > 3000 %}{% break %}{% endif %}{% endfor %}"
    )
    expected = "".join(f"<|{m['role']}|>{m['content'].strip()}<|end|>" for m in long)
    assert render(template, long) == "<s>" + expected


QUADRATIC = (  # as Gemma 4's: every message looks back on all others
    "{% for m in messages %}{% set ns = namespace(found=false) %}"
    "{% for j in range(loop.index0 - 1, -1, -1) %}{% if not ns.found %}"
    "{% if messages[j].role == 'nobody' %}{% set ns.found = true %}{% endif %}{% endif %}"
    "{% endfor %}{{ m.content }}{% endfor %}"
)


def test_chats_of_600_messages_may_take_time_that_grows_with_their_square() -> None:
    assert render(QUADRATIC, HELLO * 600)


def test_templates_whose_time_grows_with_the_square_are_stopped(quarter: None) -> None:
    with pytest.raises(InputError, match="steps"):
        render(QUADRATIC, HELLO * 1000)


def test_no_client_gets_more_steps_than_take_about_a_second() -> None:
    assert RenderLimits.for_data([{"role": "user", "content": "x"}] * 10**5).steps == MOST_STEPS


def test_namespaces_keep_their_members_to_themselves() -> None:
    head = "{% set ns = namespace(a=1, items=2) %}"
    assert render(head + "{{ ns.a }}{{ ns.items }}{{ ns.missing }}") == "12"
    for name in ("__class__", "_Namespace__attrs", "__init__"):
        with contextlib.suppress(InputError):  # refused, or nothing is there
            assert render(f"{head}{{{{ ns.{name} }}}}{{{{ ns.{name}.mro }}}}") == ""


def test_templates_write_what_jinja_does() -> None:
    cases = {
        "{{ 1 }}{{ true }}{{ missing }}{{ 'a' ~ 1 }}{{ none | string }}": "1Truea1None",
        "{{ {'b': 'é<', 'a': [1]} | tojson }}": '{"b": "é<", "a": [1]}',
        "{{ {'a': [1]} | tojson(indent=1) }}": '{\n "a": [\n  1\n ]\n}',
        "{{ ['a', 'b'] | join(', ') }}{{ 'ab' | replace('a', 'c') }}": "a, bcb",
        "{{ 'x' | center(3) }}|": " x |",
        "{{ 'a%sb%03d' % ('x', 7) }}{{ '{}-{:>3}'.format(1, 2) }}": "axb0071-  2",
        "{{ 2 ** 10 }}{{ 7 % 3 }}{{ ([1] + [2]) | tojson }}{{ 'ab' * 2 }}": "10241[1, 2]abab",
        "{{ messages | map(attribute='role') | list | string }}": "['user']",
        "{{ tools is defined }}{{ functions is none }}{{ date_string | length }}": "FalseFalse11",
        "{{ strftime_now('%Y') | length }}": "4",
    }
    for template, expected in cases.items():
        assert render(template) == expected, template


def test_templates_are_forgiven_what_llama_cpp_forgives() -> None:
    cases = {
        "{{ none }}{{ {'a': 1} }}{{ ['a', [1, none], {'b': 2}] }}|": "a1|",
        "{{ 'a' + none }}{{ none + 'b' }}{{ 'c' + missing }}{{ missing + 'd' }}": "abcd",
        "{{ missing.a.items() | length }}{{ missing.strip() }}{{ none | items }}": "0",
        "{{ missing.a.b }}{{ messages[9].content.x }}|": "|",
        "{% set n = none %}{{ 'a' ~ n ~ missing }}{{ n | default('x') }}": "ax",
        "{{ 'a' + 1 }}{{ 1 + 'a' }}{{ 'a' + [1] }}": "a11aa[1]",
        "{% set x = [1] %}{% set _ = x.append(2) %}{{ x }}{{ x.pop() }}{{ x }}": "1221",
        "{{ messages | map(attribute='role') | tojson }}": '["user"]',
        "{{ 'a<b' | safe + '<' }}{{ '<' | e }}": "a<b<&lt;",
        "{{ ' \u00a0a\u3000 ' | trim }}{{ ' \u00a0a'.strip() }}|": "\u00a0a\u3000\u00a0a|",
        "{% for m in ['\\u3000a'] %}{{ m.strip() }}{% endfor %}": "\u3000a",
        "{% set d = {'copy': 1, 'items': 2} %}{{ d.copy }}{{ d['items'] }}": "12",
    }
    for template, expected in cases.items():
        assert render(template) == expected, template


def test_what_a_template_changes_is_its_own() -> None:
    calls = [{"id": "1"}]
    chat = [{"role": "user", "content": "x", "tool_calls": calls}]
    template = "{% set _ = messages[0].tool_calls.append(1) %}{{ messages[0].tool_calls | length }}"
    templates = ChatTemplates("<s>", "</s>")
    assert [templates.render(template, chat, None, True, {}) for _ in range(2)] == ["2", "2"]
    assert calls == [{"id": "1"}]
