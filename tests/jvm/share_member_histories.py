"""Histories of a share group: operations of its members, and operations on its offsets. They also use the operations of
`group_histories`.

A history has a group, the topics a, b and c, and members A to D. Topic c does not exist at first. Topic z never exists.
Kafka writes the row about initialized share states after its answer, in a separate batch. The comparison therefore
treats this row separately: it waits until no state is being initialized or deleted, and ignores deleted topics.
"""
from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import group_histories
from group_histories import LONG_SESSION_MS, SET, SHARE_STATES, SHORT_SESSION_MS, GroupSide, MemberCrash
from raw_peer import NOW_MS
from support.messages.message_builder import batch_of

from kbroker.base.errors import ErrorCode
from kbroker.record.batch import iter_batches
from kbroker.record.records import decode_records

SETTINGS = {
    **group_histories.SETTINGS,
    'share.coordinator.state.topic.num.partitions': '1',
    'share.coordinator.append.linger.ms': '0',
    'group.share.assignment.interval.ms': '0',
    'group.share.min.assignment.interval.ms': '0',
    'group.share.min.session.timeout.ms': SHORT_SESSION_MS,
    'group.share.min.heartbeat.interval.ms': '500',
    'group.share.heartbeat.interval.ms': '500',
    'group.share.session.timeout.ms': LONG_SESSION_MS,
    'group.share.max.session.timeout.ms': LONG_SESSION_MS,
}
ASSIGNED = ('topic_partitions', 'assigned_partitions')
"""The fields with assignments in answers and in rows."""
FETCH_WAIT_MS = 2_000


class ShareSide(GroupSide):
    """One broker in a history of a share group."""

    def __init__(self, address: str, group: str):
        self.states: dict[str, Any] | None = None
        """The value of the last row about the share states of the group."""
        super().__init__(address, group)
        self._await_share_coordinator()

    def _await_share_coordinator(self) -> None:
        """Wait until the coordinators are ready: initialize a share state of a different group."""
        def is_ready() -> bool:
            answer = self.alter({'a': {0: 0}}, f'{self.group}-first')
            return bool(answer.error_code == 0 and answer.responses[0].partitions[0].error_code == 0)
        self.wait_until(is_ready)

    def beat(self, slot: str, **fields: Any) -> Any:
        """Send a ShareGroupHeartbeat. Return the answer in comparable form."""
        answer = self.peer.ask('ShareGroupHeartbeat', 1, **{'group_id': self.group, 'member_id': slot, **fields})
        if answer.error_code == 0:
            self.epochs[slot] = answer.member_epoch
        return self.comparable(answer)

    def alter(self, starts: dict[str, dict[int, int]], group: str | None = None) -> Any:
        """Alter the start offsets of the group. `starts` is {topic: {partition: offset}}."""
        return self.peer.ask('AlterShareGroupOffsets', 0, group_id=group or self.group, topics=[
            dict(topic_name=self.topic(name), partitions=[
                dict(partition_index=index, start_offset=offset) for index, offset in offsets.items()])
            for name, offsets in starts.items()])

    def produce(self, topic: str, partition: int, values: list[bytes], timestamp_ms: int = NOW_MS) -> None:
        answer = self.peer.ask('Produce', 12, acks=-1, timeout_ms=5000, topic_data=[
            dict(name=self.topic(topic), partition_data=[
                dict(index=partition, records=batch_of(timestamp_ms, *values))])])
        assert answer.responses[0].partition_responses[0].error_code == 0, answer

    def described(self) -> Any:
        return self.peer.ask('ShareGroupDescribe', 1, group_ids=[self.group],
                             include_authorized_operations=False).groups[0]

    def configure(self, operation: int) -> None:
        self.set_config('share.session.timeout.ms', SHORT_SESSION_MS if operation == SET else None)

    def comparable(self, value: Any, name: str = '') -> Any:
        """Return the comparable form as for a consumer group, but replace assigned partitions by their number, because
        Kafka chooses them in the order of a hash table.
        """
        if name in ASSIGNED and isinstance(value, list):
            return sorted((self.comparable(topic.topic_id, 'topic_id'), len(topic.partitions)) for topic in value
                          if topic.partitions)
        return super().comparable(value, name)

    # ---- rows

    def rows(self) -> list[list[tuple[str, Any]]]:
        """Return the batches of the group since the last call, without the rows about share states. Append a batch with
        the initialized states.
        """
        self.await_states()
        return [batch for batch in super().rows() if batch] + [[(SHARE_STATES, self._states_of('initialized_topics'))]]

    def with_later_rows(self, rows: list[list[tuple[str, Any]]]) -> list[list[tuple[str, Any]]]:
        return super().with_later_rows(rows[:-1])

    def await_states(self) -> None:
        """Wait until no share state is being initialized or deleted."""
        def is_settled() -> bool:
            self.collect()
            return not self._states_of('initializing_topics') and not self._states_of('deleting_topics')
        self.wait_until(is_settled)

    def _states_of(self, field: str) -> list[dict[str, Any]]:
        """Return the topics in `field` of the row about share states. Omit deleted topics, and those that Kafka lists
        without partitions.
        """
        existing = {self.topic_names[topic_id] for topic_id in self.topic_ids.values()}
        return [topic for topic in (self.states or {}).get(field, ())
                if topic['topic_id'] in existing and topic.get('partitions') != []]

    def rows_of(self, data: Any) -> Iterator[tuple[str, Any]]:
        for kind, (key, value) in super().rows_of(data):
            if kind == SHARE_STATES:
                self.states = value
            else:
                yield kind, (key, value)


