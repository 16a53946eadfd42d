"""The end of a transaction. The protocol has five steps, which this module contains from top to bottom:

    1  decide              by the tables of `endings`; a fence always decides to abort
    2  append Prepare      once this row is durable, the transaction *will* end as decided
    3  reply               the client gets the decision, and may begin its next transaction
    4  write the markers   one in each partition, repeated until it is durable there
    5  append Complete     held for a few milliseconds, to share the write of the next row (see `store`)

If a start finds a Prepare row, it continues at step 4. Writing a marker twice does no harm. But without its marker, the
partition's last stable offset would never move again. So the broker retries after every failure that is not known to be
final.

Kafka's brokers send markers to each other with WriteTxnMarkers. Here a single broker appends them directly, under the
same rules.
"""
import logging
from bisect import bisect_left
from functools import partial

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize
from libc.stdint cimport int16_t, int64_t, uint8_t
from libc.string cimport memset

from kbroker.base.clock cimport Clock, Timer, Timers
from kbroker.base.completion cimport Completion, Steps
from kbroker.base.long_work cimport LongWork
from kbroker.topics.partition cimport Partition
from kbroker.transaction.endings cimport judge_with_bump, judge_without_bump
from kbroker.transaction.markers cimport MARKER_BYTES, write_marker
from kbroker.transaction.state cimport (
    EPOCH_BUMPS_FROM, NO_PRODUCER_ID, STATUS_ONGOING, STATUS_PREPARE_ABORT, TransactionMetadata, TransactionRow,
    is_prepared,
)
from kbroker.transaction.store cimport StatePartition, TransactionStore

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.security.escape import shown
from kbroker.transaction.failed_markers import FailedMarkers
from kbroker.transaction.markers import REACTIONS, Reaction

logger = logging.getLogger(__name__)

RETRY_BACKOFF_MS = 100
ADD_RETRY_BACKOFF_MS = 20
"""Kafka's add.partitions.to.txn.retry.backoff.ms."""
MARKERS_AT_ONCE = 8
"""The most markers that one part of long work appends."""

cdef enum:
    MOST_MARKERS_AT_ONCE = 16       # a larger transaction writes its markers as long work
    PREPARE_ROW = -1                # the part of an Ending that is not the number of a partition
    NO_PARTITION = -1

cdef object NONE = ErrorCode.NONE


