"""Go templates: refused with the line, or rendered within their budget, also turn by turn."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator
from contextlib import contextmanager

from fuzz import text_inputs
from fuzz.target import Finding, Run, Target
from ngramspec.errors import FormatError, InputError
from ngramspec.models.ollama.chat_template import FUNCTIONS, ChatTemplate, dates
from ngramspec.text.gotemplate import JsonList, JsonMap, Template
from ngramspec.text.gotemplate.functions import FUNCTIONS as BUILTINS
from ngramspec.text.limits import Budget, RenderLimits

# Three renderings with the limits of a request; what takes longer does work that is not counted.
MOST_SECONDS = 20.0  # of processor time with every branch counted; 2 on a fast machine
TODAY = datetime.date(2026, 1, 31)
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hé {{ x }}"},
    {"role": "assistant", "content": "", "thinking": "hm",
     "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, 2.5, None]}}}]},
    {"role": "tool", "content": "7", "tool_name": "f"},
    {"role": "user", "content": "And?"},
]  # fmt: skip
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {
    "type": "object", "required": ["a"],
    "properties": {"a": {"type": ["string", "null"], "enum": ["x"]}}}}}]  # fmt: skip
DATA = JsonMap(
    {"Text": "aé☃", "Number": 7, "Float": 2.5, "None": None, "Yes": True,
     "List": JsonList([1, "x", None]), "Map": JsonMap({"b": 1, "a": JsonList()})}
)  # fmt: skip
LIMITS = RenderLimits.for_data(DATA, MESSAGES, TOOLS)
WORDS = (
    *(
        "{{ ",
        " }}",
        "{{- ",
        " -}}",
        "{{/* x */}}",
        "{{ end }}",
        "{{ else }}",
        "{{ else if .Text }}",
    ),
    *("{{ if .Text }}", "{{ with .Map }}", "{{ range .List }}", "{{ range $i, $m := .Messages }}"),
    *(
        "{{ range 3 }}",
        "{{ range $i := 900 }}",
        "{{ break }}",
        "{{ continue }}",
        '{{ define "x" }}',
    ),
    *('{{ template "x" . }}', '{{ block "x" . }}', "{{ $x := 1 }}", "{{ $x = 2 }}", "$x", "$", "."),
    *(".Messages", ".Role", ".Content", ".ToolCalls", ".Tools", ".System", ".Prompt", ".Response"),
    *(
        ".Text",
        ".Number",
        ".Float",
        ".None",
        ".List",
        ".Map",
        ".Function",
        ".Arguments",
        ".Thinking",
    ),
    *(f"{name} " for name in sorted({**BUILTINS, **FUNCTIONS})),
    *(
        '"%d"',
        '"%99999999d"',
        '"%.999999999f"',
        '"%[1]v"',
        '"%*d"',
        '"%q"',
        '"%v"',
        '"%x"',
        "`",
        "'a'",
    ),
    *(
        "1e9",
        "0x10",
        "0b1",
        "9223372036854775807",
        "-1",
        "1.5",
        "'\\n'",
        '"\\u00e9"',
        "nil",
        "true",
    ),
    *(
        "(",
        ")",
        " | ",
        ", ",
        "(len .Text)",
        "(index .List 1)",
        "(slice .Text 1 2)",
        "{{",
        "}}",
        "\n",
    ),
)


@contextmanager
def opened() -> Iterator[Run]:
    def run(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        started = time.process_time()
        try:
            rendered(text)
        finally:
            if time.process_time() - started > MOST_SECONDS:
                raise Finding("a template takes longer than its budget of steps")

    yield run


def rendered(text: str) -> None:
    """Render a template in every way that there is."""
    try:
        template = Template.parse(text, FUNCTIONS)
        chat = ChatTemplate.parse(text)
    except (FormatError, InputError):
        return
    for render in (
        lambda: template.render(DATA, Budget(LIMITS), dates(TODAY)),
        lambda: chat.render(MESSAGES, "S", TOOLS, think=True, today=TODAY, limits=LIMITS),
        lambda: chat.render([], None, None, "P", "S", today=TODAY, limits=LIMITS),
    ):
        try:
            output = render()
        except (FormatError, InputError):
            continue
        if len(output) > LIMITS.characters:
            raise Finding("a template writes more than its budget")


TARGET = Target(
    opened=opened,
    instrumented=("ngramspec.text.gotemplate", "ngramspec.models.ollama"),
    mutate=text_inputs.mutation(WORDS),
    words=WORDS,
    max_bytes=2048,
    seconds=60,
)
