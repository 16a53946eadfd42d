"""The man pages as Markdown for the site. They are the reference of all options and settings.

man/make.py writes the man pages from the declarations of the commands and the settings, with few macros of roff. This
module knows these macros and no others.
"""
import html
import re
from collections.abc import Iterator

DROPPED = {'NAME', 'SEE ALSO'}
"""Sections that repeat the title and the list of pages."""


def as_markdown(page: str) -> str:
    """Return a man page as Markdown. Raise ValueError for a macro that no man page of kbroker has."""
    heads = re.split(r'^\.SH (.*)\n', page, flags=re.MULTILINE)
    sections = dict(zip(heads[1::2], heads[2::2], strict=True))
    name, _, summary = plain(' '.join(sections['NAME'].split())).partition(' - ')
    parts = [f'# {name}', f'<p>{marked(summary[:1].upper() + summary[1:])}.</p>']
    for name, body in sections.items():
        if name not in DROPPED:
            parts += [f'## {name.capitalize()}', *(synopsis(body) if name == 'SYNOPSIS' else
                                                    settings(body) if name == 'SETTINGS' else blocks(body))]
    return '\n\n'.join(parts) + '\n'


def plain(text: str) -> str:
    """Undo roff's escapes."""
    return text.replace('\\-', '-').replace('\\&', '').replace('\\e', '\\')


def marked(text: str) -> str:
    """Return a text as HTML. The texts of the commands set code in backquotes."""
    return re.sub(r'`([^`]+)`', r'<code>\1</code>', html.escape(text, quote=False))


def synopsis(body: str) -> Iterator[str]:
    lines = re.sub(r'^\.B ', '', plain(body), flags=re.MULTILINE).replace('\n', ' ').split(' .br ')
    yield fenced('text', [line.strip() for line in lines])


def fenced(language: str, lines: list[str]) -> str:
    return '\n'.join([f'```{language}', *lines, '```'])


def settings(body: str) -> Iterator[str]:
    """Yield each setting with a heading of its own, so that a link and the search lead to it."""
    for entry in plain(body).split('.TP\n')[1:]:
        name, *lines = entry.removeprefix('.B ').splitlines()
        doc, _, note = ' '.join(lines).partition(' .br ')
        yield f'### {name} {{#{name}}}'
        yield f'<p>{marked(doc)}</p>\n<p class="note">{marked(note.strip("()"))}</p>'


def blocks(body: str) -> Iterator[str]:
    """Yield the paragraphs, lists, subheadings and examples of a section."""
    lines = iter(body.splitlines())
    text: list[str] = []
    entries: list[tuple[str, list[str]]] = []

    def finished() -> Iterator[str]:
        if text:
            yield f'<p>{marked(plain(" ".join(text)))}</p>'
        if entries:
            rows = (f'<dt><code>{html.escape(plain(term))}</code></dt>\n<dd>{marked(plain(" ".join(words)))}</dd>'
                    for term, words in entries)
            yield '<dl>\n' + '\n'.join(rows) + '\n</dl>'
        text.clear()
        entries.clear()

    for line in lines:
        macro, _, rest = line.partition(' ')
        if macro == '.SS':
            yield from finished()
            yield f'### {plain(rest)}'
        elif macro == '.PP':
            yield from finished()
        elif macro == '.TP':
            if text:
                yield from finished()
            entries.append((next(lines).removeprefix('.B '), []))
        elif macro == '.nf':
            yield from finished()
            yield fenced('sh', list(preformatted(lines)))
        elif macro == '.BR':
            (entries[-1][1] if entries else text).append(rest.replace(' (', '('))
        elif line.startswith('.'):
            raise ValueError(f'found the macro {line!r}, expected one that man/make.py writes')
        else:
            (entries[-1][1] if entries else text).append(line)
    yield from finished()


def preformatted(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        if line == '.fi':
            return
        if line not in ('.RS', '.RE'):
            yield plain(line)
