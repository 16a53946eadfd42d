"""Records the newest markers of a partition, each with the state of its producer before the marker.

The producer state describes only the end of the log. With this history, a clean stop derives the state at an offset a
little below the end.
"""
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from libc.stdint cimport int16_t, int32_t, int64_t

cdef enum:
    LEAST_MARKERS = 8
    MOST_MARKERS = 256          # a marker takes 32 bytes


cdef class MarkerHistory:
    """The markers at or above the offset `known_from`. When the history is full, the oldest marker is dropped and
    `known_from` moves up.
    """

    def __dealloc__(self):
        PyMem_Free(self.markers)

    cdef int clear(self, int64_t end_offset) noexcept:
        """Forget all markers. The next marker has an offset of at least `end_offset`."""
        self.count = self.oldest = 0
        self.known_from = end_offset
        return 0

    cdef int note(self, int64_t producer_id, int16_t producer_epoch, int32_t coordinator_epoch,
                  int64_t first_offset, int64_t marker_offset) except -1:
        """Add the marker at `marker_offset`. The offsets of all earlier markers must be lower."""
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
        """Return the marker that is followed by `number` newer markers, NULL if it is not known."""
        if number >= self.count:
            return NULL
        return &self.markers[(self.oldest + self.count - 1 - number) % self.room]

    cdef int grow(self) except -1:
        """Double the size of the array, up to MOST_MARKERS. Until the array has that size, `oldest` is 0."""
        cdef Py_ssize_t room = max(<Py_ssize_t>LEAST_MARKERS, 2 * self.room)
        cdef void *larger
        if room <= MOST_MARKERS:
            larger = PyMem_Realloc(self.markers, room * sizeof(NotedMarker))
            if larger == NULL:
                raise MemoryError
            self.markers, self.room = <NotedMarker *>larger, room
        return 0
