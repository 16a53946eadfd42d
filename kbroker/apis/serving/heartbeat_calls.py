"""The common part of the heartbeats of members: the topics that they name, the client, and the answer."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kbroker.apis.serving.authorization import refusal
from kbroker.apis.serving.long_answers import Pace, Steps
from kbroker.apis.serving.request import Request
from kbroker.base.completion import Callback, Completion
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.group.modern.heartbeat import Call
from kbroker.security.acl_codes import Operation, ResourceType

NAMES_AT_ONCE = 64
MOST_NAMES = 10_000
"""The most topics that a member may name: they are sorted and counted in one part, which takes less than 10 ms."""
DESCRIBE, TOPIC = Operation.DESCRIBE, ResourceType.TOPIC

Submit = Callable[[Request, Any, 'frozenset[str] | None'], None]


def with_names(request: Request, body: Any, submit: Submit) -> Steps | None:
    """Call `submit` with the topics that the request names, in parts if they are many or need a right each.

    Raises KafkaError INVALID_REQUEST, TOPIC_AUTHORIZATION_FAILED.
    """
    names = body.subscribed_topic_names
    if names and len(names) > MOST_NAMES:
        raise invalid(f'found {len(names)} topics, expected at most {MOST_NAMES}')
    if names and (len(names) > NAMES_AT_ONCE or request.access is not None):
        return _read_names(request, body, submit)
    submit(request, body, None if names is None else frozenset(names))
    return None


def _read_names(request: Request, body: Any, submit: Submit) -> Steps:
    pace, names = Pace(), set()
    for name in body.subscribed_topic_names:
        if name not in names and not request.may(DESCRIBE, TOPIC, name):
            raise refusal(TOPIC)
        names.add(name)
        if pace.spend():
            yield
    submit(request, body, frozenset(names))


def call_of(request: Request, body: Any, names: frozenset[str] | None) -> Call:
    def may_describe(name: str) -> bool:
        return request.may(DESCRIBE, TOPIC, name, quiet=True)

    # The slash is how Java writes an address without a host name: members carry it in answers and in the offsets topic.
    return Call(body, names, request.client_id or '', f'/{request.client_host}', may_describe)


def reply_to(request: Request, body: Any) -> Completion:
    """Return a completion that answers the request with a response or with an error."""
    def done(error: KafkaError | None, response: Any) -> None:
        if error is not None:
            response = request.api.failure(body, error.code, str(error), request.version)
        request.reply(response)

    return Callback(done)


def check_given(**values: str | None) -> None:
    """Raise KafkaError INVALID_REQUEST for a value that is given, but blank."""
    for name, value in values.items():
        if value is not None and not value.strip():
            raise invalid(f'found a blank {name}, expected none or a name')


def invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
