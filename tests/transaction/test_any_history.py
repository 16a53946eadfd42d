"""The invariants of transactions hold in random histories of clients with and without TV2, in which disk and power fail
at random.

Covers promises 2, 4 and 5 of docs/design.md.
"""
from __future__ import annotations

import functools
from collections import defaultdict

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.worlds.held_partitions import HeldPartition
from support.worlds.transaction_coordinator import STATE_TOPIC, World, markers_of

from kbroker.base.completion import Callback
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.record.batch import iter_batches
from kbroker.record.control import ControlType, read_end_txn_marker
from kbroker.record.records import decode_records
from kbroker.transaction.state import IDLE, PREPARED, TransactionState
from kbroker.transaction.state_log import decode_row

IDS = ('tx-1', 'tx-2')
PARTITIONS = (('orders', 0), ('orders', 1), ('audit', 0))
DISK_FAULTS = ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT
MOSTLY = st.integers(0, 3).map(bool)
S = TransactionState


class Client:
    """A producer with a transactional.id, which other clients may share, and the answers that it has received."""

    def __init__(self, transactional_id: str, version: int):
        self.transactional_id = transactional_id
        self.version = version
        self.producer: tuple[int, int] | None = None
        self.has_added = False
        self.ending: tuple[tuple[int, int], bool] | None = None
        self.refusal: ErrorCode | None = None
        """The error of the last InitProducerId, or None if it succeeded or is not answered yet."""
        self.kept: tuple[int, int] | None = None
        """The (producer id, epoch) of a previous client's open transaction, which this client has kept and must
        complete (KIP-939)."""


