# distutils: language = c++
"""llama.cpp called through the addresses of its functions: decoding, its cache, and its samplers.

Nothing is linked and no header of llama.cpp is used: the addresses come from the library that
llama-cpp-python has loaded. Calls that would make llama.cpp end the process are refused before they
are made. llama.cpp logs from threads of its own: one callback for the process keeps the latest
warnings and errors, without the GIL.
"""

cimport cython
from cpython.pystate cimport PyThreadState
from libc.math cimport INFINITY
from libc.stdint cimport uintptr_t
from libc.string cimport memcpy, memset, strlen

from ngramspec._native.core.arguments cimport TokensC, tokens_release, tokens_view
from ngramspec._native.core.threads cimport locks_add
from ngramspec._native.core.types cimport (
    int64_t, ngs_load64, ngs_lock, ngs_now_ns, ngs_store64, ngs_unlock, uint8_t,
)
from ngramspec._native.engine.decode cimport MOST_BRANCHES, CandidateC, only_candidate
from ngramspec._native.grammar.constraint cimport Constraint

from ngramspec.errors import BackendError, InputError, StateError

cdef extern from "Python.h" nogil:
    PyThreadState* PyEval_SaveThread()
    void PyEval_RestoreThread(PyThreadState* state)

cdef extern from "ngs_lock.h" nogil:
    PyThreadState* ngs_attached()

cdef enum:
    LINES = 32       # lines that are kept
    CHARS = 400
    WARNING = 3      # ggml_log_level
    CONTINUED = 5
    MAX_KEEP = 128              # from 129 on, llama.cpp selects in another way

cdef char[LINES][CHARS] messages
cdef int64_t count = 0
cdef int busy = 0
locks_add(&busy)


cdef void _log(int level, const char* text, void* data) noexcept nogil:
    """Keep a warning or error: the callback for llama_log_set."""
    cdef size_t size
    if level < WARNING or level == CONTINUED or text == NULL:
        return
    size = min(strlen(text), <size_t>CHARS - 1)
    ngs_lock(&busy)
    memcpy(messages[count % LINES], text, size)
    messages[count % LINES][size] = 0
    ngs_store64(&count, count + 1)
    ngs_unlock(&busy)


cdef long long lines_logged() noexcept nogil:
    """Return how many warnings and errors were logged so far."""
    return ngs_load64(&count)


def log_address():
    """Return the address of the callback, for llama_log_set."""
    return <uintptr_t>&_log


def log_position():
    """Return how many warnings and errors llama.cpp has logged so far."""
    return ngs_load64(&count)


def log_since(long long position):
    """Return the warnings and errors logged since log_position returned `position`, oldest first."""
    cdef char[LINES][CHARS] copied
    cdef long long i, end
    ngs_lock(&busy)  # only to copy: making Python objects may fail
    memcpy(copied, messages, sizeof(messages))
    end = count
    ngs_unlock(&busy)
    lines = [<bytes>copied[i % LINES] for i in range(max(position, end - LINES, 0), end)]
    return [line.decode("utf-8", "replace").strip() for line in lines]


cdef void* call_address(calls, str name) except? NULL:
    address = calls.get(name)
    if not address:
        raise BackendError(f"llama.cpp has no function {name}")
    return <void*><uintptr_t>address


def end_flags(calls, uintptr_t vocab_address, Py_ssize_t vocab_size):
    """Return one byte per token id: 1 when it ends a generation.

    Args:
        calls: Addresses of llama.cpp's functions by name.
        vocab_address: The llama_vocab.
        vocab_size: Its number of tokens.

    Raises:
        BackendError: llama.cpp lacks a function.
    """
    cdef ngs_is_end_fn is_end = <ngs_is_end_fn>call_address(calls, "llama_vocab_is_eog")
    cdef Py_ssize_t i
    flags = bytearray(vocab_size)
    cdef uint8_t[::1] view = flags
    with nogil:
        for i in range(vocab_size):
            view[i] = is_end(<void*>vocab_address, <int32_t>i)
    return bytes(flags)


