"""The vocabulary of a loaded model: text to tokens and back, and what its special tokens are.

A C++ exception that reaches ctypes ends the process, so whatever makes llama.cpp throw is refused
first. Many vocabularies split text by std::regex, which recurses once per character of a run and
overflows the stack at some 26,000 characters: long runs are cut, other text is tokenised as it is.
"""

from __future__ import annotations

import ctypes
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ngramspec._native.grammar.matcher import Tokens
from ngramspec._native.hosts import llama as native_llama
from ngramspec.arrays import TokenIds
from ngramspec.errors import BackendError, FormatError, StateError
from ngramspec.text.tokenizers.llama_library import Library
from ngramspec.text.tokenizers.tokenizer import checked_ids

MAX_RUN = 4 << 10  # characters that are all white space, or none of them
ALL_BYTES = 256
BLANK = b" \t\n\r\x0b\x0c"
_RUN = re.compile(r"\s+|\S+")
_WHITE = re.compile(r"\s")
_NEEDS_BYTES = "llama"  # SentencePiece throws where a byte has no token
_IDS = ctypes.POINTER(ctypes.c_int32)
_NOTHING: TokenIds = np.empty(0, dtype=np.int32)
_SPECIAL = ("bos", "eos", "eot", "fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep")


class Vocabulary:
    """The vocabulary of a loaded model.

    Args:
        library: llama.cpp.
        address: The llama_vocab; it belongs to the model.

    Calls may come from several threads at once.
    """

    def __init__(self, library: Library, address: int) -> None:
        self._library, self._lib = library, library.lib
        self._address: int | None = address
        lib = self._lib
        self.vocab_size = int(lib.llama_vocab_n_tokens(address))
        self.ends = native_llama.end_flags(library.calls, address, self.vocab_size)
        call = "llama_vocab_{}".format
        self.special = {name: int(getattr(lib, call(name))(address)) for name in _SPECIAL}
        self.add_bos = bool(lib.llama_vocab_get_add_bos(address)) and self.special["bos"] >= 0
        self._split = lib.llama_vocab_type(address) == lib.LLAMA_VOCAB_TYPE_BPE
        kinds = (lib.LLAMA_VOCAB_TYPE_BPE, lib.LLAMA_VOCAB_TYPE_SPM)
        self._whole = lib.llama_vocab_type(address) in kinds  # every byte of a text is in a token
        self._pieces: tuple[list[bytes | None], list[bytes | None]] = (
            [None] * self.vocab_size,
            [None] * self.vocab_size,
        )
        self._before, self._after = self._added()

    def least_tokens(self, text: str) -> int:
        """Return how many tokens a text has at least, 0 where that takes tokenizing it.

        White space does not count: some special tokens swallow it.
        """
        if not self._longest:
            return 0
        shown = len(text.encode("utf-8", "replace").translate(None, BLANK))
        return -(-shown // self._longest)

    @cached_property
    def _longest(self) -> int:
        """Return the most bytes, white space left out, of a token; 0 if a text may lose some."""
        pieces = [self.piece(token, True) for token in range(self.vocab_size)]
        single = {piece for piece in pieces if len(piece) == 1}
        if not self._whole or len(single) < ALL_BYTES:
            return 0
        return max(len(piece.translate(None, BLANK)) for piece in pieces)

    @property
    def address(self) -> int:
        """Return the address of the llama_vocab.

        Raises:
            StateError: The model is closed.
        """
        if self._address is None:
            raise StateError("the model is closed")
        return self._address

    def close(self) -> None:
        """Stop using the vocabulary; the model frees it."""
        self._address = None

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> TokenIds:
        """Return the token ids of a text; see LlamaModel.tokenize."""
        parts = list(self._parts(text, parse_special)) if self._split else [text]
        ids = [self._tokenize(part, parse_special) for part in parts if part]
        if add_special:
            ids = [self._before, *ids, self._after]
        joined: TokenIds = np.concatenate([_NOTHING, *ids])
        if joined.size and not 0 <= int(joined.min()) <= int(joined.max()) < self.vocab_size:
            raise BackendError("llama.cpp has no token for a part of the text")
        return joined

    def writes(self, text: str) -> bool:
        """Return whether the tokens of a text have just that text, without a space before it."""
        ids = self.tokenize(text, add_special=False, parse_special=False)
        return b"".join([self.piece(int(token), False) for token in ids]) == text.encode()

    def detokenize(self, token_ids: Sequence[int] | TokenIds, special: bool) -> str:
        ids = checked_ids(token_ids, self.vocab_size)
        return b"".join([self.piece(token, special) for token in ids]).decode("utf-8", "replace")

    def piece(self, token_id: int, special: bool) -> bytes:
        """Return the bytes of a token; those of special tokens only with `special`."""
        pieces = self._pieces[bool(special)]
        if not 0 <= token_id < self.vocab_size:
            checked_ids([token_id], self.vocab_size)
        piece = pieces[token_id]
        if piece is None:
            piece = pieces[token_id] = token_piece(self._lib, self.address, token_id, special)
        return piece

    def text(self, token_id: int) -> str:
        """Return a token as the vocabulary lists it, "" for -1."""
        if token_id < 0:
            return ""
        checked_ids([token_id], self.vocab_size)
        raw: bytes | None = self._lib.llama_vocab_get_text(self.address, token_id)
        return (raw or b"").decode("utf-8", "replace")

    def suppressed(self) -> list[int]:
        """Return the tokens that the model's file forbids to sample."""
        count = ctypes.c_int32()
        ids = self._lib.llama_vocab_get_suppress_tokens(self.address, ctypes.byref(count))
        return [int(ids[i]) for i in range(count.value)]

    @cached_property
    def end_tokens(self) -> list[int]:
        ids: list[int] = np.flatnonzero(np.frombuffer(self.ends, dtype=np.uint8)).tolist()
        return ids

    @cached_property
    def grammar_tokens(self) -> Tokens:
        """Return the texts of all tokens, special ones included, for grammars.

        Cost: 2 us per token, the first time.
        """
        return Tokens([self.piece(token, True) for token in range(self.vocab_size)], self.ends)

    @cached_property
    def _special_texts(self) -> re.Pattern[str]:
        """Match the text of any special token, the longest first."""
        lib, address = self._lib, self.address
        mask = lib.LLAMA_TOKEN_ATTR_CONTROL | lib.LLAMA_TOKEN_ATTR_USER_DEFINED
        ids = range(self.vocab_size)
        texts = {self.text(i) for i in ids if lib.llama_vocab_get_attr(address, i) & mask}
        longest_first = sorted(texts - {""}, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)) or "$^")

    def _added(self) -> tuple[TokenIds, TokenIds]:
        """Return what llama.cpp puts before and after a text."""
        lib, address = self._lib, self.address
        # llama.cpp asserts that the tokens it is to add exist
        asked = [(self.add_bos, "bos"), (bool(lib.llama_vocab_get_add_eos(address)), "eos")]
        if lib.llama_vocab_get_add_bos(address) and not self.add_bos:
            return _NOTHING, _NOTHING
        if any(adds and self.special[name] < 0 for adds, name in asked):
            return _NOTHING, _NOTHING
        if lib.llama_vocab_type(address) == lib.LLAMA_VOCAB_TYPE_WPM:
            return _NOTHING, _NOTHING
        ids = np.empty(8, dtype=np.int32)
        count = lib.llama_tokenize(address, b"", 0, ids.ctypes.data_as(_IDS), ids.size, True, False)
        added = ids[: max(0, count)].copy()
        size = int(self.add_bos and added.size > 0)
        return added[:size], added[size:]

    def _parts(self, text: str, parse_special: bool) -> Iterator[str]:
        """Cut a text inside its very long runs, but not inside a special token."""
        if not _may_have_long_run(text):
            yield text
            return
        runs = [m.span() for m in _RUN.finditer(text) if m.end() - m.start() > MAX_RUN]
        cuts = [cut for start, end in runs for cut in range(start + MAX_RUN, end, MAX_RUN)]
        if cuts and parse_special:
            spans = [m.span() for m in self._special_texts.finditer(text)]
            cuts = sorted(_outside(cut, spans) for cut in cuts)
        for start, end in pairwise([0, *cuts, len(text)]):
            yield text[start:end]

    def _tokenize(self, text: str, parse_special: bool) -> TokenIds:
        data = text.encode("utf-8", "replace")
        ids = np.empty(len(data) + 8, dtype=np.int32)
        count = self._call_tokenize(data, ids, parse_special)
        if count < 0:  # more tokens than bytes
            ids = np.empty(-count, dtype=np.int32)
            count = self._call_tokenize(data, ids, parse_special)
        if count < 0:
            raise BackendError(f"llama.cpp cannot tokenise {len(data)} bytes")
        return ids[:count]

    def _call_tokenize(self, data: bytes, ids: TokenIds, parse_special: bool) -> int:
        buffer = ids.ctypes.data_as(_IDS)
        call = self._lib.llama_tokenize
        return int(call(self.address, data, len(data), buffer, ids.size, False, parse_special))


