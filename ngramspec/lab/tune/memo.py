"""Memo: finished replays in a file, so that a search that was stopped can go on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from ngramspec._version import __version__
from ngramspec.costs import CostTable
from ngramspec.errors import FormatError
from ngramspec.lab.recordings import RecordedRequest
from ngramspec.lab.replay.tally import ReplayTally, read_tally
from ngramspec.lab.tune.candidates import Candidate
from ngramspec.models import confidence_weights

FORMAT = "ngramspec-tune"


class Memo:
    """Replays by candidate, costs and tokens; each is a line of the file as soon as it is known.

    Those of another version or of other weights, whose drafters may draft otherwise, are not used.

    Args:
        path: Created, or read and extended. None = nothing is kept.

    Raises:
        FormatError: It is a file of another format.
        OSError: It cannot be read or written.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._drafters = __version__.encode() + confidence_weights().tobytes()
        self._tallies: dict[str, ReplayTally] = {}
        self._digests: dict[int, bytes] = {}
        self._requests: list[Sequence[RecordedRequest]] = []  # keeps the ids in _digests valid
        if path is not None and path.exists() and path.stat().st_size:
            self._read(path)
        elif path is not None:
            path.touch(mode=0o600)
            path.write_text(json.dumps({"format": FORMAT, "version": 1}) + "\n", encoding="utf-8")

    def key(
        self, candidate: Candidate, costs: CostTable, *groups: Sequence[RecordedRequest]
    ) -> str:
        """Return what names a replay."""
        if self._path is None:
            return ""
        hasher = hashlib.sha256(self._drafters)
        hasher.update(f"{candidate.name}\n{costs.costs}\n".encode())
        for group in groups:
            hasher.update(b"group")
            for digest in self._digests_of(group):
                hasher.update(digest)
        return hasher.hexdigest()[:32]

    def get(self, key: str) -> ReplayTally | None:
        """Return a finished replay."""
        return self._tallies.get(key)

    def put(self, key: str, tally: ReplayTally) -> None:
        """Keep a finished replay."""
        if self._path is None:
            return
        self._tallies[key] = tally
        line = json.dumps({"key": key, "tally": dataclasses.asdict(tally)})
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def _digests_of(self, group: Sequence[RecordedRequest]) -> Iterable[bytes]:
        self._requests.append(group)
        for request in group:
            digest = self._digests.get(id(request))
            if digest is None:
                hasher = hashlib.sha256(len(request.prompt).to_bytes(8, "little"))
                hasher.update(request.prompt.tobytes())
                hasher.update(request.output.tobytes())
                digest = self._digests[id(request)] = hasher.digest()
            yield digest

    def _read(self, path: Path) -> None:
        text = path.read_text("utf-8", "replace")
        lines = text.splitlines()
        try:
            head = json.loads(lines[0])
            if head["format"] != FORMAT or head["version"] != 1:
                raise ValueError(f"format {head['format']!r}, version {head['version']!r}")
        except (ValueError, LookupError, TypeError) as error:
            raise FormatError(f"{path}: not the state of `ngramspec tune`: {error}") from None
        for line in lines[1:]:
            try:
                record = json.loads(line)
                self._tallies[record["key"]] = read_tally(record["tally"])
            except (ValueError, LookupError, TypeError):
                continue  # a line that was cut when the process died
        if not text.endswith("\n"):
            with path.open("a", encoding="utf-8") as file:
                file.write("\n")
