"""The producer state of a partition: the rules of idempotence and of transactions (KIP-98, KIP-360, KIP-890).

`check` accepts or refuses a batch, and changes nothing. `adopt` applies a batch that is in the log or in its unwritten
tail. If a batch cannot be written after `check`, the table remains unchanged. `replay_batch` adopts a batch that was
read from a log.
"""
from typing import NamedTuple

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t
from cpython.array cimport array, clone
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject

from kbroker.base.errors import CorruptLogError, ErrorCode, KafkaError
from kbroker.base.long_work import run_to_end
from kbroker.log.append cimport ORIGIN_CLIENT, ORIGIN_COORDINATOR, ORIGIN_REPLICATION, Append
from kbroker.log.formats cimport (
    SNAPSHOT_VERSION, SnapshotEntry, SnapshotHead, seal_head, swap_head, write_head)
from kbroker.log.newest_connection cimport is_late, refuse_late_batch
from kbroker.log.producer_entry cimport (
    CachedBatch, ProducerEntry, has_open, read_snapshot_entry, write_snapshot_entry)
from kbroker.log.transaction_index import AbortedTransaction
from kbroker.log.unstable_transactions cimport UnstableTransactions
from kbroker.record.batch cimport (
    ABORT_MARKER, CONTROL_BIT, HEADER_READ, NO_MARKER, TRANSACTIONAL_BIT, BatchFields, Marker, batch_last_offset,
    batch_size_bytes, parse_header, read_marker, refuse_header)
from kbroker.wire.crc32c cimport crc32c_update

cdef enum:
    LAST_EPOCH = 32767
    LAST_SEQUENCE = 2147483647
    DEFAULT_EXPIRATION_MS = 86400000
    ENTRIES_AT_ONCE = 512       # the producers that one part of long work processes


MOST_PRODUCERS_OF_PARTITION = 100_000
"""The number of producers whose ids one part of long work lists for a snapshot, which takes about 1 ms. Other parts
encode and write the snapshot.
"""
MOST_PRODUCERS = 1_000_000
"""The maximum number of producers in all partitions of a log directory together. A producer takes about 300 bytes of
memory.
"""
MOST_VERIFICATIONS = 1_000
"""The maximum number of verifications in a partition. A verification lasts from the arrival of a request to its append.
A verification above the maximum replaces the oldest.
"""


