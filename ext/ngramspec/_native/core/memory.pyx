"""Memory that objects own, so that none of them frees it block by block, and arrays that grow."""

from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from ngramspec._native.core.types cimport STATUS_NO_MEMORY, STATUS_OK, ngs_extend


cdef size_t _checked(Py_ssize_t count, size_t item_bytes) except 0:
    """Return the bytes of a block with its head."""
    if not 0 <= count <= <Py_ssize_t>((<size_t>1 << 62) // (item_bytes + 1)):
        raise MemoryError(f"no memory for {count} items of {item_bytes} bytes")
    return sizeof(BlockC) + <size_t>count * item_bytes


cdef class Owner:
    """Base of objects that own memory: what they take lives as long as they do.

    Thread-safety: one thread at a time.
    """

    def __dealloc__(self):
        cdef BlockC* block
        while self._newest != NULL:
            block = self._newest
            self._newest = block.older
            free(block)

    cdef void* take(self, Py_ssize_t count, size_t item_bytes) except NULL:
        cdef size_t num_bytes = _checked(count, item_bytes)
        cdef BlockC* block = <BlockC*>calloc(1, num_bytes)
        if block == NULL:
            raise MemoryError(f"no memory for {num_bytes} bytes")
        block.older, block.num_bytes = self._newest, num_bytes - sizeof(BlockC)
        self._newest = block
        return block + 1

    cdef void* enlarge(self, void* memory, Py_ssize_t count, size_t item_bytes) except NULL:
        cdef size_t num_bytes = _checked(count, item_bytes), held
        cdef BlockC** link = &self._newest
        cdef BlockC* block
        if memory == NULL:
            return self.take(count, item_bytes)
        block = <BlockC*>memory - 1
        while link[0] != block:
            link = &link[0].older
        block = <BlockC*>realloc(block, num_bytes)
        if block == NULL:
            raise MemoryError(f"no memory for {num_bytes} bytes")
        held, block.num_bytes = block.num_bytes, num_bytes - sizeof(BlockC)
        link[0] = block
        memset(<char*>(block + 1) + held, 0, block.num_bytes - held)
        return block + 1


cdef Status grow(void** memory, Py_ssize_t* capacity, Py_ssize_t needed, size_t item_bytes) noexcept nogil:
    """On Linux large blocks are remapped, not copied."""
    cdef Py_ssize_t room
    cdef void* moved
    if needed <= capacity[0]:
        return STATUS_OK
    room = capacity[0] + (capacity[0] >> 1) + 16
    if room < needed:
        room = needed
    if <size_t>room > (<size_t>-1) // 2 // item_bytes:
        return STATUS_NO_MEMORY
    moved = ngs_extend(memory[0], <size_t>capacity[0] * item_bytes, <size_t>room * item_bytes)
    if moved == NULL:
        return STATUS_NO_MEMORY
    memory[0] = moved
    capacity[0] = room
    return STATUS_OK
