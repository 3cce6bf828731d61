"""The server's protocols: how each asks for the same thing, and what its answers say."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from helpers.serving import REPEAT

Fields = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What an answer says, in whichever protocol it came."""

    text: str = ""
    reasoning: str = ""
    calls: Sequence[tuple[str, Any]] = ()  # names and arguments
    end: str = ""  # why, in the protocol's own word
    tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int | None = None  # None: the protocol does not tell
    reasoning_tokens: int | None = None


class Protocol(ABC):
    """A route with the names of its fields.

    id_prefix: What its ids begin with, None where answers have none.
    ends: Its words for an end by itself, at the limit, and with a call.
    """

    path: str
    id_prefix: str | None = None
    limit, stop = "max_tokens", "stop"
    ends = ("stop", "length", "tool_calls")
    has_tools = True

    def body(
        self, text: str = REPEAT, /, tokens: int = 64, stop: Sequence[str] = (), **more: Any
    ) -> Fields:
        """Return a greedy request."""
        settings: Fields = {self.limit: tokens, "temperature": 0}
        if stop:
            settings[self.stop] = list(stop)
        return {**self.question(text), **settings, **more}

    @abstractmethod
    def question(self, text: str) -> Fields:
        """Return the fields that ask one thing."""

    def tools(self, *tools: Fields, forced: bool = False) -> Fields:
        """Return the fields for tools (name, description, parameters); forced: one call of them."""
        functions = [{"type": "function", "function": tool} for tool in tools]
        choice = {"tool_choice": "required", "parallel_tool_calls": False}
        return {"tools": functions, **(choice if forced else {})}

    @abstractmethod
    def read(self, reply: Any) -> Answer:
        """Return what a whole answer says."""

    @abstractmethod
    def join(self, events: list[Any]) -> Answer:
        """Return what the events of a stream say together."""

    @abstractmethod
    def piece(self, event: Any) -> str:
        """Return the text of the answer that an event brings."""

    def error(self, event: Any) -> str:
        """Return the message of an error."""
        return str(event["error"]["message"])


