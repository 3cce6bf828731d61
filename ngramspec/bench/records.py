"""Recorded requests with text, one JSON object per line, as the target's tokens.

A record has `session`, `turn`, `messages` (`role` and `content`; only those that are new since the
last output of the session, at turn 0 all) and `output`. Other keys are ignored. Prompts are written
as ChatML without a begin token. ChatML's two markers are tokens if the vocabulary has them,
otherwise plain text; in a message they are always text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ngramspec.bench.player import Tokens
from ngramspec.bench.walk import RecordedRequest
from ngramspec.errors import FormatError
from ngramspec.tokenizers import Tokenizer

START, END = "<|im_start|>", "<|im_end|>"
HEAD_OF_ANSWER = "assistant\n"


def read_records(
    lines: Iterable[str], where: str, tokenizer: Tokenizer
) -> Iterator[RecordedRequest]:
    """Yield the requests of such lines, each with the full prompt; empty lines are skipped.

    Args:
        lines: In the order of the recording.
        where: The file, for messages.
        tokenizer: The target's.

    Raises:
        FormatError: A line is not a recorded request.
        BackendError: The tokenizer refuses a text.
    """
    chat = _Chat(tokenizer)
    sessions: dict[Any, list[Tokens]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            session, turn, messages, output = _fields(json.loads(line))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise FormatError(
                f"{where}, line {number}: not a recorded request: {error!r}"
            ) from None
        if turn and session not in sessions:
            raise FormatError(f"{where}, line {number}: turn {turn} of a session without a turn 0")
        said = sessions.setdefault(session, [])
        if turn == 0:
            said.clear()
        said += [chat.message(role, content) for role, content in messages]
        prompt = np.concatenate([*said, chat.answer_head])
        yield RecordedRequest(prompt, tokenizer.encode(output))
        said.append(chat.message("assistant", output))


class _Chat:
    """ChatML in token ids."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._encode = tokenizer.encode
        self._start, self._end = (_marker(tokenizer, text) for text in (START, END))
        self._line_end = tokenizer.encode("\n")
        self.answer_head = np.concatenate([self._start, self._encode(HEAD_OF_ANSWER)])

    def message(self, role: str, content: str) -> Tokens:
        """Return a message with its markers."""
        text = self._encode(f"{role}\n{content}")
        return np.concatenate([self._start, text, self._end, self._line_end])


def _marker(tokenizer: Tokenizer, text: str) -> Tokens:
    """Return the token whose text this is, or the tokens of the text."""
    size = tokenizer.fingerprint.vocab_size
    # Special tokens are usually the last ones.
    ids = (token for token in reversed(range(size)) if tokenizer.decode([token]) == text)
    found = next(ids, None)
    return tokenizer.encode(text) if found is None else np.array([found], dtype=np.int32)


def _fields(record: Any) -> tuple[Any, int, list[tuple[str, str]], str]:
    """Return session, turn, messages and output; raises ValueError, TypeError or KeyError."""
    session, turn, output = record["session"], record["turn"], record["output"]
    messages = [(message["role"], message["content"]) for message in record["messages"]]
    if not isinstance(session, (str, int)) or not isinstance(turn, int):
        raise TypeError("session and turn must be a name and a number")
    if not all(isinstance(text, str) for text in (output, *sum(messages, ()))):
        raise TypeError("output, roles and contents must be text")
    return session, turn, messages, output
