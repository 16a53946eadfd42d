"""The common part of the heartbeats of members: the rights, the topics in the request, the client, and the reply."""
from __future__ import annotations

from typing import Any

from kbroker.apis.serving.authorization import refusal, require
from kbroker.apis.serving.group_protocols import require_group_protocol
from kbroker.apis.serving.long_answers import Pace, Steps
from kbroker.apis.serving.request import Request
from kbroker.base.completion import Callback, Completion
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.group.modern.heartbeat import Call
from kbroker.security.acl_codes import Operation, ResourceType

MOST_NAMES = 10_000
"""The most topics in a request: they are sorted and counted in one part, which takes less than 10 ms."""
DESCRIBE, TOPIC = Operation.DESCRIBE, ResourceType.TOPIC


def check_rights(request: Request, body: Any, kind: str) -> None:
    """Raise UNSUPPORTED_VERSION unless groups of this kind are served, GROUP_AUTHORIZATION_FAILED without a right."""
    require_group_protocol(request, kind)
    require(request, Operation.READ, ResourceType.GROUP, body.group_id)


def read_names(request: Request, body: Any) -> Steps:
    """Return the topics in the request, None without a list of them. Check the client's right to each, in parts.

    Raises INVALID_REQUEST, TOPIC_AUTHORIZATION_FAILED.
    """
    if body.subscribed_topic_names is None:
        return None
    if len(body.subscribed_topic_names) > MOST_NAMES:
        raise invalid(f'found {len(body.subscribed_topic_names)} topics, expected at most {MOST_NAMES}')
    pace, names = Pace(), set()
    for name in body.subscribed_topic_names:
        if name not in names and request.access is not None and not request.may(DESCRIBE, TOPIC, name):
            raise refusal(TOPIC)
        names.add(name)
        if pace.spend():
            yield
    return frozenset(names)


def call_of(request: Request, body: Any, names: frozenset[str] | None) -> Call:
    """Return the heartbeat of this request, with its client."""
    def may_describe(name: str) -> bool:
        return request.may(DESCRIBE, TOPIC, name, quiet=True)

    # The slash is how Java writes an address without a host name: members carry it in answers and in the offsets topic.
    return Call(body, names, request.client_id or '', f'/{request.client_host}', may_describe)


def reply_to(request: Request, body: Any) -> Completion:
    """Return a completion that replies to the request with a response or with an error."""
    def done(error: KafkaError | None, response: Any) -> None:
        if error is not None:
            response = request.api.failure(body, error.code, str(error), request.version)
        request.reply(response)

    return Callback(done)


def check_given(**values: str | None) -> None:
    """Raise INVALID_REQUEST for a value that is given but blank."""
    for name, value in values.items():
        if value is not None and not value.strip():
            raise invalid(f'found a blank {name}, expected none or a name')


def invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
