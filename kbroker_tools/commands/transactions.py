"""kbroker-transactions. It shows transactions, explains why they are stuck, and ends them.

It has the commands of Kafka's own tool (KIP-664, KIP-939), and also `why-stuck`, `timeline`, `history` and
`finish-spark`.
"""
from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

import click

from kbroker.base.errors import KafkaError
from kbroker.base.internal_topics import TRANSACTION_STATE
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.descriptions import ProducerInfo, TransactionInfo
from kbroker_tools.base.command import SETTINGS, Group, ToolError, output_options, version_option
from kbroker_tools.base.render import Column, Output, shell_word, words_for_count
from kbroker_tools.base.view import View
from kbroker_tools.cluster.opening import (
    broker_options,
    cluster_options,
    command_here,
    existing_topic,
    live,
    note_incomplete,
    note_unreadable,
    open_view,
)

ELSEWHERE = {'why-stuck': 'kbroker_tools.commands.why_stuck', 'timeline': 'kbroker_tools.commands.timeline',
             'history': 'kbroker_tools.commands.history', 'finish-spark': 'kbroker_tools.commands.finish_spark'}
"""Maps commands to the modules in which they are. A module is imported when its command is called."""
OPEN = 'Ongoing'
"""The name of the state of an open transaction."""
ALSO = {'forceTerminateTransaction': 'force-terminate'}
"""Maps a command name of Kafka's tool to the name used here. Kafka writes this name in camel case, unlike its other
command names."""
PROGRAM = 'kbroker-transactions'

MOST_NAMED = 10
"""The most partitions of a transaction that are printed by name."""

FC = TypeVar('FC', bound=Callable[..., Any])


class Transactions(Group):
    """A command group whose own options belong to every command. The user may write them before or after the name of
    the command."""

    def list_commands(self, context: click.Context) -> list[str]:
        return [*super().list_commands(context), *ELSEWHERE]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name in ELSEWHERE:
            from importlib import import_module
            found: click.Command = getattr(import_module(ELSEWHERE[name]), name.replace('-', '_'))
            return found
        return super().get_command(context, ALSO.get(name, name))


@click.group(cls=Transactions, context_settings=SETTINGS)
@cluster_options
@version_option
@click.pass_context
def main(context: click.Context, /, **common: Any) -> None:
    """Show transactions, explain stuck ones, and end them."""
    given = {name: value for name, value in common.items() if value is not None}
    context.default_map = dict.fromkeys([*main.list_commands(context), *ALSO], given)


def of_topic(required: bool) -> Callable[[FC], FC]:
    return click.option('--topic', required=required, metavar='TOPIC', help='Name of the topic.')


def of_partition(required: bool) -> Callable[[FC], FC]:
    return click.option('--partition', type=click.IntRange(min=0), required=required, metavar='NUMBER',
                        help='Number of the partition.')


broker_id_option = click.option('--broker-id', type=int, metavar='ID', help='Ask this replica, not the leader.')


# ---- list

LISTED = [Column('transactional_id', 'TransactionalId'), Column('coordinator_id', 'Coordinator'),
          Column('producer_id', 'ProducerId'), Column('state', 'TransactionState')]


@main.command('list')
@click.option('--duration-filter', type=int, default=-1, metavar='MS',
              help='Only transactions that have run for longer than this; all if negative.')
@click.option('--transactional-id-pattern', metavar='REGEX', help='Only ids that match this expression as a whole.')
@click.option('--two-phase', is_flag=True,
              help='Only open transactions of two-phase commit. They never time out.')
@cluster_options
@output_options
def list_command(duration_filter: int, transactional_id_pattern: str | None, two_phase: bool, as_json: bool,
                 **place: Any) -> None:
    """List transactional ids and their states."""
    view, output = open_view(**place), Output(as_json)
    note_incomplete(output, view, TRANSACTION_STATE)
    if view.is_live:
        listings = [(row.transactional_id, row.coordinator_id, row.producer_id, row.state)
                    for row in live(view).admin.list_transactions(
                        [OPEN] if two_phase else [], duration_filter_ms=duration_filter,
                        transactional_id_pattern=transactional_id_pattern or None)]
    else:
        listings = _listed_offline(view, duration_filter, transactional_id_pattern)
    if two_phase:
        rows = view.transactions_of([listing[0] for listing in listings if listing[3] == OPEN])
        listings = [listing for listing in listings if _is_two_phase(rows.get(listing[0]))]
    output.table(LISTED, listings)


