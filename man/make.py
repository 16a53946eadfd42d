"""Writes the man pages: commands from their click declarations, settings from their rows. `make man` runs it."""
import functools
import importlib
import inspect
import pathlib
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterable, Iterator

import click

from kbroker import __version__
from kbroker.settings.rows import Setting
from kbroker.settings.table import SETTINGS

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))

from examples import EXAMPLES, Example  # noqa: E402

DAEMON = 'kbroker'
LINE = 78
DATE = '2026-11-20'
"""The date of the manual's last change in substance."""


def roff(text: str) -> str:
    """Wrap text, and escape the backslashes, dashes and leading dots that have a meaning in roff."""
    lines = textwrap.wrap(escaped(text), LINE, break_long_words=False, break_on_hyphens=False)
    return '\n'.join(map(line_of_text, lines))


def escaped(text: str) -> str:
    return text.replace('\\', '\\e').replace('-', '\\-')


def line_of_text(line: str) -> str:
    return '\\&' + line if line[:1] in ('.', "'") else line


def scripts() -> list[str]:
    """Return the names of all commands."""
    return list(tomllib.loads((HERE.parent / 'pyproject.toml').read_text())['project']['scripts'])


def command_of(name: str) -> click.Command:
    """Return the command's declaration, even if its script starts another function first."""
    file = name.removeprefix('kbroker-').replace('-', '_')
    module = 'kbroker.daemon.main' if name == DAEMON else f'kbroker_tools.commands.{file}'
    command = importlib.import_module(module).main
    assert isinstance(command, click.Command)
    return command


def title(name: str, section: int) -> str:
    return f'.TH {name.upper()} {section} "{DATE}" "kbroker {__version__}"'


def command_page(name: str) -> str:
    """Return the page of a command, with or without subcommands."""
    command = command_of(name)
    section = 8 if name == DAEMON else 1
    lines = [title(name, section), '.SH NAME', *textwrap.wrap(f'{name} \\- {summary(command)}', LINE),
             '.SH SYNOPSIS', *synopsis(name, command)]
    if description := paragraphs_after_summary(command):
        lines += ['.SH DESCRIPTION', *prose(description)]
    if isinstance(command, click.Group):
        if has_options(command):
            lines += ['.SH OPTIONS', *options(command)]
        lines.append('.SH COMMANDS')
        for subname, subcommand in subcommands(command).items():
            lines += [f'.SS {subname}', *prose(paragraphs(subcommand.help)), *options(subcommand)]
    else:
        lines += ['.SH OPTIONS', *options(command)]
    if command.epilog:
        lines += ['.SH NOTES', *prose(paragraphs(command.epilog))]
    if name in EXAMPLES:
        lines += ['.SH EXAMPLES', *examples(EXAMPLES[name])]
    lines += daemon_notes() if name == DAEMON else notes()
    return '\n'.join([*lines, '.SH SEE ALSO', see_also(name)]) + '\n'


def summary(command: click.Command) -> str:
    """Return the first sentence of the help, as apropos shows it."""
    first, *_ = paragraphs(command.help)
    text = re.split(r'\.(?: |$)|: ', ' '.join(first.split()))[0]
    return escaped(text if text.startswith('Kafka') else text[:1].lower() + text[1:])


def paragraphs_after_summary(command: click.Command) -> list[str]:
    """Return the help without the first sentence, if that is its own paragraph."""
    first, *rest = paragraphs(command.help)
    return rest if escaped(' '.join(first.split())).lower() == f'{summary(command)}.'.lower() else [first, *rest]


def synopsis(name: str, command: click.Command) -> Iterator[str]:
    usages = {name: command}
    if isinstance(command, click.Group):
        usages = {f'{name} {subname}': subcommand for subname, subcommand in subcommands(command).items()}
    for usage, part in usages.items():
        pieces = part.collect_usage_pieces(click.Context(part, info_name=usage))
        yield f'.B {escaped(usage)}'
        yield roff(' '.join(pieces))
        yield '.br'
    yield f'.B {escaped(name)} \\-\\-version'


def paragraphs(text: str | None) -> list[str]:
    return inspect.cleandoc(text or '').split('\n\n')


def subcommands(group: click.Group) -> dict[str, click.Command]:
    """Return all subcommands, including those imported on demand."""
    context = click.Context(group)
    found = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return {name: command for name, command in found.items() if command is not None}


def prose(texts: Iterable[str]) -> Iterator[str]:
    """Convert help in click's markup, where a paragraph that begins with \\b keeps its lines."""
    for number, paragraph in enumerate(texts):
        if number:
            yield '.PP'
        if paragraph.startswith('\b'):
            yield '.nf'
            for line in paragraph.splitlines()[1:]:
                yield line_of_text(escaped(line))
            yield '.fi'
        else:
            yield roff(paragraph)


def has_options(command: click.Command) -> bool:
    return next(options(command), None) is not None


