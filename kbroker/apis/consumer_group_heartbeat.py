"""ConsumerGroupHeartbeat (key 68), versions 0-1 (KIP-848).

With this request, a member joins a consumer group, stays in the group, gets its assignment, or leaves. In version 0,
the broker makes the id of a new member; in version 1, the client makes it. Version 1 adds regular expressions for
topics, which the broker evaluates.
"""
from __future__ import annotations

import base64
import uuid
from typing import Any

from kbroker.apis.serving.heartbeat_calls import HeartbeatKind, check_given, invalid
from kbroker.apis.serving.idle_heartbeat import HeartbeatHandler
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.group.modern.group import LEAVE_FOR_A_WHILE_EPOCH
from kbroker.group.modern.heartbeat import JOIN_EPOCH, LEAVE_EPOCH
from kbroker.protocol.api_keys import ApiKey

NO_TIMEOUT = -1


def check(request: Request, body: Any) -> None:
    """Check the fields of the request. Make a member id if a client of version 0 joins without one."""
    check_fields(body, request.version, request.node.config.group_consumer_assignors)
    if not body.member_id and body.member_epoch == JOIN_EPOCH:
        body.member_id = new_member_id()


def new_member_id() -> str:
    """Return a new UUID in Kafka's text form for UUIDs."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b'=').decode()


def check_fields(body: Any, version: int, assignors: list[str]) -> None:
    """Raise INVALID_REQUEST if fields contradict each other. Raise UNSUPPORTED_ASSIGNOR if `assignors`, the names of
    the broker's assignors, do not include the requested one."""
    epoch = body.member_epoch
    if not body.member_id and (version >= 1 or epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH):
        raise invalid(f'found no member id, which version {version} needs with member epoch {epoch}')
    check_given(GroupId=body.group_id, InstanceId=body.instance_id, RackId=body.rack_id)
    if epoch == JOIN_EPOCH:
        check_join(body)
    elif epoch == LEAVE_FOR_A_WHILE_EPOCH and body.instance_id is None:
        raise invalid(f'found member epoch {epoch} without an instance id: it is for static members')
    elif epoch < LEAVE_FOR_A_WHILE_EPOCH:
        raise invalid(f'found member epoch {epoch}, expected {LEAVE_FOR_A_WHILE_EPOCH} or more')
    if body.server_assignor is not None and body.server_assignor not in assignors:
        raise KafkaError(ErrorCode.UNSUPPORTED_ASSIGNOR,
                         f'found assignor {body.server_assignor!r}, expected one of {", ".join(assignors)}')


def check_join(body: Any) -> None:
    """Raise INVALID_REQUEST unless the request has all the fields that a member must send to join."""
    if body.rebalance_timeout_ms == NO_TIMEOUT:
        raise invalid('found a member that joins without a rebalance timeout')
    if body.topic_partitions is None or body.topic_partitions:
        raise invalid('expected an empty list of owned partitions of a member that joins')
    if body.subscribed_topic_names is None and body.subscribed_topic_regex is None:
        raise invalid('expected topics or a regular expression of a member that joins, found neither')


KIND = HeartbeatKind('consumer', check)
API = Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, HeartbeatHandler(KIND, 'ConsumerGroupHeartbeatRequest'))
