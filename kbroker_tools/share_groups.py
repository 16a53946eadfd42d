"""kbroker-share-groups: the options and columns of kafka-share-groups."""
from __future__ import annotations

from typing import Any

import click

from kbroker_tools import actions
from kbroker_tools.command import SETTINGS, Command, cluster_options, json_option, open_view, version_option
from kbroker_tools.render import Output

ACTIONS = ('list', 'describe', 'delete', 'delete_offsets')
GOES_WITH = {
    'group': ('describe', 'delete', 'delete_offsets'), 'all_groups': ('describe', 'delete'),
    'topic': ('delete_offsets',), 'members': ('describe',), 'offsets': ('describe',), 'state': ('list', 'describe'),
    'verbose': ('describe',),
}


@click.command(cls=Command, context_settings=SETTINGS)
@click.option('--list', is_flag=True, help='Print the names of all share groups.')
@click.option('--describe', is_flag=True, help='Print where the groups begin in each partition, and their lag.')
@click.option('--delete', is_flag=True, help='Delete groups without members, with all that they remember.')
@click.option('--delete-offsets', is_flag=True, help='Let a group without members forget the topics of --topic.')
@click.option('--group', multiple=True, metavar='GROUP', help='The group; may be repeated.')
@click.option('--all-groups', is_flag=True, help='All share groups.')
@click.option('--topic', multiple=True, metavar='TOPIC', help='A topic; may be repeated.')
@click.option('--offsets', is_flag=True, help='Describe offsets and lag. This is the default of --describe.')
@click.option('--members', is_flag=True, help='Describe the members.')
@click.option('--state', is_flag=False, flag_value='', metavar='[STATE,...]', help='Describe the state of the groups. '
              'With --list, print states, or only the groups in these states: Empty, Stable, Dead.')
@click.option('--verbose', is_flag=True, help='Describe epochs too.')
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
    from kbroker_tools.group_work import share_tables
    view = open_view(options['bootstrap_server'], options['data_dir'], options['command_config'])
    getattr(share_tables, f'{action}_groups' if action != 'delete_offsets' else action)(view, Output(as_json), options)


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
    if action == 'delete_offsets':
        actions.require(options, 'topic', action)
        if len(options['group']) > 1:
            raise click.UsageError('--delete-offsets takes one --group')


if __name__ == '__main__':
    main(prog_name='kbroker-share-groups')
