"""The formats in which models write their reasoning.

To add a format, add it to REASONING_FORMATS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ngramspec.text.structured.lark_rules import Part, Rules, regex, row


@dataclass(frozen=True, kw_only=True)
class ReasoningFormat:
    """Reasoning between two marks at the start of an answer. It has no state.

    open, close: The marks.
    opened_by: A text at the end of a prompt that opens the reasoning too; "" for none.
    signs: Texts that are all in the chat templates of these models; by default the open mark.
    special: The marks can be control tokens, which the engine hides by default.
    inner: The marks are never shown, also where reasoning is not told from content.
    again: There can be more reasoning after content.
    content_open: A mark before the content, with which the reasoning ends too.
    around_content: Further marks, which are left out of the content.
    """

    open: str
    close: str
    opened_by: str = ""
    signs: Sequence[str] = ()
    special: bool = False
    inner: bool = False
    again: bool = False
    content_open: str = ""
    around_content: Sequence[str] = ()

    def fits(self, template: str) -> bool:
        return all(sign in template for sign in self.signs or (self.open,))

    @property
    def hidden(self) -> list[str]:
        """Return all marks that are left out of the content."""
        return [*filter(None, (self.content_open,)), *self.around_content]

    def begun(self, prompt: str) -> str:
        """Return the end of a prompt from the open mark on, "" if it ends with something else."""
        bare = prompt.rstrip()
        for mark in (self.open.rstrip(), self.opened_by):
            if mark and bare.endswith(mark):
                return prompt[len(bare) - len(mark) :]
        return ""

    def rule(self, rules: Rules) -> Part:
        """Return the grammar of reasoning after the open mark, up to the answer."""
        return row(rules.until(self.close), regex(r"[ \n]{0,4}"))

    def whole_rule(self, rules: Rules) -> Part:
        return row(self.open, self.rule(rules))


THINK = ReasoningFormat(open="<think>", close="</think>")
# A model's format is the first one that fits its chat template; if none fits, THINK.
REASONING_FORMATS: list[ReasoningFormat] = [
    ReasoningFormat(open="[THINK]", close="[/THINK]", special=True),
    ReasoningFormat(open="<seed:think>", close="</seed:think>", special=True),
    ReasoningFormat(
        open="<|START_THINKING|>",
        close="<|END_THINKING|>",
        signs=("<|START_THINKING|>", "<|START_TEXT|>"),
        special=True,
        content_open="<|START_TEXT|>",
        around_content=("<|END_TEXT|>",),
    ),
    ReasoningFormat(
        open="<|START_THINKING|>",
        close="<|END_THINKING|>",
        special=True,
        content_open="<|START_RESPONSE|>",
        around_content=("<|END_RESPONSE|>",),
    ),
    ReasoningFormat(
        open="<|open|>think<|sep|>",
        close="<|close|>think<|sep|>",
        signs=("<|open|>", "<|close|>", "<|end_of_msg|>"),
        special=True,
        inner=True,
        content_open="<|open|>response<|sep|>",
        around_content=("<|close|>response<|sep|>", "<|close|>message<|sep|>", "<|end_of_msg|>"),
    ),
    ReasoningFormat(
        open="<|channel>thought",
        close="<channel|>",
        special=True,
        again=True,
        around_content=("<|channel>", "<channel|>"),
    ),
    ReasoningFormat(open="<|inner_prefix|>", close="<|inner_suffix|>", special=True),
    ReasoningFormat(
        open="<|think|>",
        close="<|end|>",
        signs=("<|think|>", "<|begin|>assistant"),
        special=True,
        around_content=("<|begin|>assistant", "<|content|>", "<|end|>", "<|tool_calls|>"),
    ),
    ReasoningFormat(open="<mm:think>", close="</mm:think>"),
    ReasoningFormat(
        open="<think:opensource>", close="</think:opensource>", signs=("<think{}>", ":opensource")
    ),
    ReasoningFormat(  # Ling 3
        open="<think>",
        close="</think>",
        signs=("<think>", "<role>ASSISTANT</role>"),
        around_content=("<|role_end|>",),
    ),
    ReasoningFormat(  # Granite 3.3
        open="<think>",
        close="</think>",
        signs=("<think>", "<response></response>"),
        around_content=("<response>", "</response>"),
    ),
    ReasoningFormat(
        open="<thinking>",
        close="[BEGIN FINAL RESPONSE]",
        opened_by="Here are my reasoning steps:",
        signs=("[BEGIN FINAL RESPONSE]",),
    ),
    ReasoningFormat(open="<thinking>", close="</thinking>"),
    THINK,
]


def reasoning_format_of(template: str) -> ReasoningFormat:
    """Return the format of the model with this chat template, even if the template lacks it."""
    return next((one for one in REASONING_FORMATS if one.fits(template)), THINK)
