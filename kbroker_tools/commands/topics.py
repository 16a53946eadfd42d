"""kbroker-topics. Its options and its output are those of kafka-topics. It also counts records."""
from __future__ import annotations

import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

import click

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.topic_partition import TopicPartition
from kbroker.base.words import words_for_bytes
from kbroker_tools.base import actions
from kbroker_tools.base.command import SETTINGS, Command, ToolError, output_options, version_option
from kbroker_tools.base.render import Column, Output, Progress
from kbroker_tools.base.topic_pattern import pattern_of
from kbroker_tools.base.view import PartitionOffsets, Unreadable, View
from kbroker_tools.cluster.opening import cluster_options, note_unreadable, open_view

ACTIONS = ('list', 'describe', 'count', 'create', 'alter', 'delete')
READING_ACTIONS = ('list', 'describe', 'count')
DESCRIBE_FILTERS = ('under_replicated_partitions', 'unavailable_partitions', 'under_min_isr_partitions',
                    'at_min_isr_partitions')
GOES_WITH = {
    'topic_id': ('describe', 'count'), 'partitions': ('create', 'alter'), 'replication_factor': ('create',),
    'replica_assignment': ('create', 'alter'), 'config': ('create',), 'if_not_exists': ('create',),
    'if_exists': ('alter', 'delete', 'describe', 'count'), 'exclude_internal': READING_ACTIONS,
    'timeout_ms': ('count',),
    'topics_with_overrides': ('describe',), 'size': ('describe',), **{name: ('describe',) for name in DESCRIBE_FILTERS},
}
PARTITIONS_IN_AN_ANSWER = 2000
COLLIDING = ("WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') could "
             'collide. To avoid issues it is best to use either, but not both.')
PARTITION_COLUMNS = (
    Column('partition', 'Partition', 'right'), Column('leader', 'Leader', 'right'), Column('replicas', 'Replicas'),
    Column('in_sync_replicas', 'Isr'), Column('eligible_leader_replicas', 'Elr'),
    Column('last_known_eligible_leader_replicas', 'LastKnownElr'))
SIZE_COLUMN = Column('size', 'Size', 'right')
COUNT_COLUMNS = (
    Column('topic', 'TOPIC'), Column('partition', 'PARTITION', 'right'), Column('readable', 'READABLE', 'right'),
    Column('held', 'HELD', 'right'), Column('undecided', 'UNDECIDED', 'right'), Column('aborted', 'ABORTED', 'right'),
    Column('markers', 'MARKERS', 'right'), Column('log_start_offset', 'LOG-START-OFFSET', 'right'),
    Column('log_end_offset', 'LOG-END-OFFSET', 'right'), Column('counted_to_offset', 'COUNTED-TO-OFFSET', 'right'))
ALL_PARTITIONS = 'all'


@click.command(cls=Command, context_settings=SETTINGS)
@click.option('--list', is_flag=True, help='Print the names of all topics.')
@click.option('--describe', is_flag=True, help='Print partitions and settings of the topics.')
@click.option('--count', is_flag=True, help='Count the records of the topics, by what read_committed consumers get of '
              'them. A broker must send all records for this; a log directory needs only the headers of batches.')
@click.option('--create', is_flag=True, help='Create a topic.')
@click.option('--alter', is_flag=True, help='Add partitions to the topics. To change settings, use kbroker-configs.')
@click.option('--delete', is_flag=True, help='Delete the topics.')
@click.option('--topic', metavar='REGEX', help='Regular expressions for whole topic names, separated by commas. For '
              '--create, the name of the new topic.')
@click.option('--topic-id', metavar='ID', help='The topic with this id, for --describe.')
@click.option('--partitions', type=click.IntRange(1, 2**31 - 1), metavar='N',
              help='The number of partitions; --create without it uses the broker\'s default. Adding partitions moves '
                   'keys to other ones.')
@click.option('--replication-factor', type=click.IntRange(1, 32767), metavar='N',
              help="The number of replicas of each new partition. The default is the broker's.")
@click.option('--replica-assignment', metavar='IDS', help='The brokers of each partition. Commas separate partitions, '
              'colons the replicas of a partition, its leader first.')
