"""What the page is made of, and the figures that it reads."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs the extra 'server'")

from starlette.testclient import TestClient

from helpers.fake_target import FakeTarget
from ngramspec import SuffixPool
from ngramspec.engine import Engine, Request
from ngramspec.server import ServedModel, ServerSettings, create_app
from ngramspec.server.page.routes import ASSETS

LIVE = "/v1/ngramspec/live"
CAPACITIES = {"suffix": SuffixPool().capacity, "ngram-mod": 1 << 22}


def client_of(engine: Engine, **settings: Any) -> TestClient:
    served = ServedModel(name="tiny", model=cast(Any, None), engine=engine)
    return TestClient(create_app(served, ServerSettings(**settings)))


@pytest.fixture
def engine() -> Engine:
    return Engine(FakeTarget(), "ngram-mod,suffix", slots=2)


@pytest.mark.parametrize("path", ASSETS)
def test_files_are_open_to_everybody_and_bound_to_the_page(engine: Engine, path: str) -> None:
    client = client_of(engine, api_keys=("secret",))
    response = client.get(path)
    assert response.status_code == client.head(path).status_code == 200
    assert response.headers["content-type"] == ASSETS[path][1]
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    policy = response.headers["content-security-policy"].split("; ")
    for rule in ("default-src 'none'", "script-src 'self'", "style-src 'self'",
                 "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"):  # fmt: skip
        assert rule in policy


def test_the_page_refers_to_its_own_files_only(engine: Engine) -> None:
    client = client_of(engine)
    found: list[str] = []

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            for name, value in attributes:
                assert not name.startswith("on")
                assert name != "style"
                if name in ("src", "href"):
                    found.append(str(value))

    Parser().feed(client.get("/").text)
    paths = {f"/{link}" for link in found if not link.startswith(("#", "data:"))}
    for path in [path for path in ASSETS if path.endswith(".js")]:
        text = client.get(path).text
        paths |= {f"/{name}" for name in re.findall(r'from "\./(.+?)"', text)}
        for dangerous in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("):
            assert dangerous not in text
    assert paths == set(ASSETS) - {"/"}


def test_live_figures_are_those_of_the_engine(engine: Engine) -> None:
    client = client_of(engine, slots=True)
    prompt_ids = np.arange(1, 20, dtype=np.int32)
    engine.generate([Request(prompt_ids=prompt_ids, max_tokens=60)] * 3)
    told, stats = client.get(LIVE).json(), engine.stats()
    assert told["emitted_tokens"] == stats.num_emitted_tokens == 180
    assert told["steps"] == stats.num_steps
    assert told["draft_tokens"] == stats.num_draft_tokens
    assert told["accepted_tokens"] == stats.num_accepted_tokens
    assert told["context"] == engine.context_size
    assert [slot["state"] for slot in told["slots"]] == ["idle", "idle"]
    assert all(slot["tokens"] > 20 for slot in told["slots"])
    sources = {source["name"]: source for source in told["sources"]}
    assert set(sources) <= set(engine.source_stats())
    for name, source in sources.items():
        assert source["accepted_tokens"] == engine.source_stats()[name].num_accepted_tokens
    assert {pool["name"]: pool["capacity"] for pool in told["pools"]} == CAPACITIES
    assert client.get(LIVE).json()["time"] > told["time"]


def test_without_a_pool_there_are_no_figures_of_one() -> None:
    client = client_of(Engine(FakeTarget(), None, slots=1), slots=True)
    told = client.get(LIVE).json()
    assert told["pools"] == []
    assert told["sources"] == []


def test_live_figures_are_protected_as_slots_are(engine: Engine) -> None:
    for path in (LIVE, "/slots"):
        assert client_of(engine).get(path).status_code == 501
        assert client_of(engine, slots=True).get(path).status_code == 200
        locked = client_of(engine, api_keys=("secret",))
        assert locked.get(path).status_code == 401
        assert locked.get(path, headers={"x-api-key": "secret"}).status_code == 200
        shut = client_of(engine, api_keys=("secret",), slots=False)
        assert shut.get(path, headers={"x-api-key": "secret"}).status_code == 501
    message = client_of(engine).get(LIVE).json()["error"]["message"]
    assert "--slots" in message
