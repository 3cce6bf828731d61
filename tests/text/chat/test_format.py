"""ChatFormat: which formats a template tells, and whether control tokens must be shown for them."""

from __future__ import annotations

from ngramspec.text.chat.format import chat_format
from ngramspec.text.chat.tools import Tool, Tools

HARMONY = "<|start|>assistant<|channel|>final<|message|>"


def test_control_tokens_are_shown_where_marks_are_among_them() -> None:
    tools = Tools((Tool("f", {}, {}),))
    shown = [
        (HARMONY, True, True),
        ("<tool_call> <think>", False, False),
        ("[TOOL_CALLS]", False, True),
        ('<|python_tag|> "parameters"', False, True),
        ("<tool_call> <|python_tag|>", False, True),  # a format that others write too
        ("[THINK] [TOOL_CALLS] [ARGS]", True, True),
        ("'<|tool_call>call:' <|channel>thought", True, True),
        ("", False, False),
    ]
    for template, always, with_tools in shown:
        assert chat_format(template, "").shows_special == always, template
        assert chat_format(template, "", tools).shows_special == with_tools, template
