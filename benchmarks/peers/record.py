"""A file of peers' replays, for runs without the peers installed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ngramspec.errors import FormatError
from ngramspec.lab.recordings.traces import Trace
from ngramspec.lab.replay.sets import Profiles, same_for_all
from ngramspec.lab.replay.walk import ReplayTally
from peers import ABOUT_ORACLE, ORACLE, PEERS

FORMAT = "ngramspec-peers"
Tallies = Mapping[str, Mapping[str, ReplayTally]]


def save_peers(
    path: Path, traces: Sequence[Trace], tallies: Tallies, profiles: Profiles, *, cold: bool
) -> None:
    """Write what peers counted as JSON, one line per peer; other sets in the file are kept.

    Args:
        path: Created or extended; peers of a set that were replayed again are replaced.
        traces: The sets.
        tallies: By set and peer.
        profiles: For the speed-ups beside the counts.
        cold: Whether every request had a fresh drafter.

    Raises:
        FormatError: The file is of another format or has the other `cold`.
        OSError: It cannot be written.
    """
    body = _read(path) if path.exists() else _head(cold)
    if body["cold"] != cold:
        raise FormatError(f"{path} has replays {_knowledge(body['cold'])}")
    for trace in traces:
        tokens, rows = trace.digest(), {}
        if body["tokens"].get(trace.name) == tokens:
            rows = body["sets"][trace.name]
        for name, tally in tallies.get(trace.name, {}).items():
            shown = same_for_all(tally, profiles).as_json(profiles)
            rows[name] = {**shown, **dataclasses.asdict(tally)}
        if rows:
            body["tokens"][trace.name], body["sets"][trace.name] = tokens, rows
    part = path.with_name(path.name + ".part")
    part.write_text(_text(body), encoding="utf-8")
    part.replace(path)


def load_peers(
    path: Path, traces: Sequence[Trace], *, cold: bool
) -> tuple[dict[str, dict[str, ReplayTally]], list[str]]:
    """Read what peers counted on exactly these tokens.

    Returns:
        The tallies by set and peer, and the sets that the file does not have or has with other
        tokens.

    Raises:
        FormatError: Not such a file, or of replays with the other `cold`.
        OSError: It cannot be read.
    """
    body = _read(path)
    if body["cold"] != cold:
        raise FormatError(f"{path} has replays {_knowledge(body['cold'])}")
    tallies: dict[str, dict[str, ReplayTally]] = {}
    others = []
    for trace in traces:
        if body["tokens"].get(trace.name) != trace.digest():
            others.append(trace.name)
            continue
        rows = body["sets"][trace.name]
        try:
            tallies[trace.name] = {name: read_tally(row) for name, row in rows.items()}
        except FormatError as error:
            raise FormatError(f"{path}, {trace.name}: {error}") from None
    return tallies, others


def _head(cold: bool) -> dict[str, Any]:
    names = {name: peer.about for name, peer in PEERS.items()}
    return {
        "format": FORMAT,
        "version": 1,
        "what": f"peers on the same tokens, one request at a time {_knowledge(cold)}",
        "cold": cold,
        "names": {**names, ORACLE: ABOUT_ORACLE},
        "tokens": {},
        "sets": {},
    }


def _knowledge(cold: bool) -> str:
    return "with a fresh drafter each" if cold else "in file order, knowledge kept"


def _read(path: Path) -> dict[str, Any]:
    try:
        body: dict[str, Any] = json.loads(path.read_bytes())
        if body["format"] != FORMAT or body["version"] != 1:
            raise ValueError(f"format {body['format']!r}, version {body['version']!r}")
        if body["tokens"].keys() != body["sets"].keys():
            raise ValueError("sets without their tokens' digest")
        body["cold"] = bool(body["cold"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{path}: not a file of peers' replays: {error!r}") from None
    return body


def _text(body: Mapping[str, Any]) -> str:
    """Return JSON with a line for each peer of each set."""
    sets = {
        name: "{\n" + ",\n".join(f"   {json.dumps(k)}: {json.dumps(v)}" for k, v in rows.items())
        for name, rows in sorted(body["sets"].items())
    }
    shown = json.dumps({k: v for k, v in body.items() if k != "sets"}, indent=1)
    lines = ",\n".join(f"  {json.dumps(name)}: {rows}\n  }}" for name, rows in sets.items())
    return f'{shown[:-2]},\n "sets": {{\n{lines}\n }}\n}}\n'


def read_tally(record: Mapping[str, Any]) -> ReplayTally:
    """Return a tally from dataclasses.asdict, as read from JSON; other keys are ignored.

    Raises:
        FormatError: A count is missing or not a number >= 0.
    """
    try:
        tally = ReplayTally(
            requests=_count(record["requests"]),
            draft_lengths=_counts(record["draft_lengths"]),
            accepted_lengths=_counts(record["accepted_lengths"]),
            begin_ns=_count(record["begin_ns"]),
            step_ns=_count(record["step_ns"]),
            nbytes=None if record["nbytes"] is None else _count(record["nbytes"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"not the counts of a replay: {error!r}") from None
    if tally.steps != sum(tally.accepted_lengths) or tally.accepted > tally.drafted:
        raise FormatError("not the counts of a replay: drafted and accepted tokens do not agree")
    return tally


def _counts(values: Sequence[Any]) -> tuple[int, ...]:
    return tuple(_count(value) for value in values)


def _count(value: Any) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"expected a count, got {value!r}")
    return value
