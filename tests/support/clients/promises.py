"""A client of an in-process broker. It records what the broker acknowledges, and checks that the brokers started later
on the directory keep all of it.
"""
from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from support.brokers.in_process_broker import InProcessBroker
from support.messages.message_builder import build, error_codes

from kbroker.base.errors import ErrorCode
from kbroker.base.topic_partition import TopicPartition
from kbroker.log.check import check_partition
from kbroker.log.directory_names import METADATA_DIRECTORY, parse_directory_name
from kbroker.log.fs import FileSystem
from kbroker.log.swap import DELETED_SUFFIX
from kbroker.record.abort_filter import AbortFilter
from kbroker.record.batch import encode_batch, iter_batches
from kbroker.record.records import decode_records

TRANSACTIONAL_ID = 'tx'
GROUP = 'group'
TOPIC = 'orders'
LONGEST_WAIT_TURNS = 60
TURN_MS = 20
STEP_MS = 5
RETRIABLE = {ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
             ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
FENCED = {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING}
READ_UNCOMMITTED, READ_COMMITTED = 0, 1

Producer = tuple[int, int]
"""Producer id and epoch."""
Step = tuple[str, tuple[Any, ...]]
"""A method of Client and its arguments."""


def greatest_code(answer: Any) -> ErrorCode:
    """Return the greatest error code in an answer."""
    return ErrorCode(max(error_codes(answer)))


@dataclass
class Transaction:
    """A transaction. `outcome` is `open`. After EndTxn is sent it is `committing` or `aborting`, and after the answer
    `committed` or `aborted`.
    """

    values: dict[TopicPartition, list[str]] = field(default_factory=lambda: defaultdict(list))
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    outcome: str = 'open'


@dataclass
class Promises:
    """Everything that the broker has acknowledged to the client."""

    topics: dict[str, bytes | None] = field(default_factory=dict)
    """Maps the name of each created topic to its id, or to None if the topic is deleted."""
    doubtful_topics: set[str] = field(default_factory=set)
    """Topics whose creation or deletion the broker has not answered."""
    records: dict[TopicPartition, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    """The acknowledged values of each partition, by offset."""
    sent: dict[TopicPartition, set[str]] = field(default_factory=lambda: defaultdict(set))
    transactions: list[Transaction] = field(default_factory=list)
    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """Offsets that the group committed without a transaction, before all transactions."""
    doubtful_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    producer: Producer | None = None
    """The id and epoch of the transactional producer."""
    plain_producer: Producer | None = None
    """The id and epoch of the idempotent producer."""
    sequences: dict[tuple[int, int, TopicPartition], int] = field(default_factory=dict)
    tables: dict[TopicPartition, dict[str, set[str | None]]] = field(default_factory=dict)
    """The values that a key may have: one, or several if the broker has not answered its last write. None means that
    the table lacks the key.
    """
    configs: dict[tuple[str, str], set[str | None]] = field(default_factory=dict)
    """The values that a config of a topic may have, by topic and name of the config. None means that the topic does not
    set it.
    """
    producer_ids: set[int] = field(default_factory=set)
    """Every producer id that the broker allocated."""


class RefusedError(AssertionError):
    """Raised if the broker refuses a request with `code`, or does not answer it (None). On a failing disk, this breaks
    no promise.
    """

    def __init__(self, text: str, code: ErrorCode | None = None):
        super().__init__(text)
        self.code = code


class Client:
    """An application that sends one request at a time. It can repeat any of its steps after a crash."""

    def __init__(self, broker: InProcessBroker, promises: Promises, transaction_version: int = 2):
        self.broker = broker
        self.promises = promises
        self.transaction_version = transaction_version
        self.configs_of_new_topics: Mapping[str, str] = {}

    def do(self, step: Step) -> None:
        self.broker.clock.advance(STEP_MS)
        name, arguments = step
        getattr(self, name)(*arguments)

    def ask(self, api: str, version: int, noted: Callable[[Any], None] = lambda answer: None,
            **fields: Any) -> ErrorCode:
        """Send the request until the answer has no retriable error. Call `noted` with a successful answer as soon as
        the broker sends it.
        """
        request = build(f'{api}Request', **fields)
        for _ in range(LONGEST_WAIT_TURNS):
            if (code := self._code_of_answer(request, version, noted)) not in RETRIABLE:
                return code
            self.pass_time()
        raise RefusedError(f'{api} is answered with {code.name} for ever', code)

    def expect(self, api: str, version: int, noted: Callable[[Any], None] = lambda answer: None, **fields: Any) -> None:
        """Send the request until the answer has no retriable error. Raise RefusedError if the answer has another error.
        """
        accept(self.ask(api, version, noted, **fields))

    def _code_of_answer(self, request: Any, version: int, noted: Callable[[Any], None]) -> ErrorCode:
        codes: list[ErrorCode] = []

        def on_answer(answer: Any) -> None:
            codes.append(greatest_code(answer))
            if codes[0] is ErrorCode.NONE:
                noted(answer)

        connection = self.broker.begin_noted(request, version, on_answer)
        for _ in range(LONGEST_WAIT_TURNS):
            if codes:
                return codes[0]
            self.pass_time()
        raise RefusedError(f'{type(request).__name__} v{version} is never answered; {connection.closed}')

    def pass_time(self) -> None:
        self.broker.clock.advance(TURN_MS)
        self.broker.turn()

    # ---- steps ----

    def create_topic(self, name: str, partitions: int) -> None:
        promises = self.promises
        is_repeated = name in promises.doubtful_topics
        promises.doubtful_topics.add(name)

        def noted(answer: Any) -> None:
            promises.topics[name] = answer.topics[0].topic_id
            promises.doubtful_topics.discard(name)

        code = self.ask('CreateTopics', 7, noted, timeout_ms=1000, topics=[dict(
            name=name, num_partitions=partitions, replication_factor=1, configs=[
                dict(name=config, value=value) for config, value in self.configs_of_new_topics.items()])])
        if code is ErrorCode.TOPIC_ALREADY_EXISTS and is_repeated:
            promises.topics[name] = self.topic_ids()[name]
            promises.doubtful_topics.discard(name)
        else:
            accept(code)

    def delete_topic(self, name: str) -> None:
        promises = self.promises
        is_repeated = name in promises.doubtful_topics
        promises.doubtful_topics.add(name)

        def noted(answer: Any) -> None:
            promises.topics[name] = None
            promises.doubtful_topics.discard(name)
            for known in (promises.records, promises.sent):
                for topic, partition in list(known):
                    if topic == name:
                        del known[topic, partition]  # type: ignore[attr-defined]

        code = self.ask('DeleteTopics', 6, noted, topics=[dict(name=name)], timeout_ms=1000)
        if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and is_repeated:
            noted(None)
        else:
            accept(code)

    def delete_records(self, topic_partition: TopicPartition, offset: int) -> None:
        """Delete the records below `offset`. A crash may undo the deletion, because the broker writes the log start
        offset only at intervals.
        """
        topic, partition = topic_partition
        records = self.promises.records[topic_partition]
        for deleted in [found for found in records if found < offset]:
            del records[deleted]
        self.expect('DeleteRecords', 2, topics=[
            dict(name=topic, partitions=[dict(partition_index=partition, offset=offset)])])

    def let_pass(self, ms: int) -> None:
        """Advance the clock by `ms`, then run enough ticks to complete the periodic work of that time."""
        self.broker.clock.advance(ms)
        for _ in range(LONGEST_WAIT_TURNS):
            self.broker.turn()

    def find_coordinators(self) -> None:
        for key_type, key in ((0, GROUP), (1, TRANSACTIONAL_ID)):
            self.expect('FindCoordinator', 4, coordinator_keys=[key], key_type=key_type)

    def init_idempotent(self) -> None:
        def noted(answer: Any) -> None:
            assert answer.producer_id not in self.promises.producer_ids, 'a producer id was handed out twice'
            self.promises.producer_ids.add(answer.producer_id)
            self.promises.plain_producer = answer.producer_id, answer.producer_epoch

        self.expect('InitProducerId', 5, noted, transactional_id=None, transaction_timeout_ms=-1)

    def init_transactions(self) -> None:
        def noted(answer: Any) -> None:
            promises = self.promises
            found = answer.producer_id, answer.producer_epoch
            if promises.producer is None or promises.producer[0] != answer.producer_id:
                assert answer.producer_id not in promises.producer_ids, 'a producer id was handed out twice'
            else:
                assert found > promises.producer, 'the producer epoch went back'
            promises.producer_ids.add(answer.producer_id)
            promises.producer = found

        self.expect('InitProducerId', 5, noted, transactional_id=TRANSACTIONAL_ID, transaction_timeout_ms=60_000)

    def begin(self) -> None:
        self.promises.transactions.append(Transaction())

    def produce(self, values: dict[TopicPartition, list[str]]) -> None:
        """Send one request of the idempotent producer."""
        assert self.promises.plain_producer is not None
        accept(self._produce(values, self.promises.plain_producer, None, 12))

    def produce_in_transaction(self, values: dict[TopicPartition, list[str]]) -> None:
        producer = self.promises.producer
        assert producer is not None
        version = 12
        if self.transaction_version < 2:
            version = 11
            self.expect('AddPartitionsToTxn', 3, v3_and_below_transactional_id=TRANSACTIONAL_ID,
                        v3_and_below_producer_id=producer[0], v3_and_below_producer_epoch=producer[1],
                        v3_and_below_topics=[dict(name=topic, partitions=[partition]) for topic, partition in values])
        transaction = self.promises.transactions[-1]
        for topic_partition, added in values.items():
            known = transaction.values[topic_partition]
            known += [value for value in added if value not in known]
        accept(self._produce(values, producer, TRANSACTIONAL_ID, version))

    def _produce(self, values: dict[TopicPartition, list[str]], producer: Producer, transactional_id: str | None,
                 version: int) -> ErrorCode:
        promises = self.promises
        for topic_partition, added in values.items():
            promises.sent[topic_partition].update(added)

        def noted(answer: Any) -> None:
            for topic in answer.responses:
                for partition in topic.partition_responses:
                    topic_partition = topic.name, partition.index
                    added = values[topic_partition]
                    sequence = self._sequence(producer, topic_partition)
                    promises.sequences[*producer, topic_partition] = sequence + len(added)
                    promises.records[topic_partition].update(enumerate(added, partition.base_offset))

        now_ms = self.broker.clock.wall_ms()
        topics = []
        for (topic, partition), added in values.items():
            batch = encode_batch([(now_ms, None, value.encode()) for value in added], producer_id=producer[0],
                                 producer_epoch=producer[1], base_sequence=self._sequence(producer, (topic, partition)),
                                 transactional=transactional_id is not None)
            topics.append(dict(name=topic, partition_data=[dict(index=partition, records=bytes(batch))]))
        return self.ask('Produce', version, noted, transactional_id=transactional_id, acks=-1, timeout_ms=1000,
                        topic_data=topics)

    def _sequence(self, producer: Producer, topic_partition: TopicPartition) -> int:
        return self.promises.sequences.get((*producer, topic_partition), 0)

    def commit_offsets(self, offsets: dict[TopicPartition, int]) -> None:
        promises = self.promises
        promises.doubtful_offsets.update(offsets)

        def noted(answer: Any) -> None:
            promises.offsets.update(offsets)
            promises.doubtful_offsets.clear()

        self.expect('OffsetCommit', 9, noted, group_id=GROUP, topics=committed_topics(offsets))

    def send_offsets(self, offsets: dict[TopicPartition, int]) -> None:
        producer = self.promises.producer
        assert producer is not None
        self.promises.transactions[-1].offsets.update(offsets)
        version, identity = 5, dict(transactional_id=TRANSACTIONAL_ID, group_id=GROUP, producer_id=producer[0],
                                    producer_epoch=producer[1])
        if self.transaction_version < 2:
            version = 4
            self.expect('AddOffsetsToTxn', 3, **identity)
        self.expect('TxnOffsetCommit', version, **identity, topics=committed_topics(offsets))

    def end(self, committed: bool) -> None:
        promises = self.promises
        transaction = promises.transactions[-1]
        if transaction.outcome in ('committed', 'aborted'):
            return      # answered, and then the power failed while the markers were written
        transaction.outcome = 'committing' if committed else 'aborting'
        assert promises.producer is not None

        def noted(answer: Any) -> None:
            transaction.outcome = 'committed' if committed else 'aborted'
            if self.transaction_version >= 2:
                promises.producer = answer.producer_id, answer.producer_epoch

        accept(self._end(promises.producer, committed, noted))

    def _end(self, producer: Producer, committed: bool,
             noted: Callable[[Any], None] = lambda answer: None) -> ErrorCode:
        return self.ask('EndTxn', 5 if self.transaction_version >= 2 else 4, noted, transactional_id=TRANSACTIONAL_ID,
                        producer_id=producer[0], producer_epoch=producer[1], committed=committed)

    # ---- reading ----

    def topic_ids(self) -> dict[str, bytes]:
        answer = self.broker.ask(build('MetadataRequest', topics=None), 12)
        return {topic.name: topic.topic_id for topic in answer.topics if not topic.is_internal}

    def read(self, topic_partition: TopicPartition, isolation: int) -> dict[int, str]:
        """Return {offset: value} of the records that a consumer sees."""
        return {record.offset: bytes(record.value).decode() for batch in self.batches(topic_partition, isolation)
                for record in decode_records(batch)}

    def batches(self, topic_partition: TopicPartition, isolation: int) -> Iterator[memoryview]:
        """Yield the batches whose records a consumer sees."""
        topic, partition = topic_partition
        offset = self.broker.topics.get(topic, partition).log_start_offset
        while True:
            answer = self.broker.ask(build(
                'FetchRequest', max_wait_ms=0, min_bytes=0, isolation_level=isolation, topics=[dict(
                    topic=topic, partitions=[dict(
                        partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)])]), 12)
            data = answer.responses[0].partitions[0]
            assert data.error_code == ErrorCode.NONE, ErrorCode(data.error_code)
            batches = list(iter_batches(bytes(data.records or b'')))
            if not batches:
                return
            abort_filter = AbortFilter([(row.producer_id, row.first_offset) for row in data.aborted_transactions or ()])
            for header, batch in batches:
                if abort_filter.admits(header, batch) and not header.is_control:
                    yield batch
                offset = header.last_offset + 1

    def fetch_offsets(self, partitions: set[TopicPartition], group: str = GROUP) -> dict[TopicPartition, int]:
        """Return the committed offsets of the group. The request sets require_stable, so the answer includes all
        decided transactions.
        """
        answer = self.broker.ask(build('OffsetFetchRequest', require_stable=True, groups=[dict(group_id=group, topics=[
            dict(name=topic, partition_indexes=[partition]) for topic, partition in sorted(partitions)])]), 9).groups[0]
        assert answer.error_code == ErrorCode.NONE, ErrorCode(answer.error_code)
        found = {}
        for topic in answer.topics:
            for partition in topic.partitions:
                assert partition.error_code == ErrorCode.NONE, ErrorCode(partition.error_code)
                if partition.committed_offset >= 0:
                    found[topic.name, partition.partition_index] = partition.committed_offset
        return found

    # ---- checking ----

    def check_topics(self) -> None:
        found = self.topic_ids()
        for name, topic_id in self.promises.topics.items():
            if name not in self.promises.doubtful_topics:
                assert found.get(name) == topic_id, f'topic {name}'
        assert set(found) <= set(self.promises.topics) | self.promises.doubtful_topics

    def check_records(self) -> None:
        """Check that acknowledged records kept their offsets, that each record was sent by this client, and that none
        is duplicated.
        """
        topics = self.topic_ids()
        for topic_partition, sent in self.promises.sent.items():
            if topic_partition[0] not in topics:
                continue        # check_topics has judged that
            check_values(topic_partition, self.read(topic_partition, READ_UNCOMMITTED),
                         self.promises.records[topic_partition], sent)

    def check_transactions(self) -> None:
        """Check that each transaction is visible as a whole or not at all, in accordance with the answers. A
        transaction consists of its records in all partitions and its offsets.
        """
        committed_view = {topic_partition: set(self.read(topic_partition, READ_COMMITTED).values())
                          for topic_partition in self.promises.sent if topic_partition[0] in self.topic_ids()}
        offsets = dict(self.promises.offsets)
        for transaction in self.promises.transactions:
            shows = {value in committed_view[topic_partition]
                     for topic_partition, values in transaction.values.items() for value in values}
            check_visibility(transaction, shows)
            if shows == {True}:
                offsets.update(transaction.offsets)
        wanted = set(offsets) | {key for transaction in self.promises.transactions for key in transaction.offsets}
        if wanted:
            found = self.fetch_offsets(wanted)
            assert found in (offsets, {**offsets, **self.promises.doubtful_offsets})

    def check_stable_offsets(self) -> None:
        """Check that every transaction has ended: no last stable offset is below the end of its partition."""
        for topic in self.broker.topics.topics():
            for partition in topic.partitions:
                place = f'{topic.name}-{partition.partition}'
                offsets = partition.last_stable_offset, partition.high_watermark, partition.log_end_offset
                assert len(set(offsets)) == 1, f'{place}: last stable offset, high watermark, end: {offsets}'

    def replace(self) -> None:
        """Start a new instance with the same transactional.id. It aborts the open transaction, and fences the old
        instance.
        """
        promises = self.promises
        old = promises.producer
        self.init_transactions()
        assert promises.producer is not None
        assert old is None or promises.producer > old
        if old is None:
            return
        topic_partition = next(iter(promises.records), None)
        for _ in range(2):
            assert self._end(old, True) in FENCED, 'a zombie could commit'
        if topic_partition is not None:
            code = self._produce_as_zombie(old, topic_partition)
            assert code in FENCED, f'a zombie could write: {code.name}'

    def _produce_as_zombie(self, producer: Producer, topic_partition: TopicPartition) -> ErrorCode:
        before = {key: set(values) for key, values in self.promises.sent.items()}
        try:
            return self._produce({topic_partition: ['from a zombie']}, producer, TRANSACTIONAL_ID, 12)
        finally:
            self.promises.sent = defaultdict(set, before)


def check_visibility(transaction: Transaction, shows: set[bool]) -> None:
    """Check that a transaction is visible as a whole or not at all, in accordance with the answers.

    `shows` has True if a value of the transaction is visible, and False if one is not. It is empty if all its values
    were deleted.
    """
    assert len(shows) <= 1, f'{transaction} is only partly visible'
    if transaction.outcome == 'committed':
        assert shows != {False}, f'{transaction} is not visible'
    if transaction.outcome in ('open', 'aborting', 'aborted'):
        assert shows != {True}, f'{transaction} is visible'


def check_values(place: TopicPartition, found: dict[int, str], acknowledged: dict[int, str], sent: set[str],
                 start: int = 0) -> None:
    """Check that acknowledged values kept their offsets, that each value was sent, and that none is duplicated. A value
    below the offset `start` may be deleted.
    """
    values = list(found.values())
    assert len(values) == len(set(values)), f'{place}: duplicates in {values}'
    assert set(values) <= sent, f'{place}: foreign values in {values}'
    for offset, value in acknowledged.items():
        if offset in found or offset >= start:
            assert found.get(offset) == value, f'{place}: found {found.get(offset)} at {offset}, acknowledged {value}'


def committed_topics(offsets: Mapping[TopicPartition, int]) -> list[dict[str, Any]]:
    """Return the topics of a request that commits these offsets."""
    return [dict(name=topic, partitions=[dict(partition_index=partition, committed_offset=offset)])
            for (topic, partition), offset in offsets.items()]


def accept(code: ErrorCode) -> None:
    """Raise RefusedError if `code` is an error."""
    if code is not ErrorCode.NONE:
        raise RefusedError(f'answered with {code.name}', code)


def findings_in(directory: str) -> list[str]:
    """Return the findings in the partition directories of a stopped broker, except files that are being deleted."""
    fs = FileSystem()
    found = []
    for name in fs.listdir(directory):
        parsed = parse_directory_name(name)
        if parsed and not parsed.state and name != METADATA_DIRECTORY:
            found += [str(finding) for finding in check_partition(fs, f'{directory}/{name}')
                      if not finding.file.endswith(DELETED_SUFFIX)]
    return found
