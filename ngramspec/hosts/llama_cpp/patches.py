"""The three stand-ins that attach() puts into a Llama: no score matrix, batches, detokenizer."""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec.errors import StateError
from ngramspec.text.tokenizers.llama_vocabulary import token_piece

REASON = (
    "scores and logprobs are not kept while ngramspec is attached: detach() first, "
    "and create the Llama with logits_all=True"
)


SHORT = 8  # shorter lists are single pieces, asked in between; they must not replace the kept text


class NoScores:
    """Stands for `Llama.scores` without storing anything: writes vanish, rows read as NaN.

    The host indexes rows (stopping criteria get one, but hardly ever read it), copies the used part
    into saved states, and zeroes the rest when it loads one. All of that must work, without giving
    numbers that look real.
    """

    __slots__ = ("dtype", "shape")

    def __init__(self, rows: int, cols: int) -> None:
        self.shape = (rows, cols)
        self.dtype = np.dtype(np.single)

    def __getitem__(self, key: Any) -> Any:
        rows = key[0] if isinstance(key, tuple) else key
        if isinstance(rows, slice):
            return NoScores(len(range(*rows.indices(self.shape[0]))), self.shape[1])
        return np.broadcast_to(self.dtype.type(np.nan), (self.shape[1],))

    def __setitem__(self, key: Any, value: Any) -> None:
        """Drop the value."""

    def __gt__(self, other: Any) -> bool:
        return False

    def __len__(self) -> int:
        return self.shape[0]

    def copy(self) -> npt.NDArray[np.single]:
        """Return one row of NaN: all that a saved state needs; loads with and without us."""
        return np.full((1, self.shape[1]), np.nan, dtype=np.single)

    def tolist(self) -> list[Any]:
        """Refuse: see REASON."""
        raise StateError(REASON)

    def __array__(self, *args: Any, **kwargs: Any) -> npt.NDArray[np.single]:
        raise StateError(REASON)


class BatchWriter:
    """Stands for `LlamaBatch.set_batch`: marks rows on demand and fills arrays without a loop.

    last_rows: rows with logits in the batch written last, counted from its end.
    verify_at: the next batch verifies a draft if it begins at this position; -1 = it does not.
    """

    __slots__ = ("_arrays", "_batch", "last_rows", "verify_at")

    def __init__(self, batch: Any, n_batch: int) -> None:
        raw = batch.batch
        self._batch = weakref.ref(batch)
        self._arrays = [
            np.ctypeslib.as_array(field, shape=(n_batch,))
            for field in (raw.token, raw.pos, raw.n_seq_id, raw.logits)
        ]
        for i in range(n_batch):
            raw.seq_id[i][0] = 0
        self.last_rows = 1
        self.verify_at = -1

    def __call__(self, batch: Sequence[int], n_past: int, logits_all: bool) -> None:
        """Fill the native batch; the signature is the host's."""
        owner = self._batch()
        if owner is None or owner.batch is None:
            raise StateError("this Llama is closed")
        count = len(batch)
        every = bool(logits_all) or self.verify_at == n_past
        self.verify_at = -1
        token, pos, n_seq_id, logits = self._arrays
        owner.batch.n_tokens = count
        token[:count] = batch
        pos[:count] = np.arange(n_past, n_past + count)
        n_seq_id[:count] = 1
        logits[:count] = every
        logits[count - 1] = 1
        self.last_rows = count if every else 1


class _Pieces(dict[int, bytes]):
    """The bytes of single tokens, asked from llama.cpp once each."""

    def __init__(self, ask: Callable[[int], bytes]) -> None:
        super().__init__()
        self._ask = ask

    def __missing__(self, token: int) -> bytes:
        piece = self[token] = self._ask(token)
        return piece


class IncrementalTokenizer:
    """Stands for `LlamaTokenizer`: detokenizes only the tokens that are new since the last call.

    The host detokenizes the whole completion again for every token, and leaves out tokens of more
    than 32 bytes, such as deep indents (its issue 2362). Pieces are joined as it joins them: a
    space behind a begin token goes.
    """

    def __init__(self, original: Any, bos: int) -> None:
        self.original = original
        self._bos = bos
        self._pieces = {
            special: _Pieces(functools.partial(self._ask, special)) for special in (False, True)
        }
        self._last: tuple[bool, list[int], bytes] = (False, [], b"")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """Tokenize as the host does."""
        return list(self.original.tokenize(text, add_bos, special))

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: list[int] | None = None, special: bool = False
    ) -> bytes:
        """Detokenize as the host does; prev_tokens have no influence there either."""
        if not isinstance(tokens, list):
            tokens = list(map(int, tokens))  # the host takes arrays and deques too
        count, text = self._prefix(tokens, bool(special))
        text += b"".join(map(self._pieces[bool(special)].__getitem__, tokens[count:]))
        if count or len(tokens) >= SHORT:
            self._last = (bool(special), list(tokens), text)
        return text[1:] if text[:1] == b" " and tokens[0] == self._bos else text

    def _prefix(self, tokens: list[int], special: bool) -> tuple[int, bytes]:
        was_special, before, text = self._last
        count = len(before)
        if was_special == special and count <= len(tokens) and tokens[:count] == before:
            return count, text
        return 0, b""

    def _ask(self, special: bool, token: int) -> bytes:
        import llama_cpp.llama_cpp as lib

        return token_piece(lib, self.original._model.vocab, token, special)


def batch_layout_problem(batch: Any) -> str:
    """Return what is unexpected about the native batch structure, "" when nothing is."""
    names = ("token", "pos", "n_seq_id", "seq_id", "logits")
    missing = [name for name in names if not hasattr(batch, name)]
    if missing:
        return f"llama_batch has no {', '.join(missing)}"
    sizes = [ctypes.sizeof(getattr(batch, name)._type_) for name in ("token", "pos", "logits")]
    return "" if sizes == [4, 4, 1] else f"llama_batch fields have {sizes} bytes, not [4, 4, 1]"
