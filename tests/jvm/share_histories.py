"""Histories of a share partition: operations that run on two brokers, and what is compared after each operation. A
history has a group, a topic with one partition, and members A to C. Each member has a session on its own connection.
After each operation, the answers are compared, and the states that a replay of `__share_group_state` yields.
"""
from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from histories import Side
from raw_peer import NOW_MS, RawPeer
from support.clients.raw_client import RawClient
from support.kafka.shown_metadata import await_shown_metadata
from support.messages.message_builder import batch_of, build

from kbroker.base.errors import ErrorCode
from kbroker.base.internal_topics import SHARE_GROUP_STATE
from kbroker.group.share.rows import ShareKey, ShareState, read_row
from kbroker.record.batch import iter_batches
from kbroker.record.records import decode_records

LOCK_MS = '600000'
SETTINGS = {
    'share.coordinator.state.topic.num.partitions': '1',
    'share.coordinator.append.linger.ms': '0',
    'offsets.topic.num.partitions': '1',
    'group.coordinator.append.linger.ms': '0',
    # The locks of records do not expire during a history, however slow the machine is.
    'group.share.record.lock.duration.ms': LOCK_MS,
    'group.share.max.record.lock.duration.ms': LOCK_MS,
}
GROUP_RESOURCE = 32
GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
FIRST, LAST = 0, -1
MOMENT_MS = 100
LOAD_MS = 3_000
WRONG_EPOCH = 1 << 30


class Session:
    """The state of a member: its epoch, and the ranges that it has acquired and not acknowledged."""

    def __init__(self, address: str):
        self.client = RawClient.at(address)
        self.epoch = 0
        self.held: list[tuple[int, int]] = []

    def give_back(self, first: int, last: int) -> None:
        left = []
        for low, high in self.held:
            if high < first or low > last:
                left.append((low, high))
                continue
            if low < first:
                left.append((low, first - 1))
            if high > last:
                left.append((last + 1, high))
        self.held = left


class PartitionSide(Side):
    """One broker in a history of a share partition."""

    def __init__(self, address: str, name: str):
        self.address, self.name = address, name
        super().__init__(RawPeer(address, name))
        self.sessions: dict[str, Session] = {}
        self.states: dict[ShareKey, ShareState] = {}
        self.topic_id = self.peer.create_topic(name)
        self.peer.prepare('FindCoordinator', coordinator_keys=[name], key_type=0)
        self._next_offset = self._end_of_states()
        self._begin_at_0()

    def _end_of_states(self) -> int:
        """Return the end offset of `__share_group_state`. The topic does not exist before the first share group does.
        """
        answer = self.ask('ListOffsets', 7, replica_id=-1, topics=[
            {'name': SHARE_GROUP_STATE, 'partitions': [{'partition_index': 0, 'timestamp': -1}]}])
        return max(0, int(answer.topics[0].partitions[0].offset))

    def _begin_at_0(self) -> None:
        """Initialize the state of the group at offset 0, as soon as the coordinators are ready."""
        self.wait_until(lambda: set(codes(self.alter(0))) == {'NONE'})

    def alter(self, offset: int) -> Any:
        return self.ask('AlterShareGroupOffsets', 0, group_id=self.name, topics=[
            {'topic_name': self.name, 'partitions': [{'partition_index': 0, 'start_offset': offset}]}])

    def ask(self, api: str, version: int, **fields: Any) -> Any:
        answer = self.peer.ask(api, version, **fields)
        self.peer.steps.clear()
        return answer

    def session(self, slot: str) -> Session:
        if slot not in self.sessions:
            self.sessions[slot] = Session(self.address)
        return self.sessions[slot]

    @property
    def has_sessions(self) -> bool:
        """True if a share session has begun, so that the broker has loaded the state of the share partition."""
        return any(session.epoch for session in self.sessions.values())

    def close(self) -> None:
        for session in self.sessions.values():
            session.client.close()
        self.ask('DeleteTopics', 5, topic_names=[self.name], timeout_ms=30_000)
        self.peer.close()

    # ---- rows

    def state(self) -> Any:
        """Return the state of the share partition that its rows give: start offset, number of finished records,
        batches.
        """
        self.collect()
        state = self.states.get(ShareKey(self.name, self.topic_id, 0))
        return None if state is None else (
            state.start_offset, state.delivery_complete_count, [tuple(batch) for batch in state.batches])

    def written(self, before: Any = None) -> Any:
        """Return the state of the share partition. In later calls of a step, wait for a row first, because Kafka
        answers the end of a session before it writes the row.
        """
        if before is not None:
            self.peer.wait_for_a_record()
        return self.state()

    @staticmethod
    def compare_written(kafka: Any, ours: Any) -> list[str]:
        return [] if kafka == ours else [f'state: Kafka {kafka!r}, kbroker {ours!r}']

    def collect(self) -> int:
        """Replay the rows that have arrived. Return the number of rows of this share partition."""
        count = 0
        while True:
            partition = {'partition': 0, 'fetch_offset': self._next_offset, 'partition_max_bytes': 1 << 24}
            answer = self.ask('Fetch', 12, replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1 << 24, topics=[
                {'topic': SHARE_GROUP_STATE, 'partitions': [partition]}])
            records = answer.responses[0].partitions[0].records
            if not records:
                return count
            for header, batch in iter_batches(records):
                self._next_offset = header.last_offset + 1
                for record in () if header.is_control else decode_records(batch):
                    found = read_row(self.states, record)
                    if found is not None and found[1] is not None:
                        self.states[found[0]] = found[1]
                        count += found[0].group_id == self.name

    def settle(self) -> None:
        """Replay the rows that earlier requests cause. A row that is written later is that of a later request."""
        self.collect()

    def await_end_of_session(self, member: str) -> None:
        """Wait until the broker has noticed that the connection of a member closed.

        Kafka removes the session by the id of the member. If that happens late, it removes the next session of the same
        member. A wrong epoch changes nothing, and the error shows whether the member has a session.
        """
        self.wait_until(lambda: 'SHARE_SESSION_NOT_FOUND' in codes(self.ask(
            'ShareAcknowledge', 2, group_id=self.name, member_id=member, share_session_epoch=WRONG_EPOCH, topics=[],
            is_renew_ack=False)))

    def await_rows(self) -> None:
        self.wait_until(self.collect)

    # ---- requests of members

    def said(self, slot: str, said: tuple[Said, ...]) -> list[dict[str, Any]]:
        """Return the batches that a member acknowledges, in the order of their offsets."""
        held = self.session(slot).held
        found = [each.batch(held) for each in said]
        return sorted((batch for batch in found if batch is not None), key=lambda batch: batch['first_offset'])

    def adopt(self, slot: str, batches: list[dict[str, Any]], epoch: int, code: int, is_ok: bool) -> None:
        session = self.session(slot)
        if code == 0:
            session.epoch = 0 if epoch == LAST else epoch + 1
            if epoch == LAST:
                session.held = []
        if is_ok:
            for batch in batches:
                if RENEW not in batch['acknowledge_types']:
                    session.give_back(batch['first_offset'], batch['last_offset'])


