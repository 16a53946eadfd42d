"""The protocol of the sink, without Spark and without a broker: plan, task, commit, abort.

A unit is a micro-batch or a job. A pair is a producer id and its epoch.

    plan     raises the epoch of the drivers' transactional.id, which fences every older plan. Then it reads the
             decisions, including all decisions of the fenced plans, and ends the transactions that the fenced plans
             left open.
    task     skips a unit that is decided. Otherwise it stages its rows for the commit, or writes them in its own
             transaction, which it leaves open. If the plan can no longer decide, the result says so and the task does
             not fail, because Spark's abort learns only from results which plan is its own.
    commit   writes staged rows and the decision in one transaction with the pair of the plan. The decision names the
             transactions of the tasks, which are committed after it.
    abort    withdraws the plan's right to decide, and ends the plan's transactions. If the unit is decided, they are
             committed.

Two plans never decide the same unit. The later plan reads the ledger after it has fenced the earlier plan. Either it
finds the decision of the earlier plan and skips the unit, or the earlier plan can no longer decide.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from kbroker.base.errors import KafkaError
from kbroker.client.errors import ClientError
from kbroker.client.producer_id import ProducerIdAndEpoch
from kbroker_tools.spark.sink.settling import Settlement, UnitEnding, check_none_lost, settle_all, to_settle
from kbroker_tools.spark.sink.values import (
    HANDLE_LEVEL,
    TOO_LARGE,
    BrokerFacts,
    Commit,
    DecidedError,
    Decision,
    LateError,
    LostRowsError,
    Plan,
    SinkError,
    Staged,
    Store,
    is_urgent,
)
from kbroker_tools.stuck.expiry_interval import EXPIRY_INTERVAL


class Wanted(NamedTuple):
    """The ways in which the user allows tasks to write."""

    commit: Commit = Commit.DRIVER
    two_phase: bool | None = None
    """True if two-phase commit is required, False if it is not used. With None, it is used if the broker has it."""
    margin_ms: int = 0
    """The option decisionMargin. It has an effect only if transactions of tasks may time out."""


class Bounds(NamedTuple):
    """The limits that a decision must keep."""

    driver_bytes: int
    margin_ms: int = 0


def choose(wanted: Wanted, broker: BrokerFacts) -> tuple[Commit, bool]:
    """Return how tasks may write on this broker, and whether in two-phase commit. Raise SinkError if the broker does
    not support what the user wants."""
    if wanted.commit is Commit.DRIVER:
        return Commit.DRIVER, False
    if wanted.two_phase and not broker.has_two_phase:
        raise SinkError('found a broker without two-phase commit (InitProducerId 6), which twoPhase=on needs: set '
                        'transaction.two.phase.commit.enable=true in kbroker, or use twoPhase=auto')
    if broker.transaction_version < HANDLE_LEVEL:
        if wanted.commit is Commit.AUTO:
            return Commit.DRIVER, False
        raise SinkError(f'found a broker with transaction.version {broker.transaction_version}, expected '
                        f'{HANDLE_LEVEL}, which commit=prepared needs: raise the feature, or use commit=driver')
    return wanted.commit, broker.has_two_phase and wanted.two_phase is not False


def plan(store: Store, prefix: str, is_owner: Callable[[str], bool], wanted: Wanted) -> Plan:
    """Fence older plans of the prefix, read the decisions, and end the transactions that the fenced plans left open.

    The new plan has the decisions of the owners for which `is_owner` returns true. Raise SinkError if a newer plan
    exists or if the broker lacks a wanted feature. Raise LostRowsError if a decided unit has lost rows.
    """
    store.check_topic()
    broker = store.broker(prefix)
    commit, is_two_phase = choose(wanted, broker)
    if commit is not Commit.DRIVER and not is_two_phase:
        _check_margin(wanted.margin_ms, store.expiry_interval_ms(prefix))
    pair = store.fence(prefix, is_urgent(commit, is_two_phase))
    decisions = store.decisions(prefix)
    if broker.transaction_version >= HANDLE_LEVEL:
        last = _last(decisions)
        # Fail now if a newer plan exists. Otherwise all tasks of this plan would run first and then be late.
        ended = settle_all(store, prefix, pair, last, confirms=commit is not Commit.DRIVER)
        check_none_lost(last, ended.lost)
    decided = {decision.unit.owner: decision.unit.batch for decision in decisions if is_owner(decision.unit.owner)}
    return Plan(prefix, broker.cluster_id, pair, decided, commit, is_two_phase)


def _check_margin(margin_ms: int, interval_ms: int | None) -> None:
    """Raise SinkError unless half of the margin is longer than the interval at which the broker looks for expired
    transactions.

    A decision may take half of the margin. The broker refuses a later decision only after its next look, which is up to
    an interval later. The transactions of the tasks may time out at the end of the margin. The next look must therefore
    come before the end of the margin.
    """
    if interval_ms is not None and margin_ms <= 2 * interval_ms:
        raise SinkError(f'found a decisionMargin of {margin_ms} ms, expected more than {2 * interval_ms} ms: the '
                        f'broker looks for expired transactions every {interval_ms} ms, and half of the margin '
                        f'must be longer. Raise decisionMargin, or lower {EXPIRY_INTERVAL} of the broker')


def check_current(store: Store, plan: Plan) -> None:
    """Raise LateError if the plan can no longer decide. A task calls this before and after its transaction begins.

    Three events change the pair of the drivers: a decision, an abort and a newer plan. After the change, each of them
    ends the open transactions of the tasks. If a transaction is open and the pair has not changed, a later event will
    end the transaction. If the pair has changed, the task must not begin a transaction, or must end it, because no
    event may end it any more.
    """
    pair = store.pair(plan.prefix)
    if pair != plan.pair:
        raise LateError(f'the write of this task comes too late: its micro-batch or job is decided or was aborted, or '
                        f'another query or driver has taken the prefix {plan.prefix!r} (found the producer id and '
                        f'epoch {pair.producer_id}:{pair.producer_epoch}, expected {plan.pair.producer_id}:'
                        f'{plan.pair.producer_epoch})')


def commit(store: Store, messages: Sequence[Staged | None], bounds: Bounds) -> Decision | None:
    """Decide the unit to which these messages belong. Return None if it was already decided.

    Before the decision, raise SinkError, KafkaError or ClientError. After the decision, raise DecidedError or
    LostRowsError.
    """
    staged = [message for message in messages if message is not None]
    if len(staged) != len(messages) or not staged:
        raise SinkError(f'found {len(messages)} tasks with {len(staged)} results, expected one of each task')
    first = staged[0]
    for other in staged:
        if (other.plan.pair, other.unit) != (first.plan.pair, first.unit):
            raise SinkError(f'found results of {first.unit} and of {other.unit}, expected those of one plan')
    if first.is_skipped:
        return None
    late = next((message.late for message in staged if message.late), None)
    if late is not None:
        raise SinkError(late)
    size = sum(message.size_bytes for message in staged)
    if size > bounds.driver_bytes:
        raise SinkError(f'the tasks have staged {size:,} bytes, maxDriverBytes is {bounds.driver_bytes:,}: '
                        f'{TOO_LARGE[first.plan.commit]}')
    handles = tuple(message.handle for message in staged if message.handle is not None)
    decision = Decision(first.plan.prefix, first.unit, sum(message.rows for message in staged), first.plan.pair,
                        handles)
    ending = UnitEnding(store, first.plan)
    ending.decide(staged, decision, bounds.margin_ms)
    if first.plan.commit is not Commit.DRIVER:
        _end_decided(ending, decision)
    return decision


def _end_decided(ending: UnitEnding, decision: Decision) -> None:
    try:
        ending.commit_tasks(decision)
        ending.settle(decision)
    except LostRowsError:
        raise
    except (KafkaError, ClientError) as error:
        raise DecidedError(
            f'{decision.unit} is decided and must not be repeated, but not all its transactions could be ended: '
            f'{error}. The next plan of the prefix ends them, and so does `kbroker-transactions finish-spark --prefix '
            f'{decision.prefix}`') from error


class Stopped(NamedTuple):
    """The result of `abort`."""

    ended: Settlement
    is_decided: bool
    """True if the unit was decided before the abort."""


def abort(store: Store, plan: Plan) -> Stopped | None:
    """End a unit that was not committed or whose commit has failed. Raise KafkaError or ClientError if the broker
    fails, and LostRowsError if a decided unit has lost rows.

    If the unit was decided, its transactions are committed. A newer plan is not affected. With commit=driver the result
    is None: tasks have written nothing, and the next plan ends the driver's transaction.
    """
    if plan.commit is Commit.DRIVER:
        return None
    ending = UnitEnding(store, plan)
    ending.withdraw()
    last = _last(store.decisions(plan.prefix))
    own = last if last is not None and last.pair == plan.pair else None
    return Stopped(ending.settle(own), own is not None)


def abort_last(store: Store, prefix: str) -> Stopped | None:
    """Abort the unit of the plan that has the prefix now. This is for a caller that does not know its own plan.

    Spark's abort does not know its plan if no task has finished. If a newer driver has the prefix, its unit is aborted,
    and that driver fails and must repeat it.
    """
    if store.broker(prefix).transaction_version < HANDLE_LEVEL:
        return None
    return abort(store, Plan(prefix, None, store.pair(prefix), {}, Commit.PREPARED))


class Finished(NamedTuple):
    """The result of `finish`."""

    ended: Settlement
    decisions: list[Decision]
    pair: ProducerIdAndEpoch
    """The new producer id and epoch of the drivers."""


class Preview(NamedTuple):
    """The result of `preview`."""

    to_end: Settlement
    decisions: list[Decision]
    hides_some: bool
    """True if an open transaction in the ledger may hide decisions that are later than the transaction."""


def preview(store: Store, prefix: str, waits: bool) -> Preview:
    """Return the transactions that `finish` would end now, and the decisions. Change nothing.

    With `waits`, first wait until no open transaction hides a row of the ledger, so that all decisions are known.
    """
    has_handles = store.broker(prefix).transaction_version >= HANDLE_LEVEL
    found, hides_some = (store.decisions(prefix), False) if waits else store.visible_decisions(prefix)
    return Preview(to_settle(store, prefix, _last(found)) if has_handles else Settlement(), found, hides_some)


def finish(store: Store, prefix: str, accept_loss: bool) -> Finished:
    """Fence all plans of the prefix, and end the transactions that they left open.

    Raise LostRowsError if a decided unit has lost rows. With `accept_loss`, write the decision of this unit again,
    without its transactions, so that later plans do not report the loss.
    """
    has_handles = store.broker(prefix).transaction_version >= HANDLE_LEVEL
    pair = store.fence(prefix)
    decisions = store.decisions(prefix)
    last = _last(decisions)
    ended = settle_all(store, prefix, pair, last) if has_handles else Settlement()
    if not accept_loss:
        check_none_lost(last, ended.lost)
    elif last is not None and ended.lost:
        store.write([], replace(last, pair=pair, handles=()), lambda: None)
    return Finished(ended, decisions, pair)


def _last(decisions: Sequence[Decision]) -> Decision | None:
    return decisions[-1] if decisions else None