def options(command: click.Command) -> Iterator[str]:
    context = click.Context(command)
    for parameter in command.get_params(context):
        row = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if row is not None and not {'--help', '--version'} & set(parameter.opts):
            yield '.TP'
            yield f'.B {escaped(row[0])}'
            yield roff(row[1])


def examples(rows: Iterable[Example]) -> Iterator[str]:
    for number, (text, lines) in enumerate(rows):
        if number:
            yield '.PP'
        yield roff(text)
        yield '.PP'
        yield '.nf'
        yield '.RS'
        yield from (line_of_text(escaped(line)) for line in lines.splitlines())
        yield '.RE'
        yield '.fi'


def exit_status(*rows: tuple[int, str]) -> list[str]:
    return ['.SH EXIT STATUS', *(line for code, text in rows for line in ('.TP', f'.B {code}', roff(text)))]


def notes() -> list[str]:
    return [
        *exit_status((0, 'Done, and nothing found wrong.'),
                     (1, 'Failed, or found something wrong. One line on standard error names it, and the remedy.'),
                     (2, 'The command line is wrong.'), (130, 'Interrupted with Ctrl-C.'),
                     (141, 'The reader of the output went away.')),
        '.SH ENVIRONMENT', '.TP', '.B KBROKER_BOOTSTRAP_SERVER, KBROKER_COMMAND_CONFIG, KBROKER_PROFILE',
        roff('The broker, the file of client settings and the profile of a command that has these options and whose '
             'command line lacks them.'),
        '.TP', '.B NO_COLOR', 'Use no colours, even on a terminal.',
        '.SH FILES', '.TP', '.B ~/.config/kbroker/profiles.toml',
        roff('Profiles: a table [NAME] has bootstrap-server and command-config. The profile named default is used if '
             'no other source names a broker.')]


def daemon_notes() -> list[str]:
    return [
        '.SH OTHER COMMANDS',
        roff('Each program whose name begins with kbroker- is a subcommand, too: kbroker topics runs kbroker-topics.'),
        '.SH SIGNALS', '.TP', '.B SIGTERM, SIGINT',
        roff('Stop cleanly. A second signal ends the process at once; the next start then recovers. A SIGINT that was '
             'ignored when the broker started stays ignored, as in the background of a script.'),
        '.TP', '.B SIGHUP',
        roff('Read the keys and certificates of TLS again, and reopen the audit file. A broker whose input is a '
             'terminal ends instead.'),
        *exit_status((0, 'Stopped cleanly, or the file is correct.'),
                     (1, 'The broker could not start, the file is wrong, or the directory is not at rest. '
                         'One line names the reason.'),
                     (2, 'The command line is wrong.'),
                     (70, 'The broker met a broken invariant and stopped without another write. The next start '
                          'recovers.')),
        '.SH ENVIRONMENT',
        '.TP', '.B NOTIFY_SOCKET, WATCHDOG_USEC', 'The service manager, as in', '.BR sd_notify (3).',
        '.TP', '.B JOURNAL_STREAM', 'Lines for the journal carry their level and no time, as in',
        '.BR sd\\-daemon (3).']


def see_also(name: str) -> str:
    pages = [(other, 8 if other == DAEMON else 1) for other in scripts() if other != name]
    pages.append(('kbroker.properties', 5))
    return ',\n'.join(f'.BR {escaped(page)} ({section})' for page, section in sorted(pages, key=lambda row: row[::-1]))


def settings_page() -> str:
    """Return the page kbroker.properties.5."""
    lines = [title('kbroker.properties', 5), '.SH NAME',
             'kbroker.properties \\- settings of the kbroker daemon', '.SH DESCRIPTION',
             roff('A file in the syntax of Java properties: a name, = and a value on each line, # before comments. '
                  'Names are those of Apache Kafka, and so are the defaults that make sense for one node. An unknown '
                  'name prevents the start.'), '.SH SETTINGS']
    for setting in SETTINGS.values():
        if not setting.internal:
            lines += describe(setting)
    return '\n'.join([*lines, '.SH SEE ALSO', '.BR kbroker (8)']) + '\n'


def describe(setting: Setting) -> Iterator[str]:
    yield '.TP'
    yield f'.B {escaped(setting.name)}'
    yield roff(setting.doc)
    default = setting.text(setting.default)
    notes = [setting.expected(), 'not set by default' if default is None else f'default {default}',
             setting.update.value]
    if setting.topic_name:
        notes.append(f'per topic {setting.topic_name}')
    yield '.br'
    yield roff(f'({"; ".join(notes)})')


PAGES = {f'{name}.{8 if name == DAEMON else 1}': functools.partial(command_page, name) for name in scripts()}
PAGES['kbroker.properties.5'] = settings_page

if __name__ == '__main__':
    for name, page in PAGES.items():
        (HERE / name).write_text(page())