@click.option('--config', multiple=True, metavar='NAME=VALUE', help='A setting of the new topic; may be repeated.')
@click.option('--if-not-exists', is_flag=True, help='Do not fail if the new topic exists already.')
@click.option('--if-exists', is_flag=True, help='Do not fail if no topic matches.')
@click.option('--exclude-internal', is_flag=True, help='Leave out the internal topics of the cluster.')
@click.option('--topics-with-overrides', is_flag=True, help='Describe only topics with settings of their own.')
@click.option('--under-replicated-partitions', is_flag=True, help='Only partitions with a replica that is not in sync.')
@click.option('--unavailable-partitions', is_flag=True, help='Only partitions whose leader is not available.')
@click.option('--under-min-isr-partitions', is_flag=True, help='Only partitions with fewer replicas in sync than '
              'min.insync.replicas.')
@click.option('--at-min-isr-partitions', is_flag=True, help='Only partitions with exactly min.insync.replicas in sync.')
@click.option('--size', is_flag=True, help="Print the size of each partition's log in bytes, as the last field of its "
              'line. A terminal and --json show sizes without this option.')
@click.option('--timeout-ms', type=click.IntRange(1), metavar='MS', help='Stop counting after this time. '
              'COUNTED-TO-OFFSET then says how far a partition was counted.')
@click.option('--partition-size-limit-per-response', type=click.IntRange(1), metavar='N',
              default=PARTITIONS_IN_AN_ANSWER, show_default=True, help='The most partitions per request.')
@cluster_options
@output_options
@version_option
def main(as_json: bool, **options: Any) -> None:
    """List, describe, create, extend and delete topics.

    The options and the output are those of kafka-topics; topics are sorted by name. --list, --describe and --count
    work on a log directory too.

    --count prints the numbers of records in each partition. READABLE records are those that a read_committed consumer
    receives, from the start of the log to the last stable offset. HELD records are committed and above it. UNDECIDED
    ones belong to open transactions, and ABORTED ones reach no read_committed consumer. MARKERS end transactions.
    """
    action = actions.chosen_action(options, ACTIONS)
    actions.check_companions(action, options, GOES_WITH)
    if action in READING_ACTIONS:
        actions.check_at_most_one(options, ('topic', 'topic_id'))
        actions.check_at_most_one(options, (*DESCRIBE_FILTERS, 'topics_with_overrides'))
    else:
        actions.require(options, 'topic', action)
        actions.require_broker(options, action)
    if action == 'alter':
        actions.require(options, 'partitions', action)
    if action == 'create' and options['replica_assignment']:
        actions.check_at_most_one(options, ('replica_assignment', 'partitions'))
        actions.check_at_most_one(options, ('replica_assignment', 'replication_factor'))
    view = open_view(options['bootstrap_server'], options['data_dir'], options['command_config'])
    RUN[action](view, Output(as_json), options)


# ---- selection

def chosen_topics(view: Any, options: dict[str, Any]) -> list[str]:
    """Return the names of the topics that the options select. Raise ToolError if the options name topics and none of
    them exists."""
    topics = view.topics()
    if options['topic_id'] is not None:
        topic_id = parse_topic_id(options['topic_id'])
        chosen = [name for name, topic in topics.items() if topic.topic_id == topic_id]
    else:
        pattern = pattern_of('.*' if options['topic'] is None else options['topic'])
        chosen = [name for name, topic in topics.items()
                  if pattern.fullmatch(name) and not (topic.is_internal and options['exclude_internal'])]
    if not chosen and not options['if_exists'] and not options['list']:
        if options['topic_id'] is not None:
            raise ToolError(f'{view.place}: there is no topic with id {options["topic_id"]}')
        if options['topic'] is not None:
            raise ToolError(f"{view.place}: no topic matches '{options['topic']}'; --list shows the existing ones")
    return sorted(chosen)


def parse_topic_id(text: str) -> bytes:
    try:
        topic_id = urlsafe_b64decode(text + '==')
    except ValueError:
        topic_id = b''
    if len(topic_id) != 16:
        raise click.BadParameter(f'found {text!r}, expected 22 characters of base64', param_hint='--topic-id')
    return topic_id


def words_for_topic_id(topic_id: bytes) -> str:
    return urlsafe_b64encode(topic_id).decode().rstrip('=')


