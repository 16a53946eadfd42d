"""kbroker-streams-groups: the options and columns of kafka-streams-groups."""
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
    'all_groups': ('describe', 'delete', 'reset_offsets'), 'input_topic': ('reset_offsets', 'delete_offsets'),
    'all_input_topics': ('reset_offsets', 'delete_offsets'), 'members': ('describe',), 'offsets': ('describe',),
    'state': ('list', 'describe'), 'verbose': ('describe',), 'delete_internal_topic': ('reset_offsets',),
    'delete_all_internal_topics': ('reset_offsets', 'delete'), 'dry_run': ('reset_offsets',),
    'execute': ('reset_offsets',), 'export': ('reset_offsets',),
    **{name: ('reset_offsets',) for name in actions.OFFSET_SPECIFICATIONS},
}


@click.command(cls=Command, context_settings=SETTINGS)
@click.option('--list', is_flag=True, help='Print the names of all streams groups.')
@click.option('--describe', is_flag=True, help='Print the lag of the groups in each partition that their tasks read.')
@click.option('--delete', is_flag=True, help='Delete groups without members, and their offsets.')
@click.option('--reset-offsets', is_flag=True, help='Move the offsets of groups without members. --input-topic or '
              '--all-input-topics selects them, and one of the options from --to-earliest on gives the new ones.')
@click.option('--delete-offsets', is_flag=True, help='Delete the offsets of a group without members in the topics of '
              '--input-topic or --all-input-topics.')
@click.option('--group', multiple=True, metavar='GROUP', help='The group, which is the application.id; may be '
              'repeated.')
@click.option('--all-groups', is_flag=True, help='All streams groups.')
@click.option('--input-topic', multiple=True, metavar='TOPIC[:N,...]', help='A topic that the application reads, or '
              'some partitions of it; may be repeated.')
@click.option('--all-input-topics', is_flag=True, help='All partitions of input topics in which the group has offsets.')
@click.option('--offsets', is_flag=True, help='Describe offsets and lag. This is the default of --describe.')
@click.option('--members', is_flag=True, help='Describe the members and their tasks.')
@click.option('--state', is_flag=False, flag_value='', metavar='[STATE,...]', help='Describe the state of the groups. '
              'With --list, print states, or only the groups in these states: Empty, NotReady, Stable, Assigning, '
              'Reconciling, Dead.')
@click.option('--verbose', is_flag=True, help='Describe epochs, offsets and targets too.')
@click.option('--delete-internal-topic', multiple=True, metavar='TOPIC', help='With --reset-offsets --execute, delete '
              'a topic that the application made; may be repeated.')
@click.option('--delete-all-internal-topics', is_flag=True, help='With --delete, or with --reset-offsets --execute, '
              'delete all topics that the application made.')
@actions.offset_options
@click.option('--dry-run', is_flag=True, help='Print the new offsets and change nothing.')
@click.option('--execute', is_flag=True, help='Change the offsets.')
@click.option('--export', is_flag=True, help='Print the new offsets as CSV.')
@click.option('--timeout', type=click.IntRange(1), metavar='MS', help='The longest time to retry while a coordinator '
              'loads or moves.')
@cluster_options
@json_option
@version_option
def main(as_json: bool, **options: Any) -> None:
    """List and describe streams groups, move and delete their offsets, delete groups and their internal topics.

    The options and the columns are those of kafka-streams-groups. --list and --describe work on a log directory too.
    OFFSET-LAG counts offsets, and from the start of the log where the group has no offset.
    """
    action = actions.chosen_action(options, ACTIONS)
    check_options(action, options)
    view = open_view(options['bootstrap_server'], options['data_dir'], options['command_config'])
    limit_retries(view, options['timeout'])
    if action in ('list', 'describe'):
        from kbroker_tools.group_work import streams_tables
        getattr(streams_tables, f'{action}_groups')(view, Output(as_json), options)
    else:
        from kbroker_tools.group_work import streams_changes
        getattr(streams_changes, action)(view, Output(as_json), options)


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
        return
    actions.require_broker(options, action)
    if action == 'delete':
        return
    actions.check_at_most_one(options, ('input_topic', 'all_input_topics'))
    if not options['input_topic'] and not options['all_input_topics'] and options['from_file'] is None:
        raise click.UsageError(f'{actions.spelled(action)} needs --input-topic or --all-input-topics')
    if action == 'delete_offsets':
        if len(options['group']) > 1:
            raise click.UsageError('--delete-offsets takes one --group')
        return
    actions.chosen_action(options, ('dry_run', 'execute'))
    actions.chosen_action(options, actions.OFFSET_SPECIFICATIONS)


if __name__ == '__main__':
    main(prog_name='kbroker-streams-groups')
