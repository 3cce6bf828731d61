"""LlamaTarget: a llama.cpp context with a cache for several sequences, as the engine's target."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from ngramspec._native.engine.decode import Batch, Rows, Sampler
from ngramspec._native.hosts import llama as native_llama
from ngramspec._native.hosts.llama import LlamaContext
from ngramspec.engine.request import Adapters
from ngramspec.engine.sampling import Sampling
from ngramspec.errors import BackendError, CapacityError, StateError
from ngramspec.llamacpp.contexts import make_context
from ngramspec.llamacpp.lora import apply_adapters
from ngramspec.llamacpp.model import LlamaModel, file_digest
from ngramspec.llamacpp.sampler_chain import Chains
from ngramspec.llamacpp.settings import ContextSettings, branches_of, can_branch, context_params
from ngramspec.llamacpp.threads import attach_threads
from ngramspec.text.tokenizers.llama_library import reasons

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)
OK, NO_ROOM, REFUSED, ABORTED = 0, 1, -1, 2
NODE_BYTES = 64  # of llama.cpp's table of a sequence's cells, per cell
SHARED = 32  # fewest common tokens that are worth sharing
_BYTES = ctypes.POINTER(ctypes.c_uint8)
State = npt.NDArray[np.uint8]
States = npt.NDArray[np.float32]


class Follower(Protocol):
    """Follows what the cache holds, such as MTP heads; one that raises is told no more."""

    def follow(self, active: bool) -> None:
        """Rest, if `active` is False: it is told no more, and the target need give no states."""

    def decoded(self, batch: Batch, states: States) -> None:
        """Take a batch that was computed, and the states after its tokens: float32, a row each.

        The states are the target's own memory, until the next decode.
        """

    def truncated(self, slot: int, length: int) -> None:
        """A sequence has no tokens from `length` on."""

    def adopted(self, slot: int, branch: int) -> None:
        """A sequence holds what a branch of its last tree holds."""

    def copied(self, source: int, slot: int, length: int) -> None:
        """A sequence that was empty holds the first `length` tokens of another."""

    def shifted(self, slot: int, first: int, count: int) -> None:
        """A sequence has lost `count` tokens from `first` on; the others have moved down."""


class LlamaTarget:
    """A context of a model, for ngramspec.engine.

    Args:
        model: The model; closing it closes the target, but not the other way round.
        settings: See ContextSettings; they can be given by name, too.

    Raises:
        InputError: A setting is out of its bounds.
        BackendError: llama.cpp cannot make the context, or the model cannot generate text.
        StateError: The model is closed.

    Used by one thread at a time, except `sampler`.

    buffers: The memory that the context takes.
    """

    def __init__(
        self, model: LlamaModel, settings: ContextSettings | None = None, **named: Any
    ) -> None:
        self.settings = settings = settings or ContextSettings(**named)
        self.model = model
        self._lib = model.library.lib
        self._closed = True  # until it is fully made
        params = context_params(model, settings)
        self._handle, self.buffers = make_context(model, params, settings.slots)
        address = self._handle.address
        plans, counts = settings.thread_plans, settings.num_threads
        self._threads = attach_threads(self._lib, address, plans, counts) if plans else []
        self.vocab_size = model.vocab_size
        self.num_sequences = settings.slots
        self.context_size = settings.context_size_of(model)
        self.max_batch = int(self._lib.llama_n_batch(address))
        self.max_outputs = int(params.n_outputs_max)
        self._snapshots = int(self._lib.llama_n_rs_seq(address))
        stateful = model.is_stateful
        self.max_rollback: int | None = self._snapshots if stateful else None
        self.can_save = stateful
        self.window = 0 if stateful else model.n_swa
        self.state_bytes = model.state_bytes if stateful else 0
        self.contiguous = not settings.kv_unified
        self.cells: int | None = None  # a recurrent state takes none
        if settings.kv_unified and not model.is_recurrent:
            self.cells = int(params.n_ctx) - settings.pad
        self.min_copy: int | None = None
        if can_branch(model):  # a copy of cells, or of a sequence's whole cache
            self.min_copy = SHARED if settings.kv_unified else max(SHARED, self.context_size // 16)
        self.num_adapters = len(model.adapters)
        self.shares_copies = settings.kv_unified
        self.max_branches = branches_of(model, settings)
        rows, text = 4 * self.vocab_size, NODE_BYTES * self.context_size
        self.branch_bytes = self.num_sequences * (self.max_branches - 1) * (rows + text)
        self.no_branches = "" if self.max_branches > 1 else self._why_no_branches()
        self.exact_batch = 0  # until it is measured, see exact.py
        self._context = LlamaContext(
            model.library.calls,
            address,
            self.vocab_size,
            self.max_batch,
            num_sequences=self.num_sequences,
            context_size=self.context_size,
            max_outputs=self.max_outputs,
            pad_sequence=settings.slots * self.max_branches if settings.pad else -1,
            max_branches=self.max_branches,
        )
        self.no_shift = self._why_no_shift()
        self._chains = Chains(model, self.context_size)
        self._follower: Follower | None = None
        self._states_of: Callable[[int], States] | None = None
        self.aside = 0.0
        self._closed = False
        model.use(self)

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def is_empty(self) -> bool:
        """Return whether no sequence holds a token.

        Raises:
            StateError: The target is closed.
        """
        return all(self._context.pos_max(one) < 0 for one in range(self.num_sequences))

    @property
    def address(self) -> Any:
        return self._handle.address

    def follow(
        self, follower: Follower | None, states_of: Callable[[int], States] | None = None
    ) -> None:
        """Tell a follower of every decode and change of the cache from now on; None = nobody.

        states_of: Returns the states after the tokens of the last decode, given their number.
        """
        self._follower, self._states_of = follower, states_of

    def _tell(self, call: Callable[[Follower], None]) -> None:
        """Tell the follower of a change; one that raises is told no more, and requests go on."""
        follower = self._follower
        if follower is None:
            return
        try:
            call(follower)
        except Exception as error:
            log.warning("drafts of MTP heads end here: %r", error, exc_info=error)
            self.follow(None)
            with suppress(Exception):
                follower.follow(False)

    def decode(self, batch: Batch, rows: Rows) -> None:
        """Compute a batch; `rows` then shows the logits of its outputs, in order.

        Raises:
            BackendError: It failed; no sequence of the batch has changed, except that a recurrent
                one may be empty now.
            CapacityError: The cache has no room for it; nothing has changed.
            InputError: The batch is empty or too large, or a token, position or sequence in it is
                out of its bounds; nothing has changed.
            StateError: The target is closed.

        Threads: releases the GIL.
        """
        status = self._context.decode(batch, rows)
        self.aside = self._context.branch_seconds
        if status != OK:
            raise failure_of(status, len(batch), native_llama.log_since(self._context.log_start))
        if self._states_of is not None:
            states_of, started = self._states_of, perf_counter()
            self._tell(lambda follower: follower.decoded(batch, states_of(len(batch))))
            self.aside += perf_counter() - started

    def truncate(self, sequence: int, length: int) -> bool:
        """Remove the tokens from position `length` on; False when it cannot and nothing changed.

        Raises:
            InputError: No such sequence, or length < 0.
            StateError: The target is closed.
        """
        context = self._context
        last = context.pos_max(sequence)
        if 0 < length <= last and not self._can_remove(sequence, length, last + 1 - length):
            return False
        done = bool(context.truncate(sequence, length))
        if done:
            self._tell(lambda follower: follower.truncated(sequence, length))
        return done

    def adopt(self, sequence: int, branch: int) -> bool:
        """Make a sequence hold what branch >= 1 of its last tree holds; `truncate` comes next.

        Returns:
            bool: False where there is no memory; what was held before the decode is left.

        Raises:
            InputError: No such sequence, or its tree had no such branch.
            StateError: The target is closed.
        """
        done = bool(self._context.adopt(sequence, branch))
        if done:
            self._tell(lambda follower: follower.adopted(sequence, branch))
        return done

    def copy(self, source: int, sequence: int, length: int) -> None:
        """Make an empty sequence hold the first `length` tokens of another; needs min_copy.

        Raises:
            InputError: No such sequence, the source is shorter, or the other one is not empty.
            StateError: The target cannot copy, or is closed.
        """
        if self.min_copy is None:
            raise StateError("this target cannot copy parts of sequences")
        self._context.copy(source, sequence, length, whole=self.contiguous)
        self._tell(lambda follower: follower.copied(source, sequence, length))

    def shift(self, sequence: int, first: int, count: int) -> bool:
        """Remove `count` tokens from position `first` on; those after them move down.

        Returns:
            bool: False when it cannot and nothing changed.

        Raises:
            InputError: No such sequence, or it does not hold these tokens.
            StateError: The target cannot shift, or is closed.
        """
        if self.no_shift:
            raise StateError(f"this target cannot shift: {self.no_shift}")
        done = bool(self._context.shift(sequence, first, count))
        if done:
            self._tell(lambda follower: follower.shifted(sequence, first, count))
        return done

    def save(self, sequence: int) -> State:
        """Return the recurrent state of a sequence, or the cache of its sliding window.

        Raises:
            BackendError: llama.cpp cannot.
            InputError: No such sequence.
            StateError: The target cannot save, or is closed.
        """
        if not (self.can_save or self.window):
            raise StateError("this target cannot save: its tokens can be removed one by one")
        self._context.pos_max(sequence)
        flags = self._lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        address = self._handle.address
        size = int(self._lib.llama_state_seq_get_size_ext(address, sequence, flags))
        state = np.empty(size, dtype=np.uint8)
        pointer = state.ctypes.data_as(_BYTES)
        call = self._lib.llama_state_seq_get_data_ext
        if not size or int(call(address, pointer, size, sequence, flags)) != size:
            raise BackendError(f"llama.cpp cannot save sequence {sequence}")
        return state

    def restore(self, sequence: int, state: State, length: int) -> bool:
        """Bring back what save returned when the sequence held `length` tokens.

        Returns:
            bool: False when it failed; the sequence is empty then.

        Raises:
            InputError: No such sequence.
            StateError: The target cannot save, or is closed.
        """
        if not (self.can_save or self.window):
            raise StateError("this target cannot save: its tokens can be removed one by one")
        context = self._context
        context.forget_last(sequence)
        flags = self._lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        pointer = state.ctypes.data_as(_BYTES)
        call = self._lib.llama_state_seq_set_data_ext
        read = int(call(self._handle.address, pointer, state.size, sequence, flags))
        fine = read == state.size and context.pos_max(sequence) == length - 1
        done = bool(context.truncate(sequence, length if fine else 0)) and fine
        self._tell(lambda follower: follower.truncated(sequence, length if done else 0))
        return done

    def adapt(self, adapters: Adapters) -> None:
        """Compute with these LoRA adapters from now on, by their numbers, and with no others.

        What sequences hold was computed with the adapters of then.

        Raises:
            InputError: There is no adapter of a number.
            BackendError: llama.cpp refuses.
            StateError: The target is closed.
        """
        if self._closed:
            raise StateError("the target is closed")
        apply_adapters(self._lib, self._handle.address, self.model.adapters, adapters)

    @cached_property
    def identity(self) -> bytes:
        """Return a digest of the model, its adapters and what else decides what its cache holds.

        Raises:
            OSError: The model's file or an adapter's cannot be read.

        Cost: reads 2 MiB of each the first time.
        """
        import llama_cpp
        import xxhash

        settings = self.settings
        streams = 1 if settings.kv_unified else settings.slots
        parts = (
            *(file_digest(self.model.path), llama_cpp.__version__, settings.type_k),
            *(file_digest(adapter.path) for adapter in self.model.adapters),
            *(settings.type_v, str(settings.flash_attn), str(streams), str(self._snapshots)),
        )
        return xxhash.xxh3_128_digest("\n".join(parts).encode())

    def dump(self, sequence: int, most: int | None = None) -> State:
        """Return all that the cache holds of a sequence, an opaque copy; owned by the caller.

        most: Bytes that it may have, else it is empty; None = any number.

        Not between `copy` or `shift` and the next decode: what they do to the cache comes with it.

        Raises:
            BackendError: llama.cpp cannot.
            InputError: No such sequence.
            StateError: The target is closed.

        Cost: a copy of the sequence's part of the cache; keeps the GIL free.
        """
        self._context.pos_max(sequence)
        address = self._handle.address
        size = int(self._lib.llama_state_seq_get_size_ext(address, sequence, 0))
        if most is not None and size > most:
            return np.empty(0, dtype=np.uint8)
        state = np.empty(size, dtype=np.uint8)
        pointer = state.ctypes.data_as(_BYTES)
        call = self._lib.llama_state_seq_get_data_ext
        if not size or int(call(address, pointer, size, sequence, 0)) != size:
            raise BackendError(f"llama.cpp cannot save sequence {sequence}")
        return state

    def load(self, sequence: int, state: State, length: int) -> bool:
        """Make an empty sequence hold what dump returned when it held `length` tokens.

        The state must come from a target with the same `identity`: llama.cpp trusts it.

        Returns:
            bool: False when it cannot, such as for want of room; the sequence is empty then.

        Raises:
            InputError: No such sequence.
            StateError: The target is closed.
        """
        context = self._context
        context.forget_last(sequence)
        # What is loaded comes without its states.
        self._tell(lambda follower: follower.truncated(sequence, 0))
        data = np.ascontiguousarray(state)
        call = self._lib.llama_state_seq_set_data_ext
        pointer = data.ctypes.data_as(_BYTES)
        read = int(call(self._handle.address, pointer, data.size, sequence, 0))
        if read == data.size and context.pos_max(sequence) == length - 1:
            return True
        context.truncate(sequence, 0)
        return False

    def sampler(self, sampling: Sampling, seed: int) -> Sampler:
        """Return a fresh sampler for one request.

        Raises:
            InputError: Its grammar, a token id or a bias is not valid.
            StateError: The target is closed.
        """
        if self._closed:
            raise StateError("the target is closed")
        return self._chains.sampler(sampling, seed)

    def piece(self, token_id: int, special: bool) -> bytes:
        return self.model.vocabulary.piece(token_id, special)

    def is_end(self, token_id: int) -> bool:
        return self.model.is_end(token_id)

    def close(self) -> None:
        """Free the context; a second call does nothing. Its samplers stop working."""
        if self._closed:
            return
        self._closed = True
        self._chains.close()
        self._context.close()
        self._handle.free()
        for threads in self._threads:
            threads.free()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _why_no_shift(self) -> str:
        if self.model.is_stateful:
            return "it is recurrent, or partly so: its state does not forget single tokens"
        if not self._context.can_shift():
            return "llama.cpp cannot turn its cached keys to other positions"
        return ""

    def _why_no_branches(self) -> str:
        if self.model.is_stateful:
            return "the model is recurrent, or partly so: it keeps one state for a text"
        if self.model.n_swa:
            return "the model's cache has a sliding window"
        if not self.settings.kv_unified and self.num_sequences > 1:
            return "each slot has a cache of its own"
        return "the cache was made without branches"

    def _can_remove(self, sequence: int, length: int, removed: int) -> bool:
        """Return whether what is left would be complete, where llama.cpp does not check."""
        context = self._context
        if self._snapshots and removed >= context.last_count(sequence):
            return False  # its snapshots are older, and of other tokens
        window = self.model.n_swa
        # The next token looks back on window - 1 others; some may have been overwritten.
        return not window or context.pos_min(sequence) <= max(0, length - window + 1)


def failure_of(status: int, num_tokens: int, log: Iterable[str]) -> BackendError | CapacityError:
    """Return the error for a llama_decode that did not end with 0.

    Args:
        status: What it returned.
        num_tokens: Of the batch.
        log: What llama.cpp logged meanwhile.
    """
    if status == NO_ROOM:
        return CapacityError(f"the cache has no room for a batch of {num_tokens} tokens")
    why = {REFUSED: "refuses the batch", ABORTED: "was aborted"}.get(status, "failed")
    return BackendError(f"llama.cpp {why} (status {status}){reasons(log)}")
