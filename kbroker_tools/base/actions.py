"""Checks of options for commands whose actions are options (`--list`, `--describe` ...), as in Kafka's older tools."""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar('F', bound=Callable[..., Any])

OFFSET_SPECIFICATIONS = ('to_earliest', 'to_latest', 'to_current', 'to_offset', 'shift_by', 'to_datetime',
                         'by_duration', 'from_file')
"""The options that specify how offsets are reset. `offset_options` declares them."""


def spelled(name: str) -> str:
    return '--' + name.removeprefix('as_').replace('_', '-')


def is_given(value: Any) -> bool:
    return value is not None and value is not False and value != ()


def chosen_action(options: Mapping[str, Any], actions: Iterable[str]) -> str:
    """Return the option of `actions` that the user has set. Raise click.UsageError unless exactly one of them is
    set."""
    actions = list(actions)
    chosen = [name for name in actions if is_given(options[name])]
    if len(chosen) != 1:
        found = ' and '.join(map(spelled, chosen)) or 'none of them'
        raise click.UsageError(f'give exactly one of {listed(map(spelled, actions))}; found {found}')
    return chosen[0]


def check_companions(action: str, options: Mapping[str, Any], goes_with: Mapping[str, Collection[str]]) -> None:
    """Raise click.UsageError if an option is given that does not fit the action. `goes_with` maps each option to the
    actions that it fits."""
    for name, actions in goes_with.items():
        if is_given(options[name]) and action not in actions:
            raise click.UsageError(f'{spelled(name)} goes with {listed(map(spelled, actions), "or")}, '
                                   f'not with {spelled(action)}')


def check_at_most_one(options: Mapping[str, Any], names: Iterable[str]) -> None:
    given = [name for name in names if is_given(options[name])]
    if len(given) > 1:
        raise click.UsageError(f'{spelled(given[0])} and {spelled(given[1])} exclude each other')


def require(options: Mapping[str, Any], name: str, action: str) -> None:
    if not is_given(options[name]):
        raise click.UsageError(f'{spelled(action)} needs {spelled(name)}')


def require_broker(options: Mapping[str, Any], action: str) -> None:
    """Raise click.UsageError if --data-dir is given for an action that changes something. Only the broker may write to
    its log directory."""
    if options['data_dir'] is not None:
        raise click.UsageError(f'{spelled(action)} needs a broker: give --bootstrap-server, not --data-dir')


def listed(words: Iterable[str], last: str = 'and') -> str:
    """Join words as in `a, b and c`. `last` is the word before the last item."""
    *most, end = words
    return f'{", ".join(most)} {last} {end}' if most else end


def offset_options(function: F) -> F:
    """Add the options in OFFSET_SPECIFICATIONS to a command."""
    for option in reversed((
        click.option('--to-earliest', is_flag=True, help='Reset to the start of the log.'),
        click.option('--to-latest', is_flag=True, help='Reset to the end of the log.'),
        click.option('--to-current', is_flag=True,
                     help='Keep the current offsets; a partition without one gets the end.'),
        click.option('--to-offset', type=int, metavar='OFFSET', help='Reset to this offset.'),
        click.option('--shift-by', type=int, metavar='N', help='Move by this many offsets, backwards if negative.'),
        click.option('--to-datetime', metavar='TIME', help='Reset to the first record at or after a time, '
                     'YYYY-MM-DDThh:mm:ss.sss, which is UTC unless it ends with an offset.'),
        click.option('--by-duration', metavar='DURATION',
                     help='Reset to the first record of the last PnDTnHnMnS, as in PT1H30M.'),
        click.option('--from-file', type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar='FILE',
                     help='Reset to the offsets in a file of topic,partition,offset rows, as --export prints it.')
    )):
        function = option(function)
    return function
