"""Code that all commands share: output options, exit statuses and one-line error messages.

The exit statuses are 0 for success, 1 if the command failed or found a fault, and 2 for wrong usage. As in a shell, the
status is 130 after Ctrl-C, and 141 when the reader of the output has closed its pipe.
"""
from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import click
from click.types import StringParamType

from kbroker import __version__
from kbroker.base.errors import ConfigError, CorruptLogError, KafkaError, LogDirectoryError
from kbroker.client.errors import ClientError, PartitionOffline
from kbroker_tools.base.render import Output, printable, shell_word, warn

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar('F', bound=Callable[..., Any])

INTERRUPTED = 130
READER_GONE = 141
FILE = click.Path(exists=True, dir_okay=False, readable=False, path_type=Path)
DIRECTORY = click.Path(exists=True, file_okay=False, readable=False, path_type=Path)
"""Types of options. Reading reports a missing right, because click's message has no remedy."""
SETTINGS = {'help_option_names': ['-h', '--help'], 'max_content_width': 100}


class ToolError(click.ClickException):
    """A failure that the user sees as one line. The line says what the command found and what the user can do."""

    exit_code = 1
    program = 'kbroker'
    hint = ''
    """The address of the broker and its source, if the user has not named the broker. It ends each message about the
    network."""

    def show(self, file: Any = None) -> None:
        # A line feed in a name would split the line.
        message = printable(self.message.replace('\n', ' '))
        click.echo(f'{self.program}: {message}', file=file or sys.stderr)


class _Warnings(logging.Handler):
    """A log handler that prints each warning as a line on stderr. A warning may contain names that another program
    chose."""

    def emit(self, record: logging.LogRecord) -> None:
        warn(self.format(record))


_WARNINGS = _Warnings(logging.WARNING)


@contextmanager
def one_line_ending(program: str) -> Iterator[None]:
    """Turn an error that the block raises into one line of output and an exit status, without a traceback."""
    ToolError.program, ToolError.hint = program, ''
    Output.is_raw = False
    logging.lastResort = _WARNINGS
    if sys.stderr is None:      # the parent process has closed the stream
        sys.stderr = open(os.devnull, 'w')  # noqa: SIM115  (open to the end)
    try:
        if sys.stdout is None:
            raise OSError(errno.EBADF, 'the output is closed')
        if isinstance(sys.stdout, TextIOWrapper):
            # Print file names that are not UTF-8 as their original bytes.
            sys.stdout.reconfigure(errors='surrogateescape')
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
    except ClientError as error:
        ToolError(f'{error} ({ToolError.hint})' if ToolError.hint else str(error)).show()
        sys.exit(1)
    except OSError as error:
        from kbroker.base.os_errors import describe  # needed only after an error

        ToolError(describe(error)).show()
        sys.exit(1)


def _forget_output() -> None:
    """Discard unwritten output, so that the interpreter's flush at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Name(StringParamType):
    """The type of a parameter that is the name of a topic, a group or a transactional id. A shell completes it."""

    names_of: ClassVar[Callable[[click.Context, str, str], list[str]]] = lambda context, kind, prefix: []
    """Returns the names of a kind with a prefix. `cluster/opening`, which knows clusters, sets it."""

    def __init__(self, kind: str):
        self._kind = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem  # only a completion needs it

        return [CompletionItem(name) for name in Name.names_of(ctx, self._kind, incomplete)]


NAMES = dict.fromkeys(('topic', 'topics', 'where', 'topic_partition', 'input_topic'), Name('topic')) | dict.fromkeys(
    ('group', 'group_id'), Name('group')) | {'transactional_id': Name('transactional id')}
"""Maps the names of parameters to the type of their values. They have the same meaning in all commands."""


class Ending:
    """A mixin that makes a click command end as `one_line_ending` describes, and completes names in its parameters."""

    def __init__(self, *args: Any, **extra: Any):
        super().__init__(*args, **extra)
        for param in self.params:  # type: ignore[attr-defined]
            if param.type is click.STRING and param.name in NAMES:
                param.type = NAMES[param.name]

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **extra)  # type: ignore[misc]
        with one_line_ending(extra.get('prog_name') or Path(sys.argv[0]).name):
            # Without its standalone mode, click returns the code of `Context.exit` instead of ending the program.
            code = super().main(*args, standalone_mode=False, **extra)  # type: ignore[misc]
        if isinstance(code, int) and code:
            sys.exit(code)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and replace click's reactions to two events. Click prints an empty line after Ctrl-C, and
        exits with status 1 when the pipe of the output is closed."""
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


json_option = click.option('--json', 'as_json', is_flag=True, help='One JSON object a line.')


def output_options(function: F) -> F:
    """Add the options `--json` and `--raw`. They are for commands that print names which other programs chose."""
    def ask_for_names_as_they_are(context: click.Context, _: click.Parameter, is_raw: bool) -> None:
        if is_raw:
            Output.is_raw = True

    raw = click.option('--raw', is_flag=True, expose_value=False, callback=ask_for_names_as_they_are, help='Write '
                       'names to a pipe as they are. Otherwise their line feeds and control characters are escaped.')
    return json_option(raw(function))


def command_line(program: str, **options: Any) -> str:
    """Return a command line for the user to copy. It has the program and the options that are set."""
    given = (f'--{name.replace("_", "-")} {shell_word(str(value))}' for name, value in options.items()
             if value is not None)
    return ' '.join([program, *given])
