"""A log in memory, and a View over such logs, for tests of timelines and histories."""
from __future__ import annotations

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.internal_topics import TRANSACTION_STATE as STATE_TOPIC
from kbroker.client.descriptions import ProducerInfo
from kbroker.record.batch import encode_batch, iter_batches, read_header, set_base_offset
from kbroker.record.control import encode_end_txn_marker
from kbroker.topics.partitioner import partition_for
from kbroker.transaction.state import TransactionRow, TransactionState
from kbroker.transaction.state_log import encode_row, encode_tombstone
from kbroker_tools.base.view import PartitionInfo, PartitionOffsets, TopicInfo
from kbroker_tools.timeline.transactions_of_partition import replay

START_MS = 1_700_000_000_000


class InMemoryLog:
    """The batches of a partition in memory. `append` places each batch at the next offset."""

    def __init__(self, start_offset=0):
        self.start_offset = self.end_offset = start_offset
        self.data = bytearray()

    def append(self, batch):
        set_base_offset(batch, self.end_offset)
        header = read_header(batch)
        self.end_offset = header.last_offset + 1
        self.data += batch
        return header.base_offset

    def write(self, producer_id=-1, epoch=-1, at_ms=0, records=1, transactional=None, size_bytes=1):
        """Append a batch of data. By default it is transactional if `producer_id` is given. Return its first offset."""
        transactional = producer_id >= 0 if transactional is None else transactional
        return self.append(encode_batch(
            [(START_MS + at_ms, None, b'x' * size_bytes)] * records, producer_id=producer_id, producer_epoch=epoch,
            base_sequence=0 if producer_id >= 0 else -1, transactional=transactional))

    def end(self, producer_id, epoch, commit=True, at_ms=0, coordinator_epoch=0):
        return self.append(encode_end_txn_marker(
            commit=commit, producer_id=producer_id, producer_epoch=epoch, coordinator_epoch=coordinator_epoch,
            timestamp_ms=START_MS + at_ms))

    def batches(self, start_offset=0, end_offset=None):
        for header, batch in iter_batches(memoryview(self.data)):
            if end_offset is not None and header.base_offset >= end_offset:
                return
            if header.last_offset >= start_offset:
                yield header, batch


class InMemoryView:
    """A View over `logs`, which maps (topic, partition) to a log. `write_row` appends to `__transaction_state`."""

    place = 'nowhere'
    is_live = False

    def __init__(self, state_partitions=3):
        self.logs: dict[tuple[str, int], InMemoryLog] = {}
        self.state_partitions = state_partitions
        self.clock_ms = START_MS + 60_000
        self.closed = 0

    def log(self, topic, partition=0, start_offset=0):
        return self.logs.setdefault((topic, partition), InMemoryLog(start_offset))

    def write_row(self, transactional_id, state, producer_id, epoch, *, at_ms, start_ms=None, partitions=(),
                  timeout_ms=60_000, version=2, previous=-1, following=-1, next_epoch=-1):
        row = TransactionRow(
            TransactionState[state], producer_id, epoch, timeout_ms, START_MS + at_ms,
            -1 if start_ms is None else START_MS + start_ms, frozenset(partitions), previous, following,
            client_transaction_version=version, next_producer_epoch=next_epoch)
        key, value = encode_row(transactional_id, row, 1)
        return self._state_log(transactional_id).append(encode_batch([(START_MS + at_ms, key, value)]))

    def forget(self, transactional_id, at_ms):
        key, value = encode_tombstone(transactional_id)
        return self._state_log(transactional_id).append(encode_batch([(START_MS + at_ms, key, value)]))

    def _state_log(self, transactional_id):
        for partition in range(self.state_partitions):
            self.log(STATE_TOPIC, partition)
        return self.log(STATE_TOPIC, partition_for(transactional_id, self.state_partitions))

    # -- the View

    def now_ms(self):
        return self.clock_ms

    def unreadable(self, partitions):
        return {}

    def topics(self):
        names = sorted({topic for topic, _ in self.logs})
        return {name: TopicInfo(name, bytes(16), name.startswith('__'), tuple(
            PartitionInfo(name, partition, 1) for topic, partition in sorted(self.logs) if topic == name))
            for name in names}

    def partition_offsets(self, topic, partition):
        log = self._log(topic, partition)
        opened = [transaction.first_offset for transaction in replay(log.batches()).transactions
                  if transaction.marker is None]
        return PartitionOffsets(log.start_offset, log.end_offset, min(opened, default=log.end_offset))

    def producers(self, topic, partition):
        found = {}
        for transaction in replay(self._log(topic, partition).batches()).transactions:
            found[transaction.producer_id] = ProducerInfo(
                transaction.producer_id, transaction.producer_epoch, 0, transaction.end_timestamp_ms, 0,
                transaction.first_offset if transaction.marker is None else None)
        return list(found.values())

    def batches(self, topic, partition, start_offset=0, end_offset=None):
        return self._log(topic, partition).batches(start_offset, end_offset)

    def close(self):
        self.closed += 1

    def _log(self, topic, partition):
        if (topic, partition) not in self.logs:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f'found no partition {topic}-{partition}')
        return self.logs[topic, partition]
