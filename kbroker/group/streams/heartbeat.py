"""The functions that `modern/heartbeat` calls for heartbeats of streams groups (KIP-1071)."""
from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from kbroker.base.completion import Callback
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.lean_dataclasses import dataclass, field, replace
from kbroker.base.long_work import Pace
from kbroker.group.assignors import sticky
from kbroker.group.assignors.sticky import Key, Role, TaskMember, TaskSpec
from kbroker.group.classic.group import MOST_MEMBERS, ClassicGroup
from kbroker.group.config import GroupConfig
from kbroker.group.deadlines import DELAY
from kbroker.group.group import Group
from kbroker.group.kinds import Row, Steps
from kbroker.group.modern.heartbeat import (
    JOIN_EPOCH,
    Call,
    Draft,
    Kind,
    Place,
    assign,
    not_found,
)
from kbroker.group.modern.reconcile import Assigned
from kbroker.group.modern.static_members import find_member, successor
from kbroker.group.streams import rows
from kbroker.group.streams.group import StreamsGroup
from kbroker.group.streams.member import (
    NO_OFFSETS,
    NO_TOPOLOGY_EPOCH,
    NOTHING,
    Endpoint,
    ReportedOffsets,
    StreamsMember,
    Target,
    TaskOffsets,
    Topology,
    read_topology,
)
from kbroker.group.streams.reconciliation import reconcile_tasks
from kbroker.group.streams.topology import ConfiguredTopology, InternalTopic, Status, configure, required_topics
from kbroker.group.turns import Outcome
from kbroker.protocol import messages
from kbroker.settings.config import Config

log = logging.getLogger(__name__)

NO_TIMEOUT = -1
MOST_TASKS = 100_000
"""The largest number of tasks of a group. A topology with more tasks is refused."""
STANDBY_REPLICAS = 'num.standby.replicas'
RACK_AWARE_TAGS = 'rack.aware.assignment.tags'
"""The names that the assignor's configs for standby replicas and for client tags have in the row of the group
epoch."""
VERSION_WITH_MISSING_TAGS = 1
"""The first version of StreamsGroupHeartbeat whose responses name missing client tags."""

NO_TOPOLOGY = Topology(NO_TOPOLOGY_EPOCH, ())


class StreamsReply(NamedTuple):
    """The response to a heartbeat, and the internal topics that do not exist yet."""

    response: Any
    missing: Iterable[InternalTopic] = ()


@dataclass(slots=True)
class StreamsDraft(Draft[StreamsGroup, StreamsMember]):
    """A streams group and one changed member, while an operation works on them."""

    topology: Topology = NO_TOPOLOGY
    configured: ConfiguredTopology = field(default_factory=ConfiguredTopology)
    configs: dict[str, str] = field(default_factory=dict)
    """The configs of the group, by name, with which targets are computed."""
    endpoint_changes: int = 0
    """1 if the heartbeat changes the member's endpoint or the partitions that can be queried there, else 0. It is added
    to the group's `endpoint_epoch`."""
    task_offsets: ReportedOffsets | None = None
    """The offsets of tasks that the changed member has reported after the operation; None if the request has none."""
    endpoints: list[Any] | None = None
    """The descriptions of all endpoints and their partitions for the response; None if the client already knows
    them."""

    def names(self) -> Iterable[str]:
        return required_topics(self.topology.subtopologies)

    def epoch_rows(self) -> list[Row]:
        return [rows.epoch_row(
            self.group.group_id, self.epoch, self.metadata_hash, self.validated_epoch, self.configs,
            self.group.described)]

    def offsets_of(self, member_id: str) -> ReportedOffsets:
        """Return the offsets of tasks that the member has reported."""
        if member_id == self.member.member_id and self.task_offsets is not None:
            return self.task_offsets
        return self.group.task_offsets.get(member_id, NO_OFFSETS)

    @property
    def validated_epoch(self) -> int:
        return self.topology.epoch if self.configured.status is None else NO_TOPOLOGY_EPOCH


