"""kbroker-log-dirs. Its options and its JSON are those of kafka-log-dirs."""
from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Any

import click

from kbroker.base.words import words_for_bytes
from kbroker.client.descriptions import LogDirectory, ReplicaSize
from kbroker_tools.base.command import SETTINGS, Command, ToolError, output_options, version_option
from kbroker_tools.base.render import Column, Output, words_for_count
from kbroker_tools.base.view import View
from kbroker_tools.cluster.opening import cluster_options, open_view

COLUMNS = (Column('topic', 'TOPIC'), Column('partition', 'PARTITION', 'right'), Column('size', 'SIZE', 'right'),
           Column('size_bytes', 'BYTES', 'right'))
COLUMNS_OF_A_MOVE = (Column('offset_lag', 'OFFSET-LAG', 'right'), Column('is_future', 'FUTURE'))


def words_of_list(context: click.Context, parameter: click.Parameter, text: str | None) -> list[str] | None:
    """Return the words of a comma-separated list. Return None for an empty list, which selects everything."""
    return [word.strip() for word in (text or '').split(',') if word.strip()] or None


def broker_ids_of_list(context: click.Context, parameter: click.Parameter, text: str | None) -> list[int] | None:
    words = words_of_list(context, parameter, text)
    try:
        return None if words is None else [int(word) for word in words]
    except ValueError:
        raise click.BadParameter(f'found {text!r}, expected broker ids as in 1,2') from None


@click.command(cls=Command, context_settings=SETTINGS)
@click.option('--describe', is_flag=True, help='Describe the log directories. This is the only action, and the '
              'default.')
@click.option('--topic-list', metavar='TOPIC,...', callback=words_of_list, help='Describe only partitions of these '
              'topics.')
@click.option('--broker-list', metavar='ID,...', callback=broker_ids_of_list, help='Describe only the log directories '
              'of these brokers.')
@cluster_options
@output_options
@version_option
def main(as_json: bool, **options: Any) -> None:
    """Print the sizes of partitions, by broker and log directory.

    The options are those of kafka-log-dirs, and in a pipe the output is, too: one line of JSON after two lines of text.
    A terminal gets a table of each directory, with the largest partitions first and without empty ones. With --json,
    each line describes one directory, with the size and the free space of its file system.

    The size of a partition is the sum of its segments, without indexes. The log directory of a stopped broker can be
    described, too.
    """
    view = open_view(options['bootstrap_server'], options['data_dir'], options['command_config'])
    topics, broker_ids = options['topic_list'], options['broker_list']
    output = Output(as_json)
    try:
        found = view.log_directories(None if topics is None else partitions_of(view, topics), broker_ids)
    except ValueError as error:
        raise ToolError(f'{view.place}: {error}') from None
    if as_json:
        for directory in found:
            output.row(json_of(directory))
    elif output.is_terminal:
        show_tables(output, found, with_empty=topics is not None)
    else:
        brokers = sorted({directory.broker_id for directory in found} if broker_ids is None else broker_ids)
        output.line('Querying brokers for log directories information')
        output.line(f'Received log directory information from brokers {",".join(map(str, brokers))}')
        output.line(json.dumps(kafka_json(brokers, found), separators=(',', ':'), ensure_ascii=False))


def partitions_of(view: View, names: Collection[str]) -> list[tuple[str, int]]:
    """Return all partitions of the topics. Raise ToolError if a topic does not exist."""
    topics = view.topics()
    if missing := sorted(set(names) - topics.keys()):
        raise ToolError(f'{view.place}: there is no topic {", ".join(missing)}; kbroker-topics --list shows the '
                        'existing ones')
    return [(name, row.partition) for name in names for row in topics[name].partitions]


def kafka_json(brokers: Iterable[int], found: Iterable[LogDirectory]) -> dict[str, Any]:
    """Return the document that kafka-log-dirs prints."""
    found = list(found)
    return {'brokers': [{'broker': broker_id, 'logDirs': [
        {'partitions': [
            {'partition': f'{replica.topic}-{replica.partition}', 'size': replica.size_bytes,
             'offsetLag': replica.offset_lag, 'isFuture': replica.is_future} for replica in directory.replicas],
         'error': None if directory.error is None else java_exception(directory.error), 'logDir': directory.path}
        for directory in found if directory.broker_id == broker_id]} for broker_id in brokers], 'version': 1}


def java_exception(error: str) -> str:
    """Return the class with which Kafka's tools name an error: `KafkaStorageException` for KAFKA_STORAGE_ERROR."""
    words = ''.join(word.capitalize() for word in error.removesuffix('_ERROR').split('_'))
    return f'org.apache.kafka.common.errors.{words}Exception'


def json_of(directory: LogDirectory) -> dict[str, Any]:
    return {'broker': directory.broker_id, 'log_dir': directory.path, 'error': directory.error,
            'total_bytes': directory.total_bytes, 'usable_bytes': directory.usable_bytes,
            'size_bytes': size_of(directory.replicas),
            'partitions': [{'topic': replica.topic, 'partition': replica.partition, 'size_bytes': replica.size_bytes,
                            'offset_lag': replica.offset_lag, 'is_future': replica.is_future}
                           for replica in directory.replicas]}


def size_of(replicas: Iterable[ReplicaSize]) -> int:
    return sum(replica.size_bytes for replica in replicas)


def show_tables(output: Output, found: Iterable[LogDirectory], with_empty: bool) -> None:
    """Print a table for each directory. Without `with_empty`, print only the number of partitions of 0 bytes: many
    partitions of internal topics are empty."""
    for number, directory in enumerate(found):
        if number:
            output.line()
        output.line(heading(directory), style='bold')
        is_moved = any(replica.is_future or replica.offset_lag for replica in directory.replicas)
        rows = [(replica.topic, replica.partition, words_for_bytes(replica.size_bytes), replica.size_bytes,
                 *((replica.offset_lag, 'yes' if replica.is_future else '') if is_moved else ()))
                for replica in sorted(directory.replicas, key=lambda replica: (
                    -replica.size_bytes, replica.topic, replica.partition))
                if replica.size_bytes or replica.is_future or with_empty]
        if rows:
            output.table(COLUMNS + (COLUMNS_OF_A_MOVE if is_moved else ()), rows)
        if empty := len(directory.replicas) - len(rows):
            output.line(f'{words_for_count(empty, "empty partition")} not shown')


def heading(directory: LogDirectory) -> str:
    words = [f'broker {directory.broker_id}', directory.path]
    if directory.error is not None:
        return ', '.join([*words, f'not available: {directory.error}'])
    words.append(f'{words_for_bytes(size_of(directory.replicas))} in '
                 f'{words_for_count(len(directory.replicas), "partition")}')
    if directory.usable_bytes is not None and directory.total_bytes is not None:
        words.append(f'{words_for_bytes(directory.usable_bytes)} of {words_for_bytes(directory.total_bytes)} free')
    return ', '.join(words)


if __name__ == '__main__':
    main(prog_name='kbroker-log-dirs')
