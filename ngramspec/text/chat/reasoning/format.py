"""ReasoningFormat: one way to write reasoning before an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ngramspec.text.structured.gbnf import Rules, literal
from ngramspec.text.structured.until import until


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
        """Return whether the model with this chat template reasons in this format."""
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

    def rule(self, rules: Rules) -> str:
        """Return the grammar of reasoning after the open mark, up to the answer."""
        return f"{until(rules, self.close)} [ \\n]{{0,4}}"

    def whole_rule(self, rules: Rules) -> str:
        """Return the grammar of reasoning with its open mark."""
        return f"{literal(self.open)} {self.rule(rules)}"
