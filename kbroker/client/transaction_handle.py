"""Ends a transaction, from any process, by its handle: transactional.id, producer id and epoch (KIP-890).

With transaction.version 2, a transaction ends with EndTxn v5, which bumps the epoch. So a pair of producer id and epoch
identifies one transaction. Until the transactional.id is initialized again, the coordinator answers a repeated EndTxn
with this pair and the same decision like the first EndTxn.
"""
from __future__ import annotations

from collections.abc import Mapping

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.cluster import Cluster, KeyType
from kbroker.client.connection import Connection
from kbroker.client.errors import AnswerTimeout, error_of, known_code
from kbroker.client.time_limit import OutOfTime
from kbroker.client.transaction_state import PreparedTransaction, ProducerFencedError, TransactionError
from kbroker.protocol import messages

HANDLE_VERSION = 5
"""The first version of EndTxn in which the producer id and the epoch identify one transaction."""
MOST_IN_FLIGHT = 100
"""The largest number of requests that `end_all_by_handle` has in flight at one coordinator."""

_FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH,
                     ErrorCode.INVALID_PRODUCER_ID_MAPPING})


def end_by_handle(cluster: Cluster, transactional_id: str, pair: PreparedTransaction, commit: bool,
                  timeout_ms: int) -> None:
    """Commit or abort the transaction of a producer id and epoch. A repeated call with the same decision changes
    nothing.

    Raise TransactionError or ProducerFencedError if the opposite decision has ended the transaction. Raise
    ProducerFencedError if the pair is not the pair of the last transaction of the transactional.id. Raise
    KafkaError(UNSUPPORTED_VERSION) below transaction.version 2.
    """
    for error in end_all_by_handle(cluster, {transactional_id: pair}, commit, timeout_ms).values():
        raise error


def end_all_by_handle(cluster: Cluster, pairs: Mapping[str, PreparedTransaction], commit: bool,
                      timeout_ms: int) -> dict[str, TransactionError | ProducerFencedError]:
    """Commit or abort several transactions, given as {transactional.id: pair}, with many requests in flight.

    Return {transactional.id: TransactionError or ProducerFencedError} for the transactions that could not be ended with
    this decision. Raise the other errors of `end_by_handle`; then the call may be repeated.
    """
    verb = 'committing' if commit else 'aborting'
    waiting = dict(pairs)
    refused: dict[str, TransactionError | ProducerFencedError] = {}

    def end() -> None:
        failure: KafkaError | None = None
        for node_id, names in cluster.coordinator_ids(KeyType.TRANSACTION, list(waiting)).items():
            connection = cluster.node(node_id, 'coordinator')
            _check_level(connection, f'{verb} transactions')
            for first in range(0, len(names), MOST_IN_FLIGHT):
                part = names[first:first + MOST_IN_FLIGHT]
                codes = _codes(connection, [_request(name, waiting[name], commit) for name in part])
                for name, code in zip(part, codes, strict=True):
                    error = _error(code, f'{verb} {pairs[name]} of transactional.id {name!r}')
                    if error is None or isinstance(error, TransactionError | ProducerFencedError):
                        del waiting[name]
                        if error is not None:
                            refused[name] = error
                    elif failure is None or failure.code.retriable:
                        failure = error
        if failure is not None:
            raise failure

    if waiting:
        cluster.retrying(end, f'{verb} {len(pairs)} transactions', also=(ErrorCode.CONCURRENT_TRANSACTIONS,),
                         timeout_ms=timeout_ms)
    return refused


def _request(transactional_id: str, pair: PreparedTransaction, commit: bool) -> messages.EndTxnRequest:
    return messages.EndTxnRequest(transactional_id=transactional_id, producer_id=pair.producer_id,
                                  producer_epoch=pair.producer_epoch, committed=commit)


def _codes(connection: Connection, requests: list[messages.EndTxnRequest]) -> list[int]:
    """Send all requests before receiving the answers. Return the error codes of the answers."""
    try:
        for request in requests:
            connection.send(request, min_version=HANDLE_VERSION, max_version=HANDLE_VERSION)
        return [connection.receive().error_code for _ in requests]
    except (AnswerTimeout, OutOfTime, KeyboardInterrupt):
        connection.close()
        raise


def _check_level(connection: Connection, what: str) -> None:
    level = connection.finalized_features.get('transaction.version', 0)
    if level < 2:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f'{what}: found transaction.version {level}, expected 2: '
                         'before it, a pair is that of many transactions')


def _error(code: int, what: str) -> KafkaError | None:
    """Return the error that an error code of EndTxn means, or None.

    The error is a TransactionError or a ProducerFencedError if the state of the transaction is the cause.
    """
    if not code:
        return None
    error = error_of(code, what, api='EndTxn')
    if known_code(code) in _FENCED:
        return ProducerFencedError(error.code, f'{error} (the transaction ended the other way, or a newer producer has '
                                               'the id)')
    if error.code is ErrorCode.INVALID_TXN_STATE:
        return TransactionError(error.code, f'{error} (the transaction ended the other way, or never began)')
    return error
