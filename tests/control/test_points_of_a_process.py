"""Rules on a broker process: a kill between two markers, a pause, and a stop while an operation is held."""
import os
import pathlib
import signal
import threading

import pytest
from support.brokers.broker_process import PROMPT
from support.brokers.control_port_broker import LIMIT_S, ControlPortBroker
from support.clients.librdkafka import values_of

from kbroker.client import Admin, Producer
from kbroker.client.admin import NewTopic

TIMELY = {'request_timeout_ms': 5000, 'retry_backoff_ms': 20}
STATE, STOPPED = 2, 'T'     # the place of the state in the file of a process, and that of a process with SIGSTOP


@pytest.fixture
def broker(tmp_path):
    with ControlPortBroker(tmp_path, PROMPT) as broker:
        with Admin(broker.address, **TIMELY) as admin:
            admin.create_topics([NewTopic('orders', 2, 1)])
        yield broker
        broker.stop()
        assert broker.tracebacks() == []


def add(broker, point, action, **select):
    status, rule = broker.ask('POST', '/rules', {'point': point, 'action': action, 'select': select})
    assert status == 201, rule
    return rule['id']


def pay(address):
    """Commit a transaction with a record in both partitions."""
    with Producer(address, transactional_id='tx', **TIMELY) as producer, producer.transaction():
        for partition in range(2):
            producer.send('orders', b'10', partition=partition)


def begin_to_pay(broker):
    thread = threading.Thread(target=pay, args=(broker.address,), daemon=True)
    thread.start()
    return thread


def payments(broker):
    return values_of(broker.address, 'orders', range(2))


def test_a_broker_that_is_killed_between_two_markers_writes_the_second_after_its_start(broker):
    add(broker, 'transaction.marker', 'kill', occurrence=2)
    paying = begin_to_pay(broker)
    broker.wait_killed()
    broker.start()
    paying.join(LIMIT_S)
    assert not paying.is_alive()
    assert payments(broker) == ['10', '10']


def test_a_broker_that_pauses_at_a_step_goes_on_after_it(broker):
    rule = add(broker, 'request', 'pause', api='EndTxn', times=1)
    paying = begin_to_pay(broker)
    while state_of(broker.pid) != STOPPED:
        paying.join(0.01)
    os.kill(broker.pid, signal.SIGCONT)
    paying.join(LIMIT_S)
    assert not paying.is_alive()
    assert broker.ask('GET', f'/rules/{rule}')[1]['matched'] == 1
    assert payments(broker) == ['10', '10']


def state_of(pid):
    return pathlib.Path(f'/proc/{pid}/stat').read_text().split()[STATE]


@pytest.mark.parametrize('point', ['transaction.marker', 'append.durable'])
def test_a_broker_stops_while_an_operation_is_held(broker, point):
    rule = add(broker, point, 'hold', topic='orders')
    paying = begin_to_pay(broker)
    assert broker.ask('GET', f'/rules/{rule}?matched=1&wait_ms=60000')[1]['held'] >= 1
    broker.restart()
    paying.join(LIMIT_S)
    assert not paying.is_alive()
    assert payments(broker) == ['10', '10']
