"""Builds on a Ray cluster of two hosts, in a process of their own: python program.py FOLDER.

FOLDER/jobs.json holds what to build, FOLDER/outcomes.json what came of it. Ray warns and leaves
threads and sockets behind, which must not reach the other tests.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

import ngramspec.lab.builder.ray_executor as executor
from ngramspec.files.pool_file import PoolShape
from ngramspec.lab.builder import BuildOptions, NoProgress
from ngramspec.lab.builder.local import BuildStopped

QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}
COUNTING = b"ray::count_shard"


class Meddler(NoProgress):
    """Does what a job asks for while its build is running.

    done_with: What was done: the ids of killed processes.
    """

    def __init__(self, job: dict[str, Any], output: Path, cluster: Any, host: Any) -> None:
        self.job = job
        self.output = output
        self.cluster = cluster
        self.host = host
        self.done_with: list[int] = []
        self.phases: list[str] = []
        self.amounts: list[tuple[int, int]] = []
        self.shards = 0  # counted
        self.shard_files: list[dict[str, str]] = []  # when a build was stopped, and at the end

    @property
    def stopped(self) -> bool:  # type: ignore[override]
        self._maybe_kill()
        late = 0 < self.job.get("stop_after", 0) <= self.shards
        return late or self.job.get("stop_in") in self.phases

    def phase(self, name: str, total: int) -> None:
        self.phases.append(name)
        if name == "writing":
            self.note_files()
        if name == self.job.get("unlink_in"):
            Path(self.job["file"]).unlink()
        if name == self.job.get("change_in"):
            Path(self.job["file"]).write_text("something else")

    def done(self, amount: int, tokens: int) -> None:
        self.amounts.append((amount, tokens))
        self._maybe_kill()
        if tokens and self.job.get("interrupt"):
            os.kill(os.getpid(), signal.SIGINT)
        self.shards += tokens > 0
        if self.shards == self.job.get("lose_host"):
            self.done_with.append(self.host.all_processes["raylet"][0].process.pid)
            self.cluster.remove_node(self.host, allow_graceful=False)

    def note_files(self) -> None:
        """Note which files of shards there are."""
        folder = self.output.with_name(f".{self.output.name}.build")
        # A file system may use an inode again, so the time says whether a file is another one.
        states = {path.name: path.stat() for path in folder.glob("shard-*")}
        self.shard_files.append(
            {name: f"{state.st_ino} of {state.st_mtime_ns}" for name, state in states.items()}
        )

    def _maybe_kill(self) -> None:
        if self.job.get("kill") and self.amounts and self.amounts[-1][1]:
            until = time.monotonic() + 2  # workers may be between two tasks
            while not self.done_with and time.monotonic() < until:
                self.done_with += kill_one(COUNTING)


def kill_one(title: bytes) -> list[int]:
    """Kill a worker that is at a task, if there is one; return its id."""
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        if read(folder / "cmdline").startswith(title) and is_ours(pid):
            os.kill(pid, signal.SIGSTOP)
            if read(folder / "cmdline").startswith(title):  # still, and so it stays
                os.kill(pid, signal.SIGKILL)
                return [pid]
            os.kill(pid, signal.SIGCONT)
    return []


def is_ours(pid: int) -> bool:
    """Tell whether a process descends from this one."""
    while pid > 1:
        if pid == os.getpid():
            return True
        status = read(Path(f"/proc/{pid}/stat")).rpartition(b")")[2].split()
        pid = int(status[1]) if status else 0
    return False


def read(path: Path) -> bytes:
    """Return what a file of /proc holds, nothing when the process has ended."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def run(job: dict[str, Any], output: Path, cluster: Any, host: Any) -> dict[str, Any]:
    """Build; return the result or the error."""
    start = time.monotonic()
    options = dict(job.get("options", {}))
    if "pool" in options:
        options["pool"] = PoolShape(**options["pool"])
    meddler = Meddler(job, output, cluster, host)
    executor.MOST_SENT = job.get("most_sent", 64 << 20)
    arguments = {
        key: cluster.address if value == "THE CLUSTER" else value
        for key, value in job.get("arguments", {}).items()
    }
    build = partial(
        executor.build_on_ray, job["paths"], output, job["tokenizer"], BuildOptions(**options)
    )
    try:
        if "stop_after" in job:
            with suppress(BuildStopped):
                build(meddler, **arguments)
            meddler.note_files()
            del job["stop_after"]
            result = build(meddler, **(arguments | job["then"]))
        else:
            result = build(meddler, **arguments)
        outcome: dict[str, Any] = {"result": result.as_dict()}
    except (Exception, KeyboardInterrupt) as error:
        outcome = {"error": [type(error).__name__, str(error)]}
    print(f"{output.name}: {time.monotonic() - start:.1f} s", flush=True)
    noted = ("done_with", "phases", "amounts", "shard_files")
    outcome |= {key: getattr(meddler, key) for key in noted}
    return outcome


def main(folder: Path) -> None:
    """Run all jobs: first those that bring an address, the others on one connection."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start jobs that ignore it
    jobs = json.loads((folder / "jobs.json").read_text())
    outcomes: dict[str, dict[str, Any]] = {}
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": QUICK}
    cluster = Cluster(True, head_node_args=head)
    host = cluster.add_node(num_cpus=2)  # most is done there: losing it costs something
    for name, job in jobs.items():
        if "address" in job["arguments"]:
            outcomes[name] = run(job, folder / name, cluster, host)
    ray.init(address=cluster.address, log_to_driver=False)
    for name, job in jobs.items():
        if name not in outcomes:
            outcomes[name] = run(job, folder / name, cluster, host)
    ray.shutdown()
    (folder / "outcomes.json").write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
