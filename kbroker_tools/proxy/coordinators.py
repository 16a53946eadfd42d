"""Requests about groups and transactional ids, in front of virtual brokers.

A virtual broker serves the groups and transactional ids that it coordinates, and answers NOT_COORDINATOR for the
others. A request that names several is split, as one about partitions is.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kbroker.base.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey
from kbroker_tools.proxy.exchanges import Exchange
from kbroker_tools.proxy.nodes import GROUP, TRANSACTION, VirtualBrokers

OF_ONE_GROUP = frozenset({
    ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_DELETE, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP, ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.SHARE_GROUP_HEARTBEAT, ApiKey.STREAMS_GROUP_HEARTBEAT,
    ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE, ApiKey.TXN_OFFSET_COMMIT, ApiKey.ALTER_SHARE_GROUP_OFFSETS,
    ApiKey.DELETE_SHARE_GROUP_OFFSETS})
"""The APIs whose request has the one field `group_id`."""
OF_ONE_TRANSACTION = frozenset({ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN})
"""The APIs whose request has the one field `transactional_id`."""


@dataclass(frozen=True)
class Keys:
    """The arrays that have the keys of a request, and their rows in its response. The elements of `asked` are texts, or
    structs with the field `field`."""

    key_type: int
    asked: str
    found: str
    field: str


OF_SEVERAL = {
    ApiKey.DESCRIBE_GROUPS: Keys(GROUP, 'groups', 'groups', 'group_id'),
    ApiKey.CONSUMER_GROUP_DESCRIBE: Keys(GROUP, 'group_ids', 'groups', 'group_id'),
    ApiKey.SHARE_GROUP_DESCRIBE: Keys(GROUP, 'group_ids', 'groups', 'group_id'),
    ApiKey.STREAMS_GROUP_DESCRIBE: Keys(GROUP, 'group_ids', 'groups', 'group_id'),
    ApiKey.DELETE_GROUPS: Keys(GROUP, 'groups_names', 'results', 'group_id'),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: Keys(GROUP, 'groups', 'groups', 'group_id'),
    ApiKey.DESCRIBE_TRANSACTIONS: Keys(TRANSACTION, 'transactional_ids', 'transaction_states', 'transactional_id'),
}
OFFSET_FETCH_KEYS = Keys(GROUP, 'groups', 'groups', 'group_id')
FIRST_OFFSET_FETCH_OF_SEVERAL = 8
LISTS = {ApiKey.LIST_GROUPS: Keys(GROUP, '', 'groups', 'group_id'),
         ApiKey.LIST_TRANSACTIONS: Keys(TRANSACTION, '', 'transaction_states', 'transactional_id')}
"""The APIs with which a client asks each broker for what it coordinates."""


def keys_of(exchange: Exchange) -> Keys | None:
    """Return the arrays with the keys of a request that names several, or None for any other request."""
    if exchange.key == ApiKey.OFFSET_FETCH:
        return OFFSET_FETCH_KEYS if exchange.version >= FIRST_OFFSET_FETCH_OF_SEVERAL else None
    return OF_SEVERAL.get(ApiKey(exchange.key))


def key_of(exchange: Exchange) -> tuple[int, str] | None:
    """Return (type, key) of a request that names one group or transactional id, or None for any other request."""
    key, request = exchange.key, exchange.request
    if key in OF_ONE_GROUP or (key == ApiKey.OFFSET_FETCH and exchange.version < FIRST_OFFSET_FETCH_OF_SEVERAL):
        return GROUP, request.group_id
    if key in OF_ONE_TRANSACTION:
        return None if request.transactional_id is None else (TRANSACTION, request.transactional_id)
    if key == ApiKey.ADD_PARTITIONS_TO_TXN and not request.transactions:    # several ones come only from brokers
        return TRANSACTION, request.v3_and_below_transactional_id
    return None


class CoordinatorCheck:
    """The keys of a request that names several, by whether its node coordinates them."""

    def __init__(self, nodes: VirtualBrokers, exchange: Exchange, keys: Keys):
        self._nodes = nodes
        self._exchange = exchange
        self._keys = keys
        self.refused: list[str] = []

    def split(self) -> bool:
        """Take the keys that the node does not coordinate out of the request. Return whether any are left."""
        request, kept = self._exchange.request, []
        for element in getattr(request, self._keys.asked):
            key = element if isinstance(element, str) else getattr(element, self._keys.field)
            if self._nodes.coordinator(self._keys.key_type, key) == self._exchange.node:
                kept.append(element)
            else:
                self.refused.append(key)
        setattr(request, self._keys.asked, kept)
        return bool(kept) or not self.refused

    def add_refused(self, response: Any) -> None:
        """Add the rows of the refused keys to a response."""
        cls = type(response)
        struct = next(field.struct for field in cls.schema.struct.fields if field.name == self._keys.found)
        rows = getattr(response, self._keys.found)
        for key in self.refused:
            rows.append(getattr(cls, struct.name)(**{self._keys.field: key, 'error_code': ErrorCode.NOT_COORDINATOR}))


def list_filter(nodes: VirtualBrokers, exchange: Exchange) -> Callable[[Any], None] | None:
    """Return the change that leaves only what the node coordinates in the answer, if the request lists all."""
    keys = LISTS.get(ApiKey(exchange.key))
    if keys is None:
        return None

    def change(response: Any) -> None:
        rows = getattr(response, keys.found)
        setattr(response, keys.found, [row for row in rows if nodes.coordinator(
            keys.key_type, getattr(row, keys.field)) == exchange.node])

    return change
