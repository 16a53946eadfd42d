"""The software bill of materials names the version of kbroker and the wheel that it describes."""
import pathlib
import runpy
import subprocess
import sys
from unittest import mock

import pytest
from support.runner.pages import ROOT

FILE = ROOT / 'packaging' / 'sbom.py'
PACKAGING = ROOT / 'build' / 'packaging' / 'venv' / 'bin' / 'python'
SBOM = runpy.run_path(str(FILE))


def test_the_version_that_pyproject_does_not_state_is_added():
    bom = {'metadata': {'component': {'name': 'kbroker', 'type': 'application'}}}
    assert SBOM['with_version'](bom, '1.0')['metadata']['component'] == {
        'name': 'kbroker', 'type': 'application', 'version': '1.0', 'purl': 'pkg:pypi/kbroker@1.0'}


def test_the_wheel_for_this_python_is_chosen_among_those_of_a_release(tmp_path):
    version = f'{sys.version_info.major}{sys.version_info.minor}'
    for tags in ('cp310-cp310-manylinux_2_17_x86_64', f'cp{version}-cp{version}-win_amd64', 'py3-none-any'):
        (tmp_path / f'kbroker-1.0-{tags}.whl').touch()
    assert SBOM['wheel_of'](tmp_path).name == 'kbroker-1.0-py3-none-any.whl'


def test_without_a_wheel_one_line_says_how_to_make_one(tmp_path):
    with mock.patch.object(sys, 'argv', ['sbom.py', str(tmp_path), 'sbom']), \
            pytest.raises(SystemExit, match=f'found no wheel for {sys.executable} among 0 wheels.*: make package'):
        SBOM['main']()


@pytest.mark.skipif(not PACKAGING.exists(), reason='build/packaging is not installed: make build/packaging/installed')
def test_a_file_that_the_schema_refuses_is_reported():
    program = ("import runpy, sys; faults = runpy.run_path(sys.argv[1])['faults'];"
               "good = '{\"bomFormat\": \"CycloneDX\", \"specVersion\": \"1.6\"}';"
               "print(faults(good), '|', faults(good.replace('bomFormat', 'format')))")
    done = subprocess.run([PACKAGING, '-c', program, str(FILE)], capture_output=True, text=True, check=True,
                          cwd=pathlib.Path('/'))
    good, _, bad = done.stdout.partition(' | ')
    assert good == 'None'
    assert 'format' in bad