def token_piece(lib: Any, vocab: Any, token: int, special: bool) -> bytes:
    """Return the bytes of a token, however long; those of special tokens only with `special`.

    lib, vocab: llama.cpp, and the llama_vocab that the token is of.
    """
    size = 64
    while True:
        buffer = ctypes.create_string_buffer(size)
        count = int(lib.llama_token_to_piece(vocab, token, buffer, size, 0, special))
        if count >= 0:
            return buffer.raw[:count]
        size = -count


def check_vocabulary(path: Path, tokens: Sequence[bytes], kind: str) -> None:
    """Refuse vocabularies with which llama.cpp ends the process, at loading or later."""
    # In llama.cpp a text ends before its first NUL, and empty ones are named by their id.
    texts = {text.partition(b"\0")[0] or b"[EMPTY_%d]" % i for i, text in enumerate(tokens)}
    if len(texts) != len(tokens):
        raise FormatError(f"{path}: {len(tokens) - len(texts)} tokens share the text of another")
    if kind == _NEEDS_BYTES:
        for byte in range(256):
            if not texts & {b"<0x%02X>" % byte, bytes([byte])}:
                raise FormatError(f"{path}: the vocabulary has no token for byte 0x{byte:02X}")


def _may_have_long_run(text: str) -> bool:
    """Return whether some aligned part of MAX_RUN / 2 characters is all white space or has none.

    A long run contains such a part wherever it begins. Checking a part stops at its first change
    of kind: text without long runs costs next to nothing.
    """
    size = MAX_RUN // 2
    starts = range(0, len(text) - size + 1, size)
    parts = (text[start : start + size] for start in starts) if len(text) > MAX_RUN else ()
    return any(part.isspace() or not _WHITE.search(part) for part in parts)


def _outside(cut: int, spans: Sequence[tuple[int, int]]) -> int:
    """Return the cut, moved to the start of the span that contains it, if any."""
    index = bisect_left(spans, (cut, 0)) - 1
    return spans[index][0] if index >= 0 and cut < spans[index][1] else cut
