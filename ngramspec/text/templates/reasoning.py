"""The tags around a template's reasoning, found out by comparing what it writes.

llama-server finds them so for every template that belongs to no family of its own. They are needed
to continue an answer, and to know whether the template can switch reasoning on.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from ngramspec.text.templates.capabilities import Capabilities

THOUGHT = "weighed both sides of it"
USER = {"role": "user", "content": "what was asked"}
SAID = {"role": "assistant", "content": "what was answered"}
ARGUMENTS = {"probe_key": "probe value", "other_key": "other value"}
CALL = {
    "id": "probe0001",
    "type": "function",
    "function": {"name": "probe_function", "arguments": ARGUMENTS},
}
TOOL = {
    "type": "function",
    "function": {
        "name": "probe_function",
        "description": "A probe",
        "parameters": {
            "type": "object",
            "properties": {name: {"type": "string"} for name in ARGUMENTS},
            "required": [],
        },
    },
}
ANCHOR = 64  # characters of a prompt's end that are looked for in another prompt
_TAG = r"(?:<[^>]*>|\[[^\]]*\])"
_SEGMENTS = re.compile(rf"{_TAG}|[<\[][^>\]]*$|[^<\[]+|.", re.DOTALL)
_AROUND = re.compile(rf"({_TAG}\s*){re.escape(THOUGHT)}(\s*{_TAG}\s*)")
_AFTER = re.compile(rf"{re.escape(THOUGHT)}\s*({_TAG}\s*)")

# Renders messages and tools with or without thinking, None if the template refuses.
Render = Callable[..., "str | None"]


@dataclass(frozen=True)
class ThinkTags:
    """What opens and closes reasoning; both empty: the template writes none."""

    open: str = ""
    close: str = ""

    def __bool__(self) -> bool:
        return bool(self.open or self.close)


def think_tags(template: str, can: Capabilities, render: Render) -> ThinkTags:
    """Return the tags of a template.

    Args:
        template: Its text.
        can: What it takes.
        render: Called with messages, tools, add_generation_prompt and enable_thinking.

    Cost: up to six renderings of a few messages.
    """
    if tags := _of_marks(template):
        return tags
    tags = _of_answers(render) or ThinkTags()
    tags = _of_prompts(render, tags)
    if can.supports_tool_calls:
        tags = _of_calls(render, tags)
    if not tags and "content.split('</think>')" in template and "reasoning_content" not in template:
        return ThinkTags("<think>", "</think>")
    if "laguna_glm_thinking" in template:
        return ThinkTags(tags.open.strip(), tags.close.strip())
    return tags


def _of_marks(template: str) -> ThinkTags | None:
    """Return the tags of templates that never write reasoning themselves."""
    if "Write your thoughts between <think></think>" in template:  # Granite 3.3
        return ThinkTags("<think>", "</think>")
    if all(mark in template for mark in ("<SPECIAL_10>", "<SPECIAL_11>", "<SPECIAL_12>")):
        return ThinkTags("<think>\n", "</think>")  # Nemotron Nano 2
    return None


def _around(text: str) -> ThinkTags | None:
    """Return the tags around the example's reasoning, None if it is not between any."""
    if match := _AROUND.search(text):
        return ThinkTags(*match.groups())
    match = _AFTER.search(text)
    return ThinkTags("", match[1]) if match else None


def _of_answers(render: Render) -> ThinkTags | None:
    plain = render([USER, SAID], [], False, True)
    thinking = render([USER, {**SAID, "reasoning_content": THOUGHT}], [], False, True)
    return None if plain is None or thinking is None else _around(thinking)


def _of_prompts(render: Render, tags: ThinkTags) -> ThinkTags:
    """Complete the tags by those that a prompt ends with, with or without thinking."""
    off, on = render([USER], [], True, False), render([USER], [], True, True)
    if off is None or on is None:
        return tags
    only_off, only_on = _difference(off, on)
    if only_on and not only_off.strip():
        if only_on.strip() and on.endswith(only_on.strip()) and not tags.open:
            return replace(tags, open=only_on)
    elif only_off and not only_on.strip():
        if only_off.strip() and off.endswith(only_off.strip()) and not tags.close:
            segments = [part for part in _SEGMENTS.findall(off) if part.strip()]
            before = segments[-2] if len(segments) > 1 and segments[-1] == only_off.strip() else ""
            return ThinkTags(before if _is_tag(before) else tags.open, only_off)
    elif only_off and only_on:
        for base, extended in ((on, off), (off, on)):
            anchor = base[-ANCHOR:]
            place = extended.rfind(anchor)
            extra = extended[place + len(anchor) :].strip() if place >= 0 else ""
            segments = [part for part in _SEGMENTS.findall(extra) if part.strip()]
            if len(segments) == 2 and all(map(_is_tag, segments)):
                return ThinkTags(tags.open or segments[0], tags.close or segments[1])
    return tags


def _of_calls(render: Render, tags: ThinkTags) -> ThinkTags:
    """Return the tags of templates that show reasoning only beside calls."""
    thought = {**SAID, "reasoning_content": THOUGHT}
    called = {**thought, "content": None, "tool_calls": [CALL]}
    plain, calling = (render([USER, answer], [TOOL], False, True) for answer in (thought, called))
    if plain is None or calling is None or THOUGHT in plain or THOUGHT not in calling:
        return tags
    return _around(calling) or ThinkTags()


def _is_tag(text: str) -> bool:
    return re.fullmatch(_TAG, text) is not None


def _difference(left: str, right: str) -> tuple[str, str]:
    """Return what is only in one of two texts between what they begin and end with alike.

    Tags are compared whole.
    """
    if right.startswith(left):
        return "", right[len(left) :]
    if left.startswith(right):
        return left[len(right) :], ""
    ours, theirs = _SEGMENTS.findall(left), _SEGMENTS.findall(right)
    most, start, end = min(len(ours), len(theirs)), 0, 0
    while start < most and ours[start] == theirs[start]:
        start += 1
    while end < most - start and ours[-1 - end] == theirs[-1 - end]:
        end += 1
    return "".join(ours[start : len(ours) - end]), "".join(theirs[start : len(theirs) - end])
