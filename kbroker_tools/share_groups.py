"""kbroker-share-groups: the options and columns of kafka-share-groups."""
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
SPECIFICATIONS = ('to_earliest', 'to_latest', 'to_datetime')
GOES_WITH = {
    'group': ('describe', 'delete', 'reset_offsets', 'delete_offsets'), 'all_groups': ('describe', 'delete'),
    'topic': ('reset_offsets', 'delete_offsets'), 'all_topics': ('reset_offsets',), 'members': ('describe',),
    'offsets': ('describe',), 'state': ('list', 'describe'), 'verbose': ('describe',),
    'dry_run': ('reset_offsets',), 'execute': ('reset_offsets',),
    **{name: ('reset_offsets',) for name in SPECIFICATIONS},
}


@click.command(cls=Command, context_settings=SETTINGS)
@click.option('--list', is_flag=True, help='Print the names of all share groups.')
@click.option('--describe', is_flag=True, help='Print where the groups begin in each partition, and their lag.')
@click.option('--delete', is_flag=True, help='Delete groups without members, with all that they remember.')
@click.option('--reset-offsets', is_flag=True, help='Let a group without members begin at other offsets. --topic or '
              '--all-topics selects the partitions, and one of the options from --to-earliest on gives the offsets. A '
              'group that does not exist is created.')
@click.option('--delete-offsets', is_flag=True, help='Let a group without members forget the topics of --topic.')
@click.option('--group', multiple=True, metavar='GROUP', help='The group; may be repeated.')
@click.option('--all-groups', is_flag=True, help='All share groups.')
@click.option('--topic', multiple=True, metavar='TOPIC[:N,...]', help='A topic; may be repeated. With --reset-offsets, '
              'some partitions of it.')
@click.option('--all-topics', is_flag=True, help='All partitions in which the group has offsets.')
@click.option('--offsets', is_flag=True, help='Describe offsets and lag. This is the default of --describe.')
@click.option('--members', is_flag=True, help='Describe the members.')
@click.option('--state', is_flag=False, flag_value='', metavar='[STATE,...]', help='Describe the state of the groups. '
              'With --list, print states, or only the groups in these states: Empty, Stable, Dead.')
@click.option('--verbose', is_flag=True, help='Describe epochs too.')
@click.option('--to-earliest', is_flag=True, help='Begin at the start of the log.')
@click.option('--to-latest', is_flag=True, help='Begin at the end of the log.')
@click.option('--to-datetime', metavar='TIME', help='Begin at the first record at or after a time, '
              'YYYY-MM-DDThh:mm:ss.sss, which is UTC unless it ends with an offset.')
@click.option('--dry-run', is_flag=True, help='Print the new offsets and change nothing.')
@click.option('--execute', is_flag=True, help='Change the offsets.')
@click.option('--timeout', type=click.IntRange(1), metavar='MS', help='The longest time to retry while a coordinator '
              'loads or moves.')
@cluster_options
@json_option
@version_option
def main(as_json: bool, **options: Any) -> None:
    """List and describe share groups, delete them and their offsets.

    The options and the columns are those of kafka-share-groups. --list and --describe work on a log directory too.
    LAG counts the offsets that no member has finished.
    """
    action = actions.chosen_action(options, ACTIONS)
    check_options(action, options)
    view = open_view(options['bootstrap_server'], options['data_dir'], options['command_config'])
    limit_retries(view, options['timeout'])
    if action in ('list', 'describe'):
        from kbroker_tools.group_work import share_tables
        getattr(share_tables, f'{action}_groups')(view, Output(as_json), options)
    else:
        from kbroker_tools.group_work import share_changes
        getattr(share_changes, action)(view, Output(as_json), options)


def check_options(action: str, options: dict[str, Any]) -> None:
    """click.UsageError for options that do not go together."""
    actions.check_companions(action, options, GOES_WITH)
    actions.check_at_most_one(options, ('group', 'all_groups'))
    if action == 'list':
        return
    if not options['group'] and not options['all_groups']:
        raise click.UsageError(f'{actions.spelled(action)} needs --group' + (
            '' if action in ('reset_offsets', 'delete_offsets') else ' or --all-groups'))
    if action == 'describe':
        actions.check_at_most_one(options, ('members', 'offsets', 'state'))
        return
    actions.require_broker(options, action)
    if action in ('reset_offsets', 'delete_offsets') and len(options['group']) > 1:
        raise click.UsageError(f'{actions.spelled(action)} takes one --group')
    if action == 'delete_offsets':
        actions.require(options, 'topic', action)
    if action == 'reset_offsets':
        actions.chosen_action(options, ('dry_run', 'execute'))
        actions.chosen_action(options, SPECIFICATIONS)
        actions.check_at_most_one(options, ('topic', 'all_topics'))
        if not options['topic'] and not options['all_topics']:
            raise click.UsageError('--reset-offsets needs --topic or --all-topics')


if __name__ == '__main__':
    main(prog_name='kbroker-share-groups')
