"""All steps within a time, and the check before them."""

from __future__ import annotations

import importlib
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.gpu_scripts import needs, run_here

pytestmark = pytest.mark.usefixtures("scripts")
GOES = """
import json, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
print("the table of", given["--minutes"] != "", given.get("--trace"))
json.dump({"complete": True, "rounds": {"batch 1": 3}}, open(given["--json"], "w"))
"""
STOPS = """
import json, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
json.dump({"complete": False, "rounds": {"batch 1": 1}}, open(given["--json"], "w"))
"""


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module with steps that take no time; the check finds no gguf."""
    import everything

    def step(name: str, kind: str, source: str, *options: str) -> Any:
        path = tmp_path / f"{name}.py"
        path.write_text(source)
        return everything.Step(name, str(path), kind, 100.0, options)

    all_steps = (
        step("goes", "torch", GOES, "--trace", "{folder}/steps.json.gz"),
        step("fails", "torch", "raise SystemExit(3)"),
        step("stops", "torch", STOPS),
        step("lacks", "llama", GOES),
    )
    monkeypatch.setattr(everything, "STEPS", all_steps)
    problems = {"torch": [], "llama": ["gguf: not there", "no GPU"]}
    monkeypatch.setattr(everything, "check", lambda options, log: (0, problems))
    return everything


def test_a_step_that_fails_stops_no_other_and_what_is_left_is_named(
    steps: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "fails.json").write_text('{"complete": true}')  # of an earlier run
    steps.main([str(folder)])
    printed = capsys.readouterr().out
    assert f"the table of True {folder}/steps.json.gz" in printed
    entries = json.loads((folder / "everything.json").read_text())["steps"]
    by_name = {one["name"]: one for one in entries}
    assert by_name["goes"]["state"] == "complete; rounds 3 of batch 1"
    assert by_name["fails"]["state"] == "failed with status 3; no results"
    assert by_name["stops"]["state"] == "in part; rounds 1 of batch 1"
    assert by_name["lacks"]["state"] == "not run: gguf: not there; no GPU"
    assert [one["complete"] for one in by_name.values()].count(True) == 1
    left = "left: python benchmarks/gpu/everything.py FOLDER --only lacks fails stops"
    assert printed.rstrip().endswith(left)
    log = (folder / "log.txt").read_text()
    assert log.index("== goes") < log.index("the table of") < log.index("== fails")
    assert log.rstrip().endswith(left)


def test_only_some_steps_run_and_no_result_is_a_failure(steps: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as raised:
        steps.main([str(tmp_path / "out"), "--only", "fails"])
    assert raised.value.code == 1
    entries = json.loads((tmp_path / "out" / "everything.json").read_text())["steps"]
    assert [(one["name"], one["status"]) for one in entries] == [("fails", 3)]


def test_time_that_a_step_does_not_need_goes_to_the_others(
    steps: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], seconds: float, log: Any) -> int:
        commands.append(command)
        return 0

    monkeypatch.setattr(steps, "run", run)
    steps.main([str(tmp_path / "out"), "--minutes", "9"])
    granted = [60 * float(command[command.index("--minutes") + 1]) for command in commands]
    expected = [540 / 3, 540 / 2, 540]
    assert granted == pytest.approx([one - steps.STARTING for one in expected], rel=0.05)


def test_no_step_begins_when_time_is_up(steps: Any, tmp_path: Path) -> None:
    options = SimpleNamespace(folder=tmp_path, only=["goes", "stops"], small=False)
    with (tmp_path / "log.txt").open("a") as log:
        outcomes = steps.run_all(options, {}, time.monotonic() - 1, log)
    assert [(one.name, one.state) for one in outcomes] == [
        ("goes", "not run: no time"),
        ("stops", "not run: no time"),
    ]


def test_a_step_that_does_not_end_is_ended_and_its_rounds_count(steps: Any, tmp_path: Path) -> None:
    waits = "import threading; threading.Event().wait()"
    with (tmp_path / "log.txt").open("a") as log:
        assert steps.run([sys.executable, "-c", waits], 0.2, log) is None
    path = tmp_path / "made.json"
    path.write_text('{"complete": false, "rounds": {"batch 1": 2, "batch 8": 1}}')
    state = "ended: time is up; rounds 2 of batch 1, 1 of batch 8"
    assert steps.state_of(None, path) == (state, False)


def test_where_the_check_has_no_answer_steps_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import everything

    monkeypatch.setattr(everything, "run", lambda *arguments: -9)
    options = SimpleNamespace(folder=tmp_path, small=False)
    with (tmp_path / "log.txt").open("a") as log:
        assert everything.check(options, log) == (-9, {})
    assert "says nothing of the machine, its status is -9" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--minutes", "0"), "--minutes must be above 0"),
        (("--minutes", "nan"), "--minutes must be above 0"),
        (("--only", "nothing"), "argument --only: invalid choice: 'nothing'"),
    ],
)
def test_wrong_options_of_everything_are_named(
    steps: Any,
    tmp_path: Path,
    options: tuple[str, ...],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        steps.main([str(tmp_path), *options])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("small", [False, True])
def test_scripts_take_the_options_that_steps_give_them(
    monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    import everything

    for step in everything.STEPS:
        needs(*(("torch", "transformers") if step.kind == "torch" else ("llama_cpp",)))
        options = everything.SMALL[step.name] if small else step.options
        argv = [step.script, "--json", "made.json", "--minutes", "1", *options]
        monkeypatch.setattr(sys, "argv", [*argv, *(["--small"] if small else [])])
        arguments = importlib.import_module(step.name).parse()
        assert arguments.minutes == 1.0
    names = [f"{step.name}.json" for step in everything.STEPS]
    assert len([*names, "steps.json.gz", "everything.json", "log.txt"]) == 8  # as it says


def test_the_check_says_what_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs("torch", "transformers", "llama_cpp", "gguf")
    path = tmp_path / "check.json"
    run_here("check_machine.py", "--small", "--json", str(path), monkeypatch=monkeypatch)
    printed = capsys.readouterr().out
    assert json.loads(path.read_text()) == {"torch": [], "llama": []}
    assert "llama_replay.py: ready" in printed
    assert "a small pass on cpu chose 5 tokens" in printed


def test_the_check_says_what_is_missing_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import check_machine
    from check_machine import Need, check_package, numbers, problem_of

    missing = problem_of(Need("no_such_module", "no-such", "1.2", ("torch",)))
    assert missing == "no-such: No module named 'no_such_module': install no-such>=1.2"
    old = problem_of(Need("numpy", "numpy", "99.1", ("torch",)))
    assert old.endswith("is too old: install numpy>=99.1")
    assert problem_of(Need("numpy", "numpy", "1.2.3", ("torch",))) == ""
    assert (numbers("2.11.0+cu130"), numbers("nightly")) == ([2, 11, 0], [])

    def fail(name: str) -> Any:
        raise ImportError(f"no module {name}")

    monkeypatch.setattr(check_machine.importlib, "import_module", fail)
    assert "no module ngramspec: install a wheel for this Python, or build it" in check_package()
    monkeypatch.setattr(check_machine, "NEEDS", (Need("os", "os", "1", check_machine.KINDS),))
    monkeypatch.setattr(sys, "argv", ["check_machine.py"])
    capsys.readouterr()
    with pytest.raises(SystemExit) as raised:
        check_machine.main()
    assert raised.value.code == 1
    assert "llama_replay.py: os: no module os: install os>=1" in capsys.readouterr().out


def test_a_gpu_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    needs("torch")
    import torch

    from check_machine import TORCH, Problems, attempt, check_torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "finds no CUDA device: look at nvidia-smi" in check_torch(small=False)
    problems: Problems = {TORCH: []}
    attempt(TORCH, problems, lambda: {}["nothing"])
    assert problems == {TORCH: ["KeyError: 'nothing'"]}
    attempt(TORCH, problems, lambda: "another")  # what comes after the first is not tried
    assert problems == {TORCH: ["KeyError: 'nothing'"]}