# ---- operations

@dataclasses.dataclass(frozen=True)
class ShareJoin:
    """A member joins, or joins again."""

    slot: str
    topics: str

    def run(self, side: ShareSide) -> Any:
        return side.beat(self.slot, member_epoch=0, subscribed_topic_names=list(map(side.topic, self.topics)))


@dataclasses.dataclass(frozen=True)
class ShareBeat:
    """A member sends a heartbeat. Its epoch is the member's epoch plus `shift`. `topics` is a new subscription."""

    slot: str
    shift: int = 0
    topics: str | None = None

    def run(self, side: ShareSide) -> Any:
        names = None if self.topics is None else list(map(side.topic, self.topics))
        return side.beat(self.slot, member_epoch=max(side.epochs.get(self.slot, 1) + self.shift, 0),
                         subscribed_topic_names=names)


@dataclasses.dataclass(frozen=True)
class ShareLeave:
    """Members leave."""

    slots: str

    def run(self, side: ShareSide) -> Any:
        return [side.beat(slot, member_epoch=-1) for slot in self.slots]


class ShareCrash(MemberCrash):
    def last_beat(self) -> ShareBeat:
        return ShareBeat(self.slot)


@dataclasses.dataclass(frozen=True)
class OddShareBeat:
    """A heartbeat with arbitrary fields, valid or not."""

    slot: str
    fields: tuple[tuple[str, Any], ...]

    def run(self, side: ShareSide) -> Any:
        fields = dict(self.fields)
        if fields.get('subscribed_topic_names') is not None:
            fields['subscribed_topic_names'] = list(map(side.topic, fields['subscribed_topic_names']))
        return side.beat(self.slot, **fields)


@dataclasses.dataclass(frozen=True)
class AlterOffsets:
    """An administrator alters start offsets, given as (topic, partition, offset)."""

    starts: tuple[tuple[str, int, int], ...]

    def run(self, side: ShareSide) -> Any:
        wanted: dict[str, dict[int, int]] = {}
        for topic, partition, offset in self.starts:
            wanted.setdefault(topic, {})[partition] = offset
        return side.comparable(side.alter(wanted))


@dataclasses.dataclass(frozen=True)
class DeleteShareOffsets:
    topics: str

    def run(self, side: ShareSide) -> Any:
        return side.comparable(side.peer.ask('DeleteShareGroupOffsets', 0, group_id=side.group, topics=[
            dict(topic_name=side.topic(topic)) for topic in self.topics]))


@dataclasses.dataclass(frozen=True)
class DescribeShareOffsets:
    """An administrator describes the offsets of partitions 0 to 2 of these topics, or the offsets of all initialized
    partitions.
    """

    topics: str | None
    version: int = 1

    def run(self, side: ShareSide) -> Any:
        topics = None if self.topics is None else [
            dict(topic_name=side.topic(topic), partitions=[0, 1, 2]) for topic in self.topics]
        answer = side.peer.ask('DescribeShareGroupOffsets', self.version, groups=[
            dict(group_id=side.group, topics=topics)])
        for topic in answer.groups[0].topics:
            for partition in topic.partitions:
                if partition.start_offset >= 0:     # in Kafka, the lag of a start beyond the end is negative
                    partition.lag = max(0, partition.lag)
        return side.comparable(answer)


@dataclasses.dataclass(frozen=True)
class Fill:
    """Records are appended to a partition of topic a."""

    partition: int
    count: int
    age_ms: int = 0

    def run(self, side: ShareSide) -> None:
        if 'a' in side.topic_ids:
            side.produce('a', self.partition, [b'%d' % number for number in range(self.count)], NOW_MS - self.age_ms)


@dataclasses.dataclass(frozen=True)
class DeleteRecords:
    """The records of partition 0 of topic a are deleted up to an offset."""

    offset: int

    def run(self, side: ShareSide) -> Any:
        return side.comparable(side.peer.ask('DeleteRecords', 2, timeout_ms=5000, topics=[
            dict(name=side.topic('a'), partitions=[dict(partition_index=0, offset=self.offset)])]))


@dataclasses.dataclass(frozen=True)
class Reset:
    """An administrator sets `share.auto.offset.reset` of the group."""

    value: str

    def run(self, side: ShareSide) -> Any:
        return side.set_config('share.auto.offset.reset', self.value)


@dataclasses.dataclass(frozen=True)
class FirstFetch:
    """A member begins a share session on partition 0 of topic a."""

    slot: str

    def run(self, side: ShareSide) -> Any:
        answer = side.peer.ask(
            'ShareFetch', 2, group_id=side.group, member_id=self.slot, share_session_epoch=0, min_bytes=1,
            max_wait_ms=FETCH_WAIT_MS, max_bytes=1 << 20, max_records=500, batch_size=500,
            topics=[dict(topic_id=side.topic_ids['a'], partitions=[dict(partition_index=0)])])
        return ErrorCode(answer.error_code).name, [
            (ErrorCode(partition.error_code).name,
             [(each.first_offset, each.last_offset, each.delivery_count) for each in partition.acquired_records],
             [record.value for _, batch in iter_batches(partition.records or b'') for record in decode_records(batch)])
            for topic in answer.responses for partition in topic.partitions]
