"""All tests: those that take longest go first, so that no core waits for them at the end."""

from __future__ import annotations

import functools
import gc
import os
import signal
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from helpers import exact_settings
from helpers.machines import examples
from ngramspec.llamacpp import exact, saved_costs

# How long an example takes says more about the machine than about the code. The same examples every
# time, unless more are asked for.
settings.register_profile(
    "repeatable",
    deadline=None,
    max_examples=examples(50),
    derandomize="NGRAMSPEC_MAX_EXAMPLES" not in os.environ,
)
settings.load_profile("repeatable")

# What passes cost on a busy machine decides nothing in tests but those of calibration.
saved_costs.SECONDS = 0.0
os.environ["LLAMA_ARG_CALIBRATE"] = "0"


def keep_nothing(key: Mapping[str, Any], ending: str) -> Path:
    """Have an exact setting looked for in every run of the tests, as the code may have changed."""
    raise OSError("tests keep none")


exact.path_of = keep_nothing
exact.find_exact = exact_settings.find_once
exact.trees_differ = exact_settings.differ_once

# Each client of HTTP would read all certificates of the system anew; servers of tests have none.
ssl.create_default_context = functools.cache(ssl.create_default_context)

# A shell starts background jobs with Ctrl-C ignored, and so would be all programs that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONG = (
    "fuzz/test_fuzz.py",
    "packaging/test_distribution.py",
    "builder/test_ray_build.py",
    "soak/test_hostile.py",
    "soak/test_soak.py",
    "server/test_hostile_requests.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take longest first; the order is otherwise kept."""
    items.sort(key=lambda item: not item.path.as_posix().endswith(LONG))


@pytest.fixture(scope="module", autouse=True)
def _older_objects_are_left_alone() -> None:
    """Leave what was there before a module out of what collections of garbage look through."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _workers_share_exact_settings(tmp_path_factory: pytest.TempPathFactory) -> None:
    if "PYTEST_XDIST_WORKER" in os.environ:
        exact_settings.FOLDER = str(tmp_path_factory.getbasetemp().parent)
        os.environ["EXACT_SETTINGS"] = exact_settings.FOLDER  # for the processes of tests
