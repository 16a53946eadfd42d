"""The end of a transaction by its handle: transactional.id, producer id and epoch, from any process (KIP-890).

A transaction of transaction.version 2 ends with EndTxn v5, which raises the epoch. From then on the old pair names this
one transaction, and the coordinator answers the same decision about it in the same way, until the id is initialized.
"""
from __future__ import annotations

from kbroker.client.cluster import Cluster, KeyType
from kbroker.client.errors import check, known_code
from kbroker.client.transaction_state import PreparedTransaction, ProducerFencedError, TransactionError
from kbroker.errors import ErrorCode, KafkaError
from kbroker.protocol import messages

HANDLE_VERSION = 5
"""The first version of EndTxn whose pair names one transaction."""

_FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH,
                     ErrorCode.INVALID_PRODUCER_ID_MAPPING})


def end_by_handle(cluster: Cluster, transactional_id: str, pair: PreparedTransaction, commit: bool,
                  timeout_ms: int) -> None:
    """Commit or abort the transaction of this pair. To repeat the call with the same decision changes nothing.

    Raises TransactionError or ProducerFencedError if the transaction ended the other way, ProducerFencedError if the
    pair is not that of the id's last transaction, and KafkaError(UNSUPPORTED_VERSION) below transaction.version 2.
    """
    what = f'{"committing" if commit else "aborting"} {pair} of transactional.id {transactional_id!r}'
    request = messages.EndTxnRequest(transactional_id=transactional_id, producer_id=pair.producer_id,
                                     producer_epoch=pair.producer_epoch, committed=commit)

    def end() -> None:
        connection = cluster.coordinator(KeyType.TRANSACTION, transactional_id)
        level = connection.finalized_features.get('transaction.version', 0)
        if level < 2:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f'{what}: found transaction.version {level}, expected 2: '
                             'before it, a pair is that of many transactions')
        check(connection.call(request, min_version=HANDLE_VERSION, max_version=HANDLE_VERSION).error_code, what)

    try:
        cluster.retrying(end, what, also=(ErrorCode.CONCURRENT_TRANSACTIONS,), timeout_ms=timeout_ms)
    except KafkaError as error:
        code = known_code(error.code)
        if code in _FENCED:
            raise ProducerFencedError(code, f'{error} (the transaction ended the other way, or a newer producer has '
                                            'the id)') from error
        if code is ErrorCode.INVALID_TXN_STATE:
            raise TransactionError(code, f'{error} (the transaction ended the other way, or never began)') from error
        raise
