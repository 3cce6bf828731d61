"""Families of templates: what each wants of messages, and how it begins an answer.

llama-server knows these by marks in the template's text. All other templates take messages as they
are, and what begins an answer is found out by rendering (`reasoning`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ngramspec.text.templates.messages import Message

GENERATION = "\0"  # in `Begun.start`: what the template itself begins an answer with


@dataclass(frozen=True)
class Begun:
    """How an answer begins that is continued: the texts around its reasoning and its content."""

    start: str
    think: str = ""  # opens the reasoning
    answer: str = ""  # ends the reasoning and opens the content
    empty: str | None = None  # instead of both where there is no reasoning
    thinks: bool = True  # reasoning is written
    always: bool = False  # content is written even where only the reasoning is continued

    def text(self, reasoning: str, content: str | None) -> str:
        """Return the text of an answer; content None: only the reasoning has begun."""
        if not self.thinks:
            return f"{self.start}{content or ''}"
        if self.empty is not None and not reasoning:
            return f"{self.start}{self.empty}{content or ''}"
        text = f"{self.start}{self.think}{reasoning}"
        return text if content is None else f"{text}{self.answer}{content}"


@dataclass(frozen=True)
class Family:
    """A family of templates."""

    name: str
    begun: Begun
    marks: tuple[str, ...]  # all of these are in the template's text
    others: tuple[str, ...] = ()  # none of these is
    shape: Callable[[list[Message]], list[Message]] | None = None  # of messages
    turn: tuple[str, str] | None = None  # after a prompt that ends with one, the other must follow
    ended: tuple[str, str] | None = None  # the last one becomes the other where no answer starts
    thinks: bool = True  # the template can switch reasoning on

    def has(self, template: str) -> bool:
        return all(mark in template for mark in self.marks) and not any(
            mark in template for mark in self.others
        )

    def finished(self, prompt: str, starts: bool) -> str:
        """Return a prompt as the family wants it; starts: it ends with the start of an answer."""
        if starts:
            return prompt + self.turn[1] if self.turn and prompt.endswith(self.turn[0]) else prompt
        if self.ended is None:
            return prompt
        before, end, after = prompt.rpartition(self.ended[0])
        return f"{before}{self.ended[1] if end else ''}{after}"


def family_of(template: str) -> Family | None:
    return next((family for family in FAMILIES if family.has(template)), None)


def _typed_thoughts(messages: list[Message]) -> list[Message]:
    """Return messages whose reasoning is a part of their content (Mistral 3)."""
    for message in messages:
        if message.get("role") not in ("system", "assistant"):
            continue
        parts: list[Any] = []
        if isinstance(thought := message.pop("reasoning_content", None), str):
            parts.append({"type": "thinking", "thinking": thought})
        content = message.get("content")
        if isinstance(content, str):
            parts.append({"type": "text", "text": content})
        elif isinstance(content, list):
            parts += content
        message["content"] = parts
    return messages


def _thinking(messages: list[Message]) -> list[Message]:
    """Return messages that hold their reasoning under a second name."""
    for message in messages:
        if isinstance(thought := message.get("reasoning_content"), str):
            message["thinking"] = thought
    return messages


def _channels(messages: list[Message]) -> list[Message]:
    """Return messages with reasoning as `thinking`, and no content beside it and calls."""
    for message in _thinking(messages):
        if "thinking" in message and message.get("tool_calls"):
            message.pop("content", None)
    return messages


def _results_in_order(messages: list[Message]) -> list[Message]:
    """Return messages with tool results in the order of their calls."""
    order: dict[str, int] = {}
    start = 0
    while start < len(messages):
        message = messages[start]
        end = start
        if message.get("role") == "assistant" and message.get("tool_calls"):
            order = {call.get("id") or "": n for n, call in enumerate(message["tool_calls"])}
            order.pop("", None)
        while end < len(messages) and messages[end].get("role") in ("user", "tool"):
            end += 1
        places = [n for n in range(start, end) if messages[n].get("role") == "tool"]
        if order:
            results = [messages[place] for place in places]
            results.sort(key=lambda result: order.get(result.get("tool_call_id", ""), 0))
            for place, result in zip(places, results, strict=True):
                messages[place] = result
        start = max(end, start + 1)
    return messages


def _turns_with_results(messages: list[Message]) -> list[Message]:
    """Return messages in which calls, their results and the answer after them are one (Gemma 4)."""
    turns: list[Message] = []
    place = 0
    while place < len(messages):
        message = messages[place]
        place += 1
        if message.get("role") != "assistant" or not message.get("tool_calls"):
            turns.append(message)
            continue
        turn: Message = {"role": "assistant", "tool_calls": message["tool_calls"]}
        names = [call.get("function", {}).get("name", "") for call in message["tool_calls"]]
        results: list[Any] = []
        while place < len(messages) and messages[place].get("role") == "tool":
            result = messages[place]
            name = names[len(results)] if len(results) < len(names) else ""
            response = _parsed(result.get("content"))
            results.append({"name": name or result.get("tool_call_id", ""), "response": response})
            place += 1
        if results:
            turn["tool_responses"] = results
        if place < len(messages) and messages[place].get("role") == "assistant":
            after = messages[place]
            if not after.get("tool_calls") and after.get("content"):
                turn["content"] = after["content"]
                place += 1
        if isinstance(thought := message.get("reasoning_content"), str):
            turn["reasoning_content"] = thought
        turns.append(turn)
    return turns


def trimmed(messages: list[Message]) -> list[Message]:
    """Return messages whose texts have no blanks at their ends; it changes those given."""
    for message in messages:
        for name in ("content", "reasoning_content"):
            if isinstance(text := message.get(name), str):
                message[name] = text.strip(BLANKS)
        if isinstance(parts := message.get("content"), list):
            for part in parts:
                if isinstance(part.get("text"), str):
                    part["text"] = part["text"].strip(BLANKS)
    return messages


def _parsed(content: Any) -> Any:
    """Return a tool's result as JSON data if it is any."""
    try:
        return json.loads(content) if isinstance(content, str) else content
    except (ValueError, RecursionError):
        return content


