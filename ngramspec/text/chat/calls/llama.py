"""Llama 3: {"name": ..., "parameters": {...}}; after a mark also calls and code of Python."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

from ngramspec.text.chat.calls.format import AnswerSink, Mark, NotACallError
from ngramspec.text.chat.calls.json_calls import JsonCalls, json_text
from ngramspec.text.chat.calls.json_value import escaped
from ngramspec.text.chat.calls.python_calls import MOST_NAME, NAME, read_arguments
from ngramspec.text.chat.calls.typed_value import properties_of
from ngramspec.text.chat.text import Read, Stops, Text
from ngramspec.text.chat.tools import Tools

PYTHON_TAG = "<|python_tag|>"
BUILT_IN = ("python", "code_interpreter", "ipython")  # names of tools that take code
NOTHING = Stops(())


@dataclass(frozen=True, kw_only=True)
class LlamaCalls(JsonCalls):
    """Objects that must name a known tool; name.call(parameter="value"); code of built-in tools."""

    def read(self, mark: Mark, text: Text, sink: AnswerSink) -> Read[None]:
        """Read objects, or what the mark of built-in tools begins."""
        if mark.text == PYTHON_TAG:
            yield from text.space()
            if not (yield from text.starts("{")) and not (yield from text.starts("[")):
                yield from self._read_python(text, sink)
                return
        yield from JsonCalls.read(self, mark, text, sink)

    def triggers(self, tools: Tools) -> tuple[Collection[str], Collection[str]]:
        """Return the beginnings of objects that name a tool: other objects are content."""
        return (), [f'{{"{self.name_key}": {json_text(tool.name)}, ' for tool in tools.tools]

    def _read_python(self, text: Text, sink: AnswerSink) -> Read[None]:
        """Read a call, or the code of a built-in tool, which is all of the rest."""
        start = yield from text.match(NAME, MOST_NAME)
        tool = sink.tools.named(start.removesuffix(".call"))
        if tool is not None and (yield from text.passes("(")):
            sink.begin(tool.name)
            yield from read_arguments(text, sink)
            return
        tool = next(filter(None, map(sink.tools.named, BUILT_IN)), None)
        if tool is None:
            raise NotACallError
        sink.begin(tool.name)
        sink.arguments(f'{{{json.dumps(next(iter(properties_of(tool)), "code"))}: "')
        sink.arguments(escaped(start))
        yield from text.until(NOTHING, lambda piece: sink.arguments(escaped(piece)))
        sink.arguments('"}')
        sink.end()
