"""`kbroker-transactions finish-spark --prefix P`: settle what a dead driver of the Spark sink has left open."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kbroker.client import KafkaError, Producer
from kbroker.errors import ErrorCode
from kbroker_tools.command import SETTINGS, Command, ToolError, cluster_options, json_option, open_view
from kbroker_tools.render import Column, Output
from kbroker_tools.spark.sink.ledger import Ledger, driver_id
from kbroker_tools.spark.sink.options import LEDGER_TOPIC

if TYPE_CHECKING:
    from kbroker.client.admin import Admin
    from kbroker_tools.live_view import LiveView

DECIDED = [Column('prefix', 'Prefix'), Column('owner', 'Owner'), Column('batch', 'Batch'), Column('rows', 'Rows'),
           Column('producer_id', 'ProducerId'), Column('producer_epoch', 'ProducerEpoch')]
SETTLED = ('Empty', 'CompleteCommit', 'CompleteAbort', 'Dead')


@click.command('finish-spark', cls=Command, context_settings=SETTINGS)
@click.option('--prefix', required=True, metavar='PREFIX', help='The transactionalIdPrefix of the query.')
@click.option('--ledger-topic', default=LEDGER_TOPIC, show_default=True, metavar='TOPIC',
              help='The ledgerTopic of the query.')
@cluster_options
@json_option
def finish_spark(prefix: str, ledger_topic: str, as_json: bool, **place: Any) -> None:
    """Settle the open transaction of a Spark query that will not run again.

    An undecided transaction is aborted, a decided one is completed. The report lists the last decision of each query
    and job of the prefix. A query that still runs is fenced if its transaction is open.
    """
    view = open_view(**place)
    if not view.is_live:
        raise click.UsageError('`finish-spark` writes through a broker: give --bootstrap-server, not --data-dir')
    live: LiveView = view  # type: ignore[assignment]
    output = Output(as_json)
    output.note(_settle(live.admin, prefix))
    ledger = Ledger(live.admin.cluster, ledger_topic)
    decisions = ledger.decisions(prefix) if ledger.exists() else []
    output.table(DECIDED, [(prefix, each.unit.owner, each.unit.batch, each.rows, each.pair.producer_id,
                            each.pair.producer_epoch) for each in decisions])


def _settle(admin: Admin, prefix: str) -> str:
    """End the open transaction of the prefix's drivers. Return what was found, in words."""
    name = driver_id(prefix)
    found = admin.describe_transactions([name])[name]
    if isinstance(found, KafkaError):
        if found.code is not ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            raise found
        raise ToolError(f'found no transactional id {name!r}: no query of this prefix has written to this cluster')
    row = found[1]
    if row.transaction_state in SETTLED:
        return f'{name!r} has no open transaction ({row.transaction_state})'
    with Producer(admin.cluster, transactional_id=name, transaction_timeout_ms=row.transaction_timeout_ms) as producer:
        pair = producer.transactions.producer
    return (f'{name!r} had a transaction in state {row.transaction_state}, '
            f'{row.producer_id}:{row.producer_epoch}. It is settled, and its driver is fenced: the id has the pair '
            f'{pair.producer_id}:{pair.producer_epoch}')
