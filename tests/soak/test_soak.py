"""Many clients of every kind for a while: nothing leaks, sticks or breaks.

NGRAMSPEC_SOAK_SECONDS sets the time; `make soak` runs it for half an hour.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("llama_cpp")
pytest.importorskip("starlette", reason="needs the extra 'server'")
pytest.importorskip("httpx")

import httpx

from helpers.command import Process
from ngramspec import open_pool
from soak.clients import Clients

SECONDS = float(os.environ.get("NGRAMSPEC_SOAK_SECONDS", "6"))
KEY = "soak-key"
MOD = ("--spec-ngram-mod-n-match", "6", "--spec-ngram-mod-n-min", "2")
GROWTH = 96 << 20  # bytes that memory may grow by after the first third of the run

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.timeout(SECONDS + 300),
]


def arguments(folder: Path) -> list[str]:
    """Return the server's options: few slots, a short queue, a pool in a file."""
    drafters = ["--spec-type", "ngram-mod,ngram-cache", *MOD]
    files = ["--pool", str(folder / "pool.ngp")]
    limits = ["-np", "3", "--max-queue", "2", "-c", "3072", "--max-body", "1M"]
    costs = ["--calibrate", "2" if SECONDS >= 60 else "0"]
    return [*drafters, *files, *limits, *costs, "--api-key", KEY, "-a", "tiny"]


def figures(url: str) -> dict[str, float]:
    """Return the unlabelled figures of a scrape."""
    text = httpx.get(f"{url}/metrics", headers={"authorization": f"Bearer {KEY}"}).text
    rows = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in rows}


def wait_idle(url: str) -> list[Any]:
    """Return the slots once none of them works, or after 10 seconds."""
    end = time.monotonic() + 10
    while True:
        slots = httpx.get(f"{url}/slots", headers={"authorization": f"Bearer {KEY}"}).json()
        if not any(slot["is_processing"] for slot in slots) or time.monotonic() > end:
            return list(slots)
        time.sleep(0.1)


def test_a_server_survives_clients_of_every_kind(tmp_path: Path) -> None:
    with Process(*arguments(tmp_path)) as server:
        clients = Clients(server.url(), KEY, seed=1)
        asyncio.run(clients.run(SECONDS / 3))
        early = server.resident()
        asyncio.run(clients.run(SECONDS * 2 / 3))
        late = server.resident()
        slots = wait_idle(server.url())
        counted = figures(server.url())
        assert server.end() == 0
        log = server.text
    print(dict(clients.answers), f"memory {early >> 20} -> {late >> 20} MB")
    assert clients.wrong == []
    assert clients.answers["good", 200] > 0
    assert clients.answers["stream", 200] > 0
    assert not any(slot["is_processing"] for slot in slots)
    assert late < early + GROWTH
    assert "Traceback" not in log
    running = ("vllm:num_requests_running", "vllm:num_requests_waiting")
    assert [value for name, value in counted.items() if name.startswith(running)] == [0, 0]


def test_a_pool_survives_kills_while_it_is_written(tmp_path: Path) -> None:
    pool = tmp_path / "pool.ngp"
    for seed in range(3):
        dynamic = ("-lcd", str(tmp_path / "dynamic.ngc"))
        with Process(*arguments(tmp_path), *dynamic) as server:
            clients = Clients(server.url(), KEY, seed)
            killer = threading.Timer(0.8 + seed * 0.37, server.process.kill)
            killer.start()
            asyncio.run(clients.run(30))
            killer.join()
        assert clients.gone
        opened = open_pool(pool)
        assert opened.check() == ""
    with Process(*arguments(tmp_path)) as server:
        clients = Clients(server.url(), KEY, seed=9)
        asyncio.run(clients.run(1))
        assert clients.answers["good", 200] + clients.answers["stream", 200] > 0
        assert server.end() == 0
    assert open_pool(pool).num_used > 0
