"""Each file that a start reads is replaced by a directory, pipe, socket or dead link. The broker refuses to start with
one clear line, or takes the partition offline.
"""
from __future__ import annotations

import os
import pathlib
import shutil
import socket

import pytest
from support.brokers.in_process_broker import InProcessBroker
from support.clients.promises import TOPIC, Client, Promises

from kbroker.base.errors import CorruptLogError, ErrorCode, KafkaError, LogDirectoryError
from kbroker.log.inventory import INVENTORY_FILE
from kbroker.log.log_directory import FILES_BESIDE

SETTINGS = {'log.index.size.max.bytes': '4096', 'offsets.topic.num.partitions': '1'}
PARTITION = f'{TOPIC}-0'
STEM = f'{0:020d}'


def make_socket(path: pathlib.Path) -> None:
    descriptor = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f'/proc/self/fd/{descriptor}/{path.name}')
    os.close(descriptor)


KINDS = {'a directory': os.mkdir, 'a named pipe': os.mkfifo, 'a socket': make_socket,
         'a link to no file': lambda path: path.symlink_to(path.name)}


@pytest.fixture(scope='module', params=[True, False], ids=['stopped', 'killed'])
def used(request, tmp_path_factory) -> tuple[pathlib.Path, bool]:
    """A directory with two partitions, and whether its broker stopped cleanly."""
    directory = tmp_path_factory.mktemp('used') / 'data'
    with InProcessBroker(directory, SETTINGS) as broker:
        client = Client(broker, Promises())
        client.create_topic(TOPIC, 2)
        client.init_idempotent()
        client.produce({(TOPIC, 0): ['a0', 'a1'], (TOPIC, 1): ['b0']})
        killed = tmp_path_factory.mktemp('killed') / 'data'
        shutil.copytree(directory, killed)
    return (directory, True) if request.param else (killed, False)


def replaced(used: pathlib.Path, tmp_path: pathlib.Path, name: str, kind: str) -> pathlib.Path:
    directory = tmp_path / 'data'
    shutil.copytree(used, directory)
    path = directory / name
    path.unlink(missing_ok=True)
    KINDS[kind](path)
    return directory


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('name', [
    *(name for name in FILES_BESIDE if name not in ('leader-epoch-checkpoint', 'partition.metadata', 'quorum-state')),
    '__cluster_metadata-0/quorum-state', f'__cluster_metadata-0/{STEM}.log', '__cluster_metadata-0/partition.metadata',
    '__cluster_metadata-0/leader-epoch-checkpoint', f'{INVENTORY_FILE}.tmp'])
def test_no_broker_starts_without_the_files_of_the_directory_itself(used, tmp_path, name, kind):
    directory = replaced(used[0], tmp_path, name, kind)
    with pytest.raises(LogDirectoryError) as raised, InProcessBroker(directory, SETTINGS):
        pass
    assert str(raised.value) == f'{directory / name}: found {kind}, expected a file: move it away'


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('name', [
    f'{STEM}.log', f'{STEM}.index', f'{STEM}.timeindex', f'{STEM}.txnindex', f'{7:020d}.snapshot',
    'leader-epoch-checkpoint', 'partition.metadata', f'{7:020d}.snapshot.tmp'])
def test_a_partition_with_something_else_in_the_place_of_a_file_is_not_served(used, tmp_path, name, kind, caplog):
    """An earlier version of the broker served a partition whose index was a directory, and ended when it first used
    this index.
    """
    original, is_clean = used
    directory = replaced(original, tmp_path, f'{PARTITION}/{name}', kind)
    if not is_clean:
        # The start must fail. If it skipped the recovery of the partition, the start after the next clean stop would
        # never recover it.
        with pytest.raises((CorruptLogError, OSError)) as raised, InProcessBroker(directory, SETTINGS):
            pass
        assert str(directory / PARTITION / name) in str(raised.value)
        return
    with InProcessBroker(directory, SETTINGS) as broker:
        with pytest.raises(KafkaError) as offline:
            broker.topics.get(TOPIC, 0).read(0, 1, 10, True)
        assert offline.value.code == ErrorCode.KAFKA_STORAGE_ERROR
        assert f'{directory / PARTITION / name}: found {kind}, expected' in str(offline.value)
        assert broker.logs.logs[TOPIC, 1].log_end_offset == 1
    path = directory / PARTITION / name
    (shutil.rmtree if kind == 'a directory' else os.unlink)(path)
    if (original / PARTITION / name).exists():
        shutil.copy2(original / PARTITION / name, path)
    with InProcessBroker(directory, SETTINGS) as broker:
        assert broker.logs.logs[TOPIC, 0].log_end_offset == 2
    assert 'it is served again' in caplog.text or 'reaches offset 2 again' in caplog.text
