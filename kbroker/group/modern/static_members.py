"""Static members of consumer and streams groups. A static member has an instance id (`group.instance.id`), which stays
the same when the client restarts under a new member id.

A static member that leaves temporarily keeps its partitions or tasks until its session ends. The next member id that
joins with the same instance id takes them over.
"""
from __future__ import annotations

from typing import Any

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.lean_dataclasses import replace
from kbroker.group.modern.group import M, ModernGroup
from kbroker.group.modern.heartbeat import JOIN_EPOCH, AnyGroup, Call, find_dynamic, unknown_member


def find_member(group: AnyGroup, call: Call) -> Any:
    """Return the member that sent the request; None for a new member. Find a static member that returns by its instance
    id.

    Raise UNKNOWN_MEMBER_ID if the group does not have the member. For a static member, raise FENCED_INSTANCE_ID if
    another member id has its instance id, UNRELEASED_INSTANCE_ID if it joins and the other member has not left.
    """
    request = call.request
    if request.instance_id is None:
        return find_dynamic(group, call)
    if request.member_epoch != JOIN_EPOCH:
        return static_member(group, request)
    known_id = group.instances.get(request.instance_id)
    if known_id is None:
        return group.members.get(request.member_id)
    known = group.members[known_id]
    if not known.may_be_succeeded:
        raise KafkaError(ErrorCode.UNRELEASED_INSTANCE_ID,
                         f'instance {request.instance_id} belongs to {known_id}, which has not left')
    return known


def static_member(group: ModernGroup[M, Any], request: Any) -> M:
    """Return the static member that sent the request. Raise UNKNOWN_MEMBER_ID if the group does not have its instance
    id, FENCED_INSTANCE_ID if another member id has this instance id."""
    known_id = group.instances.get(request.instance_id)
    if known_id is None:
        raise unknown_member(group, request.member_id)
    if known_id != request.member_id:
        raise KafkaError(ErrorCode.FENCED_INSTANCE_ID,
                         f'instance {request.instance_id} belongs to {known_id}, not {request.member_id}')
    return group.members[known_id]


def successor(before: M, request: Any) -> M:
    """Return the member as it continues after the request. A static member that joins gets the member id of the
    request, if the member `before` may be succeeded. Any other member is returned unchanged."""
    if request.instance_id is None or request.member_epoch != JOIN_EPOCH or not before.may_be_succeeded:
        return before
    return renamed(before, request.member_id)


def renamed(before: M, member_id: str) -> M:
    """Return a static member under a new member id. Its member epoch is reset to 0, because the client does not know
    its assignment."""
    return replace(before, member_id=member_id, held=replace(before.held, epoch=0, previous_epoch=0))
