"""`kbroker-transactions finish-spark --prefix P`: settle what a dead driver of the Spark sink has left open."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kbroker.client import KafkaError
from kbroker.errors import ErrorCode
from kbroker_tools.command import SETTINGS, Command, ToolError, cluster_options, json_option, open_view
from kbroker_tools.render import Column, Output
from kbroker_tools.spark.sink import protocol
from kbroker_tools.spark.sink.ledger import Ledger
from kbroker_tools.spark.sink.options import LEDGER_TOPIC, parse_sink_options
from kbroker_tools.spark.sink.settling import Settlement, check_none_lost
from kbroker_tools.spark.sink.store import BrokerStore
from kbroker_tools.spark.sink.values import HANDLE_LEVEL, Decision, driver_id, tasks_of

if TYPE_CHECKING:
    from kbroker.client.admin import Admin
    from kbroker.client.descriptions import TransactionInfo
    from kbroker_tools.live_view import LiveView

DECIDED = [Column('prefix', 'Prefix'), Column('owner', 'Owner'), Column('batch', 'Batch'), Column('rows', 'Rows'),
           Column('tasks', 'Tasks'), Column('producer_id', 'ProducerId'), Column('producer_epoch', 'ProducerEpoch')]
SETTLED = ('Empty', 'CompleteCommit', 'CompleteAbort', 'Dead')


@click.command('finish-spark', cls=Command, context_settings=SETTINGS)
@click.option('--prefix', required=True, metavar='PREFIX', help='The transactionalIdPrefix of the query.')
@click.option('--ledger-topic', default=LEDGER_TOPIC, show_default=True, metavar='TOPIC',
              help='The ledgerTopic of the query. Without the right one, decided transactions would be aborted.')
@click.option('--accept-loss', is_flag=True,
              help='Let the prefix be used again although rows of a decided unit are lost.')
@click.option('--dry-run', is_flag=True, help='Show what would be settled or accepted. Changes nothing.')
@cluster_options
@json_option
def finish_spark(prefix: str, ledger_topic: str, accept_loss: bool, dry_run: bool, as_json: bool, **place: Any) -> None:
    """Settle the open transactions of a Spark query that will not run again.

    Undecided transactions are aborted, and decided ones are committed. The report lists the last decision of each query
    and job of the prefix.

    If there is something to settle or to accept, the command fences the drivers of the prefix. A query that still runs
    with it then fails in its next commit, and has to be started again. Use --dry-run first to see what is open.
    """
    view = open_view(**place)
    if not view.is_live:
        raise click.UsageError('`finish-spark` writes through a broker: give --bootstrap-server, not --data-dir')
    live: LiveView = view  # type: ignore[assignment]
    row = _driver(live.admin, prefix)
    given = {'kafka.bootstrap.servers': str(place['bootstrap_server']), 'transactionalIdPrefix': prefix,
             'ledgerTopic': ledger_topic}
    if row is not None:
        given['transactionTimeout'] = str(row.timeout_ms)
    options = parse_sink_options(given, is_stream=True)
    if not Ledger(live.admin.cluster, ledger_topic).exists():
        raise ToolError(f'found no topic {ledger_topic!r}, expected the ledger of the query: give --ledger-topic')
    output = Output(as_json)
    store = BrokerStore(options, live.admin.cluster)
    words, decisions = _finish(_Wish(prefix, accept_loss, dry_run, output), store, row)
    output.note(words)
    output.table(DECIDED, [(prefix, each.unit.owner, each.unit.batch, each.rows, len(each.handles),
                            each.pair.producer_id, each.pair.producer_epoch) for each in decisions])


def _driver(admin: Admin, prefix: str) -> TransactionInfo | None:
    """Return the description of the drivers' transactional id. None if the broker does not know the id."""
    name = driver_id(prefix)
    found = admin.describe_transactions([name])[name]
    if not isinstance(found, KafkaError):
        return found
    if found.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        raise found
    return None


class _Wish(NamedTuple):
    """The options of one call of the command."""

    prefix: str
    accepts_loss: bool
    is_dry_run: bool
    output: Output


def _finish(wish: _Wish, store: BrokerStore, row: TransactionInfo | None) -> tuple[str, list[Decision]]:
    """End what is open under the prefix. Return what was found, in words, and the last decisions.

    The drivers' id expires when it is idle. A transaction of a task in two-phase commit outlives it.
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
    if wish.is_dry_run or is_settled:
        found, decisions = protocol.preview(store, prefix)
        if wish.is_dry_run:
            return f'{was}. {_would(found, is_settled, wish.accepts_loss)}. Nothing was changed', decisions
        if not wish.accepts_loss:
            check_none_lost(decisions[-1] if decisions else None, found.lost)
        if not found.lost:
            return f'{name!r} has no open transaction ({state}), and its tasks have none', decisions
    wish.output.note(f'fencing the drivers of {name!r}: a query that still runs with this prefix fails in its next '
                     'commit')
    done = protocol.finish(store, prefix, wish.accepts_loss)
    return (f'{was}. It is settled, and its driver is fenced: the id has the pair {done.pair.producer_id}:'
            f'{done.pair.producer_epoch}. Of the transactions of its tasks, {len(done.ended.committed)} were committed '
            f'and {len(done.ended.aborted)} aborted; {len(done.ended.lost)} decided ones are lost', done.decisions)


def _would(found: Settlement, is_settled: bool, accepts_loss: bool) -> str:
    """Return what the command would do, in words."""
    if is_settled and not found.lost:
        return 'There is nothing to settle, so no driver would be fenced'
    lost = f'{len(found.lost)} decided ones are lost'
    if found.lost:
        lost += ': the loss would be accepted' if accepts_loss else ': the command would fail without --accept-loss'
    fence = '' if is_settled and not accepts_loss else 'The drivers would be fenced. '
    return (f'{fence}Of the transactions of its tasks, {len(found.committed)} would be committed and '
            f'{len(found.aborted)} aborted; {lost}')
