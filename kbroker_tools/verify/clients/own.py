"""The adapter for kbroker's own client."""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from kbroker.base.topic_partition import TopicPartition
from kbroker.client import Consumer, Delivery, FatalProducerError, KafkaError, Producer, RebalanceListener
from kbroker.client.admin import OffsetAndMetadata
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.client.share_consumer import ShareConsumer
from kbroker.client.share_member import SharedPartition
from kbroker.client.share_sessions import AcknowledgeType
from kbroker.client.transaction_manager import GroupMetadata
from kbroker.client.transaction_state import IllegalProducerState
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

CONNECTION = {'request.timeout.ms': str(REQUEST_TIMEOUT_MS), 'retry.backoff.ms': '20', 'retry.backoff.max.ms': '200',
              'default.api.timeout.ms': str(CALL_TIMEOUT_S * 1000)}

NAME = 'kbroker'

At = tuple[int, int]
"""(partition, offset) of a record."""


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except (FatalProducerError, IllegalProducerState) as error:
        raise InstanceFailure(str(error)) from error
    except (KafkaError, OSError) as error:
        raise ClientFailure(str(error)) from error


class OwnWriter:
    def __init__(self, servers: str, places: Sequence[Place], transactional_id: str | None):
        self.acknowledged: dict[int, int] = {}
        self._places = places
        self._failure: KafkaError | None = None
        settings: dict[str, object] = {'linger.ms': 1, 'delivery.timeout.ms': DELIVERY_TIMEOUT_MS,
                                       'max.block.ms': CALL_TIMEOUT_S * 1000, **transaction_settings(transactional_id)}
        self._cluster = Cluster(ClientConfig.from_settings(CONNECTION | {'bootstrap.servers': servers}))
        with _failures():
            self._producer = Producer(self._cluster, settings, self._delivered)

    def _delivered(self, delivery: Delivery) -> None:
        if delivery.error is not None:
            self._failure = delivery.error
            return
        for index, number in enumerate(delivery.contexts):
            self.acknowledged[number] = (delivery.base_offset + index if delivery.base_offset >= 0
                                         else ACKNOWLEDGED_WITHOUT_OFFSET)

    def claim(self) -> None:
        with _failures():
            self._producer.init_transactions()

    def begin(self) -> None:
        self._failure = None
        with _failures():
            self._producer.begin_transaction()

    def send(self, partition: int, number: int) -> None:
        place = self._places[partition]
        with _failures():
            self._producer.send(place.topic, b'%d' % number, partition=place.partition, context=number)

    def flush(self) -> None:
        with _failures():
            self._producer.flush()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise ClientFailure(str(failure))

    def send_offsets(self, group: str | GroupMetadata, offsets: Mapping[int, int]) -> None:
        rows: dict[TopicPartition, OffsetAndMetadata] = {
            self._places[partition]: OffsetAndMetadata(offset) for partition, offset in offsets.items()}
        metadata = GroupMetadata(group) if isinstance(group, str) else group
        with _failures():
            self._producer.send_offsets_to_transaction(rows, metadata)

    def commit(self) -> None:
        with _failures():
            self._producer.commit_transaction()

    def abort(self) -> None:
        with _failures():
            self._producer.abort_transaction()

    def close(self) -> None:
        self._cluster.close()


class _OwnReader:
    """The common part of OwnGetter and OwnMember."""

    _consumer: Consumer

    def __init__(self, places: Sequence[Place]):
        self._places = places
        self._indexes = {place: index for index, place in enumerate(places)}

    def poll(self, timeout_s: float) -> Reads:
        with _failures():
            batches = self._consumer.poll(round(timeout_s * 1000))
        return [(self._indexes[Place(batch.topic, batch.partition)], list(batch.offsets),
                 [number_in(value) for value in batch.values]) for batch in batches]

    def close(self) -> None:
        with suppress(KafkaError, OSError):
            self._consumer.close()


class OwnGetter(_OwnReader):
    def __init__(self, servers: str, places: Sequence[Place], isolation: str):
        super().__init__(places)
        with _failures():
            self._consumer = Consumer(servers, {**CONNECTION, 'isolation.level': isolation, 'auto.offset.reset': 'none',
                                                'enable.auto.commit': False, 'fetch.max.wait.ms': 100})

    def seek(self, positions: Mapping[int, int]) -> None:
        with _failures():
            self._consumer.assign([self._places[partition] for partition in positions])
            for partition, offset in positions.items():
                self._consumer.seek(*self._places[partition], offset)

    def position(self, partition: int) -> int:
        """Return the offset at which the next fetch begins. It is after all markers and hidden records that were
        skipped."""
        with _failures():
            return self._consumer.position(*self._places[partition]) or 0


class OwnMember(_OwnReader, RebalanceListener):
    def __init__(self, servers: str, places: Sequence[Place], membership: Membership):
        super().__init__(places)
        self.changes = 0
        settings = {**CONNECTION, 'fetch.max.wait.ms': 100, **member_settings(membership)}
        with _failures():
            self._consumer = Consumer(servers, settings, topics=[membership.topic], listener=self)

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self.changes += 1

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self.changes += 1

    def metadata(self) -> GroupMetadata:
        with _failures():
            return self._consumer.group_metadata

    def rewind(self, positions: Mapping[int, int]) -> None:
        with _failures():
            for partition, offset in positions.items():
                self._consumer.seek(*self._places[partition], offset)


class OwnSharer:
    """A member of a share group. Each call of `settle` sends the outcomes and waits for the response. Its methods raise
    ClientFailure."""

    def __init__(self, servers: str, places: Sequence[Place], group: str, topic: str):
        self._places = places
        self._indexes = {place: index for index, place in enumerate(places)}
        self._refused: set[TopicPartition] = set()
        properties = CONNECTION | {'bootstrap.servers': servers, 'group.id': group,
                                   'share.acknowledgement.mode': 'explicit', 'fetch.max.wait.ms': '100'}
        self._cluster = Cluster(ClientConfig.from_settings(properties))
        self._consumer = ShareConsumer(self._cluster, on_refused=self._note_refused)
        self._consumer.subscribe([topic])

    def _note_refused(self, at: SharedPartition, error: KafkaError) -> None:
        self._refused.add((at.topic, at.partition))

    def poll(self, timeout_s: float) -> list[tuple[int, list[int], list[int], int]]:
        """Return a list of (partition, offsets, numbers, delivery count) of the delivered records."""
        with _failures():
            found = self._consumer.poll(round(timeout_s * 1000))
        return [(self._indexes[Place(rows.topic, rows.partition)], [record.offset for record in rows.records],
                 [number_in(record.value) for record in rows.records], rows.delivery_count or 0) for rows in found]

    def settle(self, outcomes: Mapping[At, AcknowledgeType]) -> tuple[list[At], list[At]]:
        """Send the outcomes of delivered records, and wait for the response.

        Return two lists of records. The broker has confirmed the outcomes of the first, and the outcomes of the second
        are unknown.
        """
        self._refused.clear()
        sent: list[At] = []
        for (partition, offset), kind in outcomes.items():
            with suppress(KafkaError):      # the connection through which the record came is broken
                self._consumer.acknowledge(*self._places[partition], offset, kind)
                sent.append((partition, offset))
        try:
            with _failures():
                self._consumer.commit()
        except ClientFailure:
            return [], sent
        unknown = {self._indexes[Place(*place)] for place in self._refused}
        return [place for place in sent if place[0] not in unknown], [place for place in sent if place[0] in unknown]

    def close(self) -> None:
        with suppress(KafkaError, OSError):
            self._consumer.close()
        self._cluster.close()
