"""The batches of a share state, and the functions that merge and encode them. A batch is a range of records with the
same delivery state and delivery count.

A batch is a tuple: first offset, last offset, delivery state, delivery count. The batches of a share state are sorted
and disjoint. Adjacent batches differ in delivery state or count. This module is compiled because a request may change
thousands of batches.

In `__share_group_state`, the value of a snapshot row or an update row ends with these fields, as in Kafka's schemas
ShareSnapshotValue and ShareUpdateValue:

* the number of batches plus 1 (unsigned varint)
* for each batch: first offset (int64), last offset (int64), delivery state (int8), delivery count (int16), no tagged
  fields (the byte 0)
* tagged field 0: the delivery complete count (int32), which is omitted if it is -1
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t

from kbroker.wire.bytes cimport put_unsigned_varint

cdef enum:
    FIRST = 0               # the index of the first offset in a batch tuple
    LAST = 1
    BATCH_BYTES = 20        # the size of an encoded batch in a row
    MOST_COUNT_BYTES = 10
    TAG_BYTES = 7


def merge_batches(tuple old not None, new, int64_t start_offset):
    """Return the batches that result when the batches `new`, in any order, are written over `old`, which are sorted and
    disjoint.

    Remove records below `start_offset`. Where batches overlap, keep the batch with the higher delivery count; if the
    counts are equal, keep the batch with the higher delivery state. Join adjacent batches with the same state and
    count.
    """
    cdef Py_ssize_t kept = first_from(old, LAST, start_offset), low, high
    cdef list added = cut_below(in_order(list(new)), start_offset)
    if not added:
        return tuple(cut_below(list(old[kept:]), start_offset))
    # Only old batches that overlap a new batch or are adjacent to one can change. An adjacent batch may be joined with
    # the new batch.
    low = max(kept, first_from(old, LAST, <int64_t>added[0][0] - 1))
    high = max(low, first_from(old, FIRST, <int64_t>added[len(added) - 1][1] + 2))
    return (*cut_below(list(old[kept:low]), start_offset),
            *overlaid(cut_below(list(old[low:high]), start_offset), added), *old[high:])


cdef list in_order(list batches):
    """Return a list of the same records in sorted and disjoint batches. The batches of the argument may be unsorted and
    may overlap."""
    cdef Py_ssize_t i, half, count = len(batches)
    cdef int64_t first, last, end = -1
    cdef bint is_sorted = True
    for i in range(count):
        first, last, _, _ = batches[i]
        if first <= end:
            is_sorted = False
            break
        end = last
    if is_sorted:
        return overlaid(batches, [])
    half = count // 2
    return overlaid(in_order(batches[:half]), in_order(batches[half:]))


cdef Py_ssize_t first_from(tuple batches, Py_ssize_t end, int64_t offset) except -1:
    """Return the index of the first batch whose first offset (if `end` is FIRST) or last offset (if `end` is LAST) is
    at least `offset`."""
    cdef Py_ssize_t low = 0, high = len(batches), middle
    while low < high:
        middle = (low + high) >> 1
        if <int64_t>(<tuple>batches[middle])[end] < offset:
            low = middle + 1
        else:
            high = middle
    return low


cdef list cut_below(list batches, int64_t start_offset):
    """Return the sorted batches without the records below `start_offset`."""
    cdef Py_ssize_t i
    cdef int64_t first, last
    for i in range(len(batches)):
        first, last, state, count = batches[i]
        if last >= start_offset:
            found = batches[i:]
            if first < start_offset:
                found[0] = (start_offset, last, state, count)
            return found
    return []


cdef struct Batch:
    int64_t first
    int64_t last
    int32_t state
    int32_t count
    PyObject *whole         # the tuple of a batch that is not cut, else NULL; a borrowed reference


cdef bint read_batch(list batches, Py_ssize_t i, Batch *batch) except -1:
    """Copy the batch at index `i` to `batch`, and return True. Return False if the list is shorter."""
    if i >= len(batches):
        return False
    whole = batches[i]
    batch.first, batch.last, batch.state, batch.count = whole
    batch.whole = <PyObject *>whole
    return True


cdef int emit(list found, Batch *batch, int64_t last) except -1:
    """Append the records of a batch up to offset `last` to the list. Join them with the last batch of the list if the
    two are adjacent and have the same state and count.
    """
    cdef Py_ssize_t count = len(found)
    if count:
        previous = <tuple>found[count - 1]
        if (<int64_t>previous[1] + 1 == batch.first and <int32_t>previous[2] == batch.state
                and <int32_t>previous[3] == batch.count):
            found[count - 1] = (previous[0], last, previous[2], previous[3])
            return 0
    if batch.whole != NULL and last == batch.last:
        found.append(<object>batch.whole)
    else:
        found.append((batch.first, last, batch.state, batch.count))
    return 0


cdef int cut(Batch *batch, int64_t first) noexcept:
    batch.first = first
    batch.whole = NULL
    return 0


cdef list overlaid(list old, list new):
    """Merge two lists of sorted, disjoint batches. Where two batches overlap, keep the one with the higher delivery
    count; if the counts are equal, keep the one with the higher delivery state."""
    cdef Batch a, b
    cdef Batch *winner
    cdef Py_ssize_t i = 0, j = 0
    cdef bint has_a = read_batch(old, 0, &a), has_b = read_batch(new, 0, &b)
    cdef list found = []
    cdef int64_t last
    while has_a or has_b:
        if has_a and (not has_b or a.last < b.first):
            emit(found, &a, a.last)
            i += 1
            has_a = read_batch(old, i, &a)
        elif not has_a or b.last < a.first:
            emit(found, &b, b.last)
            j += 1
            has_b = read_batch(new, j, &b)
        elif a.first < b.first:
            emit(found, &a, b.first - 1)
            cut(&a, b.first)
        elif b.first < a.first:
            emit(found, &b, a.first - 1)
            cut(&b, a.first)
        else:
            last = min(a.last, b.last)
            winner = &a if (a.count, a.state) > (b.count, b.state) else &b
            emit(found, winner, last)
            if a.last == last:
                i += 1
                has_a = read_batch(old, i, &a)
            else:
                cut(&a, last + 1)
            if b.last == last:
                j += 1
                has_b = read_batch(new, j, &b)
            else:
                cut(&b, last + 1)
    return found


def encode_batches(batches not None, int32_t delivery_complete_count):
    """Encode the end of a row's value: the batches and the delivery complete count."""
    cdef Py_ssize_t count = len(batches)
    cdef int64_t first, last
    cdef int state, delivery_count
    room = PyBytes_FromStringAndSize(NULL, MOST_COUNT_BYTES + BATCH_BYTES * count + TAG_BYTES)
    cdef uint8_t *begin = <uint8_t *>PyBytes_AS_STRING(room)
    cdef uint8_t *at = put_unsigned_varint(begin, count + 1)
    for first, last, state, delivery_count in batches:
        at = put_number(at, first, 8)
        at = put_number(at, last, 8)
        at = put_number(at, state, 1)
        at = put_number(at, delivery_count, 2)
        at = put_number(at, 0, 1)
    if delivery_complete_count == -1:
        at = put_number(at, 0, 1)
    else:
        at = put_number(at, 0x010004, 3)        # one tagged field: its number and its size
        at = put_number(at, delivery_complete_count, 4)
    return room[:at - begin]


cdef uint8_t *put_number(uint8_t *at, int64_t value, int size) noexcept:
    """Write the lowest `size` bytes of a number in big-endian order. Return the position after these bytes."""
    cdef int i
    for i in range(size):
        at[i] = <uint8_t>(value >> (8 * (size - 1 - i)))
    return at + size
