# cython: language_level=3
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker.log.newest_connection cimport ANY_CONNECTION, LateRefusal
from kbroker.record.batch cimport BatchFields


cdef enum AppendOrigin:             # class Origin documents the values
    ORIGIN_CLIENT = 0
    ORIGIN_COORDINATOR = 1
    ORIGIN_REPLICATION = 2


cdef enum WriteMode:                # the time by which the file has the bytes, and their owner until then
    WRITE_NOW                       # before the append returns
    WRITE_LATER                     # at the end of the tick at the latest; the log copies unwritten bytes
    WRITE_LATER_BORROWED            # like WRITE_LATER, but the caller keeps the bytes valid until the loan ends


cdef enum AppendOutcome:
    WRITTEN
    UNWRITTEN                       # the log adopted the batch; `Log.write_unwritten` writes it
    DUPLICATE                       # the log already held the batch, so nothing changed


cdef struct Append:
    # `begin_append` sets these fields, except `batch`, which `read_whole` or the caller sets
    uint8_t *data                   # one whole batch; base offset and leader epoch are placed in it
    int64_t size
    BatchFields batch
    AppendOrigin origin
    WriteMode write_mode
    # `begin_append` clears these fields, the caller then sets those that it needs
    bint is_guarded                 # True if the batch may begin a transaction only with a valid `guard`
    PyObject *guard                 # borrowed result of `start_verification`; NULL: the transaction was open already
    int64_t connection_id           # the batch's connection; ANY_CONNECTION: lateness is not checked
    int transaction_version         # the version that the coordinator of a marker uses
    int32_t leader_epoch            # set by the Partition
    # the append sets these fields
    AppendOutcome outcome
    int64_t base_offset
    int64_t last_offset
    int64_t append_time_ms          # -1 unless the topic uses LogAppendTime; for a duplicate, the first append's time
    int64_t log_start_offset
    LateRefusal late_refusal        # set if the batch is late


cdef inline void begin_append(Append *append, uint8_t *data, int64_t size, AppendOrigin origin,
                              WriteMode write_mode) noexcept:
    append.data = data
    append.size = size
    append.origin = origin
    append.write_mode = write_mode
    append.is_guarded = False
    append.guard = NULL
    append.connection_id = append.late_refusal.newest_id = ANY_CONNECTION
    append.transaction_version = 0
    append.leader_epoch = 0


cdef int read_whole(const uint8_t *data, int64_t size, BatchFields *batch) except -1


cdef class AppendResult:
    cdef readonly int64_t base_offset
    cdef readonly int64_t last_offset
    cdef readonly int64_t append_time_ms
    cdef readonly int64_t log_start_offset
    cdef readonly bint is_duplicate


cdef class Appender:
    cdef int append(self, Append *append) except -1