@cython.final
cdef class LlamaContext(Owner):
    """LlamaContext(calls, context_address, vocab_size, max_batch, num_sequences=1,
    context_size=2147483647, max_outputs=0, pad_sequence=-1, max_branches=1, state_width=0): decode with a
    llama_context and manage its cache.

    In a tree, branch 0 is written to the sequence itself. Every further branch has a sequence id of its own, which
    holds the sequence's text too: the same cells, as many of them as a tree has needed so far. Only they can be seen
    from the tokens of the branch. llama.cpp walks over all cells for each range of them that is added to an id or
    removed from it, so ids are brought up to date when a tree needs them and not before.

    Does not own the context. Thread-safety: one thread at a time.

    Args:
        calls: Addresses of llama.cpp's functions by name.
        context_address: The llama_context.
        vocab_size: Logits per row, >= 1.
        max_batch: The context's n_batch, >= 1; >= 2 with pad_sequence.
        num_sequences: Bound of the sequence ids, 1..256.
        context_size: Bound of the positions, >= 1.
        max_outputs: Most rows of logits in one decode, 0 = max_batch.
        pad_sequence: A sequence of the context that is not below num_sequences, or -1. A single token is
            decoded together with a copy in that sequence, which is removed again.
        max_branches: Most branches of a tree, 1..31; above 1 one cache for all sequences is needed, that can
            remove tokens, and further branches of sequence s have the ids num_sequences +
            s * (max_branches - 1) and up.
        state_width: Numbers in the state that every token comes with, 0 = tokens come alone. Not with a
            pad_sequence.

    Raises:
        InputError: An argument is out of its bounds.
        BackendError: llama.cpp lacks a function, or the context has no cache.
        MemoryError: No room.
    """

    def __cinit__(self, calls, uintptr_t context_address, Py_ssize_t vocab_size, Py_ssize_t max_batch,
                  Py_ssize_t num_sequences=1, Py_ssize_t context_size=2147483647, Py_ssize_t max_outputs=0,
                  int pad_sequence=-1, Py_ssize_t max_branches=1, Py_ssize_t state_width=0):
        if not (context_address and vocab_size >= 1 and max_batch >= 1 + (pad_sequence >= 0) and context_size >= 1):
            raise InputError(f"address, vocab_size, max_batch and context_size must be positive, and max_batch >= 2 "
                             f"with a pad_sequence, got {context_address}, {vocab_size}, {max_batch}, {context_size}")
        if not (1 <= num_sequences <= 256 and max_outputs >= 0 and (pad_sequence < 0 or pad_sequence >= num_sequences)):
            raise InputError(f"num_sequences must be in 1..256, max_outputs >= 0 and pad_sequence beyond the "
                             f"sequences, got {num_sequences}, {max_outputs}, {pad_sequence}")
        if not (1 <= max_branches <= MOST_BRANCHES and num_sequences * max_branches <= 256):
            raise InputError(f"max_branches must be in 1..{MOST_BRANCHES} and all sequences may have 256 branches, got "
                             f"{max_branches} for each of {num_sequences}")
        if 0 <= pad_sequence < num_sequences * max_branches:
            raise InputError(f"a pad_sequence must be beyond all branches, got {pad_sequence}")
        if state_width < 0 or (state_width and pad_sequence >= 0):
            raise InputError(f"state_width must be >= 0, and 0 with a pad_sequence, got {state_width}")
        self.context = <void*>context_address
        self.max_branches = max_branches
        self.state_width = state_width
        self.memory = (<ngs_memory_fn>call_address(calls, "llama_get_memory"))(self.context)
        if self.memory == NULL:
            raise BackendError("the model keeps no cache, so it cannot generate")
        self.vocab_size = vocab_size
        self.max_batch = max_batch
        self.num_sequences = num_sequences
        self.context_size = min(context_size, <Py_ssize_t>2147483647)
        self.max_outputs = min(max_outputs, max_batch) if max_outputs else max_batch
        self.pad_sequence = max(pad_sequence, -1)
        self.find(calls)
        self.allocate()

    cdef int find(self, calls) except -1:
        self.calls.decode = <ngs_decode_fn>call_address(calls, "llama_decode")
        self.calls.get_logits = <ngs_logits_fn>call_address(calls, "llama_get_logits")
        self.calls.seq_rm = <ngs_seq_rm_fn>call_address(calls, "llama_memory_seq_rm")
        self.calls.seq_cp = <ngs_seq_cp_fn>call_address(calls, "llama_memory_seq_cp")
        self.calls.seq_add = <ngs_seq_add_fn>call_address(calls, "llama_memory_seq_add")
        self.calls.can_shift = <ngs_can_shift_fn>call_address(calls, "llama_memory_can_shift")
        self.calls.pos_min = <ngs_seq_pos_fn>call_address(calls, "llama_memory_seq_pos_min")
        self.calls.pos_max = <ngs_seq_pos_fn>call_address(calls, "llama_memory_seq_pos_max")
        self.calls.clear = <ngs_clear_fn>call_address(calls, "llama_memory_clear")

    cdef int allocate(self) except -1:
        cdef Py_ssize_t i
        self.sequence_counts = <int32_t*>self.take(self.max_batch, sizeof(int32_t))
        self.sequences = <int32_t**>self.take(self.max_batch, sizeof(int32_t*))
        self.last_counts = <int32_t*>self.take(self.num_sequences, sizeof(int32_t))
        self.first_positions = <int32_t*>self.take(self.num_sequences, sizeof(int32_t))
        self.padded = <token_t*>self.take(6, sizeof(token_t))
        self.tree_sequences = <int32_t*>self.take(self.max_batch * self.max_branches, sizeof(int32_t))
        self.branch_lengths = <int32_t*>self.take(self.num_sequences * self.max_branches, sizeof(int32_t))
        self.used = <uint32_t*>self.take(self.num_sequences, sizeof(uint32_t))
        for i in range(self.max_batch):
            self.sequence_counts[i] = 1

    def decode(self, Batch batch not None, Rows rows not None, const float[:, ::1] states=None):
        """Compute a batch; `rows` then shows the logits of its outputs, in the batch's order.

        Positions must continue where the sequences end. After a tree, `adopt` the branch that was right if
        it is not branch 0, then `truncate`.

        Args:
            batch: The tokens.
            rows: For the logits, vocab_size wide.
            states: float32, shape (n, state_width), n >= the batch's tokens, C-contiguous: the state that each
                token comes with; None if and only if state_width is 0. Read in place.

        Returns:
            int: llama_decode's status: 0 = done; 1 = the cache has no room, nothing has changed; -1 =
            refused, nothing has changed; anything else: failed, the sequences are as before, except
            that a recurrent one is empty if a part of the batch was computed.

        Raises:
            InputError: The batch is empty or too large, rows or states have another shape, or a token, position
                or sequence is out of its bounds. Nothing is changed then.
            StateError: The context is closed.

        Threads: releases the GIL.
        """
        cdef float* logits = NULL
        cdef int32_t status
        self.check(batch, rows)
        self.batch.embd = NULL
        if (states is None) != (self.state_width == 0):
            raise InputError(f"the tokens of this context come {'with' if self.state_width else 'without'} states")
        if states is not None:
            if states.shape[0] < batch.len or states.shape[1] != self.state_width:
                raise InputError(f"states must have the shape ({batch.len}, {self.state_width}), got "
                                 f"({states.shape[0]}, {states.shape[1]})")
            self.batch.embd = <float*>&states[0, 0]
        if self.rows is not None and self.rows is not rows and self.rows._owner is None:
            self.rows.c.num_rows = 0  # llama.cpp writes over what they show, and may move it
        self.rows = rows
        self.log_start = lines_logged()
        rows.c.num_rows = 0
        rows._owner = None
        with nogil:
            status = self.run(batch, &logits)
        if status == 0 and logits != NULL:
            rows.c.data = logits
            rows.c.num_rows = batch.num_outputs
        return status

    cdef int check(self, Batch batch, Rows rows) except -1:
        cdef Py_ssize_t i
        self.opened()
        if not 1 <= batch.len <= self.max_batch or batch.num_outputs > self.max_outputs:
            raise InputError(f"a batch must have 1..{self.max_batch} tokens and at most {self.max_outputs} outputs, "
                             f"got {batch.len} and {batch.num_outputs}")
        if rows.c.vocab_size != self.vocab_size:
            raise InputError(f"rows must have {self.vocab_size} columns, got {rows.c.vocab_size}")
        for i in range(batch.len):
            if not (0 <= batch.tokens[i] < self.vocab_size and 0 <= batch.sequences[i] < self.num_sequences
                    and 0 <= batch.positions[i] < self.context_size):
                raise InputError(
                    f"tokens must be in 0..{self.vocab_size - 1}, sequences in 0..{self.num_sequences - 1}, positions in "
                    f"0..{self.context_size - 1}, got {batch.tokens[i]}, {batch.sequences[i]}, {batch.positions[i]}")
            if batch.branches[i] >> self.max_branches:
                raise InputError(f"a tree may have at most {self.max_branches} branches here, and token {i} belongs to "
                                 f"one beyond them")

    cdef int32_t run(self, Batch batch, float** rows) noexcept nogil:
        cdef ngs_llama_batch* b = &self.batch
        cdef Py_ssize_t i, n = batch.len
        cdef int32_t status
        cdef int64_t started
        cdef int8_t[2] outputs
        b.token = batch.tokens
        b.pos = batch.positions
        b.logits = batch.outputs
        b.n_seq_id = self.sequence_counts
        b.seq_id = self.sequences
        self.point(batch)
        if n == 1 and self.pad_sequence >= 0:
            n = 2
            self.sequence_counts[1] = 1
            self.padded[0] = self.padded[1] = batch.tokens[0]
            self.padded[2] = batch.positions[0]
            self.padded[3] = 0
            self.padded[4] = batch.sequences[0]
            self.padded[5] = self.pad_sequence
            outputs[0] = batch.outputs[0]
            outputs[1] = 0
            b.token = self.padded
            b.pos = self.padded + 2
            b.logits = outputs
            self.sequences[0] = self.padded + 4
            self.sequences[1] = self.padded + 5
        b.n_tokens = <int32_t>n
        self.note(batch)
        status = NGS_THREW
        started = ngs_now_ns()
        if self.follow(batch):
            self.branch_seconds = 1e-9 * <double>(ngs_now_ns() - started)
            status = ngs_decode(self.calls.decode, self.calls.get_logits, self.context, b[0], batch.num_outputs, rows)
        if n != batch.len:
            ngs_seq_rm(self.calls.seq_rm, self.memory, self.pad_sequence, 0, -1)
        if status == 0:
            for i in range(self.num_sequences):
                self.last_counts[i] = 0
            for i in range(batch.len):
                self.last_counts[batch.sequences[i]] += 1
        else:
            self.undo(status != 1 and status != -1)
        return status

    cdef int32_t branch_id(self, Py_ssize_t sequence, Py_ssize_t branch) noexcept nogil:
        """Return the sequence id of a branch."""
        if branch == 0:
            return <int32_t>sequence
        return <int32_t>(self.num_sequences + sequence * (self.max_branches - 1) + branch - 1)

    cdef void point(self, Batch batch) noexcept nogil:
        """Set the sequence ids of all tokens."""
        cdef Py_ssize_t i, branch
        cdef int32_t* ids
        for i in range(batch.len):
            self.sequence_counts[i] = 1
            self.sequences[i] = batch.sequences + i
            if batch.branches[i] == 1:
                continue
            ids = self.sequences[i] = self.tree_sequences + i * self.max_branches
            self.sequence_counts[i] = 0
            for branch in range(self.max_branches):
                if batch.branches[i] >> branch & 1:
                    ids[self.sequence_counts[i]] = self.branch_id(batch.sequences[i], branch)
                    self.sequence_counts[i] += 1

    cdef bint follow(self, Batch batch) noexcept nogil:
        """Let the ids of the batch's branches hold their sequences' text; False where there is no memory."""
        cdef Py_ssize_t i, branch, s
        cdef int32_t* held
        if self.max_branches == 1:
            return True
        for i in range(batch.len):
            self.used[batch.sequences[i]] |= batch.branches[i]
        for s in range(self.num_sequences):
            for branch in range(1, self.max_branches):
                held = &self.branch_lengths[s * self.max_branches + branch]
                if self.used[s] >> branch & 1 and held[0] < self.first_positions[s]:
                    if not ngs_seq_cp(self.calls.seq_cp, self.memory, <int32_t>s, self.branch_id(s, branch), held[0],
                                      self.first_positions[s]):
                        return False
                    held[0] = self.first_positions[s]
        return True

    cdef void cut_branches(self, int32_t sequence, int32_t length) noexcept nogil:
        """Let the ids of branches hold no more than the text's first `length` tokens, and nothing of the last tree."""
        cdef Py_ssize_t branch
        cdef int32_t* held
        for branch in range(1, self.max_branches):
            held = &self.branch_lengths[sequence * self.max_branches + branch]
            if self.used[sequence] >> branch & 1 or held[0] > length:
                held[0] = min(held[0], length)
                ngs_seq_rm(self.calls.seq_rm, self.memory, self.branch_id(sequence, branch), held[0], -1)
        self.used[sequence] = 0

    def adopt(self, int32_t sequence, int branch):
        """Make a sequence hold what a branch of its last tree holds, instead of branch 0. Call `truncate` next.

        Args:
            sequence: Sequence id.
            branch: Of the last decode's tree, 1..max_branches - 1.

        Returns:
            bool: False where there is no memory; what was held before the decode is left, perhaps more.

        Raises:
            InputError: No such sequence, or it had no such branch.
            StateError: The context is closed.

        Cost: two walks over the cells of the cache.
        """
        cdef int32_t first
        cdef bint done
        self.check_sequence(sequence)
        if not (1 <= branch < self.max_branches and self.used[sequence] >> branch & 1):
            raise InputError(f"the last tree of sequence {sequence} had no branch {branch}")
        first = self.branch_lengths[sequence * self.max_branches + branch]
        with nogil:
            ngs_seq_rm(self.calls.seq_rm, self.memory, sequence, first, -1)
            done = ngs_seq_cp(self.calls.seq_cp, self.memory, self.branch_id(sequence, branch), sequence, first, -1)
        return done

    cdef void note(self, Batch batch) noexcept nogil:
        """Record where the sequences of the batch end."""
        cdef Py_ssize_t i
        for i in range(self.num_sequences):
            self.first_positions[i] = -1
        for i in range(batch.len - 1, -1, -1):
            self.first_positions[batch.sequences[i]] = batch.positions[i]

    cdef void undo(self, bint computed) noexcept nogil:
        """Forget the branches of a failed decode, and remove what it may have left behind if a part was computed."""
        cdef int32_t i
        for i in range(<int32_t>self.num_sequences):
            if self.first_positions[i] < 0:
                continue
            if not computed:
                self.used[i] = 0
                continue
            self.last_counts[i] = 0
            if not ngs_seq_rm(self.calls.seq_rm, self.memory, i, self.first_positions[i], -1):
                ngs_seq_rm(self.calls.seq_rm, self.memory, i, 0, -1)
            self.cut_branches(i, self.first_positions[i])

    def truncate(self, int32_t sequence, int32_t length):
        """Remove the tokens of a sequence from position `length` on.

        Returns:
            bool: False if the cache cannot do that; nothing has changed then.

        Raises:
            InputError: No such sequence, or length < 0.
            StateError: The context is closed.

        Cost: one walk over the cells of the cache, and one for each further branch that held more.
        """
        cdef bint done
        self.check_sequence(sequence)
        if length < 0:
            raise InputError(f"length must be >= 0, got {length}")
        with nogil:
            done = ngs_seq_rm(self.calls.seq_rm, self.memory, sequence, length, -1)
            if done:
                self.cut_branches(sequence, length)
        if done and length == 0:
            self.last_counts[sequence] = 0
        return done

    def can_shift(self):
        """Return whether the cache can move tokens to other positions.

        Raises:
            StateError: The context is closed.
        """
        self.opened()
        return self.calls.can_shift(self.memory)

    def shift(self, int32_t sequence, int32_t first, int32_t count):
        """Remove `count` tokens of a sequence from position `first` on; those after them close the gap.

        The keys are turned to their new positions in the next decode.

        Returns:
            bool: False if the cache cannot remove them; nothing has changed then.

        Raises:
            InputError: No such sequence, or it does not hold these tokens.
            StateError: The context is closed, or its cache cannot shift.

        Cost: one walk over the cells of the cache; the next decode reads and writes all keys.
        """
        cdef int32_t held
        cdef bint done
        self.check_sequence(sequence)
        if not self.calls.can_shift(self.memory):  # llama.cpp would end the process
            raise StateError("this cache cannot shift")
        held = self.calls.pos_max(self.memory, sequence) + 1
        if not (first >= 0 and count >= 1 and first <= held - count):
            raise InputError(f"cannot remove {count} tokens from {first} on: sequence {sequence} holds {held}")
        with nogil:
            done = ngs_seq_rm(self.calls.seq_rm, self.memory, sequence, first, first + count)
            if done:
                self.cut_branches(sequence, first)
                self.calls.seq_add(self.memory, sequence, first + count, -1, -count)
        if done:
            self.last_counts[sequence] = 0
        return done

    def copy(self, int32_t source, int32_t sequence, int32_t length, bint whole=False):
        """Make an empty sequence hold the first `length` tokens of `source`.

        Args:
            source, sequence: Sequence ids.
            length: >= 1 and at most the tokens of `source`.
            whole: Set it if each sequence has its own cache: llama.cpp copies all of it, in the next decode,
                and would end the process if asked for a part. Otherwise the sequences share cells.

        Raises:
            InputError: No such sequence, length < 1, the source is shorter or the sequence not empty.
            StateError: The context is closed.
            MemoryError: No room; the sequence is empty.
        """
        self.check_sequence(source)
        self.check_sequence(sequence)
        cdef int32_t held = self.pos_max(source) + 1, own = self.pos_max(sequence) + 1
        if not (1 <= length <= held and own == 0 and source != sequence):
            raise InputError(f"copying {length} tokens needs {length} in the source, which has {held}, and an empty "
                             f"sequence, which has {own}")
        cdef bint done
        with nogil:
            done = ngs_seq_cp(self.calls.seq_cp, self.memory, source, sequence, -1 if whole else 0,
                              -1 if whole else length)
            if not done:
                ngs_seq_rm(self.calls.seq_rm, self.memory, sequence, 0, -1)
            elif whole and length < held:
                ngs_seq_rm(self.calls.seq_rm, self.memory, sequence, length, -1)
        self.last_counts[sequence] = 0
        if not done:
            raise MemoryError(f"llama.cpp has no memory to copy {length} tokens")

    def pos_min(self, int32_t sequence):
        """Return the smallest position that the cache still holds of a sequence, -1 when it is empty."""
        self.check_sequence(sequence)
        return self.calls.pos_min(self.memory, sequence)

    def pos_max(self, int32_t sequence):
        """Return the position of the last token of a sequence, -1 when it is empty."""
        self.check_sequence(sequence)
        return self.calls.pos_max(self.memory, sequence)

    def last_count(self, int32_t sequence):
        """Return how many tokens of a sequence were in the last decode."""
        self.check_sequence(sequence)
        return self.last_counts[sequence]

    def forget_last(self, int32_t sequence):
        """Set last_count to 0: what the last decode left in a sequence was replaced."""
        self.check_sequence(sequence)
        self.last_counts[sequence] = 0

    def clear(self, int32_t sequence=-1):
        """Empty a sequence, or all of them.

        Raises:
            InputError: No such sequence.
            StateError: The context is closed.
        """
        cdef Py_ssize_t i
        if sequence != -1:
            self.truncate(sequence, 0)
            return
        self.opened()
        with nogil:
            self.calls.clear(self.memory, False)
        memset(self.branch_lengths, 0, <size_t>(self.num_sequences * self.max_branches) * sizeof(int32_t))
        for i in range(self.num_sequences):
            self.last_counts[i] = 0
            self.used[i] = 0

    def close(self):
        """Stop using the context, which is about to be freed; rows with its logits become empty."""
        self.context = NULL
        if self.rows is not None and self.rows._owner is None:
            self.rows.c.num_rows = 0
        self.rows = None

    cdef int opened(self) except -1:
        if self.context == NULL:
            raise StateError("the context is closed")

    cdef int check_sequence(self, int32_t sequence) except -1:
        self.opened()
        if not 0 <= sequence < self.num_sequences:
            raise InputError(f"sequence must be in 0..{self.num_sequences - 1}, got {sequence}")


