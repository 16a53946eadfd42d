"""Imports go downhill: a package of the first level (a *room*) imports only itself and rooms of lower layers, by
`import` and by `cimport`.
"""

import pathlib
import re
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE, TOOLS = ROOT / 'kbroker', ROOT / 'kbroker_tools'

LAYERS = [
    {'base'},
    {'settings', 'wire'},
    {'protocol', 'record'},
    {'log', 'security'},
    {'client', 'metadata', 'network'},
    {'topics'},
    {'group', 'transaction'},
    {'apis'},
    {'http', 'metrics'},
    {'control', 'page'},
    {'daemon'},
    {'__main__', 'testing'},
]
LAYER = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}

# Maps a room to the lower modules that it must not import: the client must work without a broker.
NEVER = {'client': {'log', 'settings.config', 'settings.topic_config', 'settings.exposure'}}
# Maps a room to the only rooms that may import it: only the daemon knows how requests arrive, and no part of the broker
# uses the client.
ONLY_FOR = {'network': {'control', 'daemon', 'http', 'metrics'}, 'client': {'testing'},
            'http': {'control', 'daemon', 'page'}, 'metrics': {'daemon'}, 'page': {'daemon'}, 'control': {'daemon'}}

TOOL_LAYERS = [
    {'base'},
    {'rows'},
    {'check', 'cluster', 'dump', 'proxy', 'registry', 'timeline'},
    {'acls', 'console', 'groups', 'history', 'stuck', 'verify'},
    {'exporter', 'spark'},
    {'commands'},
]
TOOL_LAYER = {room: number for number, rooms in enumerate(TOOL_LAYERS) for room in rooms}
# The parts of a running broker, which tools must not import. Tools read the broker's files, send it requests, and share
# its modules for logs, rows and names.
NEVER_FOR_TOOLS = {'apis', 'network', 'daemon', '__main__'}
# A tool may import `daemon.status`, which asks a running broker over its status socket and starts no part of a broker.
ALLOWED_TO_TOOLS = {'daemon.status'}


def import_pattern(package: str) -> re.Pattern[str]:
    return re.compile(rf'^\s*(?:from\s+{package}((?:\.\w+)*)\s+c?import\s+(.+)|c?import\s+{package}((?:\.\w+)+))',
                      re.MULTILINE)


IMPORT, TOOL_IMPORT = import_pattern('kbroker'), import_pattern('kbroker_tools')
RELATIVE = re.compile(r'^\s*from\s+\.+\w*[\w.]*\s+c?import', re.MULTILINE)


def sources(package: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in package.rglob('*') if path.suffix in {'.py', '.pyx', '.pxd', '.pyi'})


def room_of(path: pathlib.Path, package: pathlib.Path = PACKAGE) -> str:
    return path.relative_to(package).parts[0].removesuffix(path.suffix)


def imported_names(source: str, pattern: re.Pattern[str] = IMPORT) -> Iterator[str]:
    """Yield the names that a source imports from the package: `log.log.Log` for `from kbroker.log.log import Log`."""
    for place, names, module in pattern.findall(source):
        if module:
            yield module.removeprefix('.')
        for name in re.findall(r'\w+|\($', re.sub(r'\bas\s+\w+|#.*', '', names)):
            yield f'{place}.{name}'.removeprefix('.').removesuffix('.(')


def imported_rooms(source: str, pattern: re.Pattern[str] = IMPORT) -> set[str]:
    return {name.partition('.')[0] for name in imported_names(source, pattern)} - {'__version__'}


def is_one_of(name: str, modules: set[str]) -> bool:
    return any(f'{name}.'.startswith(f'{module}.') for module in modules)


def is_allowed(room: str, imported: str) -> bool:
    other = imported.partition('.')[0]
    if other in {room, '__version__'}:
        return True
    if is_one_of(imported, NEVER.get(room, set())) or room not in ONLY_FOR.get(other, {room}):
        return False
    assert other in LAYER, f'{other} is in no layer'
    return LAYER[other] < LAYER[room]


