"""Writes the producer snapshot of a clean stop, at an offset a little below the end of the log.

A snapshot has only one batch of each producer. A producer may have five batches in flight, and sends all five again if
the broker stops before the producer receives the answers. To recognize the repeated batches, the next start must know
all five. Therefore the snapshot's offset is below the last batches of each producer, and the next start replays these
batches from the log. Apache Kafka opens such a directory in the same way.

The producer state at the snapshot's offset is derived from the state at the end of the log. Each producer entry has the
last batches, and `MarkerHistory` has the last markers. A producer is omitted if nothing below the snapshot's offset is
known about it; the replay adds it.
"""
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

from kbroker.log.formats cimport SnapshotEntry, SnapshotHead, seal_head, write_head
from kbroker.log.marker_history cimport MarkerHistory, NotedMarker
from kbroker.log.producer_entry cimport WINDOW_BATCHES, CachedBatch, ProducerEntry, write_snapshot_entry
from kbroker.log.producer_state cimport ProducerStateTable
from kbroker.log.segments cimport Segments
from kbroker.wire.crc32c cimport crc32c_update


cdef enum:
    # A start replays at most as many bytes as this number of batches of the greatest size. A producer has at most five
    # batches in flight.
    REPLAYED_BATCHES = 5
    MOST_REPLAYED_BYTES = 64 * 1024 * 1024


cdef bint write_stop_snapshot(ProducerStateTable table, snapshots, Segments segments, int64_t log_start_offset,
                              int64_t most_batch_bytes) except -1:
    """Write the snapshot of a clean stop, unless it already exists, and remove all later snapshots. Return whether a
    file was changed. Raise OSError.
    """
    cdef int64_t offset = choose_offset(table, snapshots, segments, log_start_offset, most_batch_bytes)
    if offset not in snapshots.offsets:
        snapshots.write(offset, encode_snapshot_at(table, offset))
    elif offset == snapshots.latest:                # no append since the last snapshot
        return False
    snapshots.keep_until(offset, [segment.base_offset for segment in segments])
    return True


cdef int64_t choose_offset(ProducerStateTable table, snapshots, Segments segments, int64_t log_start_offset,
                           int64_t most_batch_bytes) except -1:
    """Return the offset at which a clean stop writes the snapshot. It is in the active segment, because Kafka removes
    snapshots below the active segment.
    """
    cdef int64_t floor = max(log_start_offset + 1, segments.active.base_offset)
    cdef int64_t offset = snapshot_offset(table, floor)
    if offset in snapshots.offsets:
        return offset
    floor = max(floor, segments.active.offset_near(min(REPLAYED_BATCHES * most_batch_bytes,
                                                       <int64_t>MOST_REPLAYED_BYTES)))
    return offset if offset >= floor else snapshot_offset(table, floor)


cpdef int64_t snapshot_offset(ProducerStateTable table, int64_t floor) except -1:
    """Return the lowest first offset of the cached batches that a snapshot at the end of the table would not include.
    Ignore batches below `floor`.

    If the snapshot would include all cached batches, return the end of the table.
    """
    cdef int64_t lowest = table.end_offset, first
    cdef ProducerEntry entry
    cdef const CachedBatch *batch
    cdef int i
    floor = max(floor, table.markers.known_from)
    for entry in table.entries.values():
        for i in range(entry.cached - 1):           # except the oldest: a snapshot includes one batch
            batch = batch_of(entry, i)
            first = batch.last_offset - batch.offset_delta
            if first < floor:
                break
            lowest = min(lowest, first)
    return lowest


cpdef bytes encode_snapshot_at(ProducerStateTable table, int64_t offset):
    """Return the content of a snapshot at `offset`, which must be a result of `snapshot_offset`."""
    cdef dict marked = first_markers(table.markers, offset)
    cdef bytes content = PyBytes_FromStringAndSize(
        NULL, sizeof(SnapshotHead) + sizeof(SnapshotEntry) * (len(table.entries) + len(marked)))
    cdef SnapshotHead *head = <SnapshotHead *>PyBytes_AS_STRING(content)
    cdef SnapshotEntry *first = <SnapshotEntry *>(head + 1)
    cdef SnapshotEntry *at = first
    cdef uint32_t crc
    cdef ProducerEntry entry
    cdef const NotedMarker *marker
    for entry in table.entries.values():
        marker = NULL
        number = marked.pop(entry.producer_id, None)
        if number is not None:
            marker = table.markers.newest(number)
        if encode_entry(entry, marker, offset, at):
            at += 1
    for number in marked.values():                  # of producers that have expired since their marker
        marker = table.markers.newest(number)
        if 0 <= marker.first_offset < offset:
            write_snapshot_entry(at, marker.producer_id, marker.producer_epoch, NULL, -1, marker.coordinator_epoch,
                                 marker.first_offset)
            at += 1
    crc = write_head(head, <int32_t>(at - first))
    seal_head(head, crc32c_update(crc, <const uint8_t *>first, <uint8_t *>at - <uint8_t *>first))
    return content[:<char *>at - <char *>head]


cdef dict first_markers(MarkerHistory markers, int64_t offset):
    """Return {producer id: number of its first marker at or above `offset`}. The newest marker has number 0."""
    cdef Py_ssize_t number = 0
    cdef const NotedMarker *marker = markers.newest(0)
    found = {}
    while marker != NULL and marker.marker_offset >= offset:
        found[marker.producer_id] = number
        number += 1
        marker = markers.newest(number)
    return found


cdef const CachedBatch *batch_of(ProducerEntry entry, int number) noexcept:
    """Return the cached batch that is followed by `number` newer cached batches."""
    cdef const CachedBatch *window = entry.window
    return window + (entry.newest - number + WINDOW_BATCHES) % WINDOW_BATCHES


cdef bint encode_entry(ProducerEntry entry, const NotedMarker *marker, int64_t offset, SnapshotEntry *at) except -1:
    """Write the state that a producer had at `offset` to a snapshot entry. Return False without writing if too little
    of the state is known.

    `marker` is the producer's first marker at or above `offset`, NULL if there is none.

    The entry has the producer's last timestamp, although it may be that of a later batch. A start drops an entry whose
    timestamp is old, and the replay gives the timestamp again to a producer that it changes.
    """
    cdef const CachedBatch *last = NULL
    cdef int64_t first_offset = entry.transaction_first_offset
    cdef int16_t producer_epoch = entry.producer_epoch
    cdef int32_t coordinator_epoch = entry.coordinator_epoch
    cdef bint has_changed = marker != NULL
    cdef int i
    if marker != NULL:
        first_offset, coordinator_epoch = marker.first_offset, marker.coordinator_epoch
    if first_offset >= offset:
        first_offset = -1
    for i in range(entry.cached):
        last = batch_of(entry, i)
        if last.last_offset < offset:
            break
        has_changed, last = True, NULL
    if last == NULL and has_changed and first_offset < 0:
        return False
    if last == NULL and marker != NULL:             # cached batches have the current epoch
        producer_epoch = marker.producer_epoch
    write_snapshot_entry(at, entry.producer_id, producer_epoch, last, entry.last_timestamp_ms, coordinator_epoch,
                         first_offset)
    return True
