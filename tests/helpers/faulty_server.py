"""`ngramspec` with parts that hang or raise once a file with their name is in NGRAMSPEC_FAULTS.

decode: a decode that never ends. fail: a step of the engine that raises, and so does what the
engine does then.
save: a file that never reaches the disk. prepare: the tokeniser never ends.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ngramspec.cli import main
from ngramspec.cli.serve import run as serve_run
from ngramspec.engine import Engine
from ngramspec.llamacpp.model import LlamaModel
from ngramspec.llamacpp.target import LlamaTarget
from ngramspec.server.bridge import intake
from ngramspec.server.http import run

FOLDER = Path(os.environ["NGRAMSPEC_FAULTS"])


def faulty(name: str) -> bool:
    return (FOLDER / name).exists()


def hang() -> None:
    (FOLDER / "hangs").touch()
    time.sleep(3600)


def broken(function: Callable[..., Any], **faults: Callable[[], None]) -> Callable[..., Any]:
    """Return a function that shows its faults first, those that are wanted now."""

    def call(*arguments: Any, **options: Any) -> Any:
        for name, show in faults.items():
            if faulty(name):
                show()
        return function(*arguments, **options)

    return call


def fail() -> None:
    raise ZeroDivisionError("the device is gone")


LlamaTarget.decode = broken(LlamaTarget.decode, decode=hang)  # type: ignore[method-assign]
Engine.step = broken(Engine.step, fail=fail)  # type: ignore[method-assign]
Engine.fail = broken(Engine.fail, fail=fail)  # type: ignore[method-assign]
LlamaModel.tokenize = broken(LlamaModel.tokenize, prepare=hang)  # type: ignore[method-assign]
os.fsync = broken(os.fsync, save=hang)
for constant in ("REQUEST_SECONDS", "STEP_SECONDS", "SAVE_SECONDS", "PREPARE_SECONDS"):
    setattr(serve_run, constant, 1.0)
serve_run.SERVER_SECONDS = 5.0
run.LAST_SECONDS = 1
intake.LAST_SECONDS = 0.5
main()