@pytest.mark.parametrize('path', sources(PACKAGE), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_downhill(path):
    room, source = room_of(path), path.read_text()
    if room == '__init__':
        assert not list(imported_rooms(source)), 'the package itself imports no room'
        return
    assert room in LAYER, f'{room} is in no layer'
    assert not RELATIVE.search(source), 'imports name the room in full'
    assert [imported for imported in imported_names(source) if not is_allowed(room, imported)] == []


@pytest.mark.parametrize('path', sources(TOOLS), ids=lambda path: str(path.relative_to(TOOLS)))
def test_the_tools_import_downhill_and_nothing_of_a_running_broker(path):
    room, source = room_of(path, TOOLS), path.read_text()
    imported = imported_rooms(source, TOOL_IMPORT) - {room}
    assert room in TOOL_LAYER or (room == '__init__' and not imported), f'{room} is in no layer'
    assert not RELATIVE.search(source), 'imports name the room in full'
    assert [each for each in imported if TOOL_LAYER[each] >= TOOL_LAYER[room]] == []
    assert not [each for each in imported_names(source)
                if is_one_of(each, NEVER_FOR_TOOLS) and not is_one_of(each, ALLOWED_TO_TOOLS)]


INTO_A_LOG = re.compile(r'\bcimport\b.*\b(?:Log|Segment)\b|(?<!self)\._log\b|\bpartition\.log\b')


@pytest.mark.parametrize('path', sources(PACKAGE), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_partition_is_the_one_door_into_a_log(path):
    if LAYER.get(room_of(path), 0) > LAYER['topics']:
        assert INTO_A_LOG.findall(path.read_text()) == []


def test_each_room_that_is_named_exists():
    modules = NEVER_FOR_TOOLS.union(ALLOWED_TO_TOOLS, *NEVER.values(), ONLY_FOR, *ONLY_FOR.values())
    rooms = {each.partition('.')[0] for each in modules}
    assert LAYER.keys() | rooms == {*map(room_of, sources(PACKAGE))} - {'__init__'}
    assert all(list(PACKAGE.glob(f'{module.replace(".", "/")}*')) for module in modules)
    assert TOOL_LAYER.keys() == {room_of(path, TOOLS) for path in sources(TOOLS)} - {'__init__'}


def test_the_broker_does_not_know_the_tools():
    """Some modules know the names of programs, which they start as other processes."""
    assert [str(path.relative_to(PACKAGE)) for path in sources(PACKAGE) if 'kbroker_tools' in path.read_text()] == [
        'page/outputs.py', 'testing/access.py', 'testing/proxies.py', 'testing/report.py']


@pytest.mark.parametrize(
    ('line', 'names'),
    [
        ('from kbroker.log.log import Log', ['log.log.Log']),
        ('from kbroker.wire.bytes cimport Cursor, take', ['wire.bytes.Cursor', 'wire.bytes.take']),
        ('from kbroker.record.batch cimport (', ['record.batch']),
        ('    import kbroker.base.errors', ['base.errors']),
        ('cimport kbroker.log.fs as fs', ['log.fs']),
        ('from kbroker.base import clock, errors as e', ['base.clock', 'base.errors']),
        ('from kbroker import apis', ['apis']),
        ('import json', []),
    ],
)
def test_every_kind_of_import_is_seen(line, names):
    assert list(imported_names(line)) == names


@pytest.mark.parametrize(
    ('room', 'imported', 'allowed'),
    [
        ('log', 'record.batch', True),
        ('log', 'log.log', True),
        ('record', 'log.log', False),
        ('record', 'protocol', False),
        ('transaction', 'group.shard', False),
        ('apis', 'network.reactor', False),
        ('daemon', 'network.reactor', True),
        ('daemon', 'client', False),
        ('client', 'settings.tls', True),
        ('client', 'settings.config.Config', False),
    ],
)
def test_a_room_sees_what_lies_below(room, imported, allowed):
    assert is_allowed(room, imported) is allowed
