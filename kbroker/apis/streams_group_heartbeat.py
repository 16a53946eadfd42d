"""StreamsGroupHeartbeat (key 88), version 0 (KIP-1071).

Joins a streams group with the topology of the application, keeps a member alive, tells it its tasks, and leaves the
group. The broker creates missing internal topics in the background, if the client may create them. Versions of Apache
Kafka before 4.4 do not support static members, warm-up tasks, offsets of tasks and source topics by regular expression:
they are INVALID_REQUEST.
"""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kbroker.apis.authorization import may_on_cluster, refusal, require
from kbroker.apis.create_topics import check_replication_factor
from kbroker.apis.group_protocols import require_group_protocol
from kbroker.apis.long_answers import Pace, Steps
from kbroker.apis.request import Api, Request
from kbroker.completion import Callback
from kbroker.errors import ErrorCode, KafkaError
from kbroker.group.heartbeat import JOIN_EPOCH, LEAVE_EPOCH, Call
from kbroker.group.streams_heartbeat import StreamsReply
from kbroker.group.topology import InternalTopic, Status
from kbroker.internal_topics import INTERNAL_TOPICS
from kbroker.metadata.controller import NewTopic
from kbroker.metadata.topic_names import check_topic_name
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.security.acl_codes import Operation, ResourceType

NO_TIMEOUT = -1
BROKER_DEFAULT = -1
NEVER_STRICT = 32767
"""More than any version: a client above its quota is throttled afterwards."""
MOST_ENTRIES = 5_000
"""The most subtopologies, topics and configs in a topology."""
CREATE, DESCRIBE, TOPIC = Operation.CREATE, Operation.DESCRIBE, ResourceType.TOPIC


def handle(request: Request, body: Any) -> Steps:
    require_group_protocol(request, 'streams')
    require(request, Operation.READ, ResourceType.GROUP, body.group_id)
    check_fields(body)
    if body.topology is not None:
        yield from check_topology(request, body.topology)

    def done(error: KafkaError | None, reply: StreamsReply) -> None:
        if error is not None:
            request.reply(error_response(body, error.code, str(error), request.version))
            return
        create_missing(request, body.group_id, reply)
        request.reply(reply.response)

    def may_describe(name: str) -> bool:
        return request.may(DESCRIBE, TOPIC, name, quiet=True)

    # The slash is how Java writes an address without a host name: members carry it in answers and in the offsets topic.
    call = Call(body, None, request.client_id or '', f'/{request.client_host}', may_describe)
    request.node.groups.streams_heartbeat(call, Callback(done))


def check_fields(body: Any) -> None:
    """INVALID_REQUEST."""
    for value, message in (
            (body.instance_id, 'Static membership is not yet supported.'),
            (body.task_offsets, 'TaskOffsets are not supported yet.'),
            (body.task_end_offsets, 'TaskEndOffsets are not supported yet.')):
        if value is not None:
            raise invalid(message)
    if body.warmup_tasks:
        raise invalid('WarmupTasks are not supported yet.')
    for value, name in ((body.member_id, 'MemberId'), (body.group_id, 'GroupId'), (body.rack_id, 'RackId')):
        if value is not None and not value.strip():
            raise invalid(f"{name} can't be empty.")
    tasks = body.active_tasks, body.standby_tasks, body.warmup_tasks
    if body.member_epoch == JOIN_EPOCH:
        check_join(body, tasks)
    elif body.member_epoch < LEAVE_EPOCH:
        raise invalid(f'MemberEpoch is {body.member_epoch}, but must be greater than or equal to {LEAVE_EPOCH}.')
    elif body.topology is not None:
        raise invalid('Topology can only be provided when (re-)joining.')
    if None in tasks and tasks != (None, None, None):
        raise invalid('If one task-type is non-null, all must be non-null.')


def check_join(body: Any, tasks: Iterable[list[Any] | None]) -> None:
    """INVALID_REQUEST."""
    if body.rebalance_timeout_ms == NO_TIMEOUT:
        raise invalid('RebalanceTimeoutMs must be provided in first request.')
    if any(each is None or each for each in tasks):
        raise invalid('Tasks must be empty when (re-)joining.')
    if body.topology is None:
        raise invalid('Topology must be non-null when (re-)joining.')


