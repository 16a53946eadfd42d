"""The clients of a chain of programs on one log directory, and a model of the state that they have built."""
from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

import confluent_kafka
from confluent_kafka import TopicPartition
from support.clients.librdkafka import LIMIT_S, read_to_the_end
from support.clients.markers import await_markers
from support.clients.raw_client import RawClient
from support.kafka.chain_plans import Link
from support.kafka.shown_metadata import await_shown_metadata
from support.messages.message_builder import build

from kbroker.base.errors import ErrorCode
from kbroker.client import Admin, NewTopic, Producer, ScramCredentialUpsertion
from kbroker.client.transaction_manager import GroupMetadata
from kbroker.metadata.features import METADATA_VERSION
from kbroker.record.batch import encode_batch

NEVER_MS = 600_000
"""A transaction timeout that is longer than the time between two programs."""
PAYMENTS, REFUNDS, REPEATED, RACED, TABLE = 'payments', 'refunds', 'repeated', 'raced', 'table'
TOPICS = {PAYMENTS: 2, REFUNDS: 2, REPEATED: 1, RACED: 2, TABLE: 1}
TABLE_CONFIGS = {'cleanup.policy': 'compact', 'segment.ms': '100', 'min.cleanable.dirty.ratio': '0.01'}
BATCHES = 5
"""The number of batches that a producer may have in flight, and whose repetition a broker therefore recognizes."""
USER = 'client-id', 'app'
COMMITS_BEFORE_A_KILL = 5
UNSETTLED = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR,
             ErrorCode.CONCURRENT_TRANSACTIONS}

Partition = tuple[str, int]


class Companion(Protocol):
    """Further clients of a chain, with the state that they expect."""

    settings: Mapping[str, str]
    """The settings of the programs."""

    def begin(self, address: str) -> None:
        """Begin on the new directory."""

    def check(self, address: str) -> None:
        """Compare the state that a program found with the expected state."""

    def work(self) -> None:
        """Work on the program at the address of the last call."""

    def leave(self) -> None:
        """End the connections: the program will be stopped or killed."""


@dataclass
class OpenTransaction:
    """A transaction of librdkafka that is open while one program follows another."""

    number: int
    producer: Any
    offset: int


class Racer(threading.Thread):
    """A client that writes and commits one transaction after the other (KIP-890) until the broker dies."""

    def __init__(self, address: str, first: int):
        super().__init__(daemon=True)
        self.committed: list[str] = []
        """The values of the transactions whose commits the broker has acknowledged."""
        self.begun: list[str] = []
        """The value of the transaction that has no answer to its commit yet."""
        self._address = address
        self._first = first
        self._changed = threading.Condition()
        self._is_deciding = False
        """True while the client waits for the answer to a commit."""
        self._has_ended = False

    def await_commit(self, count: int) -> None:
        """Wait until the client commits a transaction after `count` others. Raise AssertionError if it ends before."""
        with self._changed:
            self._changed.wait_for(lambda: (len(self.committed) >= count and self._is_deciding) or self._has_ended,
                                   LIMIT_S)
            assert len(self.committed) >= count and not self._has_ended

    def run(self) -> None:
        try:
            with suppress(ConnectionError), RawClient.at(self._address) as client:
                producer = new_producer(client, RACED)
                for number in count(self._first):
                    producer = self._commit(client, producer, str(number))
        finally:
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()

    def _commit(self, client: RawClient, producer: Any, value: str) -> Any:
        """Commit a transaction with a value in each partition. Return the answer, which has the next epoch."""
        pair = {'producer_id': producer.producer_id, 'producer_epoch': producer.producer_epoch}
        records = bytes(encode_batch([(now_ms(), None, value.encode())], base_sequence=0, transactional=True, **pair))
        with self._changed:
            self.begun = [value]
        written = client.ask(build('ProduceRequest', transactional_id=RACED, acks=-1, timeout_ms=30_000, topic_data=[
            dict(name=RACED, partition_data=[dict(index=index, records=records) for index in range(TOPICS[RACED])])]),
            12)
        assert {row.error_code for row in written.responses[0].partition_responses} == {0}, written
        with self._changed:
            self._is_deciding = True
            self._changed.notify_all()
        answer = settled(client, build('EndTxnRequest', transactional_id=RACED, committed=True, **pair), 5)
        with self._changed:
            self._is_deciding = False
            self.committed.append(value)
            self.begun = []
        return answer


