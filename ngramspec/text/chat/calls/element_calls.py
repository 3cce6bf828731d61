"""MiniMax M3's calls: every parameter is an element, and what it holds are elements again.

All tags follow a mark of their own:

]<]minimax[>[<tool_call>
]<]minimax[>[<invoke name="f">]<]minimax[>[<city>Oslo]<]minimax[>[</city>]<]minimax[>[</invoke>
]<]minimax[>[</tool_call>
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ngramspec.text.chat.calls.format import (
    AnswerSink,
    CallFormat,
    Mark,
    NotACallError,
    closing,
    several,
)
from ngramspec.text.chat.calls.json_value import escaped
from ngramspec.text.chat.calls.typed_value import (
    STRING,
    Schema,
    member_schema,
    resolved,
    spent_types_of,
    text_part,
    typed,
    types_of,
    value_part,
)
from ngramspec.text.chat.text import Read, Sink, Stops, Text
from ngramspec.text.chat.tools import Tool, Tools
from ngramspec.text.structured.lark_rules import Name, Part, Rules, either, many, optional, row

TAG = "]<]minimax[>["  # before every tag
START, END = f"{TAG}<tool_call>", f"{TAG}</tool_call>"
INVOKE, INVOKE_END = f'{TAG}<invoke name="', f"{TAG}</invoke>"
ITEM = "item"
MOST_NAME = 256  # characters
MOST_DEPTH = 32  # elements inside one another; what lies deeper is text
NAME = re.compile(r"[^\n<>\"]*")
KEY = re.compile(r"[^\n<>/]*")


@dataclass(frozen=True, kw_only=True)
class ElementCalls(CallFormat):
    """Elements named as parameters, members of objects, or `item` in lists."""

    marks: Sequence[Mark] = (Mark(START),)
    special: bool = True

    def read(self, mark: Mark, text: Text, sink: AnswerSink) -> Read[None]:
        called = False
        while True:
            yield from text.space()
            if not (yield from text.passes(INVOKE)):
                break
            name = (yield from text.match(NAME, MOST_NAME)).strip()
            if not name or not (yield from text.passes('">')):
                break
            called = True
            tool = sink.tools.named(name)
            sink.begin(name)
            root = tool.parameters if tool else {}
            if not (yield from _Elements(text, sink.arguments, root).members(root, INVOKE_END, 0)):
                return
            sink.end()
        if not called:
            raise NotACallError
        text.give_back()
        yield from closing(text, END)

    def rule(self, rules: Rules, tools: Tools) -> Part:
        call = rules.add("call", either(*(_Writer(rules, one).call() for one in tools.tools)))
        return row(f"{START}\n", several(call, call, tools), END)


@dataclass
class _Elements:
    """Reads the values of one call.

    root: The schema of its arguments.
    """

    text: Text
    sink: Sink
    root: Schema

    def members(self, schema: Any, close: str, depth: int) -> Read[bool]:
        """Read elements up to a tag, as an object; return False if the text ends before it."""
        self.sink("{")
        before = ""
        while True:
            yield from self.text.space()
            if (yield from self.text.passes(close)):
                break
            if not (yield from self.text.passes(f"{TAG}<")):
                if self.text.is_cut(close) or self.text.is_cut(f"{TAG}<"):
                    return False
                break
            key = yield from self.text.match(KEY, MOST_NAME)
            if not key or not (yield from self.text.passes(">")):
                return False
            self.sink(f"{before}{json.dumps(key, ensure_ascii=False)}: ")
            before = ", "
            part = member_schema(schema, self.root, key)
            if not (yield from self.value(part, f"{TAG}</{key}>", depth + 1)):
                return False
        self.sink("}")
        return True

    def items(self, schema: Any, close: str, depth: int) -> Read[bool]:
        """Read elements up to a tag, as a list; return False if the text ends before it."""
        self.sink("[")
        before = ""
        part = member_schema(schema, self.root, None)
        while not (yield from self.text.passes(close)):
            if not (yield from self.text.passes(f"{TAG}<{ITEM}>")):
                return False
            self.sink(before)
            before = ", "
            if not (yield from self.value(part, f"{TAG}</{ITEM}>", depth + 1)):
                return False
            yield from self.text.space()
        self.sink("]")
        return True

    def value(self, schema: Any, close: str, depth: int) -> Read[bool]:
        """Read a value and the tag that ends it; return False if the text ends before that."""
        types = types_of(schema, self.root)
        if types == STRING:
            self.sink('"')
            if not (yield from self.text.until(Stops((close,)), lambda p: self.sink(escaped(p)))):
                return False
            self.sink('"')
            return True
        if "string" not in types and depth < MOST_DEPTH:
            if types == {"array"} or (yield from self.text.starts(f"{TAG}<{ITEM}>")):
                yield from self.text.space()
                return (yield from self.items(schema, close, depth))
            ahead = yield from self.text.ahead(len(TAG) + 2)
            if types == {"object"} or (ahead.startswith(f"{TAG}<") and ahead[-1] != "/"):
                return (yield from self.members(schema, close, depth))
        pieces: list[str] = []
        if not (yield from self.text.until(Stops((close,)), pieces.append)):
            return False
        self.sink(typed("".join(pieces), types))
        return True


@dataclass
class _Writer:
    """Writes the grammar of one tool's calls.

    elements: Rules by the id of their schema and its tag; a schema may hold itself.
    depth: Elements around the one that is written.
    """

    rules: Rules
    tool: Tool
    elements: dict[tuple[int, str], tuple[Any, Name]] = field(default_factory=dict)
    depth: int = 0

    def call(self) -> Part:
        head, tail = f'{INVOKE}{self.tool.name}">', f"{INVOKE_END}\n"
        return self.rules.add("call", row(head, self._members(self.tool.parameters), tail))

    def _members(self, schema: Any) -> Part:
        whole = resolved(schema, self.tool.parameters)
        properties, required = whole.get("properties"), whole.get("required")
        if not isinstance(properties, dict):
            return ""
        needed = required if isinstance(required, list) else []
        members = (
            self._element(key, part) if key in needed else optional(self._element(key, part))
            for key, part in properties.items()
        )
        return row(*members)

    def _element(self, key: str, schema: Any) -> Name:
        element = self.elements.get((id(schema), key))
        if element is not None:
            return element[1]
        name = self.rules.reserve("element")
        self.elements[id(schema), key] = schema, name
        close = f"{TAG}</{key}>"
        self.rules.spend(1)
        self.depth += 1
        value = self._value(schema, close)
        self.depth -= 1
        return self.rules.set(name, row(f"{TAG}<{key}>", value))

    def _value(self, schema: Any, close: str) -> Part:
        """Return the grammar of a value and the tag that ends it."""
        types = spent_types_of(self.rules, schema, self.tool.parameters)
        if not types or "string" in types:
            return text_part(self.rules, schema if types == STRING else True, self.tool, close)
        whole, nests = resolved(schema, self.tool.parameters), self.depth < MOST_DEPTH
        if nests and types == {"object"} and whole.get("properties"):
            return row(self._members(schema), close)
        if nests and types == {"array"} and isinstance(whole.get("items"), dict):
            item = self._element(ITEM, whole["items"])
            return row(many(item), close)
        return row(value_part(self.rules, schema, self.tool), close)
