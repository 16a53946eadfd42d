"""kbroker-txn-state. It prints the rows of `__transaction_state` or `__consumer_offsets`, as JSON or as a table.

It works like kafka-console-consumer with TransactionLogMessageFormatter and the related formatters, for a broker or
offline for a log directory. The JSON is the same, byte for byte. Each object is on its own line here, whereas Kafka's
tool prints no line feeds. Partitions are read one after another.
"""
from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kbroker.base.internal_topics import CONSUMER_OFFSETS, TRANSACTION_STATE
from kbroker_tools.base.command import SETTINGS, Command, ToolError, output_options, version_option
from kbroker_tools.base.render import Output
from kbroker_tools.cluster.opening import cluster_options, note_incomplete, open_view
from kbroker_tools.rows.releases import NEWEST, RELEASES

if TYPE_CHECKING:
    from kbroker_tools.base.view import View
    from kbroker_tools.rows.coordinator_tail import CoordinatorTail, Row
    from kbroker_tools.rows.decoders import Formatter

TOPICS = {'transaction': TRANSACTION_STATE, 'offsets': CONSUMER_OFFSETS, 'group-metadata': CONSUMER_OFFSETS}
NEVER_MADE = {
    TRANSACTION_STATE: 'no transaction was ever begun; the first transactional producer creates it',
    CONSUMER_OFFSETS: 'no group ever joined and no offset was committed; the first consumer group creates it',
}
POLL_INTERVAL_S = 0.5


@click.command(cls=Command, context_settings=SETTINGS)
@click.option('--formatter', 'name', type=click.Choice(tuple(TOPICS)), default='transaction', show_default=True,
              help='The rows to show: those of __transaction_state, or the offsets or groups of __consumer_offsets.')
@click.option('--from-beginning', is_flag=True, help='Show all existing rows. Without it, only new rows are shown, '
                                                     'until Ctrl-C.')
@click.option('--follow', is_flag=True, help='With --from-beginning: continue with new rows.')
@click.option('--transactional-id', metavar='ID', help='Only rows of this transactional.id.')
@click.option('--max-messages', type=click.IntRange(min=1), metavar='N', help='Stop after N rows.')
@click.option('--table', 'as_table', is_flag=True,
              help='Show the current state of each transactional.id, offset or group, newest first.')
@click.option('--compat', type=click.Choice(RELEASES), default=NEWEST, show_default=True,
              help='The release of Kafka whose text is printed: from 4.4 on transactionStatus is a name.')
@output_options
@cluster_options
@version_option
def main(name: str, from_beginning: bool, follow: bool, transactional_id: str | None, max_messages: int | None,
         as_table: bool, compat: str, as_json: bool, bootstrap_server: str | None, data_dir: Path | None,
         command_config: Path | None) -> None:
    """Show the rows of transactions in __transaction_state, as kafka-console-consumer does with
    TransactionLogMessageFormatter.

    Rows are JSON objects, one per line. With --json, each also has its partition, offset and timestamp. An unreadable
    row is reported on stderr, and the exit status is then 1.
    """
    if transactional_id is not None and name != 'transaction':
        raise click.UsageError(f'--transactional-id goes with --formatter transaction, not {name}')
    if as_table and (follow or max_messages is not None):
        raise click.UsageError('--table shows the state as it is now; leave out --follow and --max-messages')
    view = open_view(bootstrap_server, data_dir, command_config)
    from kbroker_tools.rows.coordinator_tail import CoordinatorTail
    from kbroker_tools.rows.decoders import formatter
    output = Output(as_json)
    damages: list[str] = []

    def report(text: str) -> None:
        damages.append(text)
        output.note(f'kbroker-txn-state: {text}')

    note_incomplete(output, view, TOPICS[name])
    rows = formatter(name, compat)
    tail = CoordinatorTail(view, TOPICS[name], _partitions(view, TOPICS[name], transactional_id), rows, report)
    if as_table:
        _show_table(view, name, tail, output, transactional_id)
    else:
        if not from_beginning:
            tail.seek_to_end()
        _show_rows(tail, rows, output, transactional_id, max_messages, follow or not from_beginning)
    sys.stdout.flush()
    if damages:
        raise click.exceptions.Exit(1)


def _partitions(view: View, topic: str, transactional_id: str | None) -> list[int]:
    """Return the partitions to read. Offline, these are all partitions in the directory. A copied directory may lack
    some partitions, and does not show how many there were."""
    found = view.topics().get(topic)
    if found is None:
        whole = '' if view.is_live else 'if this is all of a log directory, '
        raise ToolError(f'{view.place}: no topic {topic}: {whole}{NEVER_MADE[topic]}')
    if view.is_live:
        if transactional_id is None:
            return [partition.partition for partition in found.partitions]
        from kbroker.topics.partitioner import partition_for
        return [partition_for(transactional_id, len(found.partitions))]
    here = [partition.partition for partition in found.partitions if _exists(view, topic, partition.partition)]
    if not here:
        raise ToolError(f'{view.place}: none of the {len(found.partitions)} partitions of {topic} is in this directory')
    return here


def _exists(view: View, topic: str, partition: int) -> bool:
    from kbroker.base.errors import CorruptLogError, ErrorCode, KafkaError
    try:
        next(iter(view.batches(topic, partition)), None)
    except CorruptLogError:
        return True                     # a later read reports the error
    except KafkaError as error:
        return error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return True


def _show_rows(tail: CoordinatorTail, rows: Formatter, output: Output, transactional_id: str | None,
               max_messages: int | None, follow: bool) -> None:
    for number, row in enumerate(_rows(tail, follow, transactional_id), 1):
        text = rows.text(row.key, row.value, row.version)
        if output.as_json:
            output.row({'partition': row.partition, 'offset': row.record.offset,
                        'timestamp_ms': row.record.timestamp_ms, **json.loads(text)})
        else:
            output.line(text)
        if number == max_messages:
            return


def _rows(tail: CoordinatorTail, follow: bool, transactional_id: str | None) -> Iterator[Row]:
    while True:
        for batch in tail.batches():
            yield from (row for row in batch.rows if _is_of(row, transactional_id))
        if not follow:
            return
        sys.stdout.flush()
        time.sleep(POLL_INTERVAL_S)


def _is_of(row: Row, transactional_id: str | None) -> bool:
    key: Any = row.key
    return transactional_id is None or key.transactional_id == transactional_id


def _show_table(view: View, name: str, tail: CoordinatorTail, output: Output, transactional_id: str | None) -> None:
    from kbroker_tools.rows.coordinator_tables import TABLES, show
    table = TABLES[name]()
    for batch in tail.batches():
        batch.rows[:] = [row for row in batch.rows if _is_of(row, transactional_id)]
        table.add(batch)
    show(table, output, view.now_ms())


if __name__ == '__main__':
    main(prog_name='kbroker-txn-state')
