"""Conversations that use what chat templates know: bodies of POST /apply-template."""

from __future__ import annotations

from typing import Any

from ngramspec.errors import InputError
from ngramspec.server import ServedModel
from ngramspec.server.chat.conversation import Conversation
from ngramspec.server.chat.prompt import chat_text
from ngramspec.server.errors import ApiError

SYSTEM = {"role": "system", "content": "Be brief."}
HELLO = {"role": "user", "content": "Hello there"}
WEATHER = {"role": "user", "content": "Weather in Paris and Rome?"}
ANSWER = {"role": "assistant", "content": "Sunny, 21 degrees."}
THANKS = {"role": "user", "content": "Thanks!"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather of a <city> & more",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Name of the city"},
                    "days": {"type": "integer", "default": 1},
                    "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "now",
            "description": "Tell the time",
            "parameters": {"type": "object", "properties": {}},
        },
    },
]


def call(number: int, name: str, arguments: str) -> dict[str, Any]:
    """Return a tool call in OpenAI's shape."""
    function = {"name": name, "arguments": arguments}
    return {"id": f"call0000{number}", "type": "function", "function": function}


def calling(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return an assistant's message with calls."""
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **more}


def result(number: int, name: str, content: Any) -> dict[str, Any]:
    """Return a tool's message."""
    return {"role": "tool", "tool_call_id": f"call0000{number}", "name": name, "content": content}


def thought(content: Any, reasoning: str) -> dict[str, Any]:
    """Return an assistant's message with reasoning."""
    return {"role": "assistant", "content": content, "reasoning_content": reasoning}


PARIS = call(1, "get_weather", '{"city": "Paris", "days": 2}')
ROME = call(2, "get_weather", '{"city": "Rome, \\"Lazio\\""}')
NOW = call(3, "now", "{}")
SUN = result(1, "get_weather", '{"degrees": 21.5, "sky": "clear é"}')
RAIN = result(2, "get_weather", "rain")
PARTS = [{"type": "text", "text": "Say"}, {"type": "text", "text": "hello"}]
NESTED = call(4, "f", '{"a": {"b": [1, 2.5, null, true]}, "c": "x\\ny", "d": [], "e": {}}')
OBJECT = {"type": "function", "function": {"name": "f", "arguments": {"city": "Paris"}}}
STRICT = {
    "type": "function",
    "function": {"name": "f", "strict": True, "parameters": {"type": "object"}, "more": 1},
}
CALLED = [WEATHER, calling(PARIS), SUN]
BOTH = [SYSTEM, WEATHER, calling(PARIS, ROME), SUN, RAIN]
OLD_THOUGHTS = [
    HELLO,
    thought("Hi.", "They greet me."),
    WEATHER,
    thought("Sunny.", "It is sunny."),
    THANKS,
]

