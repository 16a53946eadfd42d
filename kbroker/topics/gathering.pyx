"""What several append to a partition in a turn of the loop is written by one call, when the turn ends.

A small write costs the file system little more for forty batches than for one, and a large one half of what its parts
would. The bytes lie in one arena until then, whoever sent them; it is small, so that the processor has it at hand still.
Bytes of a frame are only borrowed: they are copied when the loan ends, unless they are many, which are written then.
"""
from libc.stdint cimport uint8_t
from libc.stdlib cimport free, malloc

cdef enum:
    ARENA_BYTES = 256 * 1024


cdef class Gatherer:
    """Who has bytes that are not written yet."""

    cdef int write_file(self) except -1:
        """Write them. Nobody is told of it, nor of a failure, before `settle`."""
        raise NotImplementedError

    cdef int take_over(self) except -1:
        """Borrowed bytes go away: copy, or write them."""
        raise NotImplementedError

    cdef int settle(self) except -1:
        """Write them, unless they are, and tell who waits for it, who may gather more."""
        raise NotImplementedError


cdef class Gathering:
    """Who has gathered something in this turn, in the order in which they began. True while there is somebody."""

    def __cinit__(self):
        self.arena = <uint8_t *>malloc(ARENA_BYTES)
        if self.arena == NULL:
            raise MemoryError()
        self.gatherers = []
        self.borrowers = []
        self.turn = 1

    def __dealloc__(self):
        free(self.arena)

    def __bool__(self):
        return len(self.gatherers) > 0

    cdef uint8_t *take_room(self, Py_ssize_t size) except NULL:
        """A place for at most LARGEST_KEPT_BYTES, which stay until their gatherer has written them: that may be now."""
        if size > ARENA_BYTES - self.used:
            self.make_room()
        self.used += size
        return self.arena + self.used - size

    cdef int give_back(self, Py_ssize_t size) noexcept:
        """The last bytes of the arena are not needed."""
        self.used -= size
        return 0

    cdef int make_room(self) except -1:
        for gatherer in self.gatherers:
            (<Gatherer>gatherer).write_file()
        self.used = 0
        return 0

    cdef int join(self, Gatherer gatherer, bint borrows) except -1:
        """Have `gatherer.settle` called, and `take_over` before the loan ends if it `borrows`."""
        if not gatherer.is_gathered:
            gatherer.is_gathered = True
            self.gatherers.append(gatherer)
        if borrows and not gatherer.has_borrowed:
            gatherer.has_borrowed = True
            self.borrowers.append(gatherer)
        return 0

    cdef int loan_ends(self) except -1:
        cdef Gatherer gatherer
        if self.borrowers:
            for gatherer in self.borrowers:
                gatherer.has_borrowed = False
                gatherer.take_over()
            self.borrowers = []
        return 0

    cpdef settle(self):
        """Have everybody write, and those whom that makes gather more, until nothing is left."""
        cdef Py_ssize_t i = 0
        cdef Gatherer gatherer
        if self.gatherers:
            while i < len(self.gatherers):
                gatherer = self.gatherers[i]
                i += 1
                gatherer.is_gathered = False
                gatherer.settle()
            self.gatherers.clear()
            self.used = 0

    def turn_ends(self):
        self.settle()
        self.turn += 1