class Clients:
    """The clients of a chain, and a model of the state that they have built."""

    def __init__(self, address: str, has_lasting_clients: bool, level: int, companion: Companion | None):
        self.address = address
        self.companion = companion
        self.level = level
        """The finalized metadata.version."""
        self.knows_all_batches = True
        """The value of `keeps_batches` in the module `chains`, for the current program."""
        self.ended: list[Link] = []
        """The programs that have ended."""
        self._has_lasting_clients = has_lasting_clients
        self._log: defaultdict[Partition, list[tuple[str, int]]] = defaultdict(list)
        """Maps a partition to its records: (value, number of the transaction or 0)."""
        self._ended: dict[int, bool] = {0: True}
        """Maps the number of each ended transaction to whether it was committed."""
        self._offsets: dict[str, int] = {}
        """Maps a group to its offset of the first partition of PAYMENTS."""
        self._table: dict[bytes, bytes] = {}
        self._topic_ids: dict[str, bytes] = {}
        self._configs: dict[str, dict[str, str]] = {}
        self._quotas: dict[str, float] = {}
        self._users: set[str] = set()
        self._batches: list[tuple[bytes, int]] = []
        """The last batches of the producer without transactions, each with its offset."""
        self._producer_ids: set[int] = set()
        self._raced: list[str] = []
        """The values of the committed transactions of racers."""
        self._doubtful: list[str] = []
        """The value of the transaction that a racer was writing or committing at the kill."""
        self._foreign_topics: Set[str] = set()
        """The topics of the companion."""
        self._open: OpenTransaction | None = None
        self._lasting: Producer | None = None

    def close(self) -> None:
        if self._lasting is not None:
            self._lasting.close()

    # ---- work

    def begin(self) -> None:
        """Create the topics in the new directory."""
        with Admin(self.address) as admin:
            self._create(admin, *(NewTopic(name, count, 1, configs=TABLE_CONFIGS if name == TABLE else {})
                                  for name, count in TOPICS.items()))
        if self.companion is not None:
            self.companion.begin(self.address)
            self._foreign_topics = topic_ids(self.address).keys() - TOPICS.keys()

    def work(self, number: int) -> None:
        """Let all clients work. `number` is that of the program."""
        self._end_open(number)
        self._work_with_librdkafka(number)
        self._work_with_kbroker(number)
        self._send_batches(number)
        self._write_table(number)
        self._change_metadata(number)
        self._leave_open(number)
        if self.companion is not None:
            self.companion.work()

    def _begin_transaction(self) -> int:
        return len(self._ended) + (self._open is not None)

    def _write(self, producer: Any, value: str, transaction: int) -> None:
        """Write a value to each partition of two topics with a producer of librdkafka."""
        for topic in (PAYMENTS, REFUNDS):
            for partition in range(TOPICS[topic]):
                producer.produce(topic, value, partition=partition)
                self._log[topic, partition].append((value, transaction))
        assert producer.flush(LIMIT_S) == 0

    def _librdkafka(self, transactional_id: str) -> Any:
        producer = confluent_kafka.Producer({
            'bootstrap.servers': self.address, 'transactional.id': transactional_id, 'log_level': 0,
            'transaction.timeout.ms': NEVER_MS, 'reconnect.backoff.max.ms': 500})
        producer.init_transactions(LIMIT_S)
        return producer

    def _send_offset(self, producer: Any, group: str, offset: int) -> None:
        consumer = confluent_kafka.Consumer({'bootstrap.servers': self.address, 'group.id': group, 'log_level': 0})
        producer.send_offsets_to_transaction([TopicPartition(PAYMENTS, 0, offset)], consumer.consumer_group_metadata(),
                                             LIMIT_S)
        consumer.close()

    def _work_with_librdkafka(self, number: int) -> None:
        """Commit one transaction and abort one, both with offsets."""
        producer, group = self._librdkafka('ended'), 'librdkafka-readers'
        for is_committed in (True, False):
            transaction = self._begin_transaction()
            producer.begin_transaction()
            self._write(producer, f'{number} librdkafka {is_committed}', transaction)
            self._send_offset(producer, group, 2 * number + 1 + (not is_committed))
            (producer.commit_transaction if is_committed else producer.abort_transaction)(LIMIT_S)
            self._ended[transaction] = is_committed
        self._offsets[group] = 2 * number + 1

    def _work_with_kbroker(self, number: int) -> None:
        """Abort one transaction and commit one, both with offsets, with kbroker's client."""
        group = GroupMetadata('kbroker-readers')
        producer = self._lasting
        if producer is None:
            producer = Producer(self.address, transactional_id='kbroker', transaction_timeout_ms=NEVER_MS)
            producer.init_transactions()
        for is_committed in (False, True):
            transaction = self._begin_transaction()
            value = f'{number} kbroker {is_committed}'
            producer.begin_transaction()
            for topic in (REFUNDS, PAYMENTS):
                for partition in range(TOPICS[topic]):
                    producer.send(topic, value.encode(), partition=partition)
                    self._log[topic, partition].append((value, transaction))
            producer.flush()
            producer.send_offsets_to_transaction({(PAYMENTS, 0): 2 * number + is_committed}, group)
            (producer.commit_transaction if is_committed else producer.abort_transaction)()
            self._ended[transaction] = is_committed
        self._offsets[group.group_id] = 2 * number + 1
        if self._has_lasting_clients:
            self._lasting = producer
        else:
            producer.close()

    def _leave_open(self, number: int) -> None:
        """Leave a transaction with records and an offset open."""
        transaction = self._begin_transaction()
        producer = self._librdkafka('open')
        producer.begin_transaction()
        self._write(producer, f'{number} open', transaction)
        self._send_offset(producer, 'open-readers', number)
        self._open = OpenTransaction(transaction, producer, number)

    def _end_open(self, number: int) -> None:
        """Let the client of the open transaction commit it, or let a new client with its transactional id abort it."""
        if self._open is None:
            return
        is_committed = self._has_lasting_clients
        if is_committed:
            self._write(self._open.producer, f'{number} last', self._open.number)
            self._open.producer.commit_transaction(LIMIT_S)
            self._offsets['open-readers'] = self._open.offset
        else:
            self._librdkafka('open')
        self._ended[self._open.number] = is_committed
        self._open = None

    def _send_batches(self, number: int) -> None:
        """Let a new idempotent producer send as many batches as may be in flight."""
        with RawClient.at(self.address) as client:
            answer = new_producer(client)
            assert answer.producer_id > max(self._producer_ids, default=-1)
            self._producer_ids.add(answer.producer_id)
            self._batches = []
            for sequence in range(BATCHES):
                value = f'{number} batch {sequence}'
                records = bytes(encode_batch([(now_ms(), None, value.encode())], producer_id=answer.producer_id,
                                             producer_epoch=answer.producer_epoch, base_sequence=sequence))
                code, offset = produced(client, records)
                assert (code, offset) == (0, len(self._log[REPEATED, 0]))
                self._log[REPEATED, 0].append((value, 0))
                self._batches.append((records, offset))

    def _write_table(self, number: int) -> None:
        """Replace one value of the compacted topic, add one and delete one. Each batch begins a segment."""
        producer = confluent_kafka.Producer({'bootstrap.servers': self.address, 'log_level': 0})
        for key, value in ((b'always', b'%d' % number), (b'only %d' % number, b'here'),
                           (b'only %d' % (number - 1), None)):
            producer.produce(TABLE, value, key, partition=0)
            assert producer.flush(LIMIT_S) == 0
            self._table.pop(key, None)
            if value is not None:
                self._table[key] = value

    def _change_metadata(self, number: int) -> None:
        """Create a topic, delete the one of the program before, and change a config, a quota and a user."""
        name, old = f'made-{number}', f'made-{number - 1}'
        with Admin(self.address) as admin:
            self._create(admin, NewTopic(name, 2, 1, configs={'retention.ms': str(NEVER_MS * 1000 + number)}))
            if number:
                assert admin.delete_topics([old]) == {old: None}
                del self._topic_ids[old], self._configs[old]
            changes = {'max.message.bytes': str(1_000_000 + number)}
            admin.alter_config('topic', PAYMENTS, changes)
            self._configs[PAYMENTS] = changes
            self._quotas = {'producer_byte_rate': 1e8 + number}
            assert admin.alter_client_quotas([USER], self._quotas) is None
            user = f'user-{number}'
            credential = ScramCredentialUpsertion('SCRAM-SHA-256', 4096, b'salt' * 4, b'%032d' % number)
            assert admin.alter_scram_credentials(user, upsertions=[credential]) is None
            self._users.add(user)

    def _create(self, admin: Admin, *topics: NewTopic) -> None:
        created = admin.create_topics(topics)
        assert created == dict.fromkeys(topic.name for topic in topics), created
        await_shown_metadata(self.address)
        for topic in topics:
            self._topic_ids[topic.name] = topic_ids(self.address)[topic.name]
            self._configs[topic.name] = dict(topic.configs or {})

    def race(self, kill: Callable[[], None]) -> None:
        """Let a client commit transactions until `kill` ends the broker."""
        racer = Racer(self.address, len(self._raced))
        racer.start()
        racer.await_commit(COMMITS_BEFORE_A_KILL)
        kill()
        racer.join()
        self._raced += racer.committed
        self._doubtful = racer.begun

    # ---- checks

    def check(self) -> None:
        """Compare the data of the directory with the model, after a start and before any work."""
        if self._raced:
            with RawClient.at(self.address) as client:
                new_producer(client, RACED)     # it aborts a transaction that was not decided
        await_markers(self.address)
        self._check_raced()
        for isolation in ('read_committed', 'read_uncommitted'):
            found = values_by_partition(self.address, isolation)
            for partition in [(name, index) for name in (PAYMENTS, REFUNDS, REPEATED) for index in range(TOPICS[name])]:
                assert found[partition] == self._expected(partition, isolation), (partition, isolation)
        self._repeat_batches()
        assert self._found_table() == self._table
        with Admin(self.address) as admin:
            for group, offset in self._offsets.items():
                assert {at: each.offset for at, each in admin.list_group_offsets(group).items()} == {
                    (PAYMENTS, 0): offset}, group
            for name, expected in self._configs.items():
                described = admin.describe_config('topic', name)
                assert {key: described[key] for key in expected} == expected, name
            assert admin.describe_client_quotas() == {(USER,): self._quotas}
            assert set(admin.describe_scram_credentials()) == self._users
        assert {name: topic_id for name, topic_id in topic_ids(self.address).items()
                if name not in self._foreign_topics and not name.startswith('__')} == self._topic_ids
        assert finalized_level(self.address) == self.level
        if self.companion is not None:
            self.companion.check(self.address)

    def _expected(self, partition: Partition, isolation: str) -> list[str]:
        """Return the values that a reader gets. The first record of an open transaction ends committed reads."""
        expected = []
        for value, transaction in self._log[partition]:
            is_committed = self._ended.get(transaction)
            if isolation == 'read_committed' and is_committed is None:
                break
            if is_committed or isolation == 'read_uncommitted':
                expected.append(value)
        return expected

    def _check_raced(self) -> None:
        """Compare the committed transactions of racers. The last one is in both partitions, or in none."""
        first, second = ([message.value().decode() for message in read_to_the_end(self.address, [(RACED, index)])]
                         for index in range(TOPICS[RACED]))
        assert first == second
        assert first in (self._raced, self._raced + self._doubtful)
        self._raced, self._doubtful = first, []

    def _repeat_batches(self) -> None:
        """Send the last batches again. The broker answers with the offset of each batch that it knows, refuses the
        others, and appends none.
        """
        with RawClient.at(self.address) as client:
            for records, offset in self._batches:
                code, found = produced(client, records)
                if self.knows_all_batches or code == 0 or records is self._batches[-1][0]:
                    assert (code, found) == (0, offset)
                else:
                    assert code in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.DUPLICATE_SEQUENCE_NUMBER), code

    def _found_table(self) -> dict[bytes, bytes]:
        found = {message.key(): message.value() for message in read_to_the_end(self.address, [(TABLE, 0)])}
        return {key: value for key, value in found.items() if value is not None}


