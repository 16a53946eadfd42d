"""What an append answers, in C and for Python."""
from libc.stdint cimport int64_t


cdef class AppendResult:
    """Where a batch went. `append_time_ms` is -1 unless the topic stamps records with it; a duplicate answers with the
    offsets of the first append and that batch's timestamp."""

    def __init__(self, int64_t base_offset, int64_t last_offset, int64_t append_time_ms=-1, int64_t log_start_offset=0,
                 bint is_duplicate=False):
        self.base_offset = base_offset
        self.last_offset = last_offset
        self.append_time_ms = append_time_ms
        self.log_start_offset = log_start_offset
        self.is_duplicate = is_duplicate

    def __repr__(self):
        return (f'AppendResult({self.base_offset}, {self.last_offset}, append_time_ms={self.append_time_ms}, '
                f'log_start_offset={self.log_start_offset}, is_duplicate={self.is_duplicate})')


cdef AppendResult result_of(const Appended *appended):
    cdef AppendResult result = AppendResult.__new__(AppendResult)
    result.base_offset = appended.base_offset
    result.last_offset = appended.last_offset
    result.append_time_ms = appended.append_time_ms
    result.log_start_offset = appended.log_start_offset
    result.is_duplicate = appended.is_duplicate
    return result
