"""The lines of a file of recorded requests; docs/reference/formats.md describes them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeGuard

from ngramspec.arrays import TokenIds

FORMAT, VERSION = "ngramspec-requests", 1
IDS_AT_A_TIME = 2048  # that are written as text before other threads have their turn
MAX_TOKEN = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class Head:
    """The first line of what one server wrote; sessions are counted anew behind it.

    model: its name.
    tokenizer: the fingerprint in hexadecimal digits, "" = unknown.
    drafter: what drafts unless a record says otherwise.
    started: seconds since 1970.
    apart: whether what is learned from one key is not used for another.
    salt: what the digests of keys are made with, 32 hexadecimal digits; "" = not chosen yet.
    """

    model: str
    tokenizer: str
    vocab_size: int
    drafter: str
    started: float
    apart: bool
    salt: str = ""

    def line(self) -> bytes:
        """Return it as a line."""
        head = {"format": FORMAT, "version": VERSION, **asdict(self)}
        return json.dumps(head, ensure_ascii=True).encode() + b"\n"


@dataclass(frozen=True)
class Place:
    """Where a record stands among others.

    kept: session, turn, and how many tokens of that text (prompt and answer) the prompt begins
        with; None = none.
    """

    session: int
    turn: int
    kept: tuple[int, int, int] | None = None

    @property
    def num_kept(self) -> int:
        """The tokens that are not repeated."""
        return 0 if self.kept is None else self.kept[2]


def record_line(
    place: Place, prompt: TokenIds, output: TokenIds, facts: Mapping[str, Any]
) -> Iterator[bytes]:
    """Yield a record in parts that are a line together.

    Args:
        place: Where it stands.
        prompt: All of it.
        output: The answer.
        facts: Further members: key, time and what happened.
    """
    head: dict[str, Any] = {"session": place.session, "turn": place.turn}
    if place.kept is not None:
        head["kept"] = place.kept
    yield json.dumps({**head, **facts}).encode()[:-1]
    yield b', "prompt_ids": ['
    yield from _ids(prompt[place.num_kept :])
    yield b'], "output_ids": ['
    yield from _ids(output)
    yield b"]}\n"


def is_head(value: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether a parsed line is a head, of any version."""
    return isinstance(value, dict) and value.get("format") == FORMAT


def _ids(ids: TokenIds) -> Iterator[bytes]:
    for start in range(0, len(ids), IDS_AT_A_TIME):
        part = ",".join(map(str, ids[start : start + IDS_AT_A_TIME].tolist()))
        yield (b"," if start else b"") + part.encode()
