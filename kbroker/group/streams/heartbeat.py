"""The heartbeats of streams groups (KIP-1071): what they do besides the steps that all kinds share."""
from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

from kbroker.base.completion import Callback
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.lean_dataclasses import dataclass, field, replace
from kbroker.base.long_work import Pace
from kbroker.group.assignors import sticky
from kbroker.group.assignors.sticky import Key, Role, TaskMember, TaskSpec
from kbroker.group.classic.group import MOST_MEMBERS, ClassicGroup
from kbroker.group.group import Group
from kbroker.group.modern.group import ModernGroup, Row, Steps
from kbroker.group.modern.heartbeat import JOIN_EPOCH, Call, Draft, Heartbeats, not_found
from kbroker.group.modern.reconcile import Assigned, reconcile_tasks
from kbroker.group.streams import rows as streams_rows
from kbroker.group.streams.group import StreamsGroup
from kbroker.group.streams.member import (
    NO_TOPOLOGY_EPOCH,
    NOTHING,
    Endpoint,
    StreamsMember,
    Target,
    Topology,
    read_topology,
)
from kbroker.group.streams.topology import ConfiguredTopology, InternalTopic, Status, configure, required_topics
from kbroker.group.turns import Outcome
from kbroker.protocol import messages

log = logging.getLogger(__name__)

NO_TIMEOUT = -1
DELAY = 'delay'
"""The kind of the deadline at which a new group gets its first target."""
MOST_TASKS = 100_000
"""The most tasks of a group."""
STANDBY_REPLICAS = 'num.standby.replicas'
"""The config of the assignor, as the row of the group epoch names it."""

NO_TOPOLOGY = Topology(NO_TOPOLOGY_EPOCH, ())


class StreamsReply(NamedTuple):
    """The answer to a heartbeat, and the internal topics that the group misses."""

    response: Any
    missing: Iterable[InternalTopic] = ()


@dataclass(slots=True)
class StreamsDraft(Draft[StreamsGroup, StreamsMember]):
    """A streams group with one member changed, while the operation works on it."""

    topology: Topology = NO_TOPOLOGY
    configured: ConfiguredTopology = field(default_factory=ConfiguredTopology)
    shutdown_by: str = ''
    endpoint_changes: int = 0
    """1 if the partitions at the endpoints change, else 0."""
    endpoints: list[Any] | None = None
    """The partitions at each endpoint; None if the client knows them."""

    @property
    def validated_epoch(self) -> int:
        return self.topology.epoch if self.configured.status is None else NO_TOPOLOGY_EPOCH

    @property
    def has_other_tasks(self) -> bool:
        """The member has other tasks than before."""
        return self.before is None or self.member.held.assigned != self.before.held.assigned