class StreamsSteps:
    """The functions of the table of streams groups that use parts of the coordinator."""

    def __init__(self, place: Place):
        self.place = place

    def kind(self) -> Kind:
        """Return the table of functions for streams groups."""
        return Kind(
            StreamsGroup, StreamsDraft, max_size=max_size, find=find_member, fields=fields_of,
            owned=owned_tasks, subscribe=self.subscribe, targets=self.targets, reconcile=self.reconcile,
            reply=self.reply, farewell=farewell, is_idle=self.is_idle, replace_other=replace_other, after=self.after,
            before_leave=note_shutdown, successor=successor)

    def is_idle(self, group: StreamsGroup, member: StreamsMember) -> bool:
        """Return whether the group is ready, and a response to the member would have no status."""
        config = self.place.group_config(group.group_id)
        return (group.configured is not None and group.configured.status is None and not group.shutdown_by
                and group.topology is not None and member.topology_epoch >= group.topology.epoch
                and group.validated_epoch == group.topology.epoch
                and assignment_configs(config) == group.assignment_configs and not missing_tags(config, member))

    # The topology

    def subscribe(self, draft: StreamsDraft, call: Call) -> Steps[bool]:
        """Configure the topology if it is new, or if its topics may have changed. Return whether the group needs a new
        epoch.

        Raise INVALID_REQUEST if the request's topology or tasks do not match those of the group, or if it has two
        offsets of one task. Raise STREAMS_INVALID_TOPOLOGY if the topology cannot be configured,
        COORDINATOR_LOAD_IN_PROGRESS if there is no memory for the offsets.
        """
        group = draft.group
        if not group.members:
            self.start_delay(group.group_id)
        draft.topology = self.topology_of(draft, call)
        if group.configured is None or self.place.changes.concern(group.names, group.metadata_version):
            draft.configured = yield from self.configure(draft.topology)
        else:
            draft.configured = group.configured
        if draft.configured.status is None:
            check_tasks(call.request, draft.configured.tasks)
        yield from self.take_offsets(draft, call.request)
        draft.configs = assignment_configs(self.place.group_config(group.group_id))
        note_shutdown(group, call)
        return (needs_new_targets(draft, call.request) or draft.validated_epoch != group.validated_epoch
                or draft.configs != group.assignment_configs)

    def take_offsets(self, draft: StreamsDraft, request: Any) -> Steps[None]:
        """Keep the offsets that the request reports in the draft. A list that the request does not have stays."""
        reported = before = draft.offsets_of(draft.member.member_id)
        if request.task_offsets is not None:
            reported = reported._replace(offsets=(yield from read_offsets(request.task_offsets)))
        if request.task_end_offsets is not None:
            reported = reported._replace(end_offsets=(yield from read_offsets(request.task_end_offsets)))
        if reported is not before:
            more_bytes = reported.held_bytes - before.held_bytes
            if more_bytes > 0:
                self.place.shard.memory.check(more_bytes)
            draft.task_offsets = reported

    def topology_of(self, draft: StreamsDraft, call: Call) -> Topology:
        """Return the group's topology. If the group has no topology yet, use the request's topology, and add its row to
        the draft. Raise INVALID_REQUEST if the request has a topology that differs from the group's."""
        given, group = call.request.topology, draft.group
        if given is None:
            if group.topology is None:
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f'group {group.group_id} has no topology')
            return group.topology
        topology = read_topology(given)
        if group.topology is None:
            self.place.shard.memory.check(topology.held_bytes)
            draft.rows.append(rows.topology_row(group.group_id, given))
            return topology
        if group.topology.epoch <= topology.epoch and group.topology != topology:
            raise KafkaError(ErrorCode.INVALID_REQUEST,
                             f'found another topology than group {group.group_id} has, which cannot change')
        return group.topology

    def configure(self, topology: Topology) -> Steps[ConfiguredTopology]:
        """Return the topology with its numbers of tasks, computed from the existing topics. Raise
        STREAMS_INVALID_TOPOLOGY if it has more than MOST_TASKS tasks."""
        find = self.place.changes.topics.topic
        found = {name: find(name) for name in required_topics(topology.subtopologies)}
        configured = yield from configure(topology.subtopologies, {
            name: len(topic.partitions) for name, topic in found.items() if topic is not None})
        tasks = sum(configured.tasks.values())
        if tasks > MOST_TASKS:
            raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY,
                             f'the topology has {tasks} tasks, a group may have {MOST_TASKS}')
        return configured

    # Targets

    def is_delayed(self, group_id: str) -> bool:
        return self.place.deadlines.is_armed(DELAY, group_id, '')

    def start_delay(self, group_id: str) -> None:
        """Arm the deadline at which a new group gets its first targets. Until then, more members can join."""
        delay_ms = self.place.group_config(group_id).streams_initial_rebalance_delay_ms
        if delay_ms and not self.is_delayed(group_id):
            self.place.deadlines.arm(DELAY, group_id, '', delay_ms, partial(
                self.place.turns.submit, group_id, self.assign_delayed, Callback(log_delay)))

    def assign_delayed(self, group: Group | None) -> Steps[Outcome]:
        """Compute the first targets of a group, because its initial delay has passed. This is an operation of a
        turn."""
        if not isinstance(group, StreamsGroup) or not group.members or group.topology is None or (
                group.epoch <= group.assignment_epoch):
            return Outcome()
        first = next(iter(group.members.values()))
        draft = StreamsDraft(group, first, first, first, group.epoch, group.assignment_epoch, group.metadata_hash,
                             self.place.clock.wall_ms(), topology=group.topology,
                             configured=group.configured or (yield from self.configure(group.topology)))
        yield from assign(draft, self.kind())
        return Outcome(draft.rows)

    def targets(self, draft: StreamsDraft) -> Steps[dict[str, Any]]:
        """Return {member id: tasks}, computed by the assignor. If the topology is not ready, for example because a
        topic does not exist, no member gets tasks."""
        if draft.configured.status is not None:
            return {member.member_id: NOTHING for member in draft.members()}
        pace, members = Pace(), []
        for member in draft.members():
            members.append(TaskMember(member.member_id, member.process_id, member.held.assigned,
                                      draft.offsets_of(member.member_id).offsets))
            if pace.spend():
                yield
        stateful = frozenset(part.subtopology_id for part in draft.topology.subtopologies if part.changelogs)
        replicas = self.place.group_config(draft.group.group_id).streams_num_standby_replicas
        targets: dict[str, Any] = yield from sticky.assign(
            TaskSpec(members, draft.configured.tasks, stateful, replicas))
        return targets

    # Reconciliation

    def reconcile(self, draft: StreamsDraft, call: Call) -> Steps[None]:
        """Move the changed member towards its target. Then describe the endpoints in the draft, if the client does not
        know their latest epoch."""
        group, member = draft.group, draft.member
        if not draft.origin.held.is_reconciled_to(draft.assignment_epoch):
            held: Assigned[Key] = yield from reconcile_tasks(
                draft.origin.held, draft.assignment_epoch, draft.target() or NOTHING,
                partial(group.is_unreleased, member), owned_tasks(call.request))
            if held != draft.origin.held:
                draft.member = replace(member, held=held)
                draft.rows.append(rows.current_row(group.group_id, member.member_id, held))
        draft.endpoint_changes = int(draft.member.endpoint != draft.origin.endpoint or (
            draft.member.endpoint is not None and draft.member.held.assigned != draft.origin.held.assigned))
        if group.endpoint_epoch + draft.endpoint_changes != call.request.endpoint_information_epoch:
            draft.endpoints = yield from self.describe_endpoints(draft)
        if group.topology is None:
            draft.endpoint_changes = 0          # as in Kafka, the join that creates the group does not count

    def describe_endpoints(self, draft: StreamsDraft) -> Steps[list[Any]]:
        """Return a list of all endpoints, each with the partitions whose state can be queried there."""
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
        """Return the partitions of the source topics that a member's tasks with this role read.

        Task N reads partition N of each source topic that has this partition.
        """
        find, found = self.place.changes.topics.topic, []
        for (each, subtopology), numbers in member.held.assigned.items():
            for name in sources.get(subtopology, ()) if each is role else ():
                topic = find(name)
                count = 0 if topic is None else len(topic.partitions)
                found.append(response_class().TopicPartition(
                    topic=name, partitions=sorted([number for number in numbers if number < count])))
        return found

    def reply(self, draft: StreamsDraft, call: Call, interval_ms: int) -> StreamsReply:
        member, config = draft.member, self.place.group_config(draft.group.group_id)
        response = response_class()(
            member_id=member.member_id, member_epoch=member.epoch,
            heartbeat_interval_ms=interval_ms, task_offset_interval_ms=config.streams_task_offset_interval_ms,
            acceptable_recovery_lag=config.streams_acceptable_recovery_lag,
            endpoint_information_epoch=draft.group.endpoint_epoch + draft.endpoint_changes,
            partitions_by_user_endpoint=draft.endpoints,
            status=[response_class().Status(status_code=status, status_detail=detail)
                    for status, detail in self.statuses(draft, call.version)])
        if call.request.member_epoch == JOIN_EPOCH or draft.has_other_assignment:
            for role in Role:
                setattr(response, f'{role}_tasks', [
                    response_class().TaskIds(subtopology_id=subtopology, partitions=list(numbers))
                    for (each, subtopology), numbers in member.held.assigned.items() if each is role])
        return StreamsReply(response, draft.configured.missing)

    def statuses(self, draft: StreamsDraft, version: int) -> Iterator[tuple[Status, str]]:
        """Yield (status, explanation) for each condition that prevents the group or the member from working, in the
        order of Kafka."""
        if draft.member.topology_epoch < draft.topology.epoch:
            yield Status.STALE_TOPOLOGY, (f"The member's topology epoch {draft.member.topology_epoch} is behind the "
                                          f"group's topology epoch {draft.topology.epoch}.")
        if draft.assignment_epoch < draft.epoch:
            reason = 'initial rebalance delay' if self.is_delayed(draft.group.group_id) else 'assignment interval'
            yield Status.ASSIGNMENT_DELAYED, f'Assignment delayed due to the configured {reason}.'
        if draft.configured.status is not None:
            yield draft.configured.status, draft.configured.detail
        if draft.group.shutdown_by:
            yield Status.SHUTDOWN_APPLICATION, (f'Streams group member {draft.group.shutdown_by} encountered a fatal '
                                                'error and requested a shutdown for the entire application.')
        missing = missing_tags(self.place.group_config(draft.group.group_id), draft.member)
        if missing and version >= VERSION_WITH_MISSING_TAGS:
            yield Status.MISSING_CLIENT_TAGS, (
                f'Missing required client tags for rack-aware standby assignment: [{", ".join(missing)}]. Configure '
                "them via 'client.tag.<tagKey>' in your Streams config.")

    def after(self, draft: StreamsDraft, _call: Call) -> None:
        """Set the fields that no row stores in the group, because the rows of the heartbeat have been applied."""
        group = self.place.shard.groups.get(draft.group.group_id)
        if isinstance(group, StreamsGroup):
            group.configured = draft.configured
            group.endpoint_epoch += draft.endpoint_changes
            if draft.task_offsets is not None and draft.group.topology is not None:
                # As in Kafka, the offsets in the join that creates the group are lost.
                group.put_task_offsets(draft.member.member_id, draft.task_offsets)


