"""kbroker-share-groups. It has the options and columns of kafka-share-groups."""
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from kbroker_tools.base import actions
from kbroker_tools.base.command import SETTINGS, Command
from kbroker_tools.groups import command_frame as frame

SPECIFICATIONS = ('to_earliest', 'to_latest', 'to_current', 'to_offset', 'to_datetime', 'from_file')
GOES_WITH = {
    **frame.COMMON, 'all_groups': ('describe', 'delete'), 'topic': ('reset_offsets', 'delete_offsets'),
    'all_topics': ('reset_offsets',), 'export': ('reset_offsets',), **dict.fromkeys(SPECIFICATIONS, ('reset_offsets',)),
}


def check_change(action: str, options: Mapping[str, Any]) -> None:
    """Raise click.UsageError if an option does not fit an action that changes something."""
    if action == 'delete_offsets':
        actions.require(options, 'topic', action)
    elif action == 'reset_offsets':
        actions.chosen_action(options, ('dry_run', 'execute'))
        actions.chosen_action(options, SPECIFICATIONS)
        frame.check_topics(action, options, 'topic', 'all_topics')


GROUPS = frame.GroupCommand(GOES_WITH, 'share_tables', 'share_changes', check_change)


@click.command(cls=Command, context_settings=SETTINGS)
@frame.action_options(
    'share',
    describe='Print where the groups begin in each partition, and their lag.',
    delete='Delete groups without members, and their offsets.',
    reset_offsets='Let a group without members begin at other offsets. --topic or --all-topics selects the '
                  'partitions, and one of the options from --to-earliest on gives the offsets. A group that does not '
                  'exist is created.',
    delete_offsets='Delete the offsets of a group without members in the topics of --topic.')
@frame.chosen_groups('All share groups')
@click.option('--topic', multiple=True, metavar='TOPIC[:N,...]', help='A topic; may be repeated. With --reset-offsets, '
              'some partitions of it.')
@click.option('--all-topics', is_flag=True, help='All partitions in which the group has offsets.')
@frame.offsets_option
@click.option('--members', is_flag=True, help='Describe the members.')
@frame.state_option('Empty, Stable, Dead')
@click.option('--verbose', is_flag=True, help='Describe epochs too.')
@click.option('--to-earliest', is_flag=True, help='Begin at the start of the log.')
@click.option('--to-latest', is_flag=True, help='Begin at the end of the log.')
@click.option('--to-current', is_flag=True, help='Keep the current start offsets.')
@click.option('--to-offset', type=int, metavar='OFFSET', help='Begin at this offset.')
@click.option('--to-datetime', metavar='TIME', help='Begin at the first record at or after a time, '
              'YYYY-MM-DDThh:mm:ss.sss, which is UTC unless it ends with an offset.')
@click.option('--from-file', type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar='FILE',
              help='Begin at the offsets in a file of topic,partition,offset rows, as --export prints it.')
@frame.execution_options()
@frame.export_option
@frame.last_options
def main(as_json: bool, **options: Any) -> None:
    """List and describe share groups, move and delete their offsets, delete groups.

    The options and the columns are those of kafka-share-groups. --list and --describe work on a log directory too.
    LAG counts the offsets that no member has finished.
    """
    GROUPS.run(as_json, options)


if __name__ == '__main__':
    main(prog_name='kbroker-share-groups')
