"""Variables that begin as ours and that nothing reads: told once, with the nearest that is read."""

from __future__ import annotations

import importlib
import logging
import os
import re
import subprocess
import sys
from types import ModuleType

import pytest

from helpers.files import posix
from helpers.paths import ROOT
from helpers.vllm_engine import config
from ngramspec.hosts import environment
from ngramspec.hosts.environment import OF_OTHERS, PREFIX, READ, warn_of_unknown
from ngramspec.hosts.vllm import settings

# By their full names: some packages have a function of the same name as the module.
VLLM, SGLANG, ARCTIC = (
    importlib.import_module(f"ngramspec.hosts.{name}")
    for name in ("vllm.plugin", "sglang.plugin", "arctic.install")
)
LOG = logging.getLogger("ngramspec.test")
NAME = re.compile(rf"(?<!_){PREFIX}([A-Z_]*[A-Z])\b")
MISSPELT = "ngramspec: nothing reads the variable NGRAMSPEC_DRAFTR; did you mean NGRAMSPEC_DRAFTER?"
IN_A_CHILD_FIRST = """
import logging, multiprocessing, sys
from ngramspec.hosts.environment import warn_of_unknown

child = multiprocessing.get_context("fork").Process(target=warn_of_unknown, args=(logging.root,))
child.start()
child.join()
print("the child has ended", file=sys.stderr, flush=True)
for _ in range(2):
    warn_of_unknown(logging.root)
"""


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_warned", set())


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_a_misspelt_variable_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    given = {"NGRAMSPEC_DRAFTR": "suffix", "NGRAMSPEC_DRAFTER": "suffix", "DRAFTR": "suffix"}
    for _ in range(2):
        warn_of_unknown(LOG, given)
    assert messages(caplog) == [MISSPELT]


def test_all_are_named_where_none_is_near(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_unknown(LOG, {"NGRAMSPEC_X": "1"})
    (told,) = messages(caplog)
    assert told.endswith(f"NGRAMSPEC_X; after NGRAMSPEC_ come {', '.join(READ)}")


@posix
def test_a_process_that_another_has_started_leaves_it_to_that_one() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_A_CHILD_FIRST],
        env={**os.environ, "NGRAMSPEC_DRAFTR": "suffix"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stderr.splitlines() == ["the child has ended", MISSPELT]


@pytest.mark.parametrize(
    ("module", "start"), [(VLLM, "register"), (SGLANG, "plugin"), (ARCTIC, "plugin")]
)
def test_plugins_tell_of_a_misspelt_switch(
    module: ModuleType,
    start: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    switch = str(module.SWITCH)
    monkeypatch.delenv(switch, raising=False)
    monkeypatch.setenv(f"{switch[:-1]}_", "1")
    monkeypatch.setattr(module, "log", LOG)
    getattr(module, start)()
    assert [told.split("; ")[1] for told in messages(caplog)] == [f"did you mean {switch}?"]


def test_vllms_proposers_tell_without_the_plugin(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settings, "log", LOG)
    settings.read_settings(config(), {"NGRAMSPEC_DRAFTR": "suffix"})
    assert messages(caplog) == [MISSPELT]


def test_every_variable_of_the_project_is_known() -> None:
    folders = (("ngramspec", "*.py"), ("docs", "*.md"), ("benchmarks", "*.py"))
    paths = [path for folder, names in folders for path in (ROOT / folder).rglob(names)]
    paths += [ROOT / name for name in ("setup.py", "Makefile", "Dockerfile", "CONTRIBUTING.md")]
    found = {name for path in paths for name in NAME.findall(path.read_text("utf-8"))}
    assert found > {"VLLM", "SGLANG", "ARCTIC", "DRAFTER", "MAX_EXAMPLES"}
    assert found <= {*READ, *OF_OTHERS}
    switches = {str(one.SWITCH).removeprefix(PREFIX) for one in (VLLM, SGLANG, ARCTIC)}
    assert {*map(str.upper, settings._FROM_TEXT), *switches} == set(READ)
