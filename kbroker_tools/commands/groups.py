"""kbroker-groups. It has the options and columns of kafka-consumer-groups, and shows the lag as a number of records
that will be delivered."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from kbroker_tools.base import actions
from kbroker_tools.base.command import SETTINGS, Command
from kbroker_tools.groups import command_frame as frame

GOES_WITH = {
    **frame.COMMON, 'group': (*frame.COMMON['group'], 'watch'),
    'all_groups': ('describe', 'watch', 'delete', 'reset_offsets'), 'rounds': ('watch',),
    'topic': ('reset_offsets', 'delete_offsets'),
    'all_topics': ('reset_offsets',), 'type': ('list',), 'isolation_level': ('describe',),
    'export': ('reset_offsets',), **dict.fromkeys(actions.OFFSET_SPECIFICATIONS, ('reset_offsets',)),
}


def check_description(options: Mapping[str, Any]) -> None:
    """Raise click.UsageError if an option does not fit --describe."""
    if options['isolation_level'] and (options['members'] or options['state'] is not None):
        raise click.UsageError('--isolation-level goes with --offsets')


def check_change(action: str, options: Mapping[str, Any]) -> None:
    """Raise click.UsageError if an option does not fit an action that changes something."""
    if action == 'delete_offsets':
        actions.require(options, 'topic', action)
    elif action == 'reset_offsets':
        actions.check_at_most_one(options, ('dry_run', 'execute'))
        actions.chosen_action(options, actions.OFFSET_SPECIFICATIONS)
        frame.check_topics(action, options, 'topic', 'all_topics')


GROUPS = frame.GroupCommand(GOES_WITH, 'tables', 'changes', check_change, check_description, {'watch': 'watching'})


@click.command(cls=Command, context_settings=SETTINGS)
@frame.action_options(
    'consumer',
    describe='Print the offset and the lag of the groups in each partition.',
    delete='Delete the groups and their offsets.',
    reset_offsets='Move the offsets of groups without members. --topic or --all-topics selects them, and one of the '
                  'options from --to-earliest on gives the new ones.',
    delete_offsets='Delete the offsets of a group in the topics of --topic.')
@click.option('--watch', is_flag=True, help='Print the lag of the groups again and again, with its rates and the share '
              'of each member, until Ctrl-C.')
@frame.chosen_groups('All groups')
@click.option('--topic', multiple=True, metavar='TOPIC[:N,...]', help='A topic, or some partitions of it; may be '
              'repeated.')
@click.option('--all-topics', is_flag=True, help='All partitions in which the group has offsets.')
@frame.offsets_option
@click.option('--members', is_flag=True, help='Describe the members.')
@frame.state_option()
@click.option('--type', is_flag=False, flag_value='', metavar='[TYPE,...]', help='With --list, print the protocol of '
              'each group, or only the groups of these protocols: classic, consumer.')
@click.option('--verbose', is_flag=True, help='Describe epochs and assignments too.')
@click.option('--isolation-level', type=click.Choice(['read_uncommitted', 'read_committed']),
              help='With read_committed, also describe the records that a read_committed consumer has yet to read, and '
              'the transactions that hold back the rest. This reads the partitions from the offset of the group on.')
@click.option('--interval', type=click.FloatRange(0.1, 3600), metavar='S', default=2.0, show_default=True,
              help='The seconds between two rounds of --watch.')
@click.option('--rounds', type=click.IntRange(1), metavar='N', help='End --watch after this number of rounds.')
@actions.offset_options
@frame.execution_options(' This is the default.')
@frame.export_option
@frame.last_options
def main(as_json: bool, **options: Any) -> None:
    """List and describe consumer groups, move and delete their offsets, delete groups.

    The options and the columns are those of kafka-consumer-groups. --list and --describe work on a log directory too.

    LAG counts offsets, as in Kafka's tools. It therefore includes transaction markers and aborted records. With
    --isolation-level read_committed, three more columns count records. RECORDS-LEFT can be read now, HELD can be read
    when the last stable offset moves, and UNDECIDED can be read if their transactions commit. HELD-BY names the
    transaction that holds the last stable offset.

    --watch prints the lag of each group to the high watermark (LAG) and to the last stable offset (STABLE-LAG). It
    also prints offsets per second, as averages of the last 30 seconds, and the time to catch up at these rates. A
    member's share is its part of the lag and of the consumed offsets. A terminal also gets the lag over time.
    """
    GROUPS.run(as_json, options)


if __name__ == '__main__':
    main(prog_name='kbroker-groups')
