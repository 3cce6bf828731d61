"""A pytest plugin for llama-server's tests: models replaced by ours, literal words loosened.

Those tests download models and check some literal words that these write. Loaded with `-p`, with
the folder of the tests first in sys.path. See run.py, which sets the variables read here.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from requests.structures import CaseInsensitiveDict

TESTS = os.environ["PEER_TESTS"]  # llama.cpp's tools/server/tests
MODEL = os.environ["PEER_MODEL"]
INFILL_MODEL = os.environ["PEER_INFILL_MODEL"]
LOOSE = os.environ.get("PEER_LOOSE") == "1"


def pytest_configure(config: pytest.Config) -> None:
    """Change the helpers that the tests import, before they do."""
    sys.path.insert(0, TESTS)
    import utils

    def local(make: Any, path: str, pooling: str | None = None) -> Any:
        def preset() -> Any:
            server = make()
            server.pooling = pooling
            server.model_hf_repo = server.model_hf_file = None
            server.model_file = path
            return server

        return staticmethod(preset)

    presets = utils.ServerPreset
    for name in ("bert_bge_small", "bert_bge_small_with_fa"):  # says itself how it pools
        setattr(presets, name, local(getattr(presets, name), MODEL, "last"))
    for name in ("tinyllama2", "stories15m_moe"):
        setattr(presets, name, local(getattr(presets, name), MODEL))
    presets.tinyllama_infill = local(presets.tinyllama_infill, INFILL_MODEL)
    presets.load_all = staticmethod(lambda: None)  # each model would be started once
    utils.ServerProcess.model_hf_repo = utils.ServerProcess.model_hf_file = None
    download = utils.download_file

    def downloaded(url: str, output_file_path: str | None = None) -> str:
        """Return a model of ours for the stories model as a draft model."""
        if Path(url).name.startswith("stories") and url.endswith(".gguf"):
            return MODEL
        return str(download(url, output_file_path))

    utils.download_file = downloaded
    ask = utils.ServerProcess.make_request

    def asked(*args: Any, **named: Any) -> Any:
        """Return a response whose headers have their names in any case, as HTTP says."""
        response = ask(*args, **named)
        response.headers = CaseInsensitiveDict(response.headers)
        return response

    utils.ServerProcess.make_request = asked
    start = utils.ServerProcess.start

    def started(server: Any, *args: Any, **named: Any) -> None:
        """Start a server; some tests set names of models to download again."""
        if server.model_file in (MODEL, INFILL_MODEL):
            server.model_hf_repo = server.model_hf_file = None
        start(server, *args, **named)

    utils.ServerProcess.start = started
    if LOOSE:
        utils.match_regex = lambda regex, text: isinstance(text, str) and bool(text)
