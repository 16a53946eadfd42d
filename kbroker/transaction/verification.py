"""The check of a transactional write by the coordinator, and the errors for the client that writes (KIP-890).

Kafka's brokers send AddPartitionsToTxn v4-5 to the coordinator for this check. They translate the coordinator's errors
into errors that the version of the producer knows. Here the broker calls its coordinator directly, and the errors are
the same.
"""
from __future__ import annotations

import enum

from kbroker.base.errors import ErrorCode

PRODUCE_VERSION_THAT_ADDS = 12
"""A Produce of this version or a later one adds its partitions to the transaction."""
TXN_OFFSET_COMMIT_VERSION_THAT_ADDS = 5
"""A TxnOffsetCommit of this version or a later one adds its partition of `__consumer_offsets` to the transaction."""


class Mode(enum.Enum):
    """The kind of check before the first write of a transaction to a partition."""

    ADD = 'add'
    """The write adds the partition to the transaction, without a separate request of the client (TV2)."""
    VERIFY = 'verify'
    """The client must have added the partition before. The client knows the error TRANSACTION_ABORTABLE."""
    VERIFY_LEGACY = 'verify, for a client from before TRANSACTION_ABORTABLE'

    @staticmethod
    def of_produce(version: int) -> Mode:
        if version >= PRODUCE_VERSION_THAT_ADDS:
            return Mode.ADD
        return Mode.VERIFY if version >= 11 else Mode.VERIFY_LEGACY

    @staticmethod
    def of_txn_offset_commit(version: int) -> Mode:
        if version >= TXN_OFFSET_COMMIT_VERSION_THAT_ADDS:
            return Mode.ADD
        return Mode.VERIFY if version >= 4 else Mode.VERIFY_LEGACY


_UNREACHABLE = dict.fromkeys((ErrorCode.NETWORK_EXCEPTION, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                              ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR),
                             ErrorCode.NOT_ENOUGH_REPLICAS)
"""Maps errors of the coordinator that a producer would not understand to an error after which the producer retries."""


def error_for_write(mode: Mode, code: ErrorCode) -> ErrorCode:
    """Return the error code with which a TxnOffsetCommit in `mode` replies to the client, for the coordinator's error
    code.
    """
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and mode is Mode.VERIFY_LEGACY:
        return ErrorCode.INVALID_TXN_STATE
    return code


def error_for_produce(mode: Mode, code: ErrorCode) -> ErrorCode:
    """Return the error code with which a Produce in `mode` replies to the client, for the coordinator's error code.

    Only TV2 producers know CONCURRENT_TRANSACTIONS.
    """
    code = error_for_write(mode, code)
    if code is ErrorCode.CONCURRENT_TRANSACTIONS and mode is not Mode.ADD:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return _UNREACHABLE.get(code, code)
