"""Chats and marked texts as token ids.

Prompts of chats are written as ChatML without a begin token. ChatML's two markers are tokens if the
vocabulary has them, otherwise plain text; in a message they are always text.
"""

from __future__ import annotations

import re

import numpy as np

from ngramspec.arrays import TokenIds
from ngramspec.text.tokenizers import Tokenizer

START, END = "<|im_start|>", "<|im_end|>"
HEAD_OF_ANSWER = "assistant\n"
Message = tuple[str, str]  # role and content
# How special tokens are usually written, such as <|im_end|>, <s>, </s>, [INST] and <start_of_turn>.
_MARKERS = re.compile(r"<\|?[/\w][^<>\s]{0,40}>|\[/?[A-Z_]{1,40}\]|<｜[^<>]{1,40}｜>")


class ChatMl:
    """ChatML in the token ids of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._encode = tokenizer.encode
        self._start, self._end = (_marker(tokenizer, text) for text in (START, END))
        self._line_end = tokenizer.encode("\n")
        self.answer_head = np.concatenate([self._start, self._encode(HEAD_OF_ANSWER)])

    def message(self, role: str, content: str) -> TokenIds:
        """Return a message with its markers."""
        text = self._encode(f"{role}\n{content}")
        return np.concatenate([self._start, text, self._end, self._line_end])


class MarkedText:
    """Texts in which special tokens are written out, in the token ids of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: dict[str, int] | None = None

    def encode(self, text: str) -> TokenIds:
        """Return the token ids of a text; what is written as a special token becomes that token."""
        parts: list[TokenIds] = [np.empty(0, np.int32)]
        done = 0
        for match in _MARKERS.finditer(text):
            token = self._special(match[0])
            if token is not None:
                parts += [self._plain(text[done : match.start()]), np.array([token], np.int32)]
                done = match.end()
        return np.concatenate([*parts, self._plain(text[done:])])

    def _plain(self, text: str) -> TokenIds:
        return self._tokenizer.encode(text) if text else np.empty(0, np.int32)

    def _special(self, text: str) -> int | None:
        """Return the token of a marker, None if the vocabulary has none."""
        if self._ids is None:
            decode, size = self._tokenizer.decode, self._tokenizer.fingerprint.vocab_size
            shown = ((decode([token]), token) for token in range(size))
            self._ids = {text: token for text, token in shown if _MARKERS.fullmatch(text)}
        return self._ids.get(text)


def _marker(tokenizer: Tokenizer, text: str) -> TokenIds:
    """Return the token whose text this is, or the tokens of the text."""
    size = tokenizer.fingerprint.vocab_size
    # Special tokens are usually the last ones.
    ids = (token for token in reversed(range(size)) if tokenizer.decode([token]) == text)
    special = next(ids, None)
    return tokenizer.encode(text) if special is None else np.array([special], dtype=np.int32)