def values_by_partition(address: str, isolation: str) -> dict[Partition, list[str]]:
    """Return the values in all partitions of the topics whose records the model orders."""
    found: defaultdict[Partition, list[str]] = defaultdict(list)
    partitions = [(name, index) for name in (PAYMENTS, REFUNDS, REPEATED) for index in range(TOPICS[name])]
    for message in read_to_the_end(address, partitions, isolation):
        found[message.topic(), message.partition()].append(message.value().decode())
    return found


def new_producer(client: RawClient, transactional_id: str | None = None) -> Any:
    """Return the answer with the id and the epoch of a new producer. Kafka refuses to give ids while it gets another
    block of them.
    """
    return settled(client, build('InitProducerIdRequest', transactional_id=transactional_id, producer_id=-1,
                                 transaction_timeout_ms=NEVER_MS, producer_epoch=-1), 4)


def settled(client: RawClient, request: Any, version: int) -> Any:
    """Send a request until the coordinator has loaded its state and completed earlier requests. Return the answer."""
    deadline = time.monotonic() + LIMIT_S
    while (answer := client.ask(request, version)).error_code in UNSETTLED:
        assert time.monotonic() < deadline, answer
    assert answer.error_code == 0, answer
    return answer


def produced(client: RawClient, records: bytes) -> tuple[int, int]:
    """Send a batch to REPEATED. Return its error code and its offset."""
    answer = client.ask(build('ProduceRequest', acks=-1, timeout_ms=30_000, topic_data=[
        {'name': REPEATED, 'partition_data': [{'index': 0, 'records': records}]}]), 9)
    row = answer.responses[0].partition_responses[0]
    return row.error_code, row.base_offset


def topic_ids(address: str) -> dict[str, bytes]:
    """Return {name: id} of all topics."""
    with RawClient.at(address) as client:
        answer = client.ask(build('MetadataRequest', topics=None), 12)
    return {topic.name: bytes(topic.topic_id) for topic in answer.topics}


def finalized_level(address: str) -> int:
    """Return the finalized metadata.version."""
    with RawClient.at(address) as client:
        answer = client.ask(build('ApiVersionsRequest', client_software_name='chain', client_software_version='1'), 3)
    return next(int(row.max_version_level) for row in answer.finalized_features if row.name == METADATA_VERSION)


def now_ms() -> int:
    return int(time.time() * 1000)