BLANKS = " \t\n\v\f\r"
CHATML = "<|im_start|>assistant\n"
KIMI_K3 = '<|open|>message role="assistant"<|sep|>'
GEMMA_TURN = ("<turn|>\n", "<|turn>model\n")
QWEN = ("<tool_call>", "<function=", "<parameter=")
NOT_QWEN = ("'<tool_call><function=' ~ tool_call.name ~ '>'",)
_gemma = Begun("", "<|channel>thought\n", "<channel|>")
_lfm2 = Begun(CHATML, "<think>", "</think>")

# The first that fits is a template's family.
FAMILIES = (
    Family("mistral-3", Begun("", "[THINK]", "[/THINK]"),
           ("[SYSTEM_PROMPT]", "[TOOL_CALLS]", "[ARGS]"), ("[CALL_ID]",), shape=_typed_thoughts),
    Family("gpt-oss",
           Begun("<|start|>assistant", "<|channel|>analysis<|message|>",
                 "<|end|><|start|>assistant<|channel|>final<|message|>"),
           ("<|channel|>",), shape=_channels, ended=("<|return|>", "<|end|>")),
    Family("muse",
           Begun("<|start|>assistant", " to=self<|message|>",
                 "<|eom|><|start|>assistant to=user<|message|>"),
           ("<atem:function_calls>", "<|eom|>")),
    Family("functionary-3.2",
           Begun("<|start_header_id|>assistant<|end_header_id|>\n\n>>>all\n", thinks=False,
                 always=True),
           (">>>all", ">>>${recipient}"), thinks=False),
    Family("kimi-k2", Begun("<|im_assistant|>assistant<|im_middle|>", "<think>", "</think>"),
           ("<|tool_calls_section_begin|>", "<|tool_call_begin|>")),
    Family("kimi-k3",
           Begun(KIMI_K3, "<|open|>think<|sep|>",
                 "<|close|>think<|sep|><|open|>response<|sep|>"),
           ("<|open|>", "<|close|>", "<|end_of_msg|>")),
    Family("ling-3", Begun("<role>ASSISTANT</role>\n", "<think>", "</think>"),
           ("<role>ASSISTANT</role>", "<arg_key>")),
    Family("cohere-2-moe",
           Begun("<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", "<|START_THINKING|>",
                 "<|END_THINKING|><|START_TEXT|>"),
           ("<|START_TEXT|>", "<|START_ACTION|>")),
    Family("lfm-2", _lfm2, ("<|tool_list_start|>", "<|tool_list_end|>"), shape=_thinking),
    Family("lfm-2.5", _lfm2, ("List of tools: [",), ("<|tool_list_start|>",), shape=_thinking),
    Family("gigachat-3", Begun("assistant<|role_sep|>\n", thinks=False, always=True),
           ("<|role_sep|>", "<|message_sep|>"), ("<|function_call|>",), thinks=False),
    Family("minimax-m3", Begun(GENERATION, "<mm:think>", "</mm:think>"),
           ("]<]minimax[>[", "<tool_call>", "<invoke name=")),
    Family("deepseek-3.2", Begun("<｜Assistant｜>", "<think>", "</think>"),
           ("dsml_token", "DSML", "function_calls")),
    Family("deepseek-4", Begun("<｜Assistant｜>", "<think>", "</think>", "</think>"),
           ("dsml_token", "DSML", "tool_calls"), shape=_results_in_order),
    Family("gemma-4", _gemma,
           ("'<|tool_call>call:'", "{#- OpenAI Chat Completions:"), turn=GEMMA_TURN),
    Family("gemma-4-first", _gemma, ("'<|tool_call>call:'",), shape=_turns_with_results,
           turn=GEMMA_TURN),
    Family("minicpm-5", Begun(CHATML, "<think>\n", "\n</think>\n\n"),
           ("Tool usage guidelines:", '<function name="', '<param name="')),
    Family("qwen-3.5", Begun(CHATML, "<think>\n", "\n</think>\n\n"), (*QWEN, "<think>"),
           NOT_QWEN),
    Family("qwen-3-coder", Begun(CHATML, thinks=False), QWEN, NOT_QWEN, thinks=False),
)  # fmt: skip


def opening(
    family: Family, prompt: str, generation: str, reasoning: str, content: str | None
) -> str:
    """Return what follows a prompt so that an answer goes on.

    Args:
        prompt: Without the start of an answer.
        generation: What the template begins an answer with.
        reasoning: As far as it goes.
        content: As far as it goes; None: only the reasoning has begun.
    """
    text = family.begun.text(reasoning, content).replace(GENERATION, generation, 1)
    if family.turn and prompt.endswith(family.turn[0]):
        return family.turn[1] + text
    return text


def shaped(family: Family | None, messages: Sequence[Message]) -> list[Message]:
    """Return messages as the family wants them; it may change those given."""
    copies = list(messages)
    return family.shape(copies) if family and family.shape else copies
