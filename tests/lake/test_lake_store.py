"""The directory of a table: listings, small files, and what is synced, on a disk and in an object store."""
import os

import pytest
from pyarrow import fs
from support.lake.object_store import BUCKET

from kbroker_tools.spark.lake.store import Store


@pytest.fixture(params=['local', 's3'])
def store(request, tmp_path):
    if request.param == 'local':
        return Store(fs.LocalFileSystem(), str(tmp_path / 'table'))
    return Store(request.getfixturevalue('object_store').filesystem(), f'{BUCKET}/{tmp_path.name}')


def test_files_are_listed_below_a_path_and_relative_to_the_root(store):
    for path in ('data/b/2', 'data/b/1', 'data/c', 'data/a/x/3', 'other/4'):
        store.put(path, path.encode())
    assert sorted(store.list('data')) == ['data/a/x/3', 'data/b/1', 'data/b/2', 'data/c']
    assert sorted(store.list('')) == ['data/a/x/3', 'data/b/1', 'data/b/2', 'data/c', 'other/4']
    assert list(store.list('nothing')) == []


def test_a_small_file_has_its_bytes(store):
    store.put('markers/1', b'{}')
    with store.filesystem.open_input_stream(f'{store.root}/markers/1') as stream:
        assert stream.read() == b'{}'


def test_a_file_or_directory_that_is_gone_can_be_deleted(store):
    store.put('data/1', b'')
    for _ in range(2):
        store.delete('data/1')
        store.delete_directory('data')
    assert list(store.list('')) == []


def test_a_directory_is_deleted_with_all_below_it(store):
    for path in ('data/a/x/1', 'data/a/2', 'data/b/3'):
        store.put(path, b'x')
    store.delete_directory('data/a')
    assert list(store.list('data')) == ['data/b/3']


def test_empty_directories_are_pruned_on_a_disk(tmp_path):
    store = Store(fs.LocalFileSystem(), str(tmp_path))
    for path in ('data/a/x/1', 'data/a/y/2'):
        store.put(path, b'x')
    store.delete('data/a/x/1')
    store.prune('data/a')
    assert os.listdir(tmp_path / 'data' / 'a') == ['y']
    store.delete('data/a/y/2')
    store.prune('data/a')
    assert os.listdir(tmp_path / 'data') == []


def test_a_file_is_synced_before_the_directories_that_name_it(tmp_path, monkeypatch):
    store = Store(fs.LocalFileSystem(), str(tmp_path / 'table'))
    store.put('data/a/1', b'x')
    store.put('data/b/2', b'x')
    synced = []
    real = os.fsync

    def fsync(descriptor):
        synced.append(os.path.relpath(os.readlink(f'/proc/self/fd/{descriptor}'), tmp_path))
        real(descriptor)
    monkeypatch.setattr(os, 'fsync', fsync)
    store.sync(['data/a/1', 'data/b/2'])
    assert synced == ['table/data/a/1', 'table/data/b/2', 'table/data/b', 'table/data/a', 'table/data', 'table', '.']


def test_a_sync_that_fails_is_an_error(tmp_path, monkeypatch):
    def fsync(descriptor):
        raise OSError(5, 'Input/output error')
    store = Store(fs.LocalFileSystem(), str(tmp_path))
    store.put('marker', b'')
    monkeypatch.setattr(os, 'fsync', fsync)
    with pytest.raises(OSError, match='Input/output'):
        store.put('marker', b'')
