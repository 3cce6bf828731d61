"""A server whose model says what a test wants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.testclient import TestClient

from helpers.scripted_model import ScriptedModel, ScriptedTarget
from ngramspec.engine import Engine, EngineThread
from ngramspec.server import ServedModel, ServerSettings, create_app

TEMPLATE = "{{ tools }} <tool_call> <think>"


@contextmanager
def serving_script(
    script: str,
    template: str = TEMPLATE,
    kind: type[ScriptedModel] = ScriptedModel,
    **settings: Any,
) -> Iterator[TestClient]:
    """Run a server in the block, whose model always answers with the script; yield a client.

    settings: Those of the server.
    """
    engine = Engine(ScriptedTarget(script), "suffix", slots=2)
    served = ServedModel(name="tiny", model=kind(template), engine=engine)
    app = create_app(served, ServerSettings(**settings))
    with EngineThread(engine), TestClient(app, base_url="http://localhost") as client:
        yield client
