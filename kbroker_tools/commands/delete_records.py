"""kbroker-delete-records. It reads the same file as kafka-delete-records, and prints the same lines."""
from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import click

from kbroker.base.errors import KafkaError
from kbroker.base.topic_partition import TopicPartition
from kbroker.client.admin_requests import ResourceType
from kbroker_tools.base.command import FILE, SETTINGS, Command, ToolError, output_options, version_option
from kbroker_tools.base.render import Column, Output
from kbroker_tools.base.view import PartitionOffsets, TopicInfo
from kbroker_tools.cluster.opening import broker_options, open_view

LATEST = -1
"""The offset that stands for the high watermark, in the file and in DeleteRecords."""
FILE_VERSION = 1
ONLY_COMPACTED = ('cleanup.policy', 'compact')
EXPECTED_FILE = '{"partitions": [{"topic": "orders", "partition": 0, "offset": 100}], "version": 1}'
DRY_COLUMNS = (Column('topic', 'TOPIC'), Column('partition', 'PARTITION', 'right'),
               Column('log_start_offset', 'LOG-START-OFFSET', 'right'),
               Column('new_log_start_offset', 'NEW-LOG-START-OFFSET', 'right'),
               Column('offsets_deleted', 'OFFSETS-DELETED', 'right'))


@click.command(cls=Command, context_settings=SETTINGS)
@click.option('--offset-json-file', type=FILE, metavar='FILE', help='A JSON file with the offset of each partition, as '
              f'in {EXPECTED_FILE}.')
@click.option('--topic-partition', 'texts', multiple=True, metavar='TOPIC:PARTITION:OFFSET', help='A partition, and '
              'the offset of the first record to keep; may be repeated.')
@click.option('--dry-run', is_flag=True, help='Print what would be deleted, and change nothing.')
@broker_options
@output_options
@version_option
def main(as_json: bool, offset_json_file: Path | None, texts: tuple[str, ...], dry_run: bool, **options: Any) -> None:
    """Delete the records of partitions before an offset.

    The offset becomes the start of the log, and cannot be moved back. The offset -1, or `latest` in --topic-partition,
    stands for the high watermark: it deletes all records. Segments that have only deleted records are removed from the
    disk.

    The output is that of kafka-delete-records. Internal topics and topics that are only compacted keep their records.
    """
    if (offset_json_file is None) == (not texts):
        raise click.UsageError('give one of --offset-json-file and --topic-partition')
    if options['data_dir'] is not None:
        raise click.UsageError('only a broker may delete records: give --bootstrap-server, not --data-dir')
    offsets = parse_texts(texts) if offset_json_file is None else read_file(offset_json_file)
    view = open_view(options['bootstrap_server'], None, options['command_config'])
    ends = checked_ends(view, offsets)
    if dry_run:
        show_plan(Output(as_json), offsets, ends)
    else:
        delete(view, Output(as_json), offsets)


# ---- what to delete

def parse_texts(texts: tuple[str, ...]) -> dict[TopicPartition, int]:
    """Parse texts such as `orders:0:100`, `orders-0:100` or `orders:0:latest`. Raise click.BadParameter if a text has
    another form or names a partition again."""
    found: dict[TopicPartition, int] = {}
    for text in texts:
        match = re.fullmatch(r'(.+)[:-]([0-9]{1,10}):(-1|[0-9]{1,19}|latest)', text)
        if match is None:
            raise click.BadParameter(f'found {text!r}, expected TOPIC:PARTITION:OFFSET, as in orders:0:100 or '
                                     'orders:0:latest', param_hint='--topic-partition')
        topic, partition, offset = match.groups()
        if (topic, int(partition)) in found:
            raise click.BadParameter(f'{topic}:{partition} is given twice', param_hint='--topic-partition')
        found[topic, int(partition)] = LATEST if offset == 'latest' else int(offset)
    return found


def read_file(path: Path) -> dict[TopicPartition, int]:
    """Return the offsets in a file of kafka-delete-records. Raise ToolError, which names the file, for another form."""
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise ToolError(f'{path}: found no JSON ({error}), expected {EXPECTED_FILE}') from None
    if not isinstance(document, dict) or not isinstance(document.get('partitions'), list):
        raise ToolError(f'{path}: found no list of partitions, expected {EXPECTED_FILE}')
    if document.get('version', FILE_VERSION) != FILE_VERSION:
        raise ToolError(f'{path}: found version {document["version"]}, expected {FILE_VERSION}')
    found: dict[TopicPartition, int] = {}
    for row in document['partitions']:
        at, offset = read_row(path, row)
        if at in found:
            raise ToolError(f'{path}: found {at[0]}-{at[1]} twice, expected one offset for each partition')
        found[at] = offset
    return found


