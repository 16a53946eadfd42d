"""The group coordinator. It passes each request to the shard of its group, loads the shards, and expires offsets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kbroker.base.clock import Clock, Timers
from kbroker.base.completion import Callback, Completion, Steps
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.internal_topics import CONSUMER_OFFSETS
from kbroker.base.lean_dataclasses import dataclass
from kbroker.base.ledger import Line
from kbroker.base.long_work import LongWork
from kbroker.base.topic_partition import TopicPartition
from kbroker.group.classic.group import ClassicGroup
from kbroker.group.classic.membership import Membership
from kbroker.group.classic.pending_members import MOST_PENDING_MEMBERS, PendingMembers
from kbroker.group.classic.rows import apply_row as apply_classic_row
from kbroker.group.commits import NO_TOPIC_ID, Commit
from kbroker.group.config import GroupConfig, GroupConfigs, OverridesOf
from kbroker.group.consumer.classic_members import ClassicMembers, Join
from kbroker.group.consumer.group import ConsumerGroup
from kbroker.group.consumer.heartbeat import ConsumerSteps, preferred_assignor
from kbroker.group.consumer.migration import Migration
from kbroker.group.consumer.regexes import Regexes
from kbroker.group.deadlines import Deadlines
from kbroker.group.group import Group
from kbroker.group.kinds import Kinds
from kbroker.group.memory import GroupMemory
from kbroker.group.modern.group import ModernGroup
from kbroker.group.modern.heartbeat import Heartbeats, Place, not_found
from kbroker.group.modern.idle_members import IdleMembers
from kbroker.group.modern.topic_changes import TopicChanges
from kbroker.group.offset_operations import FetchedOffset, Offsets
from kbroker.group.shard import Shard, TransactionalProducer
from kbroker.group.share.group import ShareGroup
from kbroker.group.share.heartbeat import ShareSteps
from kbroker.group.share.offsets import ShareOffsets
from kbroker.group.share.state import ShareStates
from kbroker.group.streams.group import StreamsGroup
from kbroker.group.streams.heartbeat import StreamsSteps
from kbroker.group.streams.topics import StreamsTopics
from kbroker.group.turns import Turns
from kbroker.record.batch import NO_SEQUENCE
from kbroker.settings.config import Config
from kbroker.topics.partition import Partition
from kbroker.topics.partitioner import partition_for
from kbroker.topics.registry import TopicRegistry
from kbroker.topics.topic import Topic

if TYPE_CHECKING:
    from kbroker.group.records import OffsetKey
    from kbroker.log.producer_state import Verification

log = logging.getLogger(__name__)

KINDS = Kinds(ClassicGroup, {
    'GroupMetadataKey': apply_classic_row,
    **{key_name: kind.apply_row
       for kind in (ConsumerGroup, ShareGroup, StreamsGroup) for key_name in kind.row_handlers}})

DEADLINES_A_MEMBER = 4
"""The largest number of deadlines of one member: the end of the session and of the rebalance timeout, and, for a
classic member, the deadlines of the next JoinGroup and SyncGroup.

A streams group also has one deadline that no member has: the time of its first assignment.
"""

OFFSETS_AT_ONCE = 256
"""The committed offsets of a group that a reader of all of them gets at one time."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The parts of the coordinator that all shards share."""

    memory: GroupMemory
    pending_members: PendingMembers
    long_work: LongWork
    changes: TopicChanges
    regexes: Regexes
    share_states: ShareStates
    group_config: Callable[[str], GroupConfig]
    steps: Steps | None
    """The object that holds rebalances at their point, if a test controls the broker."""


