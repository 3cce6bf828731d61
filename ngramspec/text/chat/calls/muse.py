"""Muse: messages whose headers tell the recipient: itself, the user, or a tool.

 to=self<|message|>reasoning<|eom|>
<|start|>assistant to=f<|message|><atem:function_calls>
<atem:invoke name="f">
<atem:parameter name="x">1</atem:parameter>
</atem:invoke>
</atem:function_calls><|eom|>
<|start|>assistant to=user<|message|>content<|eot|>
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ngramspec.text.chat.calls.format import AnswerSink, Mark, NotACallError, several, tags
from ngramspec.text.chat.calls.tagged_calls import TaggedCalls
from ngramspec.text.chat.text import Read, Stops, Text
from ngramspec.text.chat.tools import Tools
from ngramspec.text.structured.lark_rules import Part, Rules, either, many, row

START, MESSAGE, ENDS = "<|start|>", "<|message|>", ("<|eom|>", "<|eot|>")
ASSISTANT, TO, SELF, USER = f"{START}assistant", "to=", "self", "user"
HEADER = re.compile(r"[\w.=:/ -]*")
MOST_HEADER = 512  # characters
MESSAGE_ENDS = Stops((*ENDS, START))


@dataclass(frozen=True, kw_only=True)
class MuseCalls(TaggedCalls):
    """A call is a message to the tool; tags within other messages are text."""

    marks: Sequence[Mark] = (
        Mark(TO, first=True, inside=True),
        Mark(MESSAGE, first=True, inside=True),
        *map(Mark, (START, *ENDS)),
    )
    start: str = "<atem:function_calls>\n"
    open: str = '<atem:invoke name="'
    opened: str = '">\n'
    key: str = '<atem:parameter name="'
    value: str = '">'
    value_end: str = "</atem:parameter>\n"
    close: str = "</atem:invoke>\n"
    end: str = "</atem:function_calls>"
    special: bool = True
    whole: bool = True
    reasons: bool = True

    def read(self, mark: Mark, text: Text, sink: AnswerSink) -> Read[None]:
        """Read a header, and the message if it is no content."""
        if mark.text in ENDS:
            return
        start = text.position - len("" if mark.inside else mark.text)
        header = yield from text.match(HEADER, MOST_HEADER)
        if not (yield from text.passes(MESSAGE)):
            if text.is_cut(MESSAGE):
                text.drop()
                return
            raise NotACallError
        recipient = header.partition(TO)[2].strip()
        if recipient == SELF:
            if sink.parses_reasoning:
                yield from text.until(MESSAGE_ENDS, sink.reasoning)
                sink.reasoned(start, text.position)
            else:
                sink.content((yield from text.until(MESSAGE_ENDS, sink.content)) and "\n")
        elif recipient not in ("", USER) and (yield from tags(text, self.start + self.open)):
            yield from TaggedCalls.read(self, Mark(self.open), text, sink)

    def triggers(self, tools: Tools) -> tuple[Collection[str], Collection[str]]:
        heads = [f"{TO}{tool.name}{MESSAGE}" for tool in tools.tools]
        return [f"{ASSISTANT} {head}" for head in heads], heads

    def begun_rule(self, rules: Rules, tools: Tools) -> Part:
        """Return the grammar of calls, the first one with all of its header or not."""
        return either(*(self._messages(rules, tools, head) for head in ("", f"{ASSISTANT} ")))

    def rule(self, rules: Rules, tools: Tools) -> Part:
        """Return the grammar of calls behind reasoning or not."""
        return row(_thoughts(rules), self._messages(rules, tools, " "))

    def answer_rule(self, rules: Rules, answer: Part) -> Part:
        """Return the grammar of a message to the user, behind reasoning or not."""
        return row(_thoughts(rules), f" {TO}{USER}{MESSAGE}", answer)

    def _messages(self, rules: Rules, tools: Tools, head: str) -> Part:
        """Return the grammar of messages to tools; `head`: of the first, before its recipient."""
        calls = [
            (tool, TaggedCalls.rule(self, rules, Tools((tool,), parallel=False)))
            for tool in tools.tools
        ]

        def messages(head: str) -> Part:
            return either(*(row(f"{head}{TO}{one.name}{MESSAGE}", call) for one, call in calls))

        more = rules.add("message", messages(f"{ENDS[0]}{ASSISTANT} "))
        return several(messages(head), more, tools)


def _thoughts(rules: Rules) -> Part:
    return many(row(f" {TO}{SELF}{MESSAGE}", rules.until(ENDS[0]), ASSISTANT))
