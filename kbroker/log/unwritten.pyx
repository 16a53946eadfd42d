"""The unwritten tail of a log: the bytes of batches that the log has adopted but not yet written.

Appends to one partition within one tick share a single write. A small write of forty batches costs the file system
little more than a write of one batch. A large write costs half as much as separate writes of its parts.

Until the write, the bytes are in an arena that all logs of a broker share. The arena is small, so the bytes are still
in the processor's cache when they are written. Bytes in the frame of a request are borrowed, not copied. When the loan
of the connection ends, the tail copies borrowed bytes, or writes them if there are many.

Nothing may depend on unwritten bytes. The broker sends no reply for their appends, the high watermark stays below their
batches, and the log writes the bytes before any read of the file. If the write fails, all these appends fail.
"""
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from kbroker.log.append cimport WRITE_LATER, WRITE_NOW, Append
from kbroker.log.fs.file cimport iovec
from kbroker.log.fs.lazy_file cimport LazyFile

cdef enum:
    ARENA_BYTES = 256 * 1024
    LARGEST_COPY_BYTES = 64 * 1024      # copying more bytes costs more than a write
    MOST_PIECES = 64


cdef class WriteArena:
    """Memory that all logs of a broker share for their unwritten bytes. The arena also has the number of the current
    tick.
    """

    def __cinit__(self):
        self.memory = <uint8_t *>malloc(ARENA_BYTES)
        if self.memory == NULL:
            raise MemoryError()
        self.borrowers = []
        self.tick = 1

    def __dealloc__(self):
        free(self.memory)

    cdef bint has_room(self, int64_t size) noexcept:
        return size <= ARENA_BYTES - self.used

    cdef uint8_t *take(self, int64_t size) noexcept:
        """Return `size` bytes of memory, or NULL if the arena is full. The memory is valid until every tail has written
        its bytes in the arena.
        """
        if not self.has_room(size):
            return NULL
        self.used += size
        return self.memory + self.used - size

    cdef int end_loan(self) except -1:
        """Let all tails copy or write their borrowed bytes, because these bytes are about to become invalid."""
        cdef UnwrittenTail tail
        if self.borrowers:
            for tail in self.borrowers:
                tail.is_borrowing = False
                tail.end_loan()
            self.borrowers = []
        return 0

    cdef int end_tick(self) noexcept:
        self.tick += 1
        return 0


cdef class UnwrittenTail:
    """The unwritten bytes at the end of one log. All of them belong in the file of one segment."""

    def __dealloc__(self):
        free(self.pieces)

    cdef bint may_take(self, const Append *append) noexcept:
        """Return whether an append is written later. The log must call this exactly once for each append that it
        accepts.

        A lone append is written immediately. Deferring it would save no system call, but would copy the batch and delay
        the request until the end of the tick. According to tests/gates, deferring raises the cost of a Produce request
        of 300 B from 12,800 to 15,000 instructions, and of 16 KiB from 60,000 to 78,600. This is a fifth more CPU time
        for 300 B, and a twentieth more for 16 KiB.

        Only appends to a busy partition are deferred. A partition is busy if it had several appends in this tick, or in
        the last earlier tick with an append.
        """
        if append.write_mode == WRITE_NOW or self.arena is None or not self.is_busy():
            return False
        return append.write_mode != WRITE_LATER or (
            append.size <= LARGEST_COPY_BYTES and self.arena.has_room(append.size))

    cdef bint is_busy(self) noexcept:
        if self.tick != self.arena.tick:
            self.tick = self.arena.tick
            self.was_busy = self.appends_in_tick > 1
            self.appends_in_tick = 0
        self.appends_in_tick += 1
        return self.was_busy or self.appends_in_tick > 1

    cdef int reserve(self, LazyFile file, int64_t position) except -1:
        """Ensure that `add` cannot fail, and that `write` has a file descriptor. `position` is the end of the `.log`
        file.
        """
        if self.count == MOST_PIECES:
            self.write()
        if self.count == 0:
            file.get()
            file.awaits_sync = True         # keeps the descriptor open
            self.file = file
            self.position = position
        if self.pieces == NULL:
            self.pieces = <iovec *>malloc(MOST_PIECES * sizeof(iovec))
            if self.pieces == NULL:
                raise MemoryError()
        return 0

    cdef int add(self, const Append *append) except -1:
        """Add the bytes of an append for which `may_take` returned True. The caller must have called `reserve`."""
        cdef uint8_t *data = append.data
        if append.write_mode == WRITE_LATER:
            data = <uint8_t *>memcpy(self.take_memory(append.size), data, append.size)
            if self.owned_count == self.count:
                self.owned_count += self.put(data, append.size)
                return 0
        elif not self.is_borrowing:
            self.is_borrowing = True
            self.arena.borrowers.append(self)
        self.put(data, append.size)
        return 0

    cdef int put(self, uint8_t *data, int64_t size) noexcept:
        """Add a piece of memory, or lengthen the last piece if the bytes directly follow it. Return the number of
        pieces added, 1 or 0.
        """
        cdef iovec *last = NULL if self.count == 0 else &self.pieces[self.count - 1]
        self.size_bytes += size
        if last != NULL and <uint8_t *>last.iov_base + last.iov_len == data:
            last.iov_len += size
            return 0
        self.pieces[self.count] = iovec(data, size)
        self.count += 1
        return 1

    cdef uint8_t *take_memory(self, int64_t size) noexcept:
        """Return `size` bytes of memory from the arena, NULL if there is no room."""
        cdef uint8_t *memory = self.arena.take(size)
        if memory != NULL and not self.is_in_arena:
            self.is_in_arena = True
            self.arena.users += 1
        return memory

    cdef int end_loan(self) except -1:
        """Stop borrowing: copy the borrowed bytes, or write the whole tail. If this write fails, the next call of
        `write` raises the error.
        """
        cdef int64_t size = 0
        cdef uint8_t *memory
        cdef uint8_t *at
        cdef int i
        for i in range(self.owned_count, self.count):
            size += self.pieces[i].iov_len
        if size == 0:
            return 0
        memory = NULL if size > LARGEST_COPY_BYTES else self.take_memory(size)
        if memory == NULL:
            try:
                self.write()
            except OSError as error:
                self.failure = error
                self.count = self.owned_count = 0
            return 0
        at = memory
        for i in range(self.owned_count, self.count):
            memcpy(at, self.pieces[i].iov_base, self.pieces[i].iov_len)
            at += self.pieces[i].iov_len
        self.count = self.owned_count
        self.size_bytes -= size
        self.put(memory, size)
        self.owned_count = self.count
        return 0

    cdef int write(self) except -1:
        """Write the whole tail with one system call. Raise OSError if the write fails; the caller must then call
        `discard`.
        """
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        if self.size_bytes:
            self.file.get().pwrite_pieces(self.pieces, self.count, self.position)
            self.discard()
        return 0

    cdef int64_t discard(self) noexcept:
        """Forget the unwritten bytes, and return their number."""
        cdef int64_t size_bytes = self.size_bytes
        self.count = self.owned_count = 0
        self.size_bytes = 0
        if self.is_in_arena:
            self.is_in_arena = False
            self.arena.users -= 1
            if self.arena.users == 0:
                self.arena.used = 0
        return size_bytes
