"""DeleteGroups (key 42), versions 0-2.

Deletes groups without members, and their offsets: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND for each that cannot be. Answered
when the tombstones of all are durable.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kbroker.apis.request import Api, Request
from kbroker.completion import Callback
from kbroker.errors import ErrorCode, KafkaError
from kbroker.group.shard import coordinator_error
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import DeleteGroupsResponse


def handle(request: Request, body: Any) -> None:
    results = {group_id: ErrorCode.NONE for group_id in body.groups_names}
    awaited = set(results)

    def done(group_id: str, error: KafkaError | None, result: None) -> None:
        if error is not None:
            results[group_id] = coordinator_error(error).code
        awaited.remove(group_id)
        if not awaited:
            request.reply(respond(results))

    if not results:
        request.reply(respond(results))
    for group_id in list(results):
        try:
            request.node.groups.delete_group(group_id, Callback(partial(done, group_id)))
        except KafkaError as error:
            done(group_id, error, None)


def respond(results: dict[str, ErrorCode]) -> Any:
    return DeleteGroupsResponse(
        results=[
            DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=code)
            for group_id, code in results.items()
        ]
    )


def error_response(body: Any, code: ErrorCode, message: str, version: int) -> Any:
    return respond(dict.fromkeys(body.groups_names, code))


API = Api(ApiKey.DELETE_GROUPS, 0, 2, handle, error_response)