def check_topology(request: Request, topology: Any) -> Steps:
    """INVALID_REQUEST, STREAMS_INVALID_TOPOLOGY, TOPIC_AUTHORIZATION_FAILED."""
    pace, names, entries = Pace(), set(), 0
    if len({part.subtopology_id for part in topology.subtopologies}) < len(topology.subtopologies):
        raise invalid_topology('A subtopology is named twice.')
    for part in topology.subtopologies:
        check_subtopology(part)
        internal = [*part.state_changelog_topics, *part.repartition_source_topics]
        of_part = [*part.source_topics, *part.repartition_sink_topics, *(topic.name for topic in internal)]
        names.update(of_part)
        entries += 1 + len(of_part) + sum(len(topic.topic_configs) for topic in internal) + sum(
            1 + len(group.source_topics) + len(group.repartition_source_topics) for group in part.copartition_groups)
        if entries > MOST_ENTRIES:
            raise invalid_topology(f'The topology has more than {MOST_ENTRIES} subtopologies, topics and configs.')
        if pace.spend(1 + len(of_part) // 8):
            yield
    for name in sorted(names):
        check_name(name)
        if not request.may(DESCRIBE, TOPIC, name):
            raise refusal(TOPIC)
        if pace.spend():
            yield


def check_name(name: str) -> None:
    """STREAMS_INVALID_TOPOLOGY."""
    if name in INTERNAL_TOPICS:
        raise invalid_topology(f'Use of Kafka internal topic {name} in a Kafka Streams topology is prohibited.')
    try:
        check_topic_name(name)
    except KafkaError as error:
        raise invalid_topology(str(error)) from None


def check_subtopology(part: Any) -> None:
    """INVALID_REQUEST, STREAMS_INVALID_TOPOLOGY."""
    if part.source_topic_regex or any(group.source_topic_regex for group in part.copartition_groups):
        raise invalid('Regular expressions for source topics are not supported yet.')
    for topic in part.state_changelog_topics:
        if topic.partitions:
            raise invalid_topology(f'Changelog topic {topic.name} must have an undefined partition count, but it is '
                                   f'set to {topic.partitions}.')
    for topic in part.repartition_source_topics:
        if topic.partitions < 0:
            raise invalid_topology(f'Repartition topic {topic.name} has {topic.partitions} partitions.')
    for group in part.copartition_groups:
        for indexes, topics in ((group.source_topics, part.source_topics),
                                (group.repartition_source_topics, part.repartition_source_topics)):
            if any(not 0 <= index < len(topics) for index in indexes):
                raise invalid_topology(f'A copartition group of subtopology {part.subtopology_id} has no such topic.')


def create_missing(request: Request, group_id: str, reply: StreamsReply) -> None:
    """Create the internal topics that a group misses, in the background. The status of the answer says what hinders."""
    missing = list(reply.missing)
    if not missing:
        return
    node, wanted = request.node, []
    topics = node.groups.streams_topics
    remember_ms = 2 * node.groups.group_config(group_id).timing['streams'].heartbeat_interval_ms
    strict = node.config.kbroker_replication_factor_accept == 'strict'
    may_create_all = may_on_cluster(request, CREATE, quiet=True)
    refused, new_failures = [], dict[str, KafkaError]()
    for topic in missing:
        if not may_create_all and not request.may(CREATE, TOPIC, topic.name):
            refused.append(topic.name)
            continue
        try:
            check_replication_factor(topic.replication_factor or BROKER_DEFAULT, strict)
            wanted.append(new_topic(topic))
        except KafkaError as error:
            new_failures[topic.name] = error
    failures = topics.errors(topic.name for topic in missing)
    for name, failure in new_failures.items():
        topics.note_error(name, failure, remember_ms)
    topics.create(wanted, remember_ms, request.charge_mutations(NEVER_STRICT))
    details = [f'Unauthorized to CREATE on topics {", ".join(refused)}.'] if refused else []
    if failures:
        details.append('Creation failed: ' + ', '.join(f'{name} ({text})' for name, text in failures.items()) + '.')
    for status in reply.response.status:
        if status.status_code == Status.MISSING_INTERNAL_TOPICS and details:
            status.status_detail = '; '.join([status.status_detail, *details])


def new_topic(topic: InternalTopic) -> NewTopic:
    return NewTopic(topic.name, topic.partitions, dict(topic.configs))


def invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def invalid_topology(message: str) -> KafkaError:
    return KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, message)


def error_response(_body: Any, code: ErrorCode, message: str, _version: int) -> Any:
    return messages.StreamsGroupHeartbeatResponse(error_code=code, error_message=message)


API = Api(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, 0, handle, error_response)
