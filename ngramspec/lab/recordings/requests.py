"""Requests as records: what a server wrote, with token ids, or records with text.

A record with ids has `session`, `turn`, perhaps `kept`, `prompt_ids` and `output_ids`. A record
with text has `session`, `turn`, `messages` (`role` and `content`; only those that are new since the
last output of the session, at turn 0 all) and `output`. Both may have `other_lengths`, see
RecordedRequest. Other members are ignored.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from ngramspec.arrays import TokenIds
from ngramspec.errors import FormatError, NgramspecError, VocabMismatchError
from ngramspec.lab.recordings.chatml import ChatMl, Message
from ngramspec.lab.recordings.lines import CUT, Bad, BadLineError, Line, parse
from ngramspec.lab.recordings.record import MAX_TOKEN, VERSION, is_head
from ngramspec.lab.recordings.request import RecordedRequest
from ngramspec.lab.recordings.sessions import MOST_TEXTS, MOST_TOKENS
from ngramspec.text.tokenizers import Fingerprint, Tokenizer

NOT_ONE = "not a recorded request"


class RequestReader:
    """Reads records in the order of their recording.

    Args:
        where: The file, for messages.
        tokenizer: Returns the target's; called for the first record with text.
        fingerprint: The target's, None = not known.

    heads: The heads met so far.
    """

    def __init__(
        self, where: str, tokenizer: Callable[[], Tokenizer], fingerprint: Fingerprint | None
    ) -> None:
        self.heads: list[dict[str, Any]] = []
        self._apart = False
        self._where, self._open, self._fingerprint = where, tokenizer, fingerprint
        self._tokenizer: Tokenizer | None = None
        self._chat: ChatMl | None = None
        self._chats: dict[Any, list[TokenIds]] = {}
        # By session: turn, prompt and answer.
        self._texts: OrderedDict[int, tuple[int, TokenIds]] = OrderedDict()
        self._num_tokens = 0  # of these

    def read(self, lines: Iterable[Line], bad: Bad) -> Iterator[RecordedRequest]:
        """Yield the requests of lines, each with the full prompt; wrong ones go to `bad`.

        Raises:
            FormatError: A head is of another version.
            VocabMismatchError: A server with another tokenizer wrote it.
            BackendError: The tokenizer refuses a text.
        """
        for line in lines:
            try:
                record = parse(line)
                request = None if is_head(record) else self._request(record)
            except NgramspecError:
                raise
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
        self._chats.clear()
        self._texts.clear()
        self._num_tokens = 0

    def _request(self, record: Any) -> RecordedRequest:
        """Return a record's request; raises KeyError, TypeError, ValueError or OverflowError."""
        if not isinstance(record, dict):
            raise TypeError(f"expected an object, found {type(record).__name__}")
        return self._of_ids(record) if "output_ids" in record else self._of_text(record)

    def _of_ids(self, record: dict[str, Any]) -> RecordedRequest:
        session, turn = _count(record, "session"), _count(record, "turn")
        prompt, output = _ids(record["prompt_ids"]), _ids(record["output_ids"])
        prefix = record.get("kept")
        if prefix is not None:
            try:
                of, at, many = prefix
                latest, text = self._texts[of]
            except (TypeError, ValueError, LookupError):
                raise BadLineError(
                    f"the text that it continues is missing: {prefix!r:.60}"
                ) from None
            if latest != at or not isinstance(many, int) or not 0 <= many <= len(text):
                raise BadLineError(f"the text that it continues is missing: {prefix!r:.60}")
            prompt = np.concatenate([text[:many], prompt])
        self._remember(session, turn, np.concatenate([prompt, output]))
        others = _other_lengths(record, len(output))
        return RecordedRequest(prompt, output, str(record.get("key", "")), self._apart, others)

    def _remember(self, session: int, turn: int, text: TokenIds) -> None:
        """Keep a text as long as its writer did, and longer: later ones may continue it."""
        if session in self._texts:
            self._num_tokens -= len(self._texts.pop(session)[1])
        self._texts[session] = turn, text
        self._num_tokens += len(text)
        while len(self._texts) > 2 * MOST_TEXTS or self._num_tokens > 2 * MOST_TOKENS:
            self._num_tokens -= len(self._texts.popitem(last=False)[1][1])

    def _of_text(self, record: dict[str, Any]) -> RecordedRequest:
        session, turn, messages, output = _fields(record)
        if turn and session not in self._chats:
            raise BadLineError(f"turn {turn} of a session without a turn 0")
        if self._tokenizer is None or self._chat is None:
            self._tokenizer = self._open()
            self._chat = ChatMl(self._tokenizer)
        parts = self._chats.setdefault(session, [])
        if turn == 0:
            parts.clear()
        parts += [self._chat.message(role, content) for role, content in messages]
        prompt = np.concatenate([*parts, self._chat.answer_head])
        parts.append(self._chat.message("assistant", output))
        ids = self._tokenizer.encode(output)
        return RecordedRequest(prompt, ids, other_lengths=_other_lengths(record, len(ids)))


def _count(record: dict[str, Any], name: str) -> int:
    value = record[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"{name} must be a number from 0 on, got {value!r:.60}")
    return value


def _other_lengths(record: dict[str, Any], length: int) -> dict[str, TokenIds]:
    """Return the lengths of other sources' drafts; each needs one per output token."""
    by_source = record.get("other_lengths", {})
    if not isinstance(by_source, dict):
        raise TypeError("other_lengths must be an object: lists of numbers by the source's name")
    others = {}
    for name, lengths in by_source.items():
        if not isinstance(lengths, list) or any(type(one) is not int for one in lengths):
            raise TypeError(f"other_lengths of {name!r:.60} must be a list of whole numbers")
        if len(lengths) != length or min(lengths, default=1) < 1:
            raise ValueError(
                f"other_lengths of {name!r:.60}: expected {length} numbers from 1 on, one for each "
                f"output token, got {len(lengths)}, the smallest {min(lengths, default=1)}"
            )
        others[name] = np.minimum(lengths, MAX_TOKEN).astype(np.int32)
    return others


def _ids(value: Any) -> TokenIds:
    if not isinstance(value, list):
        raise TypeError("token ids must be a list")
    if any(type(token) is not int for token in value):
        raise TypeError("token ids must be whole numbers")
    if value and not 0 <= min(value) <= max(value) <= MAX_TOKEN:
        raise ValueError(f"token ids must be 0..{MAX_TOKEN}")
    return np.array(value, dtype=np.int32)


def _fields(record: dict[str, Any]) -> tuple[Any, int, list[Message], str]:
    """Return session, turn, messages and output; raises ValueError, TypeError or KeyError."""
    session, turn, output = record["session"], record["turn"], record["output"]
    messages = [(message["role"], message["content"]) for message in record["messages"]]
    if not isinstance(session, (str, int)) or not isinstance(turn, int):
        raise TypeError("session and turn must be a name and a number")
    if not all(isinstance(text, str) for text in (output, *sum(messages, ()))):
        raise TypeError("output, roles and contents must be text")
    return session, turn, messages, output
