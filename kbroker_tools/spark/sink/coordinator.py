"""The transactional ids of a prefix at their coordinators. This module finds open transactions and ends them."""
from __future__ import annotations

import re
from collections.abc import Collection

from kbroker.base.errors import ErrorCode
from kbroker.client import Admin, KafkaError, PreparedTransaction
from kbroker.client.cluster import Cluster, KeyType
from kbroker.client.producer_id import ProducerIdAndEpoch
from kbroker.client.transaction_handle import end_all_by_handle
from kbroker.client.transaction_manager import TWO_PHASE_INIT_VERSION
from kbroker.protocol.api_keys import ApiKey
from kbroker_tools.spark.sink.values import BrokerFacts, Handle, OpenTransaction, driver_id
from kbroker_tools.stuck.expiry_interval import expiry_interval_ms

ONGOING = 'Ongoing'
NOT_COMMITTED = frozenset({'CompleteAbort', 'PrepareAbort', 'Empty'})
"""The states of a transaction that has ended without a commit. The state is Empty if an operator has forced the end."""


class TaskTransactions:
    """The transactions of tasks, and the producer id and epoch of the drivers. Methods raise KafkaError and
    ClientError."""

    def __init__(self, cluster: Cluster):
        self._cluster = cluster
        self._admin = Admin(cluster)

    def broker(self, prefix: str) -> BrokerFacts:
        """Return the properties of the broker that coordinates the drivers' transactional.id."""
        connection = self._cluster.retrying(
            lambda: self._cluster.coordinator(KeyType.TRANSACTION, driver_id(prefix)),
            f'finding the coordinator of transactional.id {driver_id(prefix)!r}')
        self._cluster.refresh([])
        return BrokerFacts(self._cluster.cluster_id, connection.finalized_features.get('transaction.version', 0),
                           connection.api_versions.get(ApiKey.INIT_PRODUCER_ID, (0, -1))[1] >= TWO_PHASE_INIT_VERSION)

    def expiry_interval_ms(self, prefix: str) -> int | None:
        """Return the interval in milliseconds at which the coordinator of the drivers looks for expired transactions.
        Return None if the interval is unknown."""
        node_id = self._cluster.retrying(lambda: self._cluster.coordinator_id(KeyType.TRANSACTION, driver_id(prefix)),
                                         f'finding the coordinator of transactional.id {driver_id(prefix)!r}')
        return expiry_interval_ms(self._admin, node_id)

    def pair(self, prefix: str) -> ProducerIdAndEpoch:
        """Return the pair (producer id and epoch) of the drivers' transactional.id."""
        name = driver_id(prefix)
        found = self._admin.describe_transactions([name])[name]
        if isinstance(found, KafkaError):
            raise found
        return ProducerIdAndEpoch(found.producer_id, found.producer_epoch)

    def ids(self, beginning: str, state_filters: Collection[str] = (), longer_than_ms: int = -1) -> list[str]:
        """Return the transactional ids that begin with `beginning`. The broker must have transaction.version 2."""
        pattern = f'{re.escape(beginning)}.*'
        try:
            found = self._admin.list_transactions(state_filters, (), longer_than_ms, pattern)
        except KafkaError as error:
            if error.code is not ErrorCode.UNSUPPORTED_VERSION:
                raise
            found = self._admin.list_transactions(state_filters, (), longer_than_ms)    # 4.0 has no patterns
        return [row.transactional_id for row in found if row.transactional_id.startswith(beginning)]

    def open_transactions(self, beginning: str, longer_than_ms: int = -1,
                          also: Collection[Handle] = ()) -> list[OpenTransaction]:
        listed = self.ids(beginning, [ONGOING], longer_than_ms)
        described = self._admin.describe_transactions([*listed, *(handle.transactional_id for handle in also)])
        rows = []
        for found in described.values():
            if not isinstance(found, KafkaError):
                rows.append(found)
            elif found.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise found
        return [OpenTransaction(Handle(row.transactional_id, ProducerIdAndEpoch(row.producer_id, row.producer_epoch)),
                                row.timeout_ms) for row in rows if row.state == ONGOING]

    def end(self, handles: Collection[Handle], commit: bool) -> list[Handle]:
        pairs = {handle.transactional_id: PreparedTransaction(*handle.pair) for handle in handles}
        refused = end_all_by_handle(self._cluster, pairs, commit, self._cluster.config.default_api_timeout_ms)
        return [handle for handle in handles if handle.transactional_id in refused]

    def aborted(self, handles: Collection[Handle]) -> list[Handle]:
        """Return the transactions in `handles` that were aborted. All of them must have ended. If the transactional.id
        of one has expired, it counts as committed."""
        described = self._admin.describe_transactions([handle.transactional_id for handle in handles])
        lost = []
        for handle in handles:
            found = described[handle.transactional_id]
            if not isinstance(found, KafkaError):
                if found.state in NOT_COMMITTED:
                    lost.append(handle)
            elif found.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise found
        return lost

    def withdraw(self, prefix: str, pair: ProducerIdAndEpoch) -> None:
        """Abort the drivers' transaction that has this pair. This raises the epoch even if the transaction has not
        begun. If the drivers have a newer pair, nothing changes."""
        self.end([Handle(driver_id(prefix), pair)], commit=False)
