"""The table of the offsets in one partition of `__consumer_offsets`: committed offsets, offsets that are pending in
transactions, and offsets in flight."""
from libc.stdint cimport INT64_MAX, int64_t

from kbroker.base.clock cimport Clock
from kbroker.base.object_memory cimport memory_of
from kbroker.group.memory cimport GroupMemory
from kbroker.group.records cimport CommittedOffset, OffsetKey

cdef enum:
    OFFSET_SIZE = 200
    OFFSETS_A_PART = 100        # the number of offsets of an ended transaction that are moved in one part

OFFSET_BYTES = OFFSET_SIZE
"""The memory in bytes of an offset with empty metadata, measured on CPython 3.11 with 64 bits."""


cdef class TransactionOffsets:
    """The offsets of a transaction, by key. After the transaction's end, `apply` removes offsets from it that it has
    moved."""


cdef class OffsetTable:
    """The offsets that result from a replay of the partition's rows and markers.

    A marker ends a transaction in constant time, however many offsets the transaction has. `apply` then moves its
    offsets to the committed offsets, in parts. Until an offset is moved, the table finds it in the ended transaction.

    Offsets in flight are not part of the replayed state, because their rows are not durable yet. The table only counts
    them for each key. Deletion, expiry and the check for stable offsets need these counts.
    """

    def __init__(self, GroupMemory memory=None):
        """Make an empty table. The memory of its offsets is added to `memory`, if it is not None. A command that only
        reads passes None."""
        self._memory = GroupMemory(INT64_MAX, Clock()) if memory is None else memory
        self._committed = {}
        self._open = {}
        self._ended = {}
        self._holders = {}
        self._in_flight = {}
        self._in_flight_transactional = {}

    # Questions

    cpdef CommittedOffset committed(self, OffsetKey key):
        """Return the committed offset of the key; None if there is none."""
        return self.newest(key, False)

    def latest(self, OffsetKey key not None):
        """Return the key's offset with the last row in the log, whether it is committed or pending. Return None if the
        key has no offset."""
        return self.newest(key, True)

    cdef CommittedOffset newest(self, OffsetKey key, bint with_open):
        """Return the key's offset with the last row in the log; None if the key has no offset. Ignore offsets of open
        transactions unless `with_open` is true."""
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
        """Return the transactions that hold an offset of the key. They include ended transactions whose offset is not
        moved yet. The caller must not change the result."""
        cdef dict group = self._holders.get(key.group_id)
        held = None if group is None else group.get(key)
        if held is None:
            return ()
        return held if type(held) is list else (held,)

    def committed_keys(self, group_id):
        """Return the keys of all committed offsets of the group."""
        cdef dict committed = self._committed.get(group_id, {})
        cdef list keys = list(committed)
        if self._ended:
            keys += [key for key in self._holders.get(group_id, ())
                     if key not in committed and self.committed(key) is not None]
        return keys

    cpdef bint is_stable(self, OffsetKey key) except -1:
        """Return False while an open transaction holds an offset of the key, else True (KIP-447).

        Also return False while a transactional offset of the key is in flight. Its commit has passed the check of the
        generation, and is about to become part of a transaction.
        """
        cdef TransactionOffsets transaction
        for transaction in self.holders(key):
            if transaction.outcome == OPEN:
                return False
        return not count_of(self._in_flight_transactional, key)

    def is_in_flight(self, OffsetKey key):
        return count_of(self._in_flight, key) > 0

    def has_open_work(self, group_id):
        """Return whether the group has an offset in a transaction, or an offset in flight."""
        return group_id in self._holders or group_id in self._in_flight

    def group_ids(self):
        return self._committed.keys() | self._holders.keys() | self._in_flight.keys()

    def has_any(self, group_id):
        """Return whether the group has an offset that is committed, pending in a transaction, or in flight."""
        return group_id in self._committed or self.has_open_work(group_id)

    cpdef bint knows(self, OffsetKey key) except -1:
        """Return whether the key has an offset that is committed, pending in a transaction, or in flight."""
        cdef dict group = self._committed.get(key.group_id)
        return group is not None and key in group or bool(self.holders(key)) or count_of(self._in_flight, key) > 0

    def tables(self):
        """Yield one list of (key, offset) for each transaction, then one for each group's committed offsets.

        The caller may pause between two lists. It misses no offset even if transactions end in the meantime, because
        offsets only move from transactions to the committed offsets.
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
        """Return the keys that need a tombstone when the group is deleted: the keys of all its offsets, whether these
        are committed, pending or in flight."""
        found = dict.fromkeys(self._committed.get(group_id, ()))
        found.update(dict.fromkeys(self._holders.get(group_id, ())))
        found.update(dict.fromkeys(self._in_flight.get(group_id, ())))
        return list(found)

    # Counts of offsets in flight. A tombstone, which has None instead of a CommittedOffset, is not counted.

    cpdef note_appended(self, list keys, list offsets, bint transactional):
        """Count the offsets as in flight, because they are about to be appended."""
        cdef Py_ssize_t i
        for i in range(len(keys)):
            if offsets[i] is not None:
                increment(self._in_flight, keys[i])
                if transactional:
                    increment(self._in_flight_transactional, keys[i])

    cpdef note_refused(self, list keys, list offsets, bint transactional):
        """Count the offsets as no longer in flight, because their append has failed."""
        cdef Py_ssize_t i
        for i in range(len(keys)):
            if offsets[i] is not None:
                self.note_landed(keys[i], transactional)

    cpdef note_landed(self, OffsetKey key, bint transactional):
        """Count an offset as no longer in flight, because it is durable. Do nothing for an offset that a load has read,
        because it was never counted."""
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
        """Add an offset to `offsets`, or replace the key's offset there. Count the memory."""
        cdef CommittedOffset before = offsets.setdefault(key, committed)
        cdef OffsetKey first
        if before is committed:
            first = next(iter(offsets))
            if first.group_id is not key.group_id and first.group_id == key.group_id:
                key.group_id = first.group_id       # a load makes a new string for each row
            self._memory.hold(OFFSET_SIZE + text_bytes(committed.metadata))
            return 0
        offsets[key] = committed
        self._memory.hold(text_bytes(committed.metadata) - text_bytes(before.metadata))
        return 0

    cdef int drop(self, dict offsets, OffsetKey key) except -1:
        """Remove the key's offset from `offsets`, and stop counting its memory. Return False if there was none."""
        cdef CommittedOffset before = offsets.pop(key, None)
        if before is None:
            return False
        self._memory.hold(-OFFSET_SIZE - text_bytes(before.metadata))
        return True

    def clear(self):
        """Remove all offsets, because the partition of `__consumer_offsets` is closed or deleted."""
        cdef TransactionOffsets transaction
        for offsets in (*self._committed.values(), *[transaction.offsets for transaction in
                                                     (*self._open.values(), *self._ended)]):
            for key in list(offsets):
                self.drop(offsets, key)
        for parts in (self._committed, self._open, self._ended, self._holders, self._in_flight,
                      self._in_flight_transactional):
            parts.clear()

    cpdef forget(self, OffsetKey key):
        """Apply a tombstone: remove the committed offset of the key, and the offsets that transactions hold for it."""
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
        """Remove the transaction from the transactions that hold an offset of the key."""
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
        """Apply the marker that ends a producer's transaction. If `commit` is true, the transaction's offsets are
        committed immediately; if it is false, they are dropped immediately.

        If there are few offsets, also move them to the table of committed offsets, and return None. Otherwise, return a
        generator that moves them. The caller must run it to its end.
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
        """Move the offsets of an ended transaction to the committed offsets. This is a generator, which works in
        parts."""
        while transaction.offsets:
            self.apply_part(transaction)
            if transaction.offsets:
                yield
        self._ended.pop(transaction, None)

    cdef int apply_part(self, TransactionOffsets transaction) except -1:
        """Remove some offsets from an ended transaction. If the transaction was committed, add them to the committed
        offsets.

        An offset is dropped if a row after it in the log has already committed an offset of the same key.
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
    """Return the memory of a string in bytes. It is 0 for the empty string, because all empty strings are one
    object."""
    return memory_of(text) if text else 0


cdef dict part_of(dict parts, name):
    cdef dict part = parts.get(name)
    if part is None:
        part = parts[name] = {}
    return part


# Counts of keys: {group id: {key: count}}. A key whose count is 0 has no entry.


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
