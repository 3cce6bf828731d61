# What llama.cpp logs: one callback for the whole process, which keeps the latest warnings and errors.
cdef long long lines_logged() noexcept nogil
