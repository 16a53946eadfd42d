"""Lines of Cython sources are at most as long as ruff allows in Python files. Ruff reads no Cython."""
import pathlib
import tomllib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
LIMIT = tomllib.loads((ROOT / 'pyproject.toml').read_text())['tool']['ruff']['line-length']
SOURCES = sorted(path for package in ('kbroker', 'kbroker_tools') for path in (ROOT / package).rglob('*.p[xy][dxi]'))


@pytest.mark.parametrize('path', SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_line_is_too_long(path):
    lines = path.read_text().splitlines()
    assert [number for number, line in enumerate(lines, 1) if len(line) > LIMIT] == []


def test_every_kind_of_cython_source_is_read():
    assert {path.suffix for path in SOURCES} == {'.pyx', '.pxd', '.pyi'}
