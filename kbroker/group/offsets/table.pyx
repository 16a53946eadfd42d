"""The offsets of one `__consumer_offsets` partition: committed, pending in transactions, and on their way to the
disk."""
from libc.stdint cimport INT64_MAX, int64_t

from kbroker.base.clock cimport Clock
from kbroker.base.object_memory cimport memory_of
from kbroker.group.memory cimport GroupMemory
from kbroker.group.records cimport CommittedOffset, OffsetKey

cdef enum:
    OFFSET_SIZE = 200
    OFFSETS_A_PART = 100        # how many offsets of an ended transaction are applied at once

OFFSET_BYTES = OFFSET_SIZE
"""The memory of an offset with empty metadata, as measured on CPython 3.11 with 64 bits."""


cdef class TransactionOffsets:
    """The offsets of a producer's transaction by key, without those that are applied."""


cdef class OffsetTable:
    """The offsets that a replay of the partition's rows and markers gives.

    A marker ends a transaction in constant time, however many offsets it has: readers look for an offset in the ended
    transactions that hold its key, too, while `apply` moves them in parts to those that are committed.

    What is in flight is no part of that state: it remembers appends that are not durable, so that what is decided
    meanwhile (deletion, expiry, stability) takes them into account.
    """

    def __init__(self, GroupMemory memory=None):
        """Count the offsets in `memory`; a command that only reads has none."""
        self._memory = GroupMemory(INT64_MAX, Clock()) if memory is None else memory
        self._committed = {}
        self._open = {}
        self._ended = {}
        self._holders = {}
        self._in_flight = {}
        self._in_flight_transactional = {}

    # Questions

    cpdef CommittedOffset committed(self, OffsetKey key):
        """Return the committed offset of the key, or None."""
        return self.newest(key, False)

    def latest(self, OffsetKey key not None):
        """Return the committed or pending offset of the key that is last in the log; None if there is none."""
        return self.newest(key, True)

    cdef CommittedOffset newest(self, OffsetKey key, bint with_open):
        """Return the last offset of the key in the log; of an open transaction only `with_open`. None without one."""
        cdef dict group = self._committed.get(key.group_id)
        cdef CommittedOffset newest = None if group is None else group.get(key)
        cdef CommittedOffset found
        cdef TransactionOffsets transaction
        for transaction in self.holders(key):
            if transaction.outcome == COMMITTED or with_open and transaction.outcome == OPEN:
                found = transaction.offsets[key]
                if newest is None or found.log_offset > newest.log_offset:
                    newest = found
        return newest

    cdef object holders(self, OffsetKey key):
        """Return the transactions that hold an offset of the key, ended ones included. The caller changes nothing."""
        cdef dict group = self._holders.get(key.group_id)
        held = None if group is None else group.get(key)
        if held is None:
            return ()
        return held if type(held) is list else (held,)

    def committed_keys(self, group_id):
        """Return the keys of all offsets that the group has committed."""
        cdef dict committed = self._committed.get(group_id, {})
        cdef list keys = list(committed)
        if self._ended:
            keys += [key for key in self._holders.get(group_id, ())
                     if key not in committed and self.committed(key) is not None]
        return keys

    cpdef bint is_stable(self, OffsetKey key) except -1:
        """False while a transaction holds an offset of the key (KIP-447). One that is not durable yet counts: its
        producer may have passed the check of its generation already."""
        cdef TransactionOffsets transaction
        for transaction in self.holders(key):
            if transaction.outcome == OPEN:
                return False
        return not count_of(self._in_flight_transactional, key)

    def is_in_flight(self, OffsetKey key):
        return count_of(self._in_flight, key) > 0

    def has_open_work(self, group_id):
        """Are offsets of the group in a transaction, or on their way to the disk?"""
        return group_id in self._holders or group_id in self._in_flight

    def group_ids(self):
        return self._committed.keys() | self._holders.keys() | self._in_flight.keys()

    def has_any(self, group_id):
        """Is an offset of the group committed, pending or on its way to the disk?"""
        return group_id in self._committed or self.has_open_work(group_id)

    cpdef bint knows(self, OffsetKey key) except -1:
        """Is an offset of the key committed, pending or on its way to the disk?"""
        cdef dict group = self._committed.get(key.group_id)
        return group is not None and key in group or bool(self.holders(key)) or count_of(self._in_flight, key) > 0

    def tables(self):
        """Yield each table of offsets as a list of its items: pending ones, then committed ones.

        A caller that pauses in between misses none: offsets move in this direction.
        """
        cdef TransactionOffsets transaction
        for producer_id in list(self._open):
            transaction = self._open.get(producer_id)
            if transaction is not None:
                yield list(transaction.offsets.items())
        for transaction in list(self._ended):
            yield list(transaction.offsets.items())
        for group_id in list(self._committed):
            if group_id in self._committed:
                yield list((<dict>self._committed[group_id]).items())

    def keys_to_forget(self, group_id):
        """All that a tombstone must be written for when the group goes: also what is pending or not durable yet."""
        found = dict.fromkeys(self._committed.get(group_id, ()))
        found.update(dict.fromkeys(self._holders.get(group_id, ())))
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
        cdef TransactionOffsets transaction = self._open.get(producer_id)
        cdef dict group
        if transaction is None:
            transaction = new_transaction()
            self._open[producer_id] = transaction
        if key not in transaction.offsets:
            group = part_of(self._holders, key.group_id)
            held = group.get(key)
            if type(held) is list:
                (<list>held).append(transaction)
            else:
                group[key] = transaction if held is None else [held, transaction]
        self.keep(transaction.offsets, key, committed)

    cdef int keep(self, dict offsets, OffsetKey key, CommittedOffset committed) except -1:
        """Set an offset, and count its memory."""
        cdef CommittedOffset before = offsets.setdefault(key, committed)
        cdef OffsetKey first
        if before is committed:
            first = next(iter(offsets))
            if first.group_id is not key.group_id and first.group_id == key.group_id:
                key.group_id = first.group_id       # each row that a load reads has a string of its own
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
        cdef TransactionOffsets transaction
        for offsets in (*self._committed.values(), *[transaction.offsets for transaction in
                                                     (*self._open.values(), *self._ended)]):
            for key in list(offsets):
                self.drop(offsets, key)
        for parts in (self._committed, self._open, self._ended, self._holders, self._in_flight,
                      self._in_flight_transactional):
            parts.clear()

    cpdef forget(self, OffsetKey key):
        """A tombstone: the committed offset goes, and what transactions hold for the key."""
        cdef TransactionOffsets transaction
        cdef dict offsets = self._committed.get(key.group_id)
        if offsets is not None:
            self.drop(offsets, key)
            if not offsets:
                del self._committed[key.group_id]
        for transaction in list(self.holders(key)):
            self.drop(transaction.offsets, key)
            self.release(key, transaction)

    cdef int release(self, OffsetKey key, TransactionOffsets transaction) except -1:
        """Adopt that the transaction has no offset of the key any more."""
        cdef dict group = self._holders[key.group_id]
        cdef Py_ssize_t i = 0
        held = group[key]
        if type(held) is list:
            while (<list>held)[i] is not transaction:
                i += 1
            del (<list>held)[i]
            if len(<list>held) == 1:
                group[key] = (<list>held)[0]
            return 0
        del group[key]
        if not group:
            del self._holders[key.group_id]
        return 0

    cpdef end_transaction(self, int64_t producer_id, bint commit):
        """Adopt a marker: all offsets of the transaction count from here on, or none.

        Few offsets are applied at once. Else return the steps that apply them, for the caller to run to their end, at
        once or in slices.
        """
        cdef TransactionOffsets transaction = self._open.pop(producer_id, None)
        if transaction is None:
            return None
        transaction.outcome = COMMITTED if commit else ABORTED
        if len(transaction.offsets) <= OFFSETS_A_PART:
            self.apply_part(transaction)
            return None
        self._ended[transaction] = None
        return self.apply(transaction)

    def apply(self, TransactionOffsets transaction):
        """Apply the offsets of an ended transaction in parts: a generator."""
        while transaction.offsets:
            self.apply_part(transaction)
            if transaction.offsets:
                yield
        self._ended.pop(transaction, None)

    cdef int apply_part(self, TransactionOffsets transaction) except -1:
        """Move some offsets of an ended transaction to the committed ones, or drop them.

        An offset counts only where no later row has committed the key: log order decides.
        """
        cdef OffsetKey key
        cdef CommittedOffset pending, current
        cdef dict group
        cdef Py_ssize_t number
        for number in range(min(len(transaction.offsets), <Py_ssize_t>OFFSETS_A_PART)):
            key, pending = transaction.offsets.popitem()
            self._memory.hold(-OFFSET_SIZE - text_bytes(pending.metadata))
            self.release(key, transaction)
            if transaction.outcome == COMMITTED:
                group = part_of(self._committed, key.group_id)
                current = group.get(key)
                if current is None or pending.log_offset > current.log_offset:
                    self.keep(group, key, pending)
        return 0


cdef TransactionOffsets new_transaction():
    cdef TransactionOffsets transaction = TransactionOffsets.__new__(TransactionOffsets)
    transaction.offsets = {}
    return transaction


cdef Py_ssize_t text_bytes(str text) except -1:
    """Return the memory of a string; the empty one is shared."""
    return memory_of(text) if text else 0


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
