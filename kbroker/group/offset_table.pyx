"""The offsets of one `__consumer_offsets` partition: committed, pending in transactions, and on their way to the
disk."""
from libc.stdint cimport INT64_MAX, int64_t

from kbroker.clock cimport Clock
from kbroker.group.memory cimport GroupMemory
from kbroker.group.records cimport CommittedOffset, OffsetKey

cdef extern from "Python.h":
    int PyUnicode_KIND(object text)         # bytes of a character
    Py_ssize_t PyUnicode_GET_LENGTH(object text)

cdef enum:
    OFFSET_SIZE = 200
    TEXT_SIZE = 80

OFFSET_BYTES = OFFSET_SIZE
"""The memory of an offset with empty metadata, as measured on CPython 3.11 with 64 bits."""


cdef class OffsetTable:
    """The offsets that a replay of the partition's rows and markers gives.

    What is in flight is no part of that state: it remembers appends that are not durable, so that what is decided
    meanwhile (deletion, expiry, stability) takes them into account.
    """

    def __init__(self, GroupMemory memory=None):
        """Count the offsets in `memory`; a command that only reads has none."""
        self._memory = GroupMemory(INT64_MAX, Clock()) if memory is None else memory
        self._committed = {}
        self._pending = {}
        self._pending_counts = {}
        self._in_flight = {}
        self._in_flight_transactional = {}

    # Questions

    cpdef dict committed(self, group_id):
        """By key; not to be changed."""
        cdef dict found = self._committed.get(group_id)
        return {} if found is None else found

    def pending(self, int64_t producer_id):
        return self._pending.get(producer_id, {})

    def producer_ids(self):
        """Producers that have offsets pending."""
        return list(self._pending)

    cpdef bint is_stable(self, OffsetKey key) except -1:
        """False while a transaction holds an offset of the key (KIP-447). One that is not durable yet counts: its
        producer may have passed the check of its generation already."""
        return not (count_of(self._pending_counts, key) or count_of(self._in_flight_transactional, key))

    def is_in_flight(self, OffsetKey key):
        return count_of(self._in_flight, key) > 0

    def has_open_work(self, group_id):
        """Are offsets of the group in a transaction, or on their way to the disk?"""
        return group_id in self._pending_counts or group_id in self._in_flight

    def group_ids(self):
        return self._committed.keys() | self._pending_counts.keys() | self._in_flight.keys()

    def has_any(self, group_id):
        """Is an offset of the group committed, pending or on its way to the disk?"""
        return group_id in self._committed or self.has_open_work(group_id)

    cpdef bint knows(self, OffsetKey key) except -1:
        """Is an offset of the key committed, pending or on its way to the disk?"""
        return key in self.committed(key.group_id) or count_of(self._pending_counts, key) or count_of(
            self._in_flight, key)

    def tables(self):
        """Yield each table of offsets, committed ones and then pending ones, as a list of its items."""
        for parts in (self._committed, self._pending):
            for name in list(parts):
                if name in parts:
                    yield list((<dict>parts[name]).items())

    def latest(self, OffsetKey key not None):
        """Return the committed or pending offset of the key that is last in the log; None if there is none."""
        cdef CommittedOffset latest = self.committed(key.group_id).get(key)
        cdef CommittedOffset found
        cdef dict pending
        if count_of(self._pending_counts, key):
            for pending in self._pending.values():
                found = pending.get(key)
                if found is not None and (latest is None or found.log_offset > latest.log_offset):
                    latest = found
        return latest

    def keys_to_forget(self, group_id):
        """All that a tombstone must be written for when the group goes: also what is pending or not durable yet."""
        found = dict.fromkeys(self.committed(group_id))
        found.update(dict.fromkeys(self._pending_counts.get(group_id, ())))
        found.update(dict.fromkeys(self._in_flight.get(group_id, ())))
        return list(found)

    # On the way to the disk. Tombstones, None instead of a CommittedOffset, are not counted.

    cpdef note_appended(self, list keys, list offsets, bint transactional):
        cdef Py_ssize_t i
        for i in range(len(keys)):
            if offsets[i] is not None:
                increment(self._in_flight, keys[i])
                if transactional:
                    increment(self._in_flight_transactional, keys[i])

    cpdef note_refused(self, list keys, list offsets, bint transactional):
        """The append failed."""
        cdef Py_ssize_t i
        for i in range(len(keys)):
            if offsets[i] is not None:
                self.note_landed(keys[i], transactional)

    cpdef note_landed(self, OffsetKey key, bint transactional):
        """The row was replayed, or its append failed. Nothing happens for rows that were not noted: those of a load."""
        decrement(self._in_flight, key)
        if transactional:
            decrement(self._in_flight_transactional, key)

    # Replay

    cpdef commit(self, OffsetKey key, CommittedOffset committed):
        self.keep(part_of(self._committed, key.group_id), key, committed)

    cpdef add_pending(self, int64_t producer_id, OffsetKey key, CommittedOffset committed):
        cdef dict offsets = part_of(self._pending, producer_id)
        if key not in offsets:
            increment(self._pending_counts, key)
        self.keep(offsets, key, committed)

    cdef int keep(self, dict offsets, OffsetKey key, CommittedOffset committed) except -1:
        """Set an offset, and count its memory."""
        cdef CommittedOffset before = offsets.setdefault(key, committed)
        if before is committed:
            self._memory.hold(OFFSET_SIZE + text_bytes(committed.metadata))
            return 0
        offsets[key] = committed
        self._memory.hold(text_bytes(committed.metadata) - text_bytes(before.metadata))
        return 0

    cdef int drop(self, dict offsets, OffsetKey key) except -1:
        """Remove an offset if it is there, and count its memory out."""
        cdef CommittedOffset before = offsets.pop(key, None)
        if before is None:
            return False
        self._memory.hold(-OFFSET_SIZE - text_bytes(before.metadata))
        return True

    def clear(self):
        """Forget everything: the partition is gone."""
        for parts in (self._committed, self._pending):
            for offsets in parts.values():
                for key in list(offsets):
                    self.drop(offsets, key)
        for parts in (self._committed, self._pending, self._pending_counts, self._in_flight,
                      self._in_flight_transactional):
            parts.clear()

    cpdef forget(self, OffsetKey key):
        """A tombstone: the committed offset goes, and what transactions hold for the key."""
        cdef dict offsets = self.committed(key.group_id)
        self.drop(offsets, key)
        if not offsets:
            self._committed.pop(key.group_id, None)
        if not count_of(self._pending_counts, key):
            return
        for producer_id, pending in list(self._pending.items()):
            if self.drop(pending, key):
                decrement(self._pending_counts, key)
            if not pending:
                del self._pending[producer_id]

    cpdef end_transaction(self, int64_t producer_id, bint commit):
        """A marker. A pending offset counts only where no later row has committed the key: log order decides."""
        cdef OffsetKey key
        cdef CommittedOffset pending, current
        cdef dict offsets = self._pending.pop(producer_id, None)
        if offsets is None:
            return
        for key, pending in offsets.items():
            self._memory.hold(-OFFSET_SIZE - text_bytes(pending.metadata))
            decrement(self._pending_counts, key)
            current = self.committed(key.group_id).get(key)
            if commit and (current is None or pending.log_offset > current.log_offset):
                self.commit(key, pending)


cdef Py_ssize_t text_bytes(str text) noexcept:
    """Return the memory of a string; the empty one is shared."""
    cdef Py_ssize_t length = PyUnicode_GET_LENGTH(text)
    return TEXT_SIZE + length * PyUnicode_KIND(text) if length else 0


cdef dict part_of(dict parts, name):
    cdef dict part = parts.get(name)
    if part is None:
        part = parts[name] = {}
    return part


# Counts: by group, how often something is so of a key. What is never so has no entry.


cdef int count_of(dict counts, OffsetKey key) except -1:
    cdef dict group = counts.get(key.group_id)
    return 0 if group is None else group.get(key, 0)


cdef int increment(dict counts, OffsetKey key) except -1:
    cdef dict group = part_of(counts, key.group_id)
    group[key] = <int>group.get(key, 0) + 1
    return 0


cdef int decrement(dict counts, OffsetKey key) except -1:
    cdef dict group = counts.get(key.group_id)
    cdef int count = 0 if group is None else group.get(key, 0)
    if count > 1:
        group[key] = count - 1
    elif count == 1:
        del group[key]
        if not group:
            del counts[key.group_id]
    return 0
