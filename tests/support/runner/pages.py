"""Functions that read the documents for tests: pages, fenced blocks and tables."""
import importlib.util
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[3]
PAGES = ['README.md', *(str(path.relative_to(ROOT)) for path in sorted((ROOT / 'docs').glob('*.md')))]
"""The pages for users."""


def text_of(page):
    return (ROOT / page).read_text()


def blocks(page, language):
    """Return the fenced blocks of a page that have this language."""
    return re.findall(rf'^```{language}\n(.*?)^```', text_of(page), re.MULTILINE | re.DOTALL)


def rows_of_table(page, head):
    """Return the cells of a table of a page. `head` is the head of the table's first column. The page must have exactly
    one table with this head.
    """
    table, = re.findall(rf'^\| {re.escape(head)} \|.*\n\|[-:|]+\n((?:\|.*\n)*)', text_of(page), re.MULTILINE)
    return [[cell.strip() for cell in line.strip('|').split('|')] for line in table.splitlines()]


def load(path):
    """Return the module of a program that belongs to no package."""
    specification = importlib.util.spec_from_file_location(f'{path.parent.name}_{path.stem}', path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def sessions(page):
    """Return the commands that a page shows after a prompt, in their order, each with the output that is shown."""
    return [command for block in blocks(page, 'console')
            for command in re.findall(r'^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)', block, re.MULTILINE)]
