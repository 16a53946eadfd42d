"""Decides which transactional data and markers a cleaning may drop (KIP-98), for batches in offset order.

A cleaning drops the data of aborted transactions. It keeps a marker, and the marker's row in the transaction index, if
it still finds a batch of the transaction. Readers of the old segments may still see this batch, even if the cleaning
drops it.
"""
from collections.abc import Iterable

from kbroker.log.transaction_index import AbortedTransaction, TransactionIndex


class CleanedTransactions:
    """The transactions of one cleaning.

    `aborted` has the rows of all aborted transactions in the cleaned range, in any order. `index` is the transaction
    index of the segment that is being written.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]):
        self.index: TransactionIndex | None = None
        self._waiting = sorted(set(aborted), key=lambda row: row.first_offset, reverse=True)
        self._aborting: dict[int, AbortedTransaction] = {}
        self._met: set[int] = set()
        """The ids of producers with data in their current transaction."""

    def drops_data(self, producer_id: int, last_offset: int) -> bool:
        """Return whether a transactional batch belongs to an aborted transaction."""
        self._begin_up_to(last_offset)
        self._met.add(producer_id)
        return producer_id in self._aborting

    def drops_marker(self, producer_id: int, last_offset: int) -> bool:
        """Return whether a COMMIT or ABORT marker can be dropped: whether the log has no more data of its transaction.
        """
        self._begin_up_to(last_offset)
        row = self._aborting.pop(producer_id, None)
        if producer_id not in self._met:
            return True
        self._met.discard(producer_id)
        if row is not None and self.index is not None:
            self.index.append(row)
        return False

    def _begin_up_to(self, offset: int) -> None:
        while self._waiting and self._waiting[-1].first_offset <= offset:
            row = self._waiting.pop()
            self._aborting.setdefault(row.producer_id, row)
