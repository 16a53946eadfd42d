"""Histories of a group: operations that run on two brokers, and their answers and rows in a comparable form. A history
has a group, the topics a, b and c, and members A to E. Topic c does not exist at first. The ids of members are single
letters because Kafka iterates members in the order of a hash table. For single letters, this is the alphabetical order.
"""
from __future__ import annotations

import dataclasses
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from histories import LANES, Side
from raw_peer import DAY_MS, NOW_MS, RawPeer
from support.kafka.shown_metadata import await_shown_metadata

from kbroker.base.errors import ErrorCode
from kbroker.record.batch import iter_batches
from kbroker.record.records import decode_records
from kbroker.topics.partitioner import partition_for
from kbroker_tools.rows.decoders import RowReader

OFFSETS_TOPIC = '__consumer_offsets'
GROUP_CONFIG = 32
SET, DELETE = 0, 1
DYNAMIC_GROUP_CONFIG = 8
"""The source of a config that is set for the group."""
SHORT_SESSION_MS = '600'
LONG_SESSION_MS = '300000'
REBALANCE_TIMEOUT_MS = 300_000
PARTITIONS = {'a': 3, 'b': 5, 'c': 7}
GROWN = {'a': 11, 'b': 13, 'c': 17}
"""Maps each topic to its number of partitions. The numbers differ, because Kafka has no order among topics with equal
numbers of partitions and of subscribers.
"""
SHARE_STATES = 'ShareGroupStatePartitionMetadata'
REGEX_INTERVAL_S = 8
"""Kafka resolves the regular expressions of a group again after 10 s. A history that takes longer than this limit is
not judged.
"""
SETTINGS = {
    'offsets.topic.num.partitions': str(LANES),
    'offsets.retention.check.interval.ms': '86400000',      # a check ends a group without members, amid its history
    'group.coordinator.append.linger.ms': '0',
    'group.consumer.assignment.interval.ms': '0',
    'group.consumer.min.assignment.interval.ms': '0',
    'group.consumer.min.session.timeout.ms': SHORT_SESSION_MS,
    # Ordinary sessions do not end during a history, however slow the machine is. Only a short session may end.
    'group.consumer.session.timeout.ms': LONG_SESSION_MS,
    'group.consumer.max.session.timeout.ms': LONG_SESSION_MS,
    'group.consumer.min.heartbeat.interval.ms': '500',
    'group.consumer.heartbeat.interval.ms': '500',
    'group.initial.rebalance.delay.ms': '0',
}


