"""The work folder of a build: runs, and checkpoints to resume from."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramspec.errors import FormatError, InputError
from ngramspec.files.atomic import naming, new_file, private, remove_temporaries
from ngramspec.files.dates import changed_ns
from ngramspec.files.entries import EntrySource
from ngramspec.files.suffix_file import BORDER
from ngramspec.lab.builder.feed import Feed, Totals
from ngramspec.lab.builder.options import AT_THE_END, BuildOptions
from ngramspec.lab.builder.runs import ENTRY_BYTES, write_run
from ngramspec.lab.corpus import CorpusPlan, DigestSet, Problem, Problems
from ngramspec.lab.corpus.dedup import DIGEST_BYTES
from ngramspec.lab.corpus.inputs import STDIN

STATE = "state.json"
DIGESTS = "digests"
HELD_OUT = "held-out"
TEXTS = "texts"
GROWING = {DIGESTS: "digest_bytes", HELD_OUT: "held_out_bytes", TEXTS: "text_bytes"}
VERSION = 5
UNFINISHED = ".shard-*"  # of tasks on Ray that were ended while they wrote
OWN_FILES = ("run-*", "shard-*", UNFINISHED)  # of a local build; of one on Ray
_CHUNK = 1 << 20
TokenArray = NDArray[np.int32]


class WorkFolder:
    """WorkFolder(path, identity): runs by label, digests seen, documents held out, texts.

    identity: What must match for a build to resume another.
    """

    def __init__(self, path: str | os.PathLike[str], identity: dict[str, Any]) -> None:
        self.path = Path(path)
        self.identity = identity
        self.runs: dict[int, list[Path]] = {}
        self._num_names = 0
        self._run_checksums: dict[str, int] = {}  # by name
        self._growing: dict[str, Any] = {}  # xxh3_64 of what was appended, by name
        self._lock: Any = None

    def open(self, *, resume: bool, restart: bool) -> dict[str, Any] | None:
        """Lock the folder for this build; return the checkpoint to resume, None = start fresh.

        Raises:
            InputError: There is an unfinished build and neither resume nor restart; or the one to
                resume differs in corpus, options or tokenizer; or another process builds in it; or
                others may write to it.
            FormatError: The checkpoint is damaged.
            OSError: The folder cannot be made.
        """
        from filelock import FileLock, Timeout

        _own_folder(self.path)
        self._lock = FileLock(self.path / "lock")
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise InputError(f"another process is building in {self.path}") from None
        remove_temporaries(self.path / STATE)
        state = None if restart else self._read_state()
        if state is not None and not resume:
            self._lock.release()
            raise InputError(
                f"{self.path} holds an unfinished build: --resume continues it, "
                "--restart starts over"
            )
        if state is None:
            self._clear()
            return None
        self._check_identity(state["identity"])
        return state

    def new_run(self) -> Path:
        self._num_names += 1
        return self.path / f"run-{self._num_names:06d}"

    def write_run(self, path: Path, source: EntrySource) -> None:
        """Write a run to a path from new_run. May be called from any thread."""
        self._run_checksums[path.name] = write_run(path, source)

    def add_run(self, source: EntrySource) -> Path:
        path = self.new_run()
        self.write_run(path, source)
        return path

    def begin(self, facts: dict[str, Any]) -> None:
        """Write a checkpoint of a build that leaves all it has done in files of their own."""
        self._write_state({"version": VERSION, "identity": self.identity, **facts})

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
                str(label): [
                    [path.name, path.stat().st_size, self._run_checksums[path.name]]
                    for path in paths
                ]
                for label, paths in self.runs.items()
            },
            "num_names": self._num_names,
            "checksums": {name: self._growing[name].intdigest() for name in GROWING},
        } | {key: self._size(name) for name, key in GROWING.items()}
        self._write_state(state)
        self._remove_stale_runs()

    def restore(self, state: dict[str, Any], feed: Feed) -> None:
        """Restore feed and runs from a checkpoint.

        Raises:
            FormatError: The checkpoint is incomplete, or a file that it names has changed.

        Cost: O(bytes) of all files.
        """
        try:
            self._restore(state, feed)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, FormatError):
                raise
            raise _damaged(self.path / STATE, repr(error)) from None
        raw = (self.path / DIGESTS).read_bytes()
        feed.digests = DigestSet(
            raw[i : i + DIGEST_BYTES] for i in range(0, len(raw), DIGEST_BYTES)
        )

    def _restore(self, state: dict[str, Any], feed: Feed) -> None:
        for name, key in GROWING.items():
            self._cut(name, state[key])
            self._growing[name] = self._checked(name, state["checksums"][name])
        for label, runs in state["runs"].items():
            self.runs[int(label)] = [self.path / name for name, _, _ in runs]
            for name, size, checksum in runs:
                if self._size(name) != size or size % ENTRY_BYTES:
                    reason = f"expected {size} bytes, found {self._size(name)}"
                    raise _damaged(self.path / name, reason)
                self._run_checksums[name] = self._checked(name, checksum).intdigest()
        self._num_names = state["num_names"]
        self._remove_stale_runs()
        feed.unit, feed.document = state["unit"], state["document"]
        feed.totals = Totals(**state["totals"])
        first = [Problem(**problem) for problem in state["problems"].pop("first")]
        feed.problems = Problems(**state["problems"], first=first)

    def _checked(self, name: str, checksum: int) -> Any:
        """Hash a file's bytes, check the result against `checksum`, and return the hash."""
        from xxhash import xxh3_64

        hasher = xxh3_64()
        with open(self.path / name, "rb") as file:
            while data := file.read(_CHUNK):
                hasher.update(data)
        if hasher.intdigest() != checksum:
            reason = f"expected checksum {checksum:016x}, found {hasher.intdigest():016x}"
            raise _damaged(self.path / name, reason)
        return hasher

    def held_out(self) -> list[TokenArray]:
        """Return the documents held out so far, as tokens.

        Raises:
            FormatError: A length in the file is impossible.
        """
        path = self.path / HELD_OUT
        raw = np.fromfile(path, dtype="<i4").astype(np.int32, copy=False)
        documents, at = [], 0
        while at < len(raw):
            num = int(raw[at])
            if not 0 <= num < len(raw) - at:
                raise _damaged(path, f"a document of {num} tokens at offset {4 * at}")
            documents.append(raw[at + 1 : at + 1 + num])
            at += 1 + num
        return documents

    def add_texts(self, texts: Sequence[TokenArray]) -> None:
        """Append the texts of an index; they count once a checkpoint is written."""
        self._append(TEXTS, bordered(texts).astype("<i4", copy=False).tobytes())

    def texts(self) -> TokenArray:
        """Return the texts so far, each followed by a border, as a mapped array."""
        if not self._size(TEXTS):
            return np.empty(0, np.int32)
        mapped: TokenArray = np.memmap(self.path / TEXTS, "<i4", "r")
        return mapped

    def gathered(self, texts: Iterable[TokenArray]) -> TokenArray:
        """Write texts with their borders, in place of those there, and return them as `texts`."""
        path = self.path / TEXTS
        with naming(path), open(path, "wb", opener=private) as file:
            for part in texts:
                file.write(part.astype("<i4", copy=False).data)
        return self.texts()

    @property
    def is_open(self) -> bool:
        return self._lock is not None and bool(self._lock.is_locked)

    def remove(self) -> None:
        """Remove the build's files, and the folder if it is empty then."""
        self._clear()
        for name in GROWING:
            (self.path / name).unlink(missing_ok=True)
        if os.name == "nt":  # an open file cannot be removed there
            self._lock.release()
        with contextlib.suppress(PermissionError):  # another build has it by now
            (self.path / "lock").unlink(missing_ok=True)
        self._lock.release()
        with contextlib.suppress(OSError):
            self.path.rmdir()

    def remove_unfinished(self) -> None:
        """Remove what tasks were writing when they were ended."""
        for path in self.path.glob(UNFINISHED):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Unlock the folder, if it was locked; remove it if it has no checkpoint."""
        if not self.is_open:
            return
        if has_checkpoint(self.path):
            self._lock.release()
        else:
            self.remove()

    def _write_state(self, state: dict[str, Any]) -> None:
        with new_file(self.path / STATE) as file:
            file.write(json.dumps(state).encode())

    def _read_state(self) -> dict[str, Any] | None:
        path = self.path / STATE
        if not path.exists():
            return None
        try:
            state = json.loads(path.read_bytes())
            if state["version"] == VERSION and isinstance(state["identity"], dict):
                return dict(state)
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        raise FormatError(f"{path}: not a checkpoint of this version: --restart starts over")

    def _check_identity(self, other: dict[str, Any]) -> None:
        mine = json.loads(json.dumps(self.identity))
        for key in mine:
            if other.get(key) != mine[key]:
                self._lock.release()
                raise InputError(
                    f"the build in {self.path} has {_difference(key, other.get(key), mine[key])}; "
                    "--restart starts over"
                )

    def _clear(self) -> None:
        for pattern in (STATE, *OWN_FILES):
            for path in self.path.glob(pattern):
                path.unlink(missing_ok=True)
        from xxhash import xxh3_64

        for name in GROWING:
            (self.path / name).unlink(missing_ok=True)  # its mode may be another
            open(self.path / name, "xb", opener=private).close()
            self._growing[name] = xxh3_64()

    def _remove_stale_runs(self) -> None:
        names = {path.name for paths in self.runs.values() for path in paths}
        for path in self.path.glob("run-*"):
            if path.name not in names:
                path.unlink()

    def _append(self, name: str, data: bytes) -> None:
        """Append all of `data`, or nothing if that fails."""
        path = self.path / name
        size = self._size(name)
        try:
            with naming(path), open(path, "ab", buffering=0, opener=private) as file:
                left = memoryview(data)
                while left:
                    left = left[file.write(left) :]
                os.fsync(file.fileno())
        except OSError:
            os.truncate(path, size)
            raise
        self._growing[name].update(data)

    def _cut(self, name: str, size: int) -> None:
        if self._size(name) < size:
            reason = f"expected {size} bytes, found {self._size(name)}"
            raise _damaged(self.path / name, reason)
        os.truncate(self.path / name, size)

    def _size(self, name: str) -> int:
        path = self.path / name
        return path.stat().st_size if path.exists() else 0


def bordered(texts: Iterable[TokenArray]) -> TokenArray:
    """Return texts as one, each followed by a border; empty ones are left out."""
    border = np.array([BORDER], np.int32)
    parts = [part for text in texts if len(text) for part in (text, border)]
    return np.concatenate([*parts, np.empty(0, np.int32)])


def _own_folder(path: Path) -> None:
    """Make a folder for users' text, or check that the one there is this user's own.

    Raises:
        InputError: It is a link, somebody else's, or others may write to it.
        OSError: It cannot be made.
    """
    try:
        path.mkdir(0o700, parents=True)
        return
    except FileExistsError:
        status = os.lstat(path)
    # Some disks give all folders one owner and one mode: that of a new one tells.
    with TemporaryDirectory(prefix=f"{path.name}.", dir=path.parent) as new:
        own = os.lstat(new)
    open_to = status.st_mode & ~own.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != own.st_uid or open_to:
        raise InputError(
            f"{path} is not a folder that only this user can write to: remove it, or choose "
            "another place with --work"
        )


def has_checkpoint(folder: str | os.PathLike[str]) -> bool:
    return Path(folder, STATE).exists()


def identity_of(
    plan: CorpusPlan, options: BuildOptions, fingerprint: bytes, executor: str = "local"
) -> dict[str, Any]:
    """Return what must match for one build to resume another: all that counting depends on.

    Of files only names, sizes and times are compared; on Ray, where files may be copies with other
    times, those that were read are compared by digests.
    """
    from xxhash import xxh3_128

    local, digest = executor == "local", xxh3_128()
    for u in plan.units:
        changed = (changed_ns(u.path) or 0) if local and u.path != STDIN else 0
        facts = (u.path, u.format, u.compression, u.start, u.stop, u.num_bytes, changed)
        digest.update("\0".join(map(str, facts)).encode("utf-8", "surrogateescape") + b"\n")
    counting = options.as_dict()
    for name in AT_THE_END:
        del counting[name]
    return {
        "corpus": {
            "files": plan.num_files,
            "bytes": plan.num_bytes,
            "digest": digest.hexdigest(),
        },
        "tokenizer": fingerprint.hex(),
        "options": counting,
        "executor": executor,
    }


def _damaged(path: Path, reason: str) -> FormatError:
    return FormatError(f"{path}: {reason}: the unfinished build is damaged, --restart starts over")


def _difference(key: str, other: Any, mine: Any) -> str:
    """Name the first option in which two builds differ, or corpus or tokenizer."""
    if isinstance(other, dict) and isinstance(mine, dict):
        if key == "corpus":
            then, now = (f"{c.get('files')} files, {c.get('bytes')} bytes" for c in (other, mine))
            if then == now:
                return f"another corpus: {then} as now, but of other names, dates or order"
            return f"another corpus: {then}, not {now}"
        for name in mine:
            if other.get(name) != mine[name]:
                return f"another {name}: {other.get(name)!r}, not {mine[name]!r}"
    return f"another {key}"


def _framed(tokens: TokenArray) -> bytes:
    return np.array([len(tokens)], "<i4").tobytes() + tokens.astype("<i4", copy=False).tobytes()
