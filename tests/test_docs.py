"""What the documents say holds."""
import importlib.util
import pathlib
import re
import subprocess
import sys

import pytest

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


@pytest.mark.parametrize('page', ['kbroker.8', 'kbroker.properties.5'])
def test_the_man_pages_are_those_of_the_code(page):
    assert (ROOT / 'man' / page).read_text() == load_make().PAGES[page](), 'run `make man`'


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
