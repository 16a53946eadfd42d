"""The separate programs as subcommands of `kbroker`: `kbroker topics` runs `kbroker-topics`, as git runs its programs.

The daemon knows only their names and summaries, for the help. A test compares the summaries with the programs.
"""
from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SECTIONS: dict[str, dict[str, str]] = {
    'Topics and records': {
        'topics': 'List, describe, create, extend and delete topics.',
        'produce': 'Write the lines of standard input to a topic.',
        'consume': 'Read records of a topic and write them to standard output.',
        'share-consume': 'Read records as a member of a share group and write them to standard output.',
        'get-offsets': 'Print offsets of partitions.',
        'delete-records': 'Delete the records of partitions before an offset.',
        'log-dirs': 'Print the sizes of partitions, by broker and log directory.',
        'ingest': 'Write topics into files or a table.',
    },
    'Groups and transactions': {
        'groups': 'List and describe consumer groups, move and delete their offsets, delete groups.',
        'share-groups': 'List and describe share groups, move and delete their offsets, delete groups.',
        'streams-groups': 'List and describe streams groups, move and delete their offsets, delete groups and their '
                          'internal topics.',
        'transactions': 'Show transactions, explain stuck ones, and end them.',
        'txn-state': 'Show the rows of transactions in __transaction_state, as kafka-console-consumer does with '
                     'TransactionLogMessageFormatter.',
    },
    'The cluster': {
        'cluster': 'Show the brokers, features, API versions, offline partitions and open transactions of a cluster.',
        'configs': 'Print and change the settings of topics, brokers and groups, quotas, and SCRAM credentials of '
                   'users.',
        'features': 'Print and change the feature levels of a cluster.',
        'acls': 'Print and change access control lists (ACLs).',
        'exporter': 'Serve the metrics of a Kafka cluster to Prometheus.',
        'perf': 'Measure the throughput and the latency of a broker.',
        'proxy': 'Stand between clients and a Kafka broker or cluster.',
        'certs': 'Make certificates for a broker under development.',
    },
    'Log directories, and proof': {
        'dump-log': "Print the contents of a partition's files.",
        'check': 'Check log directories of Apache Kafka 4 or kbroker, or single partition directories in them.',
        'verify': "Verify that a broker keeps Kafka's promises while the network and the broker fail.",
    },
}
"""Maps the title of each section of the help to its programs with their summaries. The help shows the installed ones.
"""


class Program(click.Command):
    """The subcommand that runs a program. The program parses its own arguments."""

    def __init__(self, name: str, path: str):
        super().__init__(name)
        self._path = path

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.args = list(args)
        return ctx.args

    def invoke(self, ctx: click.Context) -> NoReturn:
        """Replace this process by the program, which so gets the terminal, the signals and the exit status."""
        sys.stdout.flush()
        os.execv(self._path, [self._path, *ctx.args])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return what the program itself would complete."""
        import subprocess  # only a completion needs them
        from shlex import quote

        from click.shell_completion import CompletionItem

        program = os.path.basename(self._path)
        words = [program, *ctx.args, incomplete]
        line = ' '.join(quote(word) if word else '' for word in words)
        # The form for zsh has three lines for each item. The shell that asks may be another one.
        variables = {f'_{program.replace("-", "_").upper()}_COMPLETE': 'zsh_complete',
                     'COMP_WORDS': line, 'COMP_CWORD': str(len(words) - 1)}
        done = subprocess.run([self._path], env=os.environ | variables, capture_output=True, text=True, check=False)
        lines = done.stdout.splitlines()
        return [CompletionItem(value.replace('\\:', ':'), kind, None if text == '_' else text)
                for kind, value, text in zip(lines[::3], lines[1::3], lines[2::3], strict=False)]


def summaries() -> Iterator[tuple[str, str]]:
    """Yield the name and the summary of each program."""
    for programs in SECTIONS.values():
        yield from programs.items()


def path_of(name: str) -> str | None:
    """Return the path of the program `kbroker-<name>`: beside `kbroker`, beside Python, or in PATH."""
    places = [os.path.dirname(path) for path in (sys.argv[0], os.path.realpath(sys.argv[0]), sys.executable) if path]
    for place in filter(None, [*places, *os.environ.get('PATH', '').split(os.pathsep)]):
        path = os.path.join(place, f'kbroker-{name}')
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


def find(ctx: click.Context, name: str) -> click.Command | None:
    """Return the subcommand for a program. Raise click.UsageError, which suggests a name, if it is not installed."""
    path = path_of(name)
    if path is not None:
        return Program(name, path)
    if not ctx.resilient_parsing:
        from kbroker.base.suggestions import did_you_mean  # needed only after a mistake

        known = dict(summaries())
        if name in known:
            ctx.fail(f'found no program kbroker-{name}, neither beside kbroker nor in PATH. The image with all '
                     'commands has it; elsewhere, run: pip install kbroker')
        own = ctx.command.commands if isinstance(ctx.command, click.Group) else ()
        ctx.fail(f'No such command {name!r}.{did_you_mean(name, [*known, *own], " ").replace("did", "Did")}')
    return None


def complete(incomplete: str) -> list[CompletionItem]:
    """Return the installed programs whose names begin with `incomplete`."""
    from click.shell_completion import CompletionItem  # only a completion needs it

    return [CompletionItem(name, help=text) for name, text in summaries()
            if name.startswith(incomplete) and path_of(name) is not None]


def write_help(formatter: click.HelpFormatter) -> None:
    """Write the sections of the help, with the installed programs."""
    for title, programs in SECTIONS.items():
        limit = formatter.width - 6 - max(map(len, programs))
        rows = [(name, textwrap.shorten(text, limit, placeholder='...')) for name, text in programs.items()
                if path_of(name) is not None]
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows)
    if path_of('topics') is not None:
        formatter.write_paragraph()
        formatter.write_text('Each command of these sections is a program of its own, too: `kbroker topics` runs '
                             '`kbroker-topics`.')