# ---- list and describe

def list_topics(view: Any, output: Output, options: dict[str, Any]) -> None:
    topics = view.topics()
    for name in chosen_topics(view, options):
        if output.as_json:
            output.row({'topic': name, 'topic_id': words_for_topic_id(topics[name].topic_id),
                        'is_internal': topics[name].is_internal, 'partitions': len(topics[name].partitions)})
        else:
            output.line(name)


def describe(view: Any, output: Output, options: dict[str, Any]) -> None:
    from kbroker_tools.cluster.topic_descriptions import live_descriptions, offline_descriptions
    names = chosen_topics(view, options)
    if view.is_live:
        topics = list(live_descriptions(view.admin, names, options['partition_size_limit_per_response']))
    else:
        topics = list(offline_descriptions(view, names))
    sizes = shown_sizes(view, output, topics, options['size'])
    chosen = next((name for name in DESCRIBE_FILTERS if options[name]), None)
    kept_offline = {} if view.is_live else view.kept_offline()
    for topic in topics:
        if options['topics_with_overrides'] and not topic.configs:
            continue
        partitions = [partition for partition in topic.partitions
                      if chosen is None or FILTERS[chosen](topic, partition)]
        offline = _offline(view, topic.name, partitions, kept_offline)
        if chosen and not partitions:
            continue
        if output.as_json:
            output.row(_json(topic, partitions, offline, sizes or {}))
            continue
        if chosen is None:
            total = words_for_topic_size(topic, sizes or {}) if output.is_terminal else ''
            output.line(headline(topic) + total, style='bold')
        if not options['topics_with_overrides']:
            show_partitions(output, topic, partitions, sizes)
            note_unreadable(output, offline)


def shown_sizes(view: Any, output: Output, topics: Collection[Any],
                is_asked_for: bool) -> dict[TopicPartition, int] | None:
    """Return the sizes of partitions for the output, or None if it has no sizes. By default, a pipe gets only what
    kafka-topics prints.

    If sizes were not asked for, print a note instead of raising an error: a user may describe topics without the right
    to describe log directories.
    """
    from kbroker_tools.cluster.topic_descriptions import partition_sizes
    if not (is_asked_for or output.as_json or output.is_terminal):
        return None
    try:
        return partition_sizes(view, topics)
    except (KafkaError, OSError) as error:
        if is_asked_for:
            raise
        output.note(f'the sizes of partitions are not known: {error}')
        return None


def words_for_topic_size(topic: Any, sizes: dict[TopicPartition, int]) -> str:
    known = topic_size(topic, sizes)
    return '' if known is None else f'\tSize: {words_for_bytes(known)}'


def topic_size(topic: Any, sizes: dict[TopicPartition, int]) -> int | None:
    """Return the size of a topic, the sum of its partitions. Return None if no size is known."""
    known = [sizes[topic.name, row.partition] for row in topic.partitions if (topic.name, row.partition) in sizes]
    return sum(known) if known else None


def _offline(view: Any, topic: str, partitions: Iterable[Any],
             kept_offline: dict[TopicPartition, Unreadable]) -> dict[TopicPartition, Unreadable]:
    """Return {partition: reason} for the partitions that no broker serves. For a log directory, return those that a
    broker would not serve after its next start."""
    if not view.is_live:
        return {(topic, row.partition): kept_offline[topic, row.partition] for row in partitions
                if (topic, row.partition) in kept_offline}
    without: dict[TopicPartition, Unreadable] = view.unreadable(
        [(topic, row.partition) for row in partitions if row.leader < 0])
    return without


FILTERS: dict[str, Callable[[Any, Any], bool]] = {
    'under_replicated_partitions': lambda topic, row: len(row.in_sync_replicas) < len(row.replicas),
    'unavailable_partitions': lambda topic, row: row.leader < 0 or not row.leader_is_available,
    'under_min_isr_partitions': lambda topic, row: len(row.in_sync_replicas) < topic.min_in_sync_replicas,
    'at_min_isr_partitions': lambda topic, row: len(row.in_sync_replicas) == topic.min_in_sync_replicas,
}


