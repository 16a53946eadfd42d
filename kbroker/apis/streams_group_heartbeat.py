"""StreamsGroupHeartbeat (key 88), versions 0 and 1 (KIP-1071).

With this request, a member joins a streams group with the topology of its application, stays in the group, gets its
tasks, or leaves. The broker creates missing internal topics in the background, if the client may create them. As in
Apache Kafka, requests with a regular expression for source topics are refused with INVALID_REQUEST.
"""
from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from kbroker.apis.create_topics import check_replication_factor
from kbroker.apis.serving.authorization import may_on_cluster, refusal
from kbroker.apis.serving.heartbeat_calls import HeartbeatKind, invalid
from kbroker.apis.serving.idle_heartbeat import HeartbeatHandler
from kbroker.apis.serving.long_answers import Pace, Steps
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.internal_topics import INTERNAL_TOPICS
from kbroker.group.modern.group import LEAVE_FOR_A_WHILE_EPOCH
from kbroker.group.modern.heartbeat import JOIN_EPOCH
from kbroker.group.streams.heartbeat import MOST_TASKS, StreamsReply
from kbroker.group.streams.topology import InternalTopic, Status
from kbroker.metadata.topic_names import check_topic_name
from kbroker.metadata.topic_operations import NewTopic
from kbroker.protocol.api_keys import ApiKey
from kbroker.security.acl_codes import Operation, ResourceType

NO_TIMEOUT = -1
BROKER_DEFAULT = -1
NEVER_STRICT = 32767
"""A version number higher than any version of the API. A client above its quota for mutations is therefore throttled,
and its topics are still created."""
MOST_ENTRIES = 5_000
"""The largest sum of subtopologies, topics and topic configs in a topology."""
MOST_FAILURES = 3
"""The most topics with failed creations that the status in a response names, as in Kafka."""
CREATE, DESCRIBE, TOPIC = Operation.CREATE, Operation.DESCRIBE, ResourceType.TOPIC


def check(request: Request, body: Any) -> Steps:
    """Check the fields of the request, and its topology if it has one."""
    check_fields(body)
    if body.topology is not None:
        yield from check_topology(request, body.topology)


def response(request: Request, body: Any, reply: StreamsReply) -> Any:
    """Return the response. Start to create the missing internal topics."""
    create_missing(request, body.group_id, reply)
    return reply.response


def check_fields(body: Any) -> None:
    """Raise INVALID_REQUEST if a name is blank, if there are too many offsets, or if fields contradict each other."""
    for name, value in (('member id', body.member_id), ('group id', body.group_id),
                        ('instance id', body.instance_id), ('rack id', body.rack_id)):
        if value is not None and not value.strip():
            raise invalid(f'the {name} is empty')
    for offsets in body.task_offsets, body.task_end_offsets:
        if offsets is not None and len(offsets) > MOST_TASKS:
            raise invalid(f'found {len(offsets)} offsets of tasks, expected at most {MOST_TASKS}')
    tasks = body.active_tasks, body.standby_tasks, body.warmup_tasks
    if body.member_epoch == JOIN_EPOCH:
        check_join(body, tasks)
    elif body.member_epoch < LEAVE_FOR_A_WHILE_EPOCH:
        raise invalid(f'found member epoch {body.member_epoch}, expected {LEAVE_FOR_A_WHILE_EPOCH} or more')
    elif body.member_epoch == LEAVE_FOR_A_WHILE_EPOCH and body.instance_id is None:
        raise invalid('found a member without an instance id that leaves temporarily, expected a static member')
    elif body.topology is not None:
        raise invalid(f'found a topology with member epoch {body.member_epoch}, expected none')
    if None in tasks and tasks != (None, None, None):
        raise invalid('expected tasks of all roles or of none, found those of some')


def check_join(body: Any, tasks: Iterable[list[Any] | None]) -> None:
    """Raise INVALID_REQUEST unless the request has all the fields that a member must send to join."""
    if body.rebalance_timeout_ms == NO_TIMEOUT:
        raise invalid('expected a rebalance timeout of a member that joins, found none')
    if any(each is None or each for each in tasks):
        raise invalid('expected empty lists of tasks of a member that joins')
    if body.topology is None:
        raise invalid('expected a topology of a member that joins, found none')


