"""A transaction coordinator on real partitions whose flushes, failures and power cuts a test controls."""
from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

from support.worlds.held_partitions import HeldPartition, HeldRegistry

from kbroker.base.clock import ManualClock, Timers
from kbroker.base.completion import Callback
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.internal_topics import CONSUMER_OFFSETS
from kbroker.base.internal_topics import TRANSACTION_STATE as STATE_TOPIC
from kbroker.base.long_work import LongWork, run_to_end
from kbroker.record.batch import encode_batch
from kbroker.record.control import read_end_txn_marker
from kbroker.record.records import decode_records
from kbroker.settings.config import Config
from kbroker.transaction import state_log
from kbroker.transaction.coordinator import TransactionCoordinator
from kbroker.transaction.producer_ids import ProducerIds
from kbroker.transaction.state import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from kbroker.transaction.store import HELD_MS, MOST_TOGETHER_BYTES


class Blocks:
    """A stand-in for the controller's allocation of producer ids. It survives crashes and never allocates an id twice.
    """

    def __init__(self, first: int = 1000, length: int = 1000):
        self.next_block, self.length = first, length
        self.fails = False

    def allocate_producer_id_block(self):
        yield
        if self.fails:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
        block = range(self.next_block, self.next_block + self.length)
        self.next_block += self.length
        return block

    def at_once(self, steps) -> range:
        return run_to_end(steps)


def producer_of(partition: HeldPartition, producer_id: int) -> SimpleNamespace:
    """Return the epoch and the open transaction of a producer, as the batches of a partition show them."""
    state = SimpleNamespace(epoch=-1, is_open=False)
    for header, _ in partition.batches():
        if header.producer_id == producer_id:
            state.epoch = header.producer_epoch
            state.is_open = not header.is_control
    return state


def markers_of(partition: HeldPartition) -> list[tuple[str, int, int, int]]:
    """Return (ABORT or COMMIT, producer id, producer epoch, coordinator epoch) of each marker."""
    found = []
    for header, batch in partition.batches():
        if header.is_control:
            marker = read_end_txn_marker(batch)
            found.append((marker.control_type.name, header.producer_id, header.producer_epoch,
                          marker.coordinator_epoch))
    return found


class ProducerAnswer(NamedTuple):
    """The answer to an InitProducerId or EndTxn."""

    error: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


def producer_to(answers: list[ProducerAnswer]) -> Callback:
    """Return a completion that appends the ProducerAnswer to `answers`."""
    return Callback(lambda error, row: answers.append(
        ProducerAnswer(ErrorCode.NONE, row.client_producer_id, row.client_producer_epoch) if error is None
        else ProducerAnswer(error.code)))


def code_to(answers: list[ErrorCode]) -> Callback:
    """Return a completion that appends the error code to `answers`."""
    return Callback(lambda error, _: answers.append(ErrorCode.NONE if error is None else error.code))


