"""AlterConfigs (key 33), versions 0-2: replace all configs of a resource. A config that the request does not name is
reset to its default. A resource that the request names twice is refused, because the result would depend on the order.
The answer has one result for this resource.
"""
from __future__ import annotations

from typing import Any

from kbroker.apis.serving.config_resources import change_each, refuse_each, require_alter
from kbroker.apis.serving.long_answers import Pace, Steps
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.metadata.changes import check_batch_length
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import AlterConfigsResponse

ResourceResponse = AlterConfigsResponse.AlterConfigsResourceResponse


def handle(request: Request, body: Any) -> Steps:
    results = yield from change_each(request, body, ResourceResponse, given_configs)
    return AlterConfigsResponse(responses=results)


def given_configs(request: Request, resource: Any, pace: Pace) -> Steps:
    """Return the configs that the request gives for a resource.

    Raise KafkaError INVALID_REQUEST for a config that is named twice or lacks its value, POLICY_VIOLATION for too many
    configs, or the authorization error if the client may not alter them.
    """
    check_batch_length(len(resource.configs), 'configs')
    wanted: dict[str, str] = {}
    for config in resource.configs:
        if config.value is None or config.name in wanted:
            problem = 'has no value' if config.value is None else 'is named twice'
            raise KafkaError(ErrorCode.INVALID_REQUEST, f'{config.name} {problem}')
        wanted[config.name] = config.value
        if pace.spend():
            yield
    require_alter(request, resource)
    return wanted


def error_response(body: Any, code: ErrorCode, message: str, _version: int) -> Steps:
    return AlterConfigsResponse(responses=(yield from refuse_each(body, ResourceResponse, code, message)))


API = Api(ApiKey.ALTER_CONFIGS, 0, 2, handle, error_response)
