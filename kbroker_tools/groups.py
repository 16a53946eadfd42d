"""kbroker-groups: the options and columns of kafka-consumer-groups, and lag in records that will be delivered."""
from __future__ import annotations

from typing import Any

import click

from kbroker_tools import actions
from kbroker_tools.command import (
    SETTINGS,
    Command,
    cluster_options,
    json_option,
    limit_retries,
    open_view,
    version_option,
)
from kbroker_tools.render import Output

ACTIONS = ('list', 'describe', 'delete', 'reset_offsets', 'delete_offsets')
GOES_WITH = {
    'group': ('describe', 'delete', 'reset_offsets', 'delete_offsets'),
    'all_groups': ('describe', 'delete', 'reset_offsets'), 'topic': ('reset_offsets', 'delete_offsets'),
    'all_topics': ('reset_offsets',), 'members': ('describe',), 'offsets': ('describe',),
    'state': ('list', 'describe'), 'type': ('list',), 'verbose': ('describe',), 'isolation_level': ('describe',),
    'dry_run': ('reset_offsets',), 'execute': ('reset_offsets',), 'export': ('reset_offsets',),
    **{name: ('reset_offsets',) for name in actions.OFFSET_SPECIFICATIONS},
}


@click.command(cls=Command, context_settings=SETTINGS)
@click.option('--list', is_flag=True, help='Print the names of all consumer groups.')
@click.option('--describe', is_flag=True, help='Print the offset and the lag of the groups in each partition.')
@click.option('--delete', is_flag=True, help='Delete the groups and their offsets.')
@click.option('--reset-offsets', is_flag=True, help='Move the offsets of groups without members. --topic or '
              '--all-topics selects them, and one of the options from --to-earliest on gives the new ones.')
@click.option('--delete-offsets', is_flag=True, help='Delete the offsets of a group in the topics of --topic.')
@click.option('--group', multiple=True, metavar='GROUP', help='The group; may be repeated.')
@click.option('--all-groups', is_flag=True, help='All groups.')
@click.option('--topic', multiple=True, metavar='TOPIC[:N,...]', help='A topic, or some partitions of it; may be '
              'repeated.')
@click.option('--all-topics', is_flag=True, help='All partitions in which the group has offsets.')
@click.option('--offsets', is_flag=True, help='Describe offsets and lag. This is the default of --describe.')
@click.option('--members', is_flag=True, help='Describe the members.')
@click.option('--state', is_flag=False, flag_value='', metavar='[STATE,...]', help='Describe the state of the groups. '
              'With --list, print states, or only the groups in these states.')
@click.option('--type', is_flag=False, flag_value='', metavar='[TYPE,...]', help='With --list, print the protocol of '
              'each group, or only the groups of these protocols: classic, consumer.')
@click.option('--verbose', is_flag=True, help='Describe epochs and assignments too.')
@click.option('--isolation-level', type=click.Choice(['read_uncommitted', 'read_committed']),
              help='With read_committed, also describe the records that a read_committed consumer has yet to read, and '
              'the transactions that hold back the rest. This reads the partitions from the offset of the group on.')
@actions.offset_options
@click.option('--dry-run', is_flag=True, help='Print the new offsets and change nothing. This is the default.')
@click.option('--execute', is_flag=True, help='Change the offsets.')
@click.option('--export', is_flag=True, help='Print the new offsets as CSV.')
@click.option('--timeout', type=click.IntRange(1), metavar='MS', help='The longest time to retry while a coordinator '
              'loads or moves.')
@cluster_options
@json_option
@version_option
def main(as_json: bool, **options: Any) -> None:
    """List and describe consumer groups, move and delete their offsets, delete groups.

    The options and the columns are those of kafka-consumer-groups. --list and --describe work on a log directory too.

    LAG counts offsets, as in Kafka's tools, and so includes transaction markers and aborted records.
    --isolation-level read_committed counts records: RECORDS-LEFT can be read now, HELD once the last stable offset
    moves, UNDECIDED once their transactions commit. HELD-BY names the transaction that holds the last stable offset.
    """
    action = actions.chosen_action(options, ACTIONS)
    check_options(action, options)
    view = open_view(options['bootstrap_server'], options['data_dir'], options['command_config'])
    limit_retries(view, options['timeout'])
    output = Output(as_json)
    if action in ('list', 'describe'):
        from kbroker_tools.group_work import tables as group_tables
        getattr(group_tables, f'{action}_groups')(view, output, options)
    else:
        from kbroker_tools.group_work import changes as group_changes
        getattr(group_changes, action)(view, output, options)


def check_options(action: str, options: dict[str, Any]) -> None:
    """click.UsageError for options that do not go together."""
    actions.check_companions(action, options, GOES_WITH)
    actions.check_at_most_one(options, ('group', 'all_groups'))
    if action == 'list':
        return
    if not options['group'] and not options['all_groups']:
        raise click.UsageError(f'{actions.spelled(action)} needs --group' + (
            '' if action == 'delete_offsets' else ' or --all-groups'))
    if action == 'describe':
        actions.check_at_most_one(options, ('members', 'offsets', 'state'))
        if options['isolation_level'] and (options['members'] or options['state'] is not None):
            raise click.UsageError('--isolation-level goes with --offsets')
        return
    actions.require_broker(options, action)
    if action == 'delete_offsets':
        actions.require(options, 'topic', action)
        if len(options['group']) > 1:
            raise click.UsageError('--delete-offsets takes one --group')
    if action == 'reset_offsets':
        actions.check_at_most_one(options, ('dry_run', 'execute'))
        actions.chosen_action(options, actions.OFFSET_SPECIFICATIONS)
        actions.check_at_most_one(options, ('topic', 'all_topics'))
        if not options['topic'] and not options['all_topics'] and options['from_file'] is None:
            raise click.UsageError('--reset-offsets needs --topic or --all-topics')


if __name__ == '__main__':
    main(prog_name='kbroker-groups')
