"""Plant faults one at a time and see which of them the tests catch.

    python tools/mutants/run.py [--jobs 2] [--only TEXT ...] [--again] [--json]

Each fault of faults.py is one changed place of the package. For each, the changed file is put into
a copy of the tree, native modules are built again, and the tests that the fault names run until the
first failure. A fault is caught when they fail or take longer than the time limit; a fault that no
test notices has survived. Results are kept in build/mutants and reused by the next run unless the
fault, its file or its tests have changed. Ends with 1 when fewer than 90 % are caught.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from faults import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "mutants"
ASKED = 0.9  # share of the faults that must be caught
LIMIT = 420.0  # seconds for the tests of one fault
TEST_LIMITS = ["-o", "timeout=60", "-o", "faulthandler_timeout=90"]


@dataclass(frozen=True)
class Result:
    """What became of a fault."""

    fault: str  # its name
    outcome: str  # "caught", "survived", or "broken": it could not be planted
    by: str  # the test that failed, or why it could not be planted
    seconds: float


class Copy:
    """A copy of the tree, native modules included, in which faults are planted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._env = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
        self._env.pop("CI", None)

    def make(self, like: Copy | None) -> None:
        """Copy what git knows of and build it, or copy another copy."""
        shutil.rmtree(self._folder, ignore_errors=True)
        if like is not None:
            shutil.copytree(like._folder, self._folder)
            self._built = {path: path.read_bytes() for path in self._modules()}
            return
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        for name in filter(None, listed.stdout.split("\0")):
            target = self._folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)  # scripts stay executable
        self._build()
        self._built = {path: path.read_bytes() for path in self._modules()}

    def try_fault(self, fault: Fault) -> tuple[str, str]:
        """Plant a fault and run its tests; return the outcome and what noticed it."""
        path = self._folder / fault.path
        text = path.read_text()
        if text.count(fault.old) != 1:
            return "broken", f"{fault.path} has {text.count(fault.old)} places like the fault's"
        native = path.suffix in {".pyx", ".h"}  # what modules are built of
        path.write_text(text.replace(fault.old, fault.new))
        try:
            if native:
                built = self._build(check=False)
                if built.returncode:
                    return "broken", f"does not compile: {built.stderr[-500:]}"
            return self._test(fault)
        finally:
            path.write_text(text)
            if native:
                self._restore()

    def test_without_faults(self, faults: Sequence[Fault], jobs: int) -> str:
        """Run the tests of all faults on the tree as it is; return what failed, "" = nothing."""
        tests = sorted({name for fault in faults for name in fault.tests})
        tests = [name for name in tests if not any(is_inside(name, other) for other in tests)]
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--dist", "loadfile"]
        ran = subprocess.run(
            [*command, "-n", str(jobs), *tests],
            cwd=self._folder,
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
        )
        return "" if ran.returncode == 0 else ran.stdout[-3000:]

    def _modules(self) -> list[Path]:
        return sorted((self._folder / "ngramspec").rglob("*.so"))

    def _build(self, check: bool = True) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
            cwd=self._folder,
            env=self._env,
            capture_output=True,
            text=True,
            check=check,
        )

    def _restore(self) -> None:
        for path in self._modules():
            if path.read_bytes() != self._built[path]:
                path.unlink()  # what a process has mapped stays as it is
            path.write_bytes(self._built[path])

    def _test(self, fault: Fault) -> tuple[str, str]:
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", *TEST_LIMITS]
        try:
            ran = subprocess.run(
                [*command, *fault.tests],
                cwd=self._folder,
                env=self._env,
                capture_output=True,
                text=True,
                timeout=LIMIT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "caught", f"the tests ran for more than {LIMIT:g} seconds"
        if ran.returncode == 0:
            return "survived", ""
        if ran.returncode == 5:
            return "broken", "no tests ran"
        failed = [line for line in ran.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return "caught", failed[0] if failed else f"pytest ended with {ran.returncode}"


def is_inside(name: str, folder: str) -> bool:
    """Tell whether a test file or folder lies in another folder."""
    return name.startswith(f"{folder.rstrip('/')}/")


def key_of(fault: Fault) -> str:
    """Return what a result depends on, hashed: the fault, its file and its tests."""
    digest = hashlib.sha256(json.dumps(asdict(fault)).encode())
    names = [ROOT / fault.path, *(ROOT / name.split("::")[0] for name in fault.tests)]
    for name in names:
        files = sorted(name.rglob("*.py")) if name.is_dir() else [name]
        for file in files:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def load() -> dict[str, Result]:
    """Return earlier results by the key of their fault."""
    file = FOLDER / "results.json"
    if not file.exists():
        return {}
    return {key: Result(**row) for key, row in json.loads(file.read_text()).items()}


def run(faults: Sequence[Fault], jobs: int, results: dict[str, Result], console: Console) -> None:
    """Try the faults in copies of the tree; add their results to the known ones and keep them."""
    copies: SimpleQueue[Copy] = SimpleQueue()
    first: Copy | None = None
    for index in range(min(jobs, len(faults))):
        copy = Copy(FOLDER / f"tree-{index}")
        with console.status(f"building copy {index + 1} of the tree"):
            copy.make(first)
        copies.put(copy)
        first = first or copy
    if first is not None:
        with console.status("running the tests without a fault"):
            failed = first.test_without_faults(faults, jobs)
        if failed:
            raise SystemExit(f"the tests fail without any fault:\n{failed}")
    lock = threading.Lock()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("faults", total=len(faults))

        def work(fault: Fault) -> None:
            copy = copies.get()
            started = time.monotonic()
            try:
                outcome, by = copy.try_fault(fault)
            finally:
                copies.put(copy)
            result = Result(fault.name, outcome, by, round(time.monotonic() - started, 1))
            with lock:
                results[key_of(fault)] = result
                body = {key: asdict(row) for key, row in results.items()}
                (FOLDER / "results.json").write_text(json.dumps(body, indent=1))
                progress.advance(task)
                if outcome != "caught":
                    progress.console.print(f"{outcome}: {fault.name} ({fault.path}) {by}")

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(work, faults))


def main() -> int:
    """Run the faults that were asked for and print what survived."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="copies at a time")
    parser.add_argument(
        "--only", action="append", help="faults whose name or path holds this text (repeatable)"
    )
    parser.add_argument("--again", action="store_true", help="also those with a known result")
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    options = parser.parse_args()
    names = [fault.name for fault in FAULTS]
    if len(set(names)) != len(names):
        parser.error("two faults have the same name")
    only = options.only or [""]
    faults = [
        fault for fault in FAULTS if any(text in f"{fault.name} {fault.path}" for text in only)
    ]
    if not faults:
        parser.error(f"no fault's name or path holds {' or '.join(only)}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    by_key = load()
    left = [fault for fault in faults if options.again or key_of(fault) not in by_key]
    console = Console(stderr=True)
    if left:
        run(left, options.jobs, by_key, console)
    results = [by_key[key_of(fault)] for fault in faults]
    caught = sum(result.outcome == "caught" for result in results)
    if options.json:
        print(json.dumps([asdict(result) for result in results], indent=1))
    for result in results:
        if result.outcome != "caught":
            console.print(f"{result.outcome}: {result.fault} {result.by}")
    console.print(f"{caught} of {len(results)} faults caught, {caught / len(results):.0%}")
    return 0 if caught >= ASKED * len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
