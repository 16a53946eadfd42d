"""What the documents say holds."""
import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from kbroker.apis.dispatch import served_apis
from kbroker.protocol.api_keys import ApiKey

ROOT = pathlib.Path(__file__).parent.parent


def blocks(language):
    return re.findall(rf'^```{language}\n(.*?)^```', (ROOT / 'README.md').read_text(), re.MULTILINE | re.DOTALL)


def test_the_transaction_of_the_readme_prints_what_the_readme_says(broker):
    program, = blocks('python')
    expected, = blocks('text')
    program = program.replace('127.0.0.1:9092', broker.address)
    done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == (expected, 0), done.stderr


def load_make():
    specification = importlib.util.spec_from_file_location('make_man', ROOT / 'man' / 'make.py')
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


MAKE = load_make()


def test_the_man_pages_are_those_of_the_commands_and_the_settings():
    assert {path.name for path in (ROOT / 'man').glob('*.[0-9]')} == set(MAKE.PAGES)
    assert set(MAKE.EXAMPLES) == set(MAKE.scripts()), 'each page shows how its command is used'


@pytest.mark.parametrize('page', sorted(MAKE.PAGES))
def test_the_man_pages_are_those_of_the_code(page):
    assert (ROOT / 'man' / page).read_text() == MAKE.PAGES[page](), 'run `make man`'


@pytest.mark.parametrize('name', sorted(MAKE.scripts()))
def test_a_page_has_every_option_of_its_command(name):
    """As `--help` prints them: the other way from the declarations to the reader."""
    command = MAKE.command_of(name)
    helps = [[]]
    if isinstance(command, click.Group):
        helps += [[subname] for subname in MAKE.subcommands(command)]
    page, = (ROOT / 'man').glob(f'{name}.[18]')
    text = page.read_text().replace('\\-', '-')
    for arguments in helps:
        said = CliRunner().invoke(command, [*arguments, '--help'], prog_name=name)
        assert said.exit_code == 0
        for option in re.findall(r'^ +(?:-\w, )?(--[\w-]+)', said.output, re.MULTILINE):
            assert option in ('--help', '--version') or re.search(rf'^\.B .*{option}\b', text, re.MULTILINE), option


@pytest.mark.skipif(shutil.which('mandoc') is None, reason='mandoc is not installed')
def test_mandoc_has_no_remark_on_a_page():
    pages = sorted(map(str, (ROOT / 'man').glob('*.[0-9]')))
    assert subprocess.run(['mandoc', '-T', 'lint', *pages], capture_output=True, text=True, check=False).stdout == ''


def test_the_architecture_names_modules_that_are_there():
    named = set(re.findall(r'`([a-z_]+/[a-z_/]+)[\w.]*`', (ROOT / 'ARCHITECTURE.md').read_text()))
    assert len(named) > 40
    assert [name for name in sorted(named) if not is_in_the_tree(name)] == []


def is_in_the_tree(name):
    places = [place / name.rstrip('/') for place in (ROOT, ROOT / 'kbroker', ROOT / 'kbroker_tools')]
    return any(place.is_dir() or list(place.parent.glob(f'{place.name}.*')) for place in places)


def test_an_api_is_served_or_skipped_with_a_reason():
    text = (ROOT / 'SKIPPED.md').read_text().partition('## APIs')[2].partition('\n## ')[0]
    skipped = set()
    for cell in re.findall(r'\(([\d, -]+)\)', text):
        for part in cell.split(','):
            first, _, last = part.strip().partition('-')
            skipped |= set(range(int(first), int(last or first) + 1))
    served = {int(api.key) for api in served_apis()}
    assert not skipped & served
    assert {int(key) for key in ApiKey} <= skipped | served
