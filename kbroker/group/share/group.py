"""The state of a share group (KIP-932): members, assignments and initialized share states. Only rows change it."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.long_work import Pace
from kbroker.group.commits import Commit
from kbroker.group.group import Group
from kbroker.group.kinds import Row, Steps
from kbroker.group.modern.group import NEVER_LOOKED, TOPIC_BYTES, ModernGroup, RowHandler, RowModule
from kbroker.group.share import member_rows as rows
from kbroker.group.share.member_rows import ShareMember, States, Target

INITIALIZED_BYTES = 180
"""The largest memory in bytes that one number in a frozenset takes, measured on CPython 3.11 with 64 bits."""


class ShareGroup(ModernGroup[ShareMember, Target]):
    """A share group. It has no committed offsets. Its rows can be applied in any order, because compaction may reorder
    them."""

    group_type = 'share'
    member_class = ShareMember
    rows: ClassVar[RowModule] = rows
    gives_way_to_classic = False

    def __init__(self, group_id: str):
        super().__init__(group_id)
        self.initialized: States = {}
        """The partitions whose share state is initialized, by topic id. Only these partitions are assigned to members.
        Each row of share states replaces the whole mapping."""
        self.has_states_row = False
        self.complete_version = NEVER_LOOKED
        """The last version of TopicChanges at which all partitions of all subscribed topics were initialized."""
        self._is_covered: bool | None = None

    def copy(self) -> Self:
        twin = super().copy()
        twin.initialized = self.initialized
        twin.has_states_row = self.has_states_row
        return twin

    # State

    @property
    def may_expire(self) -> bool:
        return False

    def derive_state(self) -> str:
        return 'Stable' if self.members else 'Empty'

    @property
    def is_known_covered(self) -> bool:
        """True if `is_covered` has returned True, and no row has changed the group after that."""
        return self._is_covered is True

    def is_covered(self) -> Steps[bool]:
        """Return whether the members' targets together contain exactly the initialized partitions of the subscribed
        topics. The result is kept until a row changes the group."""
        if self._is_covered is None:
            self._is_covered = yield from self._covers()
        return self._is_covered

    def _covers(self) -> Steps[bool]:
        pace = Pace()
        targeted: dict[bytes, set[int]] = {}
        for target in self.targets.values():
            for topic_id, partitions in target.items():
                targeted.setdefault(topic_id, set()).update(partitions)
                if pace.spend(1 + len(partitions) // 8):
                    yield
        for topic_id, state in self.initialized.items():
            if state.name in self.names and targeted.get(topic_id, set()) != set(state.partitions):
                return False
            if pace.spend(1 + len(state.partitions) // 8):
                yield
        return True

    # Offsets

    def check_commit(self, commit: Commit, version: int) -> None:
        """Raise GROUP_ID_NOT_FOUND, because a share group has no committed offsets."""
        raise self._has_no_offsets()

    def check_transactional_commit(self, commit: Commit, version: int) -> None:
        """Raise GROUP_ID_NOT_FOUND, because a share group has no committed offsets."""
        raise self._has_no_offsets()

    def check_offset_deletion(self) -> None:
        """Raise GROUP_ID_NOT_FOUND, because a share group has no committed offsets."""
        raise self._has_no_offsets()

    def _has_no_offsets(self) -> KafkaError:
        return KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f'group {self.group_id} is of type share')

    # Rows

    def apply(self, key: Any, value: Any) -> Group | None:
        self._is_covered = None
        self.complete_version = NEVER_LOOKED
        return super().apply(key, value)

    def apply_states(self, _key: Any, value: Any) -> Group | None:
        before = self.initialized
        self.initialized = {} if value is None else rows.read_states(value)
        self.has_states_row = value is not None
        self.hold(states_bytes(self.initialized) - states_bytes(before))
        return self

    def epoch_rows(self, epoch: int, metadata_hash: int) -> list[Row]:
        return [rows.epoch_row(self.group_id, epoch, metadata_hash)]

    def group_tombstones(self) -> Iterator[Row]:
        yield rows.states_tombstone(self.group_id)
        yield rows.epoch_tombstone(self.group_id)

    row_handlers: ClassVar[Mapping[str, RowHandler]] = {
        'ShareGroupMemberMetadataKey': ModernGroup.apply_member,
        'ShareGroupMetadataKey': ModernGroup.apply_epoch,
        'ShareGroupTargetAssignmentMetadataKey': ModernGroup.apply_assignment_epoch,
        'ShareGroupTargetAssignmentMemberKey': ModernGroup.apply_target,
        'ShareGroupCurrentMemberAssignmentKey': ModernGroup.apply_current,
        'ShareGroupStatePartitionMetadataKey': apply_states,
    }


def states_bytes(states: States) -> int:
    """Return the memory that a mapping of initialized partitions takes, in bytes."""
    return sum([TOPIC_BYTES + len(state.name) + INITIALIZED_BYTES * len(state.partitions)
                for state in states.values()])
