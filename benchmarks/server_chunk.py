"""Measure what a streamed chunk costs in Python: `python benchmarks/server_chunk.py`.

Chunks are put from where the engine's thread puts them, and go through bridge, answer, events and
uvicorn's HTTP protocol to a transport that throws them away: no model, no sockets, one thread, so
that the machine's load moves the figures little. The median of 20,000 chunks is shown per part:

put   what the engine's thread does, the wake-up of the event loop included
loop  what the event loop does; three empty turns of it, which the wait here adds, are taken off
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import h11
import numpy as np
from uvicorn.protocols.http.h11_impl import RequestResponseCycle

from ngramspec.engine import Chunk, Engine, Generation, Request
from ngramspec.server import ServedModel, ServerSettings
from ngramspec.server.anthropic.events import MessageEvents
from ngramspec.server.anthropic.plan import MessagePlan
from ngramspec.server.bridge.answer import Answer
from ngramspec.server.bridge.bridge import Bridge
from ngramspec.server.llama_server.events import NativeEvents
from ngramspec.server.llama_server.plan import NativePlan
from ngramspec.server.openai.chat_events import ChatEvents
from ngramspec.server.openai.completion_events import CompletionEvents
from ngramspec.server.openai.plan import ChatCompletionPlan, CompletionPlan
from ngramspec.server.reply.sse import Events, EventStream
from ngramspec.server.responses.events import ResponseEvents
from ngramspec.server.responses.plan import ResponsePlan
from ngramspec.server.responses.tools import ResponseTools
from ngramspec.text.chat.format import chat_format

WARM = 500  # chunks that are not counted
TURNS = 3  # of the event loop, until a chunk is written
SCOPE = {"type": "http", "method": "POST", "path": "/v1/x", "headers": [], "http_version": "1.1"}


class NullTransport(asyncio.Transport):
    """Takes bytes and forgets them."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    def write(self, data: Any) -> None:
        """Count the bytes."""
        self.num_bytes += len(data)


def http_send(transport: NullTransport) -> Callable[[Any], Any]:
    """Return uvicorn's send for a request of which everything was read."""
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
    connection.next_event()
    connection.next_event()
    cycle = RequestResponseCycle(
        scope=cast(Any, SCOPE),
        conn=connection,
        transport=transport,
        flow=cast(Any, SimpleNamespace(write_paused=False)),
        logger=logging.getLogger(),
        access_logger=logging.getLogger(),
        access_log=False,
        default_headers=[],
        message_event=asyncio.Event(),
        on_response=lambda: None,
    )
    return cycle.send


def make_events(api: str, generation: Generation) -> Events:
    """Return the events of an API for one generation."""
    model = SimpleNamespace(piece=lambda token, special: b"x")
    served = ServedModel(name="model", model=cast(Any, model), engine=cast(Engine, None))
    asked = SimpleNamespace(post_sampling_probs=False)
    common: dict[str, Any] = {"requests": [asked], "stream": True}
    quick: dict[str, Any] = {"timings_per_token": False, "spans": False}
    if api == "chat":
        format = chat_format("", "", parses_reasoning=True)
        shape = {"include_usage": False, "verbose": False, "shows_reasoning": True}
        plan = ChatCompletionPlan(**common, **quick, **shape, format=format)
        return ChatEvents(plan, served, [generation])
    if api == "responses":
        own: dict[str, Any] = {"summarizes": False, "predicts": False, "echo": {}}
        format = chat_format("", "", parses_reasoning=True)
        response = ResponsePlan(**common, **quick, **own, format=format, tools=ResponseTools())
        return ResponseEvents(response, served, [generation])
    if api == "messages":
        format = chat_format("", "", parses_reasoning=True)
        message = MessagePlan(**common, **quick, format=format, stops=frozenset())
        return MessageEvents(message, served, [generation])
    if api == "completions":
        shape = {"include_usage": False, "verbose": False}
        text = CompletionPlan(**common, **quick, **shape, choices=1, echoes=[""])
        return CompletionEvents(text, served, [generation])
    native = NativePlan(**common, **quick, as_list=False, return_tokens=False, fields=None)
    return NativeEvents(native, served, [generation])


async def measure(api: str, count: int) -> tuple[float, float, float]:
    """Return the medians of put and loop in microseconds, and the bytes per chunk."""
    bridge = Bridge(cast(Engine, None), ServerSettings())
    bridge._loop = asyncio.get_running_loop()
    generation = Generation(Request(prompt_ids=np.array([1], np.int32)), 0)
    answer = Answer(streamed=True, max_items=1 << 30)
    answer.generations = [generation]
    receive, transport = bridge.receiver(answer, 0), NullTransport()
    stream = EventStream(bridge, answer, make_events(api, generation))
    task = asyncio.create_task(stream(SCOPE, _never, http_send(transport)))
    chunk = Chunk(generation, (5,), 0, " token", ((" token", False),), (), None)
    puts, turns, idle = [], [], []
    for index in range(WARM + count):
        if index == WARM:
            transport.num_bytes = 0
        began = time.perf_counter()
        receive(chunk)
        put = time.perf_counter()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        done = time.perf_counter()
        for _ in range(TURNS):
            await asyncio.sleep(0)
        if index >= WARM:
            puts.append(put - began)
            turns.append(done - put)
            idle.append(time.perf_counter() - done)
    size = transport.num_bytes / count
    answer.generations = []
    bridge.close(answer)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    loop = statistics.median(turns) - statistics.median(idle)
    return 1e6 * statistics.median(puts), 1e6 * loop, size


async def _never() -> Any:
    await asyncio.sleep(3600)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--chunks", type=int, default=20_000)
    count = parser.parse_args().chunks
    print("| API | put, us | loop, us | bytes |\n|---|---|---|---|")
    for api in ("chat", "responses", "messages", "completions", "llama-server"):
        put, loop, size = asyncio.run(measure(api, count))
        print(f"| {api} | {put:.1f} | {loop:.1f} | {size:.0f} |")


if __name__ == "__main__":
    main()