def read_row(path: Path, row: Any) -> tuple[TopicPartition, int]:
    topic, partition, offset = map(row.get, ('topic', 'partition', 'offset')) if isinstance(row, dict) else [None] * 3
    if not (isinstance(topic, str) and type(partition) is int and 0 <= partition < 2**31 and type(offset) is int
            and abs(offset) < 2**63):
        raise ToolError(f'{path}: found {json.dumps(row)}, expected a topic, a partition and an offset, as in '
                        f'{EXPECTED_FILE}')
    return (topic, partition), offset


# ---- checks

def checked_ends(view: Any, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, PartitionOffsets]:
    """Return the start and the end of each log. Raise ToolError, with all faults, if a broker would refuse an offset.

    The broker deletes from each partition on its own. Without this check, a typing error could leave a half-done
    deletion.
    """
    topics = view.topics()
    faults = [f'there is no partition {topic}-{partition}' for topic, partition in offsets
              if topic not in topics or all(row.partition != partition for row in topics[topic].partitions)]
    if not faults:
        faults = refusals_of_topics(view, {topic for topic, _ in offsets}, topics)
    if not faults:
        ends: dict[TopicPartition, PartitionOffsets] = view.partition_offsets_of(sorted(offsets))
        faults = [f'{topic}-{partition}: found offset {offsets[topic, partition]}, expected at most the end of the log '
                  f'at {found.high_watermark}, or {LATEST} for the end' for (topic, partition), found in ends.items()
                  if offsets[topic, partition] != LATEST and not 0 <= offsets[topic, partition] <= found.high_watermark]
    if faults:
        raise ToolError(f'{view.place}: {"; ".join(faults)}. Nothing was deleted')
    return ends


def refusals_of_topics(view: Any, names: Collection[str], topics: Mapping[str, TopicInfo]) -> list[str]:
    """Return a sentence for each topic that keeps its records. A topic whose settings the user may not read counts as
    one that does not."""
    internal = sorted(name for name in names if topics[name].is_internal)
    configs = view.admin.describe_configs([(ResourceType.TOPIC, name) for name in sorted(names)])
    compacted = [name for (_, name), entries in configs.items() if not isinstance(entries, KafkaError)
                 and any((entry.name, entry.value) == ONLY_COMPACTED for entry in entries)]
    return ([f'{name} is an internal topic' for name in internal]
            + [f'{name} has {"=".join(ONLY_COMPACTED)}: its records are current values, not a history'
               for name in compacted if name not in internal])


# ---- deleting

def delete(view: Any, output: Output, offsets: Mapping[TopicPartition, int]) -> None:
    """Delete the records, and print the new start of each log. Raise ToolError, with all errors, if a partition
    failed."""
    if not output.as_json:
        output.line('Executing records delete operation')
    results = view.admin.delete_records(offsets)
    if not output.as_json:
        output.line('Records delete operation completed:')
    for (topic, partition), found in sorted(results.items()):
        if isinstance(found, KafkaError):
            continue
        if output.as_json:
            output.row({'topic': topic, 'partition': partition, 'low_watermark': found})
        else:
            output.line(f'partition: {topic}-{partition}\tlow_watermark: {found}')
    if failures := [str(found) for found in results.values() if isinstance(found, KafkaError)]:
        raise ToolError(f'{view.place}: some records were not deleted: {"; ".join(failures)}')


def show_plan(output: Output, offsets: Mapping[TopicPartition, int],
              ends: Mapping[TopicPartition, PartitionOffsets]) -> None:
    rows = []
    for at, found in ends.items():
        new = found.high_watermark if offsets[at] == LATEST else max(offsets[at], found.log_start_offset)
        rows.append((*at, found.log_start_offset, new, new - found.log_start_offset))
    output.table(DRY_COLUMNS, rows)


if __name__ == '__main__':
    main(prog_name='kbroker-delete-records')
