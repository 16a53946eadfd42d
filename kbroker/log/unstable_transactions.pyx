"""Tracks the transactions of a partition that keep its last stable offset below the high watermark."""
from libc.stdint cimport int64_t
from libc.string cimport memmove
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject

from kbroker.log.producer_entry cimport ProducerEntry

cdef enum:
    LEAST_ROOM = 4


cdef class UnstableTransactions:
    """The open transactions, and the completed transactions whose marker the high watermark has not passed.

    The producers with open transactions form a linked list, ordered by the first offset. A transaction begins and ends
    in constant time, regardless of how many are open. The ProducerStateTable keeps each producer while its transaction
    is open.
    """

    def __dealloc__(self):
        PyMem_Free(self.completed)

    cdef int clear(self) noexcept:
        self.first_open = self.last_open = NULL
        self.first_completed = self.end_completed = 0
        return 0

    cdef int open(self, ProducerEntry entry, int64_t first_offset) noexcept:
        """Add an open transaction at the end of the list: its first offset is above those of all other transactions."""
        entry.transaction_first_offset = first_offset
        entry.previous_open = self.last_open
        entry.next_open = NULL
        if self.last_open == NULL:
            self.first_open = <PyObject *>entry
        else:
            (<ProducerEntry>self.last_open).next_open = <PyObject *>entry
        self.last_open = <PyObject *>entry
        return 0

    cdef int close(self, ProducerEntry entry) noexcept:
        if entry.previous_open == NULL:
            self.first_open = entry.next_open
        else:
            (<ProducerEntry>entry.previous_open).next_open = entry.next_open
        if entry.next_open == NULL:
            self.last_open = entry.previous_open
        else:
            (<ProducerEntry>entry.next_open).previous_open = entry.previous_open
        entry.transaction_first_offset = -1
        return 0

    cdef int complete(self, ProducerEntry entry, int64_t marker_offset) except -1:
        """Keep a completed transaction until the high watermark passes its marker.

        Drop the completed transactions that began later than this one. Their markers are lower, so they never determine
        the last stable offset. The remaining completed transactions are therefore ordered by their first offset.
        """
        while (self.end_completed > self.first_completed
               and self.completed[self.end_completed - 1].first_offset >= entry.transaction_first_offset):
            self.end_completed -= 1
        if self.end_completed == self.completed_room:
            self.make_room()
        self.completed[self.end_completed] = Completed(marker_offset, entry.transaction_first_offset)
        self.end_completed += 1
        return self.close(entry)

    cdef int make_room(self) except -1:
        """Make room for another completed transaction. Move the transactions to the start of the array if more than
        half of it is free there, otherwise enlarge the array.
        """
        cdef Py_ssize_t room = max(<Py_ssize_t>LEAST_ROOM, 2 * self.completed_room)
        cdef Completed *larger
        if self.first_completed > self.completed_room // 2:
            self.end_completed -= self.first_completed
            memmove(self.completed, self.completed + self.first_completed, self.end_completed * sizeof(Completed))
            self.first_completed = 0
            return 0
        larger = <Completed *>PyMem_Realloc(self.completed, room * sizeof(Completed))
        if larger == NULL:
            raise MemoryError
        self.completed, self.completed_room = larger, room
        return 0

    @property
    def ongoing(self) -> dict[int, int]:
        """Maps the first offset of each open transaction to its producer id, in ascending order."""
        cdef PyObject *at = self.first_open
        found = {}
        while at != NULL:
            found[(<ProducerEntry>at).transaction_first_offset] = (<ProducerEntry>at).producer_id
            at = (<ProducerEntry>at).next_open
        return found

    @property
    def first_producer(self) -> ProducerEntry | None:
        """The producer whose open transaction has the lowest first offset, or None if no transaction is open."""
        return None if self.first_open == NULL else <ProducerEntry>self.first_open

    cdef int64_t first(self) noexcept:
        """Return the first offset of the earliest transaction that is open, or whose marker the high watermark has not
        passed. Return -1 if there is none."""
        cdef int64_t first = -1
        cdef int64_t completed
        if self.first_open != NULL:
            first = (<ProducerEntry>self.first_open).transaction_first_offset
        if self.first_completed < self.end_completed:
            completed = self.completed[self.first_completed].first_offset
            if first < 0 or completed < first:
                return completed
        return first

    def first_offset(self) -> int | None:
        """Return the offset that `first` returns, or None instead of -1."""
        cdef int64_t first = self.first()
        return None if first < 0 else first

    cdef int64_t stable_offset_without(self, int64_t producer_id, int64_t marker_offset) noexcept:
        """Return the last stable offset that results when the marker at `marker_offset` ends this producer's
        transaction.
        """
        cdef PyObject *first = self.first_open
        if first != NULL and (<ProducerEntry>first).producer_id == producer_id:
            first = (<ProducerEntry>first).next_open
        return marker_offset + 1 if first == NULL else (<ProducerEntry>first).transaction_first_offset

    cpdef on_high_watermark(self, int64_t high_watermark):
        """Forget the completed transactions whose marker is below `high_watermark`."""
        while (self.first_completed < self.end_completed
               and self.completed[self.first_completed].marker_offset < high_watermark):
            self.first_completed += 1
        if self.first_completed == self.end_completed:
            self.first_completed = self.end_completed = 0