@cython.final
cdef class Candidates(Owner):
    """Candidates(vocab_size): the array that llama.cpp's samplers work in, shared by the samplers of one thread.

    Args:
        vocab_size: Tokens of the vocabulary, >= 1.

    Raises:
        InputError: vocab_size < 1.
        MemoryError: No room.
    """

    def __cinit__(self, Py_ssize_t vocab_size):
        if vocab_size < 1:
            raise InputError(f"vocab_size must be >= 1, got {vocab_size}")
        self.vocab_size = vocab_size
        self.data = <ngs_candidate*>self.take(vocab_size, sizeof(ngs_candidate))
        self.allowed = <float*>self.take(vocab_size, sizeof(float))

    def close(self):
        """Stop the samplers that use it, because llama.cpp's vocabulary is about to be freed."""
        self.closed = True


cdef bint _possible(const ngs_candidates* candidates) noexcept nogil:
    """Return whether a candidate is left."""
    cdef size_t i
    for i in range(candidates.size):
        if candidates.data[i].logit > -INFINITY:
            return True
    return False


cdef token_t _select(ChainC* c, ngs_candidates* candidates) noexcept nogil:
    """Return the token that the chain selects, -1 if there is none or it is ruled out."""
    cdef int64_t at
    candidates.selected = -1
    candidates.sorted = False
    if not ngs_apply(c.apply, c.chain, candidates):
        return -1
    at = candidates.selected
    if not 0 <= at < <int64_t>candidates.size or not candidates.data[at].logit > -INFINITY:
        return -1
    return candidates.data[at].id


