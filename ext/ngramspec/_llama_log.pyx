"""llama.cpp's log: a callback that keeps the latest warnings and errors, for messages of failures.

llama.cpp calls it from threads of its own, so it takes no GIL.
"""

from libc.stdint cimport uintptr_t
from libc.string cimport memcpy, strlen

from ngramspec._locks cimport locks_add
from ngramspec._types cimport int64_t, ngs_load64, ngs_lock, ngs_store64, ngs_unlock

cdef enum:
    LINES = 32       # lines that are kept
    CHARS = 400
    WARNING = 3      # ggml_log_level
    CONTINUED = 5

cdef char[LINES][CHARS] kept
cdef int64_t count = 0
cdef int busy = 0
locks_add(&busy)


cdef void _log(int level, const char* text, void* data) noexcept nogil:
    """The callback."""
    cdef size_t size
    if level < WARNING or level == CONTINUED or text == NULL:
        return
    size = min(strlen(text), <size_t>CHARS - 1)
    ngs_lock(&busy)
    memcpy(kept[count % LINES], text, size)
    kept[count % LINES][size] = 0
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
    ngs_lock(&busy)  # for a copy only: making objects of it may fail
    memcpy(copied, kept, sizeof(kept))
    end = count
    ngs_unlock(&busy)
    lines = [<bytes>copied[i % LINES] for i in range(max(position, end - LINES, 0), end)]
    return [line.decode("utf-8", "replace").strip() for line in lines]
