"""Imports go downhill: a room imports rooms of a lower layer and itself, whether by `import` or by `cimport`."""

import pathlib
import re
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE, TOOLS = ROOT / 'kbroker', ROOT / 'kbroker_tools'

LAYERS = [
    {'lean_dataclasses', 'object_memory'},
    {'errors', 'garbage', 'setting_rows', 'turn_watch'},
    {'clock', 'completion', 'group_settings', 'internal_topics', 'jaas', 'linear_pattern', 'properties',
     'tls_settings'},
    {'clock_watch', 'long_work', 'settings'},
    {'listener_settings', 'tls'},
    {'config', 'file_modes', 'wire'},
    {'group_resources', 'protocol', 'record'},
    {'log', 'security'},
    {'metadata'},
    {'topics'},
    {'group', 'transaction'},
    {'apis'},
    {'network'},
    {'client'},
    {'logs', 'node', 'systemd'},
    {'ledger', 'status', 'stopping'},
    {'broker'},
    {'main'},
    {'__main__'},
]
LAYER = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}

# Lower rooms that these rooms still must not import: the network knows no API, and the client knows no broker.
NEVER = {
    'network': {'apis', 'group', 'transaction', 'metadata', 'topics'},
    'client': {'apis', 'group', 'transaction', 'metadata', 'topics', 'log', 'network', 'config'},
}

TOOL_LAYERS = [
    {'view', 'render', 'actions'},
    {'rows'},
    {'directory_view', 'live_view'},
    {'command', 'topic_descriptions', 'stuck', 'checking'},
    {'acl_work', 'client_configs', 'console', 'group_work', 'timeline'},
    {'history', 'dump', 'spark', 'verifying'},
    {'acls', 'certs', 'check', 'configs', 'consume', 'dump_log', 'groups', 'ingest', 'produce', 'share_consume',
     'share_groups', 'spark_startup', 'streams_groups', 'topics', 'transactions', 'txn_state', 'verify'},
]
TOOL_LAYER = {room: number for number, rooms in enumerate(TOOL_LAYERS) for room in rooms}
# The parts of a running broker. The tools read its files and send it requests. They share its log, rows and names.
NEVER_FOR_TOOLS = {'apis', 'network', 'logs', 'node', 'systemd', 'broker', 'main', '__main__'}
# The only import upwards: `dump/start` passes all but plain calls to the command.
UPWARD = {('dump', 'dump_log')}


def import_pattern(package: str) -> re.Pattern[str]:
    return re.compile(
        rf'^\s*(?:from\s+{package}\.(\w+)[\w.]*\s+c?import|from\s+{package}\s+c?import\s+(.+)'
        rf'|c?import\s+{package}\.(\w+))', re.MULTILINE)


IMPORT, TOOL_IMPORT = import_pattern('kbroker'), import_pattern('kbroker_tools')
RELATIVE = re.compile(r'^\s*from\s+\.+\w*[\w.]*\s+c?import', re.MULTILINE)



def sources(package: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in package.rglob('*') if path.suffix in {'.py', '.pyx', '.pxd', '.pyi'})


def room_of(path: pathlib.Path, package: pathlib.Path = PACKAGE) -> str:
    return path.relative_to(package).parts[0].removesuffix(path.suffix)


def imported_rooms(source: str, pattern: re.Pattern[str] = IMPORT) -> Iterator[str]:
    for room, names, module in pattern.findall(source):
        yield from [room or module] if room or module else re.findall(r'\w+', re.sub(r'\bas\s+\w+|#.*', '', names))


def is_allowed(room: str, imported: str) -> bool:
    if imported == room or imported == '__version__':
        return True
    if imported in NEVER.get(room, ()):
        return False
    assert imported in LAYER, f'{imported} is in no layer'
    return LAYER[imported] < LAYER[room]


@pytest.mark.parametrize('path', sources(PACKAGE), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_downhill(path):
    room, source = room_of(path), path.read_text()
    if room == '__init__':
        assert not list(imported_rooms(source)), 'the package itself imports no room'
        return
    assert room in LAYER, f'{room} is in no layer'
    assert not RELATIVE.search(source), 'imports name the room in full'
    assert [imported for imported in imported_rooms(source) if not is_allowed(room, imported)] == []


@pytest.mark.parametrize('path', sources(TOOLS), ids=lambda path: str(path.relative_to(TOOLS)))
def test_the_tools_import_downhill_and_nothing_of_a_running_broker(path):
    room, source = room_of(path, TOOLS), path.read_text()
    imported = set(imported_rooms(source, TOOL_IMPORT)) - {room}
    assert room in TOOL_LAYER or (room == '__init__' and not imported), f'{room} is in no layer'
    assert not RELATIVE.search(source), 'imports name the room in full'
    assert [each for each in imported if TOOL_LAYER[each] >= TOOL_LAYER[room] and (room, each) not in UPWARD] == []
    assert not NEVER_FOR_TOOLS & set(imported_rooms(source))


INTO_A_LOG = re.compile(r'\bcimport\b.*\b(?:Log|Segment)\b|(?<!self)\._log\b|\bpartition\.log\b')


@pytest.mark.parametrize('path', sources(PACKAGE), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_partition_is_the_one_door_into_a_log(path):
    if LAYER.get(room_of(path), 0) > LAYER['topics']:
        assert INTO_A_LOG.findall(path.read_text()) == []


def test_each_room_that_is_named_exists():
    assert {*LAYER, *NEVER_FOR_TOOLS}.union(NEVER, *NEVER.values()) <= {room_of(path) for path in sources(PACKAGE)}
    assert TOOL_LAYER.keys() <= {room_of(path, TOOLS) for path in sources(TOOLS)}


def test_the_broker_does_not_know_the_tools():
    assert not [path for path in sources(PACKAGE) if 'kbroker_tools' in path.read_text()]


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
