"""Faults of the disk, as a test sets them by the control port: a slow sync, a failing sync, a full disk."""
import threading

import pytest
from support.brokers.control_port_broker import ControlPortBroker
from support.clients.raw_client import RawClient
from support.messages.message_builder import build

from kbroker.base.clock import ManualClock, Timers
from kbroker.control.disk import ControlledFileSystem
from kbroker.control.rules import Rules
from kbroker.record.batch import encode_batch

LIMIT_S = 120
STORAGE_ERROR = 56


@pytest.fixture
def broker(tmp_path):
    """A broker with the topics `slow` and `quick`."""
    with ControlPortBroker(tmp_path / 'data') as broker:
        for topic in ('slow', 'quick'):
            with RawClient.at(broker.address, LIMIT_S) as client:
                client.ask(build('CreateTopicsRequest', topics=[
                    {'name': topic, 'num_partitions': 2, 'replication_factor': 1}], timeout_ms=60_000), 5)
        yield broker


def produce(broker, topic, partition=0):
    """Return the error code of one record."""
    records = encode_batch([(0, None, b'value')])
    with RawClient.at(broker.address, LIMIT_S) as client:
        answer = client.ask(build('ProduceRequest', acks=-1, timeout_ms=60_000, topic_data=[
            {'name': topic, 'partition_data': [{'index': partition, 'records': records}]}]), 9)
    return answer.responses[0].partition_responses[0].error_code


def test_a_slow_sync_delays_its_partition_alone_by_the_clock_of_the_broker(broker):
    broker.ask('POST', '/clock', {'stop': True})
    _, rule = broker.ask('POST', '/rules', {'point': 'sync', 'action': 'delay', 'delay_ms': 5_000,
                                            'select': {'topic': 'slow', 'partition': 0, 'times': 1}})
    codes = []
    slow = threading.Thread(target=lambda: codes.append(produce(broker, 'slow')))
    slow.start()
    assert broker.ask('GET', f'/rules/{rule["id"]}?matched=1&wait_ms=60000')[1]['matched'] == 1
    assert [produce(broker, 'quick'), produce(broker, 'slow', 1)] == [0, 0]
    assert codes == []
    assert broker.ask('POST', '/clock', {'advance_ms': 5_000})[0] == 200
    slow.join(LIMIT_S)
    assert codes == [0]
    assert produce(broker, 'slow') == 0
    assert broker.ask('GET', f'/rules/{rule["id"]}')[1]['matched'] == 1


def test_a_broker_stops_cleanly_while_a_sync_is_delayed(broker):
    broker.ask('POST', '/rules', {'point': 'sync', 'action': 'delay', 'delay_ms': 3_600_000})
    slow = threading.Thread(target=lambda: produce(broker, 'slow'))
    slow.start()
    broker.ask('GET', '/rules/1?matched=1&wait_ms=60000')
    broker.stop()
    slow.join(LIMIT_S)
    broker.start()
    assert produce(broker, 'slow') == 0


def test_a_failing_sync_takes_the_directory_offline_until_a_restart(broker):
    broker.ask('POST', '/rules', {'point': 'sync', 'action': 'fail', 'select': {'topic': 'slow', 'occurrence': 2}})
    assert produce(broker, 'slow') == 0
    assert produce(broker, 'slow') == STORAGE_ERROR
    assert produce(broker, 'quick') == STORAGE_ERROR
    assert broker.ask('GET', '/rules/1')[1]['matched'] == 1
    assert any('Input/output error' in line for line in broker.lines)
    broker.kill9()
    broker.start()
    assert [produce(broker, topic) for topic in ('slow', 'quick')] == [0, 0]


def test_a_full_disk_refuses_the_writes_of_its_partition_until_a_restart(broker):
    _, rule = broker.ask('POST', '/rules', {'point': 'write', 'action': 'full', 'select': {'topic': 'slow'}})
    assert produce(broker, 'quick') == 0
    assert produce(broker, 'slow') == STORAGE_ERROR
    _, final = broker.ask('DELETE', f'/rules/{rule["id"]}')
    assert final['matched'] >= 1
    [step, *_] = [step for step in broker.ask('GET', '/steps')[1]['steps'] if step['point'] == 'write']
    assert (step['topic'], step['partition']) == ('slow', 0)
    assert any('No space left on device' in line for line in broker.lines)
    broker.kill9()
    broker.start()
    assert produce(broker, 'slow') == 0


def test_a_thread_other_than_the_loop_meets_no_rule(tmp_path):
    """The cleaner writes in a thread of its own while the loop changes the rules."""
    clock = ManualClock()
    rules = Rules(clock, Timers(clock))
    (tmp_path / 'orders-0').mkdir()
    fs = ControlledFileSystem(rules)
    rules.add({'point': 'write', 'action': 'full'})
    file = fs.open(str(tmp_path / 'orders-0' / '0.log'), create=True)
    with pytest.raises(OSError, match='No space left on device'):
        file.write_at(b'refused', 0)
    thread = threading.Thread(target=lambda: file.write_at(b'written', 0))
    thread.start()
    thread.join(LIMIT_S)
    assert file.read_at(100, 0) == b'written'
    other = fs.open(str(tmp_path / 'other'), create=True)
    other.write_at(b'of no partition', 0)
    assert other.size() == 15