class Coordinated:
    """One partition of `__consumer_offsets`: its shard, and the objects that serve the shard's groups."""

    def __init__(self, partition: Partition, config: Config, clock: Clock, timers: Timers, shared: Shared):
        self.shard = Shard(partition, clock, shared.memory, shared.long_work, KINDS)
        self.turns = Turns(self.shard, shared.long_work)
        self.membership = Membership(self.shard, config, clock, timers, shared.long_work, shared.pending_members,
                                     shared.steps)
        self.offsets = Offsets(self.shard, self.membership.sessions, self.turns, config, clock, shared.long_work)
        self.deadlines = Deadlines(clock, timers)
        self.share_offsets = ShareOffsets(self.turns, shared.share_states, shared.changes.topics)
        place = Place(self.shard, self.turns, self.deadlines, shared.changes, clock, shared.long_work, config,
                      shared.group_config, shared.steps)
        migration = Migration(place, self.membership)
        consumers = ConsumerSteps(place, shared.regexes, migration).kind()
        kinds = consumers, ShareSteps(place, shared.share_states).kind(), StreamsSteps(place).kind()
        self.heartbeats = {kind.group_class.group_type: Heartbeats(place, kind) for kind in kinds}
        self.idle_members = {name: IdleMembers(heartbeats) for name, heartbeats in self.heartbeats.items()}
        self.classic_members = ClassicMembers(place, consumers, migration, self.membership)

    def start(self) -> None:
        """Start the sessions of all members, because the shard has been loaded. Each session gets its full timeout."""
        self.membership.start_sessions()
        for group in list(self.shard.groups.values()):
            if isinstance(group, ModernGroup):
                self.heartbeats[group.group_type].start_deadlines(group)

    def stop(self) -> None:
        """Stop the turns and the deadlines of all groups in the shard, and remove these groups from memory."""
        self.turns.stop()
        self.deadlines.cancel_all()
        self.membership.stop_sessions()


