"""Chat answers in OpenAI's shape: one object, or a stream of chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ngramspec.server.bridge.answer import Item
from ngramspec.server.model import ServedModel
from ngramspec.server.openai.events import OpenAIEvents, usage_of, whole_json
from ngramspec.server.openai.plan import ChatCompletionPlan
from ngramspec.server.reply.logprobs import LogprobFormat
from ngramspec.server.reply.sse import json_event, json_text
from ngramspec.server.reply.timings import optional_members, reasoning_tokens, timings_of
from ngramspec.text.chat.delta import Delta, custom_call

if TYPE_CHECKING:
    from ngramspec.engine import Chunk, Generation, TokenLogprob


def chat_json(
    plan: ChatCompletionPlan, served: ServedModel, generations: Sequence[Generation]
) -> dict[str, Any]:
    logprobs = LogprobFormat(served, plan.requests[0].post_sampling_probs)
    choices, reasoning = [], 0
    for index, generation in enumerate(generations):
        parser = plan.format.parser()
        message = parser.message(generation.text)
        reasoning += reasoning_tokens(generation, parser.thoughts, served.model)
        if not plan.shows_reasoning:
            message.reasoning = ""
        reason = "tool_calls" if parser.completed and generation.finish_reason == "stop" else None
        choice: dict[str, Any] = {
            "index": index,
            "message": message.as_json(plan.format.tools),
            "logprobs": None,
            "finish_reason": reason or generation.finish_reason,
        }
        if generation.request.logprobs is not None:
            choice["logprobs"] = logprobs.chat(generation.logprobs)
        choices.append(choice)
    of_prompt = {}
    if plan.of_prompt is not None:
        of_prompt["prompt_logprobs"] = logprobs.prompt(generations[0], plan.of_prompt)
    usage = usage_of(generations, len(generations), reasoning)
    return whole_json(plan, served, "chat.completion", generations, choices, usage, **of_prompt)


class ChatEvents(OpenAIEvents):
    """A chat as chat.completion.chunk events."""

    def __init__(
        self, plan: ChatCompletionPlan, served: ServedModel, generations: Sequence[Generation]
    ) -> None:
        count = len(generations)
        super().__init__(plan, served, generations, "chat.completion.chunk", count)
        self._model = served.model
        self._parsers = [plan.format.parser() for _ in range(count)]
        self._format = LogprobFormat(served, plan.requests[0].post_sampling_probs)
        self._logprobs: list[list[TokenLogprob]] = [[] for _ in range(count)]  # not yet sent
        self._begun = [False] * count
        self._tools = plan.format.tools
        self._shows_reasoning = plan.shows_reasoning
        self._customs: list[dict[str, Any] | None] = [None] * count  # open calls of custom tools
        self._heads = self.heads(b'"delta": {"content"')
        self._tail = b'}, "logprobs": null, "finish_reason": null}]}\n\n'

    def encode(self, items: Sequence[Item]) -> bytes:
        parts: list[bytes] = []
        for index, chunk in items:
            if chunk.progress is not None or not self._begun[index]:
                self._begun[index] = True
                role = {"role": "assistant", "content": None}
                progress = optional_members(chunk, False, False)
                parts.append(self._event(index, role, extra=progress))
            if chunk.progress is not None:
                continue
            if self._quick and self._parsers[index].plain and chunk.finish_reason is None:
                if chunk.text:
                    parts += (self._heads[index], json_text(chunk.text), self._tail)
            else:
                self._encode_slowly(parts, index, chunk)
        return b"".join(parts)

    def reasoning_tokens(self) -> int:
        pairs = zip(self._generations, self._parsers, strict=True)
        return sum(
            reasoning_tokens(generation, one.thoughts, self._model) for generation, one in pairs
        )

    def _encode_slowly(self, parts: list[bytes], index: int, chunk: Chunk) -> None:
        """Add the events of a chunk that is more than a piece of text."""
        parser = self._parsers[index]
        last = chunk.finish_reason is not None
        self._logprobs[index] += chunk.logprobs
        deltas = parser.feed(chunk.text, last)
        if not self._shows_reasoning:
            deltas = [delta for delta in deltas if delta.kind != "reasoning"]
        extras = optional_members(chunk, *self._members)
        for shown in self._shown(index, deltas, last):
            parts.append(self._event(index, shown, extra=extras))
            extras = {}
        if last:
            called = chunk.finish_reason == "stop" and parser.completed
            reason = "tool_calls" if called else chunk.finish_reason
            timings = {"timings": timings_of([chunk.generation])}
            parts.append(self._event(index, {}, reason, {**extras, **timings}))
        elif extras and not deltas and chunk.token_ids:
            parts.append(self._event(index, {}, extra=extras))

    def _shown(self, index: int, deltas: Sequence[Delta], last: bool) -> Iterator[dict[str, Any]]:
        """Yield deltas in OpenAI's shape. A custom tool's input is known when its call ends."""
        for delta in deltas:
            custom = self._customs[index]
            if custom is not None and delta.kind == "arguments":
                custom["function"]["arguments"] += delta.text
                continue
            shown = _delta(delta)
            if custom is not None:
                yield {"tool_calls": [custom_call(custom)]}
                self._customs[index] = None
            if delta.kind == "call" and self._tools.is_custom(delta.text):
                self._customs[index] = shown["tool_calls"][0]
            else:
                yield shown
        custom = self._customs[index]
        if last and custom is not None:
            yield {"tool_calls": [custom_call(custom)]}

    def _event(
        self,
        index: int,
        delta: dict[str, Any],
        reason: str | None = None,
        extra: dict[str, Any] | None = None,
    ) -> bytes:
        waiting = self._logprobs[index]
        logprobs = None
        if waiting and ("role" not in delta):
            logprobs, self._logprobs[index] = self._format.chat(waiting), []
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return json_event({**self._common, "choices": [choice], **(extra or {})})


def _delta(delta: Delta) -> dict[str, Any]:
    if delta.kind == "content":
        return {"content": delta.text}
    if delta.kind == "reasoning":
        return {"reasoning_content": delta.text}
    if delta.kind == "arguments":
        call: dict[str, Any] = {"index": delta.index, "function": {"arguments": delta.text}}
        return {"tool_calls": [call]}
    function = {"name": delta.text, "arguments": ""}
    call = {"index": delta.index, "id": delta.call_id, "type": "function", "function": function}
    return {"tool_calls": [call]}
