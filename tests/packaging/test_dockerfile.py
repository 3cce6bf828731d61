"""The container: its health check asks where the variable says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from helpers.paths import ROOT

TEXT = (ROOT / "Dockerfile").read_text("utf-8")


@contextmanager
def answering(status: int) -> Iterator[str]:
    """Run a server that answers so on one path; yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/below/health" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/below/health"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("status", [200, 503])
def test_the_health_check_asks_where_it_is_told(status: int) -> None:
    match = re.search(r"^HEALTHCHECK [^\n]*\n +CMD (\[.*\])$", TEXT, re.M)
    assert match is not None
    command = [sys.executable, *json.loads(match[1])[1:]]
    with answering(status) as url:
        environment = {**os.environ, "NGRAMSPEC_HEALTH_URL": url, "no_proxy": "*"}
        done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (done.returncode == 0) == (status == 200)


def test_the_health_check_asks_the_default_port() -> None:
    from ngramspec.cli.serve import serve

    port = next(param.default for param in serve.params if param.name == "port")
    assert f"ENV NGRAMSPEC_HEALTH_URL=http://127.0.0.1:{port}/health\n" in TEXT
