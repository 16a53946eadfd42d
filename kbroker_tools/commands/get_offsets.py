"""kbroker-get-offsets. Its options and its output are those of kafka-get-offsets."""
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import click

from kbroker.base.topic_partition import TopicPartition
from kbroker.client.admin import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    IsolationLevel,
    ListedOffset,
)
from kbroker_tools.base.command import SETTINGS, Command, ToolError, output_options, version_option
from kbroker_tools.base.render import Column, Output
from kbroker_tools.base.topic_pattern import pattern_of
from kbroker_tools.base.view import TopicInfo
from kbroker_tools.cluster.opening import cluster_options, note_unreadable, open_view

LAST_STABLE = 'last-stable'
TIMES = {'latest': LATEST, 'earliest': EARLIEST, 'max-timestamp': MAX_TIMESTAMP, 'earliest-local': EARLIEST_LOCAL,
         'latest-tiered': LATEST_TIERED, 'earliest-pending-upload': EARLIEST_PENDING_UPLOAD}
LONGEST_TIME_MS = 2**63 - 1
AT = (Column('topic', 'TOPIC'), Column('partition', 'PARTITION', 'right'))
COLUMNS = (*AT, Column('offset', 'OFFSET', 'right'))
COLUMNS_OF_ALL = (*AT, Column('log_start_offset', 'LOG-START-OFFSET', 'right'),
                  Column('last_stable_offset', 'LAST-STABLE-OFFSET', 'right'),
                  Column('high_watermark', 'LOG-END-OFFSET', 'right'))


def parse_time(context: click.Context, parameter: click.Parameter, text: str) -> int | str:
    """Return the value of --time: LAST_STABLE, the number of a special timestamp, or a time in ms."""
    if text == LAST_STABLE:
        return text
    if text in TIMES:
        return TIMES[text]
    number = int(text) if re.fullmatch(r'-?[0-9]{1,19}', text) else None
    if number is None or number > LONGEST_TIME_MS or number < min(TIMES.values()):
        raise click.BadParameter(f'found {text!r}, expected {", ".join([*TIMES, LAST_STABLE])}, a number from -1 to '
                                 f'{min(TIMES.values())}, or milliseconds since 1970')
    return number


class Rule(NamedTuple):
    """One rule of --topic-partitions: partitions from `first` up to, but without, `end` of the topics that match."""

    topics: re.Pattern[str]
    first: int
    end: int | None

    def selects(self, topic: str, partition: int) -> bool:
        return (self.topics.fullmatch(topic) is not None and partition >= self.first
                and (self.end is None or partition < self.end))


@click.command(cls=Command, context_settings=SETTINGS)
@click.option('--topic', metavar='REGEX', help='Regular expressions for whole topic names, separated by commas. The '
              'default is all topics.')
@click.option('--partitions', metavar='N,...', help='Only these partitions of the topics.')
@click.option('--topic-partitions', metavar='RULE,...', help='Only partitions that a rule selects. A rule is '
              'TOPIC:PARTITION, with a regular expression as the topic. The partition may be a number, FIRST-END '
              '(without END), FIRST-, or -END. Either part may be left out.')
@click.option('--time', 'wanted', callback=parse_time, metavar='TIME', default='latest', show_default=True,
              help='The offset to print: latest (-1), earliest (-2), max-timestamp (-3), earliest-local (-4), '
              'latest-tiered (-5), earliest-pending-upload (-6), last-stable, or that of the first record at or after '
              'a time in ms since 1970. A partition without such an offset is left out.')
@click.option('--all', 'all_ends', is_flag=True, help='Print the start of the log, the last stable offset and the '
              'latest offset of each partition.')
@click.option('--exclude-internal-topics', is_flag=True, help='Leave out the internal topics of the cluster.')
@cluster_options
@output_options
@version_option
def main(as_json: bool, wanted: int | str, **options: Any) -> None:
    """Print offsets of partitions: the end or the start of the log, or the offset at a time.

    The options and the output are those of kafka-get-offsets: TOPIC:PARTITION:OFFSET on each line. Partitions are
    sorted by topic and number.

    The latest offset is the high watermark. A read_committed consumer reads up to the last stable offset, the first
    offset of the earliest open transaction. `--time last-stable` prints it, and `--all` prints both.
    """
    if options['topic_partitions'] is not None and (options['topic'] is not None or options['partitions'] is not None):
        raise click.UsageError('--topic-partitions excludes --topic and --partitions')
    if options['all_ends'] and wanted != LATEST:
        raise click.UsageError('--all and --time exclude each other')
    rules = rules_of(options)
    view = open_view(options['bootstrap_server'], options['data_dir'], options['command_config'])
    output = Output(as_json)
    partitions = list(chosen_partitions(view.topics(), rules, options['exclude_internal_topics']))
    if not partitions:
        raise ToolError(f'{view.place}: no partition matches; kbroker-topics --list shows the topics')
    unreadable = view.unreadable(partitions)
    note_unreadable(output, unreadable)
    partitions = [at for at in partitions if at not in unreadable]
    if options['all_ends']:
        show(output, COLUMNS_OF_ALL, ends_of(view, partitions))
    else:
        found = offsets_of(view, partitions, wanted)
        show_offsets(output, found, is_record=not isinstance(wanted, str) and (wanted >= 0 or wanted == MAX_TIMESTAMP))


