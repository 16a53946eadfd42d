"""DeleteAcls (key 31), versions 1-3 (KIP-140): delete the ACLs that match filters.

All deletions of a request are one batch of the metadata log. An ACL that matches two filters is in the results of both.
A filter that no ACL matches succeeds.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.serving.acls import authorizer_for, filter_of, matching
from kbroker.apis.serving.long_answers import Pace, ReplyRoom, Steps
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.metadata.batches import MAX_RECORDS
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import DeleteAclsResponse, RemoveAccessControlEntryRecord
from kbroker.security.acl_codes import AclFilter, Operation
from kbroker.security.acl_index import Entry
from kbroker.security.acl_validation import LEAST_OF_A_FILTER, unknown_code

Result = DeleteAclsResponse.DeleteAclsFilterResult
Match = DeleteAclsResponse.DeleteAclsMatchingAcl


def handle(request: Request, body: Any) -> Steps:
    pace, room = Pace(), ReplyRoom()
    filters = []
    for row in body.filters:
        filters.append(filter_of(row))
        if pace.spend():
            yield
    authorizer = authorizer_for(request, Operation.ALTER)
    results: list[Any] = []
    known: dict[AclFilter, Any] = {}
    doomed: dict[bytes, Entry] = {}
    for wanted in filters:
        result = known.get(wanted)
        if result is not None:
            room.take(1 + len(result.matching_acls), 128 * len(result.matching_acls))
            room.check(ErrorCode.INVALID_REQUEST)
        elif (reason := unknown_code(codes_of(wanted), LEAST_OF_A_FILTER)) is not None:
            result = known[wanted] = failed(ErrorCode.INVALID_REQUEST, reason)
        else:
            result = known[wanted] = Result(error_message=None)
            for entry in (yield from matching(authorizer, wanted, pace, room)):
                doomed[entry.id] = entry
                result.matching_acls.append(match_of(entry))
                if pace.spend():
                    yield
        results.append(result)
        if pace.spend():
            yield
    if len(doomed) > MAX_RECORDS:
        raise KafkaError(ErrorCode.INVALID_REQUEST,
                         f'the filters match {len(doomed)} ACLs, expected at most {MAX_RECORDS}')
    yield from delete(request.node, doomed)
    return DeleteAclsResponse(filter_results=results)


def delete(node: Any, doomed: dict[bytes, Entry]) -> Steps:
    """Delete the entries that still exist. Create each record only when it is written."""
    yield from node.metadata.commits.turns.take()
    try:
        existing = node.metadata.image.access_control_entries
        yield from node.metadata.commits.write(RemoveAccessControlEntryRecord(id=entry_id) for entry_id in doomed
                                       if entry_id in existing)
        yield from node.acls.settle()
    finally:
        node.metadata.commits.turns.end()


def codes_of(wanted: AclFilter) -> tuple[int, int, int, int]:
    return wanted.resource_type, wanted.pattern_type, wanted.operation, wanted.permission_type


def match_of(entry: Entry) -> Any:
    return Match(error_message=None, resource_type=entry.resource_type, resource_name=entry.resource_name,
                 pattern_type=entry.pattern_type, principal=entry.principal, host=entry.host,
                 operation=entry.operation, permission_type=entry.permission_type)


def failed(code: ErrorCode, message: str) -> Any:
    return Result(error_code=int(code), error_message=message)


def error_response(body: Any, code: ErrorCode, message: str, _version: int) -> Any:
    return DeleteAclsResponse(filter_results=[failed(code, message)] * len(body.filters))


API = Api(ApiKey.DELETE_ACLS, 1, 3, handle, error_response)
