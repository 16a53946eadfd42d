"""The part of a member of a consumer group that does not depend on the group's protocol: its offsets."""
from __future__ import annotations

import abc
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

from kbroker.client.admin import OffsetAndMetadata
from kbroker.client.assignor import TopicPartition, by_topic
from kbroker.client.cluster import Cluster, KeyType
from kbroker.client.connection import Connection
from kbroker.client.errors import check, error_of, known_code
from kbroker.client.stream_settings import ConsumerSettings
from kbroker.client.transaction_manager import GroupMetadata
from kbroker.clock import Clock
from kbroker.errors import ErrorCode
from kbroker.protocol import messages

T = TypeVar('T')

LAST_COMMIT_VERSION = 9
LAST_OFFSET_FETCH_VERSION = 7
"""The last versions that identify topics by name and have a single group at the top level."""


class GroupMember(abc.ABC):
    """A member of a consumer group.

    Heartbeats are sent only in calls of `heartbeat_if_due`: no thread keeps a stuck consumer in the group.
    Raises ClientError, and KafkaError for lasting errors: FENCED_INSTANCE_ID, GROUP_AUTHORIZATION_FAILED,
    INCONSISTENT_GROUP_PROTOCOL, GROUP_MAX_SIZE_REACHED ...
    """

    lost_place: frozenset[ErrorCode]
    """The errors after which the member has to catch up with its group."""

    def __init__(self, cluster: Cluster, group_id: str, settings: ConsumerSettings, clock: Clock | None = None,
                 sleep: Callable[[float], None] = time.sleep):
        self.group_id = group_id
        self.member_id = ''
        self.generation_id = -1
        """The generation or the member epoch; negative for a consumer that is no member."""
        self.must_join = True
        """The partitions are about to change: commit, then call `join`."""
        self.keeps_positions = False
        """The partitions that the next `join` returns again were this member's all the time."""
        self._cluster = cluster
        self._settings = settings
        self._clock = clock or Clock()
        self._sleep = sleep
        self._next_heartbeat_ms = 0

    @property
    def metadata(self) -> GroupMetadata:
        """The argument for Producer.send_offsets_to_transaction."""
        return GroupMetadata(self.group_id, self.generation_id, self.member_id, self._settings.group_instance_id)

    def next_heartbeat_ms(self) -> int:
        """Return the time of the next heartbeat on the monotonic clock."""
        return self._next_heartbeat_ms

    @abc.abstractmethod
    def join(self, topics: Collection[str], owned: Iterable[TopicPartition] = ()) -> list[TopicPartition]:
        """Join the group, or take over what it has changed. Return the assigned partitions."""

    @abc.abstractmethod
    def heartbeat_if_due(self) -> None:
        """Send a heartbeat if due. Sets `must_join` when the partitions are about to change."""

    @abc.abstractmethod
    def leave(self) -> None:
        """Leave the group, or, as a static member, keep the place in it for a while."""

    @abc.abstractmethod
    def _note_lost_place(self, code: ErrorCode) -> bool:
        """Return whether the error is in `lost_place`, and prepare to catch up."""

    # ---- offsets

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit offsets. Raises KafkaError (REBALANCE_IN_PROGRESS ...) if the partitions have been reassigned."""
        if not offsets:
            return
        request = messages.OffsetCommitRequest
        topics = [request.OffsetCommitRequestTopic(name=topic, partitions=[
            request.OffsetCommitRequestPartition(
                partition_index=index, committed_offset=offsets[topic, index].offset,
                committed_leader_epoch=offsets[topic, index].leader_epoch,
                committed_metadata=offsets[topic, index].metadata) for index in indexes])
            for topic, indexes in by_topic(offsets).items()]

        def commit() -> None:
            answer = self._coordinator().call(request(
                group_id=self.group_id, generation_id_or_member_epoch=self.generation_id, member_id=self.member_id,
                group_instance_id=self._settings.group_instance_id, topics=topics), max_version=LAST_COMMIT_VERSION)
            for topic in answer.topics:
                for row in topic.partitions:
                    if row.error_code:
                        self._note_lost_place(known_code(row.error_code))
                        raise error_of(row.error_code, self._words(f'offset of {topic.name}-{row.partition_index}'))
        self._retrying(commit, 'OffsetCommit')

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the group's committed offsets; partitions without one are missing."""
        request = messages.OffsetFetchRequest
        topics = [request.OffsetFetchRequestTopic(name=topic, partition_indexes=indexes)
                  for topic, indexes in by_topic(partitions).items()]

        def fetch() -> dict[TopicPartition, OffsetAndMetadata]:
            answer = self._coordinator().call(request(
                group_id=self.group_id, topics=topics,
                require_stable=self._settings.isolation_level == 'read_committed'),
                max_version=LAST_OFFSET_FETCH_VERSION)
            check(answer.error_code, self._words('OffsetFetch'))
            found = {}
            for topic in answer.topics:
                for row in topic.partitions:
                    check(row.error_code, self._words(f'offset of {topic.name}-{row.partition_index}'))
                    if row.committed_offset >= 0:
                        found[topic.name, row.partition_index] = OffsetAndMetadata(
                            row.committed_offset, row.committed_leader_epoch, row.metadata or '')
            return found
        return self._retrying(fetch, 'OffsetFetch', also=(ErrorCode.UNSTABLE_OFFSET_COMMIT,))

    # ----

    def _coordinator(self) -> Connection:
        return self._cluster.coordinator(KeyType.GROUP, self.group_id)

    def _retrying(self, operation: Callable[[], T], name: str, also: Collection[ErrorCode] = ()) -> T:
        return self._cluster.retrying(operation, self._words(name), also)

    def _words(self, name: str) -> str:
        return f'{name} of group {self.group_id!r}'
