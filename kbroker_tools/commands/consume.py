"""kbroker-consume. It prints records of a topic on standard output, with the options of kafka-console-consumer.

It has more options: `--data-dir` reads a log directory without a broker, `--json` and `--format` choose the output, and
`--last`, `--from`, `--to` and `--filter` choose records.
"""
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from kbroker.base.clock import Clock
from kbroker_tools.base.command import SETTINGS, Command, ToolError, json_option, version_option
from kbroker_tools.cluster.opening import cluster_options
from kbroker_tools.console import message_printer as printing
from kbroker_tools.console.line_reader import parse_properties
from kbroker_tools.console.message_source import DirectorySource, Source, open_broker
from kbroker_tools.console.message_text import make_formatter
from kbroker_tools.console.places import MOST_LAST, Wanted, parse_offsets, parse_time_ms
from kbroker_tools.console.record_filter import FilteredSource, filter_of
from kbroker_tools.console.registry_values import DecodedText, decoded_text, registry_options

INT32_MAX = 2**31 - 1
ISOLATION_LEVELS = ('read_uncommitted', 'read_committed')


@click.command(cls=Command, context_settings=SETTINGS)
@cluster_options
@click.option('--topic', metavar='TOPIC', help='The topic to read.')
@click.option('--include', metavar='REGEX', help='Read all topics whose whole name matches, without internal ones.')
@click.option('--partition', type=click.IntRange(0, INT32_MAX), metavar='N',
              help='The partition to read, from its end unless --offset or --from-beginning is given.')
@click.option('--offset', metavar='earliest|latest|N|-N|P:O,...',
              help='The first offset to read in the partition. -N begins N records before the end, in the partition or '
                   'in each one. 0:15,1:-5 names partitions with their offsets, and reads only these.')
@click.option('--last', type=click.IntRange(1, MOST_LAST), metavar='N',
              help='Read the last N records of all partitions together, by their timestamps, and stop. Only records '
                   'that pass --filter and --isolation-level count. For N records of each partition, use --offset -N.')
@click.option('--from', 'from_time', metavar='TIME',
              help='Begin in each partition with the first record at or after this time: an age such as 15m, 2h or 2d, '
                   'an ISO 8601 time such as 2026-11-27T10:00Z (UTC if it has no offset), or ms since 1970.')
@click.option('--to', 'to_time', metavar='TIME',
              help='Stop in each partition before the first record at or after this time, at the latest at the present '
                   'end. Begin with the earliest record unless an option says otherwise.')
@click.option('--from-beginning', is_flag=True,
              help='Begin with the earliest record if the group has no offset yet. A directory is always read from its '
                   'beginning.')
@printing.max_messages_option
@printing.timeout_option
@click.option('--group', metavar='GROUP', help='Share the topic with the members of this group, and commit offsets.')
@click.option('--group-protocol', type=click.Choice(['classic', 'consumer']), help='The protocol of the group. With '
              'consumer, the broker assigns partitions and evaluates --include, which then finds internal topics too.  '
              '[default: classic]')
@click.option('--isolation-level', type=click.Choice(ISOLATION_LEVELS),
              help='read_committed leaves out aborted records, and waits for open transactions.  '
                   '[default: read_uncommitted]')
@click.option('--filter', 'filters', multiple=True, metavar='FIELD=REGEX',
              help='Show only records whose key, value or header.NAME contains a match of the expression '
                   '(RE2). FIELD!=REGEX shows the other ones. Each filter has to pass.')
@printing.format_option
@printing.formatter_option
@printing.formatter_property_option
@printing.command_property_option
@registry_options
@click.option('--skip-message-on-error', is_flag=True, help='Report a record that cannot be shown, and continue.')
@json_option
@version_option
def main(bootstrap_server: str | None, data_dir: Path | None, command_config: Path | None, group: str | None,
         as_json: bool, **options: Any) -> None:
    """Read records of a topic and write them to standard output.

    Bytes are written unchanged, as by Kafka's tool, and a terminal acts on escape sequences among them. Use --json for
    untrusted records.

    With --value-format, values that have the schema id of a registry are shown as JSON. A value that cannot be decoded
    is shown as it is. The number of these values is reported at the end.

    When it ends, also after Ctrl-C, a member of a group commits the offsets of the records that were shown, and leaves
    the group. It waits at most 30 s for the coordinator, as Kafka's tool does. With --timeout-ms it waits for the rest
    of this time and 1 s. A second Ctrl-C ends the wait.
    """
    overrides = parse_properties('--command-property', options['command_property'])
    if options['group_protocol'] is not None:
        overrides['group.protocol'] = options['group_protocol']
    if options['isolation_level'] is not None:
        overrides['isolation.level'] = options['isolation_level']
    wanted = Wanted(options['topic'], options['include'], options['partition'], options['offset'],
                    options['from_beginning'], overrides.get('isolation.level', 'read_uncommitted'),
                    options['timeout_ms'], *times_of(options), options['last'], filter_of(options['filters']))
    check_wanted(wanted, group)
    properties = parse_properties('--formatter-property', options['formatter_property'])
    with decoded_text(make_formatter(options['formatter'], properties, as_json, options['template']),
                      options) as shown:
        if wanted.matches is not None and isinstance(shown, DecodedText):
            wanted = wanted._replace(matches=shown.before(wanted.matches))
        source = open_source(bootstrap_server, data_dir, command_config, overrides, wanted, group)
        if wanted.matches is not None:
            source = FilteredSource(source, wanted.matches)
        on_error = printing.report_skipped if options['skip_message_on_error'] else None
        printing.Printer(shown, options['max_messages'], on_error).print_and_close(source)


