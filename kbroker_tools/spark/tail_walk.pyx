"""A walk over the end of a partition, batch by batch. It finds the end of the log and the outcomes of transactions.

The plan of a query waits for this walk. Partitions are therefore walked in parallel, mostly without the GIL. A run is a
sequence of batches by one producer that no other producer interrupts. Only the first and the last batch of a run are
replayed: the first opens a transaction, and the last has the last sequence number and timestamp. `skim` reads only
these two batches and the headers of the batches between them. `feed` reads every byte and therefore finds every damaged
batch.
"""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int64_t, uint8_t
from posix.types cimport off_t

from kbroker.record.batch cimport (
    ATTRIBUTES_AT, CONTROL_BIT, HEADER_BYTES, HEADER_READ, BatchFields, batch_last_offset, batch_size_bytes,
    parse_header)
from kbroker.wire.crc32c cimport crc32c_update

import os

cdef extern from *:
    """
    #include <fcntl.h>
    static void kb_read_ahead(int fd, off_t position, int size)
    {
    #ifdef __APPLE__
        struct radvisory wanted = {position, size};
        fcntl(fd, F_RDADVISE, &wanted);
    #else
        posix_fadvise(fd, position, size, POSIX_FADV_WILLNEED);
    #endif
    }
    """
    void read_ahead "kb_read_ahead"(int fd, off_t position, int size) nogil

cdef extern from '<unistd.h>' nogil:
    ssize_t pread(int fd, void *into, size_t size, off_t position)

cdef enum:
    WINDOW_BYTES = 65536
    LARGE_BATCH_BYTES = 4096    # copying this many bytes takes as long as a system call
    AHEAD_BYTES = 4194304       # the kernel does not read ahead when only headers are read


class UnsoundTail(Exception):
    """A batch is damaged, or its offsets are below those of a previous batch. `feed` must read all batches."""


cdef struct Run:
    Py_ssize_t first_at
    int64_t first_size
    Py_ssize_t last_at
    int64_t last_size
    int64_t producer_id
    int16_t producer_epoch
    int16_t attributes


cdef struct Window:
    int fd
    int64_t start
    int64_t end
    int64_t wanted_bytes        # the size of the window after it moves
    int64_t asked_to            # the position up to which the kernel was asked to read ahead
    uint8_t data[WINDOW_BYTES]


cdef const uint8_t *header_at(Window *window, int64_t position, int64_t file_end) noexcept nogil:
    """Return the header of the batch at `position`. Return NULL if the file ends before the end of the header."""
    cdef ssize_t size
    if position < window.start or position + HEADER_BYTES > window.end:
        while window.asked_to < min(file_end, position + AHEAD_BYTES):
            read_ahead(window.fd, window.asked_to, AHEAD_BYTES)
            window.asked_to += AHEAD_BYTES
        size = pread(window.fd, window.data, <size_t>min(window.wanted_bytes, file_end - position), position)
        if size < HEADER_BYTES:
            return NULL
        window.start, window.end = position, position + size
    return window.data + (position - window.start)


