"""The table of the runs of a share partition. A run is a range of adjacent records with the same state. The runs are
sorted by offset, without gaps between them.

There may be thousands of runs, so they are C structs of 48 bytes in one block of memory. A block that has to grow gets
more places than are needed: an eighth more, plus GROWTH.
"""
cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF, Py_XINCREF
from libc.stdint cimport int64_t
from libc.string cimport memmove

cdef enum:
    GROWTH = 8      # the number of unused places that a table gets


cdef bint is_like(Run *run, Run *other) noexcept:
    return (run.state == other.state and run.count == other.count and run.change == other.change
            and run.next_state == other.next_state and run.deadline_ms == other.deadline_ms
            and run.lock_ended == other.lock_ended and run.size == other.size
            and (run.member_id == other.member_id or is_owned_by(run, owner_of(other))))


cdef bint is_owned_by(Run *run, str member_id) noexcept:
    return run.member_id is not NULL and <str>run.member_id == member_id


cdef str owner_of(Run *run):
    return None if run.member_id is NULL else <str>run.member_id


cdef void set_owner(Run *run, str member_id) noexcept:
    """Set the owner of a run to a member id. None means that no member has acquired the run's records."""
    cdef PyObject *before = run.member_id
    run.member_id = NULL if member_id is None else <PyObject *>member_id
    Py_XINCREF(run.member_id)
    Py_XDECREF(before)


@cython.final
cdef class Runs:
    """A table of runs: `at[0]` to `at[count - 1]`. A pointer to a run is valid only until the table changes.

    For each run with an owner, the table holds one reference to the member id.
    """

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.count):
            Py_XDECREF(self.at[i].member_id)
        PyMem_Free(self.at)

    cdef Py_ssize_t find(self, int64_t offset) noexcept:
        """Return the index of the run that contains `offset`. If `offset` is above the last run, return the number of
        runs."""
        cdef Py_ssize_t low = 0, high = self.count, middle
        while low < high:
            middle = (low + high) >> 1
            if self.at[middle].last < offset:
                low = middle + 1
            else:
                high = middle
        return low

    cdef int append(self, Run run) except -1:
        """Append a run. The table takes over the run's reference to the member id."""
        self.make_room(1)
        self.at[self.count] = run
        self.count += 1
        return 0

    cdef int remove_first(self, Py_ssize_t count) except -1:
        """Remove the first `count` runs."""
        cdef Py_ssize_t i
        for i in range(count):
            set_owner(&self.at[i], None)
        memmove(self.at, self.at + count, (self.count - count) * sizeof(Run))
        return self.truncate(self.count - count)

    cdef Py_ssize_t split_at(self, int64_t offset) except -1:
        """Split the run that contains `offset`, so that a run begins at `offset`. Return the index of the run that
        begins there."""
        cdef Py_ssize_t i = self.find(offset)
        if i == self.count or self.at[i].first >= offset:
            return i
        self.make_room(1)
        memmove(&self.at[i + 1], &self.at[i], (self.count - i) * sizeof(Run))
        self.count += 1
        begin_at(&self.at[i], &self.at[i + 1], offset)
        return i + 1

    cdef int split_along(self, list offsets) except -1:
        """Split runs so that a run begins at each of the sorted offsets. All splits are made in one pass over the
        table, because one run may contain thousands of the offsets."""
        cdef Py_ssize_t source = self.count - 1, target = source + self.count_splits(offsets), i
        cdef int64_t offset
        self.make_room(target - source)
        self.count += target - source
        for i in range(len(offsets) - 1, -1, -1):
            offset = offsets[i]
            while source >= 0 and self.at[source].first >= offset:
                self.at[target] = self.at[source]
                source -= 1
                target -= 1
            if source >= 0 and self.at[source].last >= offset:
                self.at[target] = self.at[source]
                begin_at(&self.at[source], &self.at[target], offset)
                target -= 1
        return 0

    cdef Py_ssize_t count_splits(self, list offsets) except -1:
        """Return the number of splits that `split_along` has to make for these offsets."""
        cdef Py_ssize_t i = 0, splits = 0
        cdef int64_t offset, previous = -1
        for offset in offsets:
            while i < self.count and self.at[i].last < offset:
                i += 1
            if i < self.count and self.at[i].first < offset and offset != previous:
                splits += 1
            previous = offset
        return splits

    cdef int truncate(self, Py_ssize_t count) except -1:
        """Keep only the first `count` runs. Free memory if more than half of the table's places are then unused."""
        self.count = count
        if self.capacity > 2 * (count + GROWTH):
            self.resize(count + GROWTH)
        return 0

    cdef int make_room(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t needed = self.count + more
        if needed > self.capacity:
            self.resize(needed + needed // 8 + GROWTH)
        return 0

    cdef int resize(self, Py_ssize_t capacity) except -1:
        cdef Run *at = <Run *>PyMem_Realloc(self.at, capacity * sizeof(Run))
        if at is NULL:
            raise MemoryError
        self.at = at
        self.capacity = capacity
        return 0


cdef void begin_at(Run *run, Run *rest, int64_t offset) noexcept:
    """Split a run at `offset`: end the run before `offset`, and let `rest`, a copy of the run, begin at `offset`."""
    run.last = offset - 1
    rest.first = offset
    Py_XINCREF(rest.member_id)
