"""A browser and real servers on the embedded model, each started when a test first needs it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from helpers.browser import ANSWER_SECONDS, DELAY, KEY, LATE, OPTIONS, Pages, Server

STRANGER = "evil.example"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PACKAGES = ("playwright", "starlette", "llama_cpp")
MISSING = [f"the package {name}" for name in PACKAGES if find_spec(name) is None]
if CHROMIUM is None:
    MISSING.append("the program chromium")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the folder where something is missing; with CI set, let it fail instead."""
    if not MISSING or os.environ.get("CI"):
        return
    skip = pytest.mark.skip(reason=f"the browser tests need {' and '.join(MISSING)}")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(skip)


# The browser is closed after this folder: while it is open, asyncio counts the main thread's loop
# as running, and tests of other folders could not use one.
@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """Return the browser."""
    assert not MISSING, f"the browser tests need {' and '.join(MISSING)}"
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # No sandbox: CI runs as root. The name of somebody else has our address.
        args = ["--no-sandbox", f"--host-resolver-rules=MAP {STRANGER} 127.0.0.1",
                "--disable-features=LocalNetworkAccessChecks"]  # fmt: skip
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=args)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def start() -> Iterator[Callable[..., Server]]:
    """Start a server, once per set of options.

    exact: The requests before, whose cached tokens are reused, do not decide which of two tokens
    is chosen. Without it a server starts in half the time.
    """
    from helpers.command import Process

    running: dict[tuple[str, ...], Server] = {}
    with ExitStack() as stack:

        def started(*options: str, key: str = "", exact: bool = True) -> Server:
            if exact:
                options = ("--exact", *options)
            if options not in running:
                process = stack.enter_context(Process(*OPTIONS, *options))
                running[options] = Server(process.url(), key)
            return running[options]

        yield started


@pytest.fixture(scope="package")
def server(start: Callable[..., Server]) -> Server:
    """Return a server that tells everything, as it does on this machine, and asks for no key."""
    return start("--metrics")


@pytest.fixture
def locked(start: Callable[..., Server]) -> Server:
    """Return a server that asks for a key."""
    return start("--api-key", KEY, key=KEY, exact=False)


@pytest.fixture(scope="package")
def context(browser: Any, server: Server) -> Any:
    """Return what holds the pages of all tests, and one that stays."""
    context = browser.new_context()
    context.set_default_timeout(1000 * ANSWER_SECONDS)
    context.new_page().goto(f"{server.url}/health")
    if DELAY:
        context.add_init_script(LATE % DELAY)
    return context


@pytest.fixture
def pages(context: Any, tmp_path: Path) -> Iterator[Pages]:
    """Return what opens pages; screenshots go to the test's folder."""
    pages = Pages(context, tmp_path)
    yield pages
    pages.close()


@pytest.fixture
def page(server: Server, pages: Pages) -> Any:
    """Return the page of that server."""
    return pages.open(server.url)