def codes(answer: Any) -> Iterator[str]:
    yield ErrorCode(answer.error_code).name
    for topic in answer.responses:
        for partition in topic.partitions:
            yield ErrorCode(partition.error_code).name


# ---- operations

@dataclasses.dataclass(frozen=True)
class Said:
    """An acknowledgement of `count` records of a range that the member holds. They begin at index `first` of the range.

    `shift` moves the acknowledged offsets, possibly out of the range. With `varies`, the records have different types.
    """

    kind: int
    number: int
    first: int
    count: int
    shift: int = 0
    varies: bool = False

    def batch(self, held: list[tuple[int, int]]) -> dict[str, Any] | None:
        if not held:
            return None
        low, high = held[self.number % len(held)]
        first = low + self.first % (high - low + 1)
        last = min(high, first + self.count - 1)
        count = last - first + 1
        types = [(self.kind + number) % 4 for number in range(count)] if self.varies else [self.kind]
        return {'first_offset': max(0, first + self.shift), 'last_offset': max(0, last + self.shift),
                'acknowledge_types': types}


@dataclasses.dataclass(frozen=True)
class Fetch:
    """A member fetches. Its session epoch is the member's epoch plus `shift`, or the first or the final epoch of a
    session.
    """

    slot: str
    said: tuple[Said, ...] = ()
    max_records: int = 500
    batch_size: int = 500
    mode: int = 0
    shift: int = 0
    epoch: int | None = None
    version: int = 2

    def run(self, side: PartitionSide) -> Any:
        session = side.session(self.slot)
        epoch = max(1, session.epoch + self.shift) if self.shift and session.epoch else session.epoch
        epoch = epoch if self.epoch is None else self.epoch
        batches = side.said(self.slot, self.said)
        # Kafka delivers the records that a fetch releases only when it has written the release.
        releases = any(RELEASE in batch['acknowledge_types'] for batch in batches)
        wait_ms = MOMENT_MS if side.has_sessions and not releases else LOAD_MS
        topics = [{'topic_id': side.topic_id, 'partitions': [
            {'partition_index': 0, 'acknowledgement_batches': batches}]}] if epoch == 0 or batches else []
        fields: dict[str, Any] = {'share_acquire_mode': self.mode} if self.version > 1 else {}
        answer = session.client.ask(build(
            'ShareFetchRequest', group_id=side.name, member_id=self.slot, share_session_epoch=epoch, topics=topics,
            max_wait_ms=wait_ms, min_bytes=1, max_bytes=1 << 20, max_records=self.max_records,
            batch_size=self.batch_size, **fields), self.version)
        found = []
        is_ok = answer.error_code == 0
        for partition in [partition for topic in answer.responses for partition in topic.partitions]:
            acquired = joined((each.first_offset, each.last_offset, each.delivery_count)
                              for each in partition.acquired_records)
            is_ok = is_ok and partition.acknowledge_error_code == 0
            found.append((ErrorCode(partition.error_code).name, ErrorCode(partition.acknowledge_error_code).name,
                          acquired, values(partition.records)))
        side.adopt(self.slot, batches, epoch, answer.error_code, is_ok)
        session.held = sorted({*session.held, *((first, last) for each in found for first, last, _ in each[2])})
        # An answer may contain a partition without records or errors. In Kafka, this depends on the timing.
        return ErrorCode(answer.error_code).name, [each for each in found if each != ('NONE', 'NONE', [], [])]


