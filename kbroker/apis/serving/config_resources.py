"""Functions that DescribeConfigs, AlterConfigs and IncrementalAlterConfigs share."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kbroker.apis.serving.authorization import require_on_config
from kbroker.apis.serving.long_answers import Pace, Steps, each
from kbroker.apis.serving.request import Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.metadata.changes import check_batch_length
from kbroker.metadata.image import ResourceType
from kbroker.metadata.topic_names import check_topic_name
from kbroker.security.acl_codes import Operation

WantedOf = Callable[[Any, Any, Pace], Steps]

CLUSTER_DEFAULT = ''
"""The name of the BROKER resource that holds the defaults for all brokers."""


def distinct_resources(resources: Sequence[Any], pace: Pace) -> Steps:
    """Return {(type, name): resource} for the resources of a request. The value is None if the request names a resource
    twice."""
    found: dict[tuple[int, str], Any] = {}
    for resource in resources:
        key = resource.resource_type, resource.resource_name
        found[key] = None if key in found else resource
        if pace.spend():
            yield
    return found


def current(node: Any, resource_type: int, name: str) -> dict[str, str]:
    """Return the configs that are set on a resource itself, without defaults. Raise KafkaError as `check_resource`
    does."""
    check_resource(node, resource_type, name)
    return dict(node.metadata.image.configs.get((resource_type, name), {}))


def check_resource(node: Any, resource_type: int, name: str) -> None:
    """Raise KafkaError if this broker does not have the resource: UNKNOWN_TOPIC_OR_PARTITION for a topic, or
    INVALID_REQUEST for any other type."""
    if resource_type == ResourceType.TOPIC:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, 'the name of a topic expected, found none')
        check_topic_name(name)
        if node.topics.topic(name) is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f'topic {name!r} does not exist')
    elif resource_type == ResourceType.BROKER:
        if name not in (CLUSTER_DEFAULT, str(node.metadata.node_id)):
            raise KafkaError(ErrorCode.INVALID_REQUEST,
                             f'broker {node.metadata.node_id} or none (the default of all) expected, found {name!r}')
    elif resource_type == ResourceType.GROUP:
        if not name:
            raise KafkaError(ErrorCode.INVALID_REQUEST, 'the id of a group expected, found none')
    else:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f'resource type {ResourceType.TOPIC} (topic), '
                         f'{ResourceType.BROKER} (broker) or {ResourceType.GROUP} (group) expected, '
                         f'found {resource_type}')


def change_each(request: Request, body: Any, result_class: Any, wanted_of: WantedOf) -> Steps:
    """Change the configs of all resources of a request, in a turn of `metadata.commits.turns`. Return the result for
    each resource.

    The changes of all accepted resources become durable together, and then take effect. `wanted_of(request, resource,
    pace)` is a generator function. It checks the right to alter the resource, and returns all configs that the resource
    will have, or raises KafkaError to refuse the resource. `change_each` itself raises KafkaError POLICY_VIOLATION if
    there are too many resources.
    """
    node = request.node
    check_batch_length(len(body.resources), 'resources')
    yield from node.metadata.commits.turns.take()
    try:
        pace = Pace()
        resources = yield from distinct_resources(body.resources, pace)
        results = {}
        for resource_type, name in resources:
            results[resource_type, name] = result_class(error_message=None, resource_type=resource_type,
                                                        resource_name=name)
            if pace.spend():
                yield
        changes: dict[tuple[int, str], Mapping[str, str | None]] = {}
        for key, resource in resources.items():
            try:
                if resource is None:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, 'the resource is named twice')
                wanted = yield from wanted_of(request, resource, pace)
                if key[0] == ResourceType.BROKER:
                    yield from node.check_configs(key[1], wanted)
                changes[key] = differences(current(node, *key), wanted)
            except KafkaError as error:
                refuse(results[key], error)
            yield
        errors = yield from node.metadata.configs.alter(changes, validate_only=body.validate_only)
        for key, refusal in errors.items():
            if refusal is not None:
                refuse(results[key], refusal)
        if not body.validate_only:
            yield from put_into_effect(node, [key for key, refusal in errors.items() if refusal is None])
        return list(results.values())
    finally:
        node.metadata.commits.turns.end()


def refuse_each(body: Any, result_class: Any, code: ErrorCode, message: str) -> Steps:
    """Return one result for each resource of a request, all with this error."""
    return (yield from each(body.resources, lambda resource: result_class(
        error_code=int(code), error_message=message, resource_type=resource.resource_type,
        resource_name=resource.resource_name), Pace()))


def require_alter(request: Request, resource: Any) -> None:
    """Raise KafkaError unless the client may alter the configs of the resource."""
    require_on_config(request, Operation.ALTER_CONFIGS, resource.resource_type, resource.resource_name)


def differences(before: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str | None]:
    """Return the changes that turn the configs `before` into the configs `wanted`. The value None removes a config."""
    return {**dict.fromkeys(before.keys() - wanted.keys()),
            **{key: value for key, value in wanted.items() if before.get(key) != value}}


def refuse(result: Any, error: KafkaError) -> None:
    result.error_code = int(error.code)
    result.error_message = str(error)


def put_into_effect(node: Any, changed: Sequence[tuple[int, str]]) -> Steps:
    """Apply the configs of the changed resources. The caller has a turn of `node.metadata.commits.turns`."""
    for resource_type, name in changed:
        if resource_type == ResourceType.TOPIC:
            yield from node.topics.configure_topic(name)
        yield
    if any(resource_type == ResourceType.BROKER for resource_type, _ in changed):
        yield from node.reconfigure()