cdef bint _allow(ChainC* c, const float* row) noexcept nogil:
    """Set `allowed` to the row without what the grammar forbids; False on a problem. Gives the GIL away if it is held."""
    cdef PyThreadState* held = NULL
    cdef const uint64_t* mask
    if ngs_attached() != NULL:
        held = PyEval_SaveThread()
    mask = c.grammar.mask(c.grammar.state)
    if mask != NULL:
        ngs_mask_row(c.allowed, row, mask, c.vocab_size)
    if held != NULL:
        PyEval_RestoreThread(held)
    return mask != NULL


cdef void _fill(ChainC* c, const float* row) noexcept nogil:
    """Begin with all candidates that the chain may select."""
    c.left.data = c.data
    c.left.size = <size_t>c.vocab_size
    if c.keep:
        c.left.size = <size_t>ngs_prefilter(c.data, row, c.vocab_size, c.keep, c.heap, c.counted, c.marks)
    else:
        ngs_fill(c.data, row, c.vocab_size)


cdef token_t _choose(void* state, const float* row, Py_ssize_t vocab_size) noexcept nogil:
    """Choose freely first; if the grammar forbids that token, choose among those it allows."""
    cdef ChainC* c = <ChainC*>state
    cdef token_t token
    if vocab_size != c.vocab_size or c.closed[0] or c.forbidden:
        return -1
    _fill(c, row)
    token = _select(c, &c.left)
    if c.grammar == NULL or (token >= 0 and c.grammar.allows(c.grammar.state, token)):
        return token
    if not _allow(c, row):
        return -1
    _fill(c, c.allowed)
    return _select(c, &c.left) if _possible(&c.left) else -1


