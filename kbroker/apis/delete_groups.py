"""DeleteGroups (key 42), versions 0-3.

Deletes groups without members, and their offsets. A group that has members gets NON_EMPTY_GROUP. A group that does not
exist gets GROUP_ID_NOT_FOUND. The answer is sent when all tombstones are durable. Version 3 adds a message to each
result. It is always null: Kafka's brokers write one only if a plugin refuses to delete the topology description of a
streams group (KIP-1331), and this broker has no such plugin.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.long_answers import Pace, Steps
from kbroker.apis.serving.request import Api, Request, answering
from kbroker.base.completion import Callback
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.group.shard import coordinator_error
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import DeleteGroupsResponse
from kbroker.security.acl_codes import Operation, ResourceType

ROWS_A_GROUP = 8
"""The deletion of a group takes about as long as the creation of this many elements of an answer."""


def handle(request: Request, body: Any) -> Steps:
    pace = Pace()
    results: dict[str, ErrorCode] = {}
    awaited: set[str] = set()
    for group_id in body.groups_names:
        results[group_id] = ErrorCode.NONE
        awaited.add(group_id)
        if pace.spend():
            yield

    def done(group_id: str, error: KafkaError | None, result: None) -> None:
        if error is not None:
            results[group_id] = coordinator_error(error).code
        awaited.remove(group_id)
        if not awaited:
            request.start_work(answering(request, body, respond(results)))

    if not results:
        return (yield from respond(results))
    for group_id in list(results):
        if pace.spend(ROWS_A_GROUP):
            yield
        try:
            require(request, Operation.DELETE, ResourceType.GROUP, group_id)
            request.node.groups.delete_group(group_id, Callback(partial(done, group_id)))
        except KafkaError as error:
            done(group_id, error, None)
    return None


def respond(results: dict[str, ErrorCode]) -> Steps:
    pace = Pace()
    response = DeleteGroupsResponse()
    for group_id, code in results.items():
        if pace.spend():
            yield
        response.results.append(DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=code))
    return response


def error_response(body: Any, code: ErrorCode, message: str, version: int) -> Any:
    return DeleteGroupsResponse(results=[
        DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=code)
        for group_id in dict.fromkeys(body.groups_names)
    ])


API = Api(ApiKey.DELETE_GROUPS, 0, 3, handle, error_response)
