"""The work folder of a build: runs, and checkpoints from which it goes on."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramspec.build.feed import Feed, Totals
from ngramspec.build.options import BuildOptions
from ngramspec.build.runs import ENTRY_BYTES
from ngramspec.corpus import DigestSet, Plan, Problem, Problems
from ngramspec.errors import FormatError, InputError
from ngramspec.formats.container import new_file
from ngramspec.formats.suffix_file import BORDER

STATE = "state.json"
DIGESTS = "digests"
HELD_OUT = "held-out"
TEXTS = "texts"
GROWING = {DIGESTS: "digest_bytes", HELD_OUT: "held_out_bytes", TEXTS: "text_bytes"}
DIGEST_BYTES = 16
VERSION = 2
_KEYS = {
    *("identity", "unit", "document", "totals", "problems", "runs", "num_names"),
    *GROWING.values(),
}
TokenArray = NDArray[np.int32]


class WorkFolder:
    """WorkFolder(path, identity): runs by label, digests seen, documents held out, texts.

    identity: What a build must have in common with the one that it goes on with.
    """

    def __init__(self, path: str | os.PathLike[str], identity: dict[str, Any]) -> None:
        self.path = Path(path)
        self.identity = identity
        self.runs: dict[int, list[Path]] = {}
        self._num_names = 0
        self._lock: Any = None

    def open(self, *, resume: bool, restart: bool) -> dict[str, Any] | None:
        """Take the folder for this build; return the checkpoint to go on from, None = begin.

        Raises:
            InputError: There is an unfinished build and neither resume nor restart; or the one to
                resume differs in corpus, options or tokenizer; or another process is at it.
            FormatError: The checkpoint is damaged.
            OSError: The folder cannot be made.
        """
        from filelock import FileLock, Timeout

        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(self.path / "lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise InputError(f"another process is building in {self.path}") from None
        state = None if restart else self._read_state()
        if state is not None and not resume:
            self._lock.release()
            raise InputError(
                f"{self.path} holds an unfinished build: --resume goes on with it, "
                "--restart begins anew"
            )
        if state is None:
            self._clear()
            return None
        self._check_identity(state["identity"])
        return state

    def new_run(self) -> Path:
        """Return the path of a run to be written."""
        self._num_names += 1
        return self.path / f"run-{self._num_names:06d}"

    def save(self, feed: Feed, held_out: Sequence[TokenArray]) -> None:
        """Write a checkpoint: everything up to the feed's position is in the runs."""
        self._append(DIGESTS, b"".join(feed.new_digests))
        feed.new_digests.clear()
        self._append(HELD_OUT, b"".join(_framed(tokens) for tokens in held_out))
        state = {
            "version": VERSION,
            "identity": self.identity,
            "unit": feed.unit,
            "document": feed.document,
            "totals": asdict(feed.totals),
            "problems": asdict(feed.problems),
            "runs": {
                str(label): [[path.name, path.stat().st_size] for path in paths]
                for label, paths in self.runs.items()
            },
            "num_names": self._num_names,
        } | {key: self._size(name) for name, key in GROWING.items()}
        with new_file(self.path / STATE) as file:
            file.write(json.dumps(state).encode())
        self._remove_stale_runs()

    def restore(self, state: dict[str, Any], feed: Feed) -> None:
        """Put feed and runs where a checkpoint left them.

        Raises:
            FormatError: A run or the digests are not as they were.
        """
        for name, key in GROWING.items():
            self._cut(name, state[key])
        for label, runs in state["runs"].items():
            self.runs[int(label)] = [self.path / name for name, _ in runs]
            for name, size in runs:
                if self._size(name) != size or size % ENTRY_BYTES:
                    raise FormatError(
                        f"{self.path / name}: expected {size} bytes, found {self._size(name)}"
                    )
        self._num_names = state["num_names"]
        self._remove_stale_runs()
        feed.unit, feed.document = state["unit"], state["document"]
        feed.totals = Totals(**state["totals"])
        first = [Problem(**problem) for problem in state["problems"].pop("first")]
        feed.problems = Problems(**state["problems"], first=first)
        raw = (self.path / DIGESTS).read_bytes()
        feed.digests = DigestSet(
            raw[i : i + DIGEST_BYTES] for i in range(0, len(raw), DIGEST_BYTES)
        )

    def held_out(self) -> list[TokenArray]:
        """Return the documents held out so far, as tokens."""
        raw = np.fromfile(self.path / HELD_OUT, dtype="<i4").astype(np.int32, copy=False)
        documents, at = [], 0
        while at < len(raw):
            documents.append(raw[at + 1 : at + 1 + raw[at]])
            at += 1 + int(raw[at])
        return documents

    def add_texts(self, texts: Sequence[TokenArray]) -> None:
        """Append the texts of an index; they count once a checkpoint is written."""
        border = np.array([BORDER], "<i4").tobytes()
        parts = (text.astype("<i4", copy=False).tobytes() + border for text in texts if len(text))
        self._append(TEXTS, b"".join(parts))

    def texts(self) -> TokenArray:
        """Return the texts so far, each with a border behind it, mapped."""
        if not self._size(TEXTS):
            return np.empty(0, np.int32)
        mapped: TokenArray = np.memmap(self.path / TEXTS, "<i4", "r")
        return mapped

    def remove(self) -> None:
        """Remove the folder: the build is done. Files of others stay, and the folder with them."""
        self._clear()
        for name in (*GROWING, "lock"):
            (self.path / name).unlink(missing_ok=True)
        self._lock.release()
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def close(self) -> None:
        """Let others go on with the folder, if it was taken; without a checkpoint it goes."""
        if self._lock is None or not self._lock.is_locked:
            return
        if (self.path / STATE).exists():
            self._lock.release()
        else:
            self.remove()

    def _read_state(self) -> dict[str, Any] | None:
        path = self.path / STATE
        if not path.exists():
            return None
        try:
            state = json.loads(path.read_bytes())
            if state["version"] == VERSION and state.keys() >= _KEYS:
                return dict(state)
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        raise FormatError(f"{path}: not a checkpoint of this version: --restart begins anew")

    def _check_identity(self, other: dict[str, Any]) -> None:
        mine = json.loads(json.dumps(self.identity))
        for key in mine:
            if other.get(key) != mine[key]:
                self._lock.release()
                raise InputError(
                    f"the build in {self.path} has {_difference(key, other.get(key), mine[key])}; "
                    "--restart begins anew"
                )

    def _clear(self) -> None:
        for path in [self.path / STATE, *self.path.glob("run-*")]:
            path.unlink(missing_ok=True)
        for name in GROWING:
            (self.path / name).write_bytes(b"")

    def _remove_stale_runs(self) -> None:
        known = {path.name for paths in self.runs.values() for path in paths}
        for path in self.path.glob("run-*"):
            if path.name not in known:
                path.unlink()

    def _append(self, name: str, data: bytes) -> None:
        with open(self.path / name, "ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def _cut(self, name: str, size: int) -> None:
        if self._size(name) < size:
            raise FormatError(
                f"{self.path / name}: expected {size} bytes, found {self._size(name)}"
            )
        os.truncate(self.path / name, size)

    def _size(self, name: str) -> int:
        path = self.path / name
        return path.stat().st_size if path.exists() else 0


def identity_of(plan: Plan, options: BuildOptions, fingerprint: bytes) -> dict[str, Any]:
    """Return what two builds must have in common for one to go on with the other's work."""
    from xxhash import xxh3_128_hexdigest

    units = "\n".join(
        f"{u.path}\0{u.format}\0{u.compression}\0{u.start}\0{u.stop}\0{u.num_bytes}"
        for u in plan.units
    )
    return {
        "corpus": xxh3_128_hexdigest(units.encode("utf-8", "surrogateescape")),
        "tokenizer": fingerprint.hex(),
        "options": options.as_dict(),
    }


def _difference(key: str, other: Any, mine: Any) -> str:
    """Say in what two builds differ: the first option that does, or corpus or tokenizer."""
    if isinstance(other, dict) and isinstance(mine, dict):
        for name in mine:
            if other.get(name) != mine[name]:
                return f"another {name}: {other.get(name)!r}, not {mine[name]!r}"
    return f"another {key}"


def _framed(tokens: TokenArray) -> bytes:
    return np.array([len(tokens)], "<i4").tobytes() + tokens.astype("<i4", copy=False).tobytes()
