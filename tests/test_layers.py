"""Imports go downhill: a room imports rooms of a lower layer and itself, whether by `import` or by `cimport`."""

import pathlib
import re
from collections.abc import Iterator

import pytest

PACKAGE = pathlib.Path(__file__).parent.parent / 'kbroker'

LAYERS = [
    {'errors'},
    {'clock', 'metrics', 'properties', 'settings'},
    {'config'},
    {'wire'},
    {'protocol', 'record'},
    {'log'},
    {'metadata'},
    {'topics'},
    {'group', 'transaction', 'security'},
    {'apis'},
    {'network'},
    {'client'},
    {'logs', 'node', 'systemd'},
    {'broker'},
    {'main'},
    {'__main__'},
]
LAYER = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}

# Lower, and yet not for them: the network carries bytes for whoever is there, the client knows no broker.
NEVER = {
    'network': {'apis', 'group', 'transaction', 'security', 'metadata', 'topics'},
    'client': {'apis', 'group', 'transaction', 'security', 'metadata', 'topics', 'log'},
}

IMPORT = re.compile(
    r'^\s*(?:from\s+kbroker\.(\w+)[\w.]*\s+c?import|from\s+kbroker\s+c?import\s+(.+)|c?import\s+kbroker\.(\w+))',
    re.MULTILINE,
)
RELATIVE = re.compile(r'^\s*from\s+\.+\w*[\w.]*\s+c?import', re.MULTILINE)

SOURCES = sorted(path for path in PACKAGE.rglob('*') if path.suffix in {'.py', '.pyx', '.pxd', '.pyi'})


def room_of(path: pathlib.Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(path.suffix)


def imported_rooms(source: str) -> Iterator[str]:
    for room, names, module in IMPORT.findall(source):
        yield from [room or module] if room or module else re.findall(r'\w+', re.sub(r'\bas\s+\w+|#.*', '', names))


def is_allowed(room: str, imported: str) -> bool:
    if imported == room or imported == '__version__':
        return True
    if imported in NEVER.get(room, ()):
        return False
    assert imported in LAYER, f'{imported} stands in no layer'
    return LAYER[imported] < LAYER[room]


@pytest.mark.parametrize('path', SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_downhill(path):
    room, source = room_of(path), path.read_text()
    if room == '__init__':
        assert not list(imported_rooms(source)), 'the package itself imports no room'
        return
    assert room in LAYER, f'{room} stands in no layer'
    assert not RELATIVE.search(source), 'imports name the room in full'
    assert [imported for imported in imported_rooms(source) if not is_allowed(room, imported)] == []


@pytest.mark.parametrize(
    ('line', 'rooms'),
    [
        ('from kbroker.log.log import Log', ['log']),
        ('from kbroker.wire.bytes cimport Cursor, take', ['wire']),
        ('    import kbroker.errors', ['errors']),
        ('cimport kbroker.log.fs as fs', ['log']),
        ('from kbroker import clock, errors as e', ['clock', 'errors']),
        ('import json', []),
    ],
)
def test_every_kind_of_import_is_seen(line, rooms):
    assert list(imported_rooms(line)) == rooms


@pytest.mark.parametrize(
    ('room', 'imported', 'allowed'),
    [
        ('log', 'record', True),
        ('log', 'log', True),
        ('record', 'log', False),
        ('record', 'protocol', False),
        ('transaction', 'group', False),
        ('network', 'apis', False),
        ('broker', 'network', True),
    ],
)
def test_a_room_sees_what_lies_below(room, imported, allowed):
    assert is_allowed(room, imported) is allowed
