"""The broker refuses an unexpected log directory with one clear line and without changing it, or serves it."""
from __future__ import annotations

import errno
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile

import pytest
from support.brokers.in_process_broker import InProcessBroker
from support.clients.promises import READ_UNCOMMITTED, TOPIC, Client, Promises, findings_in

from kbroker.base.errors import CorruptLogError, LogDirectoryError
from kbroker.log.damage_report import accept_damage
from kbroker.log.fs import File, FileSystem
from kbroker.protocol.messages import FeatureLevelRecord, FetchRequest, ListGroupsRequest
from kbroker.record.batch import iter_batches

SETTINGS = {'log.index.size.max.bytes': '4096', 'offsets.topic.num.partitions': '1'}
ARCHIVES = pathlib.Path(__file__).parent.parent / 'data' / 'kafka-directories'
A, B = (TOPIC, 0), (TOPIC, 1)
ROOT = pathlib.Path(__file__).parent.parent.parent


def tree(directory: pathlib.Path) -> dict[str, tuple[bytes | None, int, int]]:
    """Return the content, mode and modification time of everything in a directory."""
    found: dict[str, tuple[bytes | None, int, int]] = {}
    for path in [directory, *directory.rglob('*')]:
        state = path.lstat()
        content = path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(directory))] = content, state.st_mode, state.st_mtime_ns
    return found


@pytest.fixture
def used(tmp_path) -> tuple[pathlib.Path, Promises]:
    """A directory that a broker closed cleanly, and the acknowledgements of that broker."""
    directory, promises = tmp_path / 'data', Promises()
    with InProcessBroker(directory, SETTINGS) as broker:
        client = Client(broker, promises)
        client.create_topic(TOPIC, 2)
        client.init_idempotent()
        client.produce({A: ['a0', 'a1'], B: ['b0']})
    return directory, promises


def check(directory: pathlib.Path, promises: Promises) -> None:
    with InProcessBroker(directory, SETTINGS) as broker:
        client = Client(broker, promises)
        client.check_topics()
        client.check_records()
    assert findings_in(str(directory)) == []


# ---- refused ----

def foreign_node(directory: pathlib.Path) -> None:
    replace(directory / 'meta.properties', b'node.id=1\n', b'node.id=7\n')


def newer_meta_properties(directory: pathlib.Path) -> None:
    replace(directory / 'meta.properties', b'version=1\n', b'version=2\n')


def torn_meta_properties(directory: pathlib.Path) -> None:
    (directory / 'meta.properties').write_bytes(b'node.id=1\ndirec')


def lost_meta_properties(directory: pathlib.Path) -> None:
    (directory / 'meta.properties').unlink()


def unknown_feature(directory: pathlib.Path) -> None:
    commit_feature(directory, 'streams.of.tomorrow', 1)


def newer_feature(directory: pathlib.Path) -> None:
    commit_feature(directory, 'metadata.version', 99)


def commit_feature(directory: pathlib.Path, name: str, level: int) -> None:
    with InProcessBroker(directory, SETTINGS) as broker:
        broker.metadata.at_once(broker.metadata.commits.write([FeatureLevelRecord(name=name, feature_level=level)]))


def damaged_metadata(directory: pathlib.Path) -> None:
    path = directory / '__cluster_metadata-0' / f'{0:020}.log'
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def unknown_folder(directory: pathlib.Path) -> None:
    (directory / 'lost+found').mkdir()


def replace(path: pathlib.Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))


@pytest.mark.parametrize('has_lock_file', [True, False])
@pytest.mark.parametrize('spoil, says', [
    (foreign_node, 'found node.id 7'), (newer_meta_properties, 'found version 2, expected 1'),
    (torn_meta_properties, 'meta.properties: found'),
    (lost_meta_properties, 'found no meta.properties but other files'),
    (unknown_feature, 'found feature streams.of.tomorrow at level 1, which this release does not know'),
    (newer_feature, 'found feature metadata.version at level 99'), (damaged_metadata, 'position'),
    (unknown_folder, 'lost\\+found: found a directory that is not named'),
])
def test_a_directory_that_is_not_understood_is_left_as_it_is(used, spoil, says, has_lock_file):
    """An earlier version of the broker removed the mark of a clean shutdown before it checked the metadata. It also
    left a lock file in each directory that it refused.
    """
    directory, _ = used
    spoil(directory)
    if not has_lock_file:
        (directory / '.lock').unlink()
    before = tree(directory)
    broker = InProcessBroker(directory, SETTINGS)
    with pytest.raises((LogDirectoryError, CorruptLogError), match=says) as raised:
        broker.__enter__()
    broker.abandon()
    assert '\n' not in str(raised.value)
    assert tree(directory) == before