@dataclasses.dataclass(frozen=True)
class Say:
    """A member acknowledges records. Its session epoch is the member's epoch plus `shift`, or the first or the final
    epoch of a session.
    """

    slot: str
    said: tuple[Said, ...]
    shift: int = 0
    epoch: int | None = None
    is_renewal: bool = False
    member: str | None = None
    """The member that holds the acknowledged records. None stands for the member that acknowledges."""

    def run(self, side: PartitionSide) -> Any:
        session = side.session(self.slot)
        epoch = max(1, session.epoch + self.shift) if self.shift and session.epoch else session.epoch
        epoch = epoch if self.epoch is None else self.epoch
        batches = side.said(self.member or self.slot, self.said)
        topics = [{'topic_id': side.topic_id, 'partitions': [
            {'partition_index': 0, 'acknowledgement_batches': batches}]}] if batches else []
        answer = session.client.ask(build(
            'ShareAcknowledgeRequest', group_id=side.name, member_id=self.slot, share_session_epoch=epoch,
            topics=topics, is_renew_ack=self.is_renewal), 2)
        found = list(codes(answer))
        side.adopt(self.slot, batches, epoch, answer.error_code, set(found) == {'NONE'})
        return found


@dataclasses.dataclass(frozen=True)
class Disconnect:
    """The connection of a member closes, which releases its records."""

    slot: str

    def run(self, side: PartitionSide) -> Any:
        session = side.sessions.pop(self.slot, None)
        if session is None:
            return None
        side.settle()
        session.client.close()
        if session.epoch:
            side.await_end_of_session(self.slot)
        if session.held and session.epoch:
            side.await_rows()
        return None


@dataclasses.dataclass(frozen=True)
class Produce:
    count: int

    def run(self, side: PartitionSide) -> Any:
        answer = side.ask('Produce', 12, acks=-1, timeout_ms=5000, topic_data=[
            {'name': side.name, 'partition_data': [
                {'index': 0, 'records': batch_of(NOW_MS, *(b'%d' % number for number in range(self.count)))}]}])
        return answer.responses[0].partition_responses[0].error_code


@dataclasses.dataclass(frozen=True)
class Configure:
    name: str
    value: str

    def run(self, side: PartitionSide) -> Any:
        side.ask('IncrementalAlterConfigs', 1, resources=[{
            'resource_type': GROUP_RESOURCE, 'resource_name': side.name,
            'configs': [{'name': self.name, 'config_operation': 0, 'value': self.value}]}])
        await_shown_metadata(side.address)


@dataclasses.dataclass(frozen=True)
class Offsets:
    """An administrator describes the start offset and the lag, or alters the start offset."""

    alter_to: int | None = None

    def run(self, side: PartitionSide) -> Any:
        if self.alter_to is not None:
            return list(codes(side.alter(self.alter_to)))
        answer = side.ask('DescribeShareGroupOffsets', 1, groups=[
            {'group_id': side.name, 'topics': [{'topic_name': side.name, 'partitions': [0]}]}])
        return [(partition.start_offset, partition.lag, ErrorCode(partition.error_code).name)
                for topic in answer.groups[0].topics for partition in topic.partitions]


def joined(ranges: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return ranges of records, with adjacent ranges of equal delivery counts joined. Kafka divides redelivered records
    into the ranges of their previous delivery.
    """
    found: list[tuple[int, int, int]] = []
    for first, last, count in ranges:
        if found and (found[-1][1] + 1, found[-1][2]) == (first, count):
            found[-1] = found[-1][0], last, count
        else:
            found.append((first, last, count))
    return found


def values(records: Any) -> list[bytes]:
    return [record.value for header, batch in iter_batches(records or b'') if not header.is_control
            for record in decode_records(batch)]
