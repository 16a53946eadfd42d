"""IncrementalAlterConfigs (key 44), versions 0-1 (KIP-339): set or delete single configs, or append elements to them or
subtract elements.

Only list configs can be appended to and subtracted from. A resource or a config that the request names twice is
refused, because the result would depend on the order.
"""
from __future__ import annotations

import enum
from typing import Any

from kbroker.apis.serving.config_resources import change_each, current, refuse_each, require_alter
from kbroker.apis.serving.long_answers import Pace, Steps
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.metadata.changes import check_batch_length
from kbroker.metadata.image import ResourceType
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import IncrementalAlterConfigsResponse
from kbroker.settings.group_resources import describe_group
from kbroker.settings.rows import Type
from kbroker.settings.topic_config import describe_topic

LIST_ELEMENTS = 200
"""A change of a list config counts as this many elements of work, because it reads all configs of the resource."""
ResourceResponse = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse


class Operation(enum.IntEnum):
    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


def handle(request: Request, body: Any) -> Steps:
    results = yield from change_each(request, body, ResourceResponse, changed_configs)
    return IncrementalAlterConfigsResponse(responses=results)


def changed_configs(request: Request, resource: Any, pace: Pace) -> Steps:
    yield from check_names(resource.configs, pace)
    require_alter(request, resource)
    return (yield from merged(request.node, resource, pace))


def check_names(configs: list[Any], pace: Pace) -> Steps:
    """Raise KafkaError INVALID_REQUEST if a config is named twice or lacks its value, or POLICY_VIOLATION if there are
    too many configs."""
    check_batch_length(len(configs), 'configs')
    names: set[str] = set()
    for config in configs:
        if config.name in names:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f'{config.name} is named twice')
        if config.value is None and config.config_operation != Operation.DELETE:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f'{config.name} has no value')
        names.add(config.name)
        if pace.spend():
            yield


def merged(node: Any, resource: Any, pace: Pace) -> Steps:
    """Return the configs of a resource after the requested operations. Raise KafkaError INVALID_REQUEST or
    INVALID_CONFIG if an operation is invalid."""
    wanted = current(node, resource.resource_type, resource.resource_name)
    for config in resource.configs:
        is_list = config.config_operation in (Operation.APPEND, Operation.SUBTRACT)
        if pace.spend(LIST_ELEMENTS if is_list else 1):
            yield
        if config.config_operation == Operation.DELETE:
            wanted.pop(config.name, None)
            continue
        if config.config_operation == Operation.SET:
            wanted[config.name] = config.value
        elif is_list:
            wanted[config.name] = changed_list(node, resource, config, wanted)
        else:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f'{config.name}: operation 0 to 3 expected, found '
                             f'{config.config_operation}')
    return wanted


def changed_list(node: Any, resource: Any, config: Any, overrides: dict[str, str]) -> str:
    """Return the value of a list config after the requested append or subtraction."""
    if resource.resource_type == ResourceType.TOPIC:
        described = describe_topic(node.config, overrides)
    elif resource.resource_type == ResourceType.GROUP:
        described = describe_group(node.config, overrides)
    else:
        described = node.config.describe()
    entry = next((entry for entry in described if entry.name == config.name), None)
    if entry is None or entry.type is not Type.LIST:
        raise KafkaError(ErrorCode.INVALID_CONFIG,
                         f'{config.name} is not a list: nothing can be appended or subtracted')
    items = [item.strip() for item in (entry.value or '').split(',') if item.strip()]
    given = [item.strip() for item in config.value.split(',')]
    if config.config_operation == Operation.APPEND:
        known = frozenset(items)
        return ','.join(items + [item for item in given if item not in known])
    removed = frozenset(given)
    return ','.join(item for item in items if item not in removed)


def error_response(body: Any, code: ErrorCode, message: str, _version: int) -> Steps:
    return IncrementalAlterConfigsResponse(responses=(yield from refuse_each(body, ResourceResponse, code, message)))


API = Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, handle, error_response)
