"""ConsumerGroupHeartbeat (key 68), versions 0-1 (KIP-848).

Joins a consumer group, keeps a member alive, tells it its assignment, and leaves the group. Version 1 brings regular
expressions that the broker evaluates, and obliges the client to make its own member id.
"""
from __future__ import annotations

import base64
import uuid
from typing import Any

from kbroker.apis.authorization import refusal, require
from kbroker.apis.group_protocols import require_group_protocol
from kbroker.apis.long_answers import Pace, Steps
from kbroker.apis.request import Api, Request
from kbroker.completion import Callback
from kbroker.errors import ErrorCode, KafkaError
from kbroker.group.heartbeat import JOIN_EPOCH, LEAVE_EPOCH, LEAVE_FOR_A_WHILE_EPOCH, Call
from kbroker.protocol.api_keys import ApiKey
from kbroker.security.acl_codes import Operation, ResourceType

NAMES_AT_ONCE = 64
MOST_NAMES = 10_000
"""The most topics that a member may name: they are sorted and counted in one part, which takes less than 10 ms."""
NO_TIMEOUT = -1
DESCRIBE, TOPIC = Operation.DESCRIBE, ResourceType.TOPIC
READ, GROUP = Operation.READ, ResourceType.GROUP


def handle(request: Request, body: Any) -> Steps | None:
    require_group_protocol(request, 'consumer')
    require(request, READ, GROUP, body.group_id)
    names = body.subscribed_topic_names
    if names and len(names) > MOST_NAMES:
        raise invalid(f'found {len(names)} topics, expected at most {MOST_NAMES}')
    if names and (len(names) > NAMES_AT_ONCE or request.access is not None):
        return read_names(request, body)
    submit(request, body, None if names is None else frozenset(names))
    return None


def read_names(request: Request, body: Any) -> Steps:
    """Check the right to each topic that a long subscription names, in parts."""
    pace, names = Pace(), set()
    for name in body.subscribed_topic_names:
        if name not in names and not request.may(DESCRIBE, TOPIC, name):
            raise refusal(TOPIC)
        names.add(name)
        if pace.spend():
            yield
    submit(request, body, frozenset(names))


def submit(request: Request, body: Any, names: frozenset[str] | None) -> None:
    check_fields(body, request.version, request.node.config.group_consumer_assignors)
    if not body.member_id and body.member_epoch == JOIN_EPOCH:
        body.member_id = new_member_id()

    def done(error: KafkaError | None, response: Any) -> None:
        if error is not None:
            response = API.failure(body, error.code, str(error), request.version)
        request.reply(response)

    def may_describe(name: str) -> bool:
        return request.may(DESCRIBE, TOPIC, name, quiet=True)

    # The slash is how Java writes an address without a host name: members carry it in answers and in the offsets topic.
    call = Call(body, names, request.client_id or '', f'/{request.client_host}', may_describe)
    request.node.groups.consumer_heartbeat(call, Callback(done))


def new_member_id() -> str:
    """Return a UUID as Kafka writes it."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b'=').decode()


def check_fields(body: Any, version: int, assignors: list[str]) -> None:
    """INVALID_REQUEST, UNSUPPORTED_ASSIGNOR."""
    epoch = body.member_epoch
    if not body.member_id and (version >= 1 or epoch > JOIN_EPOCH or epoch == LEAVE_EPOCH):
        raise invalid("MemberId can't be empty.")
    for value, name in ((body.group_id, 'GroupId'), (body.instance_id, 'InstanceId'), (body.rack_id, 'RackId')):
        if value is not None and not value.strip():
            raise invalid(f"{name} can't be empty.")
    if epoch == JOIN_EPOCH:
        check_join(body)
    elif epoch == LEAVE_FOR_A_WHILE_EPOCH and body.instance_id is None:
        raise invalid("InstanceId can't be null.")
    elif epoch < LEAVE_FOR_A_WHILE_EPOCH:
        raise invalid(f'MemberEpoch is {epoch}, but must be greater than or equal to {LEAVE_FOR_A_WHILE_EPOCH}.')
    if body.server_assignor is not None and body.server_assignor not in assignors:
        raise KafkaError(ErrorCode.UNSUPPORTED_ASSIGNOR,
                         f'ServerAssignor {body.server_assignor} is not supported. Supported assignors: '
                         f'{", ".join(assignors)}.')


def check_join(body: Any) -> None:
    """INVALID_REQUEST."""
    if body.rebalance_timeout_ms == NO_TIMEOUT:
        raise invalid('RebalanceTimeoutMs must be provided in first request.')
    if body.topic_partitions is None or body.topic_partitions:
        raise invalid('TopicPartitions must be empty when (re-)joining.')
    if body.subscribed_topic_names is None and body.subscribed_topic_regex is None:
        raise invalid('Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.')


def invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


API = Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, 0, 1, handle)