def note_shutdown(group: StreamsGroup, call: Call) -> None:
    """Keep the first request to shut the application down.

    As in Kafka, the request also counts if the heartbeat has it that leaves the group, even if the group does not have
    the member any more: a member that was fenced may find out that the application cannot go on. No row stores the
    request, so the group changes before the rows of the heartbeat are durable.
    """
    if call.request.shutdown_application and not group.shutdown_by:
        group.shutdown_by = call.request.member_id


def assignment_configs(config: GroupConfig) -> dict[str, str]:
    """Return the assignor's configs, by name, in the order of Kafka's rows."""
    configs = {STANDBY_REPLICAS: str(config.streams_num_standby_replicas)}
    if config.streams_rack_aware_assignment_tags:
        configs[RACK_AWARE_TAGS] = ','.join(config.streams_rack_aware_assignment_tags)
    return configs


def missing_tags(config: GroupConfig, member: StreamsMember) -> list[str]:
    """Return the client tags that the group's configs require and the member does not have."""
    required = config.streams_rack_aware_assignment_tags
    if not required:
        return []
    has = {key for key, _ in member.tags}
    return [tag for tag in required if tag not in has]


def max_size(config: Config) -> int:
    return min(int(config.group_streams_max_size), MOST_MEMBERS)


def replace_other(found: Group) -> Steps[tuple[StreamsGroup, list[Row]]]:
    """Return a streams group that replaces a classic group without members, and the tombstones of the classic group.
    Raise GROUP_ID_NOT_FOUND for any other group."""
    yield from ()
    if isinstance(found, ClassicGroup) and found.is_empty:
        return StreamsGroup(found.group_id), found.tombstones()
    raise not_found(found.group_id)


