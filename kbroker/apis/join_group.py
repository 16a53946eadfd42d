"""JoinGroup (key 11), versions 0-9.

The request is parked until all members have joined the rebalance. Version 0 has no rebalance timeout. From version 4
on, a new dynamic member first gets MEMBER_ID_REQUIRED with its member id, and joins with a second request (KIP-394).
Version 5 adds static membership (KIP-345). In versions 0-6, the protocol name in the answer may not be null. Version 8
adds the client's reason for joining (KIP-800). From version 9 on, the answer can tell a static leader that restarted
that no new assignment is needed (KIP-814).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.request import Api, Request
from kbroker.base.completion import Callback
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import JoinGroupResponse
from kbroker.security.acl_codes import Operation, ResourceType

READ, GROUP = Operation.READ, ResourceType.GROUP
WITHOUT_MEMBER_ID = ErrorCode.GROUP_MAX_SIZE_REACHED, ErrorCode.GROUP_AUTHORIZATION_FAILED


def handle(request: Request, body: Any) -> None:
    require(request, READ, GROUP, body.group_id)
    # Java prints an address without a host name with a leading slash. Answers and rows of `__consumer_offsets` have the
    # host of a member in this form.
    request.node.groups.join(
        body, request.version, request.client_id or '', f'/{request.client_host}',
        Callback(partial(answer, request, body)))


def answer(request: Request, body: Any, error: KafkaError | None, response: Any) -> None:
    if error is not None:
        response = error_response(body, error.code, str(error), request.version)
    request.reply(fit(response, request.version))


def fit(response: Any, version: int) -> Any:
    """Return the response with the protocol name that the version requires. An error response has none: its protocol
    name is null, or, in versions 0-6, empty."""
    if response.error_code:
        response.protocol_name = None
    if version < 7 and response.protocol_name is None:
        response.protocol_name = ''
    return response


def error_response(body: Any, code: ErrorCode, message: str, version: int) -> Any:
    member_id = '' if code in WITHOUT_MEMBER_ID else body.member_id
    return fit(JoinGroupResponse(error_code=code, member_id=member_id), version)


API = Api(ApiKey.JOIN_GROUP, 0, 9, handle, error_response)
