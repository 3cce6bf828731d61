"""Hostile clients beside well-behaved ones: nobody gets a wrong answer or less than their share.

NGRAMSPEC_SOAK_SECONDS sets the time; `make soak` runs it for half an hour.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("llama_cpp")
pytest.importorskip("starlette", reason="needs the extra 'server'")
pytest.importorskip("httpx")

import httpx

from helpers.command import Process
from soak.hostile import Attackers

SECONDS = float(os.environ.get("NGRAMSPEC_SOAK_SECONDS", "9"))
GOOD, BAD = "good-key", "bad-key"
CLIENTS = 2  # well-behaved ones
ATTACKERS = 4
GROWTH = 128 << 20  # bytes that memory may grow by once every attack has run
MOST = 768 << 20  # bytes of memory under attack
NAMES = ["total", "count_words", "first_line", "merge"]

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.timeout(SECONDS * 3 + 300),
]


def questions() -> list[dict[str, Any]]:
    """Return requests with one right answer each."""
    codes = [f"def {name}(items):\n    return [one for one in items]\n" for name in NAMES]
    return [
        {
            "messages": [{"role": "user", "content": f"Repeat this code:\n```python\n{code}```"}],
            "max_tokens": 40,
            "temperature": 0,
        }
        for code in codes
    ]


class Users:
    """Well-behaved clients: each asks, reads, asks again.

    texts: The different answers to each question.
    refused: Answers other than 200.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self.texts: list[set[str]] = [set() for _ in questions()]
        self.refused: list[str] = []

    async def run(self, seconds: float) -> float:
        """Ask until the time is over; return the answers per second."""
        started = time.monotonic()
        headers = {"authorization": f"Bearer {GOOD}"}
        async with httpx.AsyncClient(base_url=self._url, timeout=120, headers=headers) as client:
            counts = await asyncio.gather(
                *(self._ask(client, number, started + seconds) for number in range(CLIENTS))
            )
        return sum(counts) / (time.monotonic() - started)

    async def _ask(self, client: httpx.AsyncClient, number: int, end: float) -> int:
        asked, count = questions(), 0
        while time.monotonic() < end:
            which = (number + count) % len(asked)
            answer = await client.post("/v1/chat/completions", json=asked[which])
            count += 1
            if answer.status_code == 200:
                self.texts[which].add(answer.json()["choices"][0]["message"]["content"])
            else:
                self.refused.append(f"{answer.status_code}: {answer.text[:200]}")
        return count


LAYOUTS = {
    "exact": ["-np", "4", "-c", "8192", "--exact"],
    # Which the four slots share; tests/server/test_full_cache.py has it for runs of seconds.
    "too small for all": ["-c", "1024"],
}


def arguments(layout: str) -> Sequence[str]:
    """Return the server's options: a key for the users, one for the attackers."""
    keys = ["--api-key", GOOD, "--api-key", BAD]
    limits = ["--max-body", "1M", "--kept-memory", "64M"]
    costs = ["--calibrate", "2" if SECONDS >= 60 else "0"]
    return [*keys, *limits, *costs, *LAYOUTS[layout], "-t", "1", "--metrics", "-a", "tiny"]


@pytest.mark.parametrize("layout", LAYOUTS if SECONDS >= 60 else ["exact"])
def test_hostile_clients_change_nobodys_answers_and_take_no_more_than_their_share(
    layout: str,
) -> None:
    with Process(*arguments(layout)) as server:
        users, attackers = Users(server.url()), Attackers(server.url(), BAD, seed=1)

        async def together(seconds: float) -> float:
            rate, _ = await asyncio.gather(
                users.run(seconds), attackers.run(seconds, workers=ATTACKERS)
            )
            return rate

        alone = asyncio.run(users.run(SECONDS / 9))
        asyncio.run(together(SECONDS / 3))  # every attack has run then
        early = server.resident()
        beside = asyncio.run(together(SECONDS / 3))
        late = server.resident()
        headers = {"authorization": f"Bearer {GOOD}"}
        metrics = httpx.get(f"{server.url()}/metrics", headers=headers).text
        code = server.end()
        log = server.text
    slowest = sorted(attackers.slowest.items(), key=lambda item: -item[1])[:5]
    print(f"{alone:.1f} answers/s alone, {beside:.1f} beside attackers")
    print(f"memory {early >> 20} -> {late >> 20} MB; slowest {slowest}")
    print(dict(sorted(attackers.answers.items())))
    assert users.refused == []
    if layout == "exact":
        assert [len(texts) for texts in users.texts] == [1] * len(users.texts)
    else:  # texts may differ in a last bit, none may be missing
        assert all(text for texts in users.texts for text in texts)
        assert 'num_preemptions_total{engine="0",model_name="tiny"} 0.0' not in metrics
    assert attackers.wrong == []
    assert {name for name, _ in attackers.answers} == set(attackers.attacks)
    # The attackers' share is theirs; the rest is the users', less what two busy machines take.
    # A few seconds measure it only roughly.
    assert beside > alone * CLIENTS / (CLIENTS + ATTACKERS) / (2 if SECONDS >= 60 else 4)
    assert late < min(early + GROWTH, MOST)
    assert "Traceback" not in log
    assert code == 0
