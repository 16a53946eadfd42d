"""The encoding and decoding of the rows of `__transaction_state`."""
from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kbroker.base.errors import CorruptLogError
from kbroker.base.internal_topics import TRANSACTION_STATE
from kbroker.protocol.messages import TransactionLogValue
from kbroker.protocol.rows import NewerRowError, RowError, decode_row_key, decode_row_value
from kbroker.record.batch import BatchHeader
from kbroker.record.records import decode_records
from kbroker.transaction.row_encoder import encode_key, encode_value
from kbroker.transaction.state import STORED, TransactionRow, TransactionState

if TYPE_CHECKING:
    from kbroker.topics.partition import Partition

logger = logging.getLogger(__name__)

Row = tuple[bytes, bytes | None]
"""(key, value) of a record. A record whose value is None is the tombstone of its transactional.id."""


def value_version(transaction_version: int) -> int:
    """Return the version of row values for a finalized level of `transaction.version`: 0, or 1, which is flexible."""
    return 1 if transaction_version >= 1 else 0


def encode_row(transactional_id: str, row: TransactionRow, version: int) -> Row:
    """Return the record for `row`.

    Version 0 has no fields for the previous and next producer id, the last and next epoch and the client's version.
    """
    return encode_key(transactional_id), encode_value(row, version)


def encode_tombstone(transactional_id: str) -> Row:
    return encode_key(transactional_id), None


def read_all(partition: Partition) -> dict[str, TransactionRow]:
    """Return {transactional.id: its last row} of the partition. A tombstone removes the id.

    Raise CorruptLogError if a row has a newer version. Skipping the row instead would lose a transaction.
    """
    found: dict[str, TransactionRow] = {}

    def replay(header: BatchHeader, batch: memoryview) -> None:
        if header.is_control:
            return
        for record in decode_records(batch):
            try:
                transactional_id, row = decode_row(record.key, record.value)
            except NewerRowError as error:
                raise CorruptLogError(f'{TRANSACTION_STATE}-{partition.partition}: the row at offset {record.offset} '
                                      f'cannot be read: {error}') from error
            except RowError as error:
                logger.warning('%s-%d, offset %d: skipped, %s', TRANSACTION_STATE, partition.partition, record.offset,
                               error)
                continue
            if row is None:
                found.pop(transactional_id, None)
            else:
                found[transactional_id] = row

    partition.replay_all(replay)
    return found


def decode_row(key: bytes | None, value: bytes | None) -> tuple[str, TransactionRow | None]:
    """Return (transactional.id, row) of a record. The row of a tombstone is None.

    Raise RowError for an unknown type, version or state.
    """
    row_key = decode_row_key(TRANSACTION_STATE, key or b'')
    if row_key is None:
        raise RowError(f'found a key of unknown type in {key!r}')
    return row_key.transactional_id, None if value is None else _decode_value(value)


def _decode_value(data: bytes) -> TransactionRow:
    value = decode_row_value(TransactionLogValue, data)
    if value.transaction_status not in STORED:
        raise RowError(f'found transaction status {value.transaction_status}, expected 0 to 5')
    return TransactionRow(
        TransactionState(value.transaction_status), value.producer_id, value.producer_epoch,
        value.transaction_timeout_ms, value.transaction_last_update_timestamp_ms, value.transaction_start_timestamp_ms,
        frozenset((topic.topic, partition) for topic in value.transaction_partitions or ()
                  for partition in topic.partition_ids),
        value.previous_producer_id, value.next_producer_id,
        last_producer_epoch=value.last_producer_epoch, client_transaction_version=value.client_transaction_version,
        next_producer_epoch=value.next_producer_epoch)