class World:
    """A transaction coordinator and everything that it needs. An operation of a client returns the answer, or None if
    the coordinator has not answered yet.
    """

    def __init__(self, *, immediate: bool = True, transaction_version: int = 2, settings: dict[str, str] | None = None,
                 most_together_bytes: int = MOST_TOGETHER_BYTES):
        self.clock = ManualClock()
        self.config = Config(settings or {})
        self.blocks = Blocks()
        self.version = transaction_version
        self.most_together_bytes = most_together_bytes
        self.topics = HeldRegistry(self.clock, immediate=immediate, internal_partitions=5)
        self.topics.create('orders', 3)
        self.topics.create('audit', 1)
        self.topics.ensure_internal(CONSUMER_OFFSETS)
        self.topics.ensure_internal(STATE_TOPIC)
        self.start()

    def start(self) -> None:
        self.timers = Timers(self.clock)
        self.topics.on_topic_created, self.topics.on_topic_deleted = [], []
        long_work = LongWork(self.timers)
        self.producer_ids = ProducerIds(self.blocks, long_work)
        self.coordinator = TransactionCoordinator(self.config, self.clock, long_work, self.topics,
                                                  self.producer_ids, transaction_version=self.version,
                                                  most_together_bytes=self.most_together_bytes)
        self.coordinator.start()

    # -- clients

    def init(self, transactional_id='tx-1', producer_id=-1, producer_epoch=-1, timeout_ms=60000, *,
             is_two_phase=False, keeps=False):
        answers = []
        self.coordinator.init_producer_id(transactional_id, timeout_ms, producer_id, producer_epoch,
                                          producer_to(answers), is_two_phase, keeps)
        return only(answers)

    def add(self, producer, *partitions, version=0, transactional_id='tx-1'):
        answers = []
        self.coordinator.add_partitions(transactional_id, *producer, partitions or [('orders', 0), ('orders', 1)],
                                        version, code_to(answers))
        return only(answers)

    def end(self, producer, committed, version=0, transactional_id='tx-1'):
        answers = []
        self.coordinator.ender.end_txn(transactional_id, *producer, committed, version, None, producer_to(answers))
        return only(answers)

    def write(self, producer, topic='orders', partition=0):
        """Append a transactional batch of `producer` directly. The coordinator must know its transaction."""
        batch = encode_batch([(self.clock.wall_ms(), b'k', b'v')], producer_id=producer[0], producer_epoch=producer[1],
                             base_sequence=0, transactional=True)
        return self.topics.get(topic, partition).append_batch(batch)

    def transaction(self, producer, *partitions, version=0, transactional_id='tx-1'):
        """Open a transaction and write a batch to each of its partitions."""
        partitions = partitions or (('orders', 0), ('orders', 1))
        assert self.add(producer, *partitions, version=version, transactional_id=transactional_id) is ErrorCode.NONE
        for topic, partition in partitions:
            self.write(producer, topic, partition)

    # -- state

    def row(self, transactional_id='tx-1'):
        return self.coordinator.describe(transactional_id)

    def state_partition(self, transactional_id='tx-1') -> HeldPartition:
        return self.coordinator.store.owner(transactional_id).partition

    def records(self, transactional_id='tx-1'):
        """Return (key, value) bytes of every stored record in the id's state partition."""
        return [(record.key, record.value) for _, batch in self.state_partition(transactional_id).batches()
                for record in decode_records(batch)]

    def rows(self, transactional_id='tx-1'):
        decoded = [state_log.decode_row(key, value) for key, value in self.records(transactional_id)]
        return [row for found, row in decoded if found == transactional_id]

    def states(self, transactional_id='tx-1'):
        return [row.state.title if row else None for row in self.rows(transactional_id)]

    def markers(self, topic='orders', partition=0):
        return markers_of(self.topics.get(topic, partition))

    def endings(self, topic='orders', partition=0):
        return [kind for kind, *_ in self.markers(topic, partition)]

    # -- disk and clock

    def partitions(self):
        return self.topics.partitions()

    def flush(self, *names) -> None:
        """Flush the named topics, or all topics, until the flushes cause no further append."""
        for partition in self.partitions():
            if not names or partition.topic in names:
                partition.flush()

    def run_until_idle(self) -> None:
        """Flush topics and run due timers until the coordinator has nothing left to do."""
        for _ in range(10):
            self.flush()
            self.pass_time(100)

    def pass_time(self, ms: int) -> None:
        self.clock.advance(ms)
        self.timers.run_due()

    def write_held(self) -> None:
        """Advance the clock until the coordinator writes a held Complete row by itself, without another row to write it
        with.
        """
        self.pass_time(HELD_MS)

    def crash(self, kept_batches: int = 0) -> None:
        """Discard all unflushed batches except the first `kept_batches` of each partition, and start a new coordinator.
        """
        self.topics.power_loss(kept_batches)
        self.start()


def only(answers):
    assert len(answers) <= 1
    return answers[0] if answers else None


__all__ = ['STATE_TOPIC', 'Blocks', 'World', 'code_to', 'markers_of', 'producer_of', 'producer_to']
