"""A load client for HTTP servers on this machine that leaves them the processor.

Raw asyncio streams and kept connections: answers are collected as bytes and read after the request,
except that the first text of a stream is looked for as it arrives.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

TIMEOUT = 300.0  # seconds for one request
Event = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """One request, ready to be sent, and what `read` needs to understand its answer."""

    path: str
    body: bytes
    n_predict: int
    stream: bool


@dataclass
class Answer:
    """What came back. None: the server does not say it.

    generating: Seconds from the first token to the last, by the server.
    first: Seconds to the first text.
    """

    text: str
    tokens: int
    prompt_tokens: int | None
    drafted: int | None
    accepted: int | None
    generating: float | None = None
    seconds: float = 0.0
    first: float | None = None

    @property
    def tokens_per_second(self) -> float:
        """Return the rate of the answer, without the time of the prompt; 0 for a single token."""
        if self.generating is not None:
            return self.tokens / self.generating if self.tokens > 1 else 0.0
        return max(self.tokens - 1, 0) / (self.seconds - (self.first or 0.0))


@dataclass
class Cell:
    """The answers of one load, in the order of the requests, and what it took.

    cores: used meanwhile by the client, the server and all other programs.
    """

    seconds: float
    answers: list[Answer]
    cores: dict[str, float] = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float:
        """Return what all clients together received."""
        return sum(answer.tokens for answer in self.answers) / self.seconds


@dataclass
class Collector:
    """The body of an answer as it arrives; notes when the first text was there."""

    stream: bool
    first: float | None = None
    pieces: list[bytes] = field(default_factory=list)

    def feed(self, data: bytes) -> None:
        """Take the next piece."""
        self.pieces.append(data)
        if self.stream and self.first is None and any(map(text_of, self.events())):
            self.first = time.perf_counter()

    def events(self) -> list[Event]:
        """Return the complete events so far; an answer that is no stream is one event."""
        body = b"".join(self.pieces)
        if not self.stream:
            return [json.loads(body)]
        lines = body[: body.rfind(b"\n") + 1].splitlines()
        data = [line[5:].strip() for line in lines if line.startswith(b"data:")]
        return [json.loads(one) for one in data if one != b"[DONE]"]


def text_of(event: Event) -> str:
    """Return the text in an answer or event, in llama-server's form or OpenAI's."""
    if "content" in event:
        return str(event["content"])
    choice = next(iter(event.get("choices") or [{}]))
    part = choice.get("message") or choice.get("delta") or choice
    return str(part.get("text") or part.get("content") or "")


class Connection:
    """One kept connection to a server on this machine."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes, feed: Callable[[bytes], None]) -> int:
        """Send a request, hand the pieces of the answer on, return its status."""
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        reader, fields = await self._send(head.encode() + body)
        status = int(fields[0].split()[1])
        headers = dict(line.lower().split(": ", 1) for line in fields[1:] if ": " in line)
        if headers.get("transfer-encoding") == "chunked":
            while size := int(await reader.readuntil(b"\r\n"), 16):
                feed((await reader.readexactly(size + 2))[:-2])
            await reader.readuntil(b"\r\n")
        elif "content-length" in headers:
            feed(await reader.readexactly(int(headers["content-length"])))
        else:
            while piece := await reader.read(1 << 16):
                feed(piece)
            headers["connection"] = "close"
        if headers.get("connection") == "close":
            self.close()
        return status

    async def _send(self, data: bytes) -> tuple[asyncio.StreamReader, list[str]]:
        """Send and wait for the head of the answer; a kept connection may have been closed."""
        while True:
            reused = self._streams is not None
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            try:
                writer.write(data)
                head = await reader.readuntil(b"\r\n\r\n")
                return reader, head.decode("latin-1").split("\r\n")
            except (ConnectionError, asyncio.IncompleteReadError):
                self.close()
                if not reused:
                    raise

    def close(self) -> None:
        """Close it; the next request opens another."""
        if self._streams:
            self._streams[1].close()
        self._streams = None


Reader = Callable[[Request, list[Event]], Answer]


async def ask(connection: Connection, request: Request, read: Reader) -> Answer:
    """Send one request and time it.

    Raises:
        RuntimeError: The server refused it or did not answer.
    """
    collector = Collector(request.stream)
    start = time.perf_counter()
    sent = connection.post(request.path, request.body, collector.feed)
    try:
        status = await asyncio.wait_for(sent, TIMEOUT)
    except asyncio.TimeoutError as error:
        raise RuntimeError(f"no answer in {TIMEOUT:.0f} s") from error
    seconds = time.perf_counter() - start
    if status != 200:
        raise RuntimeError(f"status {status}: {b''.join(collector.pieces)[:400]!r}")
    if not (events := collector.events()):
        raise RuntimeError(f"no event in {b''.join(collector.pieces)[:400]!r}")
    answer = read(request, events)
    answer.seconds = seconds
    answer.first = collector.first - start if collector.first else None
    return answer


async def send(port: int, requests: Sequence[Request], clients: int, read: Reader) -> Cell:
    """Send all requests with so many clients at once, each waiting for its answer."""
    answers: dict[int, Answer] = {}
    waiting = iter(enumerate(requests))

    async def client(queue: Iterable[tuple[int, Request]]) -> None:
        connection = Connection(port)
        try:
            for i, request in queue:
                answers[i] = await ask(connection, request, read)
        finally:
            connection.close()

    start = time.perf_counter()
    await asyncio.gather(*(client(waiting) for _ in range(clients)))
    seconds = time.perf_counter() - start
    return Cell(seconds, [answers[i] for i in range(len(requests))])