def check_topology(request: Request, topology: Any) -> Steps:
    """Check a topology, and check that the client may describe its topics. Work in parts.

    Errors: INVALID_REQUEST, STREAMS_INVALID_TOPOLOGY, TOPIC_AUTHORIZATION_FAILED.
    """
    pace, names, entries = Pace(), set(), 0
    if len(topology.subtopologies) > MOST_ENTRIES:
        raise invalid_topology(f'found more than {MOST_ENTRIES} subtopologies, topics and configs')
    if len({part.subtopology_id for part in topology.subtopologies}) < len(topology.subtopologies):
        raise invalid_topology('found two subtopologies of one name')
    for part in topology.subtopologies:
        check_subtopology(part)
        internal = [*part.state_changelog_topics, *part.repartition_source_topics]
        of_part = [*part.source_topics, *part.repartition_sink_topics, *(topic.name for topic in internal)]
        names.update(of_part)
        entries += 1 + len(of_part) + sum(len(topic.topic_configs) for topic in internal) + sum(
            1 + len(group.source_topics) + len(group.repartition_source_topics) for group in part.copartition_groups)
        if entries > MOST_ENTRIES:
            raise invalid_topology(f'found more than {MOST_ENTRIES} subtopologies, topics and configs')
        if pace.spend(1 + len(of_part) // 8):
            yield
    for name in sorted(names):
        check_name(name)
        if not request.may(DESCRIBE, TOPIC, name):
            raise refusal(TOPIC)
        if pace.spend():
            yield


def check_name(name: str) -> None:
    """Raise STREAMS_INVALID_TOPOLOGY if an application must not use a topic with this name."""
    if name in INTERNAL_TOPICS:
        raise invalid_topology(f'{name} is an internal topic of the broker')
    try:
        check_topic_name(name)
    except KafkaError as error:
        raise invalid_topology(str(error)) from None


def check_subtopology(part: Any) -> None:
    """Raise INVALID_REQUEST if the subtopology has a regular expression for source topics. Raise
    STREAMS_INVALID_TOPOLOGY if it has invalid topics or numbers of partitions."""
    if part.source_topic_regex or any(group.source_topic_regex for group in part.copartition_groups):
        raise invalid('found a regular expression for source topics, expected names')
    for topic in part.state_changelog_topics:
        if topic.partitions:
            raise invalid_topology(f'found {topic.partitions} partitions of the changelog {topic.name}, expected 0')
    for topic in part.repartition_source_topics:
        if topic.partitions < 0:
            raise invalid_topology(f'found {topic.partitions} partitions of the repartition topic {topic.name}')
    for group in part.copartition_groups:
        for indexes, topics in ((group.source_topics, part.source_topics),
                                (group.repartition_source_topics, part.repartition_source_topics)):
            for index in indexes:
                if not 0 <= index < len(topics):
                    raise invalid_topology(f'found topic {index} in a copartition group of subtopology '
                                           f'{part.subtopology_id}, which has {len(topics)} such topics')


def create_missing(request: Request, group_id: str, reply: StreamsReply) -> None:
    """Start to create the missing internal topics of a group. Add the failures of earlier attempts to the status of the
    response.

    As in Kafka, create none of the topics if the client has no right to create one of them.
    """
    missing = list(reply.missing)
    if not missing:
        return
    refused = [] if may_on_cluster(request, CREATE, quiet=True) else [
        topic.name for topic in missing if not request.may(CREATE, TOPIC, topic.name)]
    if refused:
        add_detail(reply, f'Unauthorized to CREATE on topics {", ".join(refused)}.')
        return
    topics = request.node.groups.streams_topics
    failures = topics.errors(topic.name for topic in missing)
    start_creation(request, group_id, missing)
    if failures:
        named = [f'{name} ({text})' for name, text in islice(failures.items(), MOST_FAILURES)]
        more = f' and {len(failures) - MOST_FAILURES} more' if len(failures) > MOST_FAILURES else ''
        add_detail(reply, f'Creation failed: {", ".join(named)}{more}.')


def start_creation(request: Request, group_id: str, missing: Iterable[InternalTopic]) -> None:
    """Create the topics in the background. Remember the errors of failed creations for two heartbeat intervals."""
    node, wanted = request.node, []
    topics = node.groups.streams_topics
    remember_ms = 2 * node.groups.group_config(group_id).timing['streams'].heartbeat_interval_ms
    strict = node.config.kbroker_replication_factor_accept == 'strict'
    for topic in missing:
        try:
            check_replication_factor(topic.replication_factor or BROKER_DEFAULT, strict)
            wanted.append(new_topic(topic))
        except KafkaError as error:
            topics.note_error(topic.name, error, remember_ms)
    topics.create(wanted, remember_ms, request.charge_mutations(NEVER_STRICT))


def add_detail(reply: StreamsReply, detail: str) -> None:
    for status in reply.response.status:
        if status.status_code == Status.MISSING_INTERNAL_TOPICS:
            status.status_detail += f'; {detail}'


def new_topic(topic: InternalTopic) -> NewTopic:
    return NewTopic(topic.name, topic.partitions, dict(topic.configs))


def invalid_topology(message: str) -> KafkaError:
    return KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)


KIND = HeartbeatKind('streams', check, response)
API = Api(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, 1, HeartbeatHandler(KIND, 'StreamsGroupHeartbeatRequest'))
