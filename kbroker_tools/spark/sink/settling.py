"""The end of the transactions that tasks have left open, by the phases of a unit (a micro-batch or a job).

    phase      entered from                   meaning
    PLANNED    (the start)                    the plan may decide
    CHECKED    PLANNED                        staged rows are written; each transaction of the unit is open, and will
                                              stay open for decisionMargin
    DECIDED    CHECKED                        the ledger has the unit and the handles of its transactions
    COMMITTED  DECIDED                        each of these transactions is committed
    WITHDRAWN  PLANNED                        the plan can no longer decide; the ledger shows whether it has decided
    SETTLED    COMMITTED, WITHDRAWN           no transaction of the plan is open; a late attempt ends its own
                                              transaction (`protocol.check_current`)

A transaction is committed only after the decision that names it. It is aborted only when no plan can name it any more.
"""
from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

from kbroker.client.producer_id import ProducerIdAndEpoch
from kbroker_tools.spark.sink.values import (
    NO_TIMEOUT_MS,
    Decision,
    Handle,
    LostRowsError,
    OpenTransaction,
    Plan,
    SinkError,
    Staged,
    Store,
    tasks_of,
)


class Phase(Enum):
    PLANNED = auto()
    CHECKED = auto()
    DECIDED = auto()
    COMMITTED = auto()
    WITHDRAWN = auto()
    SETTLED = auto()


ENTERED_FROM: dict[Phase, frozenset[Phase]] = {
    Phase.PLANNED: frozenset(),
    Phase.CHECKED: frozenset({Phase.PLANNED}),
    Phase.DECIDED: frozenset({Phase.CHECKED}),
    Phase.COMMITTED: frozenset({Phase.DECIDED}),
    Phase.WITHDRAWN: frozenset({Phase.PLANNED}),
    Phase.SETTLED: frozenset({Phase.COMMITTED, Phase.WITHDRAWN}),
}


class Settlement(NamedTuple):
    """The transactions that were ended: `committed` and `aborted`. `lost` has transactions that a decision names
    although they had been aborted before."""

    committed: tuple[Handle, ...] = ()
    aborted: tuple[Handle, ...] = ()
    lost: tuple[Handle, ...] = ()


class UnitEnding:
    """The end of one unit, by the plan that may decide the unit. If a method is called in the wrong phase, it raises
    RuntimeError."""

    def __init__(self, store: Store, plan: Plan):
        self.phase = Phase.PLANNED
        self._store = store
        self._plan = plan

    def decide(self, staged: Sequence[Staged], decision: Decision, margin_ms: int) -> None:
        """Write the decision if each transaction that it names is open and will stay open for `margin_ms`.

        Raise SinkError if a transaction is not, or if another plan has claimed the prefix.
        """
        self._check_can_enter(Phase.CHECKED)
        self._store.write(staged, decision, lambda: self._check(decision.handles, margin_ms))
        self._check_can_enter(Phase.DECIDED)
        self.phase = Phase.DECIDED

    def _check(self, handles: Sequence[Handle], margin_ms: int) -> None:
        if handles:
            beginning = tasks_of(self._plan.prefix, self._plan.pair)
            found = {each.handle: each.timeout_ms for each in self._store.open_transactions(beginning)}
            self._check_none_missing([handle for handle in handles if handle not in found])
            timeout_ms = min(found[handle] for handle in handles)
            if timeout_ms < NO_TIMEOUT_MS:
                late = self._store.open_transactions(beginning, max(timeout_ms - margin_ms, 0))
                self._check_none_late({each.handle for each in late}.intersection(handles), timeout_ms, margin_ms)
        self.phase = Phase.CHECKED

    def _check_none_missing(self, missing: Sequence[Handle]) -> None:
        if missing:
            raise SinkError(f'found {len(missing)} transactions of tasks that are not open any more, expected none, '
                            f'among them {in_words(missing)}: transactionTimeout has passed, the micro-batch or '
                            f'job was stopped, or another query or driver has taken the prefix '
                            f'{self._plan.prefix!r}. Nothing was decided')

    def _check_none_late(self, late: set[Handle], timeout_ms: int, margin_ms: int) -> None:
        if late:
            raise SinkError(f'found {len(late)} transactions of tasks that are open for more than '
                            f'{timeout_ms - margin_ms} ms, their transactionTimeout ({timeout_ms} ms) less '
                            f'decisionMargin, among them {in_words(sorted(late))}: raise transactionTimeout, or write '
                            'smaller batches. Nothing was decided')

    def commit_tasks(self, decision: Decision) -> None:
        """Commit the transactions of the decided unit. Raise LostRowsError if one of them was aborted."""
        self._check_can_enter(Phase.COMMITTED)
        if decision.handles:
            check_none_lost(decision, self._store.end(decision.handles, commit=True))
        self.phase = Phase.COMMITTED

    def withdraw(self) -> None:
        """Withdraw the plan's right to decide. Another process may be about to decide at the same moment."""
        self._check_can_enter(Phase.WITHDRAWN)
        self._store.withdraw(self._plan.prefix, self._plan.pair)
        self.phase = Phase.WITHDRAWN

    def settle(self, decision: Decision | None) -> Settlement:
        """End the open transactions of this plan's attempts. Raise LostRowsError if the decision names a transaction
        that was aborted.

        `decision` is the decision of this plan, or None. If it is None, either this plan has decided nothing, or a
        later plan has already committed the decided transactions.
        """
        self._check_can_enter(Phase.SETTLED)
        found = self._store.open_transactions(tasks_of(self._plan.prefix, self._plan.pair), also=_decided(decision))
        ended = _end(self._store, found, decision)
        check_none_lost(decision, ended.lost)
        self.phase = Phase.SETTLED
        return ended

    def _check_can_enter(self, phase: Phase) -> None:
        if self.phase not in ENTERED_FROM[phase]:
            raise RuntimeError(f'found a unit that is {self.phase.name.lower()}, expected one that is '
                               + ' or '.join(sorted(each.name.lower() for each in ENTERED_FROM[phase])))


