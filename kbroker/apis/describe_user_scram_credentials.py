"""DescribeUserScramCredentials (key 50), version 0 (KIP-554): return the SCRAM mechanisms and iterations of users. An
answer never has a key. A null or empty list of users asks for all users. A user without a credential gets
RESOURCE_NOT_FOUND, and one that the request repeats gets DUPLICATE_RESOURCE.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.long_answers import Pace, Steps, counted, each
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import DescribeUserScramCredentialsResponse as Response
from kbroker.security.acl_codes import Operation, ResourceType

Result = Response.DescribeUserScramCredentialsResult


def handle(request: Request, body: Any) -> Steps:
    require(request, Operation.DESCRIBE, ResourceType.CLUSTER)
    pace = Pace()
    times = yield from counted((user.name for user in body.users or ()), pace)
    infos: dict[str, list[Any]] = {}
    for (name, mechanism), record in sorted(request.node.metadata.image.scram_credentials.items()):
        if not times or name in times:
            infos.setdefault(name, []).append(Response.CredentialInfo(
                mechanism=mechanism, iterations=record.iterations))
        if pace.spend():
            yield
    results = []
    for name in times or infos:
        results.append(result(name, times.get(name, 1), infos.get(name, [])))
        if pace.spend():
            yield
    return Response(error_code=0, error_message='', results=results)


def result(name: str, times: int, infos: list[Any]) -> Any:
    if times > 1:
        return failed(name, ErrorCode.DUPLICATE_RESOURCE,
                      f'Cannot describe SCRAM credentials for the same user twice in a single request: {name}')
    if not infos:
        return failed(name, ErrorCode.RESOURCE_NOT_FOUND,
                      f'Attempt to describe a user credential that does not exist: {name}')
    return Result(user=name, error_code=0, error_message='', credential_infos=infos)


def failed(name: str, code: ErrorCode, message: str) -> Any:
    return Result(user=name, error_code=int(code), error_message=message, credential_infos=[])


def error_response(body: Any, code: ErrorCode, message: str, _version: int) -> Steps:
    results = yield from each(body.users or (), lambda _: failed('', code, message), Pace())
    return Response(error_code=int(code), error_message=message, results=results)


API = Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, handle, error_response)
"""Return the response to a request that failed as a whole. Unlike this broker, Kafka 4.3 sends no answer if the client
may not describe all users."""
