"""A snapshot of a running broker is a log directory with the same history."""
import pytest
from support.brokers.in_process_broker import InProcessBroker

from kbroker.control.snapshot import take_snapshot


def test_a_copy_of_a_running_broker_opens_beside_it(tmp_path):
    with InProcessBroker(tmp_path / 'data') as broker:
        broker.topics.create('payments', 2, {'retention.ms': '1000'})
        take_snapshot(broker, str(tmp_path / 'copy'))
        broker.topics.create('later', 1, {})
        with InProcessBroker(tmp_path / 'copy') as copy:
            assert [topic.name for topic in copy.topics.topics()] == ['payments']
            assert copy.metadata.cluster_id == broker.metadata.cluster_id
            assert copy.topics.topic('payments').overrides == {'retention.ms': '1000'}


def test_files_that_a_start_removes_are_not_copied(tmp_path):
    with InProcessBroker(tmp_path / 'data') as broker:
        for name in ('0.log.deleted', '0.log.cleaned', 'x.tmp'):
            (tmp_path / 'data' / name).touch()
        (tmp_path / 'data' / f'a-0.{"0" * 32}-delete').mkdir()
        take_snapshot(broker, str(tmp_path / 'copy'))
    names = {path.name for path in (tmp_path / 'copy').iterdir()}
    assert 'meta.properties' in names
    assert not [name for name in names if name.endswith(('.deleted', '.cleaned', '.tmp', '-delete', '.lock'))]


def test_a_snapshot_never_overwrites_a_directory(tmp_path):
    with InProcessBroker(tmp_path / 'data') as broker, pytest.raises(FileExistsError):
        take_snapshot(broker, str(tmp_path))
