"""Docstrings, comments and pages are in plain English: a text begins with its subject or a verb, and names actors and
actions by the usual words.
"""
import pathlib
import re
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parent.parent
OPENING = re.compile(r'(?:What|Who|Whoever|Whose|Where|Of|Whether)\b')
VAGUE = re.compile(r'\b(?:(?:is|are|was|were|be|been|being)(?: not)? told|told so|'
                   r'anew|nobody|somebody|whoever|who asks)\b', re.IGNORECASE)
CODE = re.compile(r'^(```).*?^\1|`[^`]*`', re.DOTALL | re.MULTILINE)
"""Code in Markdown and quoted names in comments, which are not prose."""
TEXT = r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
PYTHON = re.compile(rf'"""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\'|{TEXT}|#[^\n]*', re.DOTALL)
C = re.compile(rf'{TEXT}|/\*.*?\*/|//[^\n]*', re.DOTALL)
LANGUAGES = {'.py': PYTHON, '.pyx': PYTHON, '.pxd': PYTHON, '.pyi': PYTHON, '.c': C, '.h': C}


def prose(source: str, language: re.Pattern[str]) -> Iterator[tuple[int, bool, str]]:
    """Yield the line number of each docstring and comment, whether it is the first line of a block, and its text."""
    end_of_block = None
    for found in language.finditer(source):
        start_of_line = source.rfind('\n', 0, found.start()) + 1
        is_alone = source[start_of_line:found.start()].strip() in ('', 'r', 'f')
        if found[0].startswith('"""'):
            if not is_alone or source[found.end():].partition('\n')[0].strip():
                continue
            is_opening = True
        elif found[0].startswith(('#', '//', '/*')):
            is_opening = not (is_alone and not found[0].startswith('/*') and end_of_block == start_of_line - 1)
            end_of_block = found.end() if is_alone else None
        else:
            continue
        yield source.count('\n', 0, found.start()) + 1, is_opening, found[0].strip('"#/*- ')


def openings(source: str, language: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """Yield the line number and the first line of each docstring and of each block of comments."""
    for number, is_opening, text in prose(source, language):
        if is_opening:
            yield number, text.partition('\n')[0]


def vague_words(number: int, text: str) -> Iterator[tuple[int, str]]:
    """Yield the line number of each vague word outside code. The text begins at line `number`."""
    text = CODE.sub(lambda code: re.sub(r'[^\n]', ' ', code[0]), text)
    for found in VAGUE.finditer(text):
        yield number + text.count('\n', 0, found.start()), found[0]


@pytest.mark.parametrize('place', ['kbroker', 'kbroker_tools', 'tests', 'bench', 'man'])
def test_no_docstring_and_no_comment_opens_with_a_question_word(place):
    refused = [f'{path.relative_to(ROOT)}:{number}: {line}'
               for path in sorted((ROOT / place).rglob('*')) if path.suffix in LANGUAGES
               for number, line in openings(path.read_text(), LANGUAGES[path.suffix]) if OPENING.match(line)]
    assert not refused, '\n'.join(['name the subject or begin with a verb:', *refused])


@pytest.mark.parametrize('place', ['kbroker', 'kbroker_tools', 'tests', 'bench', 'man'])
def test_docstrings_and_comments_name_the_actor_and_the_action(place):
    refused = [f'{path.relative_to(ROOT)}:{at}: {words}'
               for path in sorted((ROOT / place).rglob('*')) if path.suffix in LANGUAGES
               for number, _, text in prose(path.read_text(), LANGUAGES[path.suffix])
               for at, words in vague_words(number, text)]
    assert not refused, '\n'.join(['name the actor, or use the verb of the field:', *refused])


def test_pages_name_the_actor_and_the_action():
    pages = [*ROOT.glob('*.md'), *(ROOT / 'docs').rglob('*.md'), *(ROOT / 'bench').glob('*.md')]
    refused = [f'{path.relative_to(ROOT)}:{at}: {words}' for path in sorted(pages)
               for at, words in vague_words(1, path.read_text())]
    assert not refused, '\n'.join(['name the actor, or use the verb of the field:', *refused])


@pytest.mark.parametrize(('text', 'found'), [
    ('A client is told so.\nNobody reads it anew.', [(5, 'is told'), (6, 'Nobody'), (6, 'anew')]),
    ('The user `nobody` and\n```\nwhoever\n```\n, somebody', [(9, 'somebody')]),
    ('A retold newspaper; nobody_1; who asked', []),
])
def test_vague_words_are_found_outside_code(text, found):
    assert list(vague_words(5, text)) == found


@pytest.mark.parametrize(('suffix', 'source', 'found'), [
    ('.py', '"""What it is."""\n', [(1, 'What it is.')]),
    ('.py', 'def f():\n    """Of a\n    Where."""\n', [(2, 'Of a')]),
    ('.py', "text = '# Who'  # Whose\n", [(1, 'Whose')]),
    ('.py', '# A reader stops.\n# Where it stops, a retry follows.\n', [(1, 'A reader stops.')]),
    ('.py', 'f(\n    """What""", 1)\n', []),
    ('.pyx', 'cdef int f(x): # What\n    # Who\n', [(1, 'What'), (2, 'Who')]),
    ('.c', '/* What\n   Of */\nint x;  // Where\n', [(1, 'What'), (3, 'Where')]),
    ('.h', '// A load.\n// Of which\nchar *s = "// Who";\n', [(1, 'A load.')]),
])
def test_openings_are_the_first_lines_of_docstrings_and_of_blocks_of_comments(suffix, source, found):
    assert list(openings(source, LANGUAGES[suffix])) == found
