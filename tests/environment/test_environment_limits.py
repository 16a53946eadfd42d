"""Limits of the system: idle connections use up the descriptors, and a large request needs more memory than there
is."""
import resource
import socket
from contextlib import ExitStack, closing

import pytest
from support.brokers.confined_broker import ConfinedBroker, until
from support.clients.committed_records import committed_records

from kbroker.client import Admin, Producer
from kbroker.client.admin import NewTopic
from kbroker.client.errors import ClientError

DESCRIPTORS = 64
PEERS = 200
PARTITIONS = 20
FEW = {'offsets.topic.num.partitions': '1', 'transaction.state.log.num.partitions': '1'}
ROOM_BYTES = 48 << 20
"""The memory that the broker may still allocate. It is enough for small requests."""
LARGE_BYTES = 96 << 20
SHARE_OF_A_PART = 1 << 20


@pytest.fixture
def run_broker(tmp_path):
    """Return a function that starts a broker with settings. Its `starter` is the command of a program that runs the
    broker."""
    with ExitStack() as stack:
        def run(settings, starter=()):
            broker = ConfinedBroker(tmp_path / 'data', settings, starter)
            stack.callback(lambda: broker.tracebacks() == [] or pytest.fail(str(broker.tracebacks())))
            stack.callback(broker.kill9)
            broker.start()
            return broker
        yield run


def address_of(broker):
    host, port = broker.address.rsplit(':', 1)
    return host, int(port)


def lines_with(broker, words):
    return [line for line in broker.lines if words in line]


def test_idle_connections_leave_the_log_the_descriptors_that_it_needs(run_broker):
    broker = run_broker(FEW, ('prlimit', f'--nofile={DESCRIPTORS}:{DESCRIPTORS}'))
    with Admin(broker.address) as admin, Producer(broker.address, transactional_id='x') as producer, \
            ExitStack() as peers:
        assert admin.create_topics([NewTopic('t', PARTITIONS, 1)])['t'] is None
        transact(producer, b'0')
        for _ in range(PEERS):
            peers.enter_context(closing(socket.create_connection(address_of(broker))))
        for number in range(1, 5):
            transact(producer, b'%d' % number)
        peers.close()
        until(lambda: is_served(broker), 'the broker has seen that the peers have left')
        with Producer(broker.address) as newcomer:
            newcomer.send('t', b'new', partition=0)
        found = sorted(record.value for _, record in committed_records(admin, 't', PARTITIONS))
    assert found == sorted([b'new', *(b'%d' % number for number in range(5) for _ in range(PARTITIONS))])
    assert lines_with(broker, 'refusing connections, first of 127.0.0.1')
    broker.stop()


def is_served(broker):
    """Return whether the broker serves two new connections, so that one remains for the next client."""
    try:
        with Admin(broker.address) as first, Admin(broker.address) as second:
            first.cluster.refresh(())
            second.cluster.refresh(())
    except ClientError:
        return False
    return True


def transact(producer, value):
    with producer.transaction():
        for partition in range(PARTITIONS):
            producer.send('t', value, partition=partition)


def test_a_request_for_which_there_is_no_memory_closes_its_connection_only(run_broker):
    broker = run_broker(FEW)
    with Admin(broker.address) as admin, Producer(broker.address) as producer:
        assert admin.create_topics([NewTopic('t', 1, 1)])['t'] is None
        write(producer, b'before')
        unlimited = limit_memory(broker)
        with closing(socket.create_connection(address_of(broker))) as peer:
            assert is_cut_off_by(peer, LARGE_BYTES)
        write(producer, b'during')
        resource.prlimit(broker.pid, resource.RLIMIT_AS, unlimited)
        with closing(socket.create_connection(address_of(broker))) as peer:
            assert not is_cut_off_by(peer, LARGE_BYTES)
        write(producer, b'after')
        assert [record.value for _, record in committed_records(admin, 't')] == [b'before', b'during', b'after']
    assert lines_with(broker, f'closed: the system has no memory for {LARGE_BYTES + 4} bytes of a request')
    broker.stop()


def limit_memory(broker):
    """Limit the broker to a little more memory than it has now. Return the previous limits."""
    with open(f'/proc/{broker.pid}/statm') as file:
        present_bytes = int(file.read().split()[0]) * resource.getpagesize()
    _, hard = resource.prlimit(broker.pid, resource.RLIMIT_AS)
    return resource.prlimit(broker.pid, resource.RLIMIT_AS, (present_bytes + ROOM_BYTES, hard))


def is_cut_off_by(peer, size):
    """Begin a frame of this size, and send up to half of it. Return whether the broker closes the connection."""
    try:
        peer.sendall(size.to_bytes(4, 'big'))
        for _ in range(size // 2 // SHARE_OF_A_PART):
            peer.sendall(bytes(SHARE_OF_A_PART))
        peer.settimeout(0.0)
        return peer.recv(1) == b''
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def write(producer, value):
    producer.send('t', value)
    producer.flush()