def fields_of(call: Call) -> dict[str, Any]:
    """Return the fields of the member that the request sets, by name."""
    request = call.request
    fields: dict[str, Any] = {'client_id': call.client_id, 'client_host': call.client_host}
    if request.rebalance_timeout_ms != NO_TIMEOUT:
        fields['rebalance_timeout_ms'] = request.rebalance_timeout_ms
    if request.topology is not None:
        fields['topology_epoch'] = request.topology.epoch
    if request.user_endpoint is not None:
        fields['endpoint'] = Endpoint(request.user_endpoint.host, request.user_endpoint.port)
    elif request.member_epoch == JOIN_EPOCH:
        fields['endpoint'] = None
    if request.client_tags is not None:
        fields['tags'] = tuple(sorted((tag.key, tag.value) for tag in request.client_tags))
    for name, value in (('instance_id', request.instance_id), ('rack_id', request.rack_id),
                        ('process_id', request.process_id)):
        if value is not None:
            fields[name] = value
    return fields


def farewell(request: Any) -> StreamsReply:
    return StreamsReply(response_class()(member_id=request.member_id, member_epoch=request.member_epoch))


def response_class() -> Any:
    """Return the class of the response. The class is built when it is first used, not when this module is imported."""
    return messages.StreamsGroupHeartbeatResponse


