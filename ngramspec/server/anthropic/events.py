"""Messages in Anthropic's shape: one object, or a stream of events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ngramspec.server.anthropic.content import Content, Event
from ngramspec.server.anthropic.plan import MessagePlan
from ngramspec.server.bridge.answer import Item
from ngramspec.server.errors import ANTHROPIC_PREFIX, ApiError
from ngramspec.server.model import ServedModel
from ngramspec.server.reply.sse import SSE, json_text, named_event
from ngramspec.server.reply.timings import optional_members, reasoning_tokens, timings_of
from ngramspec.text.chat.parser import ChatParser

if TYPE_CHECKING:
    from ngramspec.engine import Chunk, Generation

PING = named_event({"type": "ping"})
STOP = named_event({"type": "message_stop"})


def message_json(
    plan: MessagePlan, served: ServedModel, generations: Sequence[Generation]
) -> dict[str, Any]:
    generation, content, parser = generations[0], Content(), plan.format.parser()
    for delta in parser.feed(generation.text, last=True):
        content.add(delta)
    return {
        **_head(served, generation),
        "content": content.json(),
        **_stop(plan, served, generation, parser.completed),
        "usage": _last_usage(served, parser, generation),
        "timings": timings_of([generation]),
    }


class MessageEvents:
    """A message as events, from message_start to message_stop."""

    media_type = SSE
    ping = PING

    def __init__(
        self, plan: MessagePlan, served: ServedModel, generations: Sequence[Generation]
    ) -> None:
        self._plan = plan
        self._served = served
        self._generation = generations[0]
        self._parser = plan.format.parser()
        self._content = Content()
        self._begun = False
        self._members = (plan.timings_per_token, plan.spans)
        self._quick = not any(self._members)

    def encode(self, items: Sequence[Item]) -> bytes:
        parts: list[bytes] = [] if self._begun else [self._begin()]
        for _, chunk in items:
            block = self._content.open
            if (
                self._quick
                and self._parser.plain
                and block is not None
                and block.kind == "content"
                and chunk.finish_reason is None
            ):
                if chunk.text:
                    parts += (
                        b'event: content_block_delta\ndata: {"type": "content_block_delta", '
                        b'"index": %d, "delta": {"type": "text_delta", "text": ' % block.index,
                        json_text(chunk.text),
                        b"}}\n\n",
                    )
            else:
                parts += map(named_event, self._events(chunk))
        return b"".join(parts)

    def end(self) -> bytes:
        return STOP

    def error(self, error: ApiError) -> bytes:
        return named_event(error.body(ANTHROPIC_PREFIX))

    def _begin(self) -> bytes:
        self._begun = True
        stop = {"stop_reason": None, "stop_sequence": None}
        usage = _usage(self._generation, 0)
        head = _head(self._served, self._generation)
        message = {**head, "content": [], **stop, "usage": usage}
        return named_event({"type": "message_start", "message": message})

    def _events(self, chunk: Chunk) -> list[Event]:
        """Return the events of a chunk that is more than a piece of text."""
        last = chunk.finish_reason is not None
        events: list[Event] = []
        for delta in self._parser.feed(chunk.text, last):
            events += self._content.add(delta)
        if last:
            generation = chunk.generation
            events += self._content.close()
            stop = _stop(self._plan, self._served, generation, self._parser.completed)
            usage = _last_usage(self._served, self._parser, generation)
            event = {"type": "message_delta", "delta": stop, "usage": usage}
            events.append({**event, "timings": timings_of([generation])})
        extras = optional_members(chunk, *self._members)
        if extras and not events and (chunk.token_ids or chunk.progress is not None):
            events.append({"type": "ping"})
        if events:
            events[-1].update(extras)
        return events


def _head(served: ServedModel, generation: Generation) -> dict[str, Any]:
    head = {"id": f"msg_{generation.request.id}", "type": "message", "role": "assistant"}
    return {**head, "model": served.name}


def _stop(
    plan: MessagePlan, served: ServedModel, generation: Generation, calls: bool
) -> dict[str, Any]:
    """Return why a message ended, and the stop text that ended it."""
    stop_text = generation.stop_text if generation.stop_text in plan.stops else None
    if generation.finish_reason == "length":
        timings = generation.timings
        held = timings.num_prompt + generation.num_tokens - timings.num_discarded
        full = held >= served.engine.context_size
        reason = "model_context_window_exceeded" if full else "max_tokens"
    elif stop_text is not None:
        reason = "stop_sequence"
    else:
        reason = "tool_use" if calls else "end_turn"
    return {"stop_reason": reason, "stop_sequence": stop_text}


def _last_usage(served: ServedModel, parser: ChatParser, generation: Generation) -> dict[str, Any]:
    thinking = reasoning_tokens(generation, parser.thoughts, served.model)
    details = {"thinking_tokens": thinking}
    return {**_usage(generation, generation.num_tokens), "output_tokens_details": details}


def _usage(generation: Generation, num_tokens: int) -> dict[str, int]:
    """Return the usage: tokens from the cache do not count as input, as in Anthropic's API."""
    times = generation.timings
    return {
        "input_tokens": times.num_prompt - times.num_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": times.num_cached,
        "output_tokens": num_tokens,
    }