cdef class TransactionEnder:
    """Ends transactions, and keeps the list of transactions whose markers are being written."""

    def __init__(self, TransactionStore store, Clock clock, LongWork long_work, topics, producer_ids, *,
                 int transaction_version):
        self.store = store
        self.clock = clock
        self.timers = long_work.timers
        self.long_work = long_work
        self.topics = topics
        self.producer_ids = producer_ids
        self.waiting = {}
        self.transaction_version = transaction_version
        self.marking = set()
        self.found = {}
        self.failed_markers = FailedMarkers(self.timers)
        topics.on_topic_deleted.append(self._on_topic_deleted)

    # -- 1: decide -----------------------------------------------------------------------------------------------

    cpdef end_txn(self, str transactional_id, int64_t producer_id, int16_t producer_epoch, bint committed,
                  int client_transaction_version, object connection, Completion done):
        """Commit or abort a transaction for a client.

        `done` completes when the decision is durable, before the markers are written.

        The result is a TransactionRow. It contains the producer id and epoch for the next transaction, which TV2
        clients use. The request arrived on `connection`, which `stale_requests` compares with the newest connection of
        the client.
        """
        cdef StatePartition owned
        cdef TransactionMetadata metadata
        try:
            owned = self.store.owner(transactional_id)
            metadata = owned.known(transactional_id)
            if client_transaction_version >= EPOCH_BUMPS_FROM:
                decision = judge_with_bump(metadata, producer_id, producer_epoch, committed, self.transaction_version)
            else:
                decision = judge_without_bump(metadata, producer_id, producer_epoch, committed,
                                              self.store.stale_requests, connection)
            if type(decision) is not ErrorCode:
                self.prepare(metadata, decision, client_transaction_version)
            elif decision is not NONE:
                raise KafkaError(decision)
        except KafkaError as error:
            done.complete(error, 0, None)
            return
        if decision is NONE:        # a retry: the transaction has already ended this way
            done.complete(None, 0, metadata.current)
        else:
            self.ending(owned, metadata, done).append_prepare()

    cdef int abort_fenced(self, StatePartition owned, TransactionMetadata metadata, Completion done) except -1:
        """Abort the transaction for its producer, with the epoch of the pending fence.

        `done` completes as in `end_txn`.

        `done` is None if no client requested the abort, because the transaction has timed out.
        """
        cdef Ending ending
        assert metadata.pending is not None and metadata.current.fields.state == STATUS_ONGOING
        try:
            self.prepare(metadata, STATUS_PREPARE_ABORT, self.transaction_version)
        except KafkaError as error:
            metadata.abandon()
            return 0 if done is None else done.complete(error, 0, None)
        if done is None:
            self.timed_out += 1
        else:
            self.fenced += 1
        ending = self.ending(owned, metadata, done)
        ending.is_unstored_fence = self.transaction_version < EPOCH_BUMPS_FROM
        return ending.append_prepare()

    cdef int prepare(self, TransactionMetadata metadata, int status, int transaction_version) except -1:
        """Make the Prepare row pending.

        If this step bumps a client's epoch that is exhausted, reserve a new producer id (KAFKA-18660, KAFKA-20090). TV2
        bumps the epoch with each decision. TV0 and TV1 bump it only with the fence of a kept transaction.
        """
        cdef int64_t fresh_producer_id = NO_PRODUCER_ID
        if metadata.current.is_exhausted() and (
                transaction_version >= EPOCH_BUMPS_FROM
                or (metadata.current.keeps() and metadata.pending is not None)):
            fresh_producer_id = self.producer_ids.next()
        metadata.prepare_end(status, transaction_version, fresh_producer_id, self.clock.wall_ms())
        return 0

    cdef Ending ending(self, StatePartition owned, TransactionMetadata metadata, Completion done):
        cdef Ending ending = Ending.__new__(Ending)
        ending.ender = self
        ending.owned = owned
        ending.metadata = metadata
        ending.done = done
        return ending

    # -- outside the protocol -------------------------------------------------------------------------------------

    cdef int resume(self, StatePartition owned) except -1:
        """Continue at step 4 with each transaction that is decided but has no Complete row in the log.

        Called after a load.
        """
        cdef TransactionMetadata metadata
        for metadata in tuple(owned.open.values()):
            if is_prepared(metadata.current.fields.state):
                self.ending(owned, metadata, None).write_markers()
        return 0

    cdef int wait(self, str transactional_id, attempt) except -1:
        """Call `attempt` again after a backoff, or as soon as the transaction completes.

        Called while another change of the transactional.id is in flight.
        """
        waiting = [timer for timer in self.waiting.get(transactional_id, ()) if timer.callback is not None]
        self.waiting[transactional_id] = [*waiting, self.timers.after(ADD_RETRY_BACKOFF_MS, attempt)]
        return 0

    cdef int repeat_attempts(self, str transactional_id) except -1:
        """Call the waiting attempts of an id now, because its transaction is complete."""
        cdef Timer timer
        if not self.waiting:
            return 0
        for timer in self.waiting.pop(transactional_id, ()):
            attempt = timer.callback
            if attempt is not None:
                timer.cancel()
                attempt()
        return 0

    cdef int stop(self) except -1:
        """Stop writing markers. The rows in the log and the state in memory do not change."""
        cdef Ending ending
        self.is_stopped = True
        for ending in self.marking:
            ending.is_over = True
        self.marking.clear()
        self.failed_markers.close()
        return 0

    cdef Partition partition(self, tuple topic_partition):
        """Return the partition, or None if it does not exist. Partitions are cached until a topic is deleted."""
        cdef Partition partition = self.found.get(topic_partition)
        if partition is None or partition.is_deleted:
            partition = self.topics.find(*topic_partition)
            if partition is not None:
                self.found[topic_partition] = partition
        return partition

    def _on_topic_deleted(self, topic):
        self.found.clear()
        for ending in list(self.marking):
            (<Ending>ending).drop_topic(topic.name)


