"""Clients that want to hurt: huge numbers, bombs, floods, slow and half requests.

Each attack is one request or one bundle of connections. A server may answer it with a refusal, with
an answer where the request was merely expensive, or by closing the connection; it may not fail
(500), and nothing that an attacker does may end what others run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

HUGE = [2**31, 2**63, 2**64, 10**310, -(2**63), 1e308, 9223372036854775808]
NUMBERS = [
    "n_predict", "max_tokens", "top_k", "seed", "n_probs", "n", "min_keep", "repeat_last_n",
    "n_keep", "n_discard", "reasoning_budget_tokens", "thinking_budget_tokens",
    "dry_allowed_length", "dry_penalty_last_n", "id_slot", "t_max_predict_ms",
    "speculative.n_max",
    "speculative.ngram_mod.n_match", "speculative.ngram_cache.n_draft", "temperature", "top_p",
]  # fmt: skip
REFUSALS = {400, 401, 403, 404, 405, 408, 413, 415, 421, 422, 429, 431, 501, 503}
CONNECTIONS = 60  # of one flood
PATIENCE = 90.0  # seconds for one answer

Attack = Callable[[httpx.AsyncClient], Awaitable[int]]


def schema_bomb(depth: int) -> dict[str, Any]:
    """Return a schema of a few lines that doubles with every level when it is unfolded."""
    defs: dict[str, Any] = {"d0": {"type": "string"}}
    for level in range(1, depth):
        below = {"$ref": f"#/$defs/d{level - 1}"}
        defs[f"d{level}"] = {"allOf": [below, below]}
    return {"$defs": defs, "$ref": f"#/$defs/d{depth - 1}"}


def chat(**fields: Any) -> dict[str, Any]:
    """Return a chat request with further fields."""
    return {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, **fields}


class Attackers:
    """Runs attacks in random order and counts what comes back.

    answers: By attack and status; 0 = the server closed the connection.
    wrong: Answers that no attack may get, and answers that never came.
    slowest: Seconds of the slowest answer by attack.
    """

    def __init__(self, url: str, key: str, seed: int) -> None:
        self._url, self._key, self._rng = url, key, random.Random(seed)
        host, port = url.removeprefix("http://").split(":")
        self._address = (host, int(port))
        self.answers: Counter[tuple[str, int]] = Counter()
        self.wrong: list[str] = []
        self.slowest: dict[str, float] = {}

    @property
    def attacks(self) -> dict[str, Attack]:
        """Return all attacks by name."""
        return {
            name.removeprefix("_attack_"): getattr(self, name)
            for name in dir(type(self))
            if name.startswith("_attack_")
        }

    async def run(self, seconds: float, workers: int) -> None:
        """Attack until the time is over; every attack runs at least once."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        attacks = self.attacks
        todo = list(attacks)
        self._rng.shuffle(todo)
        limits = httpx.Limits(max_connections=workers)
        async with httpx.AsyncClient(base_url=self._url, timeout=PATIENCE, limits=limits) as client:

            async def work() -> None:
                while todo or loop.time() < end:
                    name = todo.pop() if todo else self._rng.choice(list(attacks))
                    await self._attack(name, attacks[name], client)

            await asyncio.gather(*(work() for _ in range(workers)))

    async def _attack(self, name: str, attack: Attack, client: httpx.AsyncClient) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            status = await attack(client)
        except httpx.TimeoutException:
            self.wrong.append(f"{name}: no answer in {PATIENCE:g} seconds")
            return
        except (httpx.TransportError, OSError):
            status = 0  # closed on us, as it may
        self.slowest[name] = max(self.slowest.get(name, 0.0), loop.time() - started)
        self.answers[name, status] += 1
        if status not in REFUSALS | {0, 200}:
            self.wrong.append(f"{name}: {status}")

    async def _post(self, client: httpx.AsyncClient, path: str, body: Any) -> int:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"authorization": f"Bearer {self._key}", "content-type": "application/json"}
        answer = await client.post(path, content=content, headers=headers)
        return answer.status_code

    # -- values ------------------------------------------------------------------------------------

    async def _attack_number(self, client: httpx.AsyncClient) -> int:
        name, value = self._rng.choice(NUMBERS), self._rng.choice(HUGE)
        body = {"prompt": "x", "n_predict": 4, name: value}
        return await self._post(client, self._rng.choice(["/completion", "/v1/completions"]), body)

    async def _attack_dry(self, client: httpx.AsyncClient) -> int:
        rng = self._rng
        body = {
            "prompt": "a b a b a b",
            "n_predict": 8,
            "dry_multiplier": rng.choice([0.5, 1e30, rng.random()]),
            "dry_base": rng.choice([1.75, 1e30, 1 + rng.random()]),
            "dry_allowed_length": rng.randrange(1, 50),
            "dry_penalty_last_n": rng.choice([-1, 64, 4096]),
            "dry_sequence_breakers": [
                f"breaker {rng.randrange(1000)}" for _ in range(rng.randrange(40))
            ],
        }
        return await self._post(client, "/completion", body)

    async def _attack_bias(self, client: httpx.AsyncClient) -> int:
        bias = {str(self._rng.choice([i, "²", -i, 2**40 + i])): 1e30 for i in range(5000)}
        return await self._post(client, "/v1/chat/completions", chat(logit_bias=bias))

    async def _attack_stops(self, client: httpx.AsyncClient) -> int:
        stops = [f"s{i}" for i in range(50_000)]
        return await self._post(
            client, "/completion", {"prompt": "x", "n_predict": 50, "stop": stops}
        )

    async def _attack_probabilities(self, client: httpx.AsyncClient) -> int:
        body = {"prompt": "x", "n_predict": 200, "n_probs": 1000, "n": 32}
        return await self._post(client, "/completion", body)

    async def _attack_namespaces(self, client: httpx.AsyncClient) -> int:
        settings = {"namespace": f"n{self._rng.random()}", "types": "ngram-mod,suffix"}
        return await self._post(client, "/v1/chat/completions", chat(speculative=settings))

    async def _attack_surrogates(self, client: httpx.AsyncClient) -> int:
        body = b'{"prompt": "\\ud800", "speculative.\\udfff": 1, "n_predict": 4}'
        return await self._post(client, "/completion", body)

    # -- bombs -------------------------------------------------------------------------------------

    async def _attack_schema(self, client: httpx.AsyncClient) -> int:
        schema = schema_bomb(self._rng.choice([18, 40, 400]))
        shape = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        return await self._post(client, "/v1/chat/completions", chat(response_format=shape))

    async def _attack_long_names(self, client: httpx.AsyncClient) -> int:
        inner = {f"p{i}": {"type": "object", "properties": {"q": {}}} for i in range(2000)}
        schema = {"type": "object", "properties": {"n" * 100_000: {"properties": inner}}}
        return await self._post(client, "/completion", {"prompt": "x", "json_schema": schema})

    async def _attack_enum(self, client: httpx.AsyncClient) -> int:
        schema = {"enum": [f"value {i} {self._rng.random()}" for i in range(16_000)]}
        return await self._post(
            client, "/completion", {"prompt": "x", "json_schema": schema, "n_predict": 4}
        )

    async def _attack_pattern(self, client: httpx.AsyncClient) -> int:
        pattern = self._rng.choice(
            ["^(((a{1,99}){1,99}){1,99}){1,99}$", "^" + "(" * 5000 + "$", "^(a|b?)*{9}$"]
        )
        schema = {"type": "string", "pattern": pattern}
        return await self._post(
            client, "/completion", {"prompt": "x", "json_schema": schema, "n_predict": 4}
        )

    async def _attack_grammar(self, client: httpx.AsyncClient) -> int:
        grammar = self._rng.choice([
            "root ::= root root | [a-z]",
            "root ::= " + '"a" | ' * 20_000 + '"b"',
            "root ::= a*\na ::= b*\nb ::= [a-z]*",
            'root ::= "a"{1,100000}',
            "root ::= " + "(" * 50_000,
            "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(60))
            + '\nr60 ::= "a"\nroot ::= r0',
        ])  # fmt: skip
        return await self._post(
            client, "/completion", {"prompt": "x", "grammar": grammar, "n": 8, "n_predict": 4}
        )

    async def _attack_template(self, client: httpx.AsyncClient) -> int:
        template = self._rng.choice([
            "{{range $i := 900000}}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{{end}}",
            "{{range $i := 9999}}{{range $j := 9999}}{{range $k := 9999}}{{end}}{{end}}{{end}}",
            '{{define "a"}}{{template "a"}}{{template "a"}}{{end}}{{template "a"}}',
        ])  # fmt: skip
        body = {"model": "tiny", "prompt": "x", "template": template, "stream": False}
        return await self._post(client, "/api/generate", body)

    async def _attack_template_arguments(self, client: httpx.AsyncClient) -> int:
        kwargs = self._rng.choice(
            [{"tools": []}, {"template": "x"}, {"messages": 1}, {"range": 10**9}]
        )
        return await self._post(client, "/v1/chat/completions", chat(chat_template_kwargs=kwargs))

    async def _attack_nesting(self, client: httpx.AsyncClient) -> int:
        deep = b"[" * 50_000 + b"]" * 50_000
        return await self._post(client, "/v1/chat/completions", b'{"messages": ' + deep + b"}")

    # -- loads -------------------------------------------------------------------------------------

    async def _attack_prompts(self, client: httpx.AsyncClient) -> int:
        return await self._post(
            client, "/v1/completions", {"prompt": ["x"] * 100_000, "max_tokens": 1}
        )

    async def _attack_pieces(self, client: httpx.AsyncClient) -> int:
        return await self._post(
            client, "/tokenize", {"content": "a b " * 70_000, "with_pieces": True}
        )

    async def _attack_queue(self, client: httpx.AsyncClient) -> int:
        """Ask for long answers, more than there are slots, and hang up after a while."""
        body = {"prompt": "count", "n_predict": 2000, "ignore_eos": True, "cache_prompt": False}
        asked = [asyncio.create_task(self._post(client, "/completion", body)) for _ in range(8)]
        await asyncio.wait(asked, timeout=1.0)
        for task in asked:
            task.cancel()
        done = await asyncio.gather(*asked, return_exceptions=True)
        return max((status for status in done if isinstance(status, int)), default=0)

    async def _attack_room(self, client: httpx.AsyncClient) -> int:
        """Fill a cache that all slots share several times over, and stay or hang up."""
        texts = [
            f"{self._rng.random()} " + "a b c d " * self._rng.choice([2, 40]) for _ in range(6)
        ]
        asked = [
            asyncio.create_task(
                self._post(
                    client,
                    "/completion",
                    {"prompt": text, "n_predict": self._rng.choice([20, 300]), "ignore_eos": True},
                )
            )
            for text in texts
        ]
        if self._rng.random() < 0.5:
            return max(await asyncio.gather(*asked))
        await asyncio.wait(asked, timeout=0.5)
        for task in asked:
            task.cancel()
        done = await asyncio.gather(*asked, return_exceptions=True)
        return max((status for status in done if isinstance(status, int)), default=0)

    async def _attack_keys(self, client: httpx.AsyncClient) -> int:
        headers = {"authorization": f"Bearer {self._rng.random()}"}
        return (await client.post("/v1/chat/completions", json=chat(), headers=headers)).status_code

    # -- connections -------------------------------------------------------------------------------

    async def _attack_slow_headers(self, client: httpx.AsyncClient) -> int:
        return await self._flood(
            b"POST /completion HTTP/1.1\r\nHost: localhost\r\nX-A: ", b"a", 2.0
        )

    async def _attack_half_bodies(self, client: httpx.AsyncClient) -> int:
        head = (
            f"POST /completion HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self._key}\r\n"
        )
        start = f'{head}Content-Length: 900000\r\n\r\n{{"prompt": "'.encode()
        return await self._flood(start + b"x" * 60_000, b"x", 2.0)

    async def _attack_idle_connections(self, client: httpx.AsyncClient) -> int:
        return await self._flood(b"", b"", 1.0)

    async def _attack_pages(self, client: httpx.AsyncClient) -> int:
        """Ask as a foreign page in a browser would."""
        headers = {"origin": "https://evil.example", "content-type": "text/plain"}
        return (
            await client.post("/completion", content=b'{"prompt": "x"}', headers=headers)
        ).status_code

    async def _flood(self, start: bytes, drip: bytes, seconds: float) -> int:
        """Open many connections, send a little on each, drip more, then drop them."""
        opened: list[asyncio.StreamWriter] = []
        end = asyncio.get_running_loop().time() + seconds
        try:
            for _ in range(CONNECTIONS):
                _, writer = await asyncio.wait_for(asyncio.open_connection(*self._address), 10)
                opened.append(writer)
                writer.write(start)
            while asyncio.get_running_loop().time() < end:
                await asyncio.sleep(0.2)
                for writer in opened:
                    writer.write(drip)
        finally:
            for writer in opened:
                with contextlib.suppress(OSError):
                    writer.transport.abort()
        return 0
