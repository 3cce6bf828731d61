"""Generation.message: the answer of a chat in its parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from helpers.scripted_model import ANSWER, ScriptedTarget
from helpers.together import run_together
from ngramspec.engine import Engine, Generation, Request
from ngramspec.text.chat.delta import ChatMessage
from ngramspec.text.chat.format import chat_format
from ngramspec.text.chat.tools import Tool, Tools

PROMPT = np.frombuffer(ANSWER.encode(), np.uint8).astype(np.int32)
FORMAT = chat_format("<think> <tool_call>", "", Tools((Tool("f", {}, {}),)), parses_reasoning=True)
CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'


def ask(script: str, **fields: Any) -> Generation:
    (answer,) = Engine(ScriptedTarget(script), None).generate(
        [Request(prompt_ids=PROMPT, **fields)]
    )
    return answer


def test_an_answer_is_read_in_the_format_of_its_request() -> None:
    script = f"<think>\nHm.\n</think>\n\nI look. {CALL}"
    answer = ask(script, format=FORMAT)
    assert answer.text == script
    message = answer.message
    assert message is not None
    assert (message.reasoning, message.content) == ("Hm.", "I look.")
    assert [call["function"]["name"] for call in message.calls] == ["f"]
    assert message.as_json() == {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "Hm.",
        "tool_calls": message.calls,
        "refusal": None,
    }


def test_ids_of_calls_stay_whoever_reads_them() -> None:
    answer = ask(CALL, format=FORMAT)
    messages: list[ChatMessage | None] = []
    run_together(lambda _: messages.append(answer.message), 4)
    assert all(message is answer.message for message in messages)


def test_an_answer_that_is_cut_short_has_what_was_begun() -> None:
    answer = ask("<think>\nHm, let me see", format=FORMAT, max_tokens=12)
    assert answer.finish_reason == "length"
    assert answer.message == ChatMessage(reasoning="Hm,")


def test_without_a_format_there_is_no_message() -> None:
    assert ask("<think>Hm.</think>").message is None


def test_the_message_of_a_running_generation_is_not_kept() -> None:
    answer = Generation(Request(prompt_ids=PROMPT, format=FORMAT), seed=0)
    assert answer.message == ChatMessage()
    assert answer.message is not answer.message
