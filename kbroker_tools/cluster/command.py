"""Parts that all commands share: the options for the cluster, exit statuses and one-line error messages.

Exit statuses: 0 done, 1 failed or found something wrong, 2 wrong usage. 130 after Ctrl-C and 141 when the reader of the
output went away, by the shells' numbers for signals.
"""
from __future__ import annotations

import dataclasses
import errno
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kbroker import __version__
from kbroker.base.errors import ConfigError, CorruptLogError, KafkaError, LogDirectoryError
from kbroker.client.errors import PartitionOffline
from kbroker_tools.base.render import Output, printable, shell_word, warn

if TYPE_CHECKING:
    from kbroker_tools.base.render import Output
    from kbroker_tools.base.view import Unreadable, View

F = TypeVar('F', bound=Callable[..., Any])

INTERRUPTED = 130
READER_GONE = 141
MOST_NAMED = 20
"""The most unreadable partitions that are named; the rest is counted."""
SETTINGS = {'help_option_names': ['-h', '--help'], 'max_content_width': 100}


class ToolError(click.ClickException):
    """A failure reported to the user in one line, which says what was found and what to do."""

    exit_code = 1
    program = 'kbroker'

    def show(self, file: Any = None) -> None:
        # A line feed in a name would split the line.
        message = printable(self.message.replace('\n', ' '))
        click.echo(f'{self.program}: {message}', file=file or sys.stderr)


class _Warnings(logging.Handler):
    """Shows warnings, in which names of a foreign directory may stand, as lines on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        warn(self.format(record))


_WARNINGS = _Warnings(logging.WARNING)


@contextmanager
def one_line_ending(program: str) -> Iterator[None]:
    """End the program with one line and an exit status if the block raises an error, without a traceback."""
    ToolError.program = program
    Output.is_raw = False
    logging.lastResort = _WARNINGS
    if sys.stderr is None:      # the parent process closed it
        sys.stderr = open(os.devnull, 'w')  # noqa: SIM115  (open to the end)
    try:
        if sys.stdout is None:
            raise OSError(errno.EBADF, 'the output is closed')
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors='surrogateescape')    # file names that are not UTF-8 get their bytes back
        yield
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        _forget_output()
        sys.exit(READER_GONE)
    except PartitionOffline as error:
        ToolError(f'{error} (kbroker-topics --describe --unavailable-partitions says why)').show()
        sys.exit(1)
    except (KafkaError, ConfigError, CorruptLogError, LogDirectoryError) as error:
        ToolError(str(error)).show()
        sys.exit(1)
    except OSError as error:
        reason = error.strerror or str(error)
        ToolError(f'{error.filename}: {reason}' if error.filename else reason).show()
        sys.exit(1)


def _forget_output() -> None:
    """Discard unwritten output, so that the interpreter's last flush does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Ending:
    """A mixin for click commands, which then end as `one_line_ending` does."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **extra)  # type: ignore[misc]
        with one_line_ending(extra.get('prog_name') or Path(sys.argv[0]).name):
            # Outside its own main, click returns the code of `Context.exit` instead of ending the program.
            code = super().main(*args, standalone_mode=False, **extra)  # type: ignore[misc]
        if isinstance(code, int) and code:
            sys.exit(code)

    def invoke(self, ctx: click.Context) -> Any:
        """Replace two endings of click: an empty line for Ctrl-C, and exit status 1 for a closed pipe."""
        try:
            return super().invoke(ctx)  # type: ignore[misc]
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            _forget_output()
            raise click.exceptions.Exit(READER_GONE) from None


class Command(Ending, click.Command):
    pass


class Group(Ending, click.Group):
    command_class = Command


def version_option(function: F) -> F:
    return click.version_option(__version__, message='%(prog)s %(version)s')(function)


def cluster_options(function: F) -> F:
    """Add `--bootstrap-server`, `--data-dir` and `--command-config`, which `open_view` takes."""
    return _options_of_place(function, can_read=True)


def broker_options(function: F) -> F:
    """Add the same options to a command that writes through a broker. Its help leaves out `--data-dir`."""
    return _options_of_place(function, can_read=False)


def _options_of_place(function: F, *, can_read: bool) -> F:
    for option in (
        click.option('--command-config', type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar='FILE',
                     help='Client settings for the connection (security.protocol, sasl.*, ssl.*), as properties.'),
        click.option('--data-dir', type=click.Path(exists=True, file_okay=False, path_type=Path), metavar='DIR',
                     help='A log directory to read; no broker is needed.', hidden=not can_read),
        click.option('--bootstrap-server', metavar='HOST:PORT,...', help='The broker to ask.'),
    ):
        function = option(function)
    return function


json_option = click.option('--json', 'as_json', is_flag=True, help='One JSON object a line.')


def output_options(function: F) -> F:
    """Add `--json` and `--raw`, for a command whose lines have names from outside."""
    def ask_for_names_as_they_are(context: click.Context, _: click.Parameter, is_raw: bool) -> None:
        if is_raw:
            Output.is_raw = True

    raw = click.option('--raw', is_flag=True, expose_value=False, callback=ask_for_names_as_they_are, help='Write '
                       'names to a pipe as they are. Otherwise their line feeds and control characters are escaped.')
    return json_option(raw(function))


def command_line(program: str, **options: Any) -> str:
    """Return a command line to copy: the program and the options that are set."""
    given = (f'--{name.replace("_", "-")} {shell_word(str(value))}' for name, value in options.items()
             if value is not None)
    return ' '.join([program, *given])


def open_view(bootstrap_server: str | None, data_dir: Path | None, command_config: Path | None,
              stack: ExitStack | None = None) -> View:
    """Open the cluster or directory that the common options name. It is closed when the command ends.

    click.UsageError unless exactly one of broker and directory is given; OSError, KafkaError.
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


def note_unreadable(output: Output, found: Mapping[Any, Unreadable]) -> None:
    """Name partitions that cannot be read, with the reason and what to do, on stderr."""
    for each in list(found.values())[:MOST_NAMED]:
        output.note_once(each.reason)
        if each.advice is not None:
            output.note_once(f'  do: {each.advice}')
    if len(found) > MOST_NAMED:
        output.note_once(f'{len(found) - MOST_NAMED:,} more partitions cannot be read')


def note_incomplete(output: Output, view: View, topic: str) -> None:
    """Say that a list from an internal topic lacks entries, if a directory lacks partitions of it, on stderr."""
    text = None if view.is_live else view.incomplete(topic)     # type: ignore[attr-defined]
    if text is not None:
        output.note_once(text)


def limit_retries(view: View, timeout_ms: int | None) -> None:
    """Give requests to a broker this time in all, retries included, as `--timeout` says."""
    if timeout_ms is not None and view.is_live:
        cluster = view.cluster  # type: ignore[attr-defined]
        cluster.config = dataclasses.replace(cluster.config, default_api_timeout_ms=timeout_ms)