class Completions(Protocol):
    path, id_prefix = "/v1/completions", "cmpl-"
    has_tools = False

    def question(self, text: str) -> Fields:
        return {"prompt": f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"}

    def body(self, *arguments: Any, **settings: Any) -> Fields:
        return {**super().body(*arguments, **settings), "stream_options": {"include_usage": True}}

    def read(self, reply: Any) -> Answer:
        (choice,) = reply["choices"]
        message, usage = choice.get("message", choice), reply["usage"]
        return Answer(
            message.get("text") or message.get("content") or "",
            message.get("reasoning_content", ""),
            [
                (call["function"]["name"], json.loads(call["function"]["arguments"]))
                for call in message.get("tool_calls", ())
            ],
            choice["finish_reason"],
            usage["completion_tokens"],
            usage["prompt_tokens"],
            usage["prompt_tokens_details"]["cached_tokens"],
            usage["completion_tokens_details"]["reasoning_tokens"],
        )

    def join(self, events: list[Any]) -> Answer:
        choices = [event["choices"][0] for event in events if event["choices"]]
        deltas = [choice.get("delta", {}) for choice in choices]
        calls: list[Fields] = []
        for part in (part for delta in deltas for part in delta.get("tool_calls", ())):
            if "id" in part:
                assert part["index"] == len(calls)
                calls.append({"function": {"name": part["function"]["name"], "arguments": ""}})
            calls[part["index"]]["function"]["arguments"] += part["function"].get("arguments", "")
        thoughts = [delta.get("reasoning_content", "") for delta in deltas]
        message = {"content": "".join(map(self.piece, events)), "tool_calls": calls}
        message["reasoning_content"] = "".join(thoughts)
        reasons = [choice["finish_reason"] for choice in choices]
        assert reasons[:-1] == [None] * (len(reasons) - 1)
        end = {"message": message, "finish_reason": reasons[-1]}
        return self.read({"choices": [end], "usage": events[-1]["usage"]})

    def piece(self, event: Any) -> str:
        if not event["choices"]:  # the usage
            return ""
        choice = event["choices"][0]
        return choice.get("text") or choice.get("delta", {}).get("content") or ""


class Chat(Completions):
    path, id_prefix = "/v1/chat/completions", "chatcmpl-"
    has_tools = True

    def question(self, text: str) -> Fields:
        return {"messages": [{"role": "user", "content": text}]}


class Native(Completions):
    path, limit, id_prefix = "/completion", "n_predict", None
    ends = ("eos", "limit", "")

    def read(self, reply: Any) -> Answer:
        counts = reply["tokens_predicted"], reply["tokens_evaluated"], reply["timings"]["cache_n"]
        return Answer(reply["content"], "", (), reply["stop_type"], *counts)

    def join(self, events: list[Any]) -> Answer:
        return self.read({**events[-1], "content": "".join(map(self.piece, events))})

    def piece(self, event: Any) -> str:
        return str(event["content"])


class Responses(Protocol):
    path, limit, id_prefix = "/v1/responses", "max_output_tokens", "resp_"
    ends = ("completed", "incomplete", "completed")

    def question(self, text: str) -> Fields:
        return {"input": text}

    def tools(self, *tools: Fields, forced: bool = False) -> Fields:
        flat = [{"type": "function", **tool} for tool in tools]
        return {**super().tools(forced=forced), "tools": flat}

    def read(self, reply: Any) -> Answer:
        items, usage = reply["output"], reply["usage"]
        texts = {
            kind: "".join(one["content"][0]["text"] for one in items if one["type"] == kind)
            for kind in ("message", "reasoning")
        }
        return Answer(
            texts["message"],
            texts["reasoning"],
            [
                (item["name"], json.loads(item["arguments"]))
                for item in items
                if item["type"] == "function_call"
            ],
            reply["status"],
            usage["output_tokens"],
            usage["input_tokens"],
            usage["input_tokens_details"]["cached_tokens"],
            usage["output_tokens_details"]["reasoning_tokens"],
        )

    def join(self, events: list[Any]) -> Answer:
        whole = self.read(events[-1]["response"])
        assert "".join(map(self.piece, events)) == whole.text
        return whole

    def piece(self, event: Any) -> str:
        return str(event["delta"]) if event["type"].endswith("output_text.delta") else ""

    def error(self, event: Any) -> str:
        failure = event.get("response", event)
        return str(failure["error"]["message"])


class Messages(Protocol):
    path, stop, id_prefix = "/v1/messages", "stop_sequences", "msg_"
    ends = ("end_turn", "max_tokens", "tool_use")

    def question(self, text: str) -> Fields:
        return {"messages": [{"role": "user", "content": text}]}

    def tools(self, *tools: Fields, forced: bool = False) -> Fields:
        shaped = [
            {"name": tool["name"], "input_schema": tool.get("parameters", {"type": "object"})}
            for tool in tools
        ]
        choice = {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
        return {"tools": shaped, **(choice if forced else {})}

    def read(self, reply: Any) -> Answer:
        blocks, usage = reply["content"], reply["usage"]
        return Answer(
            "".join(block.get("text", "") for block in blocks),
            "".join(block.get("thinking", "") for block in blocks),
            [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"],
            reply["stop_reason"],
            usage["output_tokens"],
            usage["input_tokens"] + usage["cache_read_input_tokens"],
            usage["cache_read_input_tokens"],
            usage["output_tokens_details"]["thinking_tokens"],
        )

    def join(self, events: list[Any]) -> Answer:
        blocks: list[Fields] = []
        inputs: dict[int, str] = {}
        for event in events:
            if event["type"] == "content_block_start":
                assert event["index"] == len(blocks)
                blocks.append(dict(event["content_block"]))
            for name, part in event.get("delta", {}).items():
                if name == "partial_json":
                    inputs[event["index"]] = inputs.get(event["index"], "") + part
                elif name in ("text", "thinking"):
                    blocks[event["index"]][name] += part
        for index, text in inputs.items():
            blocks[index]["input"] = json.loads(text)
        ended = events[-2]
        return self.read({"content": blocks, **ended["delta"], "usage": ended["usage"]})

    def piece(self, event: Any) -> str:
        return str(event.get("delta", {}).get("text", ""))


class OllamaChat(Protocol):
    path, limit = "/api/chat", "num_predict"
    ends = ("stop", "length", "stop")

    def question(self, text: str) -> Fields:
        return {"messages": [{"role": "user", "content": text}]}

    def body(self, *arguments: Any, **settings: Any) -> Fields:
        options = super().body(*arguments, **settings)
        own = ("prompt", "messages", "tools", "stream", "logprobs", "think", "raw")
        body = {name: options.pop(name) for name in own if name in options}
        return {"model": "tiny", "stream": False, **body, "options": options}

    def read(self, reply: Any) -> Answer:
        message = reply.get("message", {"content": reply.get("response"), **reply})
        return Answer(
            message["content"],
            message.get("thinking", ""),
            [
                (call["function"]["name"], call["function"]["arguments"])
                for call in message.get("tool_calls", ())
            ],
            reply["done_reason"],
            reply["eval_count"],
            reply["prompt_eval_count"],
        )

    def join(self, events: list[Any]) -> Answer:
        assert [event["done"] for event in events] == [False] * (len(events) - 1) + [True]
        parts = [event.get("message", event) for event in events]
        message = {
            "content": "".join(map(self.piece, events)),
            "thinking": "".join(part.get("thinking", "") for part in parts),
            "tool_calls": [call for part in parts for call in part.get("tool_calls", ())],
        }
        return self.read({**events[-1], "message": message})

    def piece(self, event: Any) -> str:
        return str(event["message"]["content"] if "message" in event else event["response"])

    def error(self, event: Any) -> str:
        return str(event["error"])


class OllamaGenerate(OllamaChat):
    path = "/api/generate"
    has_tools = False

    def question(self, text: str) -> Fields:
        return {"prompt": text}


PROTOCOLS = (
    *(Chat(), Completions(), Native(), Responses(), Messages()),
    *(OllamaChat(), OllamaGenerate()),
)


def of(*paths: str) -> Any:
    """Let a test run with these protocols, by default with all."""
    chosen = [one for one in PROTOCOLS if one.path in paths or not paths]
    return pytest.mark.parametrize("protocol", chosen, ids=lambda one: one.path)


def events_in(stream: str) -> list[Any]:
    """Return the events of a stream; those with a type must be named by it."""
    if stream.startswith("{"):
        assert stream.endswith("\n")
        return [json.loads(line) for line in stream.splitlines()]
    *blocks, rest = stream.split("\n\n")
    assert rest == ""
    events = []
    for block in blocks:
        *names, data = block.split("\n")
        if data not in ("data: [DONE]", ": ping"):
            events.append(json.loads(data.removeprefix("data: ")))
            assert names == ([f"event: {events[-1]['type']}"] if "type" in events[-1] else [])
    return events