def settle_all(store: Store, prefix: str, pair: ProducerIdAndEpoch, last: Decision | None,
               confirms: bool = False) -> Settlement:
    """End the open transactions of all plans of the prefix, up to and including this plan.

    `last` must have been read after `fence` returned the pair. Raise SinkError if a newer plan exists.

    The transactions are listed first, and then the pair is confirmed. The list can therefore only have transactions of
    this plan and of older plans, even if they are ended much later. With `confirms`, the pair is confirmed even if the
    list is empty, because a newer plan may have ended the transactions.
    """
    found = _left_open(store, prefix, last)
    if (found or confirms) and store.pair(prefix) != pair:
        raise SinkError(f'another query or driver has taken the prefix {prefix!r} since the plan of this write')
    return _end(store, found, last)


def to_settle(store: Store, prefix: str, last: Decision | None) -> Settlement:
    """Return the transactions that `settle_all` would end now. Do not end them."""
    commits, aborts, others = _sorted_out(_left_open(store, prefix, last), last)
    return Settlement(tuple(commits), tuple(aborts), tuple(store.aborted(others)) if others else ())


def _left_open(store: Store, prefix: str, last: Decision | None) -> list[OpenTransaction]:
    return store.open_transactions(tasks_of(prefix), also=_decided(last))


def _decided(decision: Decision | None) -> tuple[Handle, ...]:
    """Return the transactions that must be committed. They must be committed before the next decision, after which they
    would count as undecided."""
    return decision.handles if decision is not None else ()


def _end(store: Store, found: Sequence[OpenTransaction], last: Decision | None) -> Settlement:
    """Commit the transactions in `found` that `last` names, and abort the remaining ones."""
    commits, aborts, others = _sorted_out(found, last)
    lost = store.end(commits, commit=True) if commits else []
    if aborts:
        store.end(aborts, commit=False)
    return Settlement(tuple(sorted(set(commits).difference(lost))), tuple(aborts),
                      (*lost, *(store.aborted(others) if others else ())))


def _sorted_out(found: Sequence[OpenTransaction], last: Decision | None) -> tuple[list[Handle], ...]:
    """Return three lists: the open transactions to commit, the open transactions to abort, and the decided transactions
    that are not open."""
    decided = set(_decided(last))
    is_open = {each.handle for each in found}
    return sorted(is_open & decided), sorted(is_open - decided), sorted(decided - is_open)


def check_none_lost(decision: Decision | None, lost: Sequence[Handle]) -> None:
    """Raise LostRowsError if `lost` has transactions: they were aborted although the decision names them."""
    if decision is not None and lost:
        raise LostRowsError(
            f'{decision.unit} is decided, but {len(lost)} transactions of its tasks were aborted, by their timeout '
            f'or by an operator: {in_words(lost)}. Their rows are lost. To use the prefix again, accept it: '
            f'`kbroker-transactions finish-spark --prefix {decision.prefix} --accept-loss`')


def in_words(handles: Sequence[Handle]) -> str:
    """Return the ids of the first transactions as text."""
    return ', '.join(handle.transactional_id for handle in handles[:3]) + (' ...' if len(handles) > 3 else '')