class Histories(RuleBasedStateMachine):
    @initialize(version=st.sampled_from([2, 1, 0]))
    def begin(self, version):
        self.world = World(immediate=False, transaction_version=version)
        versions = (2, 0) if version == 2 else (0, 0)
        self.clients = [Client(transactional_id, client_version) for transactional_id in IDS
                        for client_version in versions]
        self.given: set[tuple[int, int]] = set()
        self.decided: dict[tuple[str, int, int], bool] = {}
        """Maps (transactional.id, producer id, epoch of the data) to the decision of an answered EndTxn: True for a
        commit."""
        self.unanswered = 0

    def client(self, data):
        return data.draw(st.sampled_from(self.clients))

    @rule(data=st.data(), names_itself=st.booleans(), flushes=MOSTLY, has_a_producer=st.integers(0, 4),
          keeps=st.booleans())
    def init(self, data, names_itself, flushes, has_a_producer, keeps):
        client = self.client(data)
        if client.producer is not None and has_a_producer:
            return                                           # a client with a producer id rarely starts without it
        self.init_client(client, client.producer if names_itself and client.producer else (-1, -1), flushes,
                         keeps and self.world.version == 2)

    def init_client(self, client, producer, flushes, keeps=False):
        client.producer, client.has_added, client.ending, client.kept = None, False, None, None
        client.refusal = None

        def answered(error, row):
            self.unanswered -= 1
            client.refusal = None if error is None else error.code
            if error is None:
                client.producer = row.client_producer_id, row.client_producer_epoch
                if row.is_kept:
                    client.has_added, client.kept = True, (row.producer_id, row.producer_epoch)
        self.unanswered += 1
        self.world.coordinator.init_producer_id(client.transactional_id, 60000, *producer, Callback(answered), False,
                                                keeps)
        self.go_on(flushes)

    def go_on(self, flushes):
        if flushes:
            for _ in range(4):
                self.world.flush()

    @rule(data=st.data(), partition=st.sampled_from(PARTITIONS), flushes=MOSTLY)
    def produce(self, data, partition, flushes):
        self.produce_as(self.client(data), partition, flushes)

    def produce_as(self, client, partition, flushes):
        producer = client.producer
        if producer is None or client.ending is not None:
            return

        def added(error, _):
            self.unanswered -= 1
            if error is None and client.producer == producer and client.ending is None:
                client.has_added = True
                try:
                    self.world.write(producer, *partition)
                except KafkaError as refused:
                    assert refused.code in (ErrorCode.INVALID_PRODUCER_EPOCH, *DISK_FAULTS)
        self.unanswered += 1
        self.world.coordinator.add_partitions(client.transactional_id, *producer, [partition], client.version,
                                              Callback(added))
        self.go_on(flushes)

    @rule(data=st.data(), committed=st.booleans(), flushes=MOSTLY)
    def end(self, data, committed, flushes):
        self.end_as(self.client(data), committed, flushes)

    def end_as(self, client, committed, flushes):
        if client.producer is None:
            return
        if client.ending is None:
            if not client.has_added:
                return
            client.ending = client.producer, committed
        producer, committed = client.ending                  # a client repeats only its own request
        self.unanswered += 1
        self.world.coordinator.ender.end_txn(
            client.transactional_id, *producer, committed, client.version, None,
            Callback(lambda error, row: self.ended(client, producer, committed, error, row)))
        self.go_on(flushes)

    def ended(self, client, producer, committed, error, row):
        self.unanswered -= 1
        if client.ending != (producer, committed):
            return
        if error is None:
            client.producer, client.has_added, client.ending = (row.producer_id, row.producer_epoch), False, None
            if client.version == 2 and not (client.kept and self.has_ended_a_transaction(client.kept)):
                self.decided[client.transactional_id, *(client.kept or producer)] = committed
            client.kept = None
        elif not error.code.retriable:
            client.producer, client.has_added, client.ending, client.kept = None, False, None, None

    def has_ended_a_transaction(self, pair):
        """Return whether an earlier transaction had this (producer id, epoch). Clients without TV2 keep their epoch, so
        the pair of a kept transaction does not identify it."""
        return any((producer_id, epoch) == pair for partition in self.data_partitions()
                   for _, producer_id, epoch, _ in markers_of(partition))

    @rule(data=st.data(), partitions=st.lists(st.sampled_from(PARTITIONS), min_size=1, max_size=3),
          committed=st.booleans(), flushes=MOSTLY)
    def run_a_transaction(self, data, partitions, committed, flushes):
        client = self.client(data)
        if client.producer is None:
            self.init_client(client, (-1, -1), True)
        for partition in partitions:
            self.produce_as(client, partition, True)
        self.end_as(client, committed, flushes)

    @rule(ms=st.sampled_from([20, 100, 20_000, 70_000]))
    def wait(self, ms):
        self.world.pass_time(ms)

    @rule(data=st.data())
    def flush_some(self, data):
        dirty = [partition for partition in self.world.partitions()
                 if partition.high_watermark < partition.log_end_offset]
        if dirty:
            data.draw(st.sampled_from(dirty)).flush()

    @rule()
    def flush_all(self):
        self.world.flush()

    @rule(data=st.data(), code=st.sampled_from([None, *DISK_FAULTS]))
    def disk_fails_or_recovers(self, data, code):
        partition = data.draw(st.sampled_from([
            *self.data_partitions(), *(self.world.state_partition(transactional_id) for transactional_id in IDS)]))
        partition.refuse(KafkaError(code) if code else None)

    @precondition(lambda self: self.world.version == 2)
    @rule(transactional_id=st.sampled_from(IDS), epoch=st.sampled_from([32766, 32765]))
    def age(self, transactional_id, epoch):
        """Set the epoch of a producer id directly, as if many transactions had raised it. Do nothing in a state to
        which they could not have led."""
        try:
            _, metadata = self.world.coordinator.store.find(transactional_id)
        except KafkaError:
            return
        if (metadata is None or metadata.pending is not None or metadata.current.state not in IDLE
                or not 0 <= metadata.current.producer_epoch < epoch):
            return
        producer_id, young_epoch = metadata.current.producer_id, metadata.current.producer_epoch
        metadata.current = metadata.current._replace(producer_epoch=epoch)
        for client in self.clients:
            if client.producer == (producer_id, young_epoch):
                client.producer = producer_id, epoch

    @rule(kept_batches=st.integers(0, 3))
    def power_fails(self, kept_batches):
        self.world.crash(kept_batches)
        self.unanswered = 0
        for client in self.clients:
            if client.producer is None:
                client.ending = None

    @precondition(lambda self: self.world.version >= 1)
    @rule(data=st.data(), kept_batches=st.integers(0, 3))
    def power_fails_before_a_client_has_the_answer_to_its_bump(self, data, kept_batches):
        """The client asks again with the pair that it knows, and gets the same answer (KAFKA-20357)."""
        client = self.client(data)
        known = client.producer
        if known is None or client.ending is not None:
            return
        self.init_client(client, known, True)
        lost = client.producer
        if lost is None:
            return
        self.power_fails(kept_batches)
        self.init_client(client, known, True)
        assert client.producer == lost or (client.refusal is not None and client.refusal.retriable)

    # -- invariants

    @invariant()
    def no_marker_is_there_before_its_decision_is_durable(self):
        prepared = {(row.producer_id, row.producer_epoch, row.state)
                    for _, row, durable in self.rows() if row.state in PREPARED and durable}
        for partition in self.data_partitions():
            for kind, producer_id, epoch, _ in markers_of(partition):
                state = S.PREPARE_COMMIT if kind == 'COMMIT' else S.PREPARE_ABORT
                assert (producer_id, epoch, state) in prepared

    @invariant()
    def epochs_never_go_back(self):
        latest: dict[str, tuple[int, int]] = {}
        for transactional_id, row, _ in self.rows():
            pair = row.producer_id, row.producer_epoch
            assert pair >= latest.get(transactional_id, (-1, -1)), (transactional_id, pair)
            latest[transactional_id] = pair

    @invariant()
    def a_transaction_is_complete_only_when_every_marker_is_durable(self):
        prepared = {}
        for transactional_id, row, _ in self.rows():
            if row.state in PREPARED:
                prepared[transactional_id] = row
            elif row.state in (S.COMPLETE_COMMIT, S.COMPLETE_ABORT):
                decision = prepared[transactional_id]
                assert (decision.state is S.PREPARE_COMMIT) == (row.state is S.COMPLETE_COMMIT)
                kind = ControlType.COMMIT if row.state is S.COMPLETE_COMMIT else ControlType.ABORT
                for topic, index in decision.partitions:
                    partition = self.world.topics.get(topic, index)
                    assert any(header.is_control and header.last_offset < partition.high_watermark
                               and header.producer_id == decision.producer_id
                               and header.producer_epoch == decision.producer_epoch
                               and read_end_txn_marker(batch).control_type is kind
                               for header, batch in partition.batches()), (transactional_id, topic, index)

    def teardown(self):
        """Let the coordinator finish its work. Check that each transaction has ended, and that a marker follows all
        transactional data."""
        if not hasattr(self, 'world'):
            return
        for partition in self.world.partitions():
            partition.refuse(None)
        for _ in range(3):
            self.world.run_until_idle()
            self.world.pass_time(80_000)
        self.world.run_until_idle()
        assert self.unanswered == 0
        self.a_transaction_is_complete_only_when_every_marker_is_durable()
        for transactional_id, row in self.world.coordinator.list_transactions():
            assert row.state in (S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT), (transactional_id, row)
        self.everything_that_was_promised_is_kept()

    def everything_that_was_promised_is_kept(self):
        """Check that a marker follows the data of each transaction, and that the marker agrees with the answer to
        EndTxn."""
        owner = {row.producer_id: transactional_id for transactional_id, row, _ in self.rows()}
        for partition in self.data_partitions():
            undecided: dict[int, int] = defaultdict(lambda: -1)
            for header, batch in partition.batches():
                if not header.is_control:
                    undecided[header.producer_id] = header.producer_epoch
                elif (epoch := undecided.pop(header.producer_id, None)) is not None:
                    assert header.producer_epoch in (epoch, epoch + 1)
                    told = self.decided.get((owner[header.producer_id], header.producer_id, epoch))
                    committed = read_end_txn_marker(batch).control_type is ControlType.COMMIT
                    assert told is None or told == committed
            assert not undecided

    def data_partitions(self) -> list[HeldPartition]:
        return [self.world.topics.get(*partition) for partition in PARTITIONS]

    def rows(self):
        """Yield (transactional.id, row, True if it is durable) in the order of each state partition."""
        if not hasattr(self, 'world'):
            return
        for partition in self.world.topics.topic(STATE_TOPIC).partitions:
            for stored in partition.stored:
                for transactional_id, row, last_offset in rows_of(stored):
                    yield transactional_id, row, last_offset < partition.high_watermark


@functools.cache
def rows_of(stored):
    """Return (transactional.id, row, last offset of the batch) for each record in a stored batch."""
    (header, batch), = iter_batches(stored)
    return [(*decode_row(record.key, record.value), header.last_offset) for record in decode_records(batch)]


Histories.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None,
                                       suppress_health_check=list(HealthCheck))
TestAnyHistory = Histories.TestCase
