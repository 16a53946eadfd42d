"""Workers that read the topic `kept` as members of groups. Members join and leave."""
from __future__ import annotations

from abc import abstractmethod
from contextlib import closing
from typing import Any, ClassVar

import confluent_kafka
import kafka
import kafka.errors
from endurance.worker import Load, Numbers, Worker, number_of
from endurance.writers import KEPT

from kbroker.base.errors import ErrorCode
from kbroker.client import Admin, Consumer, KafkaError
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.client.share_consumer import OnRefused, ShareConsumer
from kbroker.client.share_sessions import AcknowledgeType
from kbroker.client.stream_settings import ShareConsumerSettings

LONGEST_LIFE_POLLS = 60
POLL_MS = 200
SESSION_MS = 10_000
MEMBERS = 2
OUTCOMES = (AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT)
OUTCOME_WEIGHTS = (96, 3, 1)
LOST_MEMBERSHIP = {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID,
                   ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.STALE_MEMBER_EPOCH}
"""Errors of a commit that comes too late: the member has lost its partitions, and another member reads the records
again.
"""


class Member(Worker):
    """A member of a group. `seen` has the records that the members of the group have received."""

    def __init__(self, name: str, load: Load, seed: int, group: str, seen: Numbers):
        super().__init__(name, load, seed)
        self.stop = load.stop
        self.group = group
        self.seen = seen

    def work(self) -> None:
        with closing(self.open()) as consumer:
            self.done['lives'] += 1
            for _ in range(self.chance.randint(1, LONGEST_LIFE_POLLS)):
                values = self.poll(consumer)
                for value in values:
                    self.done['records'] += 1
                    self.seen.add(number_of(value))
                if values:
                    self.commit(consumer)   # after a failure, no member may get the records again
                if self.stop.is_set():
                    return

    @abstractmethod
    def open(self) -> Any:
        """Return a consumer that is a member of the group, with a method `close`."""

    @abstractmethod
    def poll(self, consumer: Any) -> list[bytes | None]:
        """Return the values of some records."""

    @abstractmethod
    def commit(self, consumer: Any) -> None:
        """Commit the polled records. Count a commit that comes too late."""


class OwnMember(Member):
    protocol, assignor = 'classic', 'range'

    def open(self) -> Consumer:
        return Consumer(self.load.servers, group_id=self.group, topics=[self.load.name(KEPT)], enable_auto_commit=False,
                        auto_offset_reset='earliest', group_protocol=self.protocol, **self.settings())

    def settings(self) -> dict[str, Any]:
        return {'session_timeout_ms': SESSION_MS, 'partition_assignment_strategy': self.assignor}

    def poll(self, consumer: Consumer) -> list[bytes | None]:
        return [value for batch in consumer.poll(POLL_MS) for value in batch.values]

    def commit(self, consumer: Consumer) -> None:
        try:
            consumer.commit()
        except KafkaError as error:
            if error.code not in LOST_MEMBERSHIP:
                raise
            self.done['late commits'] += 1


class OwnCooperativeMember(OwnMember):
    assignor = 'cooperative-sticky'


class OwnConsumerMember(OwnMember):
    protocol = 'consumer'

    def settings(self) -> dict[str, Any]:
        return {}


class ConfluentMember(Member):
    settings: ClassVar[dict[str, Any]] = {'session.timeout.ms': SESSION_MS}

    def open(self) -> confluent_kafka.Consumer:
        consumer = confluent_kafka.Consumer({
            'bootstrap.servers': self.load.servers, 'group.id': self.group, 'auto.offset.reset': 'earliest',
            'enable.auto.commit': False, 'log_level': 0, 'metadata.recovery.strategy': 'none', **self.settings})
        consumer.subscribe([self.load.name(KEPT)])
        return consumer

    def poll(self, consumer: confluent_kafka.Consumer) -> list[bytes | None]:
        messages = consumer.consume(500, POLL_MS / 1000)
        return [message.value() for message in messages if message.error() is None]

    def commit(self, consumer: confluent_kafka.Consumer) -> None:
        try:
            consumer.commit(asynchronous=False)
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() not in {*LOST_MEMBERSHIP, confluent_kafka.KafkaError._NO_OFFSET}:
                raise
            self.done['late commits'] += 1


class ConfluentConsumerMember(ConfluentMember):
    settings: ClassVar[dict[str, Any]] = {'group.protocol': 'consumer'}


class KafkaPythonMember(Member):
    def open(self) -> Any:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.load.servers, group_id=self.group, auto_offset_reset='earliest',
            enable_auto_commit=False, session_timeout_ms=SESSION_MS, heartbeat_interval_ms=1000)
        consumer.subscribe([self.load.name(KEPT)])
        return consumer

    def poll(self, consumer: Any) -> list[bytes | None]:
        return [record.value for records in consumer.poll(POLL_MS).values() for record in records]

    def commit(self, consumer: Any) -> None:
        try:
            consumer.commit()
        except (kafka.errors.CommitFailedError, kafka.errors.RebalanceInProgressError):
            self.done['late commits'] += 1


class LoneShareConsumer(ShareConsumer):
    """A share consumer that has its own connections to the cluster."""

    def __init__(self, servers: str, group: str, on_refused: OnRefused):
        self._own_cluster = Cluster(ClientConfig.load(servers))
        super().__init__(self._own_cluster, ShareConsumerSettings(
            group_id=group, is_explicit=True, fetch_max_wait_ms=POLL_MS), on_refused=on_refused)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._own_cluster.close()


class ShareMember(Member):
    """A member of a share group. It accepts most records, releases some, and rejects a few."""

    def open(self) -> LoneShareConsumer:
        consumer = LoneShareConsumer(self.load.servers, self.group, self._refused)
        consumer.subscribe([self.load.name(KEPT)])
        return consumer

    def _refused(self, at: object, error: KafkaError) -> None:
        self.done['refused outcomes'] += 1

    def poll(self, consumer: ShareConsumer) -> list[bytes | None]:
        values = []
        for batch in consumer.poll(POLL_MS):
            for record in batch.records:
                values.append(record.value)
                outcome, = self.chance.choices(OUTCOMES, OUTCOME_WEIGHTS)
                consumer.acknowledge(batch.topic, batch.partition, record.offset, outcome)
        return values

    def commit(self, consumer: ShareConsumer) -> None:
        consumer.commit()


GROUPS: dict[str, type[Member]] = {
    'own-classic': OwnMember, 'own-cooperative': OwnCooperativeMember, 'own-consumer': OwnConsumerMember,
    'confluent-classic': ConfluentMember,
    'confluent-consumer': ConfluentConsumerMember, 'kafka-python-classic': KafkaPythonMember, 'share': ShareMember}
SHARE_GROUPS = ('share',)


def members(load: Load, seed: int) -> list[Member]:
    """Return two members for each group."""
    found: list[Member] = []
    for name, kind in GROUPS.items():
        seen = Numbers()
        found += [kind(f'{name}-{number}', load, seed, load.name(name), seen) for number in range(MEMBERS)]
    return found


def begin_share_groups(admin: Admin, load: Load, value: str | None = 'earliest') -> None:
    """Set the config `share.auto.offset.reset` of the share groups. With None, remove it."""
    for name in SHARE_GROUPS:
        admin.alter_config('group', load.name(name), {'share.auto.offset.reset': value})
