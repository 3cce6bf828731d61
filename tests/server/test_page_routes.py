"""What the page is made of, and the figures that it reads."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs the extra 'server'")

from starlette.testclient import TestClient

from helpers.fake_target import FakeTarget
from ngramspec import SuffixPool
from ngramspec.engine import Engine, Request
from ngramspec.server import ServedModel, ServerSettings, create_app, page
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
    assert response.headers["content-type"] == ASSETS[path].media_type
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["referrer-policy"] == "no-referrer"
    policy = response.headers["content-security-policy"].split("; ")
    for rule in ("default-src 'none'", "script-src 'self'", "style-src 'self'",
                 "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'",
                 "require-trusted-types-for 'script'"):  # fmt: skip
        assert rule in policy


def test_types_are_those_of_the_files(engine: Engine) -> None:
    client = client_of(engine)
    for path, kind in (("/", "text/html"), ("/page/page.js", "text/javascript"),
                       ("/page/vendor/markdown-it/markdown-it.esm.min.mjs", "text/javascript"),
                       ("/page/base.css", "text/css"), ("/page/favicon.svg", "image/svg+xml"),
                       ("/page/vendor/highlight/LICENSE.txt", "text/plain"),
                       ("/favicon.ico", "image/svg+xml")):  # fmt: skip
        assert client.get(path).headers["content-type"].split(";")[0] == kind


@pytest.mark.parametrize("path", ["/", "/page/page.js"])
def test_a_browser_that_has_a_file_is_not_sent_it_again(engine: Engine, path: str) -> None:
    client = client_of(engine)
    for coding in ("gzip, br", "identity"):
        first = client.get(path, headers={"accept-encoding": coding})
        assert first.headers["cache-control"] == "no-cache"
        assert first.headers["vary"] == "accept-encoding"
        assert ("content-encoding" in first.headers) == ("gzip" in coding)
        assert first.content == ASSETS[path].content
        tag = first.headers["etag"]
        for condition in (tag, f'"x", {tag}', "*"):
            asked = {"accept-encoding": coding, "if-none-match": condition}
            again = client.get(path, headers=asked)
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == tag
            assert "content-security-policy" in again.headers
        assert client.get(path, headers={"if-none-match": '"x"'}).status_code == 200
    plain = client.get(path, headers={"accept-encoding": "identity"})
    zipped = client.get(path, headers={"accept-encoding": "gzip"})
    assert plain.headers["etag"] != zipped.headers["etag"]


@pytest.mark.parametrize(
    "path",
    ["/page/", "/page/routes.py", "/page/__init__.py", "/page/vendor/README.md", "/page/index.html",
     "/page/../settings.py", "/page/%2e%2e/settings.py", "/page/..%2fsettings.py",
     "/page/vendor/../../settings.py", "/page/vendor/dompurify", "/page//etc",
     "/page/..\\settings.py", "/page/page.js%00.txt"],
)  # fmt: skip
def test_nothing_but_the_pages_files_is_sent(engine: Engine, path: str) -> None:
    response = client_of(engine).get(path, follow_redirects=False)
    assert response.status_code == 404
    assert "import" not in response.text


def test_without_the_page_there_is_none_of_it(engine: Engine) -> None:
    client = client_of(engine, page=False)
    for path in {*ASSETS, LIVE} - {"/"}:
        assert client.get(path).status_code == 404


def test_without_the_page_a_server_is_still_found(engine: Engine) -> None:
    client = client_of(engine, page=False, api_keys=("secret",))
    reply = client.get("/")
    assert (reply.status_code, reply.text) == (200, "ngramspec is running")
    assert reply.headers["content-type"] == "text/plain; charset=utf-8"
    asked = client.head("/")
    assert (asked.status_code, asked.content) == (200, b"")
    assert asked.headers["content-length"] == reply.headers["content-length"]


def test_the_page_refers_to_its_own_files_only(engine: Engine) -> None:
    client = client_of(engine)
    links: list[str] = []

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
            for name, value in attributes:
                assert not name.startswith("on")
                assert name != "style"
                if name in ("src", "href"):
                    links.append(str(value))

    Parser().feed(client.get("/").text)
    paths = {f"/{link}" for link in links if not link.startswith(("#", "data:"))}
    own = [path for path in ASSETS if path.endswith(".js") and "/vendor/" not in path]
    for path in own:
        text = client.get(path).text
        paths |= {f"/page/{name}" for name in re.findall(r'from "\./(.+?)"', text)}
        for dangerous in ("innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("):
            assert dangerous not in text
        assert set(re.findall(r"https?://[^\s\"'`]+", text)) <= {"http://www.w3.org/2000/svg"}
    licences = {path for path in ASSETS if "/LICENSE" in path}
    assert paths | licences == set(ASSETS) - {"/", "/favicon.ico"}


def test_libraries_have_their_licences_and_origin() -> None:
    folder = Path(page.__file__).parent / "vendor"
    readme = (folder / "README.md").read_text("utf-8")
    for library in (one for one in folder.iterdir() if one.is_dir()):
        files = [one.name for one in library.iterdir()]
        assert "LICENSE.txt" in files
        scripts = [name for name in files if not name.startswith("LICENSE")]
        assert all(f"{name}`" in readme for name in scripts), scripts
        assert f"| `{library.name}` |" in readme


def test_live_figures_are_those_of_the_engine(engine: Engine) -> None:
    client = client_of(engine, slots=True)
    prompt_ids = np.arange(1, 20, dtype=np.int32)
    engine.generate([Request(prompt_ids=prompt_ids, max_tokens=60)] * 3)
    figures, stats = client.get(LIVE).json(), engine.stats()
    assert figures["emitted_tokens"] == stats.num_emitted_tokens == 180
    assert figures["steps"] == stats.num_slot_steps > stats.num_steps
    assert figures["draft_tokens"] == stats.num_draft_tokens
    assert figures["accepted_tokens"] == stats.num_accepted_tokens
    assert figures["context"] == engine.context_size
    assert [slot["state"] for slot in figures["slots"]] == ["idle", "idle"]
    assert all(slot["tokens"] > 20 for slot in figures["slots"])
    sources = {source["name"]: source for source in figures["sources"]}
    assert set(sources) <= set(engine.source_stats())
    for name, source in sources.items():
        assert source["accepted_tokens"] == engine.source_stats()[name].num_accepted_tokens
        assert source["saved_seconds"] == engine.seconds_saved().get(name)
    assert {pool["name"]: pool["capacity"] for pool in figures["pools"]} == CAPACITIES
    assert client.get(LIVE).json()["time"] > figures["time"]


def test_the_live_figures_tell_how_full_the_pool_of_recycle_is() -> None:
    engine = Engine(FakeTarget(), "recycle", slots=1)
    engine.generate([Request(prompt_ids=np.arange(1, 20, dtype=np.int32), max_tokens=60)])
    pool = engine.drafters.successor_pool()
    assert pool is not None
    (figures,) = client_of(engine, slots=True).get(LIVE).json()["pools"]
    assert (figures["name"], figures["unit"]) == ("recycle", "keys")
    assert (figures["used"], figures["capacity"]) == (pool.num_entries, pool.capacity)
    assert figures["used"] > 5


def test_without_a_pool_there_are_no_figures_of_one() -> None:
    client = client_of(Engine(FakeTarget(), None, slots=1), slots=True)
    figures = client.get(LIVE).json()
    assert figures["pools"] == []
    assert figures["sources"] == []


def test_live_figures_are_protected_as_slots_are(engine: Engine) -> None:
    for path in (LIVE, "/slots"):
        assert client_of(engine, slots=False).get(path).status_code == 501
        assert client_of(engine, host="0.0.0.0").get(path).status_code == 501
        assert client_of(engine, slots=True, host="0.0.0.0").get(path).status_code == 200
        locked = client_of(engine, api_keys=("secret",))
        assert locked.get(path).status_code == 401
        assert locked.get(path, headers={"x-api-key": "secret"}).status_code == 200
        shut = client_of(engine, api_keys=("secret",), slots=False)
        assert shut.get(path, headers={"x-api-key": "secret"}).status_code == 501
    message = client_of(engine, slots=False).get(LIVE).json()["error"]["message"]
    assert "--slots" in message


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("127.0.0.1,::1", True),
     ("127.8.9.1", True), ("0.0.0.0", False), ("::", False), ("127.0.0.1,0.0.0.0", False),
     ("192.168.1.2", False), ("host.example", False), ("/run/x.sock", False)],
)  # fmt: skip
def test_live_figures_are_there_where_only_this_machine_comes(
    engine: Engine, host: str, here: bool
) -> None:
    client = client_of(engine, host=host)
    assert client.get(LIVE).status_code == (200 if here else 501)
    assert client.get("/slots").status_code == 501  # it tells more
    keys = ("one", "two")  # each learns for itself, so neither sees sums
    isolated = client_of(Engine(FakeTarget(), None), host=host, api_keys=keys)
    assert isolated.get(LIVE, headers={"x-api-key": "one"}).status_code == 501
