"""The offsets of one `__consumer_offsets` partition: committed, pending in transactions, and on their way to the
disk."""
from libc.stdint cimport int64_t

from kbroker.group.records cimport CommittedOffset, OffsetKey


cdef class OffsetTable:
    """The offsets that a replay of the partition's rows and markers gives.

    What is in flight is no part of that state: it remembers appends that are not durable, so that what is decided
    meanwhile (deletion, expiry, stability) takes them into account.
    """

    def __init__(self):
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

    def keys_to_forget(self, group_id):
        """All that a tombstone must be written for when the group goes: also what is pending or not durable yet."""
        found = dict.fromkeys(self.committed(group_id))
        found.update(dict.fromkeys(self._pending_counts.get(group_id, ())))
        found.update(dict.fromkeys(self._in_flight.get(group_id, ())))
        return list(found)

    def all_keys(self):
        return [key for group_id in self.group_ids() for key in self.keys_to_forget(group_id)]

    # On the way to the disk

    cpdef note_appended(self, keys, bint transactional):
        cdef OffsetKey key
        for key in keys:
            increment(self._in_flight, key)
            if transactional:
                increment(self._in_flight_transactional, key)

    cpdef note_landed(self, OffsetKey key, bint transactional):
        """The row was replayed, or its append failed. Nothing happens for rows that were not noted: those of a load."""
        decrement(self._in_flight, key)
        if transactional:
            decrement(self._in_flight_transactional, key)

    # Replay

    cpdef commit(self, OffsetKey key, CommittedOffset committed):
        part_of(self._committed, key.group_id)[key] = committed

    cpdef add_pending(self, int64_t producer_id, OffsetKey key, CommittedOffset committed):
        cdef dict offsets = part_of(self._pending, producer_id)
        if key not in offsets:
            increment(self._pending_counts, key)
        offsets[key] = committed

    cpdef forget(self, OffsetKey key):
        """A tombstone: the committed offset goes, and what transactions hold for the key."""
        cdef dict offsets = self.committed(key.group_id)
        offsets.pop(key, None)
        if not offsets:
            self._committed.pop(key.group_id, None)
        if not count_of(self._pending_counts, key):
            return
        for producer_id, pending in list(self._pending.items()):
            if pending.pop(key, None) is not None:
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
            decrement(self._pending_counts, key)
            current = self.committed(key.group_id).get(key)
            if commit and (current is None or pending.log_offset > current.log_offset):
                self.commit(key, pending)


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
