"""Committing, fetching, deleting and expiring the offsets of a shard's groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kbroker.clock import Clock
from kbroker.errors import ErrorCode, KafkaError
from kbroker.group.classic import CONSUMER_PROTOCOL_TYPE, ClassicGroup, GroupState
from kbroker.group.membership import Membership
from kbroker.group.records import NO_TOPIC_ID, CommittedOffset, OffsetKey, group_tombstone, offset_row, offset_tombstone
from kbroker.group.shard import Done, Shard, TransactionalProducer

TopicPartition = tuple[str, int]
CommitDone = Callable[[dict[TopicPartition, ErrorCode]], None]


@dataclass(frozen=True, slots=True)
class NewOffset:
    """What a client commits for one partition. `topic_id` is that of the topic that exists now."""

    offset: int
    leader_epoch: int = -1
    metadata: str | None = ''
    topic_id: bytes = NO_TOPIC_ID


@dataclass(frozen=True, slots=True)
class Commit:
    """An OffsetCommit or the group's half of a TxnOffsetCommit, with the partitions that exist."""

    group_id: str
    offsets: Mapping[TopicPartition, NewOffset]
    generation: int = -1
    member_id: str = ''
    group_instance_id: str | None = None
    retention_ms: int = -1
    """Until when the offsets are kept, from now; -1: as offsets.retention.minutes says. OffsetCommit versions 2 to
    4."""


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    """One partition's answer; `offset` is -1 when there is none."""

    error: ErrorCode = ErrorCode.NONE
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ''


NO_OFFSET = FetchedOffset()
UNSTABLE = FetchedOffset(ErrorCode.UNSTABLE_OFFSET_COMMIT)