cdef Py_ssize_t _candidates(void* state, token_t chosen, CandidateC* out, Py_ssize_t top) noexcept nogil:
    cdef ChainC* c = <ChainC*>state
    cdef ngs_candidate* data = c.left.data
    cdef Py_ssize_t i, count = min(top, <Py_ssize_t>c.left.size)
    if c.greedy:
        return only_candidate(NULL, chosen, out, top)
    out[0] = CandidateC(chosen, 0.0)
    for i in range(<Py_ssize_t>c.left.size):
        if data[i].id == chosen:
            out[0].probability = data[i].p
            break
    ngs_sort_likeliest(&c.left, <size_t>count)
    for i in range(count):
        if not data[i].p > 0:
            return 1 + i
        out[1 + i] = CandidateC(data[i].id, data[i].p)
    return 1 + count


cdef void _fits(void* state, const token_t* draft, const int32_t* parents, Py_ssize_t n, int32_t* fits) noexcept nogil:
    cdef ChainC* c = <ChainC*>state
    c.grammar.fits(c.grammar.state, draft, parents, n, fits)


cdef Py_ssize_t _forced(void* state, token_t* out, Py_ssize_t limit) noexcept nogil:
    cdef ChainC* c = <ChainC*>state
    return 0 if c.closed[0] or c.forbidden else c.grammar.forced(c.grammar.state, out, limit)


