"""`kbroker-transactions history TRANSACTIONAL-ID`. It shows the history of one transactional id, from its rows and from
the partitions."""
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kbroker.base.errors import KafkaError
from kbroker.base.internal_topics import TRANSACTION_STATE
from kbroker.base.words import words_for_duration
from kbroker_tools.base.command import SETTINGS, Command, ToolError, command_line, output_options
from kbroker_tools.base.render import Output, printable, words_for_count, words_for_time
from kbroker_tools.cluster.opening import cluster_options, open_view

if TYPE_CHECKING:
    from kbroker.record.batch import BatchHeader
    from kbroker_tools.base.view import View
    from kbroker_tools.history.events import Event, History
    from kbroker_tools.history.transaction_lives import Evidence
    from kbroker_tools.rows.transaction_rows import StoredRow

WRONG_STYLE = 'bold color(166)'


@click.command(cls=Command, context_settings=SETTINGS)
@click.argument('transactional_id', metavar='TRANSACTIONAL-ID')
@click.option('--all-partitions', is_flag=True,
              help='Read every partition, not only those that its rows name or that have state of its producer ids.')
@cluster_options
@output_options
def history(transactional_id: str, all_partitions: bool, bootstrap_server: str | None, data_dir: Path | None,
            command_config: Path | None, as_json: bool) -> None:
    """Show the life of one transactional id.

    The history combines __transaction_state with the partitions that the id wrote to. It has every begin, partition,
    prepare, marker, complete and fence, with durations. The times of records come from the clocks of their producers.
    The history flags torn, missing and late markers and hanging transactions. If it flags something, the exit status is
    1.
    """
    view = open_view(bootstrap_server, data_dir, command_config)
    output = Output(as_json)
    found = read_history(view, transactional_id, all_partitions, output,
                         command_line('kbroker-transactions', bootstrap_server=bootstrap_server, data_dir=data_dir,
                                      command_config=command_config))
    if as_json:
        _write_json(found, output)
    else:
        _show(found, output, view.place)
    if found.faults:
        click.get_current_context().exit(1)


def read_history(view: View, transactional_id: str, all_partitions: bool, output: Output,
                 command: str = 'kbroker-transactions') -> History:
    """Return the history of a transactional id. Raise ToolError if the id is unknown, and KafkaError or OSError if its
    rows cannot be read."""
    from kbroker_tools.history.events import history_of
    from kbroker_tools.rows.transaction_rows import producer_ids
    rows = _rows_of(view, transactional_id)
    ids = {producer_id for stored in rows if stored.row is not None for producer_id in producer_ids(stored.row)}
    there = [(name, partition.partition) for name, topic in view.topics().items() if name != TRANSACTION_STATE
             for partition in topic.partitions]
    named = {partition for stored in rows if stored.row is not None for partition in stored.row.partitions}
    unread = [f'{topic}-{partition} does not exist (any more)' for topic, partition in sorted(named - set(there))]
    evidence = []
    with output.progress('partitions', len(there)) as progress:
        for topic, partition in there:
            try:
                if all_partitions or (topic, partition) in named or _knows(view, topic, partition, ids):
                    evidence.append(_evidence(view, topic, partition, ids))
            except KafkaError as error:
                unread.append(f'{topic}-{partition}: {error}')
            progress.advance()
    return history_of(transactional_id, rows, evidence, unread, view.now_ms(), command)


def _rows_of(view: View, transactional_id: str) -> list[StoredRow]:
    from kbroker_tools.rows.transaction_rows import partition_of, stored_rows
    partition = partition_of(view, transactional_id)
    if partition is None:
        raise ToolError(f'found no {TRANSACTION_STATE} in {view.place}: no transactional id was ever used there')
    rows = []
    others: set[str] = set()
    for stored in stored_rows(view, [partition]):
        if stored.transactional_id == transactional_id:
            rows.append(stored)
        else:
            others.add(stored.transactional_id)
    if not rows:
        raise ToolError(f'found no row of {transactional_id!r} in {TRANSACTION_STATE}-{partition} of {view.place}, '
                        f'where it would be; rows of {len(others):,} other ids are there')
    return rows


def _knows(view: View, topic: str, partition: int, ids: set[int]) -> bool:
    return any(producer.producer_id in ids for producer in view.producers(topic, partition))


