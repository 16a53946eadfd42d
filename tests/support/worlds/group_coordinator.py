"""A group coordinator whose clock, disk and topics a test controls, and its clients."""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import Any

from support.worlds.held_partitions import HeldPartition, HeldRegistry

from kbroker.base.clock import ManualClock, Timers
from kbroker.base.completion import Callback
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.internal_topics import CONSUMER_OFFSETS as OFFSETS_TOPIC
from kbroker.base.long_work import LongWork
from kbroker.group.commits import NO_TOPIC_ID, Commit, NewOffset
from kbroker.group.coordinator import GroupCoordinator
from kbroker.group.offset_operations import FetchedOffset
from kbroker.group.shard import TransactionalProducer
from kbroker.protocol.messages import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from kbroker.record.control import encode_end_txn_marker
from kbroker.settings.config import Config

GROUP = 'g1'


def subscription(*topics: str) -> bytes:
    """Encode a subscription to `topics` with struct: version 0, topics, null user data."""
    names = b''.join(struct.pack('>h', len(topic)) + topic.encode() for topic in topics)
    return struct.pack('>hi', 0, len(topics)) + names + struct.pack('>i', -1)


class World:
    """A group coordinator on held partitions. With `immediate=False`, nothing is durable until `flush`."""

    def __init__(self, *, immediate: bool = True, slice_us: int = 2_000, **settings: Any):
        self.slice_us = slice_us
        self.clock = ManualClock()
        self.timers = Timers(self.clock)
        self.config = Config({
            'group.initial.rebalance.delay.ms': '0',
            **{name.replace('_', '.'): str(value) for name, value in settings.items()}})
        self.topics = HeldRegistry(self.clock, immediate=immediate, internal_partitions=1, config=self.config)
        for name in ('orders', 'payments'):
            self.topics.create(name, 4)
        self.topics.ensure_internal(OFFSETS_TOPIC)
        self.group_overrides: dict[str, dict[str, str]] = {}
        """Maps each group to its configs. A test replaces the dict of a group, and never changes it in place."""
        self.long_work = LongWork(self.timers, self.slice_us)
        self.groups = self.coordinator()
        self.groups.start()

    def coordinator(self) -> GroupCoordinator:
        """Return a new coordinator with the topics, timers and settings of this world."""
        return GroupCoordinator(self.config, self.clock, self.timers, self.topics, self.long_work,
                                lambda group_id: self.group_overrides.get(group_id, {}))

    @property
    def partition(self) -> HeldPartition:
        """The only partition of `__consumer_offsets`."""
        return self.topics.get(OFFSETS_TOPIC, 0)

    def restart(self) -> None:
        """Discard everything that is not durable, as a crash does, and start a new coordinator."""
        self.groups.close()
        self.topics.on_topic_created.clear()
        self.topics.on_topic_deleted.clear()
        self.topics.on_partitions_added.clear()
        self.topics.power_loss()
        self.timers = Timers(self.clock)
        self.long_work = LongWork(self.timers, self.slice_us)
        self.groups = self.coordinator()
        self.groups.start()

    def flush(self) -> None:
        self.partition.flush()

    def advance(self, ms: int) -> None:
        """Advance the clock, and run every timer when it is due."""
        end_ms = self.clock.monotonic_ms() + ms
        while True:
            self.timers.run_due()
            delay_ms = self.timers.next_delay_ms()
            left_ms = end_ms - self.clock.monotonic_ms()
            if delay_ms is None or delay_ms > left_ms:
                self.clock.advance(left_ms)
                return
            self.clock.advance(delay_ms)

    def run_due(self) -> None:
        """Run the timers that are due now."""
        self.advance(0)

    def finish(self, steps: Generator[object, None, Any]) -> Any:
        """Run long work to its end and return its result, or raise its error."""
        ends: list[tuple[Exception | None, Any]] = []
        self.long_work.start(steps, lambda error, result: ends.append((error, result)))
        while not ends:
            self.timers.run_due()
        error, result = ends[0]
        if error is not None:
            raise error
        return result

    # Offsets

    def commit(self, partition: tuple[str, int], offset: int, *, version: int = 8, group_id: str = GROUP,
               retention_ms: int = -1, metadata: str = '', **member: Any) -> Answer:
        topic = self.topics.topic(partition[0])
        new = NewOffset(offset, metadata=metadata, topic_id=topic.topic_id if topic else bytes(16))
        answer = Answer()
        answer.attempt(lambda: self.groups.commit(
            Commit(group_id, {partition: new}, retention_ms=retention_ms, **member), version, answer.completion()))
        return answer

    def commit_transactional(self, partition: tuple[str, int], offset: int, producer_id: int, *, version: int = 5,
                             group_id: str = GROUP, topic_id: bytes | None = None, **member: Any) -> Answer:
        answer = Answer()
        new = NewOffset(offset, topic_id=topic_id or self.topics.topic(partition[0]).topic_id)
        commit = Commit(group_id, {partition: new}, **member)
        answer.attempt(lambda: self.groups.commit_transactional(
            commit, version, TransactionalProducer(producer_id, 0, self.verification(group_id, producer_id)),
            answer.completion()))
        return answer

    def verification(self, group_id: str, producer_id: int) -> Any:
        return self.groups.start_verification(group_id, producer_id, 0, supports_epoch_bump=False)

    def end_transaction(self, producer_id: int, producer_epoch: int = 0, *, commit: bool) -> None:
        self.partition.append_batch(encode_end_txn_marker(
            commit=commit, producer_id=producer_id, producer_epoch=producer_epoch, coordinator_epoch=0,
            timestamp_ms=self.clock.wall_ms()))

    def fetched(self, partition: tuple[str, int], *, group_id: str = GROUP, require_stable: bool = False,
                topic_id: bytes = NO_TOPIC_ID) -> FetchedOffset:
        return self.groups.fetch_offsets(group_id, [partition], require_stable, topic_id)[partition]

    def fetched_all(self, group_id: str = GROUP, *, require_stable: bool = False) -> dict[Any, FetchedOffset]:
        """Return all offsets that the group has committed."""
        partitions = [(key.topic, key.partition) for key in self.groups.offset_keys(group_id)]
        return self.groups.fetch_offsets(group_id, partitions, require_stable)

    def offset(self, partition: tuple[str, int], group_id: str = GROUP) -> int:
        return self.fetched(partition, group_id=group_id).offset

    def state(self, group_id: str = GROUP) -> str:
        try:
            return self.groups.describe(group_id, 'classic').state.value
        except KafkaError:
            return 'none'

    def sees(self) -> dict[str, Any]:
        """Return the state of the coordinator that clients can see. A restart must not change it."""
        seen: dict[str, Any] = {}
        for listing in self.groups.list_groups():
            group = self.groups.describe(listing.group_id, 'classic')
            seen[group.group_id] = (
                group.state, group.generation, group.protocol_type, group.protocol_name, group.leader_id,
                group.state_since_ms,
                [
                    (
                        member.member_id, member.group_instance_id, member.client_id, member.client_host,
                        member.session_timeout_ms, member.rebalance_timeout_ms, member.metadata(group.protocol_name),
                        member.assignment) for member in group.members.values()], self.fetched_all(group.group_id),
                self.fetched_all(group.group_id, require_stable=True))
        return seen