def _listed_offline(view: View, duration_filter_ms: int, pattern_text: str | None) -> list[tuple[str, int, int, str]]:
    """Return the transactions that the filters select, as a broker would. A transactional id without a transaction
    passes every duration filter."""
    pattern = None
    if pattern_text:
        from kbroker.base.linear_pattern import LinearPattern, PatternError
        try:
            pattern = LinearPattern(pattern_text)
        except PatternError as error:
            raise ToolError(f'--transactional-id-pattern {pattern_text!r}: {error}') from None
    listings = [listing for listing in view.transactions()
                if pattern is None or pattern.matches(listing.transactional_id)]
    if duration_filter_ms >= 0:
        now_ms = view.now_ms()
        rows = view.transactions_of([listing.transactional_id for listing in listings])

        def duration_ms(transactional_id: str) -> int:
            row = rows.get(transactional_id)
            return now_ms - (-1 if row is None or row.start_timestamp_ms is None else row.start_timestamp_ms)

        listings = [listing for listing in listings if duration_ms(listing.transactional_id) > duration_filter_ms]
    return [(listing.transactional_id, listing.coordinator_id, listing.producer_id, listing.state)
            for listing in listings]


# ---- describe

DESCRIBED = [Column('coordinator_id', 'CoordinatorId'), Column('transactional_id', 'TransactionalId'),
             Column('producer_id', 'ProducerId'), Column('producer_epoch', 'ProducerEpoch'),
             Column('state', 'TransactionState'), Column('timeout_ms', 'TransactionTimeoutMs'),
             Column('start_timestamp_ms', 'CurrentTransactionStartTimeMs'),
             Column('duration_ms', 'TransactionDurationMs'), Column('partitions', 'TopicPartitions')]


@main.command()
@click.option('--transactional-id', required=True, metavar='ID', help='The id to describe.')
@cluster_options
@output_options
def describe(transactional_id: str, as_json: bool, **place: Any) -> None:
    """Describe the state of a transactional id."""
    view = open_view(**place)
    row = _known(view, transactional_id)
    start_ms = row.start_timestamp_ms
    output = Output(as_json)
    if _is_two_phase(row):
        output.note(_two_phase_note(view, row, place['command_config']))
    output.table(DESCRIBED, [(
        row.coordinator_id, transactional_id, row.producer_id, row.producer_epoch, row.state, row.timeout_ms, start_ms,
        None if start_ms is None else view.now_ms() - start_ms, _partitions(view, row, output))])


def _is_two_phase(row: TransactionInfo | None) -> bool:
    from kbroker.transaction.state import NEVER_TIMES_OUT_MS
    return row is not None and row.state == OPEN and row.timeout_ms == NEVER_TIMES_OUT_MS


def _two_phase_note(view: View, row: TransactionInfo, command_config: str | None) -> str:
    command = command_here(PROGRAM, view, command_config)
    known = (f'{row.transactional_id!r} takes part in two-phase commit: the open transaction '
             f'{row.producer_id}:{row.producer_epoch} never times out.')
    from kbroker_tools.stuck.causes import sink_prefix
    prefix = sink_prefix(row.transactional_id)
    if prefix is not None:
        return (f'{known} Let its Spark query end it. Only if that will not run again, end it as its ledger decides: '
                f'{command} finish-spark --prefix {shell_word(prefix)} --dry-run (with --ledger-topic if the query '
                'sets ledgerTopic), and then without --dry-run')
    return (f'{known} Let its external coordinator complete it. Only if no decision will come, abort it: {command} '
            f'force-terminate --transactional-id {shell_word(row.transactional_id)}')


def _known(view: View, transactional_id: str) -> TransactionInfo:
    row = view.transaction(transactional_id)
    if row is None:
        raise ToolError(f'found no transactional id {transactional_id!r}; `list` shows those in {view.place}')
    return row


def _partitions(view: View, row: TransactionInfo, output: Output) -> Any:
    """Return the names of the partitions, sorted. In a pipe, they are in the order in which Kafka's tool prints
    them."""
    names = sorted(row.partitions)
    if not output.as_json and not output.is_terminal:
        from kbroker_tools.base.java_order import in_java_order, partition_hash
        names = in_java_order(list(row.partitions), partition_hash)
    found = [f'{topic}-{partition}' for topic, partition in names]
    return found if output.as_json else ','.join(found)


# ---- describe-producers

PRODUCERS = [Column('producer_id', 'ProducerId'), Column('producer_epoch', 'ProducerEpoch'),
             Column('coordinator_epoch', 'LatestCoordinatorEpoch'), Column('last_sequence', 'LastSequence'),
             Column('last_timestamp_ms', 'LastTimestamp'),
             Column('transaction_first_offset', 'CurrentTransactionStartOffset')]


