"""Harmony, of gpt-oss: every message has a header that tells its channel and its recipient.

<|channel|>analysis<|message|>reasoning<|end|>
<|start|>assistant<|channel|>commentary to=functions.name <|constrain|>json<|message|>{}<|call|>
<|start|>assistant<|channel|>final<|message|>content
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ngramspec.text.chat.calls.format import AnswerSink, CallFormat, Mark, NotACallError
from ngramspec.text.chat.calls.json_value import json_value
from ngramspec.text.chat.calls.typed_value import arguments_part
from ngramspec.text.chat.text import Read, Stops, Text, ignored
from ngramspec.text.chat.tools import Tool, Tools
from ngramspec.text.structured.lark_rules import Part, Rules, either, optional, regex, row

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
ENDS = (END, CALL, RETURN)
PREFIX = "functions."
ANALYSIS, ASSISTANT = f"{CHANNEL}analysis{MESSAGE}", f"{START}assistant"
HEADS = (f"{CHANNEL}commentary", f"{CHANNEL}analysis", f"{START}assistant")  # before recipients
_TAIL = regex(
    r"(<\|channel\|>(commentary|analysis))? ?(<\|constrain\|>)?(json|code)? ?<\|message\|>"
)
RECIPIENT = re.compile(r"\bto=([^\s<]+)")
PEOPLE = ("assistant", "user", "self", "all")  # recipients that are no tools
HEADER = re.compile(r"(?:[\w.=:/ -]|<\Z|<\|(?!(?:message|end|call|return)\|>)[\w|]*>?)*")
MOST_HEADER = 512  # characters
MESSAGE_ENDS = Stops((*ENDS, START, CHANNEL))


@dataclass(frozen=True, kw_only=True)
class HarmonyCalls(CallFormat):
    """A call is a message to functions.NAME."""

    marks: Sequence[Mark] = (
        Mark("to=", first=True, inside=True),
        *map(Mark, (CHANNEL, START, MESSAGE, *ENDS)),
    )
    special: bool = True
    whole: bool = True
    reasons: bool = True

    def read(self, mark: Mark, text: Text, sink: AnswerSink) -> Read[None]:
        """Read a header, and the message if it is no content."""
        if mark.text in (MESSAGE, *ENDS):
            return
        header = "" if mark.inside else mark.text
        start = text.position - len(header)
        header += yield from text.match(HEADER, MOST_HEADER)
        if not (yield from text.passes(MESSAGE)):
            if text.is_cut(MESSAGE) or text.is_cut(END):
                text.drop()
                return
            raise NotACallError
        recipients = RECIPIENT.findall(header)
        recipient = recipients[-1] if recipients else ""
        name = recipient.removeprefix(PREFIX)
        channel = header.rpartition(CHANNEL)[2]
        if sink.tools and (name != recipient or sink.tools.named(name)):
            yield from self._read_call(text, sink, name)
        elif recipient and recipient not in PEOPLE:
            yield from text.until(MESSAGE_ENDS, ignored)  # a tool that was not offered
        elif channel.startswith("analysis"):
            if sink.parses_reasoning:
                yield from text.until(MESSAGE_ENDS, sink.reasoning)
                sink.reasoned(start, text.position)
            else:
                sink.content(header + MESSAGE)
                sink.content((yield from text.until(MESSAGE_ENDS, sink.content)))

    def rule(self, rules: Rules, tools: Tools) -> Part:
        """Return the grammar of one call, after reasoning or not: its mark ends the answer."""
        calls = (_call(rules, tool, f" <|constrain|>json{MESSAGE}") for tool in tools.tools)
        return row(_analysis(rules), f"{HEADS[0]} ", either(*calls))

    def triggers(self, tools: Tools) -> tuple[Collection[str], Collection[str]]:
        return [f"{head} to={PREFIX}" for head in HEADS], [f"to={PREFIX}"]

    def begun_rule(self, rules: Rules, tools: Tools) -> Part:
        """Return the grammar of one call, in any of the ways in which headers are written."""
        heads = either(*(f"{head} " for head in HEADS))
        return row(optional(heads), either(*(_call(rules, tool, _TAIL) for tool in tools.tools)))

    def answer_rule(self, rules: Rules, answer: Part) -> Part:
        """Return the grammar of a final message, after reasoning or not."""
        return row(_analysis(rules), f"{CHANNEL}final{MESSAGE}", answer)

    def _read_call(self, text: Text, sink: AnswerSink, name: str) -> Read[None]:
        yield from text.space()
        if not (yield from text.starts("{")):
            raise NotACallError
        sink.begin(name)
        if (yield from json_value(text, sink.arguments, MESSAGE_ENDS.marks)):
            sink.end()


def _analysis(rules: Rules) -> Part:
    return optional(row(ANALYSIS, rules.until(END), ASSISTANT))


def _call(rules: Rules, tool: Tool, tail: Part) -> Part:
    """Return the grammar of a call from its recipient on; `tail`: the rest of the header."""
    arguments = arguments_part(rules, tool)
    return rules.add("call", row(f"to={PREFIX}{tool.name}", tail, arguments))
