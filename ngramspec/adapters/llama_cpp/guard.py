"""Guard: what a Llama that is made with draft_model=NgramDraft() needs before its first prompt.

llama-cpp-python calls a draft model only after a prompt is read. But given one, it keeps logits of
every position of the prompt in a matrix of n_batch rows, and raises where a prompt is longer. So
`guard_new_hosts` lets `Llama.__init__` end with a Guard for those objects; others stay as they are.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

from ngramspec.errors import StateError

NO_LIMIT = 1 << 62
_LOCK = threading.Lock()
_MARK = "_ngramspec_guards"


class Guard:
    """Stands before `eval`, `sample` and `generate` of one Llama; holds it weakly.

    It lets the draft make room before a batch that the matrix of logits has no rows for, and looks
    after the end of every generator (see Unverified).
    """

    def __init__(self, llama: Any, draft: Any) -> None:
        self._llama = weakref.ref(llama)
        self._draft = draft
        self._unverified: Unverified = draft.bind(llama).unverified
        grow_buffer(llama)
        llama.eval, llama.sample, llama.generate = self._eval, self._sample, self._generate

    def _host(self) -> Any:
        llama = self._llama()
        assert llama is not None  # who calls us is one of its methods
        return llama

    def _eval(self, tokens: Sequence[int]) -> None:
        llama = self._host()
        if llama._logits_all and llama.n_tokens + len(tokens) > llama.scores.shape[0]:
            self._draft.make_room(llama)
        type(llama).eval(llama, tokens)

    def _sample(self, *args: Any, idx: int | None = None, **kwargs: Any) -> int:
        self._unverified.saw(idx)
        llama = self._host()
        return int(type(llama).sample(llama, *args, idx=idx, **kwargs))

    def _generate(self, *args: Any, **kwargs: Any) -> Generator[int, Any, None]:
        llama = self._host()
        loop = type(llama).generate(llama, *args, **kwargs)
        return self._unverified.follow(llama, self._draft, loop)


class Unverified:
    """Follows how many tokens of a Llama are verified; when a generator ends, drops the others.

    llama-cpp-python asks a draft model for drafts and never tells it how the last one went, so the
    end of a generator is also where the draft learns the rest of the answer.
    """

    def __init__(self) -> None:
        self._verified = NO_LIMIT
        self._running = 0

    def saw(self, idx: int | None) -> None:
        """Note that the token after position `idx` is being sampled."""
        if idx is not None:
            self._verified = idx + 1

    def follow(
        self, llama: Any, draft: Any, loop: Generator[int, Any, None]
    ) -> Generator[int, Any, None]:
        """Yield what the host's loop yields; the app's time in between is not counted."""
        self._running = turn = self._running + 1
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
                    if turn == self._running:
                        draft.clock.leave_out(time.perf_counter() - left)
                newest = []
                if llama.n_tokens == 0:
                    raise StateError(
                        "the Llama was reset while this generator ran, as detach() does with "
                        "logits_all=True: start it again"
                    )
        finally:
            loop.close()
            if turn == self._running and self._verified != NO_LIMIT:
                self._end(llama, draft, newest)

    def _end(self, llama: Any, draft: Any, newest: list[int]) -> None:
        if llama.draft_model is draft:
            text = llama.input_ids[: self._verified]
            draft.finish(llama, np.append(text, np.array(newest, dtype=text.dtype)))
        open_still = llama._ctx.ctx is not None  # close() frees the cache but keeps its address
        if open_still and self._verified < llama.n_tokens:
            llama.n_tokens = self._verified
            llama._ctx.kv_cache_seq_rm(-1, self._verified, -1)
            llama._requires_eval = True


def grow_buffer(llama: Any) -> None:
    """Give a Llama room for the ids of its whole context.

    llama.cpp makes contexts longer, up to a multiple of 256, but the host's buffer stays as asked:
    it then forgets the ids beyond it.
    """
    ids, size = llama.input_ids, int(llama.n_ctx())
    if ids.shape[0] < size:
        grown = np.zeros(size, dtype=ids.dtype)
        grown[: ids.shape[0]] = ids
        llama.input_ids = grown


def guard_new_hosts(is_ours: Callable[[Any], bool]) -> None:
    """Let every Llama that is made from now on get a Guard if its draft model is ours.

    Does nothing before llama_cpp is imported, or a second time.

    is_ours: Returns whether a draft model needs a Guard.
    """
    module = sys.modules.get("llama_cpp")
    host: Any = getattr(module, "Llama", None)
    with _LOCK:
        if host is None or getattr(host.__init__, _MARK, False):
            return
        before = host.__init__

        @functools.wraps(before)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            before(self, *args, **kwargs)
            draft = self.__dict__.get("draft_model")
            if is_ours(draft) and "eval" not in self.__dict__:
                Guard(self, draft)

        setattr(init, _MARK, True)
        host.__init__ = init
