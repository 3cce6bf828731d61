"""A file of recorded requests: its lines, the sessions that they belong to, and reading it again.

docs/reference/formats.md describes it.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeGuard

import numpy as np

from ngramspec.arrays import TokenIds
from ngramspec.errors import FormatError, VocabMismatchError
from ngramspec.lab.recordings.lines import (
    CUT,
    MAX_TOKEN,
    Bad,
    BadLineError,
    Line,
    RecordedRequest,
    parse,
)
from ngramspec.text.tokenizers import Fingerprint

FORMAT, VERSION = "ngramspec-requests", 1
NOT_ONE = "not a recorded request"
DECISION = "decision"  # the only member of a line that says what was decided on a draft
SENT = "as sent"
IDS_AT_A_TIME = 2048  # that are written as text before other threads have their turn
MOST_TEXTS = 256
MOST_TOKENS = 1 << 22  # of all texts that are remembered, 16 MiB
LEAST_KEPT = 16  # fewer tokens are simply written again
FIRST_COMPARED = 64


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
        head = {"format": FORMAT, "version": VERSION, **asdict(self)}
        return json.dumps(head, ensure_ascii=True).encode() + b"\n"


@dataclass(frozen=True)
class Place:
    """Where a record stands among others.

    prefix: session, turn, and how many tokens of that text (prompt and answer) the prompt begins
        with; None = none.
    """

    session: int
    turn: int
    prefix: tuple[int, int, int] | None = None

    @property
    def prefix_len(self) -> int:
        """The tokens that are not repeated."""
        return 0 if self.prefix is None else self.prefix[2]


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
    if place.prefix is not None:
        head["kept"] = place.prefix
    yield json.dumps({**head, **facts}).encode()[:-1]
    yield b', "prompt_ids": ['
    yield from _parts(prompt[place.prefix_len :])
    yield b'], "output_ids": ['
    yield from _parts(output)
    yield b"]}\n"


def is_head(value: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether a parsed line is a head, of any version."""
    return isinstance(value, dict) and value.get("format") == FORMAT


def _parts(ids: TokenIds) -> Iterator[bytes]:
    for start in range(0, len(ids), IDS_AT_A_TIME):
        part = ",".join(map(str, ids[start : start + IDS_AT_A_TIME].tolist()))
        yield (b"," if start else b"") + part.encode()


@dataclass
class _Text:
    """The latest text of a session. num_prompt: tokens of it that were the prompt."""

    session: int
    turn: int
    ids: TokenIds
    num_prompt: int


class Sessions:
    """The latest texts of each key, oldest first; the least recently used are forgotten.

    For one thread. A prompt is the next turn of a session if it begins with all of that session's
    last prompt. It is compared with the texts of its own key only.
    """

    def __init__(self, most_texts: int = MOST_TEXTS, most_tokens: int = MOST_TOKENS) -> None:
        self._texts: OrderedDict[int, tuple[str, _Text]] = OrderedDict()
        self._most_texts, self._most_tokens = most_texts, most_tokens
        self._num_tokens = 0
        self._next = 0

    def place(self, key: str, prompt: TokenIds) -> Place:
        """Return where a prompt stands; nothing changes.

        Cost: O(texts + tokens in common), at most O(tokens remembered).
        """
        best: _Text | None = None
        most = LEAST_KEPT - 1
        for owner, text in reversed(self._texts.values()):
            if owner == key and (common := num_common(text.ids, prompt, most)) > most:
                best, most = text, common
        if best is None:
            return Place(self._next, 0)
        prefix = (best.session, best.turn, most)
        if most >= best.num_prompt:
            return Place(best.session, best.turn + 1, prefix)
        return Place(self._next, 0, prefix)

    def add(self, key: str, place: Place, prompt: TokenIds, output: TokenIds) -> None:
        """Remember a text that was written at a place."""
        self.forget(place.session)
        ids = np.concatenate([prompt, output])
        self._texts[place.session] = key, _Text(place.session, place.turn, ids, len(prompt))
        self._num_tokens += len(ids)
        self._next = max(self._next, place.session + 1)
        while len(self._texts) > self._most_texts or self._num_tokens > self._most_tokens:
            self.forget(next(iter(self._texts)))

    def forget(self, session: int) -> None:
        """Forget a session's text, if it is known."""
        entry = self._texts.pop(session, None)
        if entry is not None:
            self._num_tokens -= len(entry[1].ids)


def num_common(text: TokenIds, prompt: TokenIds, least: int = 0) -> int:
    """Return how many leading tokens two texts share; 0 if not more than `least`."""
    length = min(len(text), len(prompt))
    if length <= least or text[least] != prompt[least]:
        return 0
    start, size = 0, FIRST_COMPARED
    while start < length:
        stop = min(start + size, length)
        wrong = np.flatnonzero(text[start:stop] != prompt[start:stop])
        if len(wrong):
            common = start + int(wrong[0])
            return common if common > least else 0
        start, size = stop, 4 * size
    return length