def times_of(options: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return the times of `--from` and `--to` in ms. Raise ToolError for other texts, or if they are reversed."""
    now_ms = Clock().wall_ms()
    from_ms, to_ms = (None if options[key] is None else parse_time_ms(name, options[key], now_ms)
                      for name, key in (('--from', 'from_time'), ('--to', 'to_time')))
    if from_ms is not None and to_ms is not None and from_ms > to_ms:
        raise ToolError(f'found --from {options["from_time"]} after --to {options["to_time"]}, expected it before')
    return from_ms, to_ms


def check_wanted(wanted: Wanted, group: str | None) -> None:
    """Raise click.UsageError, with the message of Kafka's tool, if options contradict each other or if a required
    option is missing."""
    offset = wanted.offset
    problem = None
    if (wanted.topic is None) == (wanted.include is None):
        problem = 'Exactly one of --include/--topic is required.'
    elif wanted.partition is not None and wanted.topic is None:
        problem = 'The topic is required when partition is specified.'
    elif wanted.from_beginning and offset is not None:
        problem = 'Options from-beginning and offset cannot be specified together.'
    elif (wanted.from_ms is not None or wanted.last is not None) and (wanted.from_beginning or offset is not None):
        problem = f'Options {"from" if wanted.last is None else "last"} and ' \
                  f'{"offset" if offset else "from-beginning"} cannot be specified together.'
    elif group is not None and wanted.partition is not None:
        problem = 'Options group and partition cannot be specified together.'
    elif offset is not None:
        problem = offset_problem(wanted, parse_offsets(offset))
    if problem is None and group is not None and wanted.is_searched:
        problem = 'Options --last, --from, --to and --offset need a consumer without --group. kbroker-groups ' \
                  '--reset-offsets moves a group.'
    if problem is not None:
        raise click.UsageError(problem)


def offset_problem(wanted: Wanted, offsets: Mapping[int | None, str]) -> str | None:
    """Return why `--offset` does not go with the other options, or None."""
    if None not in offsets:
        if wanted.topic is None or wanted.partition is not None:
            return f'--offset {wanted.offset} names partitions: it needs --topic, and no --partition.'
    elif wanted.partition is None and not offsets[None].startswith('-'):
        return 'The partition is required when offset is specified.'
    return None


def open_source(bootstrap_server: str | None, data_dir: Path | None, command_config: Path | None,
                overrides: dict[str, str], wanted: Wanted, group: str | None) -> Source:
    """Open the source that the options name. Raise click.UsageError unless either a broker or a directory is given.
    Raise KafkaError, ClientError or OSError if the source cannot be opened."""
    if (bootstrap_server is None) == (data_dir is None):
        raise click.UsageError('give one of --bootstrap-server HOST:PORT (a live broker) and --data-dir DIR (offline)')
    wanted = wanted._replace(offset=wanted.offset.lower() if wanted.offset else None)
    if data_dir is not None:
        if group is not None:
            raise click.UsageError('--group needs --bootstrap-server: a directory has no members')
        from kbroker_tools.cluster.directory_view import DirectoryView
        return DirectorySource(DirectoryView(data_dir), wanted)
    if group is not None:
        overrides['group.id'] = group
    if wanted.from_beginning or wanted.offset == 'earliest':
        found = overrides.get('auto.offset.reset', 'earliest')
        if wanted.from_beginning and found != 'earliest':
            raise click.UsageError(f"Can't simultaneously specify --from-beginning and 'auto.offset.reset={found}', "
                                   'please remove one option')
        overrides['auto.offset.reset'] = 'earliest'
    return open_broker(str(bootstrap_server), command_config, overrides, wanted)


if __name__ == '__main__':
    main(prog_name='kbroker-consume')
