"""Who may ask: web pages of others may not, programs of all kinds may."""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import subprocess
from shutil import which
from typing import Any
from urllib.parse import urlsplit

import httpx
import ollama
import pytest
from starlette.datastructures import Headers

from helpers.serving import CHAT, Serving, Start
from ngramspec.server import ServerSettings
from ngramspec.server.errors import ApiError
from ngramspec.server.http.origins import Origins

BODY = json.dumps({"content": "x"}).encode()
FORMS = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x")


def verdict(
    method: str = "POST", settings: ServerSettings | None = None, **headers: str | list[str] | None
) -> int:
    """Return the status of a request with these headers, 200 if it may pass."""
    fields = {"host": "localhost:8080", "content_type": "application/json", **headers}
    raw = [
        (name.replace("_", "-").encode(), value.encode())
        for name, values in fields.items()
        for value in ([values] if isinstance(values, str) else values or ())
    ]
    try:
        Origins(settings or ServerSettings()).check(method, Headers(raw=raw))
    except ApiError as error:
        return error.status
    return 200


NEAR = (
    *("localhost", "LOCALHOST:8080", "localhost.", "127.0.0.1:8080", "127.8.9.1", "[::1]:8080"),
    *("192.168.1.7:8080", "203.0.113.9", "[fd00::7]", "[fe80::1%25eth0]:80", "gpubox:8080"),
    *("gpubox.local", "host.docker.internal:8080", "a.b.svc.cluster.local", "box.home.arpa", ""),
)
FAR = (
    *("evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example"),
    *("local.example", "evil.example.", "evillocal.com", "xn--80ak6aa92e.com", "a.b:80:80.com"),
)


@pytest.mark.parametrize("host", NEAR)
def test_names_that_no_stranger_can_own_are_answered(host: str) -> None:
    assert verdict(host=host) == 200
    assert verdict("GET", host=host) == 200


@pytest.mark.parametrize("host", FAR)
def test_names_that_a_stranger_may_have_pointed_here_are_not(host: str) -> None:
    for method in ("GET", "POST", "OPTIONS", "HEAD"):
        assert verdict(method, host=host) == 403
    # what rebinding looks like to a browser: one origin
    rebound = {"origin": f"http://{host}", "sec_fetch_site": "same-origin"}
    assert verdict(host=host, **rebound) == 403
    assert verdict(host=["localhost", host]) == 403
    assert verdict(host=host, settings=ServerSettings(host="0.0.0.0")) == 403


def test_a_request_without_a_host_comes_from_no_browser() -> None:
    assert verdict(host=None) == 200


@pytest.mark.parametrize(
    "settings",
    [
        {"allowed_hosts": ("a.evil.example",)},
        {"allowed_hosts": ("b.example", "A.Evil.Example.")},
        {"allowed_hosts": (".evil.example",)},
        {"allowed_hosts": ("*.evil.example",)},
        {"allowed_hosts": ("*",)},
        {"host": "a.evil.example"},
        {"api_keys": ("a key that no page knows",)},
        {"host": "/run/server.sock"},
    ],
    ids=str,
)
def test_further_names_can_be_allowed(settings: dict[str, Any]) -> None:
    server_settings = ServerSettings(**settings)
    assert verdict(host="a.evil.example:80", settings=server_settings) == 200
    names = settings.get("allowed_hosts", ("",))
    if names != ("*",) and set(settings) == {"allowed_hosts"}:
        for other in ("evil.example", "aevil.example", "a.evil.example.com", "c.d"):
            assert verdict(host=other, settings=server_settings) == 403


@pytest.mark.parametrize(
    "origin",
    [
        *("https://evil.example", "http://evil.example:8080", "null", "", "evil", "http://"),
        *("http://localhost.evil.example", "http://192.168.1.7", "https://[::2]"),
    ],
)
@pytest.mark.parametrize("site", [None, "cross-site", "same-site", "none", "new-word"])
def test_pages_of_others_may_not_ask(origin: str, site: str | None) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        assert verdict(method, origin=origin, sec_fetch_site=site) == 403
    keys = ServerSettings(api_keys=("key",))
    assert verdict(origin=origin, sec_fetch_site=site, settings=keys) == 403


@pytest.mark.parametrize(
    "origin",
    [
        *(
            "http://localhost:8080",
            "https://localhost",
            "http://127.0.0.1:3000",
            "http://[::1]:5173",
        ),
        *("http://tauri.localhost", "vscode-webview://abc", "app://obsidian.md", "file://"),
        "chrome-extension://abcdefgh",
    ],
)
def test_pages_and_programs_of_this_machine_may(origin: str) -> None:
    assert verdict(origin=origin) == 200


def test_the_own_page_may_ask_by_whatever_name_it_came() -> None:
    for host in ("localhost:8080", "192.168.1.7:8080", "gpubox", "[::1]:80"):
        for scheme in ("http", "https"):  # a proxy may speak TLS
            assert verdict(host=host, origin=f"{scheme}://{host}") == 200
    behind = {"host": "127.0.0.1:8080", "origin": "https://llm.example.com"}
    assert verdict(**behind, sec_fetch_site="same-origin") == 200  # the proxy sets Host
    assert verdict(**behind) == 403
    assert verdict(**behind, settings=ServerSettings(allowed_hosts=("llm.example.com",))) == 200


