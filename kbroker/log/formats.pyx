"""The layouts of the files that belong to a `.log` file, declared once for C and for Python. All integers are
big-endian.

`.index`       entries, keys grow: the last offset of a batch - base offset; position of that batch in the .log
`.timeindex`   entries, keys grow: greatest timestamp in the segment so far; last offset of its batch - base offset
`.txnindex`    entries: version, producer id, first offset, last offset, last stable offset behind the marker
`.snapshot`    a SnapshotHead and its `count` of SnapshotEntry; both are in formats.pxd
"""
import sys
from array import array
from struct import Struct

from libc.stdint cimport int32_t, uint8_t, uint32_t
from cpython.bytes cimport PyBytes_AS_STRING

from kbroker.wire.crc32c cimport crc32c_update

OFFSET_ENTRY = Struct('>ii')
TIME_ENTRY = Struct('>qi')
TRANSACTION_ENTRY = Struct('>hqqqq')
TRANSACTION_ENTRY_VERSION = 0
cdef SnapshotHead _head
SNAPSHOT_HEAD_BYTES = sizeof(SnapshotHead)
SNAPSHOT_CRC_FROM = <uint8_t *>&_head.count - <uint8_t *>&_head
"""The position of the first byte that the CRC of a snapshot covers."""
SNAPSHOT_ENTRY_BYTES = sizeof(SnapshotEntry)


def whole_entries(layout, data):
    """Yield the fields of each entry of an index. Ignore an incomplete entry at the end of `data`."""
    return layout.iter_unpack(data[:len(data) - len(data) % layout.size])


def offset_columns(data):
    """Return the keys and the values of an `.index`, as two arrays. `data` must consist of whole entries."""
    numbers = array('i', data)
    if sys.byteorder == 'little':
        numbers.byteswap()
    return numbers[::2], numbers[1::2]


cdef uint32_t write_head(SnapshotHead *head, int32_t count) noexcept nogil:
    """Write the head of a snapshot of `count` producers, and return the CRC of `count`.

    The caller adds the entries to the CRC, then calls `seal_head`.
    """
    head.version, head.crc, head.count = SNAPSHOT_VERSION, 0, count
    swap_head(head)
    return crc32c_update(0, <const uint8_t *>&head.count, sizeof(head.count))


cdef void seal_head(SnapshotHead *head, uint32_t crc) noexcept nogil:
    """Write the CRC to the head. `crc` covers the count and all entries."""
    head.crc = <uint32_t>big_endian_int32(<int32_t>crc)


def snapshot_head(bytes data not None):
    """Return {field name: value} of the head at the start of `data`. Raise ValueError if `data` is shorter than a head.
    """
    cdef SnapshotHead head
    if len(data) < <Py_ssize_t>sizeof(SnapshotHead):
        raise ValueError(f'found {len(data)} bytes, expected a head of {sizeof(SnapshotHead)}')
    head = (<const SnapshotHead *>PyBytes_AS_STRING(data))[0]
    swap_head(&head)
    return head


def snapshot_entry(bytes data not None, Py_ssize_t number):
    """Return {field name: value} of entry `number` of a snapshot, counted from 0. Raise IndexError if `data` ends
    before the end of the entry.
    """
    cdef SnapshotEntry entry
    if not 0 <= number < (len(data) - <Py_ssize_t>sizeof(SnapshotHead)) // <Py_ssize_t>sizeof(SnapshotEntry):
        raise IndexError(f'found {len(data)} bytes, expected an entry {number}')
    entry = (<const SnapshotEntry *>(PyBytes_AS_STRING(data) + sizeof(SnapshotHead)))[number]
    swap_entry(&entry)
    return entry
