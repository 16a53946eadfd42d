"""The common part of the commands for groups: options, checks of options, and the call of the chosen action."""
from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

import click

from kbroker_tools.base import actions
from kbroker_tools.base.command import output_options, version_option
from kbroker_tools.base.render import Output
from kbroker_tools.cluster.opening import cluster_options, limit_retries, open_view

F = TypeVar('F', bound=Callable[..., Any])

READING_ACTIONS = ('list', 'describe')
ACTIONS = (*READING_ACTIONS, 'delete', 'reset_offsets', 'delete_offsets')
COMMON: Mapping[str, Collection[str]] = {
    'group': ('describe', 'delete', 'reset_offsets', 'delete_offsets'), 'members': ('describe',),
    'offsets': ('describe',), 'state': READING_ACTIONS, 'verbose': ('describe',), 'dry_run': ('reset_offsets',),
    'execute': ('reset_offsets',),
}
"""Maps each option that several commands have to the actions that accept it."""


class GroupCommand(NamedTuple):
    """A command for one kind of group, such as share groups.

    `goes_with` maps each option to the actions that accept it. `tables` and `changes` name modules of this package.
    `tables` has the actions that only read, and `changes` has the actions that change something. A module is imported
    when one of its actions is called.

    `check_change` and `check_description` raise click.UsageError if options contradict each other. The first is called
    for an action that changes something, the second for --describe.
    """

    goes_with: Mapping[str, Collection[str]]
    tables: str
    changes: str
    check_change: Callable[[str, Mapping[str, Any]], None]
    check_description: Callable[[Mapping[str, Any]], None] = lambda options: None
    more_actions: Mapping[str, str] = {}
    """Maps each further action, which only reads a broker, to the module with its function `ACTION_groups`."""

    def run(self, as_json: bool, options: dict[str, Any]) -> None:
        """Run the action that the options name. Raise click.UsageError if the options contradict each other, and
        ToolError, KafkaError or OSError if the action fails."""
        action = actions.chosen_action(options, (*ACTIONS, *self.more_actions))
        self.check_options(action, options)
        view = open_view(options['bootstrap_server'], options['data_dir'], options['command_config'])
        limit_retries(view, options['timeout'])
        places = {**dict.fromkeys(READING_ACTIONS, self.tables), **self.more_actions}
        module, name = (places[action], f'{action}_groups') if action in places else (self.changes, action)
        getattr(import_module(f'{__package__}.{module}'), name)(view, Output(as_json), options)

    def check_options(self, action: str, options: Mapping[str, Any]) -> None:
        """Raise click.UsageError if options contradict each other or if a required option is missing."""
        actions.check_companions(action, options, self.goes_with)
        actions.check_at_most_one(options, ('group', 'all_groups'))
        if action == 'list':
            return
        takes_all = action in self.goes_with['all_groups']
        if not options['group'] and not options['all_groups']:
            wanted = '--group or --all-groups' if takes_all else '--group'
            raise click.UsageError(f'{actions.spelled(action)} needs {wanted}')
        if action == 'describe':
            actions.check_at_most_one(options, ('members', 'offsets', 'state'))
            self.check_description(options)
            return
        actions.require_broker(options, action)
        if action in self.more_actions:
            return
        if not takes_all and len(options['group']) > 1:
            raise click.UsageError(f'{actions.spelled(action)} takes one --group')
        self.check_change(action, options)


def check_topics(action: str, options: Mapping[str, Any], *names: str) -> None:
    """Raise click.UsageError unless an option selects the topics of a change: one of `names`, or --from-file."""
    actions.check_at_most_one(options, names)
    if not any(options[name] for name in names) and options.get('from_file') is None:
        raise click.UsageError(f'{actions.spelled(action)} needs {" or ".join(map(actions.spelled, names))}')


# ---- options that several commands have, with the same text

def action_options(kind: str, **texts: str) -> Callable[[F], F]:
    """Return a decorator that adds the options of ACTIONS. `texts` has the help text of each option except --list."""
    helps = {'list': f'Print the names of all {kind} groups.'} | texts

    def decorate(function: F) -> F:
        for action in reversed(ACTIONS):
            function = click.option(actions.spelled(action), is_flag=True, help=helps[action])(function)
        return function

    return decorate


def chosen_groups(all_groups: str, group: str = 'The group') -> Callable[[F], F]:
    """Return a decorator that adds --group and --all-groups. `group` and `all_groups` are the beginnings of their help
    texts."""
    def decorate(function: F) -> F:
        function = click.option('--all-groups', is_flag=True, help=f'{all_groups}.')(function)
        return click.option('--group', multiple=True, metavar='GROUP', help=f'{group}; may be repeated.')(function)

    return decorate


def execution_options(more: str = '') -> Callable[[F], F]:
    """Return a decorator that adds --dry-run and --execute. `more` is the end of the help text of --dry-run."""
    def decorate(function: F) -> F:
        function = click.option('--execute', is_flag=True, help='Change the offsets.')(function)
        return click.option('--dry-run', is_flag=True, help=f'Print the new offsets and change nothing.{more}')(
            function)

    return decorate


offsets_option = click.option('--offsets', is_flag=True,
                              help='Describe offsets and lag. This is the default of --describe.')
export_option = click.option('--export', is_flag=True, help='Print the new offsets as CSV.')


def state_option(states: str = '') -> Callable[[F], F]:
    """Return a decorator that adds --state. `states` has the names of the states for the help text, or is empty."""
    return click.option(
        '--state', is_flag=False, flag_value='', metavar='[STATE,...]', help='Describe the state of the groups. With '
        f'--list, print states, or only the groups in these states{states and ": "}{states}.')


def last_options(function: F) -> F:
    """Add the options that are last in the help of each command: the timeout, the cluster or directory, and the output
    format."""
    for option in (
        version_option,
        output_options,
        cluster_options,
        click.option('--timeout', type=click.IntRange(1), metavar='MS', help='The longest time to retry while a '
                     'coordinator loads or moves.'),
    ):
        function = option(function)
    return function