def test_origins_can_be_allowed() -> None:
    listed = ServerSettings(cors_origins=("https://a.example",))
    for kind in ("application/json", "text/plain"):
        fields: Any = {"content_type": kind, "settings": listed, "sec_fetch_site": "cross-site"}
        assert verdict(origin="https://a.example", **fields) == 200
        assert verdict(origin="https://b.example", **fields) == 403
    here = ServerSettings(cors_origins=("localhost",))  # llama-server's word for this machine
    for place in ("localhost", "app.localhost:3000", "127.0.0.1:5173", "[::1]:80"):
        fields = {"settings": here, "sec_fetch_site": "cross-site", "host": "10.0.0.1:8080"}
        assert verdict(origin=f"http://{place}", **fields) == 200
    assert verdict(origin="http://localhost.example", settings=here) == 403
    every = ServerSettings(cors_origins=("*",))
    assert verdict(origin="https://b.example", settings=every) == 200


def test_links_and_images_of_other_pages_may_be_followed_but_not_posted() -> None:
    for site in ("cross-site", "same-site", "none", "same-origin"):
        assert verdict("GET", sec_fetch_site=site) == 200
    for site in ("cross-site", "same-site"):
        assert verdict("POST", sec_fetch_site=site) == 403


@pytest.mark.parametrize("kind", [*FORMS, "application/json", "", None, "nonsense"])
def test_programs_may_declare_a_body_as_they_like(kind: str | None) -> None:
    assert verdict(content_type=kind) == 200


@pytest.mark.parametrize("kind", [*FORMS, "", None, "application/jsonx", "text/json"])
def test_browsers_must_declare_json(kind: str | None) -> None:
    for mark in ({"origin": "http://localhost:8080"}, {"sec_fetch_site": "same-origin"}):
        assert verdict(content_type=kind, **mark) == 415
        for json_kind in ("application/json", "Application/JSON; charset=utf-8"):
            assert verdict(content_type=json_kind, **mark) == 200


# -- a running server ------------------------------------------------------------------------------


def test_what_a_page_can_do_without_asking_reaches_nothing(server: Serving) -> None:
    """fetch(url, {method: "POST", mode: "no-cors", body}) and forms, as browsers send them."""
    for kind, site in itertools.product(FORMS, ("cross-site", "same-site")):
        headers = {
            "origin": "https://evil.example",
            "content-type": kind,
            "sec-fetch-site": site,
            "sec-fetch-mode": "no-cors",
        }
        for path in ("/v1/chat/completions", "/completion", "/api/generate", "/tokenize"):
            reply = httpx.post(server.url + path, content=BODY, headers=headers)
            assert reply.status_code == 403
            assert "'https://evil.example' may not ask" in reply.text
            assert "--cors-origins" in reply.text
            assert "access-control-allow-origin" not in reply.headers


def test_a_rebound_name_reads_nothing(server: Serving) -> None:
    port = urlsplit(server.url).port
    headers = {"host": f"evil.example:{port}"}
    for path in ("/props", "/slots", "/v1/models", "/health", "/", "/nowhere"):
        reply = httpx.get(server.url + path, headers=headers)
        assert reply.status_code == 403
        assert "evil.example" in reply.text
        assert "--allow-host" in reply.text
        assert "gguf" not in reply.text


def test_ordinary_clients_are_answered(server: Serving) -> None:
    for name in ("127.0.0.1", "localhost"):
        url = server.url.replace("127.0.0.1", name)
        with ollama.Client(url) as client:
            answer = client.generate(model="tiny", prompt="x", options={"num_predict": 1})
        assert answer["done"]
        assert httpx.post(f"{url}/tokenize", json={"content": "x"}).status_code == 200
    assert server.chat(max_tokens=1).usage.completion_tokens == 1
    assert httpx.get(f"{server.url}/").headers["content-type"].startswith("text/html")


@pytest.mark.skipif(which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("path", ["/api/generate", "/v1/completions", "/completion"])
def test_curl_needs_no_headers(server: Serving, path: str) -> None:
    """As in Ollama's documentation: curl declares a form."""
    body = json.dumps(
        {"model": "tiny", "prompt": "x", "max_tokens": 2, "options": {"num_predict": 2}}
    )
    command = ["curl", "-sS", "-w", "%{http_code}", server.url + path, "-d", body]
    own = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=own)
    assert done.stdout.endswith("200")


def test_a_page_of_an_allowed_origin_asks_and_reads(start: Start) -> None:
    server = start(slots=1, cors_origins=("https://a.example",), allowed_hosts=("llm.example",))
    headers = {"origin": "https://a.example", "host": "llm.example", "sec-fetch-site": "cross-site"}
    body = {"messages": CHAT, "max_tokens": 1}
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=60)
    assert reply.status_code == 200
    assert reply.headers["access-control-allow-origin"] == "https://a.example"
    headers["origin"] = "https://b.example"
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers)
    assert reply.status_code == 403
    assert "access-control-allow-origin" not in reply.headers


def test_hostile_headers_do_no_harm(server: Serving) -> None:
    place = urlsplit(server.url)
    for value in (
        b"\xff\xfe",
        b"[",
        b"[::1",
        b"::::",
        b"%0a",
        b"a" * 5000 + b".b",
        b"\xe9.example",
    ):
        for name in (b"Host", b"Origin"):
            with socket.create_connection((place.hostname, place.port)) as sock:
                host = b"" if name == b"Host" else b"Host: x\r\n"
                head = b"GET /health HTTP/1.1\r\n%sConnection: close\r\n%s: %s\r\n\r\n"
                sock.sendall(head % (host, name, value))
                answer = b""
                while data := sock.recv(65536):
                    answer += data
            assert re.match(rb"HTTP/1.1 (200|400|403) ", answer), answer
            assert len(answer) < 2000
