"""The options that name a cluster or a log directory, and functions that open it and print which of its parts cannot be
read."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker_tools.base.command import DIRECTORY, FILE, Name, command_line
from kbroker_tools.cluster import place

if TYPE_CHECKING:
    from kbroker_tools.base.render import Output
    from kbroker_tools.base.view import TopicInfo, Unreadable, View
    from kbroker_tools.cluster.live_view import LiveView

F = TypeVar('F', bound=Callable[..., Any])

def _names_of(context: click.Context, kind: str, prefix: str) -> list[str]:
    from kbroker_tools.cluster.completion import names_of  # only a completion needs it

    return names_of(context, kind, prefix)


Name.names_of = _names_of

MOST_NAMED = 20
"""The most unreadable partitions that are printed by name. The number of further ones is printed."""


def cluster_options(function: F) -> F:
    """Add `--bootstrap-server`, `--data-dir` and `--command-config`, the parameters of `open_view`; and `--profile`."""
    return _options_of_place(function, can_read=True)


def broker_options(function: F) -> F:
    """Add the options of `cluster_options` to a command that writes through a broker. The help of the command omits
    `--data-dir`."""
    return _options_of_place(function, can_read=False)


def _options_of_place(function: F, *, can_read: bool) -> F:
    data_dir = click.option('--data-dir', type=DIRECTORY, metavar='DIR', is_eager=True,
                            help='A log directory to read; no broker is needed.', hidden=not can_read)
    return bootstrap_option()(data_dir(command_config_option()(profile_option(function))))


def live_cluster_options(function: F) -> F:
    """Add `--bootstrap-server`, `--command-config` and `--profile` to a command that needs a broker."""
    return bootstrap_option()(command_config_option()(profile_option(function)))


def bootstrap_option(help_text: str = 'The broker to ask.') -> Callable[[F], F]:
    """Return a decorator that adds `--bootstrap-server`. `place.fill_in` gives it a value if the user does not."""
    return click.option('--bootstrap-server', metavar='HOST:PORT,...', callback=place.fill_in,
                        help=f'{help_text}  [env var: {place.SERVER_VARIABLE}; default: {place.DEFAULT_SERVER}]')


def command_config_option(*more_names: str, help_text: str = 'Client settings for the connection (security.protocol, '
                          'sasl.*, ssl.*), as properties.') -> Callable[[F], F]:
    """Return a decorator that adds `--command-config`."""
    return click.option('--command-config', *more_names, 'command_config', type=FILE, metavar='FILE', is_eager=True,
                        help=f'{help_text}  [env var: {place.CONFIG_VARIABLE}]')


profile_option = click.option(
    '--profile', metavar='NAME', is_eager=True, expose_value=False, callback=place.remember_profile,
    help=f'The broker and the client settings of this profile in ~/.config/kbroker/profiles.toml.  [env var: '
         f'{place.PROFILE_VARIABLE}]')
"""The order of evaluation: click evaluates an option with `is_eager` before `--bootstrap-server`, which needs it."""


def open_view(bootstrap_server: str | None, data_dir: Path | None, command_config: Path | None,
              stack: ExitStack | None = None) -> View:
    """Open the cluster or the directory that the options of `cluster_options` name. It is closed when the command ends.

    Raise click.UsageError if both a broker and a directory are given. Raise KafkaError or OSError if it cannot be
    opened.
    """
    if (bootstrap_server is None) == (data_dir is None):
        raise click.UsageError('give one of --bootstrap-server HOST:PORT (a live broker) and --data-dir DIR (offline)')
    view: View
    if data_dir is not None:
        from kbroker_tools.cluster.directory_view import DirectoryView
        view = DirectoryView(data_dir)
    else:
        from kbroker.client.config import ClientConfig
        from kbroker_tools.cluster.live_view import LiveView
        view = LiveView(ClientConfig.load(bootstrap_server, command_config))
    if stack is not None:
        stack.callback(view.close)
    else:
        click.get_current_context().call_on_close(view.close)
    return view


def live(view: View, command: str = '') -> LiveView:
    """Return `view` as the LiveView that it is. Raise click.UsageError, which names the command, if it is the view of a
    directory."""
    if not view.is_live:
        raise click.UsageError(f'`{command}` writes through a broker: give --bootstrap-server, not --data-dir')
    return view  # type: ignore[return-value]


def command_here(program: str, view: View, command_config: Any) -> str:
    """Return the beginning of a command line: a program, and the options that connect it to the cluster of the view."""
    return command_line(program, bootstrap_server=view.bootstrap_server or 'HOST:PORT', command_config=command_config)


def existing_topic(view: View, topics: Mapping[str, TopicInfo], topic: str) -> TopicInfo:
    """Return a topic of the view. Raise KafkaError UNKNOWN_TOPIC_OR_PARTITION if the topic does not exist."""
    if topic not in topics:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f'{view.place}: found no topic {topic}')
    return topics[topic]


def note_unreadable(output: Output, found: Mapping[Any, Unreadable]) -> None:
    """Print on stderr each partition that cannot be read, with the reason and the advice."""
    for each in list(found.values())[:MOST_NAMED]:
        output.note_once(each.reason)
        if each.advice is not None:
            output.note_once(f'  do: {each.advice}')
    if len(found) > MOST_NAMED:
        output.note_once(f'{len(found) - MOST_NAMED:,} more partitions cannot be read')


def note_incomplete(output: Output, view: View, topic: str) -> None:
    """Print a note on stderr if a list from an internal topic is incomplete because the directory lacks some of the
    topic's partitions."""
    text = None if view.is_live else view.incomplete(topic)     # type: ignore[attr-defined]
    if text is not None:
        output.note_once(text)


def limit_retries(view: View, timeout_ms: int | None) -> None:
    """Limit the time of each request to a broker, including retries, to the value of `--timeout`."""
    if timeout_ms is not None and view.is_live:
        cluster = view.cluster  # type: ignore[attr-defined]
        cluster.config = dataclasses.replace(cluster.config, default_api_timeout_ms=timeout_ms)
