"""Pages of others in a browser: what they make it send is refused, unless it is allowed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from browser.conftest import STRANGER
from helpers.browser import Server, expect

# Resolves to the server's answer, or to "no" where the browser does not let the page read it.
ASK = """async ([url, options]) => {
    try { return (await fetch(url, options)).status } catch { return "no" }
}"""


class Page(BaseHTTPRequestHandler):
    """An empty page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>x</title><form method=post><input name=x></form>")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    """Return the origin of a page of somebody else."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{STRANGER}:{server.server_port}"
        server.shutdown()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """Return a page that shares nothing with others."""
    with browser.new_context() as context:
        yield context.new_page()


def requests(server: Server) -> int:
    """Return how many requests the engine was given."""
    lines = server.get("/metrics").splitlines()
    return int(float(next(x for x in lines if x.startswith("ngramspec:requests_total")).split()[1]))


def ask(page: Any, url: str, kind: str, mode: str) -> Any:
    body = json.dumps({"prompt": "x", "n_predict": 1})
    options = {"method": "POST", "mode": mode, "headers": {"content-type": kind}, "body": body}
    return page.evaluate(ASK, [f"{url}/completion", options])


def test_a_page_of_somebody_else_can_make_the_server_do_nothing(
    server: Server, page: Any, origin: str
) -> None:
    page.goto(origin)
    before = requests(server)
    assert ask(page, server.url, "text/plain", "no-cors") in (0, "no")  # sent, and not to be read
    assert ask(page, server.url, "application/json", "cors") == "no"
    assert ask(page, server.url, "text/plain", "cors") == "no"
    page.evaluate(
        """url => {
            const form = document.forms[0];
            Object.assign(form, {action: url, enctype: "text/plain"});
            form.elements.x.name = '{"prompt": "';
            form.elements[0].value = 'x", "n_predict": 1}';
            form.submit();
        }""",
        f"{server.url}/completion",
    )
    page.wait_for_url(f"{server.url}/completion")
    expect(page.locator("body")).to_contain_text("may not ask this server")
    assert requests(server) == before


def test_a_page_that_gives_itself_our_address_reads_nothing(server: Server, page: Any) -> None:
    port = urlsplit(server.url).port
    for path in ("/props", "/"):
        reply = page.goto(f"http://{STRANGER}:{port}{path}")
        assert reply.status == 403
        assert "--allow-host" in reply.text()


def test_an_allowed_page_and_the_own_one_may_ask(
    start: Callable[..., Server], page: Any, origin: str
) -> None:
    server = start("--metrics", "--cors-origins", origin, exact=False)
    page.goto(origin)
    before = requests(server)
    assert ask(page, server.url, "application/json", "cors") == 200
    assert ask(page, server.url, "text/plain", "cors") == 200
    for url in (server.url, server.url.replace("127.0.0.1", "localhost")):
        page.goto(url)
        assert ask(page, url, "application/json", "cors") == 200
        assert ask(page, url, "text/plain", "cors") == 415
    assert requests(server) == before + 4