cdef void _count(ChainC* c, token_t token) noexcept nogil:
    """Accept a token in the chain, which may change that token's logit from now on."""
    ngs_accept(c.accept_call, c.chain, token)
    if c.counted != NULL:
        c.counted[token] = 1
        c.marks[token // NGS_LANES] = 1


cdef void _accept(void* state, token_t token) noexcept nogil:
    cdef ChainC* c = <ChainC*>state
    if not 0 <= token < c.vocab_size or c.closed[0]:
        return
    if c.grammar != NULL and not c.forbidden:
        c.forbidden = not c.grammar.accept(c.grammar.state, token)
    _count(c, token)


@cython.final
cdef class ChainSampler(Sampler):
    """ChainSampler(calls, chain_address, candidates, owner, grammar=None, keep=0, lookback=0, biased=None, greedy=False):
    a llama_sampler chain, with a grammar beside it as in llama.cpp's common/sampling.cpp.

    The chain's random numbers are drawn by choose, not by accept. NaN logits count as impossible.

    Args:
        calls: Addresses of llama.cpp's functions by name.
        chain_address: The chain; it selects a token.
        candidates: Shared with the other samplers of one thread.
        owner: Frees the chain when it is collected.
        grammar: At the beginning of its text, used by this sampler only; or None.
        keep: The chain only selects among this many of the largest logits after its penalties and
            biases: its first filter is top_k, or it is greedy, with 1. 1..128; 0 = it needs all. This
            saves time and does not change the choice, even among equal logits.
        lookback: How many of the latest accepted tokens may change logits in the chain; 0 = it has
            neither penalties nor DRY.
        biased: int32 token ids whose logits the chain changes, or None.
        greedy: The chain takes the likeliest token of those it leaves: no other one is possible.

    Raises:
        InputError: An argument is out of its bounds.
        BackendError: llama.cpp lacks a function.
        MemoryError: No room.
    """

    def __cinit__(self, calls, uintptr_t chain_address, Candidates candidates not None, owner,
                  Constraint grammar=None, Py_ssize_t keep=0, Py_ssize_t lookback=0, biased=None,
                  bint greedy=False):
        if not (chain_address and 0 <= keep <= MAX_KEEP and lookback >= 0):
            raise InputError(f"a chain must be given, keep must be in 0..{MAX_KEEP} and lookback >= 0, got "
                             f"{keep} and {lookback}")
        if grammar is not None and grammar.c.vocab_size != candidates.vocab_size:
            raise InputError(f"the grammar is for a vocabulary of {grammar.c.vocab_size} tokens, the candidates for "
                             f"{candidates.vocab_size}")
        self.candidates, self.grammar, self.owner = candidates, grammar, owner
        self.chain.apply = <ngs_apply_fn>call_address(calls, "llama_sampler_apply")
        self.chain.accept_call = <ngs_accept_fn>call_address(calls, "llama_sampler_accept")
        self.clone = <ngs_clone_fn>call_address(calls, "llama_sampler_clone")
        self.free_call = <ngs_free_fn>call_address(calls, "llama_sampler_free")
        self.chain.chain = <void*>chain_address
        self.chain.grammar = &grammar.c if grammar is not None else NULL
        self.chain.data, self.chain.allowed = candidates.data, candidates.allowed
        self.chain.closed = &candidates.closed
        self.chain.vocab_size = candidates.vocab_size
        self.chain.keep = keep if keep < candidates.vocab_size else 0
        self.chain.lookback, self.chain.greedy = lookback, greedy
        if self.chain.keep:
            self.prepare(lookback > 0, biased)
        self.c.state = &self.chain
        self.c.choose = _choose
        self.c.candidates = _candidates
        self.c.accept = _accept
        if grammar is not None:
            self.c.fits, self.c.forced = _fits, _forced

    cdef int prepare(self, bint counts, biased) except -1:
        cdef Py_ssize_t blocks = self.chain.vocab_size // NGS_LANES + 1
        cdef TokensC tokens
        cdef Py_ssize_t i
        self.chain.heap = <float*>self.take(self.chain.keep, sizeof(float))
        if not counts and (biased is None or len(biased) == 0):
            return 0
        self.chain.counted = <uint8_t*>self.take(self.chain.vocab_size, 1)
        self.chain.marks = <uint8_t*>self.take(blocks, 1)
        if biased is None:
            return 0
        tokens_view(biased, "biased", &tokens)
        try:
            for i in range(tokens.len):
                if tokens.data[i] >= self.chain.vocab_size:
                    raise InputError(f"biased must hold token ids in 0..{self.chain.vocab_size - 1}")
                self.chain.counted[tokens.data[i]] = 1
                self.chain.marks[tokens.data[i] // NGS_LANES] = 1
        finally:
            tokens_release(&tokens)

    @property
    def problem(self):
        """Return why no more tokens are chosen, "" without a problem; only grammars cause one."""
        if self.grammar is not None and self.grammar.problem:
            return self.grammar.problem
        return "the grammar does not allow a token that was accepted" if self.chain.forbidden else ""

    @property
    def may_end(self):
        """Return whether the text is complete where no token is possible: the grammar may end there."""
        return self.grammar is not None and self.grammar.may_end

    def accept_prompt(self, token_ids):
        """Let penalties and DRY look back on the prompt; the grammar does not see it.

        Args:
            token_ids: int32, shape (n,). Ids beyond the vocabulary are skipped.

        Raises:
            InputError: token_ids is not as described.

        Cost: up to `lookback` of the latest tokens are read. Threads: releases the GIL.
        """
        cdef TokensC tokens
        cdef Py_ssize_t i
        if self.chain.lookback == 0 or self.candidates.closed:
            return
        tokens_view(token_ids, "token_ids", &tokens)
        try:
            with nogil:
                for i in range(max(0, tokens.len - self.chain.lookback), tokens.len):
                    if tokens.data[i] < self.chain.vocab_size:
                        _count(&self.chain, tokens.data[i])
        finally:
            tokens_release(&tokens)

    def for_drafts(self, Py_ssize_t vocab_size):
        """Return a sampler that chooses drafts as this one would, without changing it; see DraftSampler."""
        return None if self.chain.greedy else DraftSampler(self, vocab_size)


cdef token_t _guess(void* state, const float* row, Py_ssize_t vocab_size) noexcept nogil:
    """Choose among the tokens that both vocabularies have."""
    cdef ChainC* c = <ChainC*>state
    return _choose(state, row, c.vocab_size) if c.chain != NULL and vocab_size >= c.vocab_size else -1


cdef void _follow(void* state, token_t token) noexcept nogil:
    """Accept a drafted token."""
    if (<ChainC*>state).chain != NULL:
        _accept(state, token)


@cython.final
cdef class DraftSampler(Sampler):
    """DraftSampler(origin, vocab_size): chooses drafts as a request's chain would: by its filters, its penalties and the
    random numbers that it draws next, from another model's logits. Where the two models agree roughly, both
    choose the same token, though the likeliest would often be another. A grammar has no say. begin_draft comes first.

    Args:
        origin: The request's sampler; it is not changed.
        vocab_size: Columns of the other model's rows, >= 1. Tokens that only one model has are never chosen.

    Raises:
        InputError: vocab_size < 1.
    """

    def __cinit__(self, ChainSampler origin not None, Py_ssize_t vocab_size):
        if vocab_size < 1:
            raise InputError(f"vocab_size must be >= 1, got {vocab_size}")
        self.origin, self.free_call = origin, origin.free_call
        self.chain = origin.chain
        self.chain.chain = NULL
        self.chain.grammar = NULL
        self.chain.forbidden = False
        self.chain.vocab_size = min(vocab_size, origin.chain.vocab_size)
        if self.chain.keep >= self.chain.vocab_size:
            self.chain.keep = 0
        self.c.state = &self.chain
        self.c.choose = _guess
        self.c.candidates = _candidates
        self.c.accept = _follow

    def __dealloc__(self):
        self.drop()

    cdef void drop(self) noexcept nogil:
        if self.chain.chain != NULL:
            self.free_call(self.chain.chain)
            self.chain.chain = NULL

    def begin_draft(self, token_ids):
        """Go on from where the request's sampler is, after tokens that others have drafted.

        Args:
            token_ids: int32, shape (n,): taken for tokens that are chosen next.

        Raises:
            InputError: token_ids is not as described.
            MemoryError: No room.
        """
        cdef ngs_candidate only
        cdef ngs_candidates left
        cdef TokensC tokens
        cdef Py_ssize_t i
        self.drop()
        if self.chain.closed[0]:
            return
        self.chain.chain = self.origin.clone(self.origin.chain.chain)
        if self.chain.chain == NULL:
            raise MemoryError("no room for a copy of the sampler")
        tokens_view(token_ids, "token_ids", &tokens)
        try:
            for i in range(tokens.len):
                only = ngs_candidate(tokens.data[i], 0.0, 0.0)
                left = ngs_candidates(&only, 1, -1, False)
                ngs_apply(self.chain.apply, self.chain.chain, &left)  # draws the random number
                _accept(&self.chain, tokens.data[i])
        finally:
            tokens_release(&tokens)
