"""A member of a consumer group, by the classic protocol: join, assign as leader, heartbeat, commit, leave.

    join():   every member: JoinGroup; the leader also assigns --> every member: SyncGroup --> partitions
    stable:   Heartbeat every heartbeat.interval.ms; the answer REBALANCE_IN_PROGRESS means: join again

Heartbeats are sent only in calls of `heartbeat_if_due`: no thread keeps a stuck consumer in the group.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from kbroker.client.admin import OffsetAndMetadata
from kbroker.client.assignor import (
    PROTOCOL_TYPE,
    RANGE,
    Member,
    TopicPartition,
    assign_ranges,
    by_topic,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from kbroker.client.cluster import Cluster, KeyType
from kbroker.client.connection import Connection
from kbroker.client.errors import ClientError, check, error_of, known_code
from kbroker.client.stream_settings import ConsumerSettings
from kbroker.client.transaction_manager import GroupMetadata
from kbroker.clock import Clock
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol import messages

T = TypeVar('T')

JOIN_GRACE_MS = 5000
"""JoinGroup is answered when all members have rejoined, at the latest after the rebalance timeout."""
LAST_COMMIT_VERSION = 9
LAST_OFFSET_FETCH_VERSION = 7
"""The last versions that identify topics by name and have a single group at the top level."""

_E = ErrorCode
# The group has replaced this generation of the member, which must join again.
_LOST_PLACE = frozenset({_E.REBALANCE_IN_PROGRESS, _E.ILLEGAL_GENERATION, _E.UNKNOWN_MEMBER_ID})


class GroupMember:
    """A member of a consumer group.

    Raises ClientError, and KafkaError for lasting errors: FENCED_INSTANCE_ID, GROUP_AUTHORIZATION_FAILED,
    INCONSISTENT_GROUP_PROTOCOL, GROUP_MAX_SIZE_REACHED ...
    """

    def __init__(self, cluster: Cluster, group_id: str, settings: ConsumerSettings, clock: Clock | None = None,
                 sleep: Callable[[float], None] = time.sleep):
        self.group_id = group_id
        self.member_id = ''
        self.generation_id = -1
        self.must_join = True
        self._cluster = cluster
        self._settings = settings
        self._clock = clock or Clock()
        self._sleep = sleep
        self._next_heartbeat_ms = 0

    @property
    def metadata(self) -> GroupMetadata:
        """The argument for Producer.send_offsets_to_transaction."""
        return GroupMetadata(self.group_id, self.generation_id, self.member_id, self._settings.group_instance_id)

    # ---- joining

    def join(self, topics: Collection[str], owned: Iterable[TopicPartition] = ()) -> list[TopicPartition]:
        """Join the next generation, waiting for the other members. Returns the assigned partitions."""
        subscription = encode_subscription(topics, owned)
        while True:
            answer = self._retrying(lambda: self._join_once(subscription), 'JoinGroup')
            assignments = self._assign(answer) if answer.leader == answer.member_id else []
            try:
                assignment = self._retrying(lambda a=answer, b=assignments: self._sync(a, b),  # type: ignore[misc]
                                            'SyncGroup')
            except KafkaError as error:
                if not self._lost_place(error.code):
                    raise
                continue
            self.must_join = False
            self._next_heartbeat_ms = self._clock.monotonic_ms() + self._settings.heartbeat_interval_ms
            return decode_assignment(assignment)

    def _join_once(self, subscription: bytes) -> Any:
        rebalance_timeout_ms = self._settings.max_poll_interval_ms
        while True:
            answer = self._coordinator().call(messages.JoinGroupRequest(
                group_id=self.group_id, session_timeout_ms=self._settings.session_timeout_ms,
                rebalance_timeout_ms=rebalance_timeout_ms, member_id=self.member_id,
                group_instance_id=self._settings.group_instance_id, protocol_type=PROTOCOL_TYPE,
                protocols=[messages.JoinGroupRequest.JoinGroupRequestProtocol(name=RANGE, metadata=subscription)]),
                rebalance_timeout_ms + JOIN_GRACE_MS)
            if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:   # KIP-394: first the member id, then the join
                self.member_id = answer.member_id
            elif answer.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ''
            else:
                check(answer.error_code, self._words('JoinGroup'))
                self.member_id, self.generation_id = answer.member_id, answer.generation_id
                return answer

    def _assign(self, answer: Any) -> list[Any]:
        """As leader, compute the assignments of all members."""
        if answer.skip_assignment:      # KIP-814: a static leader came back; the others keep their partitions
            return []
        members = [Member(row.member_id, row.group_instance_id, decode_subscription(row.metadata))
                   for row in answer.members]
        known = self._cluster.refresh({topic for member in members for topic in member.topics}).topics
        counts = {topic.name: len(topic.partitions) for topic in known if not topic.error_code}
        return [messages.SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id,
                                                                     assignment=encode_assignment(partitions))
                for member_id, partitions in assign_ranges(members, counts).items()]

    def _sync(self, answer: Any, assignments: list[Any]) -> bytes:
        synced = self._coordinator().call(messages.SyncGroupRequest(
            group_id=self.group_id, generation_id=self.generation_id, member_id=self.member_id,
            group_instance_id=self._settings.group_instance_id, protocol_type=PROTOCOL_TYPE,
            protocol_name=answer.protocol_name, assignments=assignments),
            self._settings.max_poll_interval_ms + JOIN_GRACE_MS)
        check(synced.error_code, self._words('SyncGroup'))
        return bytes(synced.assignment)

    # ---- staying

    def next_heartbeat_ms(self) -> int:
        """Return the time of the next heartbeat on the monotonic clock."""
        return self._next_heartbeat_ms

    def heartbeat_if_due(self) -> None:
        """Send a heartbeat if due. Sets `must_join` when the group rebalances or has dropped this member."""
        now_ms = self._clock.monotonic_ms()
        if self.must_join or now_ms < self._next_heartbeat_ms:
            return
        self._next_heartbeat_ms = now_ms + self._settings.heartbeat_interval_ms
        try:
            answer = self._coordinator().call(messages.HeartbeatRequest(
                group_id=self.group_id, generation_id=self.generation_id, member_id=self.member_id,
                group_instance_id=self._settings.group_instance_id), self._settings.session_timeout_ms)
            code = known_code(answer.error_code)
        except ClientError as error:
            if error.is_lasting:
                raise
            self._cluster.forget()
            return
        except KafkaError as error:
            code = error.code
        if code.retriable:
            self._cluster.forget()
        elif code is not ErrorCode.NONE and not self._lost_place(code):
            check(code, self._words('Heartbeat'))

    def leave(self) -> None:
        """Release the partitions at once. A static member keeps its place until its session ends."""
        if self.generation_id < 0 or self._settings.group_instance_id is not None:
            return
        connection = self._coordinator()
        if connection.version_of(messages.LeaveGroupRequest) < 3:
            request = messages.LeaveGroupRequest(group_id=self.group_id, member_id=self.member_id)
        else:
            request = messages.LeaveGroupRequest(group_id=self.group_id, members=[
                messages.LeaveGroupRequest.MemberIdentity(member_id=self.member_id)])
        connection.call(request)
        self.generation_id, self.member_id, self.must_join = -1, '', True

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
                        self._lost_place(known_code(row.error_code))
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

    def _lost_place(self, code: ErrorCode) -> bool:
        """Return True, and set `must_join`, if the error means that the member must join again."""
        if code not in _LOST_PLACE:
            return False
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ''
        self.must_join = True
        return True

    def _words(self, name: str) -> str:
        return f'{name} of group {self.group_id!r}'