def test_a_directory_of_something_else_is_left_as_it_is(tmp_path):
    (tmp_path / 'thesis.txt').write_text('All of it.')
    before = tree(tmp_path)
    with pytest.raises(LogDirectoryError, match='expected an empty directory'):
        InProcessBroker(tmp_path, SETTINGS).__enter__()
    assert tree(tmp_path) == before


def serve(directory: pathlib.Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, '-m', 'kbroker', 'serve', '--listen', '127.0.0.1:0', '--data-dir', str(directory)],
        cwd=ROOT, capture_output=True, text=True, timeout=180)


def test_a_refusal_is_one_line_and_an_exit_code(used):
    directory, _ = used
    foreign_node(directory)
    ended = serve(directory)
    assert ended.returncode == 1
    lines = [line for line in ended.stderr.splitlines() if 'found node.id 7' in line]
    assert len(lines) == 1 and lines[0].startswith('kbroker: ') and 'Traceback' not in ended.stderr


def test_a_second_broker_on_the_directory_is_refused(start_broker, tmp_path):
    directory = tmp_path / 'data'
    start_broker(directory=directory)
    before = sorted(path.name for path in directory.iterdir())
    ended = serve(directory)
    assert ended.returncode == 1 and 'is locked: another broker' in ended.stderr and 'Traceback' not in ended.stderr
    assert sorted(path.name for path in directory.iterdir()) == before


class UnreadableFileSystem(FileSystem):
    """A file system that refuses to open one file. A real file without read permission would not do: if root runs the
    tests, root can read it.
    """

    def __init__(self, path: pathlib.Path):
        self.path = str(path)

    def open(self, path: str, create: bool = False) -> File:
        if path == self.path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return super().open(path, create)


@pytest.mark.parametrize('name', [
    'meta.properties', '__cluster_metadata-0/quorum-state', f'__cluster_metadata-0/{0:020}.log',
    'recovery-point-offset-checkpoint'])
def test_a_directory_that_cannot_be_read_is_left_as_it_is(used, name):
    directory, _ = used
    before = tree(directory)
    broker = InProcessBroker(directory, SETTINGS, fs=UnreadableFileSystem(directory / name))
    with pytest.raises(PermissionError, match=name):
        broker.__enter__()
    broker.abandon()
    assert tree(directory) == before


# ---- served ----

def test_a_partition_of_no_topic_is_set_aside(used):
    directory, promises = used
    shutil.copytree(directory / f'{TOPIC}-0', directory / 'nobody-0')
    shutil.copytree(directory / f'{TOPIC}-0', directory / f'{TOPIC}-2')
    content = tree(directory / 'nobody-0')[f'{0:020}.log']
    check(directory, promises)
    stray = sorted(directory.glob('*-stray'))
    assert [path.name.partition('.')[0] for path in stray] == ['nobody-0', f'{TOPIC}-2']
    assert tree(stray[0])[f'{0:020}.log'] == content
    assert not (directory / 'nobody-0').exists()


def test_a_directory_of_an_earlier_topic_of_the_name_is_set_aside(used):
    """A topic is deleted and created again. Then a crash undoes the rename of a directory of the deleted topic."""
    directory, promises = used
    with InProcessBroker(directory, SETTINGS) as broker:
        client = Client(broker, promises)
        client.delete_topic(TOPIC)
        earlier, = directory.glob(f'{TOPIC}-0.*-delete')
        client.create_topic(TOPIC, 2)
        broker.crash()
    shutil.rmtree(directory / f'{TOPIC}-0', ignore_errors=True)
    earlier.rename(directory / f'{TOPIC}-0')
    check(directory, promises)
    assert len(list(directory.glob(f'{TOPIC}-0.*-stray'))) == 1
    with InProcessBroker(directory, SETTINGS) as broker:
        assert Client(broker, Promises()).read(A, READ_UNCOMMITTED) == {}


def test_a_topic_whose_directory_is_missing_gets_an_empty_log_once_the_loss_is_accepted(used):
    directory, promises = used
    shutil.rmtree(directory / f'{TOPIC}-0')
    promises.records.pop(A)
    with InProcessBroker(directory, SETTINGS) as broker:
        assert broker.topics.find(*A).is_offline
    assert accept_damage(FileSystem(), str(directory), None, {}, metadata=False) == [A]
    check(directory, promises)
    with InProcessBroker(directory, SETTINGS) as broker:
        client = Client(broker, promises)
        client.init_idempotent()
        client.produce({A: ['new']})
        assert promises.records[A] == {0: 'new'}


