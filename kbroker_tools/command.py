"""What all commands share: where they look, how they end, and the one line that a failure is worth.

Exit codes: 0 done, 1 failed or found something wrong, 2 wrong usage; 130 after Ctrl-C, 141 when the reader of the
output went away, as shells count signals.
"""
from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kbroker import __version__
from kbroker.errors import ConfigError, CorruptLogError, KafkaError, LogDirectoryError
from kbroker_tools.render import printable, shell_word

if TYPE_CHECKING:
    from kbroker_tools.view import View

F = TypeVar('F', bound=Callable[..., Any])

INTERRUPTED = 130
READER_GONE = 141
SETTINGS = {'help_option_names': ['-h', '--help'], 'max_content_width': 100}


class ToolError(click.ClickException):
    """A failure that is the user's to know about: one line that says what was found, and what to do."""

    exit_code = 1
    program = 'kbroker'

    def show(self, file: Any = None) -> None:
        # A line feed in a name would make two lines of one.
        message = printable(self.message.replace('\n', ' '))
        click.echo(f'{self.program}: {message}', file=file or sys.stderr)


@contextmanager
def one_line_ending(program: str) -> Iterator[None]:
    """An error that comes out of the block ends the program with one line and an exit code, never a traceback."""
    ToolError.program = program
    if sys.stderr is None:      # closed by who started the program: nobody is to hear
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
    except (KafkaError, ConfigError, CorruptLogError, LogDirectoryError) as error:
        ToolError(str(error)).show()
        sys.exit(1)
    except OSError as error:
        reason = error.strerror or str(error)
        ToolError(f'{error.filename}: {reason}' if error.filename else reason).show()
        sys.exit(1)


def _forget_output() -> None:
    """The interpreter flushes once more at its end; what is left goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Ending:
    """Mixed into a click command: it ends as `one_line_ending` does."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **extra)  # type: ignore[misc]
        with one_line_ending(extra.get('prog_name') or Path(sys.argv[0]).name):
            # What `Context.exit` was given is returned: outside of its own main click does not end the program.
            code = super().main(*args, standalone_mode=False, **extra)  # type: ignore[misc]
        if isinstance(code, int) and code:
            sys.exit(code)

    def invoke(self, ctx: click.Context) -> Any:
        """click has its own ways with two endings: an empty line for Ctrl-C, exit code 1 for a closed pipe."""
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
    """`--bootstrap-server` or `--data-dir`, and `--command-config`: hand all three to `open_view`."""
    for option in (
        click.option('--command-config', type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar='FILE',
                     help='Client settings for the connection (security.protocol, sasl.*, ssl.*), as properties.'),
        click.option('--data-dir', type=click.Path(exists=True, file_okay=False, path_type=Path), metavar='DIR',
                     help='A log directory, read as it lies on the disk; no broker is needed.'),
        click.option('--bootstrap-server', metavar='HOST:PORT,...', help='The broker to ask.'),
    ):
        function = option(function)
    return function


json_option = click.option('--json', 'as_json', is_flag=True, help='One JSON object a line.')


def command_line(program: str, **options: Any) -> str:
    """One to be copied: the program, and those of the options that are given."""
    given = (f'--{name.replace("_", "-")} {shell_word(str(value))}' for name, value in options.items()
             if value is not None)
    return ' '.join([program, *given])


def open_view(bootstrap_server: str | None, data_dir: Path | None, command_config: Path | None,
              stack: ExitStack | None = None) -> View:
    """The cluster behind the common options, closed at the end of the command.

    click.UsageError unless exactly one of broker and directory is given; OSError, KafkaError.
    """
    if (bootstrap_server is None) == (data_dir is None):
        raise click.UsageError('give one of --bootstrap-server HOST:PORT (a live broker) and --data-dir DIR (offline)')
    view: View
    if data_dir is not None:
        from kbroker_tools.directory_view import DirectoryView
        view = DirectoryView(data_dir)
    else:
        from kbroker.client.config import ClientConfig
        from kbroker_tools.live_view import LiveView
        view = LiveView(ClientConfig.load(bootstrap_server, command_config))
    if stack is not None:
        stack.callback(view.close)
    else:
        click.get_current_context().call_on_close(view.close)
    return view
