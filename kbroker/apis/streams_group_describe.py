"""StreamsGroupDescribe (key 89), versions 0 and 1 (KIP-1071, KIP-1331, KIP-1357).

Describes streams groups: the topology of each group, and its members with their tasks. A group that does not exist, or
is of another type, gets GROUP_ID_NOT_FOUND. A group that is named twice is described once.

Version 1 also has the assignor of the next assignment, and can ask for the description of the topology. The answer is
always that none is stored, as in Apache Kafka without a plugin for topology descriptions.
"""
from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from kbroker.apis.serving.authorization import require
from kbroker.apis.serving.authorized_operations import NOT_ASKED
from kbroker.apis.serving.group_descriptions import all_failed, describe_each
from kbroker.apis.serving.group_topics import member_elements
from kbroker.apis.serving.long_answers import Pace, ReplyRoom, Steps
from kbroker.apis.serving.request import Api, Request
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.group.assignors.sticky import Key, Role
from kbroker.group.streams.group import StreamsGroup
from kbroker.group.streams.member import NO_OFFSETS, NOTHING, StreamsMember, TaskOffsets
from kbroker.group.streams.topology import InternalTopic, Subtopology, configure, required_topics
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.security.acl_codes import Operation, ResourceType

NOT_REQUESTED, NOT_STORED = range(2)
"""The statuses of a topology description: the client has not asked for it, or the broker has none."""


def handle(request: Request, body: Any) -> Steps:
    description = Description(request, body.include_topology_description)
    return describe_each(request, body, 'streams', response_class(), description.pace, description.describe)


