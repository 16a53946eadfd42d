"""The steps from a decoded heartbeat that may change its group to the reply.

`idle_heartbeat` answers the heartbeats that change nothing. A `HeartbeatKind` has the functions that differ between
consumer, share and streams groups.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kbroker.apis.serving.authorization import refusal, require
from kbroker.apis.serving.group_protocols import require_group_protocol
from kbroker.apis.serving.long_answers import Pace, Steps, call_handler
from kbroker.apis.serving.request import Request
from kbroker.base.completion import Callback
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.group.modern.heartbeat import Call
from kbroker.security.acl_codes import Operation, ResourceType

MOST_NAMES = 10_000
"""The most topics in a request. Sorting and counting them is not divided into parts; for 10,000 topics, it takes less
than 10 ms."""
DESCRIBE, TOPIC = Operation.DESCRIBE, ResourceType.TOPIC


def unchanged(_request: Request, _body: Any, reply: Any) -> Any:
    """Return the coordinator's reply unchanged, because it is already the response."""
    return reply


class HeartbeatKind(NamedTuple):
    """The functions of a heartbeat's API that depend on the kind of group."""

    group_type: str
    check: Callable[[Request, Any], Steps | None]
    """Raise KafkaError if fields of the request contradict each other. The function may be a generator function, which
    checks the fields in parts."""
    response: Callable[[Request, Any, Any], Any] = unchanged
    """Return the response, made from the request, its body and the coordinator's reply."""


def serve(kind: HeartbeatKind, request: Request, body: Any) -> Steps:
    """Check a heartbeat, and pass it to the group coordinator. Reply when the change is durable.

    Errors: UNSUPPORTED_VERSION, GROUP_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED, INVALID_REQUEST,
    INVALID_GROUP_ID, NOT_COORDINATOR, and the errors of the kind's `check`.
    """
    require_group_protocol(request, kind.group_type)
    require(request, Operation.READ, ResourceType.GROUP, body.group_id)
    names = yield from read_names(request, getattr(body, 'subscribed_topic_names', None))
    yield from call_handler(kind.check, request, body)

    def may_describe(name: str) -> bool:
        return request.may(DESCRIBE, TOPIC, name, quiet=True)

    def done(error: KafkaError | None, reply: Any) -> None:
        if error is None:
            request.reply(kind.response(request, body, reply))
        else:
            request.reply(request.api.failure(body, error.code, str(error), request.version))

    # Java writes an IP address that has no host name as `/` and the address. Responses and rows have the client's host
    # in this form.
    call = Call(body, names, request.client_id or '', f'/{request.client_host}', may_describe,
                version=request.version)
    request.node.groups.heartbeats(kind.group_type, body.group_id).submit(call, Callback(done))


def read_names(request: Request, listed: list[str] | None) -> Steps:
    """Return the topics that the request lists; None if it has no list. Check in parts that the client may describe
    each topic.

    Raise INVALID_REQUEST for more than MOST_NAMES topics, TOPIC_AUTHORIZATION_FAILED if the client may not describe all
    of them.
    """
    if listed is None:
        return None
    if len(listed) > MOST_NAMES:
        raise invalid(f'found {len(listed)} topics, expected at most {MOST_NAMES}')
    pace, names = Pace(), set()
    for name in listed:
        if name not in names and request.access is not None and not request.may(DESCRIBE, TOPIC, name):
            raise refusal(TOPIC)
        names.add(name)
        if pace.spend():
            yield
    return frozenset(names)


def check_given(**values: str | None) -> None:
    """Raise INVALID_REQUEST if a value is blank. None is allowed."""
    for name, value in values.items():
        if value is not None and not value.strip():
            raise invalid(f'found a blank {name}, expected none or a name')


def invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
