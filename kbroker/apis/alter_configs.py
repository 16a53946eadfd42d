"""AlterConfigs (key 33), versions 0-2: replace all configs of a resource: what is not named gets its default again.

A resource that is named twice is refused once: the order would decide.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.config_resources import change, distinct_resources
from kbroker.apis.long_answers import Pace, Steps
from kbroker.apis.request import Api, Request
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import AlterConfigsResponse

ResourceResponse = AlterConfigsResponse.AlterConfigsResourceResponse


def handle(request: Request, body: Any) -> Steps:
    """Change one resource after the other, in a turn of `metadata.turns`.

    Other clients are served after each, because it is a write to the disk.
    """
    yield from request.node.metadata.turns.take()
    try:
        return (yield from change_all(request, body))
    finally:
        request.node.metadata.turns.end()


def change_all(request: Request, body: Any) -> Steps:
    pace = Pace()
    resources = yield from distinct_resources(body.resources, pace)
    response = AlterConfigsResponse(responses=[])
    for (resource_type, name), resource in resources.items():
        result = ResourceResponse(resource_type=resource_type, resource_name=name)
        response.responses.append(result)
        try:
            if resource is None:
                raise KafkaError(ErrorCode.INVALID_REQUEST, 'the resource is named twice')
            wanted: dict[str, str] = {}
            for config in resource.configs:
                if config.value is None or config.name in wanted:
                    problem = 'has no value' if config.value is None else 'is named twice'
                    raise KafkaError(ErrorCode.INVALID_REQUEST, f'{config.name} {problem}')
                wanted[config.name] = config.value
                if pace.spend():
                    yield
            yield from change(request.node, resource_type, name, wanted, body.validate_only)
        except KafkaError as error:
            result.error_code = int(error.code)
            result.error_message = str(error)
        if len(response.responses) < len(resources):
            yield
    return response


def error_response(body: Any, code: ErrorCode, message: str, _version: int) -> Any:
    return AlterConfigsResponse(responses=[
        ResourceResponse(error_code=int(code), error_message=message, resource_type=resource.resource_type,
                         resource_name=resource.resource_name) for resource in body.resources])


API = Api(ApiKey.ALTER_CONFIGS, 0, 2, handle, error_response)
