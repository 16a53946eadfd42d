"""Writes the man pages: commands from their click declarations, settings from their rows. `make man` runs it."""
import pathlib
from collections.abc import Iterator

import click

from kbroker import __version__
from kbroker.main import main
from kbroker.settings import SETTINGS, Setting

HERE = pathlib.Path(__file__).parent


def roff(text: str) -> str:
    """Text as it stands, in a language where backslashes, dashes and leading dots mean something."""
    escaped = text.replace('\\', '\\e').replace('-', '\\-')
    return '\n'.join('\\&' + line if line[:1] in ('.', "'") else line for line in escaped.splitlines())


def command_page() -> str:
    """kbroker.8"""
    lines = [f'.TH KBROKER 8 "" "kbroker {__version__}"', '.SH NAME', f'kbroker \\- {roff(main.help or "")}',
             '.SH SYNOPSIS']
    for name, command in main.commands.items():
        context = click.Context(command, info_name=f'kbroker {name}')
        lines += [f'.B kbroker {name}', roff(' '.join(command.collect_usage_pieces(context))), '.br']
    lines += ['.B kbroker \\-\\-version', '.SH COMMANDS']
    for name, command in main.commands.items():
        lines += [f'.SS {name}', roff(command.help or '')]
        for parameter in command.get_params(click.Context(command)):
            row = parameter.get_help_record(click.Context(command))
            if row is not None and '--help' not in row[0]:
                lines += ['.TP', f'.B {roff(row[0])}', roff(row[1])]
    lines += ['.SH SIGNALS', '.TP', '.B SIGTERM, SIGINT',
              'Stop cleanly. A second one ends the process at once; the next start then recovers.',
              '.SH EXIT STATUS', '.TP', '.B 0', 'Stopped cleanly, or nothing to complain about.', '.TP', '.B 1',
              'The broker could not start, or the file is wrong; one line says why.', '.TP', '.B 2',
              'The command line is wrong.', '.SH ENVIRONMENT', '.TP', '.B NOTIFY_SOCKET, WATCHDOG_USEC',
              'The service manager, as in', '.BR sd_notify (3).', '.SH SEE ALSO', '.BR kbroker.properties (5)']
    return '\n'.join(lines) + '\n'


def settings_page() -> str:
    """kbroker.properties.5"""
    lines = [f'.TH KBROKER.PROPERTIES 5 "" "kbroker {__version__}"', '.SH NAME',
             'kbroker.properties \\- settings of the kbroker daemon', '.SH DESCRIPTION',
             roff('A file in the syntax of Java properties: a name, = and a value on each line, # before comments. '
                  'Names are those of Apache Kafka, and so are defaults, where one node can keep them. A name that is '
                  'not known stops the start.'), '.SH SETTINGS']
    for setting in SETTINGS.values():
        if not setting.internal:
            lines += describe(setting)
    lines += ['.SH SEE ALSO', '.BR kbroker (8)']
    return '\n'.join(lines) + '\n'


def describe(setting: Setting) -> Iterator[str]:
    yield '.TP'
    yield f'.B {roff(setting.name)}'
    yield roff(setting.doc)
    default = setting.text(setting.default)
    notes = [setting.expected(), 'not set by default' if default is None else f'default {default}',
             setting.update.value]
    if setting.topic_name:
        notes.append(f'per topic {setting.topic_name}')
    yield '.br'
    yield roff(f'({"; ".join(notes)})')


PAGES = {'kbroker.8': command_page, 'kbroker.properties.5': settings_page}

if __name__ == '__main__':
    for name, page in PAGES.items():
        (HERE / name).write_text(page())
