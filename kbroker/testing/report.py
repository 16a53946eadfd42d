"""The report of a failed test: what its brokers contain, and what happened to them.

The commands of kbroker read the directory of the broker in child processes, one after the other. So a report needs no
answer of the broker, which the test may have killed, paused or held. All commands together have a limit of time.
"""
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

REPORT_LIMIT_S = 6.0
PAGES_LIMIT_S = 10.0
COMMAND_LIMIT_S = 2.0
"""The limit of one command. `why-stuck` asks a broker that runs, which may not answer."""
MOST_COMMANDS = 12
"""The most timelines, and the most histories, in a report."""
MOST_LINES = 120
"""The most lines of a section."""
COLUMNS = 100
INTERNAL_TOPIC = '__'

Section = tuple[str, str]


class Commands:
    """The commands of `kbroker-transactions` on one directory, which end at a limit of time."""

    def __init__(self, directory: Path, limit_s: float):
        self._directory = directory
        self._end = time.monotonic() + limit_s
        self.left_out: list[str] = []
        """The command lines that had no time left."""

    def output_of(self, *arguments: str) -> str | None:
        """Return what the command prints, or None if it has no time left. A command that fails prints its error."""
        left_s = self._end - time.monotonic()
        try:
            if left_s <= 0:
                raise subprocess.TimeoutExpired(arguments, 0)
            done = subprocess.run(
                [sys.executable, '-m', 'kbroker_tools.commands.transactions', '--data-dir', str(self._directory),
                 *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors='replace',
                timeout=min(left_s, COMMAND_LIMIT_S), check=False, env=child_environment())
        except subprocess.TimeoutExpired:
            self.left_out.append(f'kbroker-transactions --data-dir {self._directory} {" ".join(arguments)}')
            return None
        return (done.stdout + done.stderr).rstrip()


def child_environment() -> dict[str, str]:
    """Return the environment of a command: that of the test without kbroker's variables, which would choose another
    broker. The command imports the same kbroker as this process.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith('KBROKER_')}
    places = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get('PYTHONPATH')])]
    return kept | {'COLUMNS': str(COLUMNS), 'PYTHONPATH': os.pathsep.join(places)}


def topics_in(directory: Path, prefix: str = '') -> dict[str, list[int]]:
    """Return the partitions of each topic in a log directory that have records. `prefix` is that of the topics."""
    found: dict[str, list[int]] = {}
    for path in directory.glob('*-*'):
        match = re.fullmatch(r'(.+)-(\d+)', path.name)
        if match is None or match[1].startswith(INTERNAL_TOPIC) or not match[1].startswith(prefix):
            continue
        if any(file.stat().st_size for file in path.glob('*.log')):
            found.setdefault(match[1], []).append(int(match[2]))
    return {topic: sorted(found[topic]) for topic in sorted(found)}


def sections_of(directory: Path, prefix: str = '', transactional_ids: Collection[str] | None = None,
                limit_s: float = REPORT_LIMIT_S) -> list[Section]:
    """Return the pictures of the partitions, the histories of the transactional ids and what holds readers.

    `prefix` is that of the topics; without `transactional_ids`, all of the directory have a history. A directory
    without records has no sections.
    """
    topics = topics_in(directory, prefix)
    commands = Commands(directory, limit_s)
    names = [f'{topic}:{number}' for topic, numbers in topics.items() for number in numbers]
    sections = list(_sections('kafka: timeline', commands, 'timeline', names))
    ids = [each for each in _transactional_ids(commands, directory)
           if transactional_ids is None or each in transactional_ids]
    sections += _sections('kafka: history', commands, 'history', ids)
    stuck = commands.output_of('why-stuck') if topics else None
    if stuck and 'is held at offset' in stuck:
        sections.insert(0, ('kafka: why readers wait', stuck))
    if commands.left_out:
        sections.append(('kafka: no time was left for these commands', '\n'.join(commands.left_out)))
    return [(title, shortened(text)) for title, text in sections]


def _sections(title: str, commands: Commands, command: str, names: Sequence[str]) -> Iterable[Section]:
    for name in names[:MOST_COMMANDS]:
        output = commands.output_of(command, name)
        if output:
            yield f'{title} of {name}', output
    if len(names) > MOST_COMMANDS:
        yield f'{title} of {len(names) - MOST_COMMANDS} more', ', '.join(names[MOST_COMMANDS:])


def _transactional_ids(commands: Commands, directory: Path) -> list[str]:
    if not any(file.stat().st_size for file in directory.glob('__transaction_state-*/*.log')):
        return []
    rows = commands.output_of('list', '--json') or ''
    return [json.loads(line)['transactional_id'] for line in rows.splitlines() if line.startswith('{')]


def shortened(text: str) -> str:
    """Return the first and the last lines of a text, if it has more than `MOST_LINES`."""
    lines = text.splitlines()
    if len(lines) <= MOST_LINES:
        return text
    half = MOST_LINES // 2
    return '\n'.join([*lines[:half], f'... {len(lines) - 2 * half} lines more ...', *lines[-half:]])


def write_pages(directory: Path, place: Path, name: str, prefix: str = '',
                limit_s: float = PAGES_LIMIT_S) -> list[Path]:
    """Write the timelines of the partitions as HTML files into the directory `place`. Return the files.

    Their names begin with `name`, that of the test.
    """
    place.mkdir(parents=True, exist_ok=True)
    commands = Commands(directory, limit_s)
    written = []
    for topic, numbers in topics_in(directory, prefix).items():
        for number in numbers:
            file = place / f'{file_name_of(name)}.{topic}-{number}.html'
            commands.output_of('timeline', f'{topic}:{number}', '--html', str(file.absolute()))
            if file.exists():
                written.append(file)
    return written


def file_name_of(name: str) -> str:
    """Return a name of a test as a name of a file, of at most 150 characters."""
    return re.sub(r'[^A-Za-z0-9_.-]+', '-', name).strip('-.')[-150:]
