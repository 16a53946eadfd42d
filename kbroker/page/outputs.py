"""The pages that commands write: the timeline of a partition, the reasons that hold it, and the history of an id."""
from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from http import HTTPStatus
from importlib.util import find_spec
from typing import NamedTuple

from kbroker.page.child import MOST_WAITING, Commands, Result, TooManyCommandsError
from kbroker.page.facts import PageFacts
from kbroker.page.render import HEADERS, HTML, as_argument, text_page

PATHS = ('/timeline', '/history', '/why-stuck')
MODULE, PROGRAM = 'kbroker_tools.commands.transactions', 'kbroker-transactions'
TOPIC = re.compile(r'[a-zA-Z0-9._-]{1,249}')
MOST_ID_CHARACTERS = 4096
HEAD_BYTES = 1024
"""The beginning of a timeline in which its own policy is. The names of topics and ids come later."""
POLICY = re.compile(rb"script-src '(sha256-[A-Za-z0-9+/=]{44})'")
BUSY = f'{MOST_WAITING} commands wait already. Load this page again in some seconds.'


class OutputPage(NamedTuple):
    """The answer to a request for a page of a command."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    content_type: str = HTML


class BadQueryError(ValueError):
    """Raised for a query that names no partition or no transactional id. The text is for the client."""


def is_installed() -> bool:
    """Return whether the program is installed: an image may have the broker alone."""
    try:
        return find_spec(MODULE) is not None
    except ModuleNotFoundError:
        return False


class OutputPages:
    """Answers requests for the pages that commands write.

    `facts()` yields while it collects the facts of the page, and returns them. Their `place_options` are shown in the
    command to copy. `place_options` are those of the command that runs, if it reaches the cluster in another way.
    """

    def __init__(self, commands: Commands, facts: Callable[[], Generator[object, None, PageFacts]],
                 place_options: Sequence[str] | None = None):
        self._commands = commands
        self._facts = facts
        self._place_options = place_options

    def answer(self, path: str, query: Mapping[str, str]) -> Generator[object, None, OutputPage]:
        """Return the page of one of `PATHS`. Yield while its command runs."""
        facts = yield from self._facts()
        place = facts.place_options if self._place_options is None else self._place_options
        try:
            title, words = subcommand(path, query)
        except BadQueryError as error:
            return _text(HTTPStatus.BAD_REQUEST, facts, 'This page needs another address', None, str(error))
        shown = (PROGRAM, *words)
        try:
            result = yield from self._commands.run([MODULE, *_with_place(place, words, path == '/timeline')])
        except TooManyCommandsError:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, facts, title, shown, BUSY, (('retry-after', '5'),))
        except OSError as error:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, facts, title, shown, f'The command did not start: {error}')
        if result.problem is not None:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, facts, title, shown,
                         f'The command was ended: {result.problem}. Run it in a shell to see all.')
        if path == '/timeline' and result.output.startswith(b'<!DOCTYPE html>'):
            return OutputPage(HTTPStatus.OK, _headers_of_timeline(result.output), result.output)
        return _text(HTTPStatus.OK if result.output else HTTPStatus.BAD_GATEWAY, facts, title, shown,
                     text_of_result(result))


def subcommand(path: str, query: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """Return the title of a page, and the words of its command. Raise BadQueryError for a query without its names."""
    if path == '/history':
        name = query.get('id', '')
        if not name or len(name) > MOST_ID_CHARACTERS or '\0' in name:
            raise BadQueryError(f'found the id {name[:50]!r}, expected ?id=TRANSACTIONAL-ID')
        return f'{name}: history', ('history', *as_argument(name))
    topic, partition = query.get('topic', ''), query.get('partition', '')
    if not TOPIC.fullmatch(topic):
        raise BadQueryError(f'found the topic {topic[:50]!r}, expected ?topic=NAME&partition=NUMBER')
    if not (partition.isascii() and partition.isdecimal() and len(partition) <= 10):
        raise BadQueryError(f'found the partition {partition[:50]!r}, expected ?topic=NAME&partition=NUMBER')
    name = f'{topic}:{int(partition)}'
    title = 'transactions' if path == '/timeline' else 'why readers wait'
    return f'{topic}-{int(partition)}: {title}', (path.removeprefix('/'), *as_argument(name))


def _with_place(place: Sequence[str], words: Sequence[str], is_html: bool) -> list[str]:
    return [words[0], *place, *(('--html', '/dev/stdout') if is_html else ()), *words[1:]]


def text_of_result(result: Result) -> str:
    """Return the output of a command as text, with its notes and errors."""
    return '\n'.join(part for part in (result.output.decode('utf-8', 'replace').rstrip(), result.errors.rstrip())
                     if part) or f'The command wrote nothing, and ended with status {result.status}.'


def _text(status: int, facts: PageFacts, title: str, command: Sequence[str] | None, text: str,
          headers: tuple[tuple[str, str], ...] = ()) -> OutputPage:
    return OutputPage(status, (*HEADERS, *headers), text_page(facts, title, command, text))


def _headers_of_timeline(html: bytes) -> tuple[tuple[str, str], ...]:
    """Return headers that allow the script of a timeline by its hash, and nothing else that runs.

    The script places its labels by style attributes, so styles may be inline.
    """
    found = POLICY.search(html[:HEAD_BYTES])
    scripts = '' if found is None else f"script-src '{found[1].decode()}'; "
    policy = (f"default-src 'none'; style-src 'unsafe-inline'; {scripts}img-src data:; base-uri 'none'; form-action "
              "'none'; frame-ancestors 'none'")
    return (('content-security-policy', policy), *(header for header in HEADERS
                                                   if header[0] != 'content-security-policy'))