@pytest.mark.parametrize('archive, topics', [
    ('born-outside-kafka-opened-by-4.2-4.4-4.3', {'born'}), ('kafka-4.3-dynamic-voter', {'t1'}),
    ('kafka-4.3-static-voter', set()),
    ('kafka-4.4-stopped-once', {'t1'}), ('kafka-4.4-stopped-three-times-one-kill', {'t1'}),
    ('kafka-4.4-freshly-formatted', set()),
    ('kafka-4.4.0-formatted', set()), ('kafka-4.4.0-stopped-once', {'orders', 'streaming-store-changelog'}),
    ('trimmed-metadata-log-with-snapshots', None)])
def test_a_directory_that_apache_kafka_wrote_is_served(tmp_path, archive, topics):
    with tarfile.open(ARCHIVES / f'{archive}.tgz') as file:
        file.extractall(tmp_path, filter='data')
    directory, = (path for path in tmp_path.iterdir() if path.is_dir())
    node_id = next(line.partition('=')[2] for line in (directory / 'meta.properties').read_text().splitlines()
                   if line.startswith('node.id='))
    written = {path.parent.name: path.read_bytes() for path in directory.glob(f'*/{0:020}.log')
               if not path.parent.name.startswith('__cluster_metadata')}
    with InProcessBroker(directory, {'node.id': node_id}) as broker:
        found = {topic.name for topic in broker.topics.topics() if not topic.is_internal}
        assert topics is None or found == topics
        for topic in broker.topics.topics():
            for partition in topic.partitions:
                served = fetch_all(broker, partition)
                on_disk = written.get(f'{topic.name}-{partition.partition}', b'')
                if partition.log_start_offset == 0:
                    assert served == [bytes(batch) for _, batch in iter_batches(on_disk)]
        client = Client(broker, Promises())
        client.create_topic('ours', 1)
        client.init_idempotent()
        client.produce({('ours', 0): ['ours']})
    with InProcessBroker(directory, {'node.id': node_id}) as broker:
        assert list(Client(broker, Promises()).read(('ours', 0), READ_UNCOMMITTED).values()) == ['ours']


def test_the_groups_of_kafka_4_4_0_are_served(tmp_path):
    with tarfile.open(ARCHIVES / 'kafka-4.4.0-stopped-once.tgz') as file:
        file.extractall(tmp_path, filter='data')
    directory, = (path for path in tmp_path.iterdir() if path.is_dir())
    with InProcessBroker(directory, {'node.id': '1'}) as broker:
        listed = broker.ask(ListGroupsRequest(), 5).groups
    assert {(group.group_id, group.group_type, group.group_state) for group in listed} == {
        ('classic', 'classic', 'Stable'), ('consumers', 'consumer', 'Stable'), ('mixed', 'consumer', 'Stable'),
        ('shared', 'share', 'Stable'), ('streaming', 'streams', 'Stable')}


def fetch_all(broker: InProcessBroker, partition) -> list[bytes]:
    batches: list[bytes] = []
    offset = partition.log_start_offset
    while True:
        request = FetchRequest(max_wait_ms=0, min_bytes=0, topics=[FetchRequest.FetchTopic(
            topic=partition.topic, partitions=[FetchRequest.FetchPartition(
                partition=partition.partition, fetch_offset=offset, partition_max_bytes=1 << 20)])])
        data = broker.ask(request, 12).responses[0].partitions[0]
        assert data.error_code == 0
        found = list(iter_batches(bytes(data.records or b'')))
        if not found:
            assert offset == data.high_watermark
            return batches
        batches += [bytes(batch) for _, batch in found]
        offset = found[-1][0].last_offset + 1


def test_a_directory_of_a_larger_cluster_is_left_as_it_is(tmp_path):
    with tarfile.open(ARCHIVES / 'broker-1-of-a-cluster-two-log-dirs.tgz') as file:
        file.extractall(tmp_path, filter='data')
    before = tree(tmp_path)
    with pytest.raises(LogDirectoryError, match='found'):
        InProcessBroker(min(path for path in tmp_path.iterdir() if path.is_dir()), SETTINGS).__enter__()
    assert tree(tmp_path) == before