def needs_new_targets(draft: StreamsDraft, request: Any) -> bool:
    """Return whether the changes of the member's fields require a new group epoch. As in Kafka, any change does if the
    request has no instance id. For a static member, only these changes do: the member is new, or has another process,
    topology epoch, rack or client tag."""
    member, origin = draft.member, draft.origin
    if member is origin:
        return False
    return draft.before is None or request.instance_id is None or (
        member.process_id != origin.process_id or member.topology_epoch != origin.topology_epoch
        or member.rack_id != origin.rack_id or member.tags != origin.tags)


def read_offsets(reported: list[Any]) -> Steps[TaskOffsets]:
    """Return the reported offsets of tasks, by subtopology id and task number. Raise INVALID_REQUEST if a task is
    reported twice."""
    pace, found = Pace(), dict[str, dict[int, int]]()
    for each in reported:
        offsets = found.setdefault(each.subtopology_id, {})
        if each.partition in offsets:
            raise KafkaError(ErrorCode.INVALID_REQUEST,
                             f'found two offsets of task {each.partition} of subtopology {each.subtopology_id!r}')
        offsets[each.partition] = each.offset
        if pace.spend():
            yield
    return found


def owned_tasks(request: Any) -> Target | None:
    """Return the tasks that the member reports as its own, by role and subtopology; None if the request has no lists of
    tasks."""
    if request.active_tasks is None:
        return None
    return {(role, tasks.subtopology_id): frozenset(tasks.partitions)
            for role in Role for tasks in getattr(request, f'{role}_tasks')}


def check_tasks(request: Any, counts: Mapping[str, int]) -> None:
    """Raise INVALID_REQUEST if the member reports a task that the topology does not have. `counts` maps each
    subtopology id to its number of tasks."""
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
    """Log the error if the first targets of a new group were not stored. The next heartbeat to the group computes them
    again."""
    if error is not None and error.code is not ErrorCode.NOT_COORDINATOR:
        log.error('the target of a new streams group was not stored: %s', error)
