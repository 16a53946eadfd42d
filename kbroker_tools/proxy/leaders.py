"""Requests about partitions, in front of virtual brokers.

A virtual broker serves the partitions that it leads. For the others it answers NOT_LEADER_OR_FOLLOWER, as a follower
does, and names the leader where the version of the response has a place for it. A request whose partitions have several
leaders is split: the broker behind gets the rows that this node leads, and its answer gets rows for the others.

Epochs of leaders are those of the broker behind plus the number of moves. So an epoch in a request is lowered by the
moves, and the broker behind finds out whether it is old. Epochs in records, and those that OffsetForLeaderEpoch looks
for, stay: they say who wrote the records, which is always the broker behind.
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kbroker.base.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey
from kbroker_tools.proxy.exchanges import Exchange
from kbroker_tools.proxy.nodes import VirtualBrokers

NO_EPOCH = -1
FIRST_FETCH_WITH_ENDPOINTS = 16


@dataclass(frozen=True)
class Rows:
    """The fields of an API's messages that have its partitions.

    `topics` and `partitions` are arrays of the request, and `found_topics` and `found_partitions` those of its
    response. `index` and `found_index` are the numbers of partitions; `index` is empty if the request has an array of
    numbers.
    """

    topics: str
    partitions: str
    index: str
    found_topics: str
    found_partitions: str
    found_index: str


LED = {
    ApiKey.PRODUCE: Rows('topic_data', 'partition_data', 'index', 'responses', 'partition_responses', 'index'),
    ApiKey.FETCH: Rows('topics', 'partitions', 'partition', 'responses', 'partitions', 'partition_index'),
    ApiKey.LIST_OFFSETS: Rows('topics', 'partitions', 'partition_index', 'topics', 'partitions', 'partition_index'),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Rows('topics', 'partitions', 'partition', 'topics', 'partitions', 'partition'),
    ApiKey.DELETE_RECORDS: Rows('topics', 'partitions', 'partition_index', 'topics', 'partitions', 'partition_index'),
    ApiKey.DESCRIBE_PRODUCERS: Rows('topics', 'partition_indexes', '', 'topics', 'partitions', 'partition_index'),
    ApiKey.SHARE_FETCH: Rows('topics', 'partitions', 'partition_index', 'responses', 'partitions', 'partition_index'),
    ApiKey.SHARE_ACKNOWLEDGE: Rows('topics', 'partitions', 'partition_index', 'responses', 'partitions',
                                   'partition_index'),
}
"""The APIs that only the leader of a partition serves."""
ABSENT = {'base_offset': -1, 'high_watermark': -1, 'low_watermark': -1, 'records': b''}
"""The values of fields in a row with an error, where Kafka's differ from the defaults of the fields."""
NEW_LEADER = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
"""The errors whose rows name the current leader."""


def topic_name(row: Any, nodes: VirtualBrokers) -> str | None:
    """Return the name of the topic of a row, or None if the row has an id that no answer has named yet."""
    for field in ('name', 'topic', 'topic_name'):
        name = getattr(row, field, None)
        if name:
            return str(name)
    return nodes.names.name_of(getattr(row, 'topic_id', b''))


