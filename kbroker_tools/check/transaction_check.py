"""The comparison of `__transaction_state` with the data partitions.

Each open transaction must have a row of the coordinator. Each transaction that has ended must have a marker in each of
its partitions.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kbroker.base.internal_topics import TRANSACTION_STATE
from kbroker.base.topic_partition import TopicPartition
from kbroker.log.check import OpenTransaction
from kbroker.transaction.state import PREPARED, TransactionRow, TransactionState
from kbroker_tools.rows.coordinator_replay import Batches, transaction_rows

OpenTransactions = Mapping[TopicPartition, list[OpenTransaction]]

SHOWN_PARTITIONS = 3
IN_TRANSACTION = PREPARED | {TransactionState.ONGOING}


class Remark(NamedTuple):
    """A disagreement between the log of a partition and `__transaction_state`."""

    is_error: bool
    topic_partition: TopicPartition
    offset: int
    """The offset of the batch in the partition, or of the row in `__transaction_state`."""
    message: str


@dataclass
class _Life:
    """The state of one transactional.id: the row that was written last, and the last Prepare row. The Prepare row says
    whether the transaction commits or aborts."""

    transactional_id: str
    partition: int
    row: TransactionRow
    offset: int
    decision: TransactionRow | None = None
    """The last Prepare row. It is kept because a Complete row does not name the partitions."""


class TransactionCheck:
    """The comparison of the rows of `__transaction_state` with the transactions that are open in partitions."""

    def __init__(self, state_batches: Mapping[int, Batches]):
        """`state_batches` maps each partition number of `__transaction_state` to its batches."""
        self._lives: dict[str, _Life] = {}
        for partition, batches in state_batches.items():
            for record, transactional_id, row in transaction_rows(batches):
                self._note(partition, record.offset, transactional_id, row)

    def _note(self, partition: int, offset: int, transactional_id: str, row: TransactionRow | None) -> None:
        before = self._lives.pop(transactional_id, None)
        if row is not None:
            decision = row if row.state in PREPARED else before.decision if before is not None else None
            self._lives[transactional_id] = _Life(transactional_id, partition, row, offset, decision)

    def run(self, open_transactions: OpenTransactions, known: set[TopicPartition] | None) -> Iterator[Remark]:
        """Yield the disagreements.

        `open_transactions` has the open transactions of each partition that was read. `known` has all existing
        partitions, or is None if they are unknown.
        """
        by_producer: dict[int, _Life] = {}
        for life in self._lives.values():
            if life.decision is not None:
                by_producer[life.decision.producer_id] = life
            by_producer[life.row.producer_id] = life
        for topic_partition, transactions in sorted(open_transactions.items()):
            for transaction in transactions:
                message = _judge(topic_partition, transaction, by_producer.get(transaction.producer_id))
                if message is not None:
                    yield Remark(True, topic_partition, transaction.first_offset, message)
        for life in self._lives.values():
            yield from _judge_row(life, open_transactions, known)


def _judge(topic_partition: TopicPartition, transaction: OpenTransaction, life: _Life | None) -> str | None:
    """Return the error for a transaction that is open in a partition, or None if the coordinator's rows show it as open
    too."""
    what = (f'found an open transaction of producer {transaction.producer_id}, epoch {transaction.producer_epoch}, '
            f'since offset {transaction.first_offset}')
    if life is None:
        return f'{what}, and no transactional.id with this producer id: it hangs'
    row, decision = life.row, life.decision
    whose = f'{life.transactional_id!r} is {row.state.title} in epoch {row.producer_epoch}'
    if (row.producer_id == transaction.producer_id and topic_partition in row.partitions
            and row.state in IN_TRANSACTION and transaction.producer_epoch <= row.producer_epoch):
        return None
    if decision is not None and _decided(topic_partition, transaction, decision):
        ending = 'COMMIT' if decision.state is TransactionState.PREPARE_COMMIT else 'ABORT'
        return f'{what}, whose {ending} marker is missing: {whose}'
    return f'{what}, which its coordinator does not know: {whose} and does not name the partition; it hangs'


def _decided(topic_partition: TopicPartition, transaction: OpenTransaction, decision: TransactionRow) -> bool:
    """Return whether a Prepare row ends this transaction. If the row bumps the epoch, the transaction has a lower epoch
    than the row (KIP-890)."""
    if decision.producer_id != transaction.producer_id or topic_partition not in decision.partitions:
        return False
    last_epoch = decision.producer_epoch - 1 if decision.bumps_epoch else decision.producer_epoch
    return transaction.producer_epoch <= last_epoch


def _judge_row(life: _Life, open_transactions: OpenTransactions,
               known: set[TopicPartition] | None) -> Iterator[Remark]:
    row = life.row
    if row.state not in IN_TRANSACTION:
        return
    place = TRANSACTION_STATE, life.partition
    whose = f'{life.transactional_id!r} is {row.state.title} in epoch {row.producer_epoch}'
    gone = sorted(key for key in row.partitions if known is not None and key not in known)
    if gone:
        yield Remark(False, place, life.offset, f'{whose} and names {_shown(gone)}, which do not exist')
    silent = sorted(key for key in row.partitions if key in open_transactions and not any(
        transaction.producer_id == row.producer_id for transaction in open_transactions[key]))
    if row.state in PREPARED:
        yield Remark(False, place, life.offset, f'{whose}: its markers are in {len(silent)} of {len(row.partitions)} '
                                                'partitions; the next start completes it')
    elif silent:
        yield Remark(False, place, life.offset, f'{whose} and names {_shown(silent)}, where it has written nothing')


def _shown(partitions: list[TopicPartition]) -> str:
    names = [f'{topic}-{partition}' for topic, partition in partitions[:SHOWN_PARTITIONS]]
    more = len(partitions) - len(names)
    return ', '.join(names) + (f' and {more} more' if more else '')
