"""Responses in OpenAI's shape: one object, or a stream of numbered events."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ngramspec.server.bridge.answer import Item
from ngramspec.server.errors import ApiError
from ngramspec.server.model import ServedModel
from ngramspec.server.reply.logprobs import LogprobFormat
from ngramspec.server.reply.sse import SSE, SSE_PING, json_text, named_event
from ngramspec.server.reply.timings import optional_members, reasoning_tokens, timings_of
from ngramspec.server.responses.output import Event, Message, Output
from ngramspec.server.responses.plan import ResponsePlan
from ngramspec.text.chat.parser import ChatParser

if TYPE_CHECKING:
    from ngramspec.engine import Chunk, Generation

CODES = {429: "rate_limit_exceeded", 400: "invalid_prompt"}  # of a response that failed


def response_json(
    plan: ResponsePlan, served: ServedModel, generations: Sequence[Generation]
) -> dict[str, Any]:
    generation = generations[0]
    output, parser = Output(plan.tools, plan.summarizes), plan.format.parser()
    for delta in parser.feed(generation.text, last=True):
        output.add(delta)
    output.close(_status(generation))
    if generation.request.logprobs is not None:
        logprobs = LogprobFormat(served).chat(generation.logprobs)["content"]
        for item in output.items:
            if isinstance(item, Message):
                item.logprobs, logprobs = logprobs, []
    usage = _usage(plan, served, parser, generation)
    whole = _ended(_head(plan, served, generation), output, generation, usage)
    return {**whole, "timings": timings_of(generations)}


class ResponseEvents:
    """A response as events, from response.created to response.completed, incomplete or failed."""

    media_type = SSE

    def __init__(
        self, plan: ResponsePlan, served: ServedModel, generations: Sequence[Generation]
    ) -> None:
        self._plan = plan
        self._served = served
        self._generation = generations[0]
        self._parser = plan.format.parser()
        self._output = Output(plan.tools, plan.summarizes)
        self._format = LogprobFormat(served)
        self._logprobs: list[dict[str, Any]] = []  # of tokens whose text has not come
        self._extras: dict[str, Any] = {}  # for the next event
        self._members = (plan.timings_per_token, plan.spans)
        self._quick = not any(self._members) and self._generation.request.logprobs is None
        self._response = _head(plan, served, self._generation)
        self._number = 0  # of the next event
        self._start: tuple[Message, bytes] | None = None  # of the events of a message's texts

    @property
    def ping(self) -> bytes:
        """Return what shows that the server is at work.

        Before the first token these are events: some clients count only those as signs of life.
        """
        if self._output.items:
            return SSE_PING
        return self._begin() or self._write(self._state("response.in_progress"))

    def encode(self, items: Sequence[Item]) -> bytes:
        parts: list[bytes] = [self._begin()]
        for _, chunk in items:
            message = self._output.open
            if (
                self._quick
                and self._parser.plain
                and isinstance(message, Message)
                and chunk.finish_reason is None
            ):
                if chunk.text:
                    parts += (
                        self._text_start(message),
                        json_text(chunk.text),
                        b', "sequence_number": %d}\n\n' % self._number,
                    )
                    self._number += 1
                    message.pieces.append(chunk.text)
            else:
                parts += map(self._write, self._events(chunk))
        return b"".join(parts)

    def end(self) -> bytes:
        generation = self._generation
        kind = "completed" if _status(generation) == "completed" else "incomplete"
        usage = _usage(self._plan, self._served, self._parser, generation)
        whole = _ended(self._response, self._output, generation, usage)
        event = {"type": f"response.{kind}", "response": whole, **self._extras}
        return self._write({**event, "timings": timings_of([generation])})

    def error(self, error: ApiError) -> bytes:
        begun = self._begin()
        failure = {"code": error.code or CODES.get(error.status, "server_error")}
        failure["message"] = error.message
        event = {"type": "error", **failure, "param": error.param}
        self._output.close("incomplete")
        failed = {"status": "failed", "error": failure, "output": self._output.json()}
        whole = {"type": "response.failed", "response": {**self._response, **failed}}
        return begun + self._write(event) + self._write(whole)

    def _begin(self) -> bytes:
        """Return the first events, if they were not sent."""
        if self._number:
            return b""
        names = ("response.created", "response.in_progress")
        return b"".join(self._write(self._state(name)) for name in names)

    def _state(self, type: str) -> Event:
        return {"type": type, "response": self._response}

    def _events(self, chunk: Chunk) -> list[Event]:
        """Return the events of a chunk that is more than a piece of a message."""
        last = chunk.finish_reason is not None
        self._logprobs += self._format.chat(chunk.logprobs)["content"]
        self._collect(optional_members(chunk, *self._members))
        events: list[Event] = []
        if chunk.progress is not None:
            events.append(self._state("response.in_progress"))
        for delta in self._parser.feed(chunk.text, last):
            delta_events = self._output.add(delta)
            if delta.kind == "content":
                self._add_logprobs(delta_events[-1])
            events += delta_events
        if last:
            events += self._output.close(_status(chunk.generation))
        if events:
            events[-1].update(self._extras)
            self._extras = {}
        return events

    def _add_logprobs(self, event: Event) -> None:
        """Tell with a text the log-probabilities of the tokens up to it."""
        message = self._output.items[-1]
        assert isinstance(message, Message)
        event["logprobs"], self._logprobs = self._logprobs, []
        message.logprobs += event["logprobs"]

    def _collect(self, more: dict[str, Any]) -> None:
        """Keep further members for the next event; there may be none for a chunk."""
        before, now = self._extras.get("speculative"), more.get("speculative")
        if before and now:
            accepted = before["accepted"] + now["accepted"]
            now = {"accepted": accepted, "spans": [*before["spans"], *now["spans"]]}
            more = {**more, "speculative": now}
        self._extras.update(more)

    def _text_start(self, message: Message) -> bytes:
        if self._start is None or self._start[0] is not message:
            self._start = (
                message,
                b'event: response.output_text.delta\ndata: {"type": "response.output_text.delta", '
                b'"item_id": "%b", "output_index": %d, "content_index": 0, "logprobs": [], '
                b'"delta": ' % (message.id.encode(), message.index),
            )
        return self._start[1]

    def _write(self, event: Event) -> bytes:
        encoded = named_event({**event, "sequence_number": self._number})
        self._number += 1
        return encoded


def _status(generation: Generation) -> str:
    """Return the status of a response, and of its last item, at its end."""
    return "incomplete" if generation.finish_reason == "length" else "completed"


def _head(plan: ResponsePlan, served: ServedModel, generation: Generation) -> dict[str, Any]:
    return {
        "id": f"resp_{generation.request.id}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "model": served.name,
        "output": [],
        "error": None,
        "incomplete_details": None,
        "usage": None,
        "temperature": generation.request.sampling.temperature,
        "top_p": generation.request.sampling.top_p,
        **plan.echo,
    }


def _ended(
    head: dict[str, Any], output: Output, generation: Generation, usage: dict[str, Any]
) -> dict[str, Any]:
    status = _status(generation)
    cut = {"reason": "max_output_tokens"}
    return {
        **head,
        "completed_at": int(time.time()),
        "status": status,
        "incomplete_details": cut if status == "incomplete" else None,
        "output": output.json(),
        "usage": usage,
    }


def _usage(
    plan: ResponsePlan, served: ServedModel, parser: ChatParser, generation: Generation
) -> dict[str, Any]:
    times = generation.timings
    details = {"reasoning_tokens": reasoning_tokens(generation, parser.thoughts, served.model)}
    if plan.predicts:
        details["accepted_prediction_tokens"] = times.num_prediction_accepted
        details["rejected_prediction_tokens"] = times.num_prediction_rejected
    return {
        "input_tokens": times.num_prompt,
        "input_tokens_details": {"cached_tokens": times.num_cached, "cache_write_tokens": 0},
        "output_tokens": generation.num_tokens,
        "output_tokens_details": details,
        "total_tokens": times.num_prompt + generation.num_tokens,
    }