class Answer:
    """The callback for one answer. If the coordinator calls it twice, it fails."""

    def __init__(self) -> None:
        self.value: Any = None
        self.error: ErrorCode | None = None
        self.came = False

    def __call__(self, value: Any) -> None:
        assert not self.came, f'answered twice: {self.value}, {value}'
        self.came, self.value = True, value

    def completion(self) -> Callback:
        """Return a completion that sets this answer to its error or result."""
        return Callback(self.complete)

    def complete(self, error: KafkaError | None, result: Any) -> None:
        self(result)
        self.error = None if error is None else error.code

    def attempt(self, operation: Any) -> None:
        try:
            operation()
        except KafkaError as error:
            assert not self.came, 'answered and raised'
            self.came, self.error = True, error.code

    @property
    def code(self) -> ErrorCode:
        """The error code of the answer, or of the single partition in it."""
        assert self.came, 'no answer yet'
        if self.error is not None:
            return self.error
        if isinstance(self.value, dict):
            (code,) = self.value.values()
            return code
        return ErrorCode(self.value.error_code)


class Client:
    """A member of a group that keeps its state as a consumer library does. Each call returns its Answer."""

    def __init__(self, world: World, name: str = 'c', *, instance: str | None = None, group_id: str = GROUP,
                 version: int = 9, protocols: list[tuple[str, bytes]] | None = None, session_timeout_ms: int = 10_000,
                 rebalance_timeout_ms: int = 30_000):
        self.world, self.name, self.instance, self.group_id, self.version = world, name, instance, group_id, version
        self.protocols = protocols or [('range', subscription('orders'))]
        self.protocol_type = 'consumer'
        self.session_timeout_ms, self.rebalance_timeout_ms = session_timeout_ms, rebalance_timeout_ms
        self.member_id, self.generation = '', -1

    def join(self) -> Answer:
        answer = self.join_once()
        if answer.came and answer.code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.value.member_id
            answer = self.join_once()
        return answer

    def join_once(self) -> Answer:
        answer = Answer()
        request = JoinGroupRequest(
            group_id=self.group_id, session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms, member_id=self.member_id, group_instance_id=self.instance,
            protocol_type=self.protocol_type, protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata)
                for name, metadata in self.protocols])
        answer.attempt(
            lambda: self.world.groups.join(request, self.version, self.name, '127.0.0.1', answer.completion()))
        return answer

    def joined(self, answer: Answer) -> Client:
        """Adopt the member id and generation of a successful join."""
        assert answer.code is ErrorCode.NONE
        self.member_id, self.generation = answer.value.member_id, answer.value.generation_id
        return self

    def sync(self, assignments: dict[str, bytes] | None = None, **protocol: Any) -> Answer:
        answer = Answer()
        request = SyncGroupRequest(
            group_id=self.group_id, generation_id=self.generation, member_id=self.member_id,
            group_instance_id=self.instance,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                for member_id, assignment in (assignments or {}).items()], **protocol)
        answer.attempt(lambda: self.world.groups.sync(request, answer.completion()))
        return answer

    def heartbeat(self) -> ErrorCode:
        try:
            self.world.groups.heartbeat(HeartbeatRequest(
                group_id=self.group_id, generation_id=self.generation, member_id=self.member_id,
                group_instance_id=self.instance))
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    def leave(self) -> ErrorCode:
        identity = LeaveGroupRequest.MemberIdentity(member_id=self.member_id, group_instance_id=self.instance)
        response = self.world.finish(
            self.world.groups.leave(LeaveGroupRequest(group_id=self.group_id, members=[identity])))
        return ErrorCode(response.members[0].error_code)

    @property
    def identity(self) -> dict[str, Any]:
        """Return the arguments of a commit by this member."""
        return {'member_id': self.member_id, 'generation': self.generation, 'group_instance_id': self.instance}


def stable_group(world: World, *clients: Client) -> list[Client]:
    """Let the clients form a stable group, led by the first one. The leader assigns to each member the member's name.
    """
    answers = [client.join() for client in clients]
    world.run_due()
    for _ in range(3):
        for index, (client, answer) in enumerate(zip(clients, answers, strict=True)):
            generation = world.groups.describe(client.group_id, 'classic').generation
            if answer.came and answer.value.generation_id == generation:
                continue
            if not answer.came:
                continue
            client.joined(answer)
            answers[index] = client.join()
        world.run_due()
    for client, answer in zip(clients, answers, strict=True):
        client.joined(answer)
    assignments = {client.member_id: client.name.encode() for client in clients}
    leader = world.groups.describe(clients[0].group_id, 'classic').leader_id
    syncs = [client.sync(assignments if client.member_id == leader else None) for client in clients]
    world.flush()
    assert [sync.value.assignment for sync in syncs] == [client.name.encode() for client in clients]
    return list(clients)