def headline(topic: Any) -> str:
    factor = len(topic.partitions[0].replicas) if topic.partitions else 0
    configs = ','.join(f'{name}={value}' for name, value in topic.configs)
    return (f'Topic: {topic.name}\tTopicId: {words_for_topic_id(topic.topic_id)}\tPartitionCount: '
            f'{len(topic.partitions)}\tReplicationFactor: {factor}\tConfigs: {configs}')


def show_partitions(output: Output, topic: Any, partitions: Iterable[Any],
                    sizes: dict[TopicPartition, int] | None) -> None:
    """Print a line for each partition. If sizes are given, they come last: programs that read the output of Kafka's
    tool may find its fields by their order."""
    columns = PARTITION_COLUMNS if sizes is None else (*PARTITION_COLUMNS, SIZE_COLUMN)
    rows = [(row.partition, 'none' if row.leader < 0 else row.leader, _ids(row.replicas), _ids(row.in_sync_replicas),
             _ids(row.eligible_leader_replicas), _ids(row.last_known_eligible_leader_replicas),
             *(() if sizes is None else (_size(sizes.get((topic.name, row.partition)), output.is_terminal),)))
            for row in partitions]
    if output.is_terminal:
        output.table(columns, rows)
        return
    for row in rows:
        cells = (f'{column.title}: {cell}' for column, cell in zip(columns, row, strict=True))
        output.line('\t'.join(['', f'Topic: {topic.name}', *cells]))


def _ids(brokers: tuple[int, ...] | None) -> str:
    return 'N/A' if brokers is None else ','.join(map(str, brokers))


def _size(size_bytes: int | None, is_terminal: bool) -> str:
    if size_bytes is None:
        return 'N/A'
    return words_for_bytes(size_bytes) if is_terminal else str(size_bytes)


def _json(topic: Any, partitions: Iterable[Any], offline: dict[TopicPartition, Unreadable],
          sizes: dict[TopicPartition, int]) -> dict[str, Any]:
    return {'topic': topic.name, 'topic_id': words_for_topic_id(topic.topic_id), 'is_internal': topic.is_internal,
            'configs': dict(topic.configs), 'size_bytes': topic_size(topic, sizes), 'partitions': [{
                'partition': row.partition, 'leader': None if row.leader < 0 else row.leader,
                'replicas': list(row.replicas), 'in_sync_replicas': list(row.in_sync_replicas),
                'eligible_leader_replicas': _list(row.eligible_leader_replicas),
                'last_known_eligible_leader_replicas': _list(row.last_known_eligible_leader_replicas),
                'offline': None if (found := offline.get((topic.name, row.partition))) is None else found.reason,
                'size_bytes': sizes.get((topic.name, row.partition)),
            } for row in partitions]}


def _list(brokers: tuple[int, ...] | None) -> list[int] | None:
    return None if brokers is None else list(brokers)


# ---- count

def count(view: View, output: Output, options: dict[str, Any]) -> None:
    """Print a row for each partition, and for text a row with the sums of each topic. Raise ToolError if the time was
    over before all records were counted."""
    names = chosen_topics(view, options)
    topics = view.topics()
    partitions = [(name, row.partition) for name in names for row in topics[name].partitions]
    unreadable = view.unreadable(partitions)
    note_unreadable(output, unreadable)
    ends = view.partition_offsets_of([at for at in partitions if at not in unreadable])
    unfinished: list[TopicPartition] = []
    total = sum(found.high_watermark - found.log_start_offset for found in ends.values())
    with output.progress('counting', total) as progress:
        rows = list(count_rows(view, ends, _is_over(options['timeout_ms']), progress, unfinished))
    output.table(COUNT_COLUMNS, rows if output.as_json else list(with_sums(rows)))
    if unfinished:
        raise ToolError(f'{view.place}: the time of {options["timeout_ms"]} ms was over before '
                        f'{len(unfinished)} of {len(ends)} partitions were counted to their ends')


def _is_over(limit_ms: int | None) -> Callable[[], bool]:
    end = float('inf') if limit_ms is None else time.monotonic() + limit_ms / 1000
    return lambda: time.monotonic() >= end