class Description:
    """Creates the descriptions of groups for one answer."""

    def __init__(self, request: Request, asks_for_topology: bool):
        self.pace = Pace()
        self._request = request
        self._topology_status = NOT_STORED if asks_for_topology else NOT_REQUESTED
        self._room = ReplyRoom()

    def describe(self, group_id: str) -> Steps:
        """Return the description of a group. Raise KafkaError GROUP_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED,
        GROUP_ID_NOT_FOUND or COORDINATOR_LOAD_IN_PROGRESS."""
        require(self._request, Operation.DESCRIBE, ResourceType.GROUP, group_id)
        self._room.check(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        group = self._request.node.groups.describe(group_id, StreamsGroup.group_type)
        yield from self._check_topics(group)
        described = response_class().DescribedGroup(
            group_id=group_id, group_state=group.state_name, group_epoch=group.epoch,
            assignment_epoch=group.assignment_epoch, topology=(yield from self._topology(group)),
            authorized_operations=NOT_ASKED, topology_description_status=self._topology_status,
            assignor_name=self._request.node.groups.group_config(group_id).streams_assignor_name)
        for member in list(group.members.values()):
            described.members.append((yield from self._member(group, member)))
            if self.pace.spend(member_elements(len(member.tags))):
                yield
        return described

    def _check_topics(self, group: StreamsGroup) -> Steps:
        """Raise TOPIC_AUTHORIZATION_FAILED unless the client may describe all topics of the group."""
        for name in list(group.names):
            if not self._request.may(Operation.DESCRIBE, ResourceType.TOPIC, name):
                raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                                 'The group has described topic(s) that the client is not authorized to describe.')
            if self.pace.spend():
                yield

    def _topology(self, group: StreamsGroup) -> Steps:
        """Return the topology. Once the topology is validated, its internal topics have their numbers of partitions."""
        if group.topology is None:
            return None
        is_validated = group.validated_epoch == group.topology.epoch
        counts = (yield from self._counts(group.topology.subtopologies)) if is_validated else {}
        parts = []
        for part in group.topology.subtopologies:
            parts.append(self._subtopology(part, counts))
            if self.pace.spend():
                yield
        return response_class().Topology(epoch=group.topology.epoch, subtopologies=parts)

    def _counts(self, parts: Sequence[Subtopology]) -> Steps:
        """Return {topic: number of partitions} for a validated topology. A topic that was deleted after the validation
        has the number of partitions with which the broker will recreate it.
        """
        existing, names = {}, required_topics(parts)
        for name in names:
            topic = self._request.node.topics.topic(name)
            if topic is not None:
                existing[name] = len(topic.partitions)
            if self.pace.spend():
                yield
        if len(existing) == len(names):
            return existing
        configured = yield from configure(parts, existing)
        return existing | {topic.name: topic.partitions for topic in configured.missing}

    def _subtopology(self, part: Subtopology, counts: Mapping[str, int]) -> Any:
        return response_class().Subtopology(
            subtopology_id=part.subtopology_id, source_topics=list(part.source_topics),
            repartition_sink_topics=list(part.repartition_sink_topics),
            state_changelog_topics=self._topics(part.changelogs, counts, frozenset(part.sources())),
            repartition_source_topics=self._topics(part.repartition_source_topics, counts))

    def _topics(self, topics: Iterable[InternalTopic], counts: Mapping[str, int], sources: Collection[str] = ()
                ) -> list[Any]:
        """Return the descriptions of internal topics. The numbers of partitions come from `counts`, except for topics
        in `sources`, whose numbers come from the topology."""
        found = []
        for topic in topics:
            self._room.take(1 + len(topic.configs), len(topic.name))
            found.append(response_class().TopicInfo(
                name=topic.name,
                partitions=topic.partitions if topic.name in sources else counts.get(topic.name, topic.partitions),
                replication_factor=topic.replication_factor,
                topic_configs=[response_class().KeyValue(key=key, value=value) for key, value in topic.configs]))
        return found

    def _member(self, group: StreamsGroup, member: StreamsMember) -> Steps:
        endpoint = None
        if member.endpoint is not None:
            endpoint = response_class().Endpoint(host=member.endpoint.host, port=member.endpoint.port)
        self._room.take(1 + len(member.tags), len(member.process_id))
        reported = group.task_offsets.get(member.member_id, NO_OFFSETS)
        return response_class().Member(
            member_id=member.member_id, instance_id=member.instance_id, rack_id=member.rack_id,
            member_epoch=member.epoch, client_id=member.client_id, client_host=member.client_host,
            topology_epoch=member.topology_epoch, process_id=member.process_id, user_endpoint=endpoint,
            client_tags=[response_class().KeyValue(key=key, value=value) for key, value in member.tags],
            task_offsets=(yield from self._offsets(reported.offsets)),
            task_end_offsets=(yield from self._offsets(reported.end_offsets)),
            assignment=(yield from self._assignment(member.held.assigned)),
            target_assignment=(yield from self._assignment(group.targets.get(member.member_id, NOTHING))))

    def _offsets(self, reported: TaskOffsets) -> Steps:
        found = []
        for subtopology in sorted(reported):
            self._room.take(len(reported[subtopology]), len(subtopology))
            for partition, offset in sorted(reported[subtopology].items()):
                found.append(response_class().TaskOffset(
                    subtopology_id=subtopology, partition=partition, offset=offset))
                if self.pace.spend():
                    yield
        return found

    def _assignment(self, tasks: Mapping[Key, Iterable[int]]) -> Steps:
        found: dict[Role, list[Any]] = {role: [] for role in Role}
        for (role, subtopology), numbers in tasks.items():
            partitions = sorted(numbers)
            self._room.take(1, len(subtopology) + 4 * len(partitions))
            found[role].append(response_class().TaskIds(subtopology_id=subtopology, partitions=partitions))
            if self.pace.spend(1 + len(partitions) // 8):
                yield
        return response_class().Assignment(active_tasks=found[Role.ACTIVE], standby_tasks=found[Role.STANDBY],
                                   warmup_tasks=found[Role.WARMUP])


def response_class() -> Any:
    """Return the class of the response. It is created at its first use."""
    return messages.StreamsGroupDescribeResponse


def error_response(body: Any, code: ErrorCode, message: str, _version: int) -> Steps:
    return all_failed(response_class(), body, code, message)


API = Api(ApiKey.STREAMS_GROUP_DESCRIBE, 0, 1, handle, error_response)
