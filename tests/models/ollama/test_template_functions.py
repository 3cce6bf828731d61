"""The functions that Ollama adds to Go's templates; compared with what Ollama writes."""

from __future__ import annotations

import datetime

import pytest

from ngramspec.models.ollama.chat_template import FUNCTIONS, dates
from ngramspec.text.gotemplate import JsonMap, Record, Template

DATA = {"text": "a<b", "count": 3, "list": ["a", "b"], "object": JsonMap({"b": 1, "a": None})}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("json .text", '"a\\u003cb"'),
        ("json .object", '{"a":null,"b":1}'),
        ("json .missing", "null"),
        ("toJson .list", '["a","b"]'),
        ("currentDate", "2024-03-01"),
        ("print currentDate .count", "2024-03-013"),
        ('currentDate "2006"', "2024-03-01"),
        ("yesterdayDate", "2024-02-29"),
        ("toTypeScriptType .text", "any"),
    ],
)
def test_functions_write_what_ollama_writes(text: str, expected: str) -> None:
    template = Template.parse("{{ " + text + " }}", FUNCTIONS)
    assert template.render(DATA, functions=dates(datetime.date(2024, 3, 1))) == expected


def test_types_of_tool_properties_become_typescript() -> None:
    def shown(**fields: object) -> str:
        data = {"p": Record(fields, {})}
        return Template.parse("{{ .p | toTypeScriptType }}", FUNCTIONS).render(data)

    types = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean"}
    types |= {"array": "any[]", "object": "Record<string, any>", "null": "null", "odd": "any"}
    assert {name: shown(Type=name) for name in types} == types
    assert shown(Type=["string", "null"]) == "string | null"
    assert shown(Type="") == "any"
    assert shown() == "any"
    choices = [Record({"Type": "string"}, {}), Record({"Type": "array"}, {})]
    assert shown(AnyOf=choices, Type="x") == "string | any[]"