class ActiveProducer(NamedTuple):
    """One producer as DescribeProducers reports it. An unknown value is -1."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_first_offset: int


cdef class Verification:
    """The guard of a transactional append (KIP-890). It exists while the coordinator verifies that the producer's
    transaction includes this partition, and until the append. The append must pass the same object that the table has.
    """

    cdef int16_t producer_epoch
    cdef int32_t lowest_sequence
    cdef bint supports_epoch_bump
    cdef int64_t timestamp_ms


cdef class ProducerRoom:
    """The total number of producers in all partitions of a log directory, and the bound on this number."""

    def __init__(self, int64_t most=MOST_PRODUCERS):
        self.most = most


cdef class ProducerStateTable:
    """The state of all producers of a partition after the batches below `end_offset`.

    The first append of a new producer is refused if the partition has `most_producers` producers, or if all partitions
    that share `room` have `room.most` together. A batch that the log already holds is never refused.
    """

    def __init__(self, int64_t expiration_ms=DEFAULT_EXPIRATION_MS, ProducerRoom room=None):
        self.expiration_ms = expiration_ms
        self.room = ProducerRoom() if room is None else room
        self.most_producers = MOST_PRODUCERS_OF_PARTITION
        self.entries = {}
        self.markers = MarkerHistory()
        self.unstable = UnstableTransactions.__new__(UnstableTransactions)
        self.clear(0)

    def clear(self, int64_t end_offset) -> None:
        """Forget all producers. The next batch is expected at `end_offset`."""
        self.room.held -= len(self.entries)
        self.entries = {}           # producer id -> ProducerEntry
        self.recent = None
        self.unstable.clear()
        self.snapshot = None
        self.verifications = {}     # producer id -> Verification
        self.markers.clear(end_offset)
        self.end_offset = end_offset

    cdef ProducerEntry find(self, int64_t producer_id):
        """Return the entry of a producer, or None. Remember the entry for the next call: each batch needs its entry
        twice, and consecutive batches often have the same producer.
        """
        if self.recent is None or self.recent.producer_id != producer_id:
            entry = self.entries.get(producer_id)
            if entry is None:
                return None
            self.recent = entry
        return self.recent

    # ---- judging a batch ----

    cdef bint check(self, Append *append, const Marker *marker, CachedBatch *duplicate) except -1:
        """Check a batch. If the log already holds the batch, set `duplicate` and return True, otherwise return False.
        Raise KafkaError if the batch must be refused.
        """
        cdef const BatchFields *batch = &append.batch
        cdef int origin = append.origin
        cdef ProducerEntry entry = self.find(batch.producer_id)
        cdef const CachedBatch *known
        cdef bint is_control = batch.attributes & CONTROL_BIT
        if origin == ORIGIN_CLIENT and entry is not None:
            known = entry.find_duplicate(batch)
            if known != NULL:
                duplicate[0] = known[0]
                return True
            if batch.producer_epoch == entry.producer_epoch and is_late(&entry.newest_connection,
                                                                        append.connection_id):
                refuse_late_batch(&entry.newest_connection, batch, append.connection_id, &append.late_refusal)
        elif origin == ORIGIN_CLIENT:
            self.check_room(batch.producer_id)
        if (origin <= ORIGIN_COORDINATOR and batch.attributes & TRANSACTIONAL_BIT
                and not has_open(entry, batch.producer_epoch)):
            if entry is not None and batch.producer_epoch < entry.producer_epoch:
                refuse_epoch(batch, entry.producer_epoch)
            if append.is_guarded and not is_control and (
                    append.guard == NULL or self.verifications.get(batch.producer_id) is not <object>append.guard):
                raise KafkaError(ErrorCode.INVALID_TXN_STATE,
                                 f'producer {batch.producer_id} epoch {batch.producer_epoch}: found no verification '
                                 'of the partition for this append, expected one')
        if is_control:
            if marker.kind != NO_MARKER:
                self.check_marker(entry, batch, marker, origin, append.transaction_version)
            return False
        self.check_data(entry, batch, origin)
        return False

    cpdef check_room(self, int64_t producer_id):
        """Raise POLICY_VIOLATION if the producer is new and the table has no room for it. Room is made only when other
        producers expire.
        """
        if (len(self.entries) < self.most_producers and self.room.held < self.room.most
                or producer_id in self.entries):
            return
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f'producer {producer_id}: found {len(self.entries)} producers in '
                         f'this partition and {self.room.held} in all, expected {self.most_producers} and '
                         f'{self.room.most} at most')

    cdef int check_data(self, ProducerEntry entry, const BatchFields *batch, int origin) except -1:
        if entry is not None and batch.producer_epoch < entry.producer_epoch and origin != ORIGIN_REPLICATION:
            refuse_epoch(batch, entry.producer_epoch)
        if origin == ORIGIN_CLIENT:
            self.check_sequence(entry, batch)
        if entry is not None and entry.transaction_first_offset >= 0 and not batch.attributes & TRANSACTIONAL_BIT:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE,
                             f'producer {batch.producer_id}: found a batch outside the transaction open since offset '
                             f'{entry.transaction_first_offset}, expected a transactional one')
        return 0

    cdef int check_sequence(self, ProducerEntry entry, const BatchFields *batch) except -1:
        cdef int64_t expected
        cdef const CachedBatch *last
        cdef Verification verification = self.verifications.get(batch.producer_id) if self.verifications else None
        if verification is not None:
            if verification.supports_epoch_bump and entry is None and batch.base_sequence != 0:
                refuse_sequence(batch, 0)
            if batch.base_sequence > verification.lowest_sequence:
                refuse_sequence(batch, verification.lowest_sequence)
        if entry is None or entry.producer_epoch < 0:
            return 0
        if batch.producer_epoch != entry.producer_epoch:
            expected = 0
        else:
            last = entry.last_batch()
            expected = 0 if last == NULL or last.last_sequence == LAST_SEQUENCE else <int64_t>last.last_sequence + 1
        if batch.base_sequence != expected:
            refuse_sequence(batch, expected)
        return 0

    cdef int check_marker(self, ProducerEntry entry, const BatchFields *batch, const Marker *marker, int origin,
                          int transaction_version) except -1:
        """Check a marker. Raise KafkaError if it must be refused.

        With transaction version 2, the coordinator raises the producer epoch with each marker (KIP-890). The
        coordinator may repeat a marker if it received no answer. Therefore a marker with the current epoch is accepted
        while no transaction is open (KAFKA-19999).
        """
        if entry is None or origin == ORIGIN_REPLICATION:
            return 0
        if batch.producer_epoch < entry.producer_epoch or (
                transaction_version >= 2 and batch.producer_epoch == entry.producer_epoch
                and entry.transaction_first_offset >= 0 and batch.producer_epoch != LAST_EPOCH):
            refuse_epoch(batch, entry.producer_epoch)
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                             f'producer {batch.producer_id}: found coordinator epoch {marker.coordinator_epoch}, '
                             f'expected {entry.coordinator_epoch} or above')
        return 0

    cpdef bint has_open_transaction(self, int64_t producer_id, int16_t producer_epoch):
        """Return whether the producer has an open transaction in this partition, with exactly this epoch."""
        return has_open(self.find(producer_id), producer_epoch)

    # ---- adopting a batch ----

    cdef object completed_by(self, const BatchFields *batch):
        """Return the row that an ABORT marker adds to the transaction index. Return None for a COMMIT marker, or if no
        transaction is open.
        """
        cdef ProducerEntry entry = self.find(batch.producer_id)
        cdef int64_t marker_offset = batch_last_offset(batch)
        if entry is None or entry.transaction_first_offset < 0:
            return None
        return AbortedTransaction(entry.producer_id, entry.transaction_first_offset, marker_offset,
                                  self.unstable.stable_offset_without(entry.producer_id, marker_offset))

    cdef int adopt(self, const BatchFields *batch, const Marker *marker) except -1:
        """Adopt an appended batch, whose offsets are final. This can fail only if memory is exhausted."""
        cdef ProducerEntry entry
        self.end_offset = batch_last_offset(batch) + 1
        if batch.producer_id < 0 or batch.attributes & CONTROL_BIT and marker.kind == NO_MARKER:
            return 0
        entry = self.find(batch.producer_id)
        if entry is None:
            entry = ProducerEntry(batch.producer_id)
            entry.snapshot_number = self.snapshot_number
            self.entries[batch.producer_id] = self.recent = entry
            self.room.held += 1
        elif entry.snapshot_number != self.snapshot_number:
            self.keep_for_snapshot(entry)
        if self.verifications and batch.attributes & TRANSACTIONAL_BIT:
            self.clear_verification(batch.producer_id, batch.producer_epoch, marker.kind != NO_MARKER)
        if marker.kind == NO_MARKER:
            entry.add_batch(batch)
            if batch.attributes & TRANSACTIONAL_BIT and entry.transaction_first_offset < 0:
                self.unstable.open(entry, batch.base_offset)
            return 0
        self.markers.note(entry.producer_id, entry.producer_epoch, entry.coordinator_epoch,
                          entry.transaction_first_offset, self.end_offset - 1)
        entry.take_epoch(batch.producer_epoch)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp_ms = marker.timestamp_ms
        if entry.transaction_first_offset >= 0:
            self.unstable.complete(entry, batch_last_offset(batch))
        return 0

    def replay_batch(self, const uint8_t[::1] batch not None):
        """Adopt a batch that was read from the log. Return the transaction index row of an ABORT marker, None for any
        other batch. Raise CorruptBatchError if `batch` is not a batch, or is a marker that cannot be read.
        """
        cdef BatchFields fields
        cdef Marker marker
        cdef const uint8_t *data = &batch[0] if len(batch) else NULL
        fault = parse_header(data, len(batch), &fields)
        if fault != HEADER_READ or batch_size_bytes(&fields) != len(batch):
            refuse_header(fault, &fields, len(batch))
        read_marker(data, len(batch), &fields, &marker)
        row = self.completed_by(&fields) if marker.kind == ABORT_MARKER else None
        self.adopt(&fields, &marker)
        return row

    # ---- verification (KIP-890, part 1) ----

    cpdef start_verification(self, int64_t producer_id, int16_t producer_epoch, int32_t base_sequence,
                             bint supports_epoch_bump, int64_t now_ms):
        """Return the guard that the append must pass, or None if the transaction is already open in this partition.
        Raise KafkaError INVALID_PRODUCER_EPOCH if the log has batches with a later epoch of the producer.
        """
        cdef ProducerEntry entry = self.find(producer_id)
        cdef Verification verification
        if entry is not None and producer_epoch < entry.producer_epoch:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, f'producer {producer_id}: found epoch {producer_epoch}, '
                             f'expected {entry.producer_epoch} or above')
        if has_open(entry, producer_epoch):
            return None
        verification = self.verifications.get(producer_id)
        if verification is None:
            if len(self.verifications) >= MOST_VERIFICATIONS:       # the append of the oldest is refused
                del self.verifications[next(iter(self.verifications))]
            verification = Verification.__new__(Verification)
            verification.producer_epoch = producer_epoch
            verification.lowest_sequence = base_sequence
            verification.supports_epoch_bump = supports_epoch_bump
            verification.timestamp_ms = now_ms
            self.verifications[producer_id] = verification
        elif producer_epoch > verification.producer_epoch:
            verification.producer_epoch = producer_epoch
            verification.lowest_sequence = base_sequence
        elif producer_epoch == verification.producer_epoch:
            verification.lowest_sequence = min(verification.lowest_sequence, base_sequence)
        return verification

    cdef int clear_verification(self, int64_t producer_id, int16_t producer_epoch, bint by_marker) except -1:
        """Drop the verification of a producer after an append.

        If each transaction raises the epoch, a verification with the epoch of a marker belongs to the next transaction.
        The marker does not drop that verification (KAFKA-18654).
        """
        cdef Verification verification = self.verifications.get(producer_id)
        if verification is None or (
                by_marker and verification.supports_epoch_bump and verification.producer_epoch == producer_epoch):
            return 0
        del self.verifications[producer_id]
        return 0

    # ---- lists and expiry ----

    def active_producers(self) -> list[ActiveProducer]:
        """Return all known producers, for DescribeProducers."""
        return [ActiveProducer(entry.producer_id, entry.producer_epoch, entry.last_sequence, entry.last_timestamp_ms,
                               entry.coordinator_epoch, entry.transaction_first_offset)
                for entry in self.entries.values()]

    def get(self, int64_t producer_id) -> ProducerEntry | None:
        return self.entries.get(producer_id)

    def remove_expired(self, int64_t now_ms):
        """Remove producers that have been idle for `expiration_ms` and have no open transaction. Also remove
        verifications that are `expiration_ms` old.

        This generator yields after each small part, and returns the number of removed producers.
        """
        cdef Verification verification
        cdef ProducerEntry entry
        cdef Py_ssize_t removed = 0
        for producer_id, verification in list(self.verifications.items()):
            if now_ms - verification.timestamp_ms >= self.expiration_ms:
                del self.verifications[producer_id]
        for number, entry in enumerate(list(self.entries.values()), 1):
            if self.is_expired(entry, now_ms) and self.entries.get(entry.producer_id) is entry:
                if entry.snapshot_number != self.snapshot_number:
                    self.keep_for_snapshot(entry)
                del self.entries[entry.producer_id]
                self.room.held -= 1
                self.recent = None
                removed += 1
            if number % ENTRIES_AT_ONCE == 0:
                yield
        return removed

    cdef bint is_expired(self, ProducerEntry entry, int64_t now_ms) noexcept:
        return entry.transaction_first_offset < 0 and now_ms - entry.last_timestamp_ms >= self.expiration_ms

    # ---- snapshots ----

    def encode_snapshot(self) -> bytes:
        """Return the content of an `<end_offset>.snapshot` file."""
        cdef ProducerSnapshot snapshot = self.snapshot
        if snapshot is not None:                # finish the running snapshot first
            run_to_end(snapshot.encode())
            self.end_snapshot(snapshot)
        snapshot = self.begin_snapshot(self.end_offset)
        run_to_end(snapshot.encode())
        self.end_snapshot(snapshot)
        return snapshot.content

    cdef ProducerSnapshot begin_snapshot(self, int64_t end_offset):
        """Begin and return a snapshot. The caller encodes it in parts, then calls `end_snapshot`. Return None if
        another snapshot is being encoded.
        """
        if self.snapshot is not None:
            return None
        self.snapshot_number += 1
        self.snapshot = ProducerSnapshot(end_offset, self.snapshot_number, self.entries)
        return self.snapshot

    cdef int end_snapshot(self, ProducerSnapshot snapshot) except -1:
        """End a snapshot that is encoded or given up: stop preserving the old states of producers for it."""
        if self.snapshot is snapshot:
            self.snapshot = None
        return 0

    cdef int keep_for_snapshot(self, ProducerEntry entry) except -1:
        """If a snapshot is being encoded and still needs this producer's state, encode it now: the producer is about to
        change.
        """
        if self.snapshot is not None:
            self.snapshot.add(entry)
        entry.snapshot_number = self.snapshot_number
        return 0

    def load_snapshot(self, bytes data not None, int64_t end_offset, int64_t now_ms) -> None:
        """Replace the table by the content of a snapshot at `end_offset`, without producers that have expired by
        `now_ms`.

        If the snapshot is damaged, empty the table and raise CorruptLogError.
        """
        cdef const uint8_t *at = <const uint8_t *>PyBytes_AS_STRING(data)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef const uint8_t *summed = <const uint8_t *>&(<const SnapshotHead *>at).count
        cdef const SnapshotEntry *rows = <const SnapshotEntry *>(at + sizeof(SnapshotHead))
        cdef SnapshotHead head
        cdef uint32_t crc
        cdef int32_t number
        cdef ProducerEntry entry
        self.clear(end_offset)
        if size >= <Py_ssize_t>sizeof(SnapshotHead):
            head = (<const SnapshotHead *>at)[0]
            swap_head(&head)
        if size < <Py_ssize_t>sizeof(SnapshotHead) or head.version != SNAPSHOT_VERSION:
            raise CorruptLogError(f'producer snapshot: found {size} bytes beginning with '
                                  f'{data[:2].hex() or "nothing"}, expected version 1')
        if size != <int64_t>sizeof(SnapshotHead) + <int64_t>sizeof(SnapshotEntry) * head.count:
            raise CorruptLogError(f'producer snapshot: found {size} bytes, expected {head.count} entries')
        crc = crc32c_update(0, summed, size - (summed - at))
        if crc != head.crc:
            raise CorruptLogError(f'producer snapshot: found CRC {head.crc:#010x}, expected {crc:#010x}')
        open_transactions = []
        for number in range(head.count):
            entry = read_snapshot_entry(rows[number])
            if not self.is_expired(entry, now_ms):
                if entry.producer_id not in self.entries:
                    self.room.held += 1
                self.entries[entry.producer_id] = entry
                if entry.transaction_first_offset >= 0:
                    open_transactions.append((entry.transaction_first_offset, entry.producer_id))
        for first_offset, producer_id in sorted(open_transactions):
            self.unstable.open(self.entries[producer_id], first_offset)


cdef class ProducerSnapshot:
    """The content of an `<offset>.snapshot` file: the state of the producers after the batches below `offset`.

    The snapshot is encoded in parts, and the table may change between two parts. Before the table changes or removes a
    producer, it adds the producer to the snapshot.
    """

    def __init__(self, int64_t offset, int64_t number, dict entries not None):
        """Create. `entries` has the producers of the table. No producer may have `number` as its snapshot number yet.
        """
        self.offset = offset
        self.number = number
        self.entries = entries
        self.content = PyBytes_FromStringAndSize(NULL, sizeof(SnapshotHead) + sizeof(SnapshotEntry) * len(entries))
        self.crc = write_head(self.head(), <int32_t>len(entries))
        self.end = <SnapshotEntry *>(self.head() + 1)

    cdef SnapshotHead *head(self) noexcept:
        return <SnapshotHead *>PyBytes_AS_STRING(self.content)

    def encode(self):
        """Encode all producers. This generator yields after each small part."""
        cdef ProducerEntry entry
        cdef Py_ssize_t number
        if len(self.entries) > ENTRIES_AT_ONCE:
            yield                               # because one request may roll many logs
        self.list_producers()
        while self.next < len(self.ids):
            for number in range(min(len(self.ids) - self.next, <Py_ssize_t>ENTRIES_AT_ONCE)):
                entry = self.entries.get(self.ids.data.as_longlongs[self.next])
                self.next += 1
                if entry is not None:
                    self.add(entry)
            if self.next < len(self.ids):
                yield
        seal_head(self.head(), self.crc)
        self.is_encoded = True

    cdef int list_producers(self) except -1:
        """List the producer ids in an array, unless they are already listed. A list would be slower: the garbage
        collector would scan it repeatedly.
        """
        cdef Py_ssize_t number = 0
        if self.ids is None:
            self.ids = clone(array('q'), len(self.entries), zero=False)
            for producer_id in self.entries:
                self.ids.data.as_longlongs[number] = producer_id
                number += 1
        return 0

    cdef int add(self, ProducerEntry entry) except -1:
        """Encode a producer, unless the snapshot already has it."""
        if entry.snapshot_number == self.number:
            return 0
        entry.snapshot_number = self.number
        write_snapshot_entry(self.end, entry.producer_id, entry.producer_epoch, entry.last_batch(),
                             entry.last_timestamp_ms, entry.coordinator_epoch, entry.transaction_first_offset)
        self.crc = crc32c_update(self.crc, <const uint8_t *>self.end, sizeof(SnapshotEntry))
        self.end += 1
        return 0


cdef int refuse_epoch(const BatchFields *batch, int current) except -1:
    raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH,
                     f'producer {batch.producer_id}: found epoch {batch.producer_epoch}, the log has seen {current}')


cdef int refuse_sequence(const BatchFields *batch, int64_t expected) except -1:
    raise KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                     f'producer {batch.producer_id} epoch {batch.producer_epoch}: found sequence '
                     f'{batch.base_sequence}, expected {expected}')
