"""Metrics of connections, the disk, the loop, the process and memory: they show what the rooms have counted."""
import os
import re
import resource
import socket
from collections import Counter
from types import SimpleNamespace

import pytest
from support.brokers.in_process_broker import InProcessBroker
from support.clients.socket_peers import CallingServer, commons_for, echo
from support.messages.message_builder import batch_of

from kbroker.apis.serving.client_software import MOST_CHARACTERS, MOST_KINDS, ClientSoftware
from kbroker.base.clock import ManualClock, Timers
from kbroker.base.ledger import Line
from kbroker.base.turn_watch import TurnWatch
from kbroker.log.fs import File
from kbroker.metrics import connections, disk, loop, memory, requests, traffic
from kbroker.network.admission import ListenerLimits
from kbroker.network.limits import Limits
from kbroker.network.reactor import Reactor
from kbroker.network.server import Endpoint, Server
from kbroker.network.sync_threads import SyncThreads
from kbroker.protocol.messages import ApiVersionsRequest, CreateTopicsRequest, ProduceRequest
from kbroker.security.acl_codes import Operation, ResourceType
from kbroker.security.principal import parse_principal
from kbroker.security.quotas import (
    CONNECTION_CREATION_RATE,
    CONTROLLER_MUTATION_RATE,
    PRODUCER_BYTE_RATE,
    USER,
    ClientQuotas,
    Window,
)
from kbroker.security.session import Session

HERE = '127.0.0.1'
ONE, TWO = 'ONE', 'TWO'
UNITS = {'': '', 'seconds': '_seconds', 'bytes': '_bytes'}


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def reactor(clock):
    found = Reactor(clock, Timers(clock))
    yield found
    found.close()


@pytest.fixture
def quotas(clock):
    return ClientQuotas(clock, Window(), Window())


@pytest.fixture
def server(reactor, quotas):
    server = Server(reactor, [Endpoint(HERE, 0, name) for name in (ONE, TWO)], CallingServer(echo),
                    Limits(max_request_bytes=1 << 20, max_connections=4, max_connections_per_ip=3), quotas=quotas)
    yield server
    server.drain(0, lambda: None)
    for connection in list(server.connections.values()):
        connection.close('the test ends')


@pytest.fixture
def idle_server():
    """Return a server without connections, as far as the collector reads it."""
    return SimpleNamespace(admission=SimpleNamespace(open_connections=list, accepted=Counter()), refusals=Counter(),
                           traffic=SimpleNamespace(closed=0))


NO_LOGINS = SimpleNamespace(logins=Counter(), failures=Counter())


def found(collector):
    return {(metric.name, *labels): value for metric, labels, value in filter(None, collector)}


def create_topics(*names):
    return CreateTopicsRequest(timeout_ms=1000, topics=[
        CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names])


def produce(clock, topic='t'):
    batch = batch_of(clock.wall_ms(), b'value')
    return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[ProduceRequest.TopicProduceData(
        name=topic, partition_data=[ProduceRequest.PartitionProduceData(index=0, records=batch)])]), len(batch)


def test_each_metric_has_a_unique_name_with_its_unit():
    metrics = [metric for module in (connections, disk, loop, memory, requests, traffic) for metric in module.METRICS]
    assert len({metric.name for metric in metrics}) == len(metrics)
    for metric in metrics:
        assert re.fullmatch('kbroker_[a-z_]+', metric.name) and not metric.name.endswith('_total')
        assert metric.name.endswith(UNITS[metric.unit]), metric
        assert metric.help.endswith('.') and bool(metric.labels) == (metric.series != '1'), metric


