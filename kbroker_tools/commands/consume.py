"""kbroker-consume. It prints records of a topic on standard output, with the options of kafka-console-consumer.

It has more options: `--data-dir` reads a log directory without a broker, `--json` and `--format` choose the output, and
`--filter` chooses records.
"""
from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kbroker_tools.base.command import SETTINGS, Command, json_option, version_option
from kbroker_tools.cluster.opening import cluster_options
from kbroker_tools.console import message_printer as printing
from kbroker_tools.console.line_reader import parse_properties
from kbroker_tools.console.message_source import DirectorySource, Source, Wanted, open_broker
from kbroker_tools.console.message_text import make_formatter
from kbroker_tools.console.record_filter import FilteredSource, filter_of

INT32_MAX = 2**31 - 1
ISOLATION_LEVELS = ('read_uncommitted', 'read_committed')


@click.command(cls=Command, context_settings=SETTINGS)
@cluster_options
@click.option('--topic', metavar='TOPIC', help='The topic to read.')
@click.option('--include', metavar='REGEX', help='Read all topics whose whole name matches, without internal ones.')
@click.option('--partition', type=click.IntRange(0, INT32_MAX), metavar='N',
              help='The partition to read, from its end unless --offset or --from-beginning is given.')
@click.option('--offset', metavar='earliest|latest|N', help='The first offset to read in the partition.')
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
@click.option('--skip-message-on-error', is_flag=True, help='Report a record that cannot be shown, and continue.')
@json_option
@version_option
def main(bootstrap_server: str | None, data_dir: Path | None, command_config: Path | None, group: str | None,
         as_json: bool, **options: Any) -> None:
    """Read records of a topic and write them to standard output.

    Bytes are written unchanged, as by Kafka's tool, and a terminal acts on escape sequences among them. Use --json for
    untrusted records.

    When it ends, also after Ctrl-C, a member of a group commits the offsets of the records that were shown, and leaves
    the group. It waits at most 30 s for the coordinator, as Kafka's tool does. A second Ctrl-C ends the wait.
    """
    overrides = parse_properties('--command-property', options['command_property'])
    if options['group_protocol'] is not None:
        overrides['group.protocol'] = options['group_protocol']
    if options['isolation_level'] is not None:
        overrides['isolation.level'] = options['isolation_level']
    wanted = Wanted(options['topic'], options['include'], options['partition'], options['offset'],
                    options['from_beginning'], overrides.get('isolation.level', 'read_uncommitted'),
                    options['timeout_ms'])
    check_wanted(wanted, group)
    properties = parse_properties('--formatter-property', options['formatter_property'])
    shown = make_formatter(options['formatter'], properties, as_json, options['template'])
    matches = filter_of(options['filters'])
    source = open_source(bootstrap_server, data_dir, command_config, overrides, wanted, group)
    if matches is not None:
        source = FilteredSource(source, matches)
    on_error = printing.report_skipped if options['skip_message_on_error'] else None
    printing.Printer(shown, options['max_messages'], on_error).print_and_close(source)


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
    elif wanted.partition is None and offset is not None:
        problem = 'The partition is required when offset is specified.'
    elif group is not None and wanted.partition is not None:
        problem = 'Options group and partition cannot be specified together.'
    elif offset is not None and offset.lower() not in ('earliest', 'latest') and not (
            offset.isascii() and offset.isdigit() and int(offset) < 2**63):
        problem = (f"The provided offset value '{offset}' is incorrect. Valid values are 'earliest', 'latest', or a "
                   'non-negative long.')
    if problem is not None:
        raise click.UsageError(problem)


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
