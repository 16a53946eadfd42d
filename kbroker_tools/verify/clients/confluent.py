"""The adapter for confluent-kafka, which is a Python binding of librdkafka."""
from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from kbroker_tools.verify.clients.face import (
    CALL_TIMEOUT_S,
    DELIVERY_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    ClientFailure,
    InstanceFailure,
    Membership,
    Place,
    Reads,
    member_settings,
    number_in,
    transaction_settings,
)
from kbroker_tools.verify.lines import ACKNOWLEDGED_WITHOUT_OFFSET

NAME = 'confluent-kafka'
MOST_RECORDS = 500
PURGE_POLL_S = 0.05
COMMON = {'socket.timeout.ms': REQUEST_TIMEOUT_MS, 'reconnect.backoff.ms': 20, 'reconnect.backoff.max.ms': 200,
          'retry.backoff.ms': 20, 'log_level': 0,
          # After a rebootstrap, librdkafka 2.16 waits forever for the group coordinator that it knew before.
          'metadata.recovery.strategy': 'none'}
TRIES = 20
REPEAT_S = 45
"""The number of seconds for which a call is repeated. A broker that has lost a transaction may never end it."""

_QUIET = logging.getLogger(__name__)
"""A logger that discards the failures that librdkafka logs. The run causes these failures intentionally."""
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except KafkaException as error:
        raise (InstanceFailure if error.args[0].fatal() else ClientFailure)(str(error)) from error
    except BufferError as error:
        raise ClientFailure(str(error)) from error
    except SystemError as error:    # confluent-kafka 2.16 sometimes loses the exception that a fatal error makes
        raise InstanceFailure(str(error)) from error


