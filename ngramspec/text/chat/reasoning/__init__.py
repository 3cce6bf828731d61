"""The formats in which models write their reasoning.

To add a format, add it to REASONING_FORMATS.
"""

from ngramspec.text.chat.reasoning.format import ReasoningFormat

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
        around_content=(
            "<|close|>response<|sep|>",
            "<|close|>message<|sep|>",
            "<|end_of_msg|>",
        ),
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
        open="<think:opensource>",
        close="</think:opensource>",
        signs=("<think{}>", ":opensource"),
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
