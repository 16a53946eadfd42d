"""AlterUserScramCredentials (key 51), version 0 (KIP-554): set and delete SCRAM credentials of users.

All changes of a request are one batch of the metadata log. The client sends the salted password. The broker derives and
stores the keys, and discards the salted password. As in Kafka, a user who is named twice gets DUPLICATE_RESOURCE, even
with two mechanisms, and none of this user's changes is made. A change takes effect at the user's next login.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.long_answers import Pace, Steps, counted, each
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.metadata.changes import check_batch_length
from kbroker.metadata.scram_records import (
    MOST_CREDENTIALS,
    SCRAM_SINCE,
    check_iterations,
    check_name,
    check_salt,
    check_salted_password,
    mechanism_name,
    record_of,
)
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import AlterUserScramCredentialsResponse as Response
from kbroker.protocol.messages import RemoveUserScramCredentialRecord
from kbroker.security.acl_codes import Operation, ResourceType

Result = Response.AlterUserScramCredentialsResult


def handle(request: Request, body: Any) -> Steps:
    require(request, Operation.ALTER, ResourceType.CLUSTER)
    check_batch_length(len(body.deletions) + len(body.upsertions), 'credentials')
    metadata, pace = request.node.metadata, Pace()
    yield from metadata.commits.turns.take()
    try:
        records: dict[str, Any] = {}
        errors: dict[str, KafkaError] = {}
        for is_deletion, row in changes(body):
            try:
                if row.name in errors:
                    continue
                if records.pop(row.name, None) is not None:
                    raise KafkaError(ErrorCode.DUPLICATE_RESOURCE,
                                     'A user credential cannot be altered twice in the same request')
                check_version(metadata.image)
                records[row.name] = deletion_of(row, metadata.image) if is_deletion else upsertion_of(row)
            except KafkaError as error:
                errors[row.name] = error.with_traceback(None)
            if pace.spend(8):       # the derivation of two keys
                yield
        check_room(metadata.image, records)
        yield from metadata.commits.write(list(records.values()))
    finally:
        metadata.commits.turns.end()
    results = yield from each(records, lambda name: Result(user=name, error_code=0, error_message=None), pace)
    results += yield from each(errors.items(), failed, pace)
    return Response(results=results)


def failed(user: tuple[str, KafkaError]) -> Any:
    name, error = user
    return Result(user=name, error_code=int(error.code), error_message=str(error))


def changes(body: Any) -> Iterator[tuple[bool, Any]]:
    for row in body.deletions:
        yield True, row
    for row in body.upsertions:
        yield False, row


def deletion_of(row: Any, image: Any) -> Any:
    """Return the record that deletes a credential. Raise KafkaError if the deletion is refused."""
    check_name(row.name)
    mechanism_name(row.mechanism)
    if (row.name, row.mechanism) not in image.scram_credentials:
        raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, 'Attempt to delete a user credential that does not exist')
    return RemoveUserScramCredentialRecord(name=row.name, mechanism=row.mechanism)


def upsertion_of(row: Any) -> Any:
    """Return the record that sets a credential. Raise KafkaError if the credential is refused."""
    from kbroker.security.scram import credential_of_salted_password  # slow to import, and seldom used

    check_name(row.name)
    mechanism = mechanism_name(row.mechanism)
    check_iterations(row.iterations)
    salt = bytes(row.salt)
    check_salt(salt)
    salted = bytes(row.salted_password)
    check_salted_password(salted)
    return record_of(row.name, mechanism, credential_of_salted_password(
        mechanism, salted, salt, row.iterations))


def check_version(image: Any) -> None:
    if image.metadata_version < SCRAM_SINCE:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION,
                         f'found metadata.version {image.metadata_version}, expected at least {SCRAM_SINCE}')


def check_room(image: Any, records: dict[str, Any]) -> None:
    if len(image.scram_credentials) + len(records) > MOST_CREDENTIALS:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f'there may be at most {MOST_CREDENTIALS} credentials')


def error_response(body: Any, code: ErrorCode, message: str, _version: int) -> Steps:
    pace = Pace()
    names = yield from counted((row.name for _, row in changes(body)), pace)
    results = yield from each(names, lambda name: Result(user=name, error_code=int(code), error_message=message), pace)
    return Response(results=results)


API = Api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, handle, error_response)
