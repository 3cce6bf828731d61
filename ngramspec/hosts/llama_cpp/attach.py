"""attach(): drafts for a Llama without the costs that its draft_model= brings, without a fork.

llama-cpp-python with a draft model computes logits for every prompt position, copies them into a
matrix of n_ctx x n_vocab (or raises past n_batch positions), and detokenizes the whole text for
every token. attach() replaces a few attributes of that one object, no class and no module, and
detach() puts every one of them back. Only `input_ids` stays longer where it was too short.

What is replaced, and by what:
    draft_model, scores, tokenizer_, _logits_all   values (see below)
    _batch.set_batch    marks the rows of verification batches only
    sample              refuses rows without logits; shows logits processors verified ids only
    generate            when a request ends, lets the draft learn the rest of the answer and drops
                        draft tokens left over
    _create_completion  of a Llama that keeps scores (logits_all=True): refuses logprobs
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import sys
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ngramspec.drafting.names import DEFAULT_SPEC
from ngramspec.errors import BackendError, InputError, StateError, VocabMismatchError
from ngramspec.hosts.llama_cpp.draft import NgramDraft
from ngramspec.hosts.llama_cpp.streams import Host, check_llama, files_among
from ngramspec.text.tokenizers import fingerprint_of_llama
from ngramspec.text.tokenizers.llama_vocabulary import token_piece

log = logging.getLogger(__name__)

MISSING, METHOD = object(), object()
NO_LIMIT = 1 << 62
REASON = (
    "scores and logprobs are not kept while ngramspec is attached: detach() first, "
    "and create the Llama with logits_all=True"
)


SHORT = 8  # shorter lists are single pieces, asked in between; they must not replace the kept text


def attach(llama: Any, spec: Any = DEFAULT_SPEC, **params: Any) -> Attachment:
    """Let a Llama use drafts, without a score matrix or logits at prompt positions.

    Works for a Llama with and without draft_model, any n_batch, any n_ctx, and with set_cache,
    save_state and load_state; states saved while attached carry no scores. Attach before the first
    request: then the score matrix never takes memory. Another draft model of the Llama rests until
    detach(), with a warning in the log.

    Args:
        llama: A llama_cpp.Llama that is not attached yet.
        spec: Drafter names, comma-separated, or a ready NgramDraft.
        params: As for NgramDraft (max_draft, slots, policy, pool, drafter parameters).

    Returns:
        The Attachment; it does not keep the Llama alive.

    Raises:
        InputError: Bad spec or parameters, or `llama` is not a Llama.
        VocabMismatchError: A statistics file was built with another tokenizer.
        FormatError, OSError: As create_drafter, for statistics files.
        StateError: Already attached, or closed.
        BackendError: The model cannot take back tokens (recurrent, hybrid), the Llama serves
            embeddings, or this llama-cpp-python lacks what attach() relies on.

    Cost: O(n_batch). Threads: as the Llama.
    """
    _check(llama)
    if isinstance(spec, NgramDraft):
        if params:
            raise InputError(f"a ready NgramDraft takes no parameters, got {sorted(params)}")
        draft = spec
    else:
        if files_among(params):
            params.setdefault("tokenizer", fingerprint_of_llama(llama))
        draft = NgramDraft(spec, **params)
    host = draft.bind(llama)
    if host.refusal:
        raise VocabMismatchError(host.refusal)
    before = llama.draft_model
    if before is not None and not isinstance(before, NgramDraft):
        log.warning("%r drafts from now on; %s rests until detach()", draft, type(before).__name__)
    return Attachment(llama, draft, host)


class Attachment:
    """One attached Llama. Made by attach(); a context manager that detaches at its end.

    draft: The NgramDraft that proposes.
    last_draft: The newest draft, np.intc, shape (k,), and the position of its first token.
    Threads: as the Llama itself, one at a time.
    """

    def __init__(self, llama: Any, draft: NgramDraft, host: Host) -> None:
        self.draft = draft
        self.last_draft: tuple[int, npt.NDArray[np.intc]] = (0, np.empty(0, dtype=np.intc))
        self._llama = weakref.ref(llama)
        self._host = host
        self._verified = NO_LIMIT  # tokens of the text that the running generator has verified
        self._num_generators = 0
        self._writer = BatchWriter(llama._batch, llama.n_batch)
        self._saved: list[tuple[Any, str, Any, Any]] = []
        self._patch(llama)
        host.attachment = weakref.ref(self)

    @property
    def attached(self) -> bool:
        """Whether the Llama still carries the patches."""
        return bool(self._saved)

    def detach(self) -> None:
        """Put back every attribute that attach() replaced; a second call does nothing.

        An attribute that somebody else has replaced meanwhile is left alone. A Llama that keeps
        scores (logits_all=True) evaluates its next prompt in full, as its cached tokens have none,
        and a generator that runs raises StateError at its next token.

        Cost: O(1). Threads: as the Llama.
        """
        saved, self._saved = self._saved, []
        self._host.attachment = lambda: None
        llama = self._llama()
        for owner_ref, name, ours, before in reversed(saved):
            owner = owner_ref()
            now = None if owner is None else owner.__dict__.get(name, MISSING)
            if owner is None or (now is not ours and getattr(now, "__self__", None) is not self):
                continue
            if before is MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        if saved and llama is not None and llama._logits_all:
            llama.reset()

    def __repr__(self) -> str:
        names, counters = ",".join(self.draft.drafter.sources), self.draft.counters
        llama = self._llama()
        model = None if llama is None else os.path.basename(llama.model_path)
        return (
            f"Attachment({names!r}, model={model!r}, slots={self.draft.drafter.slots}, "
            f"attached={self.attached}, drafted={counters.drafted}, accepted={counters.accepted})"
        )

    def arm(self, draft: npt.NDArray[np.intc], length: int) -> None:
        """Announce a draft: the batch that starts at the host's n_tokens verifies it."""
        llama = self._llama()
        self.last_draft = (length, draft)
        self._writer.verify_at = -1 if llama is None else int(llama.n_tokens)

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.detach()

    def _patch(self, llama: Any) -> None:
        tokenizer = llama.tokenizer_
        if type(tokenizer).__name__ == "LlamaTokenizer":
            tokenizer = IncrementalTokenizer(tokenizer, int(llama.token_bos()))
        _grow_buffer(llama)
        rows = int(llama.input_ids.shape[0])
        self._replace(llama, "scores", NoScores(rows, llama._n_vocab))
        if llama._logits_all:
            self._replace(llama, "_create_completion", self._create_completion)
        self._replace(llama, "_logits_all", False)
        self._replace(llama, "draft_model", self.draft)
        self._replace(llama, "tokenizer_", tokenizer)
        self._replace(llama._batch, "set_batch", self._writer)
        self._replace(llama, "sample", self._sample)
        self._replace(llama, "generate", self._generate)

    def _replace(self, owner: Any, name: str, ours: Any) -> None:
        before = owner.__dict__.get(name, MISSING)
        own = getattr(ours, "__self__", None) is self  # a method: it would keep us in a cycle
        self._saved.append((weakref.ref(owner), name, METHOD if own else ours, before))
        setattr(owner, name, ours)

    def _original(self, name: str) -> tuple[Any, Any]:
        """Return the Llama and what it had under `name`, bound, without keeping either."""
        llama = self._llama()
        if llama is None:
            raise StateError("the attached Llama is gone")
        before = next((old for _, saved, _, old in self._saved if saved == name), MISSING)
        return llama, getattr(type(llama), name).__get__(llama) if before is MISSING else before

    def _sample(self, *args: Any, idx: int | None = None, **kwargs: Any) -> int:
        llama, original = self._original("sample")
        if idx is None:
            return int(original(*args, **kwargs))
        row = idx - llama.n_tokens
        if not -self._writer.last_rows <= row < 0:
            raise StateError(
                f"no logits for position {idx}: the last batch has them for its last "
                f"{self._writer.last_rows} of {llama.n_tokens} tokens; {REASON}"
            )
        self._verified = idx + 1
        sampler = llama._sampler
        if sampler is None or not sampler.custom_samplers:
            return int(original(*args, idx=idx, **kwargs))
        evaluated, llama.n_tokens = llama.n_tokens, idx + 1
        try:
            return int(sampler.sample(llama._ctx, row))
        finally:
            llama.n_tokens = evaluated

    def _generate(self, *args: Any, **kwargs: Any) -> Generator[int, Any, None]:
        llama, original = self._original("generate")
        return self._follow(llama, original(*args, **kwargs))

    def _follow(self, llama: Any, loop: Generator[int, Any, None]) -> Generator[int, Any, None]:
        """Yield what the host's loop yields; the app's time in between is not counted."""
        self._num_generators = own = self._num_generators + 1
        self._verified = NO_LIMIT
        newest: list[int] = []  # the token that the app has and the host has not read yet
        sent = None
        try:
            while True:
                try:
                    newest = [loop.send(sent)]
                except StopIteration:
                    newest = []
                    return
                left = time.perf_counter()
                try:
                    sent = yield newest[0]
                finally:
                    if own == self._num_generators:
                        self.draft.clock.leave_out(time.perf_counter() - left)
                newest = []
                if llama.n_tokens == 0:
                    raise StateError(
                        "the Llama was reset while this generator ran, as detach() does with "
                        "logits_all=True: start it again"
                    )
        finally:
            loop.close()
            latest = own == self._num_generators and not sys.is_finalizing()
            if latest and self._verified != NO_LIMIT:
                self._end(llama, newest)

    def _end(self, llama: Any, newest: list[int]) -> None:
        """Let the draft learn the end of an answer; drop what is not verified.

        The host asks a draft model for drafts and never tells it how the last one went.
        """
        if llama.draft_model is self.draft:
            text = llama.input_ids[: self._verified]
            self.draft.finish(llama, np.append(text, np.array(newest, dtype=text.dtype)))
        open_still = llama._ctx.ctx is not None  # close() frees the cache but keeps its address
        if open_still and self._verified < llama.n_tokens:
            llama.n_tokens = self._verified
            llama._ctx.kv_cache_seq_rm(-1, self._verified, -1)
            llama._requires_eval = True

    def _create_completion(self, *args: Any, **kwargs: Any) -> Any:
        _, original = self._original("_create_completion")
        if kwargs.get("logprobs") is not None:  # the host gives it by name
            raise StateError(f"logprobs asked for: {REASON}")
        return original(*args, **kwargs)


def _check(llama: Any) -> None:
    """Raise unless `llama` can be attached."""
    check_llama(llama)
    if isinstance(llama.scores, NoScores):
        raise StateError("this Llama is attached already: detach() the earlier Attachment first")
    if llama._is_recurrent or llama._is_hybrid:
        kind = "hybrid" if llama._is_hybrid else "recurrent"
        raise BackendError(f"{kind} model: it cannot take back rejected draft tokens")
    if llama.context_params.embeddings:
        raise BackendError("this Llama was created with embedding=True: it generates no text")
    if llama.n_batch < 2:
        raise BackendError(f"n_batch must be >= 2 to verify a draft, got {llama.n_batch}")
    problem = batch_layout_problem(llama._batch.batch)
    if problem:
        raise BackendError(problem)


def _grow_buffer(llama: Any) -> None:
    """Give a Llama room for the ids of its whole context.

    llama.cpp makes contexts longer, up to a multiple of 256, but the host's buffer stays as asked:
    it then forgets the ids beyond it.
    """
    ids, size = llama.input_ids, int(llama.n_ctx())
    if ids.shape[0] < size:
        grown = np.zeros(size, dtype=ids.dtype)
        grown[: ids.shape[0]] = ids
        llama.input_ids = grown


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
