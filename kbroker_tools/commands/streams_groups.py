"""kbroker-streams-groups. It has the options and columns of kafka-streams-groups."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from kbroker_tools.base import actions
from kbroker_tools.base.command import SETTINGS, Command
from kbroker_tools.groups import command_frame as frame

GOES_WITH = {
    **frame.COMMON, 'all_groups': ('describe', 'delete', 'reset_offsets'),
    'input_topic': ('reset_offsets', 'delete_offsets'), 'all_input_topics': ('reset_offsets', 'delete_offsets'),
    'delete_internal_topic': ('reset_offsets',), 'delete_all_internal_topics': ('reset_offsets', 'delete'),
    'export': ('reset_offsets',), 'topology': ('describe',),
    **dict.fromkeys(actions.OFFSET_SPECIFICATIONS, ('reset_offsets',)),
}


def check_description(options: Mapping[str, Any]) -> None:
    """Raise click.UsageError if an option does not fit --describe."""
    actions.check_at_most_one(options, ('topology', 'members', 'offsets', 'state'))
    if options['topology'] and options['data_dir'] is not None:
        raise click.UsageError('--topology needs a broker: a log directory has no descriptions of topologies')


def check_change(action: str, options: Mapping[str, Any]) -> None:
    """Raise click.UsageError if an option does not fit an action that changes something."""
    if action == 'delete':
        return
    frame.check_topics(action, options, 'input_topic', 'all_input_topics')
    if action == 'reset_offsets':
        actions.chosen_action(options, ('dry_run', 'execute'))
        actions.chosen_action(options, actions.OFFSET_SPECIFICATIONS)


GROUPS = frame.GroupCommand(GOES_WITH, 'streams_tables', 'streams_changes', check_change,
                            check_description)


@click.command(cls=Command, context_settings=SETTINGS)
@frame.action_options(
    'streams',
    describe='Print the lag of the groups in each partition that their tasks read.',
    delete='Delete groups without members, and their offsets.',
    reset_offsets='Move the offsets of groups without members. --input-topic or --all-input-topics selects them, and '
                  'one of the options from --to-earliest on gives the new ones.',
    delete_offsets='Delete the offsets of a group without members in the topics of --input-topic or '
                   '--all-input-topics.')
@frame.chosen_groups('All streams groups', 'The group, which is the application.id')
@click.option('--input-topic', multiple=True, metavar='TOPIC[:N,...]', help='A topic that the application reads, or '
              'some partitions of it; may be repeated.')
@click.option('--all-input-topics', is_flag=True, help='All partitions of input topics in which the group has offsets.')
@frame.offsets_option
@click.option('--members', is_flag=True, help='Describe the members and their tasks.')
@click.option('--topology', is_flag=True, help='Describe the nodes of the topologies, as the broker has stored them.')
@frame.state_option('Empty, NotReady, Stable, Assigning, Reconciling, Dead')
@click.option('--verbose', is_flag=True, help='Describe epochs, offsets and targets too.')
@click.option('--delete-internal-topic', multiple=True, metavar='TOPIC', help='With --reset-offsets --execute, delete '
              'a topic that the application made; may be repeated.')
@click.option('--delete-all-internal-topics', is_flag=True, help='With --delete, or with --reset-offsets --execute, '
              'delete all topics that the application made.')
@actions.offset_options
@frame.execution_options()
@frame.export_option
@frame.last_options
def main(as_json: bool, **options: Any) -> None:
    """List and describe streams groups, move and delete their offsets, delete groups and their internal topics.

    The options and the columns are those of kafka-streams-groups. --list and --describe work on a log directory too.
    OFFSET-LAG counts offsets. Where the group has no offset, it counts from the start of the log.
    """
    GROUPS.run(as_json, options)


if __name__ == '__main__':
    main(prog_name='kbroker-streams-groups')