class StreamsHeartbeats(Heartbeats[StreamsGroup, StreamsMember]):
    """The heartbeats of the streams groups in a shard."""

    group_class: ClassVar[type[ModernGroup[Any, Any]]] = StreamsGroup
    draft_class: ClassVar[Any] = StreamsDraft
    rows: ClassVar[Any] = streams_rows

    def may_replace(self, found: Group) -> bool:
        return isinstance(found, ClassicGroup) and found.is_empty

    def max_size(self) -> int:
        wanted: int = self.place.config.group_streams_max_size
        return min(wanted, MOST_MEMBERS)

    def is_idle(self, group: StreamsGroup, member: StreamsMember) -> bool:
        """The group is ready, and no status has to be answered."""
        return (group.configured is not None and group.configured.status is None and not group.shutdown_by
                and group.topology is not None and member.topology_epoch >= group.topology.epoch
                and group.validated_epoch == group.topology.epoch
                and self.assignment_configs(group.group_id) == group.assignment_configs)

    # Members

    def check_epoch(self, member: StreamsMember, request: Any) -> None:
        """FENCED_MEMBER_EPOCH. The epoch before is good enough for a member that lost the reply and owns no more than
        its last answer named."""
        epoch = request.member_epoch
        if epoch == JOIN_EPOCH or epoch == member.epoch:
            return
        owned = owned_tasks(request)
        if epoch < member.epoch and epoch == member.held.previous_epoch and owned is not None and (
                all(all(number in member.held.assigned.get(key, {}) for number in numbers)
                    for key, numbers in owned.items())):
            return
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, f'found member epoch {epoch}, expected {member.epoch}')

    def origin_of(self, before: StreamsMember | None, call: Call) -> StreamsMember:
        return StreamsMember(member_id=call.request.member_id) if before is None else before

    def updated(self, origin: StreamsMember, call: Call) -> StreamsMember:
        request = call.request
        given: dict[str, Any] = {'client_id': call.client_id, 'client_host': call.client_host}
        if request.rebalance_timeout_ms != NO_TIMEOUT:
            given['rebalance_timeout_ms'] = request.rebalance_timeout_ms
        if request.topology is not None:
            given['topology_epoch'] = request.topology.epoch
        if request.user_endpoint is not None:
            given['endpoint'] = Endpoint(request.user_endpoint.host, request.user_endpoint.port)
        if request.client_tags is not None:
            given['tags'] = tuple(sorted((tag.key, tag.value) for tag in request.client_tags))
        for name, value in (('rack_id', request.rack_id), ('process_id', request.process_id)):
            if value is not None:
                given[name] = value
        changed = {name: value for name, value in given.items() if getattr(origin, name) != value}
        return replace(origin, **changed) if changed else origin

    # The topology

    def change_subscription(self, draft: Any, call: Call) -> Steps[bool]:
        """Configure the topology, if it is new or its topics changed. INVALID_REQUEST, STREAMS_INVALID_TOPOLOGY."""
        group = draft.group
        if not group.members:
            self.start_delay(group.group_id)
        else:
            draft.shutdown_by = group.shutdown_by
        if call.request.shutdown_application and not draft.shutdown_by:
            draft.shutdown_by = draft.member.member_id
        draft.topology = self.topology_of(draft, call)
        if group.configured is None or self.is_due(group):
            names = required_topics(draft.topology.subtopologies)
            draft.metadata_hash = yield from self.hash_of(names)
            draft.configured = yield from self.configure(draft.topology)
        else:
            draft.configured = group.configured
        if draft.configured.status is None:
            check_tasks(call.request, draft.configured.tasks)
        return (draft.member is not draft.origin or draft.metadata_hash != group.metadata_hash
                or draft.validated_epoch != group.validated_epoch
                or self.assignment_configs(group.group_id) != group.assignment_configs)

    def topology_of(self, draft: StreamsDraft, call: Call) -> Topology:
        """Return the topology of the group. The first one makes a row. INVALID_REQUEST for a change."""
        given, group = call.request.topology, draft.group
        if given is None:
            if group.topology is None:
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f'group {group.group_id} has no topology')
            return group.topology
        topology = read_topology(given)
        if group.topology is None:
            self.place.shard.memory.check(topology.held_bytes)
            draft.rows.append(streams_rows.topology_row(group.group_id, given))
            return topology
        if group.topology.epoch <= topology.epoch and group.topology != topology:
            raise KafkaError(ErrorCode.INVALID_REQUEST,
                             f'found another topology than group {group.group_id} has, which cannot change')
        return group.topology

    def configure(self, topology: Topology) -> Steps[ConfiguredTopology]:
        """STREAMS_INVALID_TOPOLOGY."""
        find = self.place.changes.topics.topic
        found = {name: find(name) for name in required_topics(topology.subtopologies)}
        configured = yield from configure(topology.subtopologies, {
            name: len(topic.partitions) for name, topic in found.items() if topic is not None})
        tasks = sum(configured.tasks.values())
        if tasks > MOST_TASKS:
            raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY,
                             f'the topology has {tasks} tasks, a group may have {MOST_TASKS}')
        return configured

    def assignment_configs(self, group_id: str) -> dict[str, str]:
        """Return the configs on which the target depends."""
        return {STANDBY_REPLICAS: str(self.place.group_config(group_id).streams_num_standby_replicas)}

    # Epochs

    def bump(self, draft: Any, demanded: bool) -> Steps[None]:
        if demanded:
            group_id = draft.group.group_id
            draft.epoch += 1
            draft.rows.append(streams_rows.epoch_row(
                group_id, draft.epoch, draft.metadata_hash, draft.validated_epoch, self.assignment_configs(group_id)))
        yield from ()

    def epoch_rows(self, group: StreamsGroup, epoch: int, new_hash: int) -> list[Row]:
        """A member has gone: the next heartbeat configures the topology."""
        return [streams_rows.epoch_row(
            group.group_id, epoch, group.metadata_hash, group.validated_epoch, group.assignment_configs)]

    def names_without(self, group: StreamsGroup, gone: list[StreamsMember]) -> Steps[Iterable[str]]:
        yield from ()
        return group.names

    # Targets

    def may_assign(self, group: StreamsGroup, now_ms: int) -> bool:
        return not self.is_delayed(group.group_id) and super().may_assign(group, now_ms)

    def is_delayed(self, group_id: str) -> bool:
        return self.place.deadlines.is_armed(DELAY, group_id, '')

    def start_delay(self, group_id: str) -> None:
        """Let a group wait for more members before its first target."""
        delay_ms = self.place.group_config(group_id).streams_initial_rebalance_delay_ms
        if delay_ms and not self.is_delayed(group_id):
            self.place.deadlines.arm(DELAY, group_id, '', delay_ms, partial(
                self.place.turns.submit, group_id, self.assign_delayed, Callback(log_delay)))

    def assign_delayed(self, group: Group | None) -> Steps[Outcome]:
        """Compute the target of a group that has waited: an operation."""
        if not isinstance(group, StreamsGroup) or not group.members or group.topology is None or (
                group.epoch <= group.assignment_epoch):
            return Outcome()
        first = next(iter(group.members.values()))
        draft = StreamsDraft(group, first, first, first, group.epoch, group.assignment_epoch, group.metadata_hash,
                             self.place.clock.wall_ms(), topology=group.topology,
                             configured=group.configured or (yield from self.configure(group.topology)))
        yield from self.assign(draft)
        return Outcome(draft.rows)

    def compute_targets(self, draft: Any) -> Steps[dict[str, Any]]:
        """Return the tasks of every member: none until all topics are there."""
        if draft.configured.status is not None:
            return {member.member_id: NOTHING for member in draft.members()}
        pace, members = Pace(), []
        for member in draft.members():
            members.append(TaskMember(member.member_id, member.process_id,
                                      draft.stored_target(member.member_id) or NOTHING))
            if pace.spend():
                yield
        stateful = frozenset(part.subtopology_id for part in draft.topology.subtopologies if part.changelogs)
        replicas = self.place.group_config(draft.group.group_id).streams_num_standby_replicas
        targets: dict[str, Any] = yield from sticky.assign(
            TaskSpec(members, draft.configured.tasks, stateful, replicas))
        return targets

    # Reconciliation

    def reconcile(self, draft: Any, call: Call) -> Steps[None]:
        group, member = draft.group, draft.member
        if not draft.origin.held.is_reconciled_to(draft.assignment_epoch):
            held: Assigned[Key] = yield from reconcile_tasks(
                draft.origin.held, draft.assignment_epoch, draft.target() or NOTHING,
                partial(group.is_unreleased, member.process_id), owned_tasks(call.request))
            if held != draft.origin.held:
                draft.member = replace(member, held=held)
                draft.rows.append(streams_rows.current_row(group.group_id, member.member_id, held))
        draft.endpoint_changes = int(draft.member.endpoint is not None and (
            call.request.member_epoch == JOIN_EPOCH or draft.has_other_tasks))
        if group.endpoint_epoch + draft.endpoint_changes != call.request.endpoint_information_epoch:
            draft.endpoints = yield from self.describe_endpoints(draft)
        if group.topology is None:
            draft.endpoint_changes = 0          # as in Kafka, the join that makes the group is not counted

    def describe_endpoints(self, draft: StreamsDraft) -> Steps[list[Any]]:
        """Return the partitions that can be queried at each endpoint."""
        pace, found = Pace(), []
        sources = {part.subtopology_id: part.sources() for part in draft.topology.subtopologies}
        for member in draft.members():
            if member.endpoint is not None:
                found.append(response_class().EndpointToPartitions(
                    user_endpoint=response_class().Endpoint(host=member.endpoint.host, port=member.endpoint.port),
                    active_partitions=self.partitions_of(member, Role.ACTIVE, sources),
                    standby_partitions=self.partitions_of(member, Role.STANDBY, sources)))
            if pace.spend(1 + sum(map(len, member.held.assigned.values())) // 8):
                yield
        return found

    def partitions_of(self, member: StreamsMember, role: Role, sources: Mapping[str, list[str]]) -> list[Any]:
        """Return the partitions of the source topics of a member's tasks.

        As in Kafka, a topic with fewer partitions than the member has tasks gets the lowest task numbers, as many as it
        has partitions. Some of them may be no partitions of it.
        """
        find, found = self.place.changes.topics.topic, []
        for (each, subtopology), numbers in member.held.assigned.items():
            for name in sources.get(subtopology, ()) if each is role else ():
                topic = find(name)
                count = 0 if topic is None else len(topic.partitions)
                found.append(response_class().TopicPartition(
                    topic=name, partitions=sorted(numbers)[:count]))
        return found

    def reply(self, draft: Any, call: Call) -> Any:
        member = draft.member
        response = response_class()(
            member_id=member.member_id, member_epoch=member.epoch,
            heartbeat_interval_ms=self.interval_ms(draft),
            endpoint_information_epoch=draft.group.endpoint_epoch + draft.endpoint_changes,
            partitions_by_user_endpoint=draft.endpoints,
            status=[response_class().Status(status_code=status, status_detail=detail)
                    for status, detail in self.statuses(draft)])
        if call.request.member_epoch == JOIN_EPOCH or draft.has_other_tasks:
            for role in Role:
                setattr(response, f'{role}_tasks', [
                    response_class().TaskIds(subtopology_id=subtopology, partitions=list(numbers))
                    for (each, subtopology), numbers in member.held.assigned.items() if each is role])
        return StreamsReply(response, draft.configured.missing)

    def is_settled(self, draft: Any) -> bool:
        settled: bool = draft.member.held.is_reconciled_to(draft.assignment_epoch)
        return settled

    def statuses(self, draft: StreamsDraft) -> Iterator[tuple[Status, str]]:
        """Yield what hinders the group or the member."""
        if draft.member.topology_epoch < draft.topology.epoch:
            yield Status.STALE_TOPOLOGY, (f"The member's topology epoch {draft.member.topology_epoch} is behind the "
                                          f"group's topology epoch {draft.topology.epoch}.")
        if draft.configured.status is not None:
            yield draft.configured.status, draft.configured.detail
        if draft.shutdown_by:
            yield Status.SHUTDOWN_APPLICATION, (f'Streams group member {draft.shutdown_by} encountered a fatal error '
                                                'and requested a shutdown for the entire application.')
        if draft.assignment_epoch < draft.epoch:
            reason = 'initial rebalance delay' if self.is_delayed(draft.group.group_id) else 'assignment interval'
            yield Status.ASSIGNMENT_DELAYED, f'Assignment delayed due to the configured {reason}.'

    # Deadlines

    def after_beat(self, draft: Any, call: Call, version: int) -> None:
        super().after_beat(draft, call, version)
        group = self.place.shard.groups.get(draft.group.group_id)
        if isinstance(group, StreamsGroup):
            group.configured = draft.configured
            group.shutdown_by = draft.shutdown_by
            group.endpoint_epoch += draft.endpoint_changes
        if draft.member.held is not draft.origin.held:
            self.follow_revocation(draft.group.group_id, draft.member)

    def start_deadlines(self, group: StreamsGroup) -> None:
        super().start_deadlines(group)
        for member in group.members.values():
            self.follow_revocation(group.group_id, member)

    # Leaving

    def leave(self, call: Call, found: Group | None) -> Steps[Outcome] | Outcome:
        """GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID."""
        request = call.request
        if not isinstance(found, StreamsGroup):
            raise not_found(request.group_id)
        member = found.member(request.member_id)
        return self.fence(found, [member], StreamsReply(response_class()(
            member_id=request.member_id, member_epoch=request.member_epoch)))


def response_class() -> Any:
    """Return the class of the response, which is built at its first use."""
    return messages.StreamsGroupHeartbeatResponse


def owned_tasks(request: Any) -> Target | None:
    """Return the tasks that the member reports to own, None if it does not report any."""
    if request.active_tasks is None:
        return None
    return {(role, tasks.subtopology_id): frozenset(tasks.partitions)
            for role in Role for tasks in getattr(request, f'{role}_tasks')}


def check_tasks(request: Any, counts: Mapping[str, int]) -> None:
    """INVALID_REQUEST for a task that the topology does not have."""
    for (_, subtopology), numbers in (owned_tasks(request) or NOTHING).items():
        count = counts.get(subtopology)
        if count is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST,
                             f'found a task of subtopology {subtopology!r}, which the topology does not have')
        for number in numbers:
            if not 0 <= number < count:
                raise KafkaError(ErrorCode.INVALID_REQUEST,
                                 f'found task {number} of subtopology {subtopology!r}, which has {count} tasks')


def log_delay(error: KafkaError | None, _result: object) -> None:
    """Log that a group which has waited got no target: a later heartbeat computes it."""
    if error is not None and error.code is not ErrorCode.NOT_COORDINATOR:
        log.error('the target of a new streams group was not stored: %s', error)
