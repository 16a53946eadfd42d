"""The group coordinator: finds the shard of a group, loads the shards, sweeps them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from kbroker.clock import Clock, Timers
from kbroker.completion import Callback, Completion
from kbroker.errors import ErrorCode, KafkaError
from kbroker.group.classic import ClassicGroup
from kbroker.group.membership import Membership
from kbroker.group.memory import GroupMemory
from kbroker.group.offsets import Commit, FetchedOffset, Offsets
from kbroker.group.pending_members import PendingMembers
from kbroker.group.shard import Shard, TransactionalProducer
from kbroker.internal_topics import CONSUMER_OFFSETS
from kbroker.long_work import LongWork
from kbroker.record.batch import NO_SEQUENCE
from kbroker.topics.partitioner import partition_for

if TYPE_CHECKING:
    from kbroker.group.offsets import TopicPartition
    from kbroker.group.records import OffsetKey

log = logging.getLogger(__name__)

class Shared(NamedTuple):
    """The parts of the coordinator that all shards share."""

    memory: GroupMemory
    pending_members: PendingMembers
    long_work: LongWork


class Coordinated:
    """One partition of `__consumer_offsets` with its operations."""

    def __init__(self, partition: Any, config: Any, clock: Clock, timers: Timers, shared: Shared):
        self.shard = Shard(partition, clock, shared.memory, shared.long_work)
        self.membership = Membership(self.shard, config, clock, timers, shared.long_work, shared.pending_members)
        self.offsets = Offsets(self.shard, self.membership.sessions, config, clock, shared.long_work)


class GroupCoordinator:
    """All groups. Operations on a group raise INVALID_GROUP_ID for an empty id where the API does not allow it, and
    NOT_COORDINATOR as long as `__consumer_offsets` does not exist: FindCoordinator creates it."""

    def __init__(self, config: Any, clock: Clock, timers: Timers, topics: Any, long_work: LongWork):
        self._config = config
        self._clock = clock
        self._timers = timers
        self._topics = topics
        self._shared = Shared(
            GroupMemory(config.kbroker_group_memory_max_bytes, clock), PendingMembers(timers), long_work
        )
        self._is_sweeping = False
        self._parts: list[Coordinated] = []
        self._stop_sweep: Callable[[], None] | None = None

    @property
    def memory(self) -> GroupMemory:
        return self._shared.memory

    @property
    def pending_members(self) -> PendingMembers:
        return self._shared.pending_members

    def start(self) -> None:
        """Load what the log holds and begin the sweep for expired offsets. CorruptLogError when a row cannot be
        read."""
        self._topics.on_topic_created.append(self._topic_created)
        self._topics.on_topic_deleted.append(self._topic_deleted)
        topic = self._topics.topic(CONSUMER_OFFSETS)
        if topic is not None:
            self._load(topic)
        self._stop_sweep = self._timers.every(self._config.offsets_retention_check_interval_ms, self.sweep)

    def close(self) -> None:
        """Stop the sweep and the sessions, and release all groups: from here on each operation is NOT_COORDINATOR."""
        if self._stop_sweep is not None:
            self._stop_sweep()
        for part in self._parts:
            part.membership.stop_sessions()
        self._parts = []

    def _load(self, topic: Any) -> None:
        self._parts = [
            Coordinated(partition, self._config, self._clock, self._timers, self._shared)
            for partition in topic.partitions
        ]
        for part in self._parts:
            part.shard.load()
            part.offsets.forget_deleted_topics(
                lambda topic_id: self._topics.topic_by_id(topic_id) is not None, Callback(_log_failure)
            )
            part.membership.start_sessions()
        log.info('%d groups loaded', sum(len(part.shard.groups) for part in self._parts))

    def _topic_created(self, topic: Any) -> None:
        if topic.name == CONSUMER_OFFSETS and not self._parts:
            self._load(topic)

    def _topic_deleted(self, topic: Any) -> None:
        if topic.name == CONSUMER_OFFSETS:
            for part in self._parts:
                part.membership.stop_sessions()
            self._parts = []
        for part in self._parts:
            part.offsets.forget_topic(topic.name, Callback(_log_failure))

    def sweep(self) -> None:
        """Expire offsets and empty groups (offsets.retention.minutes), unless the last sweep is not at its end."""
        if not self._is_sweeping:
            self._is_sweeping = True
            self._shared.long_work.start(self._sweep())

    def _sweep(self) -> Generator[object, None, None]:
        for part in list(self._parts):
            yield from part.offsets.expire(Callback(_log_failure))
        self._is_sweeping = False

    def partition_of(self, group_id: str) -> int:
        """The partition of `__consumer_offsets` that the group lives in."""
        if not self._parts:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f'{CONSUMER_OFFSETS} does not exist yet')
        return partition_for(group_id, len(self._parts))

    def _part(self, group_id: str) -> Coordinated:
        return self._parts[self.partition_of(group_id)]

    def _member_part(self, group_id: str) -> Coordinated:
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, 'the group id is empty')
        return self._part(group_id)

    # Members: the errors are those of Membership's operations

    def join(self, request: Any, version: int, client_id: str, client_host: str, done: Completion) -> None:
        self._member_part(request.group_id).membership.join(request, version, client_id, client_host, done)

    def sync(self, request: Any, done: Completion) -> None:
        self._member_part(request.group_id).membership.sync(request, done)

    def heartbeat(self, request: Any) -> None:
        self._member_part(request.group_id).membership.heartbeat(request)

    def leave(self, request: Any) -> Generator[object, None, Any]:
        return self._member_part(request.group_id).membership.leave(request)

    def max_message_bytes(self, group_id: str) -> int:
        """Return the largest batch of the group's partition. NOT_COORDINATOR."""
        return self._part(group_id).shard.partition.max_message_bytes

    # Offsets: an empty group id is as good as any here, for the sake of old consumers without a group

    def prepare(self, commit: Commit) -> Generator[object]:
        """Make the rows of a commit of many partitions in parts, before `commit` or `commit_transactional`."""
        return self._part(commit.group_id).offsets.prepare(commit)

    def commit(self, commit: Commit, version: int, done: Completion) -> None:
        self._part(commit.group_id).offsets.commit(commit, version, done)

    def commit_transactional(self, commit: Commit, producer: TransactionalProducer, done: Completion) -> None:
        self._member_part(commit.group_id).offsets.commit_transactional(commit, producer, done)

    def start_verification(
        self, group_id: str, producer_id: int, producer_epoch: int, *, supports_epoch_bump: bool
    ) -> Any:
        """The guard for the first commit of a transaction in the group's partition; None when it is open there already.

        INVALID_PRODUCER_EPOCH for a producer that has been fenced (KIP-890).
        """
        partition = self._part(group_id).shard.partition
        return partition.start_verification(
            producer_id, producer_epoch, NO_SEQUENCE, supports_epoch_bump, self._clock.wall_ms()
        )

    def fetch_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], require_stable: bool
    ) -> dict[TopicPartition, FetchedOffset]:
        return self._part(group_id).offsets.fetch(group_id, partitions, require_stable)

    def offset_keys(self, group_id: str) -> list[OffsetKey]:
        """Return the keys of all offsets that the group has committed."""
        return self._part(group_id).shard.offsets.committed_keys(group_id)

    def delete_offsets(self, group_id: str, partitions: Sequence[TopicPartition], done: Completion) -> None:
        self._member_part(group_id).offsets.delete(group_id, partitions, done)

    # Groups

    def describe(self, group_id: str) -> ClassicGroup:
        """GROUP_ID_NOT_FOUND."""
        group = self._part(group_id).shard.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f'group {group_id} does not exist')
        return group

    def list_groups(self) -> list[ClassicGroup]:
        return [group for part in self._parts for group in part.shard.groups.values()]

    def delete_group(self, group_id: str, done: Completion) -> None:
        """`done` completes when the tombstones are durable. GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP."""
        self._part(group_id).offsets.delete_group(group_id, done)


def _log_failure(error: KafkaError | None, result: None) -> None:
    if error is not None:
        log.error('tombstones were not stored: %s', error)
