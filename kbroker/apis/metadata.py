"""Metadata (key 3), versions 0-13.

This node leads every partition and is its only replica, whatever the replication factor with which the topic was
created. A null list of topics asks for all topics; in version 0, an empty list does. A topic that does not exist is
created if both auto.create.topics.enable and the request allow that, and is described in the same answer.

From version 8 on, a request may ask for the operations that the client is authorized to perform (KIP-430). Version 10
adds topic ids. From version 12 on, a request can give a topic by id without its name. Version 13 adds a top-level
error.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kbroker.apis.serving.authorization import may_on_cluster, require
from kbroker.apis.serving.authorized_operations import (
    authorized_cluster_operations,
    authorized_operations,
    decisions_about,
)
from kbroker.apis.serving.long_answers import Pace, Steps
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.internal_topics import INTERNAL_TOPICS
from kbroker.metadata.batches import MAX_RECORDS
from kbroker.metadata.topic_names import check_topic_name
from kbroker.metadata.topic_operations import NewTopic
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages import MetadataResponse
from kbroker.security.acl_codes import Operation, ResourceType
from kbroker.topics.partition import Partition
from kbroker.topics.topic import Topic

CREATE, DESCRIBE = Operation.CREATE, Operation.DESCRIBE
TOPIC = ResourceType.TOPIC
NO_ID = bytes(16)
NO_LEADER = -1
TOPICS_BY_ID_VERSION = 12
WITHOUT_OPERATIONS = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_ID)
NEVER_STRICT = 32767


def handle(request: Request, body: Any) -> Steps:
    node = request.node
    node_id = node.metadata.node_id
    host, port = request.advertised_address
    if node.address_watch is not None:
        node.address_watch.look(request.connection.listener_name, request.client_host)
    response = MetadataResponse(
        brokers=[MetadataResponse.MetadataResponseBroker(node_id=node_id, host=host, port=port,
                                                         rack=node.config.broker_rack)],
        cluster_id=node.metadata.cluster_id, controller_id=node_id)
    pace = Pace()
    if body.topics is None or (request.version == 0 and not body.topics):
        response.topics = yield from describe_all(request, pace)
    else:
        response.topics = yield from describe_wanted(request, body, pace)
    if body.include_topic_authorized_operations:
        for number, topic in enumerate(response.topics):
            if topic.error_code not in WITHOUT_OPERATIONS:
                response.topics[number] = with_operations(request, topic)
            if pace.spend(decisions_about(TOPIC)):
                yield
    if body.include_cluster_authorized_operations:
        response.cluster_authorized_operations = authorized_cluster_operations(request)
    return response


def describe_all(request: Request, pace: Pace) -> Steps:
    """Describe all existing topics that the client may describe. A generator: it omits topics that are created or
    deleted between its parts."""
    node = request.node
    described = []
    for topic in node.topics.topics():
        if node.topics.topic_by_id(topic.topic_id) is not topic:
            continue
        if may_describe(request, topic.name, quiet=True):
            described.append((yield from describe(topic, node.metadata.node_id, pace)))
        elif pace.spend():
            yield
    return described


def describe_wanted(request: Request, body: Any, pace: Pace) -> Steps:
    """Describe each topic of the request once. If the request has topic ids, ignore topics that are given only by
    name."""
    node, version = request.node, request.version
    names: dict[str, None] = {}
    ids: dict[bytes, None] = {}
    for wanted in body.topics:
        if wanted.topic_id != NO_ID:
            ids[wanted.topic_id] = None
        names[wanted.name] = None
        if pace.spend():
            yield
    if None in names and (version < TOPICS_BY_ID_VERSION or not ids):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f'a topic without a name in version {version}')
    if ids and version < TOPICS_BY_ID_VERSION:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f'a topic asked for by id in version {version}')
    described = []
    if ids:
        for topic_id in ids:
            topic = node.topics.topic_by_id(topic_id)
            if topic is None:
                described.append(failed(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID))
            elif not may_describe(request, topic.name):
                described.append(failed(None, topic_id, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            else:
                described.append((yield from describe(topic, node.metadata.node_id, pace)))
            if pace.spend():
                yield
        return described
    auto_create = node.config.auto_create_topics_enable and (version < 4 or body.allow_auto_topic_creation)
    refused = {}
    for name in names:
        if not may_describe(request, name):
            refused[name] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        if pace.spend():
            yield
    if auto_create:
        refused |= yield from create_missing(request, [name for name in names if name not in refused], pace)
    for name in names:
        described.append((yield from describe_named(node, name, refused, pace)))
        if pace.spend():
            yield
    return described


def may_describe(request: Request, name: str, quiet: bool = False) -> bool:
    return request.may(DESCRIBE, TOPIC, name, quiet)


def create_missing(request: Request, names: Iterable[str], pace: Pace) -> Steps:
    """Create the topics that do not exist, in as many batches of the metadata log as they need. Return {name: error
    code} of the topics that could not be created. A client above its quota is throttled afterwards.
    """
    node = request.node
    charge = request.charge_mutations(NEVER_STRICT)
    refused: dict[str, ErrorCode] = {}
    new_topics: list[NewTopic] = []
    may_create_all = may_on_cluster(request, CREATE, quiet=True)
    for name in names:
        if node.topics.topic(name) is None:
            try:
                if not may_create_all:
                    require(request, CREATE, TOPIC, name)
                check_topic_name(name)
                if name in INTERNAL_TOPICS:
                    node.topics.ensure_internal(name)
                else:
                    new_topics.append(NewTopic(name, node.config.num_partitions))
            except KafkaError as error:
                refused[name] = error.code
        if pace.spend():
            yield
    at_once = max(1, MAX_RECORDS // (node.config.num_partitions + 1))
    for first in range(0, len(new_topics), at_once):
        batch = new_topics[first:first + at_once]
        try:
            results = yield from node.topics.create_many(batch, charge=charge)
        except KafkaError as error:
            results = [error.with_traceback(None)] * len(batch)
        refused |= {new.name: result.code for new, result in zip(batch, results, strict=True)
                    if isinstance(result, KafkaError)}
    return refused


def describe_named(node: Any, name: str, refused: Mapping[str, ErrorCode], pace: Pace) -> Steps:
    if refused.get(name) is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
        return failed(name, NO_ID, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    topic = node.topics.topic(name)
    if topic is not None:
        return (yield from describe(topic, node.metadata.node_id, pace))
    try:
        check_topic_name(name)
    except KafkaError as error:
        return failed(name, NO_ID, error.code)
    return failed(name, NO_ID, refused.get(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))


def describe(topic: Topic, node_id: int, pace: Pace) -> Steps:
    """Return the description of a topic. The returned object is cached for later answers: callers must not change
    it."""
    # All partitions go offline together, because there is only one log directory.
    if topic.metadata is not None and not topic.partitions[0].is_offline:
        if pace.spend():
            yield
        return topic.metadata
    partitions = []
    for partition in topic.partitions:      # the list grows if partitions are added between two parts
        partitions.append(describe_partition(partition, node_id))
        if pace.spend():
            yield
    topic.metadata = MetadataResponse.MetadataResponseTopic(
        name=topic.name, topic_id=topic.topic_id, is_internal=topic.is_internal, partitions=partitions)
    return topic.metadata


def with_operations(request: Request, topic: Any) -> Any:
    return MetadataResponse.MetadataResponseTopic(
        error_code=topic.error_code, name=topic.name, topic_id=topic.topic_id, is_internal=topic.is_internal,
        partitions=topic.partitions,
        topic_authorized_operations=authorized_operations(request, TOPIC, topic.name))


def describe_partition(partition: Partition, node_id: int) -> Any:
    """Return the description of a partition. If the log directory is offline, the partition has no leader, and its only
    replica is offline (KIP-112)."""
    described = MetadataResponse.MetadataResponsePartition(
        partition_index=partition.partition, leader_id=node_id, leader_epoch=partition.leader_epoch,
        replica_nodes=[node_id], isr_nodes=[node_id])
    if partition.is_offline:
        described.error_code = int(ErrorCode.LEADER_NOT_AVAILABLE)
        described.leader_id = NO_LEADER
        described.offline_replicas = [node_id]
    return described


def error_response(body: Any, code: ErrorCode, _message: str, version: int) -> Any:
    if version >= 13:
        return MetadataResponse(error_code=int(code))
    return MetadataResponse(topics=[failed(wanted.name or '', wanted.topic_id, code)
                                    for wanted in body.topics or []])


def failed(name: str | None, topic_id: bytes, code: ErrorCode) -> Any:
    return MetadataResponse.MetadataResponseTopic(error_code=int(code), name=name, topic_id=topic_id)


API = Api(ApiKey.METADATA, 0, 13, handle, error_response)