def _evidence(view: View, topic: str, partition: int, ids: set[int]) -> Evidence:
    from kbroker_tools.history.transaction_lives import Evidence
    from kbroker_tools.timeline.transactions_of_partition import replay
    log_start_offset = view.partition_offsets(topic, partition).log_start_offset
    reader = _Reader(view.batches(topic, partition), ids)
    found = replay(reader)
    return Evidence(topic, partition, log_start_offset, reader.first_timestamp_ms, reader.has_gaps, found.transactions,
                    found.lone_markers)


class _Reader:
    """A filter of batches. It yields the batches of some producer ids, and records whether there are gaps between the
    batches that it reads."""

    def __init__(self, batches: Iterator[tuple[BatchHeader, memoryview]], ids: set[int]):
        self._batches = batches
        self._ids = ids
        self.first_timestamp_ms: int | None = None
        self.has_gaps = False

    def __iter__(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        next_offset = None
        for header, batch in self._batches:
            if next_offset is None:
                self.first_timestamp_ms = header.max_timestamp_ms
            elif header.base_offset != next_offset:
                self.has_gaps = True
            next_offset = header.last_offset + 1
            if header.producer_id in self._ids:
                yield header, batch


def _write_json(found: History, output: Output) -> None:
    for event in found.events:
        output.row({'kind': 'event', 'transactional_id': found.transactional_id, 'timestamp_ms': event.timestamp_ms,
                    'transaction': event.transaction, 'since_begin_ms': event.since_begin_ms, 'event': event.kind,
                    'where': event.where, 'offset': event.offset, 'details': event.details, 'fault': event.fault})
    for kind, texts in (('fault', found.faults), ('unknown', found.unknowns)):
        for text in texts:
            output.row({'kind': kind, 'transactional_id': found.transactional_id, 'details': text})


def _show(found: History, output: Output, place: str) -> None:
    verdict = (f'{words_for_count(len(found.faults), "thing")} wrong' if found.faults
               else 'nothing is torn, missing or late')
    transactions = words_for_count(found.transactions, 'transaction')
    output.line(f'{printable(found.transactional_id)}  {place}: {transactions}, {verdict}',
                WRONG_STYLE if found.faults else 'bold')
    where_columns = max((len(_where(event)) for event in found.events), default=0)
    before = None
    for number, events in _grouped(found.events):
        if number is not None or before is not None:
            output.line()
        before = number
        if number is not None:
            output.line(f'transaction {number}: {found.titles[number - 1]}', 'bold')
        for event in events:
            since = '' if event.since_begin_ms is None else words_for_duration(event.since_begin_ms)
            since = since if since.startswith('-') or not since else f'+{since}'
            fault = f'  !! {event.fault.partition(":")[0]}' if event.fault else ''
            output.line(f'{words_for_time(event.timestamp_ms)}  {since:>12}  {event.kind:<11}  '
                        f'{_where(event):<{where_columns}}  {event.details}{fault}', WRONG_STYLE if fault else None)
    if found.faults or found.unknowns:
        output.line()
    for title, texts, style in (('wrong', found.faults, WRONG_STYLE), ('not known', found.unknowns, None)):
        for text in texts:
            output.line(f'{title}: {text}', style)


def _where(event: Event) -> str:
    return event.where if event.offset is None else f'{event.where} offset {event.offset}'


def _grouped(events: list[Event]) -> list[tuple[int | None, list[Event]]]:
    """Return the events grouped by transaction, in the order of time. An event that belongs to no transaction is a
    group by itself.

    The time of a transaction is the time of its first row or marker. The times of records are not used, because they
    come from the clock of the producer.
    """
    together: dict[int, list[Event]] = {}
    groups: list[tuple[int | None, list[Event]]] = []
    for event in events:
        if event.transaction is None:
            groups.append((None, [event]))
        elif event.transaction in together:
            together[event.transaction].append(event)
        else:
            together[event.transaction] = [event]
            groups.append((event.transaction, together[event.transaction]))

    def place(group: tuple[int | None, list[Event]]) -> int:
        return min([event.timestamp_ms for event in group[1] if event.kind != 'records'] or [group[1][0].timestamp_ms])
    return sorted(groups, key=place)
