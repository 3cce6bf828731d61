"""Running the peers on some sets: each in the first interpreter that has it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ngramspec.errors import BackendError
from ngramspec.lab.recordings.lines import token_lines
from ngramspec.lab.recordings.traces import Trace
from ngramspec.lab.replay.walk import ReplayTally
from peers import ORACLE, ORACLE_OF, PEERS, job
from peers.record import read_tally

# On few cores, thread pools that wait for one another would be timed, not the drafters.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


@dataclass(frozen=True)
class PeerPlaces:
    """Where the peers are.

    pythons: interpreters in addition to this one.
    vllm_wheel: vLLM's wheel, or its ngram_proposer.py.
    llamacpp: a program that replays through llama.cpp's compiled drafters.
    """

    pythons: tuple[str, ...] = ()
    vllm_wheel: Path | None = None
    llamacpp: Path | None = None


@dataclass
class PeerRuns:
    """The results of the peers.

    tallies: by set and peer.
    missing: peers that are not installed, and what is missing.
    """

    tallies: dict[str, dict[str, ReplayTally]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, set_name: str, peer: str, tally: ReplayTally) -> None:
        """Add a replay; the oracle's is derived from that of ORACLE_OF."""
        row = self.tallies.setdefault(set_name, {})
        row[peer] = tally
        if peer == ORACLE_OF:
            # Its drafts cut at their last right token.
            row[ORACLE] = dataclasses.replace(tally, draft_lengths=tally.accepted_lengths)


def run_peers(
    traces: Sequence[Trace],
    places: PeerPlaces,
    *,
    cold: bool = False,
    on_request: Callable[[], object] = lambda: None,
) -> PeerRuns:
    """Replay the sets through all peers that are installed.

    Args:
        traces: The sets.
        places: Where to look for peers.
        cold: A fresh player for every request.
        on_request: Called after each request of each peer.

    Raises:
        BackendError: An interpreter or the program failed.
        OSError: One cannot be started.
    """
    runs = PeerRuns()
    with tempfile.TemporaryDirectory(prefix="ngramspec-") as folder:
        files = {trace.name: Path(folder, f"{i}.txt") for i, trace in enumerate(traces)}
        for trace in traces:
            files[trace.name].write_text("".join(token_lines(trace.requests)))
        peers = [name for name, peer in PEERS.items() if peer.opener]
        for python in (sys.executable, *places.pythons):
            runs.missing = {}
            work = {
                "peers": peers,
                "sets": [[name, str(file)] for name, file in files.items()],
                "cold": cold,
                "vllm_wheel": str(places.vllm_wheel) if places.vllm_wheel else None,
            }
            _run_job(python, work, runs, on_request)
            peers = list(runs.missing)
            if not peers:
                break
        _run_compiled(traces, files, places.llamacpp, cold, runs, on_request)
    return runs


def _run_compiled(
    traces: Sequence[Trace],
    files: dict[str, Path],
    program: Path | None,
    cold: bool,
    runs: PeerRuns,
    on_request: Callable[[], object],
) -> None:
    for name, peer in PEERS.items():
        if not peer.opener and program is None:
            runs.missing[name] = "no program is given"
        elif not peer.opener and program is not None:
            for trace in traces:
                kind = peer.settings["kind"]
                tally = replay_compiled(program, kind, files[trace.name], cold=cold)
                runs.add(trace.name, name, tally)
                for _ in trace.requests:
                    on_request()


def _run_job(
    python: str, work: dict[str, Any], runs: PeerRuns, on_request: Callable[[], object]
) -> None:
    """Run job.py in another process and add its results."""
    with _started(python, work) as lines:
        for text in lines:
            line = json.loads(text)
            if "request" in line:
                on_request()
            elif "tally" in line:
                runs.add(line["set"], line["peer"], read_tally(line["tally"]))
            else:
                runs.missing.update(line["missing"])


@contextmanager
def _started(python: str, work: dict[str, Any]) -> Iterator[Iterator[str]]:
    with tempfile.TemporaryFile("w+") as stdin, tempfile.TemporaryFile("w+") as stderr:
        json.dump(work, stdin)
        stdin.seek(0)
        process = subprocess.Popen(
            [python, job.__file__],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            encoding="utf-8",
            env={**os.environ, **ONE_THREAD},
        )
        with process:
            assert process.stdout is not None
            try:
                yield process.stdout
            except BaseException:
                process.kill()
                raise
        if process.returncode:
            stderr.seek(0)
            reason = (stderr.read().strip().splitlines() or ["no message on stderr"])[-1]
            raise BackendError(f"the peers in {python} failed: {reason}")


def replay_compiled(program: Path, kind: str, tokens: Path, *, cold: bool = False) -> ReplayTally:
    """Replay a set through one of llama.cpp's drafters.

    Args:
        program: Reads and prints what "The replay program" in benchmarks/README.md describes.
        kind: Such as "ngram-mod".
        tokens: The set, as NAME.txt.
        cold: Ask for a fresh drafter for every request.

    Raises:
        BackendError: The program failed or prints something else.
        OSError: It cannot be started.
    """
    with tokens.open("rb") as lines:
        done = subprocess.run(
            [str(program.absolute()), kind, "1", *(["fresh=1"] if cold else [])],
            stdin=lines,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
        )
    try:
        if done.returncode:
            raise ValueError((done.stderr.strip().splitlines() or ["no message on stderr"])[-1])
        summary = next(line for line in done.stderr.splitlines() if line.startswith("{"))
        return _tally(done.stdout.splitlines(), json.loads(summary))
    except (ValueError, KeyError, IndexError, StopIteration) as error:
        raise BackendError(f"{program} {kind} failed: {error or 'no summary'}") from None


def _tally(lines: Iterable[str], summary: dict[str, Any]) -> ReplayTally:
    drafted: Counter[int] = Counter()
    accepted: Counter[int] = Counter()
    for line in lines:
        step, mark, draft = line.partition(" :")
        if mark:
            accepted[int(step.split()[-1])] += 1
            drafted[len(draft.split())] += 1
    if drafted.total() != summary["steps"]:
        raise ValueError(f"{drafted.total()} lines for {summary['steps']} steps")
    step_us = summary["draft_us_per_step"] * summary["steps"]
    step_us += summary["accept_us_per_draft"] * summary["drafts"]
    return ReplayTally(
        requests=summary["sessions"],
        draft_lengths=tuple(drafted[n] for n in range(max(drafted, default=0) + 1)),
        accepted_lengths=tuple(accepted[n] for n in range(max(accepted, default=0) + 1)),
        begin_ns=int(summary["begin_us_per_session"] * summary["sessions"] * 1e3),
        step_ns=int(step_us * 1e3),
        nbytes=None,
    )
