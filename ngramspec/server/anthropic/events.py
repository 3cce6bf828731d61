"""Messages in Anthropic's shape: one object, or a stream of events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ngramspec.chat.parser import ChatParser
from ngramspec.server.anthropic.content import Content, Event
from ngramspec.server.anthropic.plan import MessagePlan
from ngramspec.server.bridge.answer import Item
from ngramspec.server.chat.thoughts import reasoning_tokens
from ngramspec.server.errors import ANTHROPIC_PREFIX, ApiError
from ngramspec.server.model import ServedModel
from ngramspec.server.reply.sse import SSE, json_text, named_event
from ngramspec.server.reply.timings import optional_members, timings_of

if TYPE_CHECKING:
    from ngramspec.engine import Chunk, Generation

PING = named_event({"type": "ping"})
STOP = named_event({"type": "message_stop"})


def message_json(
    plan: MessagePlan, served: ServedModel, generations: Sequence[Generation]
) -> dict[str, Any]:
    """Return the message object."""
    made, content, parser = generations[0], Content(), plan.format.parser()
    for delta in parser.feed(made.text, last=True):
        content.add(delta)
    return {
        **_head(served, made),
        "content": content.json(),
        **_stop(plan, served, made, parser.completed),
        "usage": _last_usage(served, parser, made),
        "timings": timings_of([made]),
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
        """Return the events for some chunks."""
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
        """Return the event of the end."""
        return STOP

    def error(self, error: ApiError) -> bytes:
        """Return an error event in Anthropic's shape."""
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
            made = chunk.generation
            events += self._content.close()
            stop = _stop(self._plan, self._served, made, self._parser.completed)
            told = {"usage": _last_usage(self._served, self._parser, made)}
            told["timings"] = timings_of([made])
            events.append({"type": "message_delta", "delta": stop, **told})
        extras = optional_members(chunk, *self._members)
        if extras and not events and (chunk.token_ids or chunk.progress is not None):
            events.append({"type": "ping"})
        if events:
            events[-1].update(extras)
        return events


def _head(served: ServedModel, made: Generation) -> dict[str, Any]:
    head = {"id": f"msg_{made.request.id}", "type": "message", "role": "assistant"}
    return {**head, "model": served.name}


def _stop(plan: MessagePlan, served: ServedModel, made: Generation, calls: bool) -> dict[str, Any]:
    """Return why a message ended, and the stop text that ended it."""
    found = made.stop_text if made.stop_text in plan.stops else None
    if made.finish_reason == "length":
        held = made.timings.num_prompt + made.num_tokens - made.timings.num_discarded
        full = held >= served.engine.context_size
        reason = "model_context_window_exceeded" if full else "max_tokens"
    elif found is not None:
        reason = "stop_sequence"
    else:
        reason = "tool_use" if calls else "end_turn"
    return {"stop_reason": reason, "stop_sequence": found}


def _last_usage(served: ServedModel, parser: ChatParser, made: Generation) -> dict[str, Any]:
    """Return the usage at the end, with the tokens of reasoning."""
    thinking = reasoning_tokens(made, parser.thoughts, served.model)
    details = {"thinking_tokens": thinking}
    return {**_usage(made, made.num_tokens), "output_tokens_details": details}


def _usage(made: Generation, num_tokens: int) -> dict[str, int]:
    """Return the usage: tokens from the cache do not count as input, as in Anthropic's API."""
    times = made.timings
    return {
        "input_tokens": times.num_prompt - times.num_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": times.num_cached,
        "output_tokens": num_tokens,
    }