cdef class Ending(Completion):
    """A transaction in the steps 2 to 5 of its end.

    `is_unstored_fence` is true if a fence is in force in memory, but the log will contain it only with the Prepare row.
    `is_over` is true if all markers are durable or the coordinator has stopped.
    """

    cdef int complete(self, object error, Py_ssize_t part, object result) except -1:
        if part == PREPARE_ROW:
            return self.prepare_appended(error)
        return self.marker_appended(part, error)

    # -- 2: append the Prepare row -------------------------------------------------------------------------------

    cdef int append_prepare(self) except -1:
        return self.ender.store.append(self.owned, self.metadata, self, PREPARE_ROW)

    # -- 3: reply ------------------------------------------------------------------------------------------------

    cdef int prepare_appended(self, object error) except -1:
        """Reply, then write the markers.

        If `error` is not None, the decision was abandoned, and no markers are written.

        After a success, the Complete row is pending. Its producer id and epoch are the client's pair for the next
        transaction.
        """
        if error is not None:
            if self.is_unstored_fence:
                self.metadata.has_failed_epoch_fence = True
            return 0 if self.done is None else self.done.complete(error, 0, None)
        if self.ender.steps is not None and self.holds('transaction.prepared', NO_PARTITION, self.reply_and_mark):
            return 0
        return self.reply_and_write_markers()

    cdef int reply_and_write_markers(self) except -1:
        if self.done is not None:
            self.done.complete(None, 0, self.metadata.pending)
        if self.ender.is_stopped:       # while the transaction was held; the next start writes the markers
            return 0
        return self.write_markers()

    def reply_and_mark(self):
        """Continue with a transaction that was held when its decision was durable."""
        self.reply_and_write_markers()

    cdef bint holds(self, str point, Py_ssize_t number, proceed) except -1:
        """Return whether the transaction must wait at a point. `number` is the index of the partition, or NO_PARTITION.
        """
        cdef dict facts = {'transactional_id': self.metadata.transactional_id,
                           'producer_id': self.metadata.current.fields.producer_id,
                           'producer_epoch': self.metadata.current.fields.producer_epoch}
        if number != NO_PARTITION:
            facts['topic'], facts['partition'] = self.partitions[number]
        return self.ender.steps.reach(point, facts, proceed)

    # -- 4: write the markers ------------------------------------------------------------------------------------

    cdef int write_markers(self) except -1:
        """Append the marker to each partition of the Prepare row, which is durable and in force."""
        self.prepared = self.metadata.current
        self.partitions = self.prepared.partition_set.in_order()
        self.unmarked = len(self.partitions)
        self.is_marked = PyByteArray_FromStringAndSize(NULL, self.unmarked)
        memset(PyByteArray_AS_STRING(self.is_marked), 0, self.unmarked)
        self.ender.marking.add(self)
        return self.write_markers_of(None)

    cdef int write_markers_of(self, list numbers) except -1:
        """Append markers to the partitions with these indexes, or to all partitions if `numbers` is None.

        Skip the partitions that already have their marker or no longer need one.
        """
        cdef Py_ssize_t count = len(self.partitions) if numbers is None else len(numbers)
        if count > MOST_MARKERS_AT_ONCE:
            self.ender.long_work.start(self.write_in_parts(numbers, count))
        else:
            self.write_some(numbers, 0, count)
        return 0

    def write_in_parts(self, list numbers, Py_ssize_t count):
        """Append the markers of a large transaction as long work, a few in each part."""
        cdef Py_ssize_t first
        for first in range(0, count, MARKERS_AT_ONCE):
            if self.is_over:
                return
            self.write_some(numbers, first, min(first + MARKERS_AT_ONCE, count))
            yield

    cdef int write_some(self, list numbers, Py_ssize_t first, Py_ssize_t end) except -1:
        """Append the markers to the partitions numbers[first:end], or to partitions[first:end] if `numbers` is None.

        Append all markers before waiting for the first to be durable, so that they share a flush. If a partition no
        longer exists, it needs no marker.
        """
        cdef list waits = None
        cdef Py_ssize_t i, number
        cdef int64_t end_offset
        cdef Partition partition
        cdef uint8_t marker[MARKER_BYTES]
        for i in range(first, end):
            number = i if numbers is None else numbers[i]
            if self.is_marked[number]:
                continue
            partition = self.ender.partition(self.partitions[number])
            if partition is None:
                self.count_down(number)
                continue
            if self.ender.steps is not None and not self.is_released and self.holds(
                    'transaction.marker', number, partial(self.write_held, number)):
                continue
            write_marker(marker, self.prepared, self.owned.coordinator_epoch, self.ender.clock.wall_ms())
            try:
                end_offset = partition.append_bytes(marker, MARKER_BYTES,
                                                    self.prepared.fields.client_transaction_version)
            except KafkaError as error:
                self.marker_appended(number, error)
                continue
            if end - first == 1:
                return partition.await_durable(end_offset, self, number)
            if waits is None:
                waits = []
            waits.append((number, partition, end_offset))
        if waits is not None:
            for number, found, end_offset in waits:
                (<Partition?>found).await_durable(end_offset, self, number)
        return self.complete_if_marked()

    def write_held(self, Py_ssize_t number):
        """Append the marker of a partition that was held at its point."""
        if self.is_over or self.is_marked[number]:
            return
        self.is_released = True
        try:
            self.write_some([number], 0, 1)
        finally:
            self.is_released = False

    cdef int marker_appended(self, Py_ssize_t number, object error) except -1:
        """Count a marker that is durable.

        If it failed with `error`, retry, give up, or count it as done, as REACTIONS says.
        """
        if self.is_over or self.is_marked[number]:
            return 0
        if error is not None:
            reaction = REACTIONS.get(error.code, Reaction.RETRY)
            if reaction is not Reaction.DONE:
                return self.schedule_retry(number, error, reaction)
        self.count_down(number)
        return self.complete_if_marked()

    cdef int schedule_retry(self, Py_ssize_t number, object error, object reaction) except -1:
        topic, partition = self.partitions[number]
        line = (f'{shown(self.metadata.transactional_id)}: the {self.prepared.state.title} marker of producer '
                f'{self.prepared.fields.producer_id} epoch {self.prepared.fields.producer_epoch} failed on '
                f'{topic}-{partition}: {error}; will {reaction.value}')
        if reaction is not Reaction.RETRY:
            logger.warning('%s', line)
            return 0
        self.ender.failed_markers.note(error.code, line)
        if self.to_retry is None:
            self.to_retry = []
            self.ender.timers.after(RETRY_BACKOFF_MS, self.retry)
        self.to_retry.append(number)
        return 0

    def retry(self):
        """Append the failed markers again."""
        if not self.is_over:
            numbers, self.to_retry = self.to_retry, None
            self.write_markers_of(numbers)

    cdef int drop_topic(self, str topic) except -1:
        """Count the partitions of a deleted topic as marked, because they no longer have a transaction to end."""
        cdef Py_ssize_t number
        for number in range(bisect_left(self.partitions, (topic, -1)), len(self.partitions)):
            if self.partitions[number][0] != topic:
                break
            self.count_down(number)
        return self.complete_if_marked()

    cdef int count_down(self, Py_ssize_t number) except -1:
        """Record that the partition with this index needs no marker any more."""
        if not self.is_marked[number]:
            self.is_marked[number] = 1
            self.unmarked -= 1
        return 0

    # -- 5: append the Complete row ------------------------------------------------------------------------------

    cdef int complete_if_marked(self) except -1:
        """If every partition has its marker, adopt the Complete row. The next transaction may then begin."""
        if self.unmarked > 0 or self.is_over:
            return 0
        if self.ender.steps is not None:
            if self.has_reached_marked:
                return 0
            self.has_reached_marked = True
            if self.holds('transaction.marked', NO_PARTITION, self.finish_if_open):
                return 0
        return self.finish()

    def finish_if_open(self):
        """Adopt the Complete row of a transaction that was held after its last marker."""
        if not self.is_over:
            self.finish()

    cdef int finish(self) except -1:
        self.is_over = True
        self.ender.marking.discard(self)
        if self.owned.is_lost:
            return 0
        self.ender.store.hold_complete(self.owned, self.metadata)
        return self.ender.repeat_attempts(self.metadata.transactional_id)
