"""The state of a streams group (KIP-1071): the topology, the members and their tasks. Rows change it, except for a few
fields that no row stores."""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Self

from kbroker.group.assignors.sticky import Key, Role
from kbroker.group.commits import Commit
from kbroker.group.group import Group
from kbroker.group.kinds import Row
from kbroker.group.modern.group import ModernGroup, RowHandler, RowModule
from kbroker.group.modern.reconciled_group import ReconciledGroup
from kbroker.group.streams import rows
from kbroker.group.streams.member import (
    NO_OFFSETS,
    NO_TOPOLOGY_EPOCH,
    DescriptionEpochs,
    ReportedOffsets,
    StreamsMember,
    Target,
    Topology,
    read_topology,
)
from kbroker.group.streams.task_holders import TaskHolders
from kbroker.group.streams.topology import ConfiguredTopology, required_topics


class StreamsGroup(ReconciledGroup[StreamsMember, Target]):
    """A streams group. Its rows can be applied in any order, because compaction may reorder them."""

    group_type = 'streams'
    member_class = StreamsMember
    rows: ClassVar[RowModule] = rows

    def __init__(self, group_id: str):
        super().__init__(group_id)
        self.topology: Topology | None = None
        self.validated_epoch = NO_TOPOLOGY_EPOCH
        """The epoch of the topology if all topics of the topology exist and have the right numbers of partitions.
        Otherwise, NO_TOPOLOGY_EPOCH."""
        self.assignment_configs: dict[str, str] = {}
        """The configs of the group, by name, with which the targets for the current group epoch are computed."""
        self.described = DescriptionEpochs()
        self.configured: ConfiguredTopology | None = None
        """The topology with its numbers of tasks, computed from the topics at `metadata_version`. No row stores it."""
        self.endpoint_epoch = 0
        """A number that grows whenever the endpoint of a member changes, or the tasks of a member with an endpoint. No
        row stores it."""
        self.shutdown_by = ''
        """The id of the member that requested the shutdown of the application; empty if no member did since the group
        last became empty. No row stores it."""
        self.task_offsets: dict[str, ReportedOffsets] = {}
        """Maps a member id to the offsets that the member has reported. No row stores them."""
        self._subtopologies: dict[str, str] = {}
        """Maps each topic to the id of the subtopology that reads it."""
        self._active = TaskHolders[str]()
        """The active tasks that members hold, by subtopology. They include active tasks whose revocation is not
        confirmed yet."""
        self._in_process = TaskHolders[tuple[str, Role, str]]()
        """The tasks that the members of each process hold, by process, role and subtopology."""

    def copy(self) -> Self:
        twin = super().copy()
        twin.topology = self.topology
        twin.validated_epoch = self.validated_epoch
        twin.assignment_configs = self.assignment_configs
        twin.described = self.described
        twin.configured = self.configured
        twin.endpoint_epoch = self.endpoint_epoch
        twin.shutdown_by = self.shutdown_by
        twin.task_offsets = self.task_offsets.copy()
        twin._subtopologies = self._subtopologies
        twin._active = self._active.copy()
        twin._in_process = self._in_process.copy()
        return twin

    # State

    def derive_state(self) -> str:
        if self.members and (self.topology is None or self.validated_epoch != self.topology.epoch):
            return 'NotReady'
        return super().derive_state()

    def is_subscribed_to(self, topic: str) -> bool:
        return bool(self.members) and topic in self._subtopologies

    def names_with(self, before: StreamsMember | None, after: StreamsMember | None) -> Iterable[str]:
        return self.names

    def is_unreleased(self, member: StreamsMember, key: Key, number: int) -> bool:
        """Return whether the member must wait for a new task, because other members have not given it up yet.

        A member waits for an active task while any member has it as an active task. A member also waits for a task of
        any role while another member of the same process has the task in any role, because the members of a process
        share the directory of the task's state. For a warm-up task, a member waits until it has itself given up the
        active task.
        """
        role, subtopology = key
        if role is Role.ACTIVE and self._active.has(subtopology, number):
            return True
        for each in Role:
            is_own = number in member.held.assigned.get((each, subtopology), ()) and not (
                role is Role.WARMUP and each is Role.ACTIVE)
            if not is_own and self._in_process.has((member.process_id, each, subtopology), number):
                return True
        return False

    def put_task_offsets(self, member_id: str, reported: ReportedOffsets) -> None:
        """Replace the offsets that a member has reported for tasks."""
        self.hold(reported.held_bytes - self.task_offsets.pop(member_id, NO_OFFSETS).held_bytes)
        if reported != NO_OFFSETS:
            self.task_offsets[member_id] = reported

    # Offsets

    def has_had_since(self, member: StreamsMember, commit: Commit, epoch: int) -> bool:
        """Return whether all partitions of the commit belong to active tasks that the member got in this epoch or a
        lower one, and still has."""
        return all([self._has_task_since(member, topic, partition, epoch) for topic, partition in commit.offsets])

    def _has_task_since(self, member: StreamsMember, topic: str, partition: int, epoch: int) -> bool:
        subtopology = self._subtopologies.get(topic)
        if subtopology is None:
            return False
        key = Role.ACTIVE, subtopology
        for tasks in (member.held.assigned, member.held.pending):
            since_epoch = tasks.get(key, {}).get(partition)
            if since_epoch is not None:
                return since_epoch <= epoch
        return False

    # Rows

    def apply_epoch(self, key: Any, value: Any) -> Group | None:
        if value is not None:
            self.validated_epoch = value.validated_topology_epoch
            self.assignment_configs = {config.key: config.value for config in value.last_assignment_configs or ()}
            self.described = DescriptionEpochs(
                value.stored_description_topology_epoch, value.failed_description_topology_epoch)
        return super().apply_epoch(key, value)

    def apply_topology(self, _key: Any, value: Any) -> Group | None:
        if self.topology is not None:
            self.count_names(required_topics(self.topology.subtopologies), -1)
            self.hold(-self.topology.held_bytes)
        self.topology = None if value is None else read_topology(value)
        self._subtopologies, self.configured = {}, None
        if self.topology is not None:
            self.count_names(required_topics(self.topology.subtopologies), 1)
            self.hold(self.topology.held_bytes)
            self._subtopologies = {
                name: part.subtopology_id for part in self.topology.subtopologies for name in part.sources()}
        return self

    def index_member(self, before: StreamsMember | None, after: StreamsMember | None) -> None:
        if before is not None and after is None:
            self.put_task_offsets(before.member_id, NO_OFFSETS)
            if not self.members:
                self.shutdown_by = ''
        if before is not None and after is not None and (
                before.held is after.held and before.process_id == after.process_id):
            return
        for member, change in (before, TaskHolders.remove), (after, TaskHolders.add):
            if member is None:
                continue
            for tasks in (member.held.assigned, member.held.pending):
                for (role, subtopology), numbers in tasks.items():
                    change(self._in_process, (member.process_id, role, subtopology), numbers)
                    if role is Role.ACTIVE:
                        change(self._active, subtopology, numbers)

    def epoch_rows(self, epoch: int, _metadata_hash: int) -> list[Row]:
        """Return the row of a group epoch that begins because members are removed.

        The row keeps the previous metadata hash. The next heartbeat configures the topology again, and computes the new
        hash.
        """
        return [rows.epoch_row(
            self.group_id, epoch, self.metadata_hash, self.validated_epoch, self.assignment_configs, self.described)]

    def group_tombstones(self) -> Iterator[Row]:
        yield rows.epoch_tombstone(self.group_id)
        yield rows.topology_tombstone(self.group_id)

    row_handlers: ClassVar[Mapping[str, RowHandler]] = {
        'StreamsGroupMetadataKey': apply_epoch,
        'StreamsGroupMemberMetadataKey': ModernGroup.apply_member,
        'StreamsGroupTargetAssignmentMetadataKey': ModernGroup.apply_assignment_epoch,
        'StreamsGroupTargetAssignmentMemberKey': ModernGroup.apply_target,
        'StreamsGroupCurrentMemberAssignmentKey': ModernGroup.apply_current,
        'StreamsGroupTopologyKey': apply_topology,
    }
