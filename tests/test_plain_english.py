"""Docstrings and comments begin with their subject or with a verb, and not with a question word or with "Of"."""
import pathlib
import re
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parent.parent
OPENING = re.compile(r'(?:What|Who|Whoever|Whose|Where|Of|Whether)\b')
TEXT = r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
PYTHON = re.compile(rf'"""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\'|{TEXT}|#[^\n]*', re.DOTALL)
C = re.compile(rf'{TEXT}|/\*.*?\*/|//[^\n]*', re.DOTALL)
LANGUAGES = {'.py': PYTHON, '.pyx': PYTHON, '.pxd': PYTHON, '.pyi': PYTHON, '.c': C, '.h': C}


def openings(source: str, language: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """Yield the line number and the first line of each docstring and of each block of comments."""
    end_of_block = None
    for found in language.finditer(source):
        start_of_line = source.rfind('\n', 0, found.start()) + 1
        is_alone = source[start_of_line:found.start()].strip() in ('', 'r', 'f')
        if found[0].startswith('"""'):
            is_opening = is_alone and source[found.end():].partition('\n')[0].strip() == ''
        elif found[0].startswith(('#', '//', '/*')):
            continues_a_block = is_alone and not found[0].startswith('/*') and end_of_block == start_of_line - 1
            end_of_block = found.end() if is_alone else None
            is_opening = not continues_a_block
        else:
            is_opening = False
        if is_opening:
            yield source.count('\n', 0, found.start()) + 1, found[0].strip('"#/*- ').partition('\n')[0]


@pytest.mark.parametrize('place', ['kbroker', 'kbroker_tools', 'tests', 'bench', 'man'])
def test_no_docstring_and_no_comment_opens_with_a_question_word(place):
    refused = [f'{path.relative_to(ROOT)}:{number}: {line}'
               for path in sorted((ROOT / place).rglob('*')) if path.suffix in LANGUAGES
               for number, line in openings(path.read_text(), LANGUAGES[path.suffix]) if OPENING.match(line)]
    assert not refused, '\n'.join(['name the subject or begin with a verb:', *refused])


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