cdef class TailWalk:
    """A walk over batches. `next_offset` is the offset after the last valid batch.

    `replay`, such as `ProducerStateTable.replay_batch`, is called with the batches at or above `replay_from`. A batch
    is skipped if it is damaged, or if its offsets are below those of a previous batch.
    """
    cdef readonly int64_t next_offset
    cdef readonly int64_t replayed_to    # the offset after the last batch at or above `replay_from`, or -1
    cdef readonly int64_t sound_bytes    # the end of the last valid batch in the data of the last `feed`
    cdef int64_t replay_from
    cdef object replay

    def __init__(self, int64_t next_offset, int64_t replay_from, replay):
        self.next_offset = next_offset
        self.replayed_to = -1
        self.replay_from = replay_from
        self.replay = replay

    def feed(self, data):
        """Walk the complete batches at the beginning of `data`. Return the size of these batches in bytes."""
        cdef Py_buffer view
        cdef Run run
        cdef Py_ssize_t position = 0
        self.sound_bytes = 0
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            with memoryview(data) as batches:
                while True:
                    with nogil:
                        position = self.next_run(<const uint8_t *>view.buf, view.len, position, &run)
                    if run.first_size == 0:
                        return position
                    self.replay(batches[run.first_at:run.first_at + run.first_size])
                    if run.last_at != run.first_at:
                        self.replay(batches[run.last_at:run.last_at + run.last_size])
        finally:
            PyBuffer_Release(&view)

    def skim(self, int fd, int64_t position, int64_t end):
        """Walk the complete batches between two positions of an open file. Return the position after the last batch.

        Markers, the first and the last batch of each run, and the last batch of the file are read completely and
        checked. Raise UnsoundTail if one of them is damaged, and OSError if the file cannot be read.
        """
        cdef Window window
        cdef BatchFields fields
        cdef Run run
        cdef int64_t last_size = 0
        cdef bint is_run
        window.fd, window.start, window.end, window.asked_to, window.wanted_bytes = fd, 0, 0, position, WINDOW_BYTES
        run.first_at = run.last_at = run.first_size = 0
        while True:
            with nogil:
                is_run = self.skim_run(&window, &position, end, &run, &fields, &last_size)
            if run.last_at != run.first_at:
                self.replay(sound_batch(fd, run.last_at, run.last_size))
            if not is_run:
                break
            run.first_at = run.last_at = position
            run.first_size = run.last_size = last_size = batch_size_bytes(&fields)
            run.producer_id, run.producer_epoch = fields.producer_id, fields.producer_epoch
            run.attributes = fields.attributes
            self.replay(sound_batch(fd, position, last_size))
            self.pass_by(&fields)
            position += last_size
        if last_size:
            sound_batch(fd, position - last_size, last_size)
        return position

    cdef bint skim_run(self, Window *window, int64_t *position, int64_t end, Run *run, BatchFields *fields,
                       int64_t *last_size) except -1 nogil:
        """Walk to the first batch of the next run and return True. If there is no other run, walk past the last batch
        and return False."""
        cdef const uint8_t *header
        cdef int64_t batch_bytes
        while True:
            header = header_at(window, position[0], end)
            if header == NULL or parse_header(header, HEADER_BYTES, fields) != HEADER_READ:
                return False
            batch_bytes = batch_size_bytes(fields)
            if batch_bytes > end - position[0]:
                return False
            if fields.base_offset < self.next_offset or fields.last_offset_delta < 0:
                with gil:
                    raise UnsoundTail(f'position {position[0]}: found offset {fields.base_offset}')
            if fields.base_offset >= self.replay_from and (fields.producer_id >= 0 or fields.attributes & CONTROL_BIT):
                if (run.first_size == 0 or fields.attributes & CONTROL_BIT
                        or fields.producer_id != run.producer_id or fields.attributes != run.attributes
                        or fields.producer_epoch != run.producer_epoch):
                    return True
                run.last_at, run.last_size = position[0], batch_bytes
            self.pass_by(fields)
            last_size[0] = batch_bytes
            position[0] += batch_bytes
            window.wanted_bytes = HEADER_BYTES if batch_bytes > LARGE_BATCH_BYTES else WINDOW_BYTES

    cdef inline void pass_by(self, const BatchFields *fields) noexcept nogil:
        self.next_offset = batch_last_offset(fields) + 1
        if fields.base_offset >= self.replay_from:
            self.replayed_to = self.next_offset

    cdef Py_ssize_t next_run(self, const uint8_t *data, Py_ssize_t size, Py_ssize_t position, Run *run) noexcept nogil:
        """Walk past the next run. If no run follows, `run.first_size` is 0 and the walk has ended. Return the position
        that the walk has reached."""
        cdef BatchFields fields
        cdef int64_t batch_bytes
        run.first_size = 0
        while parse_header(data + position, size - position, &fields) == HEADER_READ:
            batch_bytes = batch_size_bytes(&fields)
            if batch_bytes > size - position:
                break
            if fields.base_offset < self.next_offset or crc32c_update(
                    0, data + position + ATTRIBUTES_AT, <size_t>(batch_bytes - ATTRIBUTES_AT)) != fields.crc:
                position += batch_bytes
                continue
            if fields.base_offset >= self.replay_from:
                if run.first_size and (fields.producer_id != run.producer_id
                                       or fields.attributes != run.attributes
                                       or fields.producer_epoch != run.producer_epoch):
                    break
                if fields.producer_id >= 0 or fields.attributes & CONTROL_BIT:
                    run.last_at, run.last_size = position, batch_bytes
                    if run.first_size == 0:
                        run.first_at, run.first_size = position, batch_bytes
                        run.producer_id, run.producer_epoch = fields.producer_id, fields.producer_epoch
                        run.attributes = fields.attributes
            self.pass_by(&fields)
            position += batch_bytes
            self.sound_bytes = position
            if fields.attributes & CONTROL_BIT and run.first_size:
                break  # each marker is its own run, because it may be a row of the transaction index
        return position


cdef object sound_batch(int fd, int64_t position, int64_t size):
    """Return the complete batch at a position of a file. Raise UnsoundTail if it is damaged, and OSError if it cannot
    be read."""
    cdef BatchFields fields
    cdef bytes batch = os.pread(fd, size, position)
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(batch)
    cdef Py_ssize_t available = PyBytes_GET_SIZE(batch)
    if (available < size or parse_header(data, available, &fields) != HEADER_READ
            or crc32c_update(0, data + ATTRIBUTES_AT, <size_t>(available - ATTRIBUTES_AT)) != fields.crc):
        raise UnsoundTail(f'position {position}: found a damaged batch')
    return memoryview(batch)
