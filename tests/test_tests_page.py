"""docs/tests.md says which test files cover each KIP and each promise."""
import pathlib

import pytest
from support.runner import tests_page
from support.runner.tests_page import PAGE, ROOT, by_key, files_with_tests, kips_covered, kips_in, name_of, promises_in

SOURCES = [file for package in ('kbroker', 'kbroker_tools') for file in (ROOT / package).rglob('*')
           if file.suffix in ('.py', '.pyx', '.pxd')]


def test_the_page_is_up_to_date():
    assert PAGE.read_text() == tests_page.page(), 'run python tests/support/runner/tests_page.py'


def test_a_test_file_covers_each_kip_that_the_code_names():
    named = {kip for file in SOURCES for kip in kips_in(file.read_text())}
    assert named - set(by_key({name_of(file): kips_covered(file) for file in files_with_tests()})) == set()


def test_a_test_file_covers_each_promise():
    promised = by_key({name_of(file): promises_in(file.read_text()) for file in files_with_tests()})
    assert list(promised) == list(tests_page.promises_of_design()) != []


@pytest.mark.parametrize(('text', 'numbers'), [
    ('Covers promise 3.', {3}), ('promises 1, 2 and\n4 of', {1, 2, 4}), ('Promises 1 to 3 hold', {1, 2, 3}),
    ('two promises', set())])
def test_promises_are_named_by_their_numbers(text, numbers):
    assert promises_in(text) == numbers


@pytest.mark.parametrize(('name', 'kips'), [
    ('log/test_x.py', {98}), ('group/test_x.py', set()), ('apis/test_x.py', {140}), ('test_x.py', {98, 11})])
def test_a_module_is_tested_in_the_room_of_its_name(monkeypatch, tmp_path, name, kips):
    """A test file directly in tests/ tests the whole package."""
    for place, text in {
            'kbroker/log/log.pyx': '# cython: x=True\n"""A log (KIP-98)."""\nKIP = "KIP-1"\n',
            'kbroker/security/acl.py': '"""ACLs (KIP-11)."""\n',
            'kbroker/apis/create_acls.py': '"""CreateAcls (KIP-140)."""\n',
            f'tests/{name}': 'from kbroker.log import log\nfrom kbroker.security.acl import X\nask("CreateAcls")\n'
                             'messages.CreateAclsRequest()\n'}.items():
        file = tmp_path / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setattr(tests_page, 'ROOT', pathlib.Path(tmp_path))
    tests_page.kips_of_module.cache_clear()
    assert kips_covered(tmp_path / 'tests' / name) == kips
    tests_page.kips_of_module.cache_clear()
