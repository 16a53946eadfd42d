"""A blocking producer: gathers records into batches, and sends the batches of each partition in order.

There are no threads. `send` queues a record and returns. `poll` sends batches and receives answers; `send`, `flush` and
other methods call `poll` as needed. A program that waits for an event of a different source must call `poll` during the
wait.

A call of `poll` is a turn. It begins by fetching metadata again if the metadata is older than metadata.max.age.ms, and
by forgetting topics to which no record was sent for metadata.max.idle.ms. Then it does these steps:

1. Batches that are older than delivery.timeout.ms fail, whether or not they have sequence numbers.
2. A producer without a transactional.id requests a producer id, if it has none. If a numbered batch was not written,
   its partition waits until none of its batches is in flight. Batches whose answer was lost are first sent again with
   unchanged sequence numbers. Then the epoch is bumped, and all remaining batches are numbered from 0.
3. In a transaction below transaction.version 2, AddPartitionsToTxn adds the partitions of the due batches. No batch is
   sent while AddPartitionsToTxn is in flight. If it fails, the unsent batches of the transaction fail, too.
4. The oldest due batch of each partition is sent. A broker gets at most max.in.flight.requests.per.connection requests
   at once. While a batch is being retried, no other batch of its partition is in flight.
5. The turn waits for answers, for room to send, or for the next due batch. The answers of a connection arrive in the
   order of its requests. An answer finishes a batch, fails it, or requeues it before all later batches. `on_delivery`
   is called immediately for a finished or failed batch. If `on_delivery` raises an error, the turn raises that error at
   its end.
6. Steps 1 to 4 are repeated, because each answer makes room for further batches.

The requests of a transaction to its coordinators (InitProducerId, TxnOffsetCommit, EndTxn) are sent between two turns,
one at a time. A commit and a preparation first flush; an abort first waits for the batches in flight. So a coordinator
gets the end of a transaction only after all its batches have been answered.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any, Self

from kbroker.base.clock import Clock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.accumulator import PartitionQueue, ProducerBatch, due_queues, expired_queues, next_due_ms
from kbroker.client.admin import OffsetAndMetadata, as_offsets
from kbroker.client.columns_to_send import RowsToSend
from kbroker.client.errors import ClientError
from kbroker.client.exclusive_use import ExclusiveUse
from kbroker.client.opening import Servers, open_cluster
from kbroker.client.outcomes import Delivery, Outcomes
from kbroker.client.produce_requests import ProduceRequests
from kbroker.client.readiness import await_ready
from kbroker.client.record_appender import RecordAppender
from kbroker.client.statistics import PRODUCER_COUNTS, Counts
from kbroker.client.stream_settings import ProducerSettings
from kbroker.client.time_limit import OutOfTime
from kbroker.client.topics_in_use import TopicsInUse, passes
from kbroker.client.transaction import Transaction
from kbroker.client.transaction_handle import end_by_handle
from kbroker.client.transaction_manager import GroupMetadata, TransactionManager, as_group
from kbroker.client.transaction_state import (
    IllegalProducerState,
    PreparedTransaction,
    ProducerState,
)

if TYPE_CHECKING:
    from typing import Unpack

    from typing_extensions import Buffer

    from kbroker.client.column_kinds import ArrowArray, ArrowChunks, Column
    from kbroker.client.options import ProducerOptions

Headers = Iterable[tuple[str | bytes, bytes | None]] | Mapping[str, bytes | None] | Mapping[bytes, bytes | None]
"""The headers of a record. A name that is bytes must be UTF-8."""

_OPEN = frozenset({ProducerState.IN_TRANSACTION, ProducerState.ABORTABLE_ERROR})


class Producer:
    """A producer. It calls `on_delivery` for every batch, including failed batches.

    Without `on_delivery`, the next call of a method raises the error of the first batch that failed, as a KafkaError.
    `servers` is the value of bootstrap.servers, or a cluster that several clients share. `options` are settings under
    Kafka's names, written with underscores (`linger_ms=20`). `settings` has them under Kafka's own names
    (`{'linger.ms': 20}`). An unknown name raises ValueError. Only one thread of one process may use a producer. It is
    closed by `close`, or at the end of a `with` block.

    With transactional_id, records are sent in a `transaction`. The program must abort after TransactionError, and close
    the producer after FatalProducerError. With two_phase_commit, a transaction can be prepared. A prepared transaction
    remains open, even without the producer, until `complete` ends it.
    """

    def __init__(self, servers: Servers = None, settings: ProducerSettings | Mapping[str, object] | None = None,
                 on_delivery: Callable[[Delivery], None] | None = None, clock: Clock | None = None,
                 sleep: Callable[[float], None] = time.sleep, **options: Unpack[ProducerOptions]):
        opening = open_cluster(servers, settings, options, ProducerSettings, clock, sleep)
        cluster, self.settings, self._owns_cluster = opening
        self.transactions = TransactionManager(cluster, self.settings, clock, sleep)
        self._is_transactional = self.transactions.is_transactional
        self._use = ExclusiveUse('a producer')
        self._cluster = cluster
        self._clock = clock or Clock()
        self._sleep = sleep
        self._topics = TopicsInUse(cluster, self.settings, self._clock)
        self._appender = RecordAppender(self.settings, self._clock, self._topics.find, self._await_room)
        self._queues = self._appender.queues
        self._leaderless: dict[PartitionQueue, KafkaError | ClientError] = {}
        """Maps each queue whose first batch could not be sent for lack of a leader to the error."""
        self._counts = Counts(PRODUCER_COUNTS)
        self._outcomes = Outcomes(cluster, self.settings, self._clock, self.transactions, self._appender, self._topics,
                                  self._counts, on_delivery)
        self._requests = ProduceRequests(cluster, self.settings, self._clock)
        if self.settings.two_phase_commit:
            self._check_two_phase_commit()

    def _check_two_phase_commit(self) -> None:
        try:
            self.transactions.check_two_phase_commit()
        except BaseException:
            if self._owns_cluster:
                self._cluster.close()
            raise

    def __enter__(self) -> Self:
        if self.transactions.is_transactional:
            self._ensure_initialized()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        """Close the producer. If the `with` block raised an exception, add an error of `close` to it as a note."""
        try:
            self.close()
        except Exception as second:
            if error is None:
                raise
            error.add_note(f'The producer could not be closed: {second}')

    # ---- records

    def send(self, topic: str, value: bytes | None, key: bytes | None = None, headers: Headers = (), *,
             partition: int | None = None, timestamp_ms: int | None = None, context: Any = None) -> None:
        """Queue a record. While buffer.memory is full, wait up to max.block.ms.

        After an error the record is not queued. The errors are:
        * KafkaError: UNKNOWN_TOPIC_OR_PARTITION, MESSAGE_TOO_LARGE (the record exceeds max.request.size or
          buffer.memory), REQUEST_TIMED_OUT (buffer.memory is full)
        * TransactionError or FatalProducerError: the transaction, or the producer, has failed
        * IllegalProducerState: a transactional producer is outside a transaction
        * ValueError or TypeError: an argument is not valid
        """
        if self._use.thread != get_ident():
            self._use.claim()
        if self._is_transactional or self._outcomes.failure is not None:
            self._check_can_send()
        if self._appender.append(topic, value, key, headers, partition, timestamp_ms, context):
            self.poll(0)

    def send_batch(self, topic: str, values: Column, keys: Column | None = None,
                   headers: Sequence[Headers] | None = None, *, partition: int | None = None,
                   timestamps: Sequence[int] | Buffer | ArrowArray | ArrowChunks | None = None,
                   context: Any = None) -> None:
        """Queue many records of one topic, like a call of `send` for each. All records have the same `context`.

        Values and keys are sequences of bytes, Slices, or Arrow arrays (whole or chunked) of binary or string.
        `timestamps` is a sequence, a buffer of int64 or an Arrow array of int64, each in milliseconds, or an Arrow
        array of timestamps. The columns must not change during the call, because values are read in place. Raise
        TypeError or ValueError for an invalid column; then no row is queued. Raise the same errors as `send`; then the
        first rows may have been queued.
        """
        self._use.check()
        self._check_can_send()
        rows = RowsToSend(topic, values, keys, headers, partition, timestamps, context)
        while self._appender.append_rows(rows):
            self.poll(0)
            if self._is_transactional:
                self.transactions.lifecycle.check_can_send()

    def _check_can_send(self) -> None:
        if self._is_transactional:
            self.transactions.lifecycle.check_can_send()
        if self._outcomes.failure is not None:
            self._outcomes.raise_failure()

    def _await_room(self, size_bytes: int) -> None:
        """Wait until buffer.memory has room for `size_bytes`. If no request is in flight, send the open batches early.

        Raise KafkaError(REQUEST_TIMED_OUT) after max.block.ms. If the producer fails during the wait, raise its error,
        as `send` does.
        """
        limit_bytes, limit_ms = self.settings.buffer_memory_bytes, self.settings.max_block_ms
        began_ms = self._clock.monotonic_ms()
        self.poll(0)
        while self._appender.buffered_bytes + size_bytes > limit_bytes:
            left_ms = began_ms + limit_ms - self._clock.monotonic_ms()
            if left_ms <= 0:
                raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f'found no room for {size_bytes} bytes within '
                                 f'max.block.ms ({limit_ms} ms): {self._appender.buffered_bytes} bytes of buffer.memory'
                                 f' ({limit_bytes}) wait for their brokers')
            if not self._requests.in_flight:
                self._close_open_batches()
            with suppress(OutOfTime), self._cluster.within(left_ms):
                self.poll(left_ms)
        self._check_can_send()

    def flush(self) -> None:
        """Send all batches, and wait until each batch has been written or has failed."""
        self._use.check()
        while self._close_open_batches():
            self.poll(self.settings.max_block_ms)
        self._outcomes.raise_failure()

    def poll(self, timeout_ms: int | None = 0, wake_on: int | None = None) -> bool:
        """Send the due batches, then wait for answers, for the next due batch, or for the file descriptor `wake_on`.

        Wait at most `timeout_ms`. With None, wait until an answer arrives or a batch is due. Return True if `wake_on`
        is readable.
        """
        self._use.check()
        self._lose_connections()
        self._topics.refresh(self._appender)
        self._forget_idle_topics()
        self._send_due()
        now_ms = self._clock.monotonic_ms()
        delays = [due_ms - now_ms for due_ms in self._next_times()]
        if timeout_ms is not None:
            delays.append(timeout_ms)
        woken = self._receive(max(min(delays), 0) if delays else None, wake_on)
        self._send_due()
        self._outcomes.raise_reported()
        return woken

    def stats(self) -> dict[str, int]:
        """Return {name: count}: totals since the producer was constructed, and present values."""
        self._use.check()
        return {**self._counts, 'requests_in_flight': self._requests.in_flight,
                'buffer_total_bytes': self.settings.buffer_memory_bytes,
                'buffer_available_bytes': max(self.settings.buffer_memory_bytes - self._appender.buffered_bytes, 0)}

    def close(self) -> None:
        """Wait until all batches are written or failed, and close. Abort an open transaction; keep a prepared
        transaction.

        In a forked process, the connections are closed without sending anything.
        """
        if self._use.is_refused:
            self._close_cluster()
            return
        self._use.check()
        try:
            if self.transactions.state in _OPEN:
                self.abort_transaction()
            elif self.transactions.state is not ProducerState.FATAL_ERROR:
                self.flush()
        finally:
            self._use.end()
            self._close_cluster()

    def _close_cluster(self) -> None:
        if self._owns_cluster:
            self._cluster.close()

    # ---- transactions

    def init_transactions(self, keep: bool | None = None) -> None:
        """Claim the transactional.id. This fences the previous producer with this id, and aborts its open transaction.

        With `keep`, which defaults to two_phase_commit, the open transaction is kept and becomes `prepared` (KIP-939).
        A call that timed out must be repeated before any other call. Raise IllegalProducerState without a
        transactional.id.
        """
        self._use.check()
        if not self.transactions.is_transactional:
            raise IllegalProducerState('found a producer without transactional.id, expected one')
        self.transactions.initialize(self.settings.two_phase_commit if keep is None else keep)

    def transaction(self) -> Transaction:
        """Return a transaction for a `with` block. The end of the block commits it; an exception aborts it."""
        self._ensure_initialized()
        return Transaction(self)

    def begin_transaction(self) -> None:
        self._use.check()
        self._forget_idle_topics()      # a program may call `poll` only in its transactions
        self.transactions.begin()

    def send_offsets_to_transaction(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
                                    group: GroupMetadata | str) -> None:
        """Add offsets to the transaction, which commits them for a consumer group (consume, transform, produce).

        `group` is `group_metadata` of the consumer. With the group's id alone, the broker cannot refuse the offsets of
        a consumer that has lost its partitions.
        """
        self._use.check()
        wanted, metadata = as_offsets(offsets), as_group(group)
        if wanted:
            self.transactions.send_offsets(wanted, metadata)

    def commit_transaction(self) -> None:
        """Commit the transaction. Return when the coordinator has stored the decision.

        Raise TransactionError if a record was not written. Raise ClientError or KafkaError after max.block.ms; then the
        call may be repeated.
        """
        self._use.check()
        with self._cluster.limit.call(self.settings.max_block_ms):
            if self.transactions.state is not ProducerState.COMMITTING:
                self._flush_transaction()
            self.transactions.end(committed=True)
        self._counts.add('commit_total')

    def abort_transaction(self) -> None:
        """Abort the transaction. Unsent records are dropped, and sent records are marked as aborted.

        Raise the same errors as `commit_transaction`.
        """
        self._use.check()
        reason = KafkaError(ErrorCode.OPERATION_NOT_ATTEMPTED, 'the transaction was aborted')
        with self._cluster.limit.call(self.settings.max_block_ms):
            self._outcomes.drop_waiting(reason)
            while any(queue.in_flight for queue in self._queues):
                self._poll_within_limit()
                self._outcomes.drop_waiting(reason)
            self._outcomes.forget()
            self.transactions.end(committed=False)
        self._counts.add('abort_total')
        self._outcomes.raise_reported()

    def _flush_transaction(self) -> None:
        """Send all batches and wait for them, for at most max.block.ms.

        Raise TransactionError or FatalProducerError if a record was not written.
        """
        try:
            with self._cluster.limit.call(self.settings.max_block_ms):
                while self._close_open_batches():
                    self._poll_within_limit()
            self._outcomes.raise_failure()
        except KafkaError:
            self.transactions.lifecycle.check_can_send()
            raise

    def _poll_within_limit(self) -> None:
        self._cluster.limit.check('found records that are not written yet within max.block.ms')
        self.poll(int(self._cluster.limit.left_ms(self.settings.max_block_ms)))

    def _ensure_initialized(self) -> None:
        self._use.check()
        if self.transactions.state in (ProducerState.UNINITIALIZED, ProducerState.INITIALIZING):
            self.init_transactions()

    # ---- prepared transactions

    @property
    def prepared(self) -> PreparedTransaction | None:
        """The transaction that waits for `complete`.

        This producer has prepared it, or found it when `init_transactions` claimed the transactional.id. None if there
        is no such transaction.
        """
        self._ensure_initialized()
        return self.transactions.prepared

    def prepare_transaction(self) -> PreparedTransaction:
        """Wait until each record is written, and prepare the transaction: only `complete` can end it, even in a later
        process.

        Raise TransactionError if a record was not written.
        """
        self._use.check()
        self.transactions.check_can_prepare()
        self._flush_transaction()
        return self.transactions.prepare()

    def complete(self, decided: PreparedTransaction | str | None) -> bool:
        """End the prepared transaction: commit it if `decided` is its token, abort it otherwise.

        Return True if the transaction was ended, False if no transaction is prepared. Raise ValueError for a malformed
        token, or for the token of a transaction with a different transactional.id.
        """
        if isinstance(decided, str):
            decided = PreparedTransaction.parse(decided) if decided else None
        self._ensure_initialized()
        prepared = self.transactions.prepared
        is_ended = self.transactions.complete(decided)
        if is_ended:
            self._counts.add('commit_total' if decided == prepared else 'abort_total')
        return is_ended

    def end_prepared(self, transactional_id: str, producer_id: int, producer_epoch: int, commit: bool = True) -> None:
        """Commit or abort a transaction of any producer, given its transactional.id, producer id and epoch.

        A repeated call with the same `commit` changes nothing. The cluster must have transaction.version 2. Raise
        TransactionError or ProducerFencedError if the opposite decision has ended the transaction. Raise
        ProducerFencedError if a newer producer has claimed the transactional.id.
        """
        self._use.check()
        end_by_handle(self._cluster, transactional_id, PreparedTransaction(producer_id, producer_epoch), commit,
                      self.settings.max_block_ms)

    # ---- partitions

    def _forget_idle_topics(self) -> None:
        if self._is_transactional and self.transactions.state is not ProducerState.READY:
            return
        forgotten = self._topics.forget_idle(self._appender, self.transactions)
        if forgotten is not None:
            self._outcomes.forget_numbers_of(forgotten)
            self._leaderless = {queue: error for queue, error in self._leaderless.items() if not queue.is_empty}

    def _close_open_batches(self) -> bool:
        """Close the open batches. Return True if any batch is still unfinished."""
        for queue in self._queues:
            queue.close_open()
        return any(not queue.is_empty for queue in self._queues)

    # ---- sending

    def _send_due(self) -> None:
        now_ms = self._clock.monotonic_ms()
        self._expire(now_ms)
        sent = True
        while sent and not self._requests.are_full(self._cluster.nodes):
            sent = False
            for node_id, queues in self._due_by_leader(now_ms).items():
                sent = self._send_to(node_id, queues, now_ms) or sent

    def _expire(self, now_ms: int) -> None:
        oldest_ms = now_ms - self.settings.delivery_timeout_ms
        for queue in expired_queues(self._queues, oldest_ms):
            while queue.waiting and queue.waiting[0].created_ms < oldest_ms:
                batch, reason = queue.waiting.popleft(), self._leaderless.get(queue)
                self._outcomes.fail(queue, batch, KafkaError(
                    ErrorCode.REQUEST_TIMED_OUT, f'{queue.topic}-{queue.partition}: not written within '
                    f'delivery.timeout.ms ({self.settings.delivery_timeout_ms} ms)'
                    + ('' if reason is None else f': {reason}')))

    def _due_by_leader(self, now_ms: int) -> dict[int, list[PartitionQueue]]:
        due: dict[int, list[PartitionQueue]] = {}
        has_room: dict[int, bool] = {}
        for queue in due_queues(self._queues, now_ms, self.settings.linger_ms):
            if not self._is_transactional and not self._may_send(queue):
                continue
            if not queue.waiting:
                queue.close_open()
            try:
                leader_id = self._cluster.partition(queue.topic, queue.partition).leader_id
            except (KafkaError, ClientError) as error:
                if not passes(error):
                    raise
                queue.waiting[0].retry_at_ms = now_ms + self._cluster.config.retry_backoff_ms
                self._leaderless[queue] = error
                continue
            if self._leaderless:
                self._leaderless.pop(queue, None)
            if leader_id not in has_room:
                has_room[leader_id] = self._requests.has_room(leader_id)
            if has_room[leader_id]:
                due.setdefault(leader_id, []).append(queue)
        return due

    def _may_send(self, queue: PartitionQueue) -> bool:
        """Return whether a batch of the partition may be sent by a producer without a transactional.id.

        After a numbered batch was not written, its partition waits until none of its batches is in flight. First,
        batches whose answer was lost are sent again with their old sequence numbers, so that the partition can detect
        duplicates. Then the epoch is bumped, and the remaining batches are renumbered.
        """
        if not self.settings.enable_idempotence:
            return True
        if self.transactions.state in (ProducerState.UNINITIALIZED, ProducerState.INITIALIZING):
            self.transactions.initialize()
        if queue in self._outcomes.lost_numbers:
            if queue.in_flight:
                return False
            doubtful = queue.first_in_doubt()
            if doubtful is not None:
                queue.put_first(doubtful)
                return True
            self._outcomes.lost_numbers.discard(queue)
            self.transactions.bump_epoch()
            queue.forget_numbers()
        return True

    def _send_to(self, node_id: int, queues: list[PartitionQueue], now_ms: int) -> bool:
        if self._is_transactional and self.transactions.state is ProducerState.IN_TRANSACTION:
            try:
                self.transactions.add_partitions((queue.topic, queue.partition) for queue in queues)
            except KafkaError as error:
                self._outcomes.drop_waiting(error)
                raise
        batches: dict[PartitionQueue, ProducerBatch] = {}
        size = 0
        for queue in queues:
            size += queue.waiting[0].size_bytes
            if batches and size > self.settings.max_request_size_bytes:
                break
            batches[queue] = queue.take(self.transactions.producer)
        try:
            self._requests.send(node_id, batches, self.transactions)
        except BaseException as error:
            self._outcomes.put_back(batches, error)
            self._lose_connections()
            if not isinstance(error, KafkaError | ClientError) or not passes(error):
                raise
            return False
        self._counts.add('request_total')
        if self.settings.acks == 0:
            for queue, batch in batches.items():
                self._outcomes.finish(queue, batch, -1)
        return True

    def _next_times(self) -> list[int]:
        """Return the times, in ms of the monotonic clock, at which `poll` must act even if no answer arrives."""
        deadline_ms = self._requests.deadline_ms
        # A due batch that was not sent waits for an answer, because its leader has the largest allowed number of
        # requests in flight.
        after_ms = -1 if deadline_ms is None else self._clock.monotonic_ms()
        times = (next_due_ms(self._queues, after_ms, self.settings.linger_ms), deadline_ms)
        return [time_ms for time_ms in times if time_ms is not None]

    # ---- answers

    def _receive(self, timeout_ms: int | None, wake_on: int | None) -> bool:
        """Receive all answers that have arrived. If none has arrived, wait for an answer or for `wake_on`."""
        connections = self._requests.connections()
        buffered = [connection for connection in connections if connection.has_buffered]
        if not connections and wake_on is None:
            if timeout_ms and not self._is_idle():  # a batch is due later, and no socket to wait for
                self._sleep(timeout_ms / 1000)
            return False
        ready = await_ready(connections, 0 if buffered else timeout_ms, wake_on)
        for connection in connections:
            if connection in buffered or connection in ready.readable:
                self._take_answer(connection)
        self._lose_connections()
        return ready.is_woken

    def _take_answer(self, connection: Any) -> None:
        try:
            request, answer = self._requests.receive(connection)
        except OutOfTime:       # the rest of the answer follows
            return
        except ClientError as error:
            if error.is_lasting:
                raise
            return
        for queue, batch, row in self._requests.rows(request, answer):
            if row is None:
                self._outcomes.fail(queue, batch, KafkaError(
                    ErrorCode.UNKNOWN_SERVER_ERROR, 'the broker gave no answer for '
                    f'{queue.topic}-{queue.partition}'), in_flight=True)
            else:
                self._outcomes.take(queue, batch, row)

    def _lose_connections(self) -> None:
        """Requeue the batches of requests that will get no answer. The broker may or may not have written them."""
        for request in self._requests.lost():
            self._outcomes.put_back(request.batches, ClientError(f'broker {request.node_id} did not answer'))

    def _is_idle(self) -> bool:
        return all(queue.is_empty for queue in self._queues)
