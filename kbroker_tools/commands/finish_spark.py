"""`kbroker-transactions finish-spark --prefix P`. It ends the transactions that a dead driver of the Spark sink has
left open."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kbroker.base.errors import ErrorCode
from kbroker.client import KafkaError
from kbroker_tools.base.command import SETTINGS, Command, ToolError, output_options
from kbroker_tools.base.render import Column, Output, words_for_time
from kbroker_tools.cluster.opening import broker_options, live, open_view
from kbroker_tools.spark.sink import protocol
from kbroker_tools.spark.sink.ledger import Ledger
from kbroker_tools.spark.sink.options import LEDGER_TOPIC, parse_sink_options
from kbroker_tools.spark.sink.settling import Settlement, check_none_lost
from kbroker_tools.spark.sink.store import BrokerStore
from kbroker_tools.spark.sink.values import HANDLE_LEVEL, Decision, driver_id, tasks_of

if TYPE_CHECKING:
    from kbroker.client.admin import Admin
    from kbroker.client.descriptions import TransactionInfo

DECIDED = [Column('prefix', 'Prefix'), Column('owner', 'Owner'), Column('batch', 'Batch'), Column('rows', 'Rows'),
           Column('time_ms', 'Time'), Column('tasks', 'Tasks'), Column('producer_id', 'ProducerId'),
           Column('producer_epoch', 'ProducerEpoch')]
COMMITTED = ('PrepareCommit', 'CompleteCommit')
SETTLED = ('Empty', 'CompleteCommit', 'CompleteAbort', 'Dead')


@click.command('finish-spark', cls=Command, context_settings=SETTINGS)
@click.option('--prefix', required=True, metavar='PREFIX', help='The transactionalIdPrefix of the query.')
@click.option('--ledger-topic', default=LEDGER_TOPIC, show_default=True, metavar='TOPIC',
              help='The ledgerTopic of the query. Without the right one, decided transactions would be aborted.')
@click.option('--accept-loss', is_flag=True,
              help='Let the prefix be used again although rows of a decided micro-batch or job are lost.')
@click.option('--dry-run', is_flag=True, help='Show what would be settled or accepted. Changes nothing.')
@broker_options
@output_options
def finish_spark(prefix: str, ledger_topic: str, accept_loss: bool, dry_run: bool, as_json: bool, **place: Any) -> None:
    """Settle the open transactions of a Spark query that will not run again.

    Undecided transactions are aborted, and decided ones are committed. The report lists the last decision of each query
    and job of the prefix.

    If there is something to settle or to accept, the command fences the drivers of the prefix. A query that still runs
    with this prefix then fails in its next commit, and must be started again. Use --dry-run first to see what is open.
    """
    admin = live(open_view(**place), 'finish-spark').admin
    row = _driver(admin, prefix)
    given = {'kafka.bootstrap.servers': str(place['bootstrap_server']), 'transactionalIdPrefix': prefix,
             'ledgerTopic': ledger_topic}
    if row is not None:
        given['transactionTimeout'] = str(row.timeout_ms)
    options = parse_sink_options(given, is_stream=True)
    if not Ledger(admin.cluster, ledger_topic).exists():
        raise ToolError(f'found no topic {ledger_topic!r}, expected the ledger of the query: give --ledger-topic')
    output = Output(as_json)
    store = BrokerStore(options, admin.cluster)
    words, decisions = _finish(_Wish(prefix, accept_loss, dry_run, output), store, row)
    output.note(words)
    output.table(DECIDED, [(prefix, each.unit.owner, each.unit.batch, each.rows,
                            each.time_ms if as_json or each.time_ms is None else words_for_time(each.time_ms),
                            len(each.handles), each.pair.producer_id, each.pair.producer_epoch) for each in decisions])


def _driver(admin: Admin, prefix: str) -> TransactionInfo | None:
    """Return the description of the drivers' transactional id. Return None if the broker does not know the id."""
    name = driver_id(prefix)
    found = admin.describe_transactions([name])[name]
    if not isinstance(found, KafkaError):
        return found
    if found.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        raise found
    return None