def count_rows(view: View, ends: Mapping[TopicPartition, PartitionOffsets], is_over: Callable[[], bool],
               progress: Progress, unfinished: list[TopicPartition]) -> Iterator[list[Any]]:
    """Yield a row of COUNT_COLUMNS for each partition. Add the partitions that were not counted to their ends to
    `unfinished`."""
    from kbroker_tools.cluster.record_counts import Walk, count_records
    for at, found in ends.items():
        start, end = found.log_start_offset, found.high_watermark
        walk = Walk(view.batch_headers(*at, start, end) if start < end else (), start, progress.advance, is_over)
        counts = count_records(walk, start, found.last_stable_offset, lambda walk=walk: walk.was_cut)  # type: ignore[misc]
        if walk.was_cut:
            unfinished.append(at)
        yield [*at, counts.committed, counts.held, counts.undecided, counts.aborted, counts.markers, start, end,
               walk.next_offset if walk.was_cut else end]


def with_sums(rows: Iterable[list[Any]]) -> Iterator[list[Any]]:
    """Yield the rows, and a row with the sums behind those of each topic with several partitions."""
    for topic, group in groupby(rows, key=lambda row: row[0]):
        partitions = list(group)
        yield from partitions
        if len(partitions) > 1:
            yield [topic, ALL_PARTITIONS, *(sum(row[index] for row in partitions) for index in range(2, 7)),
                   *[''] * (len(COUNT_COLUMNS) - 7)]


# ---- create, alter and delete

def create(view: Any, output: Output, options: dict[str, Any]) -> None:
    from kbroker.client.admin import NewTopic
    name = options['topic']
    configs = dict(_parse_config(text) for text in options['config'])
    assignments = parse_assignment(options['replica_assignment'])
    if ('.' in name or '_' in name) and not output.as_json:
        output.line(COLLIDING)
    new = NewTopic(name, -1 if assignments else options['partitions'] or -1, options['replication_factor'] or -1,
                   None if assignments is None else dict(enumerate(assignments)), configs)
    error = view.admin.create_topics([new])[name]
    if error is not None:
        if options['if_not_exists'] and error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
            return
        raise error
    if output.as_json:
        output.row({'topic': name, 'created': True})
    else:
        output.line(f'Created topic {name}.')


def _parse_config(text: str) -> tuple[str, str]:
    name, separator, value = text.partition('=')
    if not separator or not name.strip():
        raise click.BadParameter(f'found {text!r}, expected NAME=VALUE', param_hint='--config')
    return name.strip(), value.strip()


def parse_assignment(text: str | None) -> list[list[int]] | None:
    """Parse a text such as `1:2,2:1` to [[1, 2], [2, 1]]. Raise click.BadParameter if the text has another form."""
    if text is None:
        return None
    try:
        assignments = [[int(broker) for broker in partition.split(':')] for partition in text.split(',')]
    except ValueError:
        raise click.BadParameter(f'found {text!r}, expected broker ids as in 1:2,2:1',
                                 param_hint='--replica-assignment') from None
    for partition, brokers in enumerate(assignments):
        if len(set(brokers)) < len(brokers):
            raise click.BadParameter(f'partition {partition} names a broker twice', param_hint='--replica-assignment')
        if len(brokers) != len(assignments[0]):
            raise click.BadParameter(f'found {len(brokers)} replicas for partition {partition}, expected '
                                     f'{len(assignments[0])} as for partition 0', param_hint='--replica-assignment')
    return assignments


def alter(view: Any, output: Output, options: dict[str, Any]) -> None:
    topics = view.topics()
    names = chosen_topics(view, options)
    assignments = parse_assignment(options['replica_assignment'])
    new = None if assignments is None else {name: assignments[len(topics[name].partitions):] for name in names}
    fail_for_each(view.admin.create_partitions({name: options['partitions'] for name in names}, new))


def delete(view: Any, output: Output, options: dict[str, Any]) -> None:
    names = chosen_topics(view, options)
    if names:
        fail_for_each(view.admin.delete_topics(names))


def fail_for_each(results: dict[Any, KafkaError | None]) -> None:
    """Raise ToolError, with all errors, if `results` has errors."""
    errors = [str(error) for error in results.values() if error is not None]
    if errors:
        raise ToolError('; '.join(errors))


RUN = {'list': list_topics, 'describe': describe, 'count': count, 'create': create, 'alter': alter, 'delete': delete}

if __name__ == '__main__':
    main(prog_name='kbroker-topics')