@main.command('describe-producers')
@broker_id_option
@of_topic(required=True)
@of_partition(required=True)
@cluster_options
@output_options
def describe_producers(broker_id: int | None, topic: str, partition: int, as_json: bool, **place: Any) -> None:
    """Describe the producers in a partition."""
    view = _with_brokers(open_view(**place), broker_id)
    found = _producers_of(view, [(topic, partition)], broker_id)[topic, partition]
    Output(as_json).table(PRODUCERS, [
        (producer.producer_id, producer.producer_epoch, producer.coordinator_epoch, producer.last_sequence,
         producer.last_timestamp_ms, producer.transaction_first_offset) for producer in found])


def _with_brokers(view: View, broker_id: int | None) -> View:
    if broker_id is not None and not view.is_live:
        raise click.UsageError('--broker-id needs --bootstrap-server: a directory has only one broker')
    return view


def _producers_of(view: View, partitions: Collection[TopicPartition],
                  broker_id: int | None) -> dict[TopicPartition, list[ProducerInfo]]:
    if view.is_live:
        return live(view).producers_of(partitions, broker_id)
    return {(topic, partition): view.producers(topic, partition) for topic, partition in partitions}


# ---- abort

@main.command()
@of_topic(required=True)
@of_partition(required=True)
@click.option('--start-offset', type=int, metavar='OFFSET',
              help='The first offset of the transaction on the partition.')
@click.option('--producer-id', type=int, metavar='ID', help='Its producer id, instead of the offset.')
@click.option('--producer-epoch', type=int, metavar='EPOCH', help='Its producer epoch, with --producer-id.')
@click.option('--coordinator-epoch', type=int, metavar='EPOCH', help='Its coordinator epoch, with --producer-id.')
@broker_options
def abort(topic: str, partition: int, start_offset: int | None, producer_id: int | None, producer_epoch: int | None,
          coordinator_epoch: int | None, **place: Any) -> None:
    """Abort a hanging transaction on one partition.

    For a transaction that its coordinator has, use `force-terminate`, which ends it on all its partitions.
    """
    if start_offset is None and producer_id is None:
        raise click.UsageError('The transaction to abort must be identified either with --start-offset, or with '
                               '--producer-id, --producer-epoch, and --coordinator-epoch')
    if start_offset is None and producer_epoch is None:
        raise click.UsageError('Missing required argument --producer-epoch')
    if start_offset is None and coordinator_epoch is None:
        raise click.UsageError('Missing required argument --coordinator-epoch')
    view = live(open_view(**place), 'abort')
    if start_offset is not None:
        found = next((producer for producer in view.producers(topic, partition)
                      if producer.transaction_first_offset == start_offset), None)
        if found is None:
            raise ToolError(f'Could not find any open transactions starting at offset {start_offset} on partition '
                            f'{topic}-{partition}')
        producer_id, producer_epoch = found.producer_id, found.producer_epoch
        coordinator_epoch = found.coordinator_epoch
    assert producer_id is not None and producer_epoch is not None and coordinator_epoch is not None
    # If the partition has no marker yet, its coordinator epoch is -1. The lowest epoch that a broker accepts is 0.
    view.admin.abort_transaction(topic, partition, producer_id, producer_epoch, max(0, coordinator_epoch))
    output = Output()
    output.note(f'wrote an abort marker of producer id {producer_id}, epoch {producer_epoch}, to {topic}-{partition}')
    _note_holders(view, output, place, [(topic, partition)])


# ---- find-hanging

HANGING = [Column('topic', 'Topic'), Column('partition', 'Partition'), Column('producer_id', 'ProducerId'),
           Column('producer_epoch', 'ProducerEpoch'), Column('coordinator_epoch', 'CoordinatorEpoch'),
           Column('first_offset', 'StartOffset'), Column('last_timestamp_ms', 'LastTimestamp'),
           Column('duration_min', 'Duration(min)')]


@main.command('find-hanging')
@click.option('--broker-id', type=int, metavar='ID', help='Search the replicas on this broker.')
@click.option('--max-transaction-timeout', type=int, default=15, show_default=True, metavar='MINUTES',
              help='The longest timeout of any transaction; those open for less are left out.')