class Offsets:
    """The offset operations of one shard. Changes become visible by replay, answers leave when they are durable."""

    def __init__(self, shard: Shard, membership: Membership, config: Any, clock: Clock):
        self._shard = shard
        self._membership = membership
        self._config = config
        self._clock = clock

    # Commit

    def commit(self, commit: Commit, version: int, done: CommitDone) -> None:
        """OffsetCommit. `done` gets an error code for each partition, once the offsets are durable.

        For all partitions: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, REBALANCE_IN_PROGRESS,
        COORDINATOR_NOT_AVAILABLE; GROUP_ID_NOT_FOUND (ILLEGAL_GENERATION before version 9) for a generation of no
        group.
        """
        group = self._group(
            commit, missing=ErrorCode.GROUP_ID_NOT_FOUND if version >= 9 else ErrorCode.ILLEGAL_GENERATION
        )
        if group is not None:
            self._check_commit(group, commit)
            self._membership.touch(group, commit.member_id)
        self._append(commit, done)

    def commit_transactional(self, commit: Commit, producer: TransactionalProducer, done: CommitDone) -> None:
        """TxnOffsetCommit, when the transaction holds the partition: the offsets are pending until the marker. `done`
        as in `commit`.

        For all partitions: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, COORDINATOR_NOT_AVAILABLE. Not so
        a rebalance: the generation, if the client names one, is fence enough (KIP-447).
        """
        group = self._group(commit, missing=ErrorCode.ILLEGAL_GENERATION)
        if group is not None:
            group.check_alive()
            if _names_member(commit) and not _is_standalone(group, commit):
                group.check_member(commit.member_id, commit.group_instance_id)
                group.check_generation(commit.generation)
        self._append(commit, done, producer)

    def _group(self, commit: Commit, missing: ErrorCode) -> ClassicGroup | None:
        """None for the first commit of a group without members, which its own replay creates."""
        group = self._shard.groups.get(commit.group_id)
        if group is None and commit.generation >= 0:
            raise KafkaError(missing, f'group {commit.group_id} does not exist')
        return group

    def _check_commit(self, group: ClassicGroup, commit: Commit) -> None:
        group.check_alive()
        if _is_standalone(group, commit):
            return
        if not _names_member(commit):
            if group.state is GroupState.EMPTY:
                return
            raise KafkaError(
                ErrorCode.UNKNOWN_MEMBER_ID, f'group {group.group_id} has members, and the commit names none'
            )
        group.check_member(commit.member_id, commit.group_instance_id)
        group.check_generation(commit.generation)
        if group.state is GroupState.COMPLETING_REBALANCE:
            # The member knows its generation but has no assignment in it yet: it commits again after its sync.
            raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)

    def _append(self, commit: Commit, done: CommitDone, producer: TransactionalProducer | None = None) -> None:
        now_ms = self._clock.wall_ms()
        expire_timestamp_ms = None if commit.retention_ms == -1 else min(now_ms + commit.retention_ms, 2**63 - 1)
        results, rows, keys = dict.fromkeys(commit.offsets, ErrorCode.NONE), [], []
        for (topic, partition), new in commit.offsets.items():
            metadata = new.metadata or ''
            if len(metadata) > self._config.offset_metadata_max_bytes:
                results[topic, partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            key = OffsetKey(commit.group_id, topic, partition)
            keys.append(key)
            rows.append(
                offset_row(
                    key,
                    CommittedOffset(new.offset, new.leader_epoch, metadata, now_ms, expire_timestamp_ms, new.topic_id),
                )
            )

        def durable(error: KafkaError | None) -> None:
            if error is not None:
                results.update(dict.fromkeys(((key.topic, key.partition) for key in keys), error.code))
            done(results)

        if rows:
            self._shard.append_offsets(rows, keys, durable, producer)
        else:
            done(results)

    # Fetch

    def fetch(
        self, group_id: str, partitions: Iterable[TopicPartition], require_stable: bool
    ) -> dict[TopicPartition, FetchedOffset]:
        """OffsetFetch of named partitions. An unknown group has offsets like any other: none."""
        return {
            (topic, partition): self._fetch(OffsetKey(group_id, topic, partition), require_stable)
            for topic, partition in partitions
        }

    def fetch_all(self, group_id: str, require_stable: bool) -> dict[TopicPartition, FetchedOffset]:
        """OffsetFetch of all that the group has committed."""
        return {
            (key.topic, key.partition): self._fetch(key, require_stable)
            for key in self._shard.offsets.committed(group_id)
        }

    def _fetch(self, key: OffsetKey, require_stable: bool) -> FetchedOffset:
        if require_stable and not self._shard.offsets.is_stable(key):
            return UNSTABLE
        found = self._shard.offsets.committed(key.group_id).get(key)
        return (
            NO_OFFSET
            if found is None
            else FetchedOffset(ErrorCode.NONE, found.offset, found.leader_epoch, found.metadata)
        )

    # Delete and expire

    def delete(self, group_id: str, partitions: Sequence[TopicPartition], done: CommitDone) -> None:
        """OffsetDelete (KIP-496). GROUP_ID_NOT_FOUND; NON_EMPTY_GROUP when the group's members are no consumers, so
        that their topics are unknown; GROUP_SUBSCRIBED_TO_TOPIC for a partition of a topic that a member reads."""
        group = self._shard.groups.get(group_id)
        if group is None or group.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f'group {group_id} does not exist')
        if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f'group {group_id} has {len(group.members)} members')
        results = {
            (topic, partition): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed_to(topic) else ErrorCode.NONE
            for topic, partition in partitions
        }
        known = set(self._shard.offsets.keys_to_forget(group_id))
        keys = [
            OffsetKey(group_id, topic, partition)
            for (topic, partition), code in results.items()
            if code is ErrorCode.NONE
        ]
        rows = [offset_tombstone(key) for key in keys if key in known]

        def durable(error: KafkaError | None) -> None:
            if error is not None:
                results.update(dict.fromkeys(((key.topic, key.partition) for key in keys), error.code))
            done(results)

        if rows:
            self._shard.append(rows, durable)
        else:
            done(results)

    def delete_group(self, group_id: str, done: Done) -> None:
        """DeleteGroups. GROUP_ID_NOT_FOUND, NON_EMPTY_GROUP. Until the tombstones are durable the group is Dead."""
        group = self._shard.groups.get(group_id)
        if group is None or group.state is GroupState.DEAD:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f'group {group_id} does not exist')
        if group.state is not GroupState.EMPTY:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f'group {group_id} has {len(group.members)} members')
        self._bury(group, done)

    def _bury(self, group: ClassicGroup, done: Done) -> None:
        for timer in group.pending_members.values():
            timer.cancel()
        group.pending_members.clear()
        group.transition_to(GroupState.DEAD, self._clock.wall_ms())
        rows = [offset_tombstone(key) for key in self._shard.offsets.keys_to_forget(group.group_id)]
        self._shard.append([*rows, group_tombstone(group.group_id)], done)

    def forget_topic(self, topic: str, done: Done) -> None:
        """The topic is gone: tombstones for its offsets, whatever group they are of."""
        self._forget([key for key in self._shard.offsets.all_keys() if key.topic == topic], done)

    def forget_deleted_topics(self, is_known: Callable[[bytes], bool], done: Done) -> None:
        """After loading: offsets of topics whose deletion became durable when the tombstones did not. Told by the
        topic's id."""
        self._forget(
            [
                key
                for group_id in self._shard.offsets.group_ids()
                for key, committed in self._shard.offsets.committed(group_id).items()
                if committed.topic_id != NO_TOPIC_ID and not is_known(committed.topic_id)
            ],
            done,
        )

    def _forget(self, keys: Sequence[OffsetKey], done: Done) -> None:
        if keys:
            self._shard.append([offset_tombstone(key) for key in keys], done)

    def expire(self, done: Done) -> None:
        """Offsets beyond their retention go, and then the empty groups that have none (KIP-211)."""
        for group in list(self._shard.groups.values()):
            expired = [
                key
                for key, committed in self._shard.offsets.committed(group.group_id).items()
                if self._is_expired(group, key, committed)
            ]
            kept = len(self._shard.offsets.committed(group.group_id)) - len(expired)
            if (
                group.state is GroupState.EMPTY
                and not kept
                and not group.pending_members
                and not self._shard.offsets.has_open_work(group.group_id)
            ):
                self._bury(group, done)
            else:
                self._forget(expired, done)

    def _is_expired(self, group: ClassicGroup, key: OffsetKey, committed: CommittedOffset) -> bool:
        since_ms = _kept_since_ms(group, committed)
        if since_ms is None or group.is_subscribed_to(key.topic):
            return False
        if not self._shard.offsets.is_stable(key) or self._shard.offsets.is_in_flight(key):
            return False
        now_ms = self._clock.wall_ms()
        if committed.expire_timestamp_ms is not None:
            return now_ms >= committed.expire_timestamp_ms
        return bool(now_ms - since_ms >= self._config.offsets_retention_minutes * 60_000)


def _kept_since_ms(group: ClassicGroup, committed: CommittedOffset) -> int | None:
    """From when the retention counts (KIP-211): the last commit for groups without members and for topics that the
    members of a stable group of consumers do not read; for other groups the time that the last member left, None
    while there are some."""
    if group.protocol_type is None:
        return committed.commit_timestamp_ms
    if group.state is GroupState.EMPTY:
        return committed.commit_timestamp_ms if group.state_since_ms is None else group.state_since_ms
    if (
        group.state is GroupState.STABLE
        and group.protocol_type == CONSUMER_PROTOCOL_TYPE
        and group.subscribed_topics is not None
    ):
        return committed.commit_timestamp_ms
    return None


def _names_member(commit: Commit) -> bool:
    return commit.generation >= 0 or commit.member_id != '' or commit.group_instance_id is not None


def _is_standalone(group: ClassicGroup, commit: Commit) -> bool:
    """A consumer without group management, or an administrator: free to commit while nobody else is there."""
    return commit.generation < 0 and group.state is GroupState.EMPTY
