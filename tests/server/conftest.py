"""Fixtures: the embedded model, loaded once, and servers on it, one per module."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

pytest.importorskip("llama_cpp")
pytest.importorskip("starlette", reason="needs the extra 'server'")
pytest.importorskip("httpx")
if importlib.util.find_spec("openai") is None:
    pytest.skip("needs openai", allow_module_level=True)

from helpers.command import Process
from helpers.serving import Serving, serving
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.models import embedded_model


@pytest.fixture(scope="session")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(embedded_model()) as model:
        yield model


@pytest.fixture(scope="module")
def server(model: LlamaModel) -> Iterator[Serving]:
    """A server with 4 slots, greedy by default, without keys."""
    with serving(model) as server:
        yield server


@pytest.fixture
def start(model: LlamaModel) -> Iterator[Callable[..., Serving]]:
    """Return a function that starts a server with settings of its own."""
    with ExitStack() as stack:

        def start(**settings: Any) -> Serving:
            return stack.enter_context(serving(model, **settings))

        yield start


@pytest.fixture
def spawn() -> Iterator[Callable[..., Process]]:
    """Return a function that starts the command; arguments as Process."""
    with ExitStack() as stack:

        def spawn(*arguments: str, **options: Any) -> Process:
            process = Process(*arguments, **options)
            stack.callback(process.close)
            return process

        yield spawn