@of_topic(required=False)
@of_partition(required=False)
@cluster_options
@output_options
def find_hanging(broker_id: int | None, max_transaction_timeout: int, topic: str | None, partition: int | None,
                 as_json: bool, **place: Any) -> None:
    """Find hanging transactions, which nothing will end.

    As in Kafka's tool, a topic or a broker is searched. By default, all partitions of a log directory are searched.
    """
    if broker_id is None and topic is None and place['data_dir'] is None:
        raise click.UsageError('The `find-hanging` command requires either --topic or --broker-id to limit the scope '
                               'of the search')
    if partition is not None and topic is None:
        raise click.UsageError('The --partition argument requires --topic to be provided')
    from kbroker_tools.rows.transaction_rows import has_all_partitions
    from kbroker_tools.stuck import hanging
    view, output = _with_brokers(open_view(**place), broker_id), Output(as_json)
    partitions = _to_search(view, broker_id, topic, partition)
    unreadable = view.unreadable(partitions)
    note_unreadable(output, unreadable)
    partitions = [at for at in partitions if at not in unreadable]
    opened = hanging.OpenCount(lambda some: _producers_of(view, some, broker_id))
    found = hanging.find_hanging(view, partitions, max_transaction_timeout * 60_000, opened)
    now_ms = view.now_ms()
    if found and not has_all_partitions(view):
        output.note(f'{view.place} lacks partitions of __transaction_state: other coordinators may have the listed '
                    'transactions, so ask the cluster')
    output.table(HANGING, [
        (each.topic, each.partition, each.producer.producer_id, each.producer.producer_epoch,
         each.producer.coordinator_epoch, each.producer.transaction_first_offset, each.producer.last_timestamp_ms,
         (now_ms - each.producer.last_timestamp_ms) // 60_000) for each in found])
    if not found and opened.transactions:
        command = command_here(PROGRAM, view, place['command_config'])
        output.note(f'none hangs; {words_for_count(opened.transactions, "open transaction")} in '
                    f'{words_for_count(opened.partitions, "partition")}: see {command} why-stuck'
                    f'{"" if topic is None else " " + shell_word(topic)}')


def _to_search(view: View, broker_id: int | None, topic: str | None, partition: int | None) -> list[TopicPartition]:
    from kbroker_tools.base.java_order import in_java_order, string_hash
    if topic is not None and partition is not None:
        return [(topic, partition)]
    topics = view.topics()
    if topic is not None:
        topics = {topic: existing_topic(view, topics, topic)}
    found = [(name, each.partition) for name in in_java_order(topics, string_hash) for each in topics[name].partitions
             if broker_id is None or broker_id in each.replicas]
    if not found and broker_id is not None:
        raise ToolError(f'found no replica on broker {broker_id}' + (f' of topic {topic}' if topic else ''))
    return found


# ---- force-terminate

@main.command('force-terminate')
@click.option('--transactional-id', '--transactionalId', 'transactional_id', required=True, metavar='ID',
              help='The id whose transaction to abort.')
@broker_options
def force_terminate(transactional_id: str, **place: Any) -> None:
    """Abort the whole transaction of an id.

    Its producer is fenced. Kafka's tool calls this forceTerminateTransaction --transactionalId, which works here too.
    If the id does not exist, the command fails, whereas Kafka's tool creates the id.
    """
    view = live(open_view(**place), 'force-terminate')
    before = _known(view, transactional_id)
    found = view.admin.fence_producers([transactional_id])[transactional_id]
    if isinstance(found, KafkaError):
        raise found
    output, partitions = Output(), sorted(before.partitions)
    fenced = f'its producer is fenced: the id has producer id {found[0]}, epoch {found[1]} now'
    if before.state == OPEN and partitions:
        names = ', '.join(f'{topic}-{partition}' for topic, partition in partitions[:MOST_NAMED])
        more = f' and {len(partitions) - MOST_NAMED} more' if len(partitions) > MOST_NAMED else ''
        output.note(f'aborted the transaction of {transactional_id!r} on {names}{more}; {fenced}')
        _note_holders(view, output, place, partitions[:MOST_NAMED])
    else:
        output.note(f'{transactional_id!r} had no open transaction ({before.state}); {fenced}')


def _note_holders(view: View, output: Output, place: dict[str, Any], partitions: Collection[TopicPartition]) -> None:
    """Print on stderr what holds the partitions after a change. Kafka's tool prints no such note."""
    from kbroker_tools.stuck.causes import judge
    from kbroker_tools.stuck.gatherer import Gatherer
    command = command_here(PROGRAM, view, place['command_config'])
    gatherer = Gatherer(view, command)
    for topic, partition in partitions:
        try:
            verdict = judge(gatherer.facts(topic, partition))
        except (KafkaError, OSError) as error:
            output.note(f'{topic}-{partition} could not be checked: {error}')
            continue
        output.note(verdict.headline)
        if verdict.is_stuck:
            output.note(f'  do: {command} why-stuck {shell_word(f"{topic}:{partition}")}')


if __name__ == '__main__':
    main(prog_name=PROGRAM)