class GroupSide(Side):
    """One broker in a history of a group. Each lane has its own partition of the offsets topic."""

    def __init__(self, address: str, group: str):
        self.group = group
        self.partition = partition_for(group, self.lanes)
        """The partition of the offsets topic that has the rows of the group."""
        super().__init__(RawPeer(address, OFFSETS_TOPIC, partition=self.partition))
        self.topic_ids: dict[str, bytes] = {}
        """Maps the name of each existing topic to its id."""
        self.epochs: dict[str, int] = {}
        """Maps a member to its epoch in the last answer."""
        self.assigned: dict[str, dict[bytes, list[int]]] = {}
        self.before: dict[str, dict[bytes, list[int]]] = {}
        """Maps a member to the assignment that it had before its current one."""
        self.committed: set[tuple[str, int]] = set()
        """The partitions for which the group has committed offsets."""
        self.resolved_s: float | None = None
        """The time in seconds at which the regular expression of the group was resolved, or None if it is not resolved.
        """
        self._looks = itertools.count()
        self.topic_names: dict[bytes, str] = {}
        self._hashes: dict[int, int] = {0: 0}
        self._reader = RowReader(OFFSETS_TOPIC)
        self._rows: list[list[tuple[str, Any]]] = []
        self.peer.prepare('FindCoordinator', coordinator_keys=[group], key_type=0)
        self.peer.prepare('DescribeGroups', 5, groups=[group])
        self._next_offset = self._end()
        for name in 'ab':
            self.create_topic(name)

    @classmethod
    def name_in(cls, lane: int) -> str:
        """Return a new group name. The rows of this group are in the partition of the lane."""
        return next(name for name in map(super().name_in, itertools.repeat(lane))
                    if partition_for(name, cls.lanes) == lane)

    def close(self) -> None:
        for name in list(self.topic_ids):
            self._delete_topic(name)
        self.peer.close()

    # ---- topics

    def topic(self, name: str) -> str:
        return f'{self.group}-{name}'

    def create_topic(self, name: str) -> None:
        if name not in self.topic_ids:
            topic_id = self.peer.create_topic(self.topic(name), PARTITIONS[name])
            self.topic_ids[name] = topic_id
            self.topic_names[topic_id] = f'{name}{sum(known.startswith(name) for known in self.topic_names.values())}'
            self.await_coordinator({self.topic(name): PARTITIONS[name]})

    def delete_topic(self, name: str) -> None:
        if name in self.topic_ids:
            self._delete_topic(name)
            self.await_coordinator({self.topic(name): 0})

    def _delete_topic(self, name: str) -> None:
        del self.topic_ids[name]
        self.peer.ask('DeleteTopics', 6, topics=[dict(name=self.topic(name), topic_id=bytes(16))], timeout_ms=30000)
        self.wait_until(lambda: self._metadata_error(name) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def grow_topic(self, name: str) -> None:
        if name in self.topic_ids:
            self.peer.ask('CreatePartitions', topics=[dict(name=self.topic(name), count=GROWN[name],
                                                           assignments=None)], timeout_ms=30000)
            self.peer.await_topic(self.topic(name), GROWN[name])
            self.await_coordinator({self.topic(name): GROWN[name]})

    def await_coordinator(self, counts: Mapping[str, int | None]) -> None:
        """Wait until the group's coordinator knows each of these topics with its number of partitions. None allows any
        number.

        Kafka's coordinator may learn of a change later than Metadata shows it. To see the partitions that the
        coordinator knows, a consumer joins a new group on the same coordinator, which assigns all of them to it.
        """
        def is_known() -> bool:
            fields = dict(group_id=self.looking_group(), member_id='looks')
            answer = self.peer.ask('ConsumerGroupHeartbeat', 1, **fields, member_epoch=0, topic_partitions=[],
                                   rebalance_timeout_ms=REBALANCE_TIMEOUT_MS, subscribed_topic_names=list(counts))
            self.peer.ask('ConsumerGroupHeartbeat', 1, **fields, member_epoch=-1)
            assert answer.error_code == ErrorCode.NONE, answer
            assigned = [len(topic.partitions) for topic in answer.assignment.topic_partitions]
            if None in counts.values():
                return len(assigned) == len(counts)
            return sorted(assigned) == sorted(count for count in counts.values() if count)

        self.wait_until(is_known)

    def looking_group(self) -> str:
        """Return the name of a new group with the same coordinator as the group of the history."""
        names = (f'{self.group}-looks-{number}' for number in self._looks)
        return next(name for name in names if partition_for(name, self.lanes) == self.partition)

    def _metadata_error(self, name: str) -> int:
        answer = self.peer.ask('Metadata', topics=[dict(name=self.topic(name))], allow_auto_topic_creation=False)
        return int(answer.topics[0].error_code)

    def let_metadata_settle(self) -> None:
        """Wait until Kafka's coordinator has received the changes of metadata."""
        await_shown_metadata(self.peer.address)

    # ---- answers

    def heartbeat(self, slot: str, version: int = 1, **fields: Any) -> Any:
        """Send a ConsumerGroupHeartbeat. Return the answer in comparable form."""
        fields = {'group_id': self.group, 'member_id': slot, **fields}
        answer = self.peer.ask('ConsumerGroupHeartbeat', version, **fields)
        if answer.error_code == 0:
            self.epochs[slot] = answer.member_epoch
            if answer.assignment is not None:
                self.before[slot] = self.assigned.get(slot, {})
                self.assigned[slot] = {entry.topic_id: list(entry.partitions)
                                       for entry in answer.assignment.topic_partitions}
        return self.comparable(answer)

    def owned(self, slot: str, report: str) -> list[dict[str, Any]] | None:
        """Return the partitions that a member reports: no field, no partitions, those of its last assignment, or those
        of its last two assignments.
        """
        if report == 'null':
            return None
        found: dict[bytes, set[int]] = {}
        for assigned in [self.assigned] * (report != 'empty') + [self.before] * (report == 'both'):
            for topic_id, partitions in assigned.get(slot, {}).items():
                found.setdefault(topic_id, set()).update(partitions)
        return [dict(topic_id=topic_id, partitions=sorted(partitions)) for topic_id, partitions in found.items()]

    def described(self) -> Any:
        return self.peer.ask('ConsumerGroupDescribe', 1, group_ids=[self.group],
                             include_authorized_operations=False).groups[0]

    def configure(self, operation: int) -> None:
        """Set a short session timeout for the group, or remove it."""
        self.set_config('consumer.session.timeout.ms', SHORT_SESSION_MS if operation == SET else None)

    def set_config(self, name: str, value: str | None) -> str:
        """Set a config of the group, or delete it, and wait until the broker applies it. Return the name of the error.
        """
        return self.set_configs({name: value})

    def set_configs(self, values: Mapping[str, str | None]) -> str:
        """Set or delete several configs of the group as `set_config` does."""
        answer = self.peer.ask('IncrementalAlterConfigs', resources=[dict(
            resource_type=GROUP_CONFIG, resource_name=self.group, configs=[dict(
                name=name, config_operation=DELETE if value is None else SET, value=value)
                for name, value in values.items()])])
        code = answer.responses[0].error_code
        if code == 0:
            self.wait_until(lambda: all(self._has_config(name) == (value is not None)
                                        for name, value in values.items()))
            self.let_metadata_settle()
        return ErrorCode(code).name

    def _has_config(self, name: str) -> bool:
        """Return whether the config is set for the group."""
        answer = self.peer.ask('DescribeConfigs', 4, resources=[dict(
            resource_type=GROUP_CONFIG, resource_name=self.group, configuration_keys=[name])])
        return any(config.config_source == DYNAMIC_GROUP_CONFIG for config in answer.results[0].configs)

    def await_end_of(self, slot: str) -> None:
        self.wait_until(lambda: slot not in {member.member_id for member in self.described().members})

    def await_rows(self, of_type: str) -> None:
        """Wait until a row of this type is written. `rows` returns the rows that arrive during the wait."""
        self.wait_until(lambda: any(kind == of_type for batch in self.collect() for kind, _ in batch))

    def await_regex(self) -> None:
        """Wait until the broker has resolved the group's regular expression. It writes the result in a separate batch.
        """
        def is_resolved() -> bool:
            self.collect()
            return self.resolved_s is not None
        self.wait_until(is_resolved)

    def comparable(self, value: Any, name: str = '') -> Any:
        """Return a message as dicts and sorted lists. Topic ids are replaced by topic names, and values that a broker
        chooses are omitted.
        """
        if isinstance(value, list):
            return sorted((self.comparable(item, name) for item in value), key=repr)
        names = getattr(getattr(value, '_layout', None), 'names', None)
        if names is not None:
            found = {field: self.comparable(getattr(value, field), field) for field in names}
            if found.get('assignment_epochs'):
                del found['assignment_epochs']
                found['partitions'] = sorted(zip(value.partitions, value.assignment_epochs, strict=True))
            return found
        if name in ('throttle_time_ms', 'error_message', 'version', 'topic_partitions_hash'):
            return '*'
        if name == 'error_code':
            return ErrorCode(value).name
        if name == 'topic_id':
            return self.topic_names.get(bytes(value), value.hex())
        if name == 'metadata_hash':
            return f'hash {self._hashes.setdefault(value, len(self._hashes))}'
        if isinstance(value, str):
            return value.replace(self.group, 'g')
        if isinstance(value, int) and abs(value - NOW_MS) < DAY_MS:
            return 'now'
        return value

    # ---- rows

    def rows(self) -> list[list[tuple[str, Any]]]:
        """Return the batches of the group that were written since the last call. A row is (type, comparable key and
        value).
        """
        self.collect()
        found, self._rows = self._rows, []
        return found

    def written(self, before: list[list[tuple[str, Any]]] | None = None) -> list[list[tuple[str, Any]]]:
        return self.rows() if before is None else self.with_later_rows(before)

    @staticmethod
    def compare_written(kafka: Any, ours: Any) -> list[str]:
        return row_differences(with_whole_deletions(kafka), with_whole_deletions(ours))

    def is_too_slow(self) -> bool:
        return self.resolved_s is not None and time.monotonic() - self.resolved_s > REGEX_INTERVAL_S

    def with_later_rows(self, rows: list[list[tuple[str, Any]]]) -> list[list[tuple[str, Any]]]:
        """Wait a moment for further rows. Return `rows` and the rows that have arrived."""
        self.peer.wait_for_a_record()
        return rows + self.rows()

    def collect(self) -> list[list[tuple[str, Any]]]:
        while True:
            partition = dict(partition=self.partition, fetch_offset=self._next_offset, partition_max_bytes=1 << 24)
            answer = self.peer.ask('Fetch', 12, replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1 << 24,
                                   topics=[dict(topic=OFFSETS_TOPIC, partitions=[partition])])
            self.peer.steps.clear()
            batches = list(iter_batches(answer.responses[0].partitions[0].records or b''))
            if not batches:
                return self._rows
            for header, data in batches:
                self._next_offset = header.base_offset + header.last_offset_delta + 1
                rows = [] if header.is_control else list(self.rows_of(data))
                if rows:
                    self._rows.append(rows)

    def rows_of(self, data: Any) -> Iterator[tuple[str, Any]]:
        for record in decode_records(data):
            key, value, _ = self._reader.read(record.key, record.value)
            if getattr(key, 'group_id', None) == self.group or getattr(key, 'group', None) == self.group:
                kind = type(key).__name__.removesuffix('Key')
                self.note_row(kind, key, value)
                yield kind, (self.comparable(key), self.comparable(value))

    def note_row(self, kind: str, key: Any, value: Any) -> None:
        """Note facts of a row before it is made comparable."""
        if kind == 'ConsumerGroupRegularExpression':
            self.resolved_s = None if value is None else time.monotonic()

    def _end(self) -> int:
        answer = self.peer.prepare('ListOffsets', 7, replica_id=-1, topics=[
            dict(name=OFFSETS_TOPIC, partitions=[dict(partition_index=self.partition, timestamp=-1)])])
        return int(answer.topics[0].partitions[0].offset)


# ---- operations

@dataclasses.dataclass(frozen=True)
class Join:
    """A member joins, or joins again. The heartbeat has all fields."""

    slot: str
    topics: str
    assignor: str | None = None
    is_static: bool = False
    regex: str | None = None

    def run(self, side: GroupSide) -> Any:
        answer = side.heartbeat(
            self.slot, member_epoch=0, rebalance_timeout_ms=REBALANCE_TIMEOUT_MS, server_assignor=self.assignor,
            instance_id='static' if self.is_static else None, topic_partitions=[],
            subscribed_topic_names=list(map(side.topic, self.topics)),
            subscribed_topic_regex=None if self.regex is None else side.group + self.regex)
        if self.regex is not None and answer['error_code'] == 'NONE':
            side.await_regex()
        return answer


@dataclasses.dataclass(frozen=True)
class Beat:
    """A member sends a heartbeat. Its epoch is the member's epoch plus `shift`."""

    slot: str
    report: str = 'null'
    shift: int = 0
    topics: str | None = None
    is_full: bool = False

    def run(self, side: GroupSide) -> Any:
        fields: dict[str, Any] = dict(member_epoch=max(side.epochs.get(self.slot, 1) + self.shift, 0),
                                      topic_partitions=side.owned(self.slot, self.report))
        if self.topics is not None:
            fields['subscribed_topic_names'] = list(map(side.topic, self.topics))
        if self.is_full:
            fields['rebalance_timeout_ms'] = REBALANCE_TIMEOUT_MS
        return side.heartbeat(self.slot, **fields)


@dataclasses.dataclass(frozen=True)
class Leave:
    """A member leaves. With epoch -2, a static member leaves temporarily."""

    slot: str
    epoch: int = -1

    def run(self, side: GroupSide) -> Any:
        return side.heartbeat(self.slot, member_epoch=self.epoch, instance_id='static' if self.epoch == -2 else None)


@dataclasses.dataclass(frozen=True)
class MemberCrash(ABC):
    """The session of a member times out. Its last heartbeat starts a short session. Other members keep their long
    sessions.
    """

    slot: str

    @abstractmethod
    def last_beat(self) -> Any:
        """Return the last heartbeat of the member."""

    def run(self, side: GroupSide) -> Any:
        side.configure(SET)
        answer = self.last_beat().run(side)
        side.configure(DELETE)
        if answer['error_code'] == 'NONE':
            side.await_end_of(self.slot)
        return answer


class Crash(MemberCrash):
    def last_beat(self) -> Beat:
        return Beat(self.slot)


@dataclasses.dataclass(frozen=True)
class ChangeTopic:
    """A topic is created, is deleted, or gets more partitions."""

    change: str
    topic: str

    def run(self, side: GroupSide) -> Any:
        getattr(side, f'{self.change}_topic')(self.topic)
        side.let_metadata_settle()
        committed = {place for place in side.committed if place[0] == self.topic}
        if self.change == 'delete' and committed:
            side.committed -= committed
            side.await_rows('OffsetCommit')


@dataclasses.dataclass(frozen=True)
class Odd:
    """A heartbeat with arbitrary fields, valid or not."""

    slot: str
    fields: tuple[tuple[str, Any], ...]

    def run(self, side: GroupSide) -> Any:
        fields = dict(self.fields)
        version = fields.pop('version')
        if fields.get('group_id') == 'other':
            fields['group_id'] = f'{side.group}-other'
        if fields['subscribed_topic_names'] is not None:
            fields['subscribed_topic_names'] = list(map(side.topic, fields['subscribed_topic_names']))
        if version == 0:
            del fields['subscribed_topic_regex']
        if fields['topic_partitions'] is not None:
            fields['topic_partitions'] = [dict(topic_id=side.topic_ids.get(topic, bytes(15) + b'x'), partitions=[0])
                                          for topic in fields['topic_partitions']]
        return side.heartbeat(self.slot, version, **fields)


@dataclasses.dataclass(frozen=True)
class Commit:
    """A member, or an administrator with member id '', commits an offset."""

    slot: str
    topic: str
    partition: int
    shift: int
    version: int

    def run(self, side: GroupSide) -> Any:
        topic: dict[str, Any] = dict(partitions=[dict(partition_index=self.partition, committed_offset=5,
                                                      committed_metadata='')])
        if self.version >= 10:
            topic['topic_id'] = side.topic_ids.get(self.topic, bytes(15) + b'x')
        else:
            topic['name'] = side.topic(self.topic)
        answer = side.peer.ask(
            'OffsetCommit', self.version, group_id=side.group, member_id=self.slot, topics=[topic],
            generation_id_or_member_epoch=side.epochs.get(self.slot, 1) + self.shift if self.slot else -1)
        if answer.topics[0].partitions[0].error_code == 0:
            side.committed.add((self.topic, self.partition))
        return side.comparable(answer)


@dataclasses.dataclass(frozen=True)
class FetchOffsets:
    """A member, or an administrator with slot None, fetches the offsets of topic a."""

    slot: str | None
    shift: int
    version: int

    def run(self, side: GroupSide) -> Any:
        topic: dict[str, Any] = dict(partition_indexes=[0, 1, 2])
        if self.version >= 10:
            topic['topic_id'] = side.topic_ids.get('a', bytes(15) + b'x')
        else:
            topic['name'] = side.topic('a')
        epoch = -1 if self.slot is None else side.epochs.get(self.slot, 1) + self.shift
        return side.comparable(side.peer.ask('OffsetFetch', self.version, require_stable=True, groups=[
            dict(group_id=side.group, member_id=self.slot, member_epoch=epoch, topics=[topic])]))


@dataclasses.dataclass(frozen=True)
class Ask:
    """An administrator describes or lists the group, deletes it, or deletes an offset."""

    question: str

    def run(self, side: GroupSide) -> Any:
        match self.question:
            case 'describe':
                return side.comparable(side.described())
            case 'describe as classic':
                return side.comparable(side.peer.ask('DescribeGroups', 6, groups=[side.group]))
            case 'delete':
                answer = side.comparable(side.peer.ask('DeleteGroups', 2, groups_names=[side.group]))
                if answer['results'][0]['error_code'] == 'NONE':
                    side.committed.clear()
                return answer
            case 'delete offsets':
                answer = side.comparable(side.peer.ask('OffsetDelete', 0, group_id=side.group, topics=[
                    dict(name=side.topic('a'), partitions=[dict(partition_index=0)])]))
                if answer['topics'] and answer['topics'][0]['partitions'][0]['error_code'] == 'NONE':
                    side.committed.discard(('a', 0))
                return answer
        types, _, states = self.question.removeprefix('list ').partition('/')
        answer = side.peer.ask('ListGroups', 5, types_filter=types.split(), states_filter=states.split())
        return [side.comparable(group) for group in answer.groups if group.group_id == side.group]


Operation = Join | Beat | Leave | Crash | ChangeTopic | Odd | Commit | FetchOffsets | Ask


def with_whole_deletions(batches: list[list[tuple[str, Any]]]) -> list[list[tuple[str, Any]]]:
    """Merge the batches that delete a group's offsets with the batch that deletes the group. kbroker writes the
    tombstones of the offsets first, in several batches.
    """
    found: list[list[tuple[str, Any]]] = []
    for batch in batches:
        if found and is_deletion(found[-1]) and is_deletion(batch) and found[-1][-1][0] == 'OffsetCommit':
            found[-1] = found[-1] + batch
        else:
            found.append(batch)
    return found


def is_deletion(batch: list[tuple[str, Any]]) -> bool:
    return bool(batch) and all(kind != SHARE_STATES and row[1] is None for kind, row in batch)


def row_differences(kafka: list[list[tuple[str, Any]]], ours: list[list[tuple[str, Any]]]) -> list[str]:
    """Return the differences between the batches of the two brokers. Batches must have the same types of rows in the
    same order, and the same rows. The order of rows of the same type does not count.
    """
    found = []
    for number, (left, right) in enumerate(itertools.zip_longest(kafka, ours, fillvalue=[])):
        types = [[kind for kind, _ in batch] for batch in (left, right)]
        if types[0] != types[1]:
            found.append(f'batch {number}: Kafka {types[0]}, kbroker {types[1]}')
        left_only = [row for row in left if row not in right]
        right_only = [row for row in right if row not in left]
        if left_only or right_only:
            found.append(f'batch {number}: Kafka alone {left_only}, kbroker alone {right_only}')
    return found
