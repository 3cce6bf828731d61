"""A running `ngramspec serve`, and pages of a browser whose consoles are watched.

NGRAMSPEC_SLOW_PAGES makes the pages slow: with 8,500 their scripts take 8 times the time, and what
server and database answer comes 500 ms later. A test that looks at a page too early fails then.
"""

from __future__ import annotations

import json
import os
import re
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KEY = "the-key"
ANSWER_SECONDS = 60
SLOWNESS, DELAY = map(int, os.environ.get("NGRAMSPEC_SLOW_PAGES", "1,0").split(","))  # times, ms
# In the page: answers that tests make up do not pass the network, which could be slow as well.
LATE = """(() => {
    const late = value => new Promise(go => setTimeout(() => go(value), %d));
    const fetched = window.fetch;
    window.fetch = (...all) => fetched(...all).then(late);
    const {set} = Object.getOwnPropertyDescriptor(IDBTransaction.prototype, 'oncomplete');
    Object.defineProperty(IDBTransaction.prototype, 'oncomplete', {
        set(listener) { set.call(this, event => late(event).then(listener)); }
    });
})()"""
# With policy auto the machine's speed would decide whether anything is drafted at all.
OPTIONS = ("--spec-type", "ngram-mod,ngram-cache", "--policy", "fixed", "--parallel", "2",
           "--temp", "0")  # fmt: skip


@dataclass
class Server:
    """Where a server is."""

    url: str
    key: str = ""

    def get(self, path: str) -> str:
        """Return the body of a GET request."""
        headers = {"authorization": f"Bearer {self.key}"} if self.key else {}
        request = urllib.request.Request(self.url + path, headers=headers)
        with urllib.request.urlopen(request, timeout=10) as response:
            return str(response.read().decode())


@dataclass
class Pages:
    """Opens pages in a context that tests share, and keeps what their consoles complain about."""

    context: Any
    folder: Path
    complaints: list[str] = field(default_factory=list)

    def open(self, url: str, *, width: int = 1280, height: int = 800, dark: bool = False) -> Any:
        """Return a page at the URL that shares what the others store.

        In a window of its own: a tab that is hidden is drawn, and takes clicks, once a second. The
        first page opens it and stays, so that its process, which has read the scripts, is used.
        """
        with self.context.expect_page() as opened:
            self.context.pages[0].evaluate("() => void open('about:blank', '', 'popup')")
        page = opened.value
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme="dark" if dark else "light")
        page.on("console", lambda line: line.type == "error" and self.complaints.append(line.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        if SLOWNESS > 1:
            session = page.context.new_cdp_session(page)
            session.send("Emulation.setCPUThrottlingRate", {"rate": SLOWNESS})
        page.goto(url)
        return page

    def shot(self, page: Any, name: str) -> None:
        """Save a screenshot."""
        page.screenshot(path=self.folder / f"{name}.png")

    def close(self) -> None:
        """Close all pages but the first and empty what they stored.

        Fails when a console complained of anything unexpected.
        """
        # Answers of 4xx and 5xx are what some tests are about; Chromium reports all of them.
        expected = "the server responded with a status"
        unexpected = [text for text in self.complaints if expected not in text]
        first, *others = self.context.pages
        origins = {page.url for page in (first, *others)}
        for page in others:
            page.close()  # what it cuts off is complained of, too
        session = self.context.new_cdp_session(first)
        for url in origins:
            session.send("Storage.clearDataForOrigin", {"origin": url, "storageTypes": "all"})
        session.detach()
        self.context.clear_permissions()
        assert not unexpected, unexpected


def send(page: Any, text: str) -> None:
    """Type a message and send it."""
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def expect(page_or_locator: Any) -> Any:
    """Return Playwright's assertions about it, which wait until they hold."""
    from playwright.sync_api import expect as expected  # here: modules are read without Playwright

    expected.set_options(timeout=1000 * ANSWER_SECONDS)
    return expected(page_or_locator)


def exactly(text: str) -> re.Pattern[str]:
    """Return what only this text fits: `expect` takes any white space for a text's own."""
    return re.compile(f"^{re.escape(text)}$")


def wait(page: Any, condition: Callable[[], object]) -> None:
    """Wait until it is so, while what the page does is told here."""
    end = time.monotonic() + ANSWER_SECONDS
    while not condition():
        assert time.monotonic() < end, page.inner_text("body")
        page.wait_for_timeout(50)


def until(page: Any, condition: str, arg: Any = None) -> None:
    """Wait until a function of the page returns true.

    Asked from here: on a busy machine a wait inside the page can miss what has long come true.
    """
    wait(page, lambda: page.evaluate(condition, arg))


def settled(page: Any) -> None:
    """Let the page do what it has begun, before a check that it has left something alone."""
    page.evaluate("() => new Promise(go => requestAnimationFrame(() => setTimeout(go)))")


def failed_picture(page: Any) -> None:
    """Wait until a picture fails to load, as pictures of hostile texts would have before it."""
    page.evaluate(
        """() => new Promise(go => {
            Object.assign(new Image(), {onerror: () => go(), src: 'x'});
        })"""
    )


def finished(page: Any, answers: int = 1) -> None:
    """Wait until so many answers are complete, or the page tells of an error."""
    until(
        page,
        """n => {
            const complete = document.querySelectorAll('.assistant:not(.busy) .facts').length;
            const busy = document.body.classList.contains('busy');
            return !busy && (!document.getElementById('notice').hidden || complete >= n);
        }""",
        answers,
    )


def ask(page: Any, text: str, answers: int = 1) -> None:
    """Send a message and wait until so many answers are complete."""
    send(page, text)
    finished(page, answers)


def without_drafts(page: Any) -> None:
    """Let answers be made without drafts, which is slower."""
    page.locator("#drafts summary").click()
    page.get_by_label("Off").check()
    page.keyboard.press("Escape")


def events(*values: dict[str, Any]) -> str:
    """Return the body of a stream of events."""
    return "".join(f"data: {json.dumps(value)}\n\n" for value in values) + "data: [DONE]\n\n"


def event_of(text: str, drafted: bool = False, **delta: Any) -> dict[str, Any]:
    """Return an event with text, or with another delta, and where the text came from."""
    spans = {"accepted": int(drafted), "spans": [[text, drafted]]}
    return {"choices": [{"delta": delta or {"content": text}}], "speculative": spans}


def last(tokens: int = 10, reason: str = "stop") -> dict[str, Any]:
    """Return the last event of an answer."""
    timings = {
        "cache_n": 0,
        "prompt_n": 5,
        "prompt_ms": 1.0,
        "predicted_n": tokens,
        "predicted_ms": 10.0 * tokens,
        "predicted_per_second": 100.0,
    }
    return {"choices": [{"delta": {}, "finish_reason": reason}], "timings": timings}


def answers_with(page: Any, *texts: str, reason: str = "stop") -> None:
    """Let the page get answers with these pieces of text, whatever it got before."""
    body = events(
        *[event_of(text, index % 2 == 1) for index, text in enumerate(texts)], last(10, reason)
    )
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body))


def bodies_of(page: Any) -> list[Any]:
    """Return a list that gets the body of every request that the page posts."""
    bodies: list[Any] = []
    page.on("request", lambda r: r.method == "POST" and bodies.append(r.post_data_json))
    return bodies
