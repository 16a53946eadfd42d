"""Shared by the three APIs on configs: which resources have one here, and how a change of one takes effect."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kbroker.apis.long_answers import Pace, Steps
from kbroker.errors import ErrorCode, KafkaError
from kbroker.metadata.image import ResourceType
from kbroker.metadata.topic_names import check_topic_name

CLUSTER_DEFAULT = ''
"""The BROKER resource of this name holds the defaults of all brokers."""


def distinct_resources(resources: Sequence[Any], pace: Pace) -> Steps:
    """Return {(type, name): resource} of a request that changes configs, with None for a resource named twice."""
    found: dict[tuple[int, str], Any] = {}
    for resource in resources:
        key = resource.resource_type, resource.resource_name
        found[key] = None if key in found else resource
        if pace.spend():
            yield
    return found


def current(node: Any, resource_type: int, name: str) -> dict[str, str]:
    """Return the configs set on a resource itself. Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION, INVALID_REQUEST."""
    check_resource(node, resource_type, name)
    return dict(node.metadata.image.configs.get((resource_type, name), {}))


def check_resource(node: Any, resource_type: int, name: str) -> None:
    """Raises KafkaError UNKNOWN_TOPIC_OR_PARTITION for a topic, INVALID_REQUEST for another resource not here."""
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
    else:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f'resource type {ResourceType.TOPIC} (topic) or '
                         f'{ResourceType.BROKER} (broker) expected, found {resource_type}')


def change(node: Any, resource_type: int, name: str, wanted: Mapping[str, str], validate_only: bool) -> Steps:
    """Make `wanted` the whole set of a resource's configs, durably, and put it into effect. Raises KafkaError.

    The caller has a turn of `node.metadata.turns`.
    """
    before = current(node, resource_type, name)
    changes = {**dict.fromkeys(before.keys() - wanted.keys()),
               **{key: value for key, value in wanted.items() if before.get(key) != value}}
    node.metadata.alter_configs(resource_type, name, changes, validate_only=validate_only)
    yield
    if validate_only:
        return
    if resource_type == ResourceType.TOPIC:
        yield from node.topics.configure_topic(name)
    else:
        yield from node.reconfigure()
