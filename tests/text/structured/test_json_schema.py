"""Schemas as grammars of llguidance: they take what a schema allows, nothing else."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from helpers.json_schemas import PERSON, grammar_of, takes
from ngramspec.errors import GrammarError

TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "number"},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["value", "next"],
        }
    },
}
# schema, texts that it allows, texts that it does not
CASES: list[tuple[Any, list[str], list[str]]] = [
    (PERSON, ['{"name":"x"}', '{"name": "x", "age": 3}', '{"name":"x","tags":["a","b"]}',
              '{\n  "name": "x",\n  "age": 0\n}'],
     ["{}", '{"age": 3}', '{"name":"123456789"}', '{"name":"x","age":-1}', '{"name":"x","z":1}',
      '{"name":"x","tags":["c"]}', '{"name":"x","tags":["a","a","a"]}', '{"name":"x"', "null"]),
    (TREE, ['{"value":1,"next":null}', '{"value":1.5e3,"next":{"value":-2,"next":null}}'],
     ['{"value":1}', '{"value":1,"next":1}']),
    ({"type": "string"}, ['""', '"é☃\\n"'], ['"\\u00e9"', '"a\nb"', '"a\\x"', '"', "a"]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ['"ab"', '"abc"', '"\\n\\""'],
     ['"a"', '"abcd"']),
    ({"type": "integer"}, ["0", "-12", "34"], ["01", "1.0", "+1", "-"]),
    ({"type": "number", "minimum": 0}, ["0.5", "7"], ["-1"]),
    ({"type": "number", "minimum": -0.5}, ["-0.3", "7"], []),
    ({"type": "number", "minimum": 0.2, "maximum": 0.8}, ["0.5"], ["-1"]),
    ({"type": "number", "minimum": 0, "maximum": 1}, ["0", "0.25", "1", "1.0"],
     ["1.5", "2", "-0.1", "10"]),
    ({"type": "number", "minimum": 5, "maximum": 5}, ["5"], ["5.01", "4"]),
    ({"type": "integer", "minimum": 1, "maximum": 14}, ["1", "9", "10", "14"],
     ["0", "15", "20", "-1", "01", "1.5"]),
    ({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 65536}, ["1", "9999", "65535"],
     ["0", "65536", "70000", "100000"]),
    ({"type": "integer", "minimum": -5, "maximum": 5}, ["-5", "0", "5"], ["-6", "6", "10"]),
    ({"type": "integer", "maximum": -3}, ["-3", "-10", "-123456"], ["-2", "0", "3"]),
    ({"type": "integer", "minimum": 250}, ["250", "1000", "9999999"], ["249", "99", "-250"]),
    ({"type": "integer", "minimum": 2.5, "exclusiveMaximum": 4}, ["3"], ["2", "4"]),
    ({"type": "integer", "minimum": -(10**20), "maximum": 10**400},
     ["-12", "34", str(2**53 + 1)], ["1.0"]),
    ({"type": ["string", "null"]}, ['"x"', "null"], ["1"]),
    ({"type": ["object", "null"], "properties": {"a": {"type": "null"}}}, ["null", '{"a":null}'],
     ['{"b":1}']),
    ({"const": {"a": [1, "é\n"]}}, ['{"a": [1, "é\\n"]}'], ['{"a": [1, "e"]}']),
    ({"enum": [1, "one", None]}, ["1", '"one"', "null"], ["2", '"two"']),
    ({"type": "array"}, ["[]", '[1, "x", [null]]'], ["[1,]", "{}"]),
    ({"type": "array", "items": {"type": "boolean"}, "minItems": 2}, ["[true,false,true]"],
     ["[]", "[true]", "[1, 2]"]),
    ({"type": "array", "maxItems": 0}, ["[]"], ["[1]"]),
    ({"prefixItems": [{"type": "integer"}, {"type": "string"}]}, ['[1, "x"]'], ['["x", 1]', "[1]"]),
    ({}, ['{"a": [1]}', "1", "null"], ["{a: 1}"]),
    ({"description": "anything"}, ["true", '"x"'], ["tru"]),
    ({"type": "object"}, ["{}", '{"a": {"b": []}}'], ["[]"]),
    ({"type": "object", "properties": {}}, ["{}"], ['{"a":1}']),
    ({"properties": {"a": {}, "b": {}}}, ["{}", '{"a":1}', '{"b":1}', '{"a":1,"b":2}'],
     ['{"b":1,"a":2}', '{"a":1,}', '{"c":1}']),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, ["{}", '{"x":1,"y":2}'],
     ['{"x":"y"}']),
    ({"properties": {"a": {"type": "null"}}, "required": ["a"], "additionalProperties": True},
     ['{"a":null}', '{"a":null,"x":[1]}'], ['{"x":1}']),
    ({"properties": {"a": {}, "b": {}, "c": {}}, "required": ["b"]},
     ['{"b":1}', '{"a":1,"b":2}', '{"b":2,"c":3}', '{"a":1,"b":2,"c":3}'], ['{"a":1}', '{"c":1}']),
    ({"allOf": [{"properties": {"a": {"type": "null"}}, "required": ["a"]},
                {"properties": {"b": {"type": "null"}}}]},
     ['{"a":null}', '{"a":null,"b":null}'], ['{"b":null}']),
    ({"allOf": [{"$ref": "#/x"}], "x": {"enum": ["q"]}}, ['"q"'], ['"r"']),
    ({"type": "object", "properties": {"k": {"type": "integer"}, "v": {"type": "integer"}},
      "oneOf": [{"required": ["k"]}, {"required": ["v"]}]}, ['{"k":1}', '{"v":1}'], ["{}"]),
    ({"$ref": "#/defs/a~1b", "defs": {"a/b": {"const": 7}}}, ["7"], ["8"]),
    ({"$ref": "#/defs/a~01b", "defs": {"a~1b": {"const": 7}, "a/b": {"const": 8}}}, ["7"], ["8"]),
    ({"$ref": "#/defs/%7E0%25", "defs": {"~%": {"const": 7}}}, ["7"], ["8"]),
    ({"enum": ["", "a", "ab", "abc", "b", 'a"b', "aé", 1, 12, 1.5, None, {"a": 1}, [], ["a"]]},
     ['""', '"a"', '"ab"', '"abc"', '"b"', '"a\\"b"', '"aé"', "1", "12", "1.5", "null",
      '{"a": 1}', "[]", '["a"]'], ['"', '"abcd"', '"c"', "15", "2", '"é"', '["b"]', "[1]"]),
    ({"enum": ["a" * i for i in range(1, 100)]}, ['"a"', f'"{"a" * 99}"'], ['""', '"ab"']),
    ({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {
        "next": {"allOf": [{"$ref": "#/$defs/node"}], "description": "the next one"}}}}},
     ["{}", '{"next":{}}', '{"next":{"next":{}}}'], ['{"next":1}', '{"next":{"x":1}}']),
    ({"type": "array", "items": {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]},
      "minItems": 1, "$defs": {
        "a": {"type": "object", "properties": {"x": {"type": "null"}}, "required": ["x"]},
        "b": {"allOf": [{"$ref": "#/$defs/a"}], "properties": {"y": {"type": "null"}},
              "required": ["x", "y"]}}},
     ['[{"x":null,"y":null}]'], ['[{"x":null}]', '[{"y":null}]']),
    ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2024-13-01"', '"x"']),
    ({"type": "string", "format": "date-time"}, ['"2024-02-29T23:59:59Z"'], ['"2024-02-29"']),
    ({"type": "string", "format": "uuid"}, ['"123e4567-e89b-12d3-a456-426614174000"'], ['"123"']),
    ({"pattern": "^[a-c]{2,3}$"}, ['"ab"', '"abc"'], ['"a"', '"abcd"', '"xy"']),
    ({"pattern": "^(yes|no)+\\d?$"}, ['"yesno7"', '"no"'], ['"maybe"', '"7"']),
    ({"pattern": "x"}, ['"x"', '"axb"'], ['"ab"']),
    ({"pattern": '^[^"a]\\\\"\\.\\w$'}, ['"b\\\\\\".z"'], ['"a\\\\\\".z"', '"b\\\\\\"xz"']),
    # classes without quotes or backslashes, but with every control character
    ({"pattern": '^[^"]$'}, ['"a"', '"\\\\"', '"\\n"', '"\\b"'], ['"\\""', '"ab"']),
    ({"pattern": '^[^"\\n]$'}, ['"a"', '"\\\\"', '"\\b"'], ['"\\""', '"\\n"']),
    ({"pattern": r"^[^\\]$"}, ['"a"', '"\\""'], ['"\\\\"']),
    ({"pattern": r'^([^"\\]|x)*$'}, ['"a\\nx"'], ['"\\""', '"\\\\"', '"a\\\\x"']),
    ({"pattern": r"^[\x00-!]\p{Cc}[\p{C}]$"},
     ['"!\\u0001\\n"'], ['"!\\"a"', '"\\"\\n\\n"', '"!\\n\\\\"']),
    ({"patternProperties": {'^[^"]$': {"type": "null"}}}, ['{"a":null}'], ['{"\\"":null}']),
    ({"pattern": "^\\s\\S[\\n\\-]$"}, ['" x-"', '" x\\n"'], ['"xx-"']),
    ({"pattern": "^\\S$"}, ['"x"', '"é"', '"\\""'], ['" "', '"\\n"', '"\\t"', '"\\r"']),
    ({"pattern": "^[^\\s]$"}, ['"x"'], ['" "', '"\\n"', '"\\t"']),
    ({"pattern": "^\\S$"}, [], ['"\u3000"', '"\u00a0"', '"\u2003"', '"\ufeff"', '"\u2028"']),
    ({"pattern": "^[^\\sx]$"}, ['"y"'], ['"x"', '" "', '"\u3000"', '"\u00a0"', '"\ufeff"']),
    ({"pattern": "^[\\s\\S]$"}, ['"\u3000"', '"\u00a0"', '"x"', '" "'], []),
    ({"pattern": "^(\\s|\\S)$"}, ['"\u3000"', '"x"', '" "'], []),
    ({"pattern": "^[^\\S\\n]$"}, ['" "', '"\\t"'], ['"\\n"', '"x"', '"\ufeff"', '"\u3000"']),
    ({"pattern": "^[(?<a]$"}, ['"("', '"?"', '"<"', '"a"'], ['"P"']),
    ({"pattern": "^\\s+$"}, ['" "', '"\\n\\t "'], ['"x"']),
    ({"pattern": "^.$"}, ['"x"', '"☃"', '"\\\\"', '"\\t"'], ['""', '"\\n"', '"\\r"', '"xx"']),
    ({"pattern": r"^\p{L}+$"}, ['"a"', '"éß"', '"日本"', '"𝒜"'], ['""', '"1"', '"a_"', '"☃"']),
    ({"pattern": r"^[\p{Lu}\p{Nd}_-]\P{L}$"}, ['"É1"', '"٣ "', '"-☃"'], ['"é1"', '"ÉA"', '"É"']),
    ({"pattern": r"^[^\p{L}\s]\p{gc=Sc}\p{General_Category=Other_Letter}$"}, ['"1€字"', '"☃$字"'],
     ['"a€字"', '" €字"', '"1€a"']),
    ({"pattern": r"^[^\P{Uppercase_Letter}]\p{LC}[^\P{L}x]$"}, ['"AaB"'],
     ['"aaB"', '"A字B"', '"Aax"']),
    ({"pattern": r"^\\p{2}$"}, ['"\\\\pp"'], ['"\\\\p{2}"']),
    ({"pattern": r"^\p{L}+( \p{L}+)*$", "maxLength": 4}, ['"é 字"'], ['"é 字aa"', '"é "']),
    ({"type": "string", "minLength": 1.0, "maxLength": 2.0}, ['"a"', '"ab"'], ['""', '"abc"']),
    ({"type": "array", "items": {"const": 1}, "minItems": 1.0, "maxItems": 2e0}, ['[1]', '[1,1]'],
     ['[]', '[1,1,1]']),
    ({"properties": {"a": {"const": 1}, "b": {"const": 1}}, "minProperties": 2.0},
     ['{"a":1,"b":1}'], ['{"a":1}']),
    ({"pattern": "^$"}, ['""'], ['"a"']),
    ({"pattern": "^a$|^b+$"}, ['"a"', '"bb"'], ['"ab"', '"aa"']),
    ({"pattern": "^(?<first>a)b$"}, ['"ab"'], ['"a"']),
    ({"pattern": "^[a-z][a-z0-9-]*$", "maxLength": 4}, ['"a"', '"a-9z"'], ['""', '"a-9zz"', '"9"']),
    ({"pattern": "^[a-z]+( [a-z]+)*$", "minLength": 3, "maxLength": 5}, ['"abc"', '"a b c"'],
     ['"ab"', '"a b"  ', '"abcdef"', '"a  b"']),
    ({"pattern": "[0-9]{2}", "maxLength": 3}, ['"12"', '"x12"', '"é34"'], ['"1x2"', '"x123"']),
    ({"pattern": "^.*$", "maxLength": 2}, ['"é"', '""'], ['"abc"']),
    ({"format": "date", "pattern": "^20"}, ['"2024-02-29"'], ['"1999-01-01"', '"2023-02-29"']),
    ({"type": "string", "minLength": 1500, "maxLength": 4500},
     [f'"{"a" * size}"' for size in (1500, 2500, 3333, 4500)],
     [f'"{"a" * size}"' for size in (1499, 4501)]),
    ({"type": "string", "minLength": 1, "maxLength": 1}, ['"😀"'],
     ['"\\ud83d"', '"\\ude00"', '"\\ud83d\\ud83d"', '"ab"']),
    ({"type": "number", "minimum": 0.2, "exclusiveMaximum": 0.8},
     ["0.2", "0.200", "0.5", "0.79999"], ["0.1", "0.8", "0.19", "1", "0", "-0.5", "2e-1"]),
    ({"type": "number", "exclusiveMinimum": 0}, ["0.5", "7", "0.001"], ["0", "0.0", "-1", "-0.0"]),
    ({"type": "number", "maximum": -1.5}, ["-1.5", "-2", "-1.50", "-10.25"], ["-1.4", "0", "1.5"]),
    ({"type": "number", "minimum": -2, "maximum": 1.5}, ["-2", "-1.999", "0", "1.5", "1.49"],
     ["-2.001", "1.51", "2", "-3", "-0"]),
    ({"type": "number", "minimum": 1, "exclusiveMinimum": True}, ["1.1", "2"], ["1", "1.0"]),
    ({"type": "number", "multipleOf": 0.01}, ["1", "1.5", "1.25", "-0.07"], ["1.255", "1e5"]),
    ({"type": "number", "multipleOf": 2.5, "minimum": 0, "maximum": 100}, ["0", "2.5", "97.5"],
     ["2", "100.5", "102.5"]),
    ({"type": "integer", "multipleOf": 7, "minimum": 10, "maximum": 1000}, ["14", "994", "70"],
     ["7", "15", "1001", "0"]),
    ({"type": "integer", "multipleOf": 0.5}, ["3"], ["3.5"]),
    ({"anyOf": [{"allOf": [{"type": "integer", "multipleOf": 4},
                           {"multipleOf": 6, "minimum": 1, "maximum": 5}]}, {"type": "null"}]},
     ["null"], ["4", "12"]),
    ({"type": "integer", "minimum": 10**18, "maximum": 2**63 - 1}, ["1" + "0" * 18, str(2**63 - 1)],
     ["9" * 18, str(2**63), "1"]),
    ({"type": "integer", "minimum": 10**16}, ["1" + "0" * 16, "9" * 17], ["9" * 16]),
    ({"type": "string", "enum": ["a", 1, "bb"], "minLength": 2}, ['"bb"'], ['"a"', "1"]),
    ({"const": 3, "minimum": 1}, ["3"], ["1"]),
    ({"anyOf": [{"minimum": 5}, {"multipleOf": 10}], "type": "integer", "maximum": 20},
     ["7", "-10", "20"], ["3", "25", "30"]),
    ({"anyOf": [False, {"type": "null"}, {"type": "string", "enum": [1]}]}, ["null"], ["1"]),
    ({"allOf": [{"properties": {"a": {"type": "integer", "minimum": 1}}},
                {"properties": {"a": {"maximum": 3}}, "required": ["a"]}]},
     ['{"a":2}'], ["{}", '{"a":0}', '{"a":4}']),
    ({"$ref": "#/$defs/n", "maximum": 3, "$defs": {"n": {"type": "integer", "minimum": 1}}},
     ["1", "3"], ["0", "4"]),
    ({"required": ["b"], "properties": {"a": {"type": "null"}}}, ['{"b":1}', '{"a":null,"b":[]}'],
     ["{}", '{"a":null}']),
    ({"properties": {"a": {"type": "null"}, "b": False}}, ["{}", '{"a":null}'], ['{"b":1}']),
    ({"properties": {"a": {"type": "null"}}, "required": ["a"],
      "additionalProperties": {"type": "integer"}},
     ['{"a":null}', '{"a":null,"b":1,"aa":2,"":3}'], ['{"a":null,"a":1}', '{"a":null,"b":null}']),
    ({"patternProperties": {"^n": {"type": "integer"}, "^s": {"type": "string"}}},
     ["{}", '{"n1":1,"st":"x"}'], ['{"n1":"x"}', '{"st":1}', '{"other":1}']),
    # names that fit both patterns may have either value
    ({"patternProperties": {"^n": {"type": "integer"}, "s$": {"type": "string"}}},
     ["{}", '{"n1":1,"ts":"x"}'], ['{"n1":null}', '{"other":1}']),
    ({"properties": {"n": {"minimum": 3}}, "patternProperties": {"^n": {"type": "integer"}},
      "additionalProperties": {"type": "null"}},
     ['{"n":3,"n2":0,"z":null}'], ['{"n":2}', '{"n":3.5}', '{"n2":null}', '{"z":1}']),
    ({"type": "object", "propertyNames": {"pattern": "^[a-z]{1,2}$"}},
     ["{}", '{"ab":1}'], ['{"abc":1}', '{"A":1}', '{"":1}']),
    ({"type": "object", "propertyNames": {"minLength": 1, "maxLength": 2}},
     ["{}", '{"é":1}'], ['{"abc":1}', '{"":1}']),
    ({"type": "object", "propertyNames": {"enum": ["x", "y"]}, "maxProperties": 1},
     ["{}", '{"x":1}'], ['{"z":1}', '{"x":1,"y":2}']),
    ({"properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 1, "maxProperties": 2},
     ['{"a":1}', '{"b":1,"c":1}'], ["{}", '{"a":1,"b":1,"c":1}']),
    ({"properties": {"a": {}, "b": {}, "c": {}}, "dependentRequired": {"c": ["a"], "a": ["b"]}},
     ["{}", '{"b":1}', '{"a":1,"b":1}', '{"a":1,"b":1,"c":1}'],
     ['{"a":1}', '{"c":1}', '{"b":1,"c":1}']),
    ({"prefixItems": [{"type": "null"}, {"type": "boolean"}], "minItems": 1,
      "items": {"type": "integer"}, "maxItems": 3},
     ["[null]", "[null, true]", "[null,true,1]"], ["[]", "[true]", "[null,true,1,2]"]),
    ({"items": [{"type": "null"}], "additionalItems": {"type": "integer"}},
     ["[null]", "[null,1,2]"], ["[]", "[1]"]),
    ({"type": "array", "items": {"type": "null"}, "maxItems": 1, "uniqueItems": True},
     ["[]", "[null]"], ["[null,null]"]),
    ({"type": "object", "properties": {"a": {}}, "unevaluatedProperties": False}, ["{}"],
     ['{"b":1}']),
    *[({"type": "string", "format": name}, [f'"{x}"' for x in good], [f'"{x}"' for x in bad])
      for name, good, bad in [
        ("date", ["2024-02-29", "2000-02-29"], ["2023-02-29", "1900-02-29", "2024-04-31"]),
        ("time", ["23:59:59Z", "00:00:00.123+01:00"], ["24:00:00Z", "12:00:00", "12:00Z"]),
        ("duration", ["P1D", "PT1H30M", "P1Y2M3DT4H", "P3W"], ["P", "PT", "1D", "P1YT", "P1Y3D"]),
        ("email", ["a.b@example.org"], ["a@b", "@example.org", "a b@example.org", "a..b@x.org"]),
        ("hostname", ["example.org", "x", "a-b.c"], ["-a", "a-", "a..b", "a_b", "x" * 64]),
        ("ipv4", ["0.0.0.0", "255.249.19.1"], ["256.1.1.1", "1.2.3", "01.2.3.4"]),
        ("ipv6", ["::", "::1", "1:2:3:4:5:6:7:8", "fe80::1:2", "1:2:3:4:5:6:7::"],
         ["1:2:3", "1::2::3", "1:2:3:4:5:6:7:8:9", "g::", ":::"]),
        ("uri", ["https://example.org/a?b=1#c", "mailto:a@b.c", "http://127.0.0.1:80/"],
         ["example.org", "http://a b", "https://x/%zz"]),
     ]],
]  # fmt: skip


@pytest.mark.parametrize(("schema", "good", "bad"), CASES, ids=[str(c[0])[:40] for c in CASES])
def test_a_grammar_takes_what_its_schema_allows(
    schema: Any, good: list[str], bad: list[str]
) -> None:
    grammar = grammar_of(schema)
    assert [text for text in good if not takes(grammar, text)] == []
    assert [text for text in bad if takes(grammar, text)] == []
    for text in good:
        json.loads(text)


def test_long_bounds_and_many_of_them_are_taken() -> None:
    texts = {f"p{i}": {"type": "string", "minLength": 1, "maxLength": 1_000_000 - i}
             for i in range(400)}  # fmt: skip
    grammar = grammar_of({"properties": texts})
    assert takes(grammar, '{"p0":"x","p399":"y"}')
    assert not takes(grammar, '{"p0":""}')


@pytest.mark.parametrize("step", [1, 2, 3, 8, 12, 25, 60, 64, 75, 100, 128, 250, 1000, 3600])
def test_multiples_are_all_let_through_and_nothing_else(step: int) -> None:
    multiples = range(-300 // step * step, 12346 + step, step)
    tried = {one + more for one in multiples[:: len(multiples) // 40 + 1] for more in (-1, 0, 1)}
    for kind in ("integer", "number"):
        grammar = grammar_of({"type": kind, "multipleOf": step, "minimum": -300, "maximum": 12345})
        numbers = {number for number in tried if takes(grammar, str(number))}
        assert numbers == {n for n in tried if n % step == 0 and -300 <= n <= 12345}


@pytest.mark.parametrize("low", [-1205, -100, -99, -10, -9, -1, 0, 1, 9, 10, 11, 99, 120, 999])
@pytest.mark.parametrize("size", [0, 1, 8, 9, 10, 90, 99, 350, 1101])
def test_bounds_let_every_whole_number_between_them_through(low: int, size: int) -> None:
    grammar = grammar_of({"type": "integer", "minimum": low, "maximum": low + size})
    ends = {end + more for end in (low, low + size, 0) for more in range(-12, 13)}
    tried = ends | set(range(-2500, 2500, 61))
    numbers = {number for number in tried if takes(grammar, str(number))}
    assert numbers == tried & set(range(low, low + size + 1))


@pytest.mark.parametrize(
    "schema",
    [
        5,
        {"type": "dragon"},
        {"type": []},
        {"enum": []},
        {"$ref": "https://example.org/schema"},
        {"$ref": "#/nowhere"},
        {"properties": {"a": 5}},
        {"properties": 5},
        {"type": "array", "minItems": 3, "maxItems": 2},
        {"type": "array", "minItems": -1},
        {"type": "string", "maxLength": 2_000_000},
        {"type": "string", "minLength": "two"},
        {"type": "string", "minLength": 2.5},
        {"type": "string", "minLength": -1.0},
        {"type": "string", "maxLength": True},
        {"type": "array", "minItems": math.inf},
        {"pattern": r"\p{Nonsense}"},
        {"pattern": r"\pL"},
        {"pattern": r"[!-\p{L}]"},
        {"pattern": r"[\p{L}-\u{10FFFF}]"},
        {"pattern": r"^\p{Cs}$"},
        {"pattern": "("},
        {"pattern": "^(?=x)$"},
        {"pattern": r"^\0$"},
        {"pattern": r"^a\u0000$"},
        {"pattern": "^(a)\\1$"},
        {"pattern": "a" * 5000},
        {"anyOf": [{"type": "nothing"}]},
        {"allOf": [5]},
        {"const": math.nan},
        {"type": "integer", "minimum": 5, "maximum": 4},
        {"type": "integer", "exclusiveMinimum": 4, "exclusiveMaximum": 5},
        {"type": "integer", "minimum": 10**50},
        {"type": "integer", "maximum": "ten"},
        {"type": "number", "minimum": math.inf},
        {"enum": [1, math.inf]},
        {"type": "number", "multipleOf": 0},
        {"type": "integer", "minimum": 1, "maximum": 4, "multipleOf": 5},
        {"type": "string", "enum": [1, None]},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"allOf": [{"enum": [1]}, {"const": 2}]},
        {"pattern": "^a$", "minLength": 2},
        {"pattern": "^([0-9]{2}:){0,3}z$", "minLength": 5, "maxLength": 5},
        {"pattern": "^(?i)a$"},
        {"pattern": "(?i:a)"},
        {"properties": {"a": False}, "required": ["a"]},
        {"properties": {}, "additionalProperties": False, "required": ["a"]},
        {"required": ["a"], "unevaluatedProperties": False},
        {"properties": {"b": {}}, "allOf": [{"required": ["a"]}], "unevaluatedProperties": False},
        {"properties": {"a": {}}, "minProperties": 2},
        {"type": "array", "items": False, "minItems": 1},
        {"$ref": "#anchor"},
        {"patternProperties": {f"^k{i}[a-z]*x$": {} for i in range(65)}},  # seconds from 250 on
        {
            "patternProperties": {f"^k{i}$": {} for i in range(40)},
            "allOf": [{"patternProperties": {f"^x{i}$": {} for i in range(40)}}],
        },
        {
            "items": {
                "prefixItems": [
                    {"patternProperties": {f"^{i}k{j}$": {} for j in range(60)}} for i in range(60)
                ]
            }
        },
        False,
    ],
)
def test_bad_schemas_are_refused(schema: Any) -> None:
    with pytest.raises(GrammarError) as caught:
        grammar_of(schema)
    assert caught.value.field == "json_schema"


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"type": "string", "not": {"const": "a"}}, "not"),
        ({"if": {"const": 1}, "then": False}, "if"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "contains": {"const": 1}}, "contains"),
        ({"properties": {"a": {}}, "dependentSchemas": {"a": {}}}, "dependentSchemas"),
        ({"type": "string", "format": "iri"}, "format 'iri' is not one of date, time"),
        ({"type": "integer", "multipleOf": 99991}, "multipleOf would take too large"),
        ({"type": "integer", "multipleOf": 2**53 + 1}, "multipleOf would take too large"),
        ({"enum": [2**53 + 1]}, "const 9007199254740993 is beyond 2^53"),
        ({"type": "integer", "enum": [1e39]}, "const 1e+39 is beyond 2^53"),
        ({"type": "object", "minProperties": 2}, "minProperties"),
        ({"properties": dict.fromkeys("abcdefghijkl", True), "minProperties": 6}, "minProperties"),
        ({"properties": dict.fromkeys("abcdefghijkl", True), "maxProperties": 6}, "maxProperties"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf has alternatives"),
        ({"oneOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, "oneOf"),
        ({"properties": {f"p{i}": {} for i in range(20)}, "maxProperties": 10}, "maxProperties"),
        ({"properties": {"a": {}}, "additionalProperties": True, "maxProperties": 3},
         "maxProperties"),
        ({"dependentRequired": {name: ["x"] for name in "abcdef"}}, "dependentRequired"),
        ({"type": "object", "propertyNames": {"pattern": "^a", "maxLength": 2}}, "propertyNames"),
        ({"type": "object", "propertyNames": {"not": {"const": "a"}}}, "not in propertyNames"),
        ({"type": "object", "unevaluatedProperties": {"type": "null"}}, "unevaluatedProperties"),
        ({"properties": {"a": {}}, "allOf": [{"unevaluatedProperties": False}]},
         "unevaluatedProperties beside what another part allows"),
        ({"anyOf": [{"properties": {"a": {"const": 1}}}, {"properties": {"b": {}}}],
          "unevaluatedProperties": False}, "unevaluatedProperties beside alternatives"),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_refused_only_if_the_request_is_strict(
    schema: Any, word: str
) -> None:
    with pytest.raises(GrammarError) as caught:
        grammar_of({"type": "array", "items": schema}, strict=True)
    assert caught.value.message.startswith(f"json_schema: {word}")
    assert "ask without strict" in caught.value.message
    assert takes(grammar_of({"type": "array", "items": schema}), "[]")


def test_patterns_of_names_that_a_name_can_have_together_are_no_strict_schema() -> None:
    schema = {"patternProperties": {"^n": {"type": "integer"}, "s$": {"type": "string"}}}
    with pytest.raises(GrammarError, match="/\\^n/ and /s\\$/ are not disjoint"):
        grammar_of(schema, strict=True)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"allOf": [{"properties": {"a": {}}, "additionalProperties": False},
                    {"properties": {"b": {}}}]}, ["{}", '{"a":1}'], ['{"b":1}']),
        ({"enum": [[1], ["x"]], "items": {"type": "string"}}, ['["x"]'], ["[1]"]),
        ({"properties": {f"p{i}" * 9: {} for i in range(300)}, "additionalProperties": True},
         ["{}", '{"p":1}'], ["[]"]),
        ({"pattern": "a[ab]{12}", "minLength": 20}, [f'"{"ab" * 10}"'], [f'"{"ab" * 9}"']),
        ({"pattern": r"^\p{Script=Greek}+$"}, ['"αβ"'], ['"a"']),
        ({"properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
          "unevaluatedProperties": False}, ['{"b":1}', '{"a":1,"b":1}'], ["{}", '{"a":1,"c":1}']),
    ],
)  # fmt: skip
def test_these_are_enforced_in_strict_schemas(schema: Any, good: list[str], bad: list[str]) -> None:
    grammar = grammar_of(schema, strict=True)
    assert [takes(grammar, text) for text in good] == [True] * len(good)
    assert [takes(grammar, text) for text in bad] == [False] * len(bad)


@pytest.mark.parametrize(
    "parts",
    [
        [{"type": "null"}, {"required": ["a"]}],  # which says nothing of null
        [{"type": "null"}, {"maxLength": 3}],
        [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}}],
        [{"const": None}, {"allOf": [{"properties": {"a": {}}}, {"minProperties": 1}]}],
        [{"items": {"type": "null"}, "type": "array"}, {"$ref": "#/$defs/short"}],
    ],
)
def test_alternatives_that_only_types_or_ends_of_ours_keep_apart_are_not_strict(
    parts: list[Any],
) -> None:
    schema = {"oneOf": parts, "$defs": {"short": {"maxLength": 3}}}
    with pytest.raises(GrammarError, match="oneOf has alternatives that may both fit"):
        grammar_of(schema, strict=True)
    grammar_of(schema)


def test_alternatives_that_exclude_one_another_are_strict() -> None:
    tagged = [
        {"properties": {"kind": {"const": kind}, "x": {"type": one}}, "required": ["kind", "x"]}
        for kind, one in (("a", "string"), ("b", "string"), (3, "null"))
    ]
    closed = [{"properties": {name: {}}, "required": [name], "additionalProperties": False}
              for name in "ab"]  # fmt: skip
    ended = [closed[0], {"properties": {"b": {}}, "additionalProperties": False}]
    for parts in (
        tagged,
        closed,
        ended,
        [{"type": "string"}, {"type": "integer"}],
        [{"const": 1}, {"enum": [2, "1"]}],
    ):
        grammar_of({"oneOf": parts}, strict=True)
    some = {"oneOf": [{"type": "string"}, {"type": "boolean"}], "type": ["string", "null"]}
    assert takes(grammar_of(some, strict=True), '"x"')
    assert takes(grammar_of({"oneOf": tagged}), '{"kind":"b","x":"y"}')
    assert not takes(grammar_of({"oneOf": tagged}), '{"kind":3,"x":"y"}')


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        *((text, "has nothing to repeat") for text in ("^{2}", "*", "a|+", "a**", "a???")),
        ("a{,2}", "has a count without its least"),
        ("a)|(b", "has an unbalanced parenthesis"),
        ("(" * 101 + ")" * 101, "nests groups too deep"),
        (r"\a", "has an escape without a meaning"),
        ("[z-a]", "has a range whose end comes first"),
        *((text, "has a class without characters") for text in ("[]", "[^]", "^[^]]$")),
    ],
)
def test_patterns_that_nobody_can_read_are_refused(pattern: str, problem: str) -> None:
    with pytest.raises(GrammarError, match=problem):
        grammar_of({"type": "string", "pattern": pattern})


def test_a_dash_with_a_backslash_is_no_range() -> None:
    schema = {"type": "string", "pattern": r"^[\t\-n]$"}
    grammar = grammar_of(schema)
    assert takes(grammar, '"-"')
    assert takes(grammar, '"n"')
    assert not takes(grammar, '"a"')
