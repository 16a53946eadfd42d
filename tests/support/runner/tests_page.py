"""Writes docs/tests.md, which says which test files cover each KIP and each promise. The program takes no options.

A test file covers a KIP that it names. It also covers the KIPs in the docstring of a module that it imports, if the
module is in the package that has the same name as the directory of the test: tests/log tests kbroker/log. In
tests/apis, a test that names a request also covers the KIPs of the module of the request's API. A test file covers the
promises of docs/design.md whose numbers it names.
"""
from __future__ import annotations

import ast
import functools
import pathlib
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping

ROOT = pathlib.Path(__file__).parents[3]
PAGE = ROOT / 'docs' / 'tests.md'
PACKAGES = {'tools': 'kbroker_tools', 'verifying': 'kbroker_tools.verify', 'spark': 'kbroker_tools.spark'}
"""Maps a directory of tests to the package that it tests. Any other directory tests the package of kbroker with the
same name.
"""
SUFFIXES = ('.py', '.pyx', '/__init__.py')
DOCSTRING = re.compile(r'(?:#.*\n|\s)*"""(.*?)"""', re.DOTALL)
REQUEST = re.compile(r"\b([A-Z]\w+)Request\b|\bask\w*\('([A-Z]\w+)'")
KIP = re.compile(r'KIP-(\d+)')
PROMISES = re.compile(r'\b[Pp]romises? (\d(?:(?:, | and | to )\d)*)')
HEAD = """# Tests

This page says which test files cover a [promise](design.md#promises) of the broker and a Kafka improvement proposal
(KIP). `tests/support/runner/tests_page.py` writes it from the docstrings of the tests and of the modules that they
test. All paths begin in `tests/`.

"""


def files_with_tests() -> list[pathlib.Path]:
    """Return the paths of all test files, sorted."""
    return sorted((ROOT / 'tests').rglob('test_*.py'))


def name_of(file: pathlib.Path) -> str:
    """Return the path of a test file within tests/."""
    return str(file.relative_to(ROOT / 'tests'))


def kips_in(text: str) -> set[int]:
    return set(map(int, KIP.findall(text)))


def promises_in(text: str) -> set[int]:
    """Return the numbers in phrases such as *promises 1, 2 and 4* and *promises 1 to 3*."""
    found: set[int] = set()
    for listed in PROMISES.findall(' '.join(text.split())):
        for first, last in re.findall(r'(\d)(?: to (\d))?', listed):
            found.update(range(int(first), int(last or first) + 1))
    return found


@functools.cache
def kips_of_module(name: str) -> set[int]:
    """Return the KIPs that the docstring of a module names."""
    place = ROOT / name.replace('.', '/')
    return {kip for suffix in SUFFIXES if (file := pathlib.Path(f'{place}{suffix}')).is_file()
            for docstring in [DOCSTRING.match(file.read_text())] if docstring for kip in kips_in(docstring[1])}


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield the modules that a file imports. For `from a import b`, yield `a` and `a.b`, because b may be a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f'{node.module}.{alias.name}' for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def is_tested(module: str, file: pathlib.Path) -> bool:
    """Return whether a module is in the package that the directory of a test file tests."""
    rooms = file.relative_to(ROOT / 'tests').parts[:-1]
    room = PACKAGES.get(rooms[0], f'kbroker.{rooms[0]}') if rooms else 'kbroker.'
    return module.startswith(room)


def apis_in(text: str) -> Iterator[str]:
    """Yield the modules of the APIs whose requests the text of a test names."""
    for name in {name for names in REQUEST.findall(text) for name in names if name}:
        module = re.sub(r'(?<=[a-z])(?=[A-Z])', '_', name).lower()
        yield from (f'kbroker.apis.{module}', f'kbroker.apis.{module}.{module}')


def kips_covered(file: pathlib.Path) -> set[int]:
    text = file.read_text()
    modules = [module for module in imported(ast.parse(text)) if is_tested(module, file)]
    if file.parent.name == 'apis':
        modules += apis_in(text)
    return kips_in(text).union(*map(kips_of_module, modules))


def subject_of(file: pathlib.Path) -> str:
    """Return the first paragraph of the docstring of a test file, in one line."""
    return ' '.join((ast.get_docstring(ast.parse(file.read_text())) or '').partition('\n\n')[0].split())


def promises_of_design() -> dict[int, str]:
    """Return {number: promise} of the promises in docs/design.md."""
    section = (ROOT / 'docs' / 'design.md').read_text().partition('\n## Promises\n')[2].partition('\n## ')[0]
    return {int(number): ' '.join(text.split())
            for number, text in re.findall(r'^(\d)\. (.*(?:\n   .*)*)', section, re.MULTILINE)}


def by_key(found: Mapping[str, set[int]]) -> dict[int, list[str]]:
    """Invert a mapping from names to keys: return {key: names}."""
    names: defaultdict[int, list[str]] = defaultdict(list)
    for name, keys in found.items():
        for key in keys:
            names[key].append(name)
    return dict(sorted(names.items()))


def listed(names: list[str]) -> str:
    return ', '.join(f'`{name}`' for name in names)


def page() -> str:
    """Return the text of the page."""
    files = {name_of(file): file for file in files_with_tests()}
    promised = by_key({name: promises_in(file.read_text()) for name, file in files.items()})
    covered = by_key({name: kips_covered(file) for name, file in files.items()})
    lines = ['## Promises', '', '| promise | test files |', '|---|---|']
    lines += [f'| {number}. {text} | {listed(promised.get(number, []))} |'
              for number, text in promises_of_design().items()]
    lines += ['', '## KIPs', '', '| KIP | test files |', '|---|---|']
    lines += [f'| KIP-{number} | {listed(names)} |' for number, names in covered.items()]
    lines += ['', '## Files', '', '| test file | tests |', '|---|---|']
    lines += [f'| `{name}` | {subject_of(file).replace("|", chr(92) + "|")} |' for name, file in files.items()]
    return HEAD + '\n'.join(lines) + '\n'


if __name__ == '__main__':
    PAGE.write_text(page())
