"""The coordinator's check of a transactional write, and the errors for its client (KIP-890).

Kafka's brokers check with AddPartitionsToTxn v4-5, and translate its errors into errors that the producer's version
knows. Here the broker calls its coordinator directly; the errors are the same.
"""
from __future__ import annotations

import enum

from kbroker.base.errors import ErrorCode

PRODUCE_VERSION_THAT_ADDS = 12
"""From this version on, a Produce adds its partitions to the transaction."""
TXN_OFFSET_COMMIT_VERSION_THAT_ADDS = 5
"""From this version on, a TxnOffsetCommit adds its partition of `__consumer_offsets` to the transaction."""


class Mode(enum.Enum):
    """The kind of check before the first write to a partition in a transaction."""

    ADD = 'add'
    """TV2: the write adds the partition to the transaction, without another request of the client."""
    VERIFY = 'verify'
    """The client must have added the partition. It knows the error TRANSACTION_ABORTABLE."""
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
"""Errors of a coordinator that a producer would not understand, and the error on which it retries instead."""


def error_for_write(mode: Mode, code: ErrorCode) -> ErrorCode:
    """Return the error code that a TxnOffsetCommit in `mode` answers for the coordinator's error code."""
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.TRANSACTION_ABORTABLE and mode is Mode.VERIFY_LEGACY:
        return ErrorCode.INVALID_TXN_STATE
    return code


def error_for_produce(mode: Mode, code: ErrorCode) -> ErrorCode:
    """Return the error code that a Produce in `mode` answers for the coordinator's error code.

    Only TV2 producers know CONCURRENT_TRANSACTIONS.
    """
    code = error_for_write(mode, code)
    if code is ErrorCode.CONCURRENT_TRANSACTIONS and mode is not Mode.ADD:
        return ErrorCode.NOT_ENOUGH_REPLICAS
    return _UNREACHABLE.get(code, code)