def test_connections_and_refusals_count_by_listener_and_reason(server, reactor, quotas):
    clients = []

    def dial(listener):
        clients.append(socket.create_connection(server.addresses[listener], timeout=180))
        for _ in range(4):
            reactor.run_once()

    software = ClientSoftware()
    server.admission.listeners = {TWO: ListenerLimits(max_connections=1)}
    for listener in (0, 0, 1):
        dial(listener)
    dial(1)
    dial(0)                     # the address has three connections
    server.limit(2, 9)
    dial(0)
    server.limit(9, 9)
    quotas.put([('ip', HERE)], CONNECTION_CREATION_RATE, 1e-3)
    dial(0)
    dial(0)
    named = next(iter(server.connections.values()))
    software.note(named, 'apache-kafka-java', '4.3.0')
    samples = found(connections.collect(server, software, NO_LOGINS, None, quotas))
    assert samples['kbroker_connections', ONE, 'apache-kafka-java', '4.3.0'] == 1
    assert samples['kbroker_connections', ONE, 'unknown', 'unknown'] == 1
    assert samples['kbroker_connections_accepted', ONE] == 2
    assert samples['kbroker_connections', TWO, 'unknown', 'unknown'] == 1
    refused = {key[1]: value for key, value in samples.items() if key[0] == 'kbroker_connections_refused'}
    assert refused['listener'] == refused['address'] == refused['broker'] == 1
    assert refused['quota'] == samples['kbroker_quota_throttles', CONNECTION_CREATION_RATE] == 2
    for client in clients:
        client.close()
    for _ in range(4):
        reactor.run_once()
    assert found(connections.collect(server, software, NO_LOGINS, None, quotas))['kbroker_connections_closed',] == 3


def test_the_names_of_software_are_bounded():
    software = ClientSoftware()

    def note(number, name):
        software.note(SimpleNamespace(connection_id=number, listener_name=ONE), name, '1')

    for number in range(MOST_KINDS + 50):
        note(number, f'client-{number}')
    note(1000, 'x' * (MOST_CHARACTERS + 1))
    counts = dict(software.counts())
    assert len(counts) == MOST_KINDS + 1 and counts[ONE, 'other', 'other'] == 51
    note(1000, 'client-0')      # the client names itself again
    assert dict(software.counts())[ONE, 'client-0', '1'] == 2
    for number in [*range(MOST_KINDS + 50), 1000]:
        software.connection_closed(number)
    assert software.counts() == []


def test_a_client_names_its_software_in_api_versions(tmp_path, idle_server):
    with InProcessBroker(tmp_path) as broker:
        connection = broker.begin(ApiVersionsRequest(client_software_name='sarama', client_software_version='1.2'), 3)
        broker.begin(ApiVersionsRequest(client_software_name='no name', client_software_version='1'), 3)
        broker.begin(ApiVersionsRequest(), 2)

        def samples():
            return found(connections.collect(idle_server, broker.client_software, NO_LOGINS, None, broker.quotas))

        assert samples() == {('kbroker_connections', 'PLAINTEXT', 'sarama', '1.2'): 1,
                             ('kbroker_connections_closed',): 0}
        broker.disconnect(connection)
        assert samples() == {('kbroker_connections_closed',): 0}


def test_denials_count_by_operation_and_throttles_by_quota(tmp_path, idle_server):
    settings = {'authorizer.class.name': 'StandardAuthorizer', 'super.users': 'User:root'}
    with InProcessBroker(tmp_path, settings) as broker:
        def client(name):
            principal = parse_principal(f'User:{name}')
            return broker.connect(Session(principal, broker.authorizer.access_of(principal, HERE)))

        broker.begin(create_topics('t'), 7, client('root'))
        broker.begin(produce(broker.clock)[0], 9, client('alice'))
        access = client('alice').session.access
        access.may(Operation.DESCRIBE, ResourceType.TOPIC, 't', quiet=True)
        broker.quotas.put([(USER, 'root')], PRODUCER_BYTE_RATE, 1)
        broker.begin(produce(broker.clock)[0], 9, client('root'))
        broker.quotas.put([(USER, 'root')], CONTROLLER_MUTATION_RATE, 0.01)
        for name in ('one', 'two', 'three'):
            broker.begin(create_topics(name), 7, client('root'))
        samples = found(connections.collect(idle_server, broker.client_software, NO_LOGINS, broker.authorizer,
                                            broker.quotas))
    assert {key[1]: value for key, value in samples.items() if 'denials' in key[0]} == {'WRITE': 1}
    assert samples['kbroker_quota_throttles', PRODUCER_BYTE_RATE] == 1
    assert samples['kbroker_quota_throttles', CONTROLLER_MUTATION_RATE] == 2


