# cython: language_level=3
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker.log.newest_connection cimport ANY_CONNECTION, LateRefusal
from kbroker.record.batch cimport BatchFields


cdef enum AppendOrigin:             # class Origin documents the values
    ORIGIN_CLIENT = 0
    ORIGIN_COORDINATOR = 1
    ORIGIN_REPLICATION = 2


cdef enum WriteMode:                # when the bytes must be in the file, and who owns them until then
    WRITE_NOW                       # before the append returns
    WRITE_LATER                     # when the tick ends, at the latest; the log copies what it has not written
    WRITE_LATER_BORROWED            # as WRITE_LATER; the caller keeps the bytes valid until the loan ends


cdef enum AppendOutcome:
    WRITTEN
    UNWRITTEN                       # adopted; `Log.write_unwritten` writes it
    DUPLICATE                       # the log held the batch already, and nothing changed


cdef struct Append:
    # set by `begin_append`, except `batch`, which `read_whole` or the caller sets
    uint8_t *data                   # one whole batch; base offset and leader epoch are placed in it
    int64_t size
    BatchFields batch
    AppendOrigin origin
    WriteMode write_mode
    # cleared by `begin_append`, then set by the caller as needed
    bint is_guarded                 # the batch may begin a transaction only with the guard in force
    PyObject *guard                 # borrowed, from `start_verification`; NULL: none, the transaction was open
    int64_t connection_id           # of a batch that may arrive late; ANY_CONNECTION: it may not, or is not checked
    int transaction_version         # of a marker's coordinator
    int32_t leader_epoch            # set by the Partition
    # set by the append
    AppendOutcome outcome
    int64_t base_offset
    int64_t last_offset
    int64_t append_time_ms          # -1 unless the topic stamps records with it; of a duplicate the first timestamp
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
