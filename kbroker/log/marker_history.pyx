"""The newest markers of a partition, with the state of their producers before them.

The producer state describes only the end of the log. From this history, a clean stop derives the state at an offset a
little below the end.
"""
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport int16_t, int32_t, int64_t

cdef enum:
    LEAST_MARKERS = 8
    MOST_MARKERS = 256          # of 32 bytes each


cdef class MarkerHistory:
    """The markers at or above `known_from`, which moves up when the history is full."""

    def __dealloc__(self):
        PyMem_Free(self.markers)

    cdef int clear(self, int64_t end_offset) noexcept:
        """Forget all markers. The next marker has an offset of at least `end_offset`."""
        self.count = self.oldest = 0
        self.known_from = end_offset
        return 0

    cdef int note(self, int64_t producer_id, int16_t producer_epoch, int32_t coordinator_epoch,
                  int64_t first_offset, int64_t marker_offset) except -1:
        """Add the marker at `marker_offset`, which is above all earlier ones."""
        cdef NotedMarker *slot
        if self.count == self.room:
            self.grow()
        slot = &self.markers[(self.oldest + self.count) % self.room]
        if self.count == self.room:
            self.known_from = slot.marker_offset + 1
            self.oldest = (self.oldest + 1) % self.room
        else:
            self.count += 1
        slot[0] = NotedMarker(producer_id, marker_offset, first_offset, producer_epoch, coordinator_epoch)
        return 0

    cdef const NotedMarker *newest(self, Py_ssize_t number) noexcept:
        """Return the marker that `number` newer markers follow, NULL if it is not known."""
        if number >= self.count:
            return NULL
        return &self.markers[(self.oldest + self.count - 1 - number) % self.room]

    cdef int grow(self) except -1:
        """Double the room, up to MOST_MARKERS. Before it has reached that size, `oldest` is 0."""
        cdef Py_ssize_t room = max(<Py_ssize_t>LEAST_MARKERS, 2 * self.room)
        cdef void *larger
        if room <= MOST_MARKERS:
            larger = PyMem_Realloc(self.markers, room * sizeof(NotedMarker))
            if larger == NULL:
                raise MemoryError
            self.markers, self.room = <NotedMarker *>larger, room
        return 0