# ---- selection

def rules_of(options: dict[str, Any]) -> list[Rule]:
    """Return the rules that the options are. Raise click.BadParameter if an option has another form, and ToolError for
    a text that is no regular expression."""
    if options['topic_partitions'] is not None:
        return [parse_rule(text) for text in options['topic_partitions'].split(',')]
    pattern = pattern_of('.*' if options['topic'] is None else options['topic'])
    if options['partitions'] is None:
        return [Rule(pattern, 0, None)]
    numbers = [word.strip() for word in options['partitions'].split(',')]
    if not all(re.fullmatch(r'[0-9]{1,10}', word) for word in numbers):
        raise click.BadParameter(f'found {options["partitions"]!r}, expected numbers of partitions as in 0,2',
                                 param_hint='--partitions')
    return [Rule(pattern, int(word), int(word) + 1) for word in numbers]


def parse_rule(text: str) -> Rule:
    """Parse a rule such as `orders:0`, `orders:2-`, `ord.*:-3` or `:1`. Raise click.BadParameter if the text has
    another form."""
    match = re.fullmatch(r'([^:]*)(?::(?:([0-9]{1,10})|([0-9]{1,10})?-([0-9]{1,10})?)?)?', text)
    if match is None:
        raise click.BadParameter(f'found {text!r}, expected TOPIC, TOPIC:N, TOPIC:N-M, TOPIC:N- or TOPIC:-M',
                                 param_hint='--topic-partitions')
    topic, only, first, end = match.groups()
    pattern = pattern_of(topic or '.*')
    if only is not None:
        return Rule(pattern, int(only), int(only) + 1)
    return Rule(pattern, int(first or 0), None if end is None else int(end))


def chosen_partitions(topics: dict[str, TopicInfo], rules: Sequence[Rule],
                      excludes_internal: bool) -> Iterator[TopicPartition]:
    for name, topic in topics.items():
        if not (topic.is_internal and excludes_internal):
            yield from ((name, row.partition) for row in topic.partitions
                        if any(rule.selects(name, row.partition) for rule in rules))


# ---- offsets

def offsets_of(view: Any, partitions: Sequence[TopicPartition],
               wanted: int | str) -> dict[TopicPartition, ListedOffset]:
    """Return the offset of each partition. It is -1 if the partition has no such offset. Raise KafkaError and OSError.
    """
    if view.is_live:
        level = IsolationLevel.READ_COMMITTED if wanted == LAST_STABLE else IsolationLevel.READ_UNCOMMITTED
        timestamp = LATEST if wanted == LAST_STABLE else wanted
        return view.admin.list_offsets(dict.fromkeys(partitions, timestamp), level)  # type: ignore[no-any-return]
    return {at: offset_in_directory(view, at, wanted) for at in partitions}


def offset_in_directory(view: Any, at: TopicPartition, wanted: Any) -> ListedOffset:
    """Return the offset that a broker would list for a partition of a log directory."""
    ends = view.partition_offsets(*at)
    known = {LATEST: ends.high_watermark, LAST_STABLE: ends.last_stable_offset, EARLIEST: ends.log_start_offset,
             EARLIEST_LOCAL: ends.log_start_offset, LATEST_TIERED: -1, EARLIEST_PENDING_UPLOAD: -1}
    if wanted in known:
        return ListedOffset(known[wanted], -1, -1)
    from kbroker_tools.cluster.record_times import first_record_since, newest_record
    record = newest_record(view, at, ends) if wanted == MAX_TIMESTAMP else first_record_since(view, at, ends, wanted)
    return ListedOffset(-1, -1, -1) if record is None else ListedOffset(record.offset, record.timestamp_ms, -1)


def ends_of(view: Any, partitions: Sequence[TopicPartition]) -> Iterator[tuple[Any, ...]]:
    """Yield the row of COLUMNS_OF_ALL for each partition."""
    for at, ends in view.partition_offsets_of(partitions).items():
        yield *at, ends.log_start_offset, ends.last_stable_offset, ends.high_watermark


# ---- output

def show_offsets(output: Output, found: dict[TopicPartition, ListedOffset], is_record: bool) -> None:
    """Print the offsets that were found. JSON rows have the timestamp, too, if the offset is that of a record."""
    rows = {at: listed for at, listed in found.items() if listed.offset >= 0}
    if output.as_json:
        for (topic, partition), listed in rows.items():
            output.row({'topic': topic, 'partition': partition, 'offset': listed.offset,
                        'timestamp_ms': listed.timestamp_ms if is_record else None})
        return
    show(output, COLUMNS, ((*at, listed.offset) for at, listed in rows.items()))


def show(output: Output, columns: Sequence[Column], rows: Iterator[tuple[Any, ...]]) -> None:
    if output.as_json or output.is_terminal:
        output.table(columns, list(rows))
        return
    for row in rows:
        output.line(':'.join(map(str, row)))


if __name__ == '__main__':
    main(prog_name='kbroker-get-offsets')