def test_syncs_and_their_failures_count(tmp_path, reactor):
    threads = SyncThreads(reactor, 1)
    results = []
    files = [File(str(tmp_path / name), True) for name in ('one', 'two')]
    broken = File(str(tmp_path / 'broken'), True)
    reader, writer = os.pipe()
    os.dup2(writer, broken.fileno())        # a pipe cannot be synced
    threads.sync(files, results.append)
    threads.sync([broken, files[0]], results.append)
    while len(results) < 2:
        reactor.run_once(timeout_ms=60_000)
    threads.close()
    os.close(reader)
    os.close(writer)
    samples = found(disk.collect(threads, commons_for(reactor, echo), SimpleNamespace(topics=list)))
    assert sum(samples['kbroker_sync_seconds',].counts) == 2
    assert (samples['kbroker_synced_files',], samples['kbroker_sync_failures',]) == (2, 1)
    assert samples['kbroker_unsynced_bytes',] == samples['kbroker_page_cache_misses',] == 0


def test_bytes_count_as_unsynced_until_a_sync_that_covers_them_has_ended(tmp_path, reactor):
    syncs = []

    def sync(files, done):
        if syncs and syncs[0] == 'wait':
            syncs.append(done)
        else:
            for file in files:
                file.sync()
            done(None)

    threads = SimpleNamespace(sync_times=lambda: ((), [0], 0), files=0, failures=0)
    with InProcessBroker(tmp_path, sync=sync) as broker:
        def unsynced_bytes():
            return found(disk.collect(threads, commons_for(reactor, echo), broker.topics))['kbroker_unsynced_bytes',]

        broker.ask(create_topics('t'), 7)
        assert unsynced_bytes() == 0
        syncs.append('wait')
        request, size_bytes = produce(broker.clock)
        broker.begin(request, 9)
        broker.begin(request, 9)
        assert unsynced_bytes() == 2 * size_bytes
        syncs[1](None)      # began before the second append
        assert unsynced_bytes() == size_bytes
        broker.turn()
        syncs[2](None)
        assert unsynced_bytes() == 0
        syncs.clear()


def test_the_loop_and_the_process_are_measured():
    watch = TurnWatch()
    samples = found(loop.collect(watch))
    assert samples['kbroker_loop_turns',] == watch.turns == 0
    assert samples['kbroker_process_cpu_seconds',] > 0
    assert 1 << 20 < samples['kbroker_process_resident_memory_bytes',] <= samples[
        'kbroker_process_max_resident_memory_bytes',]
    assert samples['kbroker_process_max_fds',] == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    before = samples['kbroker_process_open_fds',]
    descriptors = [os.dup(0) for _ in range(10)]
    assert found(loop.collect(watch))['kbroker_process_open_fds',] == before + 10
    for descriptor in descriptors:
        os.close(descriptor)


def test_open_descriptors_are_listed_in_parts_on_a_kernel_that_does_not_count_them(monkeypatch):
    expected = found(loop.collect(TurnWatch()))['kbroker_process_open_fds',]
    monkeypatch.setattr(loop.os, 'stat', lambda path: SimpleNamespace(st_size=0))
    monkeypatch.setattr(loop, 'DESCRIPTORS_AT_ONCE', 3)
    samples = list(loop.collect(TurnWatch()))
    assert samples.count(None) == (expected + 1) // 3
    assert found(samples)['kbroker_process_open_fds',] == expected


def test_memory_has_the_lines_of_the_ledger_and_their_bounds():
    lines = [Line('frames', 'bytes', lambda: 5, lambda: 10, 'x'),
             Line('on the disk', 'bytes', lambda: 6, lambda: None, ''),
             Line('sessions', '', lambda: 7, lambda: 20, 'y')]
    assert found(memory.collect(lines)) == {
        ('kbroker_memory_held_bytes', 'frames'): 5, ('kbroker_memory_held_bytes', 'on the disk'): 6,
        ('kbroker_memory_bound_bytes', 'frames'): 10, ('kbroker_entries', 'sessions'): 7,
        ('kbroker_entries_bound', 'sessions'): 20}
