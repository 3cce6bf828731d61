"""A server whose model says what a test wants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.testclient import TestClient

from helpers.scripted_model import ScriptedModel, ScriptedTarget
from ngramspec.engine import Engine, EngineThread
from ngramspec.server import ServedModel, create_app

TEMPLATE = "{{ tools }} <tool_call> <think>"


@contextmanager
def serving_script(script: str, template: str = TEMPLATE) -> Iterator[TestClient]:
    """Run a server in the block, whose model always answers with the script; yield a client."""
    engine = Engine(ScriptedTarget(script), "suffix", slots=2)
    app = create_app(ServedModel(name="script", model=ScriptedModel(template), engine=engine))
    with EngineThread(engine), TestClient(app, base_url="http://localhost") as client:
        yield client