CONVERSATIONS: dict[str, dict[str, Any]] = {
    "plain": {"messages": [HELLO]},
    "spaces": {"messages": [{"role": "user", "content": "  two \n words \n"}]},
    "system": {"messages": [SYSTEM, HELLO]},
    "empty system": {"messages": [{"role": "system", "content": ""}, HELLO]},
    "developer": {"messages": [{"role": "developer", "content": "Be brief."}, HELLO]},
    "turns": {"messages": [SYSTEM, WEATHER, ANSWER, THANKS]},
    "late system": {"messages": [WEATHER, ANSWER, SYSTEM, THANKS]},
    "two users": {"messages": [HELLO, WEATHER]},
    "system only": {"messages": [SYSTEM]},
    "no prompt": {"messages": [SYSTEM, HELLO], "add_generation_prompt": False},
    "parts": {"messages": [{"role": "user", "content": PARTS}]},
    "system parts": {"messages": [{"role": "system", "content": PARTS}, HELLO]},
    "other blanks": {"messages": [{"role": "user", "content": "\u3000 hi\u00a0\n\u2028"}]},
    "null content": {"messages": [{"role": "user", "content": None}]},
    "other role": {"messages": [HELLO, {"role": "ipython", "content": "42"}]},
    "tools": {"messages": [SYSTEM, WEATHER], "tools": TOOLS},
    "tools without system": {"messages": [WEATHER], "tools": TOOLS},
    "tools not chosen": {"messages": [WEATHER], "tools": TOOLS, "tool_choice": "none"},
    "empty tools": {"messages": [HELLO], "tools": []},
    "bare tool": {
        "messages": [HELLO],
        "tools": [{"type": "function", "function": {"name": "f"}}],
    },
    "strict tool": {"messages": [HELLO], "tools": [STRICT]},
    "nested arguments": {
        "messages": [HELLO, calling(NESTED), result(4, "f", "[1, 2]")],
        "tools": TOOLS,
    },
    "arguments as an object": {
        "messages": [HELLO, calling(OBJECT), result(1, "f", "null")],
        "tools": TOOLS,
    },
    "call beside parts": {
        "messages": [HELLO, calling(NOW, content=PARTS), result(3, "now", "12:30")],
        "tools": TOOLS,
    },
    "arguments that are not JSON": {
        "messages": [HELLO, calling(call(3, "now", "{")), result(3, "now", "12:30")],
        "tools": TOOLS,
    },
    "result without call": {"messages": [HELLO, result(3, "now", "12:30")], "tools": TOOLS},
    "call and result": {"messages": CALLED, "tools": TOOLS},
    "call, text and result": {
        "messages": [WEATHER, calling(PARIS, content="I look."), SUN, ANSWER, THANKS],
        "tools": TOOLS,
    },
    "call without arguments": {
        "messages": [HELLO, calling(NOW), result(3, "now", "12:30")],
        "tools": TOOLS,
    },
    "call without tools": {"messages": [*CALLED, ANSWER, THANKS]},
    "parallel calls": {"messages": BOTH, "tools": TOOLS},
    "parallel calls, swapped": {
        "messages": [WEATHER, calling(PARIS, ROME), RAIN, SUN],
        "tools": TOOLS,
    },
    "second round": {
        "messages": [*BOTH, ANSWER, HELLO, calling(NOW), result(3, "now", "12:30")],
        "tools": TOOLS,
    },
    "rounds in a row": {
        "messages": [*CALLED, calling(ROME), RAIN, ANSWER, THANKS],
        "tools": TOOLS,
    },
    "result in parts": {
        "messages": [WEATHER, calling(PARIS), result(1, "get_weather", PARTS)],
        "tools": TOOLS,
    },
    "thoughts": {"messages": OLD_THOUGHTS},
    "thoughts kept": {
        "messages": OLD_THOUGHTS,
        "chat_template_kwargs": {"preserve_reasoning": True},
    },
    "thoughts dropped": {
        "messages": OLD_THOUGHTS,
        "chat_template_kwargs": {"preserve_reasoning": False},
    },
    "thoughts and calls": {
        "messages": [WEATHER, calling(PARIS, reasoning_content="I need the weather."), SUN],
        "tools": TOOLS,
    },
    "thinking": {"messages": [HELLO], "chat_template_kwargs": {"enable_thinking": True}},
    "not thinking": {"messages": [HELLO], "chat_template_kwargs": {"enable_thinking": False}},
    "thinking as a text": {
        "messages": [HELLO],
        "chat_template_kwargs": {"enable_thinking": "false"},
    },
    "not thinking, tools": {
        "messages": [SYSTEM, WEATHER],
        "tools": TOOLS,
        "chat_template_kwargs": {"enable_thinking": False},
    },
    "effort": {"messages": [HELLO], "reasoning_effort": "low"},
    "no effort": {"messages": [HELLO], "reasoning_effort": "none"},
    "own variables": {
        "messages": [HELLO],
        "chat_template_kwargs": {"date_string": "01 Jan 2001", "custom_instructions": "Rhyme."},
    },
    "begun": {"messages": [HELLO, {"role": "assistant", "content": "Well, "}]},
    "begun after system": {
        "messages": [SYSTEM, WEATHER, ANSWER, HELLO, {"role": "assistant", "content": "Well, "}]
    },
    "begun with thoughts": {"messages": [HELLO, thought("Well, ", "They greet me.")]},
    "begun thoughts": {"messages": [HELLO, thought("", "They greet")]},
    "begun in parts": {"messages": [HELLO, {"role": "assistant", "content": PARTS}]},
    "continued": {
        "messages": [HELLO, {"role": "assistant", "content": "Well, "}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
    "continued thoughts": {
        "messages": [HELLO, thought("Well, ", "They greet me.")],
        "continue_final_message": "reasoning_content",
        "add_generation_prompt": False,
    },
    "continued content": {
        "messages": [HELLO, thought("", "They greet me.")],
        "continue_final_message": "content",
        "add_generation_prompt": False,
    },
    "continued user": {
        "messages": [HELLO],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
    "continued and begun": {
        "messages": [HELLO, ANSWER],
        "continue_final_message": True,
        "add_generation_prompt": True,
    },
    "two answers at the end": {"messages": [HELLO, ANSWER, ANSWER]},
    "calls at the end": {"messages": [WEATHER, calling(PARIS)], "tools": TOOLS},
    "answer first": {"messages": [ANSWER, HELLO]},
    "answer only": {"messages": [ANSWER]},
}


def our_answer(body: dict[str, Any], served: ServedModel) -> str | None:
    """Return the prompt that our server makes of a body, None if it refuses it."""
    try:
        chat = Conversation.model_validate(body)
        return chat_text(chat, served, chat.callable_tools())
    except (ApiError, InputError):
        return None
