"""The words for the parts of a history in the sentences of evidence."""
from __future__ import annotations

from kbroker_tools.verify.history import NONE, History
from kbroker_tools.verify.lines import Outcome


class Wording:
    def __init__(self, history: History):
        self._history = history

    def time(self, at: int) -> str:
        return f'{at / 1e6:.3f} s'

    def partition(self, partition: int) -> str:
        return self._history.partitions[partition]

    def reader(self, reader: int) -> str:
        found = self._history.readers[reader]
        return f'{"the final reader" if found.is_final else f"reader {reader}"} ({found.client}, {found.isolation})'

    def producer(self, producer: int) -> str:
        found = self._history.producers.get(producer)
        if found is None:
            return f'producer {producer}'
        name = '' if found.transactional_id is None else f' of {found.transactional_id!r}'
        return f'producer {producer}{name} ({found.client})'

    def record(self, number: int) -> str:
        return f'record {number} to {self.partition(self._history.writes.partition[number])}'

    def transaction(self, transaction: int) -> str:
        """Return a clause that names the transaction, its producer and its end."""
        transactions = self._history.transactions
        outcome, commit = transactions.outcome[transaction], transactions.commit[transaction]
        at = self.time(transactions.end[transaction])
        if outcome == Outcome.COMMITTED:
            end = f'was committed at {at}'
        elif outcome == Outcome.ABORTED:
            end = f'was aborted at {at}'
        elif commit == NONE:
            end = 'was never to be committed'
        else:
            end = f'has an unknown end; its commit was requested at {self.time(commit)}'
        return f'transaction {transaction} of {self.producer(transactions.producer[transaction])} {end}'

    def transactions_of(self, *numbers: int) -> tuple[int, ...]:
        found = (self._history.writes.transaction[number] for number in numbers)
        return tuple(dict.fromkeys(transaction for transaction in found if transaction != NONE))
