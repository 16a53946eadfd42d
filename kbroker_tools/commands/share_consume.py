"""kbroker-share-consume. It prints records of a share group on standard output, with the options of
kafka-console-share-consumer. It has one more option, `--json`."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kbroker.client.config import read_client_file
from kbroker.client.share_sessions import AcknowledgeType
from kbroker_tools.base.command import SETTINGS, Command, json_option, version_option
from kbroker_tools.cluster.opening import bootstrap_option, command_config_option, profile_option
from kbroker_tools.console import message_printer as printing
from kbroker_tools.console.line_reader import parse_properties
from kbroker_tools.console.message_text import make_formatter
from kbroker_tools.console.registry_values import decoded_text, registry_options
from kbroker_tools.console.share_source import DEFAULT_GROUP, open_share_group


@click.command(cls=Command, context_settings=SETTINGS)
@bootstrap_option()
@command_config_option(help_text='Settings of the consumer and of its connections (security.protocol, sasl.*, ssl.*), '
                       'as properties.')
@profile_option
@click.option('--topic', required=True, metavar='TOPIC', help='The topic to read.')
@click.option('--group', metavar='GROUP', help=f'The share group.  [default: {DEFAULT_GROUP}]')
@click.option('--release', is_flag=True, help='Release each record after it was shown, so that the group delivers it '
              'again.')
@click.option('--reject', is_flag=True, help='Reject each record after it was shown.')
@printing.max_messages_option
@printing.timeout_option
@printing.format_option
@printing.formatter_option
@click.option('--formatter-config', type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar='FILE',
              help='Properties of the formatter. Those of --formatter-property take precedence.')
@printing.formatter_property_option
@printing.command_property_option
@registry_options
@click.option('--reject-message-on-error', is_flag=True, help='Reject a record that cannot be shown, and continue.')
@json_option
@version_option
def main(bootstrap_server: str, command_config: Path | None, topic: str, as_json: bool, **options: Any) -> None:
    """Read records as a member of a share group and write them to standard output.

    Each record that was shown is accepted, unless --release or --reject is given. A new group begins at the end of the
    topic, unless kbroker-share-groups has reset it to the start.
    """
    if options['release'] and options['reject']:
        raise click.UsageError('At most one of --reject and --release may be specified.')
    outcome = AcknowledgeType.ACCEPT
    if options['release'] or options['reject']:
        outcome = AcknowledgeType.RELEASE if options['release'] else AcknowledgeType.REJECT
    properties = parse_properties('--formatter-property', options['formatter_property'])
    if options['formatter_config'] is not None:
        properties = read_client_file(options['formatter_config']) | properties
    overrides = parse_properties('--command-property', options['command_property'])
    if options['group'] is not None:
        overrides['group.id'] = options['group']
    with decoded_text(make_formatter(options['formatter'], properties, as_json, options['template']),
                      options) as shown:
        source = open_share_group(bootstrap_server, command_config, overrides, topic, outcome, options['timeout_ms'])
        on_error = source.reject if options['reject_message_on_error'] else None
        printing.Printer(shown, options['max_messages'], on_error).print_and_close(source)


if __name__ == '__main__':
    main(prog_name='kbroker-share-consume')