class RequestReader:
    """Reads records in the order of their recording.

    Args:
        where: The file, for messages.
        fingerprint: The target's, None = not known.

    heads: The heads met so far.
    decided: What was decided on drafts so far, by whose drafts they were: tokens sent, right ones.
    """

    def __init__(self, where: str, fingerprint: Fingerprint | None) -> None:
        self.heads: list[dict[str, Any]] = []
        self.decided: dict[str, list[tuple[int, int]]] = {}
        self._apart = False
        self._where, self._fingerprint = where, fingerprint
        # By session: turn, prompt and answer.
        self._texts: OrderedDict[int, tuple[int, TokenIds]] = OrderedDict()
        self._num_tokens = 0  # of these

    def read(self, lines: Iterable[Line], bad: Bad) -> Iterator[RecordedRequest]:
        """Yield the requests of lines, each with the full prompt; wrong ones go to `bad`.

        Raises:
            FormatError: A head is of another version.
            VocabMismatchError: A server with another tokenizer wrote it.
        """
        for line in lines:
            try:
                record = parse(line)
                if isinstance(record, dict) and DECISION in record:
                    self._decide(record[DECISION])
                    continue
                request = None if is_head(record) else self._request(record)
            except BadLineError as error:
                why = str(error)
                bad(line.number, why if why == CUT else f"{NOT_ONE}: {why}")
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                why = f"no {error}" if isinstance(error, KeyError) else str(error)
                bad(line.number, f"{NOT_ONE}: {why}")
            else:
                if request is None:
                    self._begin(record)
                else:
                    yield request

    def _begin(self, head: dict[str, Any]) -> None:
        """Take a head: what follows knows nothing of what came before."""
        if head.get("version") != VERSION:
            raise FormatError(
                f"{self._where}: recorded requests of version {head.get('version')!r}, this is for "
                f"version {VERSION}: use a newer ngramspec"
            )
        try:
            stated, fingerprint = str(head["tokenizer"]), self._fingerprint
            if len(bytes.fromhex(stated)) not in (0, 16) or type(head["vocab_size"]) is not int:
                raise ValueError(f"tokenizer {stated!r:.60}, {head['vocab_size']!r:.60}")
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"{self._where}: a damaged head: {error!r}") from None
        if fingerprint is not None and stated and stated != str(fingerprint):
            raise VocabMismatchError(
                f"{self._where}: recorded with the model {head.get('model')}, which has another "
                "tokenizer than the one that is given: name that model"
            )
        self.heads.append(head)
        self._apart = bool(head.get("apart"))
        self._texts.clear()
        self._num_tokens = 0

    def _decide(self, decision: Any) -> None:
        """Count a decision; raises KeyError or TypeError."""
        name = f"shadow {decision['drafters']}" if decision["shadow"] else SENT
        counts = _count(decision, "sent"), _count(decision, "accepted")
        self.decided.setdefault(name, []).append(counts)

    def _request(self, record: Any) -> RecordedRequest:
        """Return a record's request; raises KeyError, TypeError, ValueError or OverflowError."""
        if not isinstance(record, dict):
            raise TypeError(f"expected an object, found {type(record).__name__}")
        session, turn = _count(record, "session"), _count(record, "turn")
        prompt, output = _ids(record["prompt_ids"]), _ids(record["output_ids"])
        if (prefix := record.get("kept")) is not None:
            prompt = np.concatenate([self._continued(prefix), prompt])
        self._remember(session, turn, np.concatenate([prompt, output]))
        return RecordedRequest(prompt, output, str(record.get("key", "")), self._apart)

    def _continued(self, prefix: Any) -> TokenIds:
        """Return the tokens of an earlier text that a prompt begins with."""
        try:
            session, turn, count = prefix
            latest, text = self._texts[session]
            if latest == turn and isinstance(count, int) and 0 <= count <= len(text):
                return text[:count]
        except (TypeError, ValueError, LookupError):
            pass
        raise BadLineError(f"the text that it continues is missing: {prefix!r:.60}")

    def _remember(self, session: int, turn: int, text: TokenIds) -> None:
        """Keep a text as long as its writer did, and longer: later ones may continue it."""
        if session in self._texts:
            self._num_tokens -= len(self._texts.pop(session)[1])
        self._texts[session] = turn, text
        self._num_tokens += len(text)
        while len(self._texts) > 2 * MOST_TEXTS or self._num_tokens > 2 * MOST_TOKENS:
            self._num_tokens -= len(self._texts.popitem(last=False)[1][1])


def _count(record: dict[str, Any], name: str) -> int:
    value = record[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"{name} must be a number from 0 on, got {value!r:.60}")
    return value


def _ids(value: Any) -> TokenIds:
    if not isinstance(value, list):
        raise TypeError("token ids must be a list")
    if any(type(token) is not int for token in value):
        raise TypeError("token ids must be whole numbers")
    if value and not 0 <= min(value) <= max(value) <= MAX_TOKEN:
        raise ValueError(f"token ids must be 0..{MAX_TOKEN}")
    return np.array(value, dtype=np.int32)
