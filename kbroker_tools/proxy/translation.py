"""The translation between clients that see several virtual brokers, and the one broker behind the proxy."""
from __future__ import annotations

import base64
import uuid
from collections.abc import Callable
from typing import Any

from kbroker.base.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey
from kbroker_tools.proxy.coordinators import CoordinatorCheck, key_of, keys_of, list_filter
from kbroker_tools.proxy.exchanges import Exchange
from kbroker_tools.proxy.failures import error_response
from kbroker_tools.proxy.leaders import LED, LeaderCheck, has_leaders, name_leaders
from kbroker_tools.proxy.nodes import GROUP, VirtualBrokers

BROKER_RESOURCES = (4, 8)
"""The types of the resources whose names are the ids of brokers: a broker, and its loggers."""
BROKERS = 1
"""The type of endpoints in DescribeCluster that virtual brokers are. The others are controllers."""
NO_SESSION, FINAL_EPOCH = 0, -1

Endpoints = Callable[[], list[tuple[int, str, int]]]
"""Returns (id, host, port) of each virtual broker that is running, as the client reaches it."""


class NoAnswer(Exception):
    """Raised if a request has to end its connection: it wants no answer, and would get an error."""


class Translator:
    """Changes requests and answers, so that one broker looks like several."""

    def __init__(self, nodes: VirtualBrokers):
        self._nodes = nodes
        self._requests: dict[int, Callable[[Exchange, Endpoints], None]] = {
            ApiKey.METADATA: self._metadata, ApiKey.DESCRIBE_CLUSTER: self._describe_cluster,
            ApiKey.DESCRIBE_TOPIC_PARTITIONS: self._describe_topic_partitions,
            ApiKey.FIND_COORDINATOR: self._find_coordinator, ApiKey.API_VERSIONS: self._api_versions,
            ApiKey.CREATE_TOPICS: self._create_topics, ApiKey.CREATE_PARTITIONS: self._create_partitions,
            ApiKey.DESCRIBE_CONFIGS: self._configs, ApiKey.ALTER_CONFIGS: self._configs,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: self._configs}

    def translate(self, exchange: Exchange, endpoints: Endpoints) -> None:
        """Change a request for the broker behind, or answer it. Raise NoAnswer if its connection has to be closed."""
        if exchange.request is None:
            return
        key = exchange.key
        if key in LED:
            self._led(exchange, endpoints)
        elif key in self._requests:
            self._requests[key](exchange, endpoints)
        elif (one := key_of(exchange)) is not None:
            if self._nodes.coordinator(*one) != exchange.node:
                exchange.respond(error_response(exchange.request, key, exchange.version, ErrorCode.NOT_COORDINATOR))
        elif (keys := keys_of(exchange)) is not None:
            self._several(exchange, CoordinatorCheck(self._nodes, exchange, keys))
        else:
            exchange.change = list_filter(self._nodes, exchange)

    # ---- leaders and coordinators

    def _led(self, exchange: Exchange, endpoints: Endpoints) -> None:
        nodes, request = self._nodes, exchange.request
        check = LeaderCheck(nodes, exchange, LED[ApiKey(exchange.key)])
        is_left = check.split()
        if check.refused and exchange.has_no_answer:
            raise NoAnswer
        if exchange.key == ApiKey.FETCH and exchange.version >= 7:
            check.has_changes |= self._without_session(request)
        if exchange.key in (ApiKey.SHARE_FETCH, ApiKey.SHARE_ACKNOWLEDGE) and request.member_id:
            request.member_id = member_at(request.member_id, exchange.node)
            check.has_changes = True
            is_left = True      # an empty request is a step of the session, too

        def change(response: Any) -> bool:
            if not check.refused and not has_leaders(exchange, response):
                return False
            check.add_refused(response)
            name_leaders(nodes, exchange, response, endpoints())
            return True

        if not is_left:
            response = exchange.new_response()
            change(response)
            exchange.respond(response)
            return
        exchange.change = change
        if check.has_changes:
            exchange.replace_request()

    @staticmethod
    def _without_session(request: Any) -> bool:
        """Let a Fetch name all of its partitions: the session of the broker behind would ignore later moves.

        The answer has the session 0, so the client names all of them the next time, too (KIP-227).
        """
        if request.session_id == NO_SESSION and request.session_epoch == FINAL_EPOCH:
            return False
        request.session_id, request.session_epoch = NO_SESSION, FINAL_EPOCH
        return True

    def _several(self, exchange: Exchange, check: CoordinatorCheck) -> None:
        if check.split():
            if check.refused:
                exchange.change = check.add_refused
                exchange.replace_request()
            return
        response = exchange.new_response()
        check.add_refused(response)
        exchange.respond(response)

    # ---- the cluster

    def _metadata(self, exchange: Exchange, endpoints: Endpoints) -> None:
        def change(response: Any) -> None:
            row = type(response).MetadataResponseBroker
            response.brokers = [row(node_id=node, host=host, port=port) for node, host, port in endpoints()]
            if response.controller_id >= 0:
                response.controller_id = self._nodes.controller()
            for topic in response.topics:
                self._nodes.names.learn(topic.topic_id, topic.name)
                for partition in topic.partitions:
                    self._place(topic.name, partition)

        exchange.change = change

    def _describe_topic_partitions(self, exchange: Exchange, _endpoints: Endpoints) -> None:
        def change(response: Any) -> None:
            for topic in response.topics:
                self._nodes.names.learn(topic.topic_id, topic.name)
                for partition in topic.partitions:
                    self._place(topic.name, partition)
                    for field in ('eligible_leader_replicas', 'last_known_elr'):
                        if getattr(partition, field):
                            setattr(partition, field, list(partition.replica_nodes))

        exchange.change = change

    def _place(self, topic: str, partition: Any) -> None:
        """Give a row of a partition its virtual leader, epoch and replicas."""
        nodes, index = self._nodes, partition.partition_index
        if topic is None:
            return
        place = nodes.place(topic, index)
        if partition.leader_epoch >= 0:
            nodes.learn_epoch(topic, index, partition.leader_epoch)
            partition.leader_epoch += place.moves
        if partition.leader_id == nodes.real_id:
            partition.leader_id = -1 if place.leader is None else place.leader
            if place.leader is None:
                partition.error_code = ErrorCode.LEADER_NOT_AVAILABLE
        if partition.replica_nodes:
            replicas = nodes.replicas(topic, index)
            partition.replica_nodes = replicas
            if partition.isr_nodes:
                partition.isr_nodes = [node for node in replicas if node in nodes.running]
            partition.offline_replicas = [node for node in replicas if node not in nodes.running]

    def _describe_cluster(self, exchange: Exchange, endpoints: Endpoints) -> None:
        def change(response: Any) -> None:
            row = type(response).DescribeClusterBroker
            response.brokers = [row(broker_id=node, host=host, port=port) for node, host, port in endpoints()]
            if response.controller_id >= 0:
                response.controller_id = self._nodes.controller()

        if getattr(exchange.request, 'endpoint_type', BROKERS) == BROKERS:
            exchange.change = change

    def _find_coordinator(self, exchange: Exchange, endpoints: Endpoints) -> None:
        request = exchange.request
        key_type = request.key_type if exchange.version >= 1 else GROUP

        def change(response: Any) -> None:
            where = {node: (host, port) for node, host, port in endpoints()}
            rows = response.coordinators if exchange.version >= 4 else [response]
            for row in rows:
                if row.error_code:
                    continue
                node = self._nodes.coordinator(key_type, row.key if exchange.version >= 4 else request.key)
                if node in where:
                    row.node_id, (row.host, row.port) = node, where[node]
                else:
                    row.error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
                    row.node_id, row.host, row.port = -1, '', -1

        exchange.change = change

    def _api_versions(self, exchange: Exchange, _endpoints: Endpoints) -> None:
        """Name the broker behind, if the client names the virtual one that it expects."""
        request = exchange.request
        if exchange.version >= 5 and request.node_id == exchange.node:
            request.node_id = self._nodes.real_id
            exchange.replace_request()

    # ---- changes of topics and settings

    def _create_topics(self, exchange: Exchange, _endpoints: Endpoints) -> None:
        """Ask for one replica, where the client asks for as many as there are virtual brokers."""
        nodes, has_changes, counts = self._nodes, False, {}
        for topic in exchange.request.topics:
            if 1 < topic.replication_factor <= len(nodes.ids):
                counts[topic.name] = topic.replication_factor
                topic.replication_factor = 1
                has_changes = True
            for assignment in topic.assignments:
                if set(assignment.broker_ids) <= set(nodes.ids):
                    counts[topic.name] = len(assignment.broker_ids)
                    assignment.broker_ids = [nodes.real_id]
                    has_changes = True

        def change(response: Any) -> None:
            for topic in response.topics:
                if not topic.error_code:
                    nodes.names.learn(topic.topic_id, topic.name)
                if topic.replication_factor > 0 and topic.name in counts:
                    topic.replication_factor = counts[topic.name]

        exchange.change = change
        if has_changes:
            exchange.replace_request()

    def _create_partitions(self, exchange: Exchange, _endpoints: Endpoints) -> None:
        has_changes = False
        for topic in exchange.request.topics:
            for assignment in topic.assignments or ():
                if set(assignment.broker_ids) <= set(self._nodes.ids):
                    assignment.broker_ids = [self._nodes.real_id]
                    has_changes = True
        if has_changes:
            exchange.replace_request()

    def _configs(self, exchange: Exchange, _endpoints: Endpoints) -> None:
        """Let the settings of a virtual broker be those of the broker behind."""
        nodes, has_changes = self._nodes, False
        real, asked = str(nodes.real_id), str(exchange.node)
        names = {}
        for resource in exchange.request.resources:
            if resource.resource_type in BROKER_RESOURCES and resource.resource_name.isdecimal():
                if resource.resource_name != asked:
                    continue        # the broker behind refuses the id of another one
                names[resource.resource_type] = asked
                resource.resource_name = real
                has_changes = has_changes or real != asked

        def change(response: Any) -> None:
            rows: list[Any] = getattr(response, 'results' if hasattr(response, 'results') else 'responses')
            for row in rows:
                if row.resource_type in names and row.resource_name == real:
                    row.resource_name = names[row.resource_type]

        if has_changes:
            exchange.change = change
            exchange.replace_request()


def member_at(member_id: str, node: int | None) -> str:
    """Return the id under which a member of a share group is known at a node.

    A member has a session at each broker that leads partitions. The broker behind would take all of them for one.
    """
    name = uuid.uuid5(uuid.NAMESPACE_OID, f'{member_id} at {node}')
    return base64.urlsafe_b64encode(name.bytes).rstrip(b'=').decode()