class ConfluentWriter:
    def __init__(self, servers: str, places: Sequence[Place], transactional_id: str | None):
        self.acknowledged: dict[int, int] = {}
        self._servers = servers
        self._places = places
        self._failure: KafkaError | None = None
        self._group: Consumer | None = None
        settings: dict[str, Any] = {'bootstrap.servers': servers, 'enable.idempotence': True, 'linger.ms': 1,
                                    'message.timeout.ms': DELIVERY_TIMEOUT_MS, **COMMON,
                                    **transaction_settings(transactional_id)}
        with _failures():
            self._producer = Producer(settings, logger=_QUIET)

    def _delivered(self, number: int, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self._failure = error
        else:
            offset = message.offset()
            self.acknowledged[number] = ACKNOWLEDGED_WITHOUT_OFFSET if offset is None or offset < 0 else offset

    def claim(self) -> None:
        self._repeat(lambda: self._producer.init_transactions(CALL_TIMEOUT_S))

    def begin(self) -> None:
        self._failure = None
        with _failures():
            self._producer.begin_transaction()

    def send(self, partition: int, number: int) -> None:
        place = self._places[partition]
        with _failures():
            self._producer.produce(place.topic, b'%d' % number, partition=place.partition,
                                   on_delivery=lambda error, message: self._delivered(number, error, message))

    def flush(self) -> None:
        with _failures():
            left = self._producer.flush(CALL_TIMEOUT_S)
        failure, self._failure = self._failure, None
        if failure is not None or left:
            raise (InstanceFailure if failure is not None and failure.fatal() else ClientFailure)(
                f'{left} records are not delivered: {failure}')

    def send_offsets(self, group: Any, offsets: Mapping[int, int]) -> None:
        rows = [TopicPartition(*self._places[partition], offset) for partition, offset in offsets.items()]
        metadata = self._metadata_of(group) if isinstance(group, str) else group
        self._repeat(lambda: self._producer.send_offsets_to_transaction(rows, metadata, CALL_TIMEOUT_S))

    def _metadata_of(self, group: str) -> object:
        """Return the metadata of a group, for a commit of offsets without a member. A consumer that never subscribes
        provides it."""
        if self._group is None:
            self._group = Consumer({'bootstrap.servers': self._servers, 'group.id': group, **COMMON}, logger=_QUIET)
        return self._group.consumer_group_metadata()

    def commit(self) -> None:
        self._repeat(lambda: self._producer.commit_transaction(CALL_TIMEOUT_S))

    def abort(self) -> None:
        self._repeat(lambda: self._producer.abort_transaction(CALL_TIMEOUT_S))

    def _repeat(self, call: Any) -> None:
        """Repeat a call until it succeeds, its error is not retriable, or REPEAT_S have passed. At each call,
        librdkafka continues the same operation."""
        deadline = time.monotonic() + REPEAT_S
        with _failures():
            for tries_left in reversed(range(TRIES)):
                try:
                    call()
                    return
                except KafkaException as error:
                    if not error.args[0].retriable() or not tries_left or time.monotonic() >= deadline:
                        raise

    def close(self) -> None:
        with suppress(ClientFailure), _failures():
            self._producer.purge()
            for _ in range(TRIES):
                self._producer.poll(0)
                if len(self._producer) == 0:    # the producer's threads do not end before each record has its report
                    break
                self._producer.poll(PURGE_POLL_S)
        if self._group is not None:
            with suppress(ClientFailure), _failures():
                self._group.close()


class _ConfluentReader:
    """The common part of ConfluentGetter and ConfluentMember."""

    _consumer: Consumer

    def __init__(self, places: Sequence[Place]):
        self._places = places
        self._indexes = {place: index for index, place in enumerate(places)}

    def poll(self, timeout_s: float) -> Reads:
        with _failures():
            messages = self._consumer.consume(MOST_RECORDS, timeout_s)
        reads: Reads = []
        for message in messages:
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._AUTO_OFFSET_RESET:
                    raise ClientFailure(str(error))
                continue
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            assert topic is not None and partition is not None and offset is not None
            index = self._indexes[Place(topic, partition)]
            if not reads or reads[-1][0] != index:
                reads.append((index, [], []))
            reads[-1][1].append(offset)
            reads[-1][2].append(number_in(message.value()))
        return reads

    def close(self) -> None:
        with suppress(ClientFailure), _failures():
            self._consumer.close()


class ConfluentGetter(_ConfluentReader):
    def __init__(self, servers: str, places: Sequence[Place], isolation: str):
        super().__init__(places)
        with _failures():
            self._consumer = Consumer({
                'bootstrap.servers': servers, 'group.id': 'kbroker-verify-readers', 'isolation.level': isolation,
                'enable.auto.commit': False, 'auto.offset.reset': 'error', 'fetch.wait.max.ms': 100, **COMMON},
                logger=_QUIET)

    def seek(self, positions: Mapping[int, int]) -> None:
        with _failures():
            self._consumer.assign([TopicPartition(*self._places[partition], offset)
                                   for partition, offset in positions.items()])


class ConfluentMember(_ConfluentReader):
    def __init__(self, servers: str, places: Sequence[Place], membership: Membership):
        super().__init__(places)
        self.changes = 0
        settings: dict[str, Any] = {'bootstrap.servers': servers, 'fetch.wait.max.ms': 100, **COMMON,
                                    **member_settings(membership)}
        with _failures():
            self._consumer = Consumer(settings, logger=_QUIET)
            self._without_member = self._consumer.consumer_group_metadata()
            self._consumer.subscribe([membership.topic], on_assign=self._changed, on_revoke=self._changed,
                                     on_lost=self._changed)

    def _changed(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.changes += 1

    def metadata(self) -> object:
        with _failures():
            metadata = self._consumer.consumer_group_metadata()
        if metadata == self._without_member:    # a commit with it would be accepted from a former member
            raise ClientFailure('the consumer has lost its place in the group')
        return metadata

    def rewind(self, positions: Mapping[int, int]) -> None:
        with _failures():
            for partition, offset in positions.items():
                self._consumer.seek(TopicPartition(*self._places[partition], offset))
