"""Rows of `__consumer_offsets`: what they say, and how they are written.

A key is the row's type (int16) and body, a value its version (int16) and body; a null value is a tombstone. Offsets are
written in version 4, or in 1 when the client asked for an own retention, the only version with an expiry time; groups
in version 3. Rows of other protocols (KIP-848, share and streams groups) are none of ours: they are left where they
are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from kbroker.errors import CorruptLogError, ProtocolError
from kbroker.group.classic import ClassicGroup, GroupState, Member
from kbroker.protocol.codec import decode_prefix
from kbroker.protocol.messages import (
    ConsumerProtocolSubscription,
    GroupMetadataKey,
    GroupMetadataValue,
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from kbroker.protocol.rows import (
    TYPE_BYTES,
    RowError,
    decode_row_key,
    decode_row_value,
    encode_row_key,
    encode_row_value,
)

OFFSETS_TOPIC = '__consumer_offsets'
NO_TOPIC_ID = bytes(16)
OFFSET_VERSION, EXPIRING_OFFSET_VERSION, GROUP_VERSION = 4, 1, 3
VALUE_CLASSES = {
    key_class.row_type: value_class
    for key_class, value_class in (
        (LegacyOffsetCommitKey, LegacyOffsetCommitValue),
        (OffsetCommitKey, OffsetCommitValue),
        (GroupMetadataKey, GroupMetadataValue),
    )
}

Row = tuple[bytes, bytes | None]
"""Key and value of a record."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """An offset as its row states it. `log_offset` is the row's own offset, which orders transactional commits."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None = None
    topic_id: bytes = NO_TOPIC_ID
    log_offset: int = -1


class OffsetKey(NamedTuple):
    """Whose offset it is."""

    group_id: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class OffsetRow:
    key: OffsetKey
    committed: CommittedOffset | None


@dataclass(frozen=True, slots=True)
class GroupRow:
    group_id: str
    value: Any
    """A GroupMetadataValue, or None."""


def offset_row(key: OffsetKey, committed: CommittedOffset) -> Row:
    value = OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
    )
    if committed.expire_timestamp_ms is not None:
        value.expire_timestamp = committed.expire_timestamp_ms
        return offset_tombstone(key)[0], encode_row_value(value, EXPIRING_OFFSET_VERSION)
    value.topic_id = committed.topic_id
    return offset_tombstone(key)[0], encode_row_value(value, OFFSET_VERSION)


def offset_tombstone(key: OffsetKey) -> Row:
    return encode_row_key(OffsetCommitKey(group=key.group_id, topic=key.topic, partition=key.partition)), None


def group_row(group_id: str, value: Any) -> Row:
    return group_tombstone(group_id)[0], encode_row_value(value, GROUP_VERSION)


def group_tombstone(group_id: str) -> Row:
    return encode_row_key(GroupMetadataKey(group=group_id)), None


def read_row(key: Any, value: Any, log_offset: int) -> OffsetRow | GroupRow | None:
    """The row, or None for one of a type that is not ours.

    CorruptLogError when it cannot be read, or was written in a version from the future: going on would lose offsets.
    """
    try:
        if len(key) >= TYPE_BYTES and int.from_bytes(key[:TYPE_BYTES], 'big') not in VALUE_CLASSES:
            return None
        named: Any = decode_row_key(OFFSETS_TOPIC, key)
        found: Any = None if value is None else decode_row_value(VALUE_CLASSES[named.row_type], value)
    except (RowError, TypeError) as error:
        raise CorruptLogError(f'{OFFSETS_TOPIC}: the row at offset {log_offset} cannot be read: {error}') from error
    if isinstance(named, GroupMetadataKey):
        return GroupRow(named.group, found)
    committed = None
    if isinstance(found, LegacyOffsetCommitValue):
        committed = CommittedOffset(found.offset, -1, found.metadata, found.commit_timestamp, log_offset=log_offset)
    elif found is not None:
        committed = CommittedOffset(
            found.offset,
            found.leader_epoch,
            found.metadata,
            found.commit_timestamp,
            None if found.expire_timestamp == -1 else found.expire_timestamp,
            found.topic_id,
            log_offset,
        )
    return OffsetRow(OffsetKey(named.group, named.topic, named.partition), committed)


def row_bytes(row: Row) -> int:
    """What the row takes in a batch, or a little more."""
    key, value = row
    return len(key) + len(value or b'') + 32


def group_value(group: ClassicGroup, assignments: Mapping[str, bytes]) -> Any:
    """The row that keeps the group's generation, with these assignments by member id; a member without one gets
    none."""
    return GroupMetadataValue(
        protocol_type=group.protocol_type or '',
        generation=group.generation,
        protocol=group.protocol_name,
        leader=group.leader_id,
        current_state_timestamp=-1 if group.state_since_ms is None else group.state_since_ms,
        members=[
            GroupMetadataValue.MemberMetadata(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                rebalance_timeout=member.rebalance_timeout_ms,
                session_timeout=member.session_timeout_ms,
                subscription=member.metadata(group.protocol_name),
                assignment=assignments.get(member.member_id, b''),
            )
            for member in group.members.values()
        ],
    )


def restore_group(group_id: str, value: Any) -> ClassicGroup:
    """The group that a row describes: Stable with its members, or Empty."""
    group = ClassicGroup(
        group_id,
        state_since_ms=None if value.current_state_timestamp == -1 else value.current_state_timestamp,
        state=GroupState.STABLE if value.members else GroupState.EMPTY,
        generation=value.generation,
        protocol_type=value.protocol_type or None,
        protocol_name=value.protocol,
    )
    for row in value.members:
        group.add(
            Member(
                row.member_id,
                row.group_instance_id,
                row.client_id,
                row.client_host,
                # Version 0 has none: the session timeout stood for both.
                row.rebalance_timeout or row.session_timeout,
                row.session_timeout,
                [(value.protocol or '', row.subscription)],
                row.assignment,
            ),
            value.protocol_type,
        )
    group.leader_id = value.leader
    group.note_subscriptions(topics_of_subscription)
    return group


def topics_of_subscription(metadata: bytes) -> list[str]:
    """The topics of a consumer's metadata: int16 version, then a ConsumerProtocolSubscription, whose version 0 every
    later one starts with. ValueError when it is none."""
    try:
        subscription, _ = decode_prefix(ConsumerProtocolSubscription, metadata, 0, 2)
    except ProtocolError as error:
        raise ValueError(f'not the metadata of a consumer: {error}') from error
    return list(subscription.topics)
