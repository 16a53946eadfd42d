"""CreateAcls (key 30), versions 1-3 (KIP-140): create ACLs.

All new ACLs of a request are one batch of the metadata log. The creation of an ACL that exists already, or that the
request repeats, succeeds without a second record. An invalid ACL is refused; the valid ACLs of the request are created
nevertheless.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kbroker.apis.serving.acls import authorizer_for, check_codes
from kbroker.apis.serving.long_answers import Pace, Steps
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.metadata.batches import MAX_RECORDS
from kbroker.metadata.directory import random_uuid
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import AccessControlEntryRecord, CreateAclsResponse
from kbroker.security.acl_codes import Operation
from kbroker.security.acl_index import MOST_ACL_BYTES, Entry, identity_of, size_of

if TYPE_CHECKING:
    from kbroker.security.authorizer import Authorizer

Result = CreateAclsResponse.AclCreationResult


def handle(request: Request, body: Any) -> Steps:
    pace = Pace()
    for row in body.creations:
        check_codes(*codes_of(row))
        if pace.spend():
            yield
    authorizer = authorizer_for(request, Operation.ALTER)
    results: list[Any] = []
    valid: dict[Any, Entry] = {}
    for row in body.creations:
        try:
            entry = entry_of(row, request.node.metadata.image.metadata_version)
            valid.setdefault(identity_of(entry), entry)
            results.append(Result(error_message=''))
        except KafkaError as error:
            results.append(failed(error.code, str(error)))
        if pace.spend():
            yield
    yield from create(request.node, authorizer, list(valid.values()), pace)
    return CreateAclsResponse(results=results)


def create(node: Any, authorizer: Authorizer, entries: list[Entry], pace: Pace) -> Steps:
    """Write the entries that do not exist yet, and put them into force. Raise KafkaError POLICY_VIOLATION if there are
    too many ACLs."""
    yield from node.metadata.commits.turns.take()
    try:
        yield from node.acls.settle()
        new, new_bytes = [], 0
        for entry in entries:
            if authorizer.index.find_equal(entry) is None:
                new.append(entry)
                new_bytes += size_of(entry)
            if pace.spend():
                yield
        if len(new) > MAX_RECORDS:
            raise KafkaError(ErrorCode.POLICY_VIOLATION,
                             f'found {len(new)} new ACLs in a request, expected at most {MAX_RECORDS}')
        if authorizer.index.held_bytes + new_bytes > MOST_ACL_BYTES:
            raise KafkaError(ErrorCode.POLICY_VIOLATION,
                             f'all ACLs would take more than {MOST_ACL_BYTES} bytes of memory')
        yield from node.metadata.commits.write(new)
        yield from node.acls.settle()
    finally:
        node.metadata.commits.turns.end()


def codes_of(row: Any) -> tuple[int, int, int, int]:
    return row.resource_type, row.resource_pattern_type, row.operation, row.permission_type


def entry_of(row: Any, metadata_version: int) -> Entry:
    """Return the ACL that an element of the request describes. Raise the errors of `check_new_acl`."""
    from kbroker.metadata.access_control import check_new_acl  # no broker without ACLs needs it

    entry = AccessControlEntryRecord(
        id=random_uuid(), resource_type=row.resource_type, resource_name=row.resource_name,
        pattern_type=row.resource_pattern_type, principal=row.principal, host=row.host, operation=row.operation,
        permission_type=row.permission_type)
    check_new_acl(entry, metadata_version)
    return entry


def failed(code: ErrorCode, message: str) -> Any:
    return Result(error_code=int(code), error_message=message)


def error_response(body: Any, code: ErrorCode, message: str, _version: int) -> Any:
    return CreateAclsResponse(results=[failed(code, message)] * len(body.creations))


API = Api(ApiKey.CREATE_ACLS, 1, 3, handle, error_response)
