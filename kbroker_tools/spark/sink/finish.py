"""`kbroker-transactions finish-spark --prefix P`: settle what a dead driver of the Spark sink has left open."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kbroker.client import KafkaError
from kbroker.errors import ErrorCode
from kbroker_tools.command import SETTINGS, Command, ToolError, cluster_options, json_option, open_view
from kbroker_tools.render import Column, Output
from kbroker_tools.spark.sink import protocol
from kbroker_tools.spark.sink.ledger import Ledger
from kbroker_tools.spark.sink.options import LEDGER_TOPIC, parse_sink_options
from kbroker_tools.spark.sink.settling import check_none_lost
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
@cluster_options
@json_option
def finish_spark(prefix: str, ledger_topic: str, accept_loss: bool, as_json: bool, **place: Any) -> None:
    """Settle the open transactions of a Spark query that will not run again.

    Undecided transactions are aborted, and decided ones are committed. The report lists the last decision of each query
    and job of the prefix. A query that still runs is fenced if one of its transactions is open.
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
    words, decisions = _finish(store, prefix, row, accept_loss)
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


def _finish(store: BrokerStore, prefix: str, row: TransactionInfo | None,
            accept_loss: bool) -> tuple[str, list[Decision]]:
    """End what is open under the prefix. Return what was found, in words, and the last decisions.

    The drivers' id expires when it is idle. A transaction of a task in two-phase commit outlives it.
    """
    name = driver_id(prefix)
    has_handles = store.broker(prefix).transaction_version >= HANDLE_LEVEL
    tasks = store.open_transactions(tasks_of(prefix)) if has_handles else []
    if row is None and not tasks:
        raise ToolError(f'found no transactional id {name!r}: no query of this prefix has written to this cluster')
    if row is not None and row.state in SETTLED and not tasks and not accept_loss:
        decisions = store.decisions(prefix)
        if decisions and has_handles:
            check_none_lost(decisions[-1], store.aborted(decisions[-1].handles))
        return f'{name!r} has no open transaction ({row.state}), and its tasks have none', decisions
    done = protocol.finish(store, prefix, accept_loss)
    was = (f'{name!r} has expired' if row is None else f'{name!r} had a transaction in state {row.state}, '
           f'{row.producer_id}:{row.producer_epoch}')
    return (f'{was}. It is settled, and its driver is fenced: the id has the pair {done.pair.producer_id}:'
            f'{done.pair.producer_epoch}. Of the transactions of its tasks, {done.ended.committed} were committed and '
            f'{done.ended.aborted} aborted; {len(done.ended.lost)} decided ones are lost', done.decisions)