class _Wish(NamedTuple):
    """The options in one call of the command."""

    prefix: str
    accepts_loss: bool
    is_dry_run: bool
    output: Output


def _finish(wish: _Wish, store: BrokerStore, row: TransactionInfo | None) -> tuple[str, list[Decision]]:
    """End the open transactions of the prefix. Return (a sentence about what was found, the last decisions).

    The drivers' transactional id expires when it is not used. After that, a task's transaction in two-phase commit may
    still be open.
    """
    prefix, name = wish.prefix, driver_id(wish.prefix)
    has_handles = store.broker(prefix).transaction_version >= HANDLE_LEVEL
    tasks = store.open_transactions(tasks_of(prefix)) if has_handles else []
    if row is None and not tasks:
        raise ToolError(f'found no transactional id {name!r}: no query of this prefix has written to this cluster')
    state = None if row is None else row.state
    is_settled = state in SETTLED and not tasks
    was = (f'{name!r} has expired' if row is None else f'{name!r} had a transaction in state {row.state}, '
           f'{row.producer_id}:{row.producer_epoch}')
    if wish.is_dry_run:
        found, decisions, hides_some = protocol.preview(store, prefix, waits=False)
        if not hides_some:
            _check_ledger(store.ledger_topic, row, decisions)
        unsure = '' if not hides_some else (
            f'. An open transaction in {store.ledger_topic} may hide later decisions, which could commit more: '
            f'`kbroker-transactions why-stuck {store.ledger_topic}` names it')
        return f'{was}. {_would(found, is_settled, wish.accepts_loss)}{unsure}. Nothing was changed', decisions
    if is_settled:
        found, decisions, _ = protocol.preview(store, prefix, waits=True)
        if not wish.accepts_loss:
            check_none_lost(decisions[-1] if decisions else None, found.lost)
        if not found.lost:
            return f'{name!r} has no open transaction ({state}), and its tasks have none', decisions
    if state in COMMITTED:
        _check_ledger(store.ledger_topic, row, store.decisions(prefix))
    wish.output.note(f'fencing the drivers of {name!r}: a query that still runs with this prefix fails in its next '
                     'commit')
    done = protocol.finish(store, prefix, wish.accepts_loss)
    return (f'{was}. It is settled, and its driver is fenced: the id has the pair {done.pair.producer_id}:'
            f'{done.pair.producer_epoch}. Of the transactions of its tasks, {len(done.ended.committed)} were committed '
            f'and {len(done.ended.aborted)} aborted; {len(done.ended.lost)} decided ones are lost', done.decisions)


def _check_ledger(topic: str, row: TransactionInfo | None, decisions: Sequence[Decision]) -> None:
    """Raise ToolError if the drivers' last transaction was a decision that is missing in the ledger. Another ledger
    topic must then have the decision.

    The end of a transaction raises the epoch by one, or begins a new producer id with epoch 0. Older brokers do not do
    this. A query that is running may have decided again after `row` was read.
    """
    if row is None or row.state not in COMMITTED:
        return
    if not any(row.producer_epoch == 0 if each.pair.producer_id != row.producer_id
               else row.producer_epoch - each.pair.producer_epoch <= 1 for each in decisions):
        raise ToolError(f'the query of this prefix has made a decision as producer {row.producer_id}, at epoch '
                        f'{row.producer_epoch} or the one before. It is not in {topic}, so this is not the ledger of '
                        'the query: give its ledgerTopic with --ledger-topic. Nothing was changed')


def _would(found: Settlement, is_settled: bool, accepts_loss: bool) -> str:
    """Return a sentence that says what the command would do."""
    if is_settled and not found.lost:
        return 'There is nothing to settle, so no driver would be fenced'
    lost = f'{len(found.lost)} decided ones are lost'
    if found.lost:
        lost += ': the loss would be accepted' if accepts_loss else ': the command would fail without --accept-loss'
    fence = '' if is_settled and not accepts_loss else 'The drivers would be fenced. '
    return (f'{fence}Of the transactions of its tasks, {len(found.committed)} would be committed and '
            f'{len(found.aborted)} aborted; {lost}')