class LeaderCheck:
    """The partitions of a request, by whether its node may serve them."""

    def __init__(self, nodes: VirtualBrokers, exchange: Exchange, rows: Rows):
        self._nodes = nodes
        self._exchange = exchange
        self._rows = rows
        self.has_changes = False
        """True if the request differs from the one that has arrived."""
        self.refused: list[tuple[Any, list[tuple[int, ErrorCode]]]] = []
        """(row of the topic, [(partition, error)]) for the partitions that this node does not serve."""

    def split(self) -> bool:
        """Take the partitions that the node does not serve out of the request. Return whether any are left."""
        request, rows = self._exchange.request, self._rows
        kept_topics = []
        for topic in getattr(request, rows.topics) or ():
            name = topic_name(topic, self._nodes)
            kept, refused = [], []
            for row in getattr(topic, rows.partitions):
                error = None if name is None else self._check(name, row)
                if error is None:
                    kept.append(row)
                else:
                    refused.append((self._number(row), error))
            if refused:
                self.refused.append((topic, refused))
                setattr(topic, rows.partitions, kept)
                self.has_changes = True
            if kept or not refused:
                kept_topics.append(topic)
        setattr(request, rows.topics, kept_topics)
        return bool(kept_topics) or not self.refused

    def _number(self, row: Any) -> int:
        return int(getattr(row, self._rows.index)) if self._rows.index else int(row)

    def _check(self, topic: str, row: Any) -> ErrorCode | None:
        """Return why the node does not serve a partition, or None. Translate the epoch of its leader."""
        nodes, partition = self._nodes, self._number(row)
        place = nodes.place(topic, partition)
        given = getattr(row, 'current_leader_epoch', NO_EPOCH)
        if place.leader != self._exchange.node:
            epoch = nodes.epoch(topic, partition)
            if given != NO_EPOCH and epoch is not None and given != epoch:
                return ErrorCode.FENCED_LEADER_EPOCH if given < epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if given != NO_EPOCH and place.moves:
            if given < place.moves:     # older than any epoch of the broker behind
                return ErrorCode.FENCED_LEADER_EPOCH
            row.current_leader_epoch = given - place.moves
            self.has_changes = True
        return None

    def add_refused(self, response: Any) -> None:
        """Add the rows of the refused partitions to a response."""
        rows = self._rows
        message_class = type(response)
        topic_struct, row_struct = (_struct_of(message_class, rows.found_topics),
                                    _struct_of(message_class, rows.found_topics, rows.found_partitions))
        topics = getattr(response, rows.found_topics)
        by_key = {_key_of(topic): topic for topic in topics}
        for asked, refused in self.refused:
            topic = by_key.get(_key_of(asked))
            if topic is None:
                topic = topic_struct()
                _copy_name(asked, topic)
                topics.append(topic)
            found = getattr(topic, rows.found_partitions)
            for number, error in refused:
                row = row_struct(**{rows.found_index: number, 'error_code': error})
                for field, value in ABSENT.items():
                    if hasattr(row, field):
                        setattr(row, field, value)
                found.append(row)


def has_leaders(exchange: Exchange, response: Any) -> bool:
    """Return whether the broker behind has named itself as a leader in a response, or its address."""
    rows = LED[ApiKey(exchange.key)]
    return bool(getattr(response, 'node_endpoints', ())) or any(
        row.error_code in NEW_LEADER for topic in getattr(response, rows.found_topics)
        for row in getattr(topic, rows.found_partitions))


def name_leaders(nodes: VirtualBrokers, exchange: Exchange, response: Any, addresses: Iterable[tuple[int, str, int]]
                 ) -> None:
    """Replace the leaders in the rows of a response by virtual brokers, and add their addresses.

    `addresses` has (id, host, port) of all virtual brokers that are running.
    """
    rows = LED[ApiKey(exchange.key)]
    wanted = set()
    # A client could not reach a leader that it does not know yet, so brokers do not name it in these versions.
    is_without_endpoints = exchange.key == ApiKey.FETCH and exchange.version < FIRST_FETCH_WITH_ENDPOINTS
    for topic in getattr(response, rows.found_topics):
        name = topic_name(topic, nodes)
        for row in getattr(topic, rows.found_partitions):
            leader = getattr(row, 'current_leader', None)
            if leader is None or row.error_code not in NEW_LEADER or name is None:
                continue
            partition = getattr(row, rows.found_index)
            place, epoch = nodes.place(name, partition), nodes.epoch(name, partition)
            if place.leader is not None and epoch is not None and not is_without_endpoints:
                leader.leader_id, leader.leader_epoch = place.leader, epoch
                wanted.add(place.leader)
            else:
                leader.leader_id = leader.leader_epoch = NO_EPOCH
    if hasattr(response, 'node_endpoints'):
        endpoint = _struct_of(type(response), 'node_endpoints')
        response.node_endpoints = [endpoint(node_id=node, host=host, port=port)
                                   for node, host, port in addresses if node in wanted]


def _struct_of(message_class: Any, *path: str) -> Any:
    """Return the class of the structs in an array of a message."""
    struct = message_class.schema.struct
    for name in path:
        struct = next(field.struct for field in struct.fields if field.name == name)
    return getattr(message_class, struct.name)


def _key_of(topic: Any) -> object:
    return next((value for field in ('name', 'topic') if (value := getattr(topic, field, None))),
                getattr(topic, 'topic_id', b''))


def _copy_name(asked: Any, topic: Any) -> None:
    for field in ('topic_id',):
        if hasattr(asked, field) and hasattr(topic, field):
            setattr(topic, field, getattr(asked, field))
    name = getattr(asked, 'name', None) or getattr(asked, 'topic', None)
    for field in ('name', 'topic'):
        if name and hasattr(topic, field):
            setattr(topic, field, name)
