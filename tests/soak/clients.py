"""Clients of every kind for a long run: well-behaved, impatient, broken and hostile ones."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from typing import Any

import httpx

NAMES = ["total", "count_words", "first_line", "merge", "clean", "scale"]
# What a kind of request may be answered with; 503 is asked for by a queue that is kept short.
ALLOWED = {
    "good": {200, 503},
    "stream": {200, 503},
    "vanish": {200, 503, 0},
    "broken": {400, 404, 405, 413, 422, 503},
    "stranger": {401},
    "look": {200},
}


def question(rng: random.Random) -> str:
    """Return a request that makes the model copy."""
    name = rng.choice(NAMES)
    code = f"def {name}_{rng.randrange(40)}(items):\n    return [item for item in items if item]\n"
    return f"Repeat this code:\n```python\n{code}```"


def body(rng: random.Random) -> dict[str, Any]:
    """Return a valid chat request with some of the fields that there are."""
    request: dict[str, Any] = {
        "messages": [{"role": "user", "content": question(rng)}],
        "max_tokens": rng.choice([1, 8, 40, 90]),
        "temperature": rng.choice([0, 0.8, 1.5]),
    }
    extras = [
        {"n": 2},
        {"logprobs": True, "top_logprobs": 3},
        {"stop": ["return"]},
        {"response_format": {"type": "json_object"}},
        {"prediction": {"type": "content", "content": "def total(items):\n    return 1\n"}},
        {"speculative": {"types": "ngram-simple", "n_max": 5}},
        {"speculative": {"namespace": f"tenant {rng.randrange(6)}"}},
        {"speculative": False},
        {"seed": 7, "repeat_penalty": 1.1},
    ]
    for extra in rng.sample(extras, rng.randrange(3)):
        request |= extra
    return request


BROKEN: list[tuple[str, str, bytes]] = [
    ("POST", "/v1/chat/completions", b"{"),
    ("POST", "/v1/chat/completions", b"[]"),
    ("POST", "/v1/chat/completions", b'{"messages": 5}'),
    ("POST", "/v1/completions", b'{"prompt": [999999999]}'),
    ("POST", "/completion", b'{"prompt": "x", "grammar": "root ::= ("}'),
    ("POST", "/completion", b'{"prompt": "' + b"word " * 20000 + b'"}'),
    ("POST", "/api/chat", b'{"model": "nobody", "messages": []}'),
    ("POST", "/v1/chat/completions", b"\xff\xfe\x00" * 100),
    ("GET", "/nowhere", b""),
    ("DELETE", "/v1/models", b""),
    ("POST", "/completion", b"x" * 3_000_000),
]


class Clients:
    """Runs random requests against a server and counts what comes back.

    answers: By kind and status; 0 = no answer, as after a client has hung up.
    wrong: Answers that their kind may not have, and connections that broke.
    """

    def __init__(self, url: str, key: str, seed: int) -> None:
        self._url, self._key, self._rng = url, key, random.Random(seed)
        self.answers: Counter[tuple[str, int]] = Counter()
        self.wrong: list[str] = []
        self.gone = False  # the server does not answer any more

    async def run(self, seconds: float, workers: int = 6) -> None:
        """Work until the time is over."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        async with httpx.AsyncClient(base_url=self._url, timeout=60) as client:
            await asyncio.gather(*(self._work(client, end) for _ in range(workers)))

    async def _work(self, client: httpx.AsyncClient, end: float) -> None:
        kinds = {
            "good": self._good,
            "stream": self._stream,
            "vanish": self._vanish,
            "broken": self._broken,
            "stranger": self._stranger,
            "look": self._look,
        }
        loop = asyncio.get_running_loop()
        while loop.time() < end and not self.gone:
            kind = self._rng.choices(list(kinds), weights=[4, 4, 3, 2, 1, 1])[0]
            try:
                status = await kinds[kind](client)
            except (httpx.TransportError, OSError) as error:
                self.gone = self.gone or isinstance(error, (httpx.ConnectError, OSError))
                status = 0
                self.wrong.append(f"{kind}: {error!r}")
            self.answers[kind, status] += 1
            if status not in ALLOWED[kind]:
                self.wrong.append(f"{kind}: {status}")

    @property
    def _headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._key}"}

    async def _good(self, client: httpx.AsyncClient) -> int:
        path, request = "/v1/chat/completions", body(self._rng)
        if self._rng.random() < 0.3:
            path = "/api/chat"
            request = {"model": "tiny", "messages": request["messages"], "stream": False}
            request["options"] = {"num_predict": 20}
        answer = await client.post(path, json=request, headers=self._headers)
        if answer.status_code == 200:
            assert answer.json()
        return answer.status_code

    async def _stream(self, client: httpx.AsyncClient) -> int:
        request = {**body(self._rng), "stream": True}
        last = ""
        async with client.stream(
            "POST", "/v1/chat/completions", json=request, headers=self._headers
        ) as answer:
            async for line in answer.aiter_lines():
                last = line or last
            if answer.status_code == 200 and last != "data: [DONE]":
                self.wrong.append(f"stream ends with {last[:80]}")
            return answer.status_code

    async def _vanish(self, client: httpx.AsyncClient) -> int:
        """Hang up: before the answer, or in the middle of it."""
        payload = json.dumps({**body(self._rng), "stream": self._rng.random() < 0.7}).encode()
        host, port = self._url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self._key}"
        length = len(payload) + (9 if self._rng.random() < 0.2 else 0)  # a body that never ends
        writer.write(f"{head}\r\nContent-Length: {length}\r\n\r\n".encode() + payload)
        await writer.drain()
        if self._rng.random() < 0.6:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(reader.read(200), 0.3)
        await asyncio.sleep(self._rng.random() * 0.05)
        writer.transport.abort()
        return 0

    async def _broken(self, client: httpx.AsyncClient) -> int:
        method, path, content = self._rng.choice(BROKEN)
        answer = await client.request(method, path, content=content, headers=self._headers)
        assert "error" in answer.json()
        return answer.status_code

    async def _stranger(self, client: httpx.AsyncClient) -> int:
        return (await client.post("/v1/chat/completions", json=body(self._rng))).status_code

    async def _look(self, client: httpx.AsyncClient) -> int:
        path = self._rng.choice(["/slots", "/metrics", "/health", "/props", "/v1/models"])
        return (await client.get(path, headers=self._headers)).status_code
