"""Decides which transactional data and markers a cleaning may drop (KIP-98), for batches in offset order.

Data of an aborted transaction is dropped at once. A marker and its row in the transaction index stay as long as a
cleaning finds a batch of the transaction. The cleaning may drop that batch, but readers may still see it.
"""
from collections.abc import Iterable

from kbroker.log.transaction_index import AbortedTransaction, TransactionIndex


class CleanedTransactions:
    """The transactions of one cleaning.

    `aborted` has the rows that touch the range to clean, in any order. `index` belongs to the segment being written.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]):
        self.index: TransactionIndex | None = None
        self._waiting = sorted(set(aborted), key=lambda row: row.first_offset, reverse=True)
        self._aborting: dict[int, AbortedTransaction] = {}
        self._met: set[int] = set()
        """The producers with data in their current transaction."""

    def drops_data(self, producer_id: int, last_offset: int) -> bool:
        """Return whether a transactional batch belongs to an aborted transaction."""
        self._begin_up_to(last_offset)
        self._met.add(producer_id)
        return producer_id in self._aborting

    def drops_marker(self, producer_id: int, last_offset: int) -> bool:
        """Return whether no data is left of the transaction that this COMMIT or ABORT marker ended."""
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
