"""All measurements within a time, one after the other; one that fails stops no other.

    python benchmarks/gpu/everything.py FOLDER                   # nine minutes on one large GPU
    python benchmarks/gpu/everything.py FOLDER --only llama_replay --minutes 4
    python benchmarks/gpu/everything.py FOLDER --check           # only whether all is there
    python benchmarks/gpu/everything.py FOLDER --small           # a few layers, on any machine

Each step gets its share of the time that is left, so that what one does not need goes to the
others. Results are in FOLDER, eight files at most: a .json of each step, saved after each of its
rounds, `steps.json.gz`, a timeline, `everything.json`, how each step ended, and `log.txt`. At the
end it says what is left for another time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO

HERE = Path(__file__).parent
CHECK_SECONDS = 90.0
STARTING = 12.0  # seconds until a step looks at the clock
GRACE = 20.0  # seconds after its time until a step is ended: it begins no round that would not fit
SHOWN = 30  # lines of a step's output, the last


class Step(NamedTuple):
    """A measurement.

    share: Of the time, in seconds of nine minutes.
    kind: Of targets, as check_machine.py calls it.
    options: Of its script; {folder} = where results go.
    """

    name: str
    script: str
    kind: str
    share: float
    options: tuple[str, ...] = ()


STEPS = (
    Step(
        *("transformers_replay", "transformers_replay.py", "torch", 220),
        (
            *("--output", "96", "--modes", "suffix:auto", "suffix:gate", "suffix:fixed-8"),
            *("ngram-mod,ngram-cache:auto", "suffix:tree-8"),
        ),
    ),
    Step(
        *("profile_steps", "profile_steps.py", "torch", 70),
        ("--steps", "150", "--trace", "{folder}/steps.json.gz"),
    ),
    Step("pass_costs", "pass_costs.py", "torch", 50),
    Step("packed_exactness", "packed_exactness.py", "torch", 40),
    Step(
        *("llama_replay", "llama_replay.py", "llama", 130),
        ("--slots", "1", "4", "16", "--prompt", "1024", "--output", "64"),
    ),
)
# What replaces options where a few layers are computed on any machine.
SMALL = {
    "transformers_replay": ("--batch", "1", "--output", "8", "--modes", "suffix:tree-4"),
    "profile_steps": ("--batch", "1", "--steps", "5", "--trace", "{folder}/steps.json.gz"),
    "pass_costs": ("--batch", "1", "--repeats", "2"),
    "packed_exactness": ("--batch", "1"),
    "llama_replay": ("--slots", "1", "--output", "8", "--modes", "suffix:gate"),
}


@dataclass
class Ended:
    """How a step ended.

    seconds: It took so many, of the `allowed` ones.
    status: Of its process; None = it did not run, or was ended.
    state: In words.
    complete: Nothing of it is left.
    """

    name: str
    state: str
    complete: bool = False
    status: int | None = None
    seconds: float = 0.0
    allowed: float = 0.0


def run(command: Sequence[str], seconds: float, log: TextIO) -> int | None:
    """Run a program with its output in a file; return its status, None if it had to be ended."""
    process = subprocess.Popen(
        command,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def state_of(status: int | None, path: Path) -> tuple[str, bool]:
    """Return in words how far a step got, and whether nothing of it is left."""
    try:
        body = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        body = {}
    ended = "ended: time is up" if status is None else f"failed with status {status}"
    complete = status == 0 and bool(body.get("complete"))
    state = ["complete" if complete else "in part" if status == 0 else ended]
    if rounds := body.get("rounds"):
        state.append("rounds " + ", ".join(f"{n} of {name}" for name, n in rounds.items()))
    if not body:
        state.append("no results")
    return "; ".join(state), complete


def run_step(step: Step, seconds: float, last: float, options: Any, log: TextIO) -> Ended:
    """Run a step, show the end of its output.

    seconds: Its time. last: When it is ended at the latest, by time.monotonic().
    """
    path = options.folder / f"{step.name}.json"
    path.unlink(missing_ok=True)  # of an earlier run
    own = SMALL.get(step.name, step.options) if options.small else step.options
    own = tuple(text.format(folder=options.folder) for text in own)
    own_seconds = max(seconds / 2, seconds - STARTING)
    command = [sys.executable, str(HERE / step.script), "--minutes", f"{own_seconds / 60:.4f}"]
    command += ["--json", str(path), *(["--small"] if options.small else []), *own]
    say(log, f"== {step.name}: {seconds:.0f} s")
    at = log.tell()
    started = time.monotonic()
    status = run(command, min(seconds + GRACE, max(1.0, last - started)), log)
    state, complete = state_of(status, path)
    show(options.folder / "log.txt", at)
    took = time.monotonic() - started
    say(log, f"== {step.name}: {state}; {took:.0f} s")
    return Ended(step.name, state, complete, status, took, seconds)


def show(path: Path, at: int) -> None:
    """Print the last lines of a log from a place on."""
    with path.open(encoding="utf-8", errors="replace") as file:
        file.seek(at)
        print("".join(file.readlines()[-SHOWN:]), end="", flush=True)


def say(log: TextIO, text: str) -> None:
    """Say it here and in the log."""
    print(text, flush=True)
    log.seek(0, os.SEEK_END)  # others write to the file, too
    log.write(text + "\n")
    log.flush()


def check(options: argparse.Namespace, log: TextIO) -> tuple[int | None, dict[str, list[str]]]:
    """Return the check's status, and what is wrong with the machine for each kind of target.

    Where it has no answer, steps are tried all the same.
    """
    path = options.folder / "check.json"
    command = [sys.executable, str(HERE / "check_machine.py"), "--json", str(path)]
    at = log.tell()
    status = run([*command, *(["--small"] if options.small else [])], CHECK_SECONDS, log)
    show(options.folder / "log.txt", at)
    try:
        problems: dict[str, list[str]] = json.loads(path.read_text("utf-8"))
        path.unlink()
    except (OSError, ValueError):
        say(log, f"check_machine.py says nothing of the machine, its status is {status}")
        problems = {}
    return status, problems


def run_all(
    options: argparse.Namespace, problems: dict[str, list[str]], end: float, log: TextIO
) -> list[Ended]:
    """Run the steps that can run, within their shares of the time; return how each ended."""
    chosen = [step for step in STEPS if step.name in options.only]
    ended = [
        Ended(step.name, "not run: " + "; ".join(problems[step.kind]))
        for step in chosen
        if problems.get(step.kind)
    ]
    waiting = [step for step in chosen if not problems.get(step.kind)]
    while waiting:
        left = end - time.monotonic()
        step = waiting.pop(0)
        if left <= 0:
            ended.append(Ended(step.name, "not run: no time"))
            continue
        seconds = left * step.share / (step.share + sum(other.share for other in waiting))
        ended.append(run_step(step, seconds, end, options, log))
        save(options, ended)
    return ended


def save(options: argparse.Namespace, ended: Sequence[Ended]) -> None:
    """Write how the steps ended."""
    body = {"minutes": options.minutes, "steps": [asdict(one) for one in ended]}
    path = options.folder / "everything.json"
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(body, indent=1) + "\n", "utf-8")
    part.replace(path)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    names = [step.name for step in STEPS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where results go")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all steps together (9)")
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="some steps (all)")
    parser.add_argument("--small", action="store_true", help="a few layers, on any machine")
    parser.add_argument("--check", action="store_true", help="look whether all is there, no more")
    options = parser.parse_args(arguments)
    if not 0 < options.minutes < float("inf"):
        parser.error("--minutes must be above 0")
    options.folder = options.folder.resolve()
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the steps, say what is left; exit with 1 if no step ends as it should."""
    end = time.monotonic()
    options = parse(arguments)
    end += 60 * options.minutes
    options.folder.mkdir(parents=True, exist_ok=True)
    with (options.folder / "log.txt").open("a", encoding="utf-8") as log:
        status, problems = check(options, log)
        if options.check:
            raise SystemExit(0 if status == 0 else 1)
        ended = run_all(options, problems, end, log)
        save(options, ended)
        for one in ended:
            say(log, f"{one.name}: {one.state}")
        if left := [one.name for one in ended if not one.complete]:
            say(log, f"left: python benchmarks/gpu/everything.py FOLDER --only {' '.join(left)}")
    if not any(one.status == 0 for one in ended):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
