"""Seeds and inputs that once failed pass every target; a short guided search finds no others."""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
from collections.abc import Iterator

import pytest

pytest.importorskip("llama_cpp")
pytest.importorskip("starlette", reason="needs the extra 'server'")
pytest.importorskip("httpx")

from fuzz.replay import Replayer
from fuzz.target import FOLDER, NAMES, inputs_of, load

SECONDS = float(os.environ.get("FUZZ_SECONDS", "1.5"))  # per target
# A short search is the same every time, so that it fails where something has changed. It says that
# targets can be searched: what they hold back is found by long ones, with all the targets.
LONG = "FUZZ_SECONDS" in os.environ
SEED = () if LONG else ("--seed", "1")
SEARCHED = NAMES if LONG else ("modelfiles", "gguf")  # changed as text, and as what it is
HAS_WHEEL = (
    sys.platform == "linux"
    and platform.machine() == "x86_64"
    and (3, 11) <= sys.version_info[:2] <= (3, 14)
)


@pytest.fixture(scope="module", params=NAMES)
def replayer(request: pytest.FixtureRequest) -> Iterator[tuple[str, Replayer]]:
    with Replayer(request.param, load(request.param).seconds) as process:
        yield request.param, process


def test_kept_inputs_pass(replayer: tuple[str, Replayer], tmp_path) -> None:
    name, process = replayer
    paths = inputs_of(name)
    for number, data in enumerate(load(name).more_seeds()):
        paths.append(tmp_path / f"made-{number}")
        paths[-1].write_bytes(data)
    assert paths
    failed = {path.name: kind for path in paths if (kind := process.kind(path)) != "ok"}
    assert failed == {}, process.log()


def test_every_target_is_known() -> None:
    modules = {path.stem for path in (FOLDER / "targets").glob("*.py")} - {"__init__"}
    assert modules == set(NAMES)
    assert {path.name for path in (FOLDER / "corpus").iterdir()} <= modules


def test_a_failure_is_told_and_the_next_input_gets_another_process(tmp_path) -> None:
    """What looks for failures sees each kind: an exception, an end, and a hang."""
    program = tmp_path / "fuzz_program.py"
    program.write_text(
        "import os, sys, time\n"
        "print('ready', flush=True)\n"
        "for line in sys.stdin:\n"
        "    what = open(line.strip()).read()\n"
        "    if what == 'abort': os.abort()\n"
        "    if what == 'hang': time.sleep(600)\n"
        "    print(what, flush=True)\n"
        "    if what != 'ok': sys.exit(1)\n"
    )
    inputs = (b"ok", b"abort", b"ok", b"hang", b"E x", b"ok")
    with Replayer("any", 1.0, program) as replayer:
        kinds = [replayer.kind_of_bytes(data) for data in inputs]
    assert kinds == ["ok", "dies with -6", "ok", "hangs", "E x", "ok"]


@pytest.mark.skipif(
    not HAS_WHEEL, reason="atheris has wheels for Linux on x86-64 and Python 3.11 to 3.14 only"
)
@pytest.mark.parametrize("name", SEARCHED)
def test_a_short_search_finds_nothing(name: str) -> None:
    if importlib.util.find_spec("atheris") is None and not os.environ.get("CI"):
        pytest.skip("needs atheris, which the extra 'dev' brings")
    ended = subprocess.run(
        [sys.executable, str(FOLDER / "run.py"), name, "--seconds", str(SECONDS), *SEED],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
        capture_output=True,
        text=True,
        timeout=SECONDS + 400,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
