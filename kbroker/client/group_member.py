"""The part of a consumer group member that is the same in the classic and the consumer protocol: offset commits."""
from __future__ import annotations

import abc
from collections.abc import Collection, Iterable, Mapping

from kbroker.base.clock import Clock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.admin import OffsetAndMetadata
from kbroker.client.assignor import by_topic
from kbroker.client.cluster import Cluster
from kbroker.client.errors import ClientError, check, error_of, known_code
from kbroker.client.membership import Membership
from kbroker.client.stream_settings import ConsumerSettings
from kbroker.client.time_limit import OutOfTime
from kbroker.client.transaction_manager import GroupMetadata
from kbroker.protocol import messages

LAST_COMMIT_VERSION = 9
LAST_OFFSET_FETCH_VERSION = 7
"""The last versions of OffsetCommit and OffsetFetch that identify topics by name and name one group per request."""


class GroupMember(Membership):
    """A member of a consumer group. `heartbeat_if_due` sets `must_join` when the partitions are about to change.

    The methods raise ClientError for a network failure, and KafkaError for lasting errors such as FENCED_INSTANCE_ID,
    GROUP_AUTHORIZATION_FAILED, INCONSISTENT_GROUP_PROTOCOL and GROUP_MAX_SIZE_REACHED.
    """

    lost_place: frozenset[ErrorCode]
    """The errors after which the member must join again, or must get the current epoch by a heartbeat."""

    def __init__(self, cluster: Cluster, group_id: str, settings: ConsumerSettings, clock: Clock | None = None):
        super().__init__(cluster, group_id, clock)
        self.must_join = True
        """True if the partitions are about to change. The consumer then commits and calls `join`."""
        self.keeps_positions = False
        """True if the positions are still valid after the last `join`, because no other member has had the partitions.
        """
        self._settings = settings
        self._no_place = GroupMetadata(group_id, group_instance_id=settings.group_instance_id)
        self._former_place = self._no_place

    @property
    @abc.abstractmethod
    def sends_heartbeats(self) -> bool:
        """Return whether the group expects heartbeats from this member."""

    @property
    @abc.abstractmethod
    def has_lost_place(self) -> bool:
        """Return whether other members may already have the partitions that the last `join` returned."""

    @abc.abstractmethod
    def surrendered(self, topics: Collection[str], owned: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return the owned partitions that the next `join` is known to give up. The join may give up further
        partitions.
        """

    @property
    def metadata(self) -> GroupMetadata:
        """The group metadata that a commit, or Producer.send_offsets_to_transaction, sends to identify this member.

        After the member has left, the value keeps its last generation, so that the group refuses its offsets. The group
        would accept offsets without a generation, although other members may have read the partitions since.
        """
        if self.generation_id < 0:
            return self._former_place
        return GroupMetadata(self.group_id, self.generation_id, self.member_id, self._settings.group_instance_id)

    @abc.abstractmethod
    def join(self, topics: Collection[str], owned: Iterable[TopicPartition] = ()) -> list[TopicPartition]:
        """Join the group, or adopt its last assignment. Return the assigned partitions.

        Raise OutOfTime while the group waits for other members. The next call continues the join.
        """

    @property
    def is_joining(self) -> bool:
        """Return whether a join is in progress, or has a result that the consumer has not yet adopted."""
        return False

    def continue_joining(self) -> None:
        """Continue a join in progress, without waiting for other members. The next `join` returns its result."""

    def give_up(self) -> None:
        """Leave the group, because the consumer does not poll. A later `join` makes the consumer a member again."""
        self.must_join = True       # a consumer that polls now waits until the member has left
        try:
            self.leave_quietly()
        finally:
            self.must_join, self.keeps_positions = True, False

    def leave_quietly(self) -> None:
        """Leave the group, and ignore temporary errors. If the coordinator does not answer, the session times out."""
        try:
            self.leave()
        except (ClientError, OutOfTime):
            return
        except KafkaError as error:
            if not error.code.retriable:        # retriable: for example a coordinator that still loads
                raise

    def leave_for_good(self) -> None:
        """Leave the group. Later commits name no member: a group without members accepts them."""
        try:
            self.leave_quietly()
        finally:
            self.generation_id, self._former_place = -1, self._no_place
            self.must_join, self.keeps_positions = True, False

    # ---- offsets

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit offsets. Raise KafkaError, such as REBALANCE_IN_PROGRESS, if the partitions have been reassigned."""
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
            place = self.metadata
            answer = self._coordinator().call(request(
                group_id=self.group_id, generation_id_or_member_epoch=place.generation_id, member_id=place.member_id,
                group_instance_id=place.group_instance_id, topics=topics), max_version=LAST_COMMIT_VERSION)
            for topic in answer.topics:
                for row in topic.partitions:
                    if row.error_code:
                        self._note_lost_place(known_code(row.error_code))
                        raise error_of(row.error_code, self._words(f'offset of {topic.name}-{row.partition_index}'),
                                       api='OffsetCommit')
        self._retrying(commit, 'OffsetCommit')

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the group's committed offsets. A partition without a committed offset is missing in the result.

        Raise KafkaError(UNSTABLE_OFFSET_COMMIT) while an open transaction commits newer offsets.
        """
        request = messages.OffsetFetchRequest
        topics = [request.OffsetFetchRequestTopic(name=topic, partition_indexes=indexes)
                  for topic, indexes in by_topic(partitions).items()]

        def fetch() -> dict[TopicPartition, OffsetAndMetadata]:
            answer = self._coordinator().call(request(
                group_id=self.group_id, topics=topics,
                require_stable=self._settings.isolation_level == 'read_committed'),
                max_version=LAST_OFFSET_FETCH_VERSION)
            check(answer.error_code, self._words('OffsetFetch'), api='OffsetFetch')
            found = {}
            for topic in answer.topics:
                for row in topic.partitions:
                    check(row.error_code, self._words(f'offset of {topic.name}-{row.partition_index}'),
                          api='OffsetFetch')
                    if row.committed_offset >= 0:
                        found[topic.name, row.partition_index] = OffsetAndMetadata(
                            row.committed_offset, row.committed_leader_epoch, row.metadata or '')
            return found
        return self._retrying(fetch, 'OffsetFetch')