class GroupCoordinator:
    """The coordinator of all groups.

    Operations on a group raise NOT_COORDINATOR while the topic `__consumer_offsets` does not exist; FindCoordinator
    creates the topic. Operations raise INVALID_GROUP_ID for an empty group id, unless their API allows it.
    """

    def __init__(self, config: Config, clock: Clock, timers: Timers, topics: TopicRegistry, long_work: LongWork,
                 overrides_of: OverridesOf, steps: Steps | None = None):
        """Make a coordinator without groups. `overrides_of` returns the configs that the metadata log has for a
        group. `steps` holds rebalances, if a test controls the broker."""
        self._config = config
        self._group_configs = GroupConfigs(config, overrides_of)
        self._clock = clock
        self._timers = timers
        self._topics = topics
        changes = TopicChanges(topics)
        memory = GroupMemory(config.kbroker_group_memory_max_bytes, clock)
        self.share_states = ShareStates(clock, timers, topics, long_work, memory,
                                        lambda: config.share_coordinator_snapshot_update_records_per_snapshot)
        self._shared = Shared(
            memory, PendingMembers(timers), long_work,
            changes, Regexes(changes, clock, config, long_work), self.share_states, self._group_configs.of, steps
        )
        self.streams_topics = StreamsTopics(topics, clock, long_work)
        self._is_sweeping = False
        self._parts: list[Coordinated] = []
        self._stop_sweep: Callable[[], None] | None = None

    @property
    def memory(self) -> GroupMemory:
        return self._shared.memory

    def ledger(self) -> list[Line]:
        return [
            Line('groups with members and offsets', 'bytes', lambda: self.memory.held_bytes,
                 lambda: self.memory.most_bytes, 'kbroker.group.memory.max.bytes'),
            Line('member ids not used yet', '', lambda: len(self.pending_members), lambda: MOST_PENDING_MEMBERS,
                 'the oldest is forgotten'),
            Line('deadlines of members', '', lambda: self.deadlines_count, lambda: self.most_deadlines,
                 'one a group and four a member'),
            Line('groups whose regular expressions are resolved', '', lambda: len(self.regexes),
                 lambda: len(self.list_groups()), 'one at a time')]

    @property
    def pending_members(self) -> PendingMembers:
        return self._shared.pending_members

    @property
    def regexes(self) -> Regexes:
        return self._shared.regexes

    @property
    def deadlines_count(self) -> int:
        """The number of armed deadlines of the members of modern groups."""
        return sum(len(part.deadlines) for part in self._parts)

    @property
    def most_deadlines(self) -> int:
        """The largest number of deadlines that all existing modern groups and their members can have."""
        return sum(1 + DEADLINES_A_MEMBER * len(group.members)
                   for group in self.list_groups() if isinstance(group, ModernGroup))

    def group_config(self, group_id: str) -> GroupConfig:
        """Return the configs in force for a group, which need not exist. The caller must not keep them, because they
        may change before the next request."""
        return self._group_configs.of(group_id)

    def reconfigure(self) -> None:
        """Adopt settings of the broker that were changed while it runs."""
        self._group_configs.reconfigure()

    def start(self) -> None:
        """Load all groups, and start the timer of the sweep for expired offsets. Raise CorruptLogError if a row cannot
        be read."""
        self._topics.on_topic_created.append(self._topic_created)
        self._topics.on_topic_deleted.append(self._topic_deleted)
        self._topics.on_partitions_added.append(self._shared.changes.note_changed)
        topic = self._topics.topic(CONSUMER_OFFSETS)
        if topic is not None:
            self._load(topic)
        self.share_states.start()
        self._stop_sweep = self._timers.every(self._config.offsets_retention_check_interval_ms, self.sweep)

    def close(self) -> None:
        """Stop the sweep and all deadlines, and remove all groups from memory. Operations after this call raise
        NOT_COORDINATOR."""
        if self._stop_sweep is not None:
            self._stop_sweep()
        for part in self._parts:
            part.stop()
        self._parts = []
        self.share_states.close()

    def _load(self, topic: Topic) -> None:
        self._parts = [
            Coordinated(partition, self._config, self._clock, self._timers, self._shared)
            for partition in topic.partitions
        ]
        for part in self._parts:
            part.shard.load()
            part.offsets.forget_deleted_topics(
                lambda topic_id: self._topics.topic_by_id(topic_id) is not None, Callback(_log_failure)
            )
            part.start()
        log.info('%d groups loaded', sum(len(part.shard.groups) for part in self._parts))

    def _topic_created(self, topic: Topic) -> None:
        self._shared.changes.note_created(topic)
        if topic.name == CONSUMER_OFFSETS and not self._parts:
            self._load(topic)

    def _topic_deleted(self, topic: Topic) -> None:
        self._shared.changes.note_changed(topic)
        if topic.name == CONSUMER_OFFSETS:
            for part in self._parts:
                part.stop()
            self._parts = []
        for part in self._parts:
            if not part.shard.partition.is_deleted:     # one request may delete both topics
                part.offsets.forget_topic(topic.name, Callback(_log_failure))

    def sweep(self) -> None:
        """Start a sweep, which expires offsets (offsets.retention.minutes) and ends empty groups. Do nothing if a sweep
        is in progress."""
        if not self._is_sweeping:
            self._is_sweeping = True
            self._shared.long_work.start(self._sweep())

    def _sweep(self) -> Generator[object, None, None]:
        for part in list(self._parts):
            if not part.shard.partition.is_deleted:
                yield from part.offsets.expire(Callback(_log_failure))
        self._is_sweeping = False

    def partition_of(self, group_id: str) -> int:
        """Return the index of the partition of `__consumer_offsets` that stores the group. Raise NOT_COORDINATOR if the
        topic does not exist."""
        if not self._parts:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, f'{CONSUMER_OFFSETS} does not exist yet')
        return partition_for(group_id, len(self._parts))

    def _part(self, group_id: str) -> Coordinated:
        return self._parts[self.partition_of(group_id)]

    def _member_part(self, group_id: str) -> Coordinated:
        if not group_id:
            raise KafkaError(ErrorCode.INVALID_GROUP_ID, 'the group id is empty')
        return self._part(group_id)

    # Methods for members that speak the classic protocol. They raise the errors of the same methods of ClassicMembers

    def join(self, request: Any, version: int, client_id: str, client_host: str, done: Completion) -> None:
        self._member_part(request.group_id).classic_members.join(Join(request, version, client_id, client_host), done)

    def sync(self, request: Any, done: Completion) -> None:
        self._member_part(request.group_id).classic_members.sync(request, done)

    def heartbeat(self, request: Any) -> None:
        self._member_part(request.group_id).classic_members.heartbeat_of_classic(request)

    def leave(self, request: Any) -> Generator[object, None, Any]:
        return self._member_part(request.group_id).classic_members.leave_classic(request)

    # Methods for members of consumer, share and streams groups

    def heartbeats(self, kind: str, group_id: str) -> Heartbeats:
        """Return the object that serves heartbeats to this group: the Heartbeats of its kind in its shard. Raise
        INVALID_GROUP_ID for an empty group id, NOT_COORDINATOR if `__consumer_offsets` does not exist."""
        return self._member_part(group_id).heartbeats[kind]

    def idle_members(self, kind: str, group_id: str) -> IdleMembers | None:
        """Return the IdleMembers object of this kind of group in the group's shard. Return None if the broker does not
        have the shard."""
        parts = self._parts
        return parts[partition_for(group_id, len(parts))].idle_members[kind] if parts else None

    def consumer_assignor(self, group: ConsumerGroup) -> str:
        """Return the assignor that the consumer group uses."""
        return preferred_assignor(group.assignor_votes, self._config.group_consumer_assignors)

    def max_message_bytes(self, group_id: str) -> int:
        """Return the largest allowed size of a batch in the group's partition, in bytes. Raise NOT_COORDINATOR if
        `__consumer_offsets` does not exist."""
        return self._part(group_id).shard.partition.max_message_bytes

    # Methods for offsets. The group id may be empty, because old consumers without a group id commit offsets with the
    # empty id

    def prepare(self, commit: Commit) -> Generator[object]:
        """Make the rows of a commit of many partitions in parts. The caller must then call `commit` or
        `commit_transactional`."""
        return self._part(commit.group_id).offsets.prepare(commit)

    def commit(self, commit: Commit, version: int, done: Completion) -> None:
        self._part(commit.group_id).offsets.commit(commit, version, done)

    def commit_transactional(
        self, commit: Commit, version: int, producer: TransactionalProducer, done: Completion
    ) -> None:
        self._member_part(commit.group_id).offsets.commit_transactional(commit, version, producer, done)

    def start_verification(
        self, group_id: str, producer_id: int, producer_epoch: int, *, supports_epoch_bump: bool
    ) -> Verification | None:
        """Return the guard for a transaction's first commit in the group's partition: the append of the commit needs
        it. Return None if the transaction is already open in this partition.

        Raise INVALID_PRODUCER_EPOCH if the producer is fenced (KIP-890).
        """
        partition = self._part(group_id).shard.partition
        return partition.start_verification(
            producer_id, producer_epoch, NO_SEQUENCE, supports_epoch_bump, self._clock.wall_ms()
        )

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """Call the group's `check_fetch`, which raises KafkaError. Do nothing if the group does not exist."""
        group = self._part(group_id).shard.groups.get(group_id)
        if group is not None:
            group.check_fetch(member_id, member_epoch)

    def fetch_offsets(
        self, group_id: str, partitions: Iterable[TopicPartition], require_stable: bool, topic_id: bytes = NO_TOPIC_ID
    ) -> dict[TopicPartition, FetchedOffset]:
        """Return {partition: committed offset}. If a `topic_id` is given, omit offsets that were committed for a
        deleted topic with the same name."""
        return self._part(group_id).offsets.fetch(group_id, partitions, require_stable, topic_id)

    def offset_keys(self, group_id: str) -> list[OffsetKey]:
        """Return the keys of all offsets that the group has committed."""
        return self._part(group_id).shard.offsets.committed_keys(group_id)

    def committed_in_parts(self, group_id: str) -> Iterator[list[tuple[OffsetKey, int]]]:
        """Yield short lists of (key, committed offset). The caller may pause between two lists; an offset that is
        deleted meanwhile is omitted."""
        offsets = self._part(group_id).shard.offsets
        keys = offsets.committed_keys(group_id)
        for first in range(0, len(keys), OFFSETS_AT_ONCE):
            yield [(key, committed.offset) for key in keys[first:first + OFFSETS_AT_ONCE]
                   if (committed := offsets.committed(key)) is not None]

    def delete_offsets(self, group_id: str, partitions: Sequence[TopicPartition], done: Completion) -> None:
        self._member_part(group_id).offsets.delete(group_id, partitions, done)

    def share_offsets(self, group_id: str) -> ShareOffsets:
        """Return the object for operations on the share group's offsets. Raise INVALID_GROUP_ID for an empty group id,
        NOT_COORDINATOR if `__consumer_offsets` does not exist."""
        return self._member_part(group_id).share_offsets

    # Groups

    def describe(self, group_id: str, group_type: str) -> Any:
        """Return the group. Raise GROUP_ID_NOT_FOUND unless a group with this id and type exists."""
        group = self._part(group_id).shard.groups.get(group_id)
        if group is None or group.group_type != group_type:
            raise not_found(group_id)
        return group

    def list_groups(self) -> list[Group]:
        return [group for part in self._parts for group in part.shard.groups.values()]

    def groups_in_parts(self) -> Iterator[list[Group]]:
        """Yield the groups of each shard. The caller may pause between two lists."""
        for part in list(self._parts):
            yield list(part.shard.groups.values())

    def delete_group(self, group_id: str, done: Completion) -> None:
        """Delete a group. `done` completes when the group's tombstones are durable, or with an error.

        The errors are GROUP_ID_NOT_FOUND and NON_EMPTY_GROUP.
        """
        part = self._part(group_id)
        if isinstance(part.shard.groups.get(group_id), ShareGroup):
            part.share_offsets.delete_group(group_id, done)
        else:
            part.offsets.delete_group(group_id, done)


def _log_failure(error: KafkaError | None, result: None) -> None:
    if error is not None:
        log.error('tombstones were not stored: %s', error)
