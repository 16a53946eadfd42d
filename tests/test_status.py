"""`kbroker status` asks a running broker for its state."""
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys

import pytest
from support.brokers.broker_process import ROOT, BrokerProcess
from support.brokers.in_process_broker import InProcessBroker
from support.clients.tv1_producer import InProcessPeer, SocketPeer, Tv1Producer, create_topics

from kbroker.base.clock import Clock, Timers
from kbroker.base.long_work import LongWork, run_to_end
from kbroker.daemon.report import certificates_of, numbers_of
from kbroker.daemon.status import (
    MOST_PEERS,
    MOST_QUESTION_BYTES,
    StatusSocket,
    lines_of,
    lines_of_certificates,
    lines_of_rates,
    read_status,
    socket_name,
)
from kbroker.network.reactor import Reactor
from kbroker.security.certificates import Certificate

ANSWER_BYTES = 5_000_000


def run_status(*arguments):
    return subprocess.run([sys.executable, '-m', 'kbroker', 'status', *map(str, arguments)], cwd=ROOT,
                          capture_output=True, text=True, check=False)


@pytest.fixture
def directory(tmp_path):
    """A data directory whose path is longer than the address of a socket may be."""
    return tmp_path / ('a' * 60) / ('b' * 60)


@pytest.fixture
def broker(directory):
    directory.parent.mkdir()
    with BrokerProcess(directory) as broker:
        yield broker


def test_a_running_broker_prints_what_it_holds_and_the_bounds(broker, directory):
    with socket.create_connection(broker.address.rsplit(':', 1)):
        printed = run_status('--data-dir', directory)
        report = json.loads(run_status('--data-dir', directory, '--json').stdout)
    assert (printed.returncode, printed.stderr) == (0, '')
    assert f'process {broker.pid}' in printed.stdout
    assert report['address'] == broker.address
    assert report['directory'] == str(directory)
    assert 1 << 20 < report['resident_bytes'] <= 1 << 30
    assert report['failure'] is None
    assert report['refused_stale_requests'] == 0 and '\nlate        0 requests refused\n' in printed.stdout
    assert set(report['dead_letters'].values()) == {0} and '\ndead ' not in printed.stdout
    report['dead_letters'] = {'waiting': 4, 'written': 1_000, 'refused': 3, 'failures': 2}
    assert 'dead        4 letters wait, 1,000 written, 3 refused, 2 attempts failed' in set(lines_of(report))
    lines = {line['what']: line for line in report['ledger']}
    assert lines['connections']['now'] == 1
    assert lines['processes that ask for the status'] == {
        'what': 'processes that ask for the status', 'unit': '', 'now': 1, 'bound': MOST_PEERS,
        'limit': 'the oldest gives way'}
    assert all(line['bound'] is None or 0 <= line['now'] <= line['bound'] for line in lines.values())
    for what in lines:
        assert f'\n{what} ' in printed.stdout


ASK_AS_NOBODY = """
import os, sys
from kbroker.daemon.status import read_status
os.setuid(65534)
try:
    read_status(sys.argv[1])
except OSError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason='only root can become another user')
def test_only_the_brokers_user_and_root_may_ask(broker, directory, tmp_path):
    os.chmod(tmp_path, 0o755)
    asked = subprocess.run([sys.executable, '-c', ASK_AS_NOBODY, directory], cwd=ROOT, capture_output=True, text=True,
                           check=False)
    assert asked.stdout in (f'the broker on {directory} only answers its own user and root\n',
                            f"[Errno 13] Permission denied: '{directory}'\n"), asked


def test_the_broker_closes_the_connection_of_another_user(status_socket, tmp_path, monkeypatch):
    reactor, asked = status_socket
    monkeypatch.setattr(os, 'geteuid', lambda: 12345)
    monkeypatch.setattr('kbroker.daemon.status.user_of_peer', lambda connection: 54321)
    with connected(tmp_path) as peer:
        peer.setblocking(False)
        reactor.run_once()
        assert peer.recv(1) == b'' and len(asked) == 0


def test_an_answer_of_another_user_is_not_believed(status_socket, tmp_path, monkeypatch):
    """The status socket has an abstract name, which any user can bind before the broker does."""
    monkeypatch.setattr('kbroker.daemon.status.user_of_peer', lambda connection: 54321)
    with pytest.raises(OSError, match='found a process of user 54321 at the status socket of'):
        read_status(str(tmp_path))


def test_a_name_that_another_process_has_taken_costs_a_warning(tmp_path, caplog):
    clock = Clock()
    reactor = Reactor(clock, Timers(clock))
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(socket_name(str(tmp_path)))
        StatusSocket(reactor, LongWork(Timers(clock)), str(tmp_path), lambda question: iter(())).close()
    reactor.close()
    assert f'the status socket of {tmp_path}: Address already in use' in caplog.text


def test_without_a_broker_the_command_says_so(broker, directory):
    broker.kill9()
    expected = f'kbroker: no broker runs on {directory}\n'
    killed = run_status('--data-dir', directory)
    assert (killed.returncode, killed.stderr) == (1, expected)
    broker.start()
    assert read_status(str(directory))['pid'] == broker.pid
    broker.stop()
    assert run_status('--data-dir', directory).stderr == expected
    assert run_status('--data-dir', directory / 'none').stderr == f'kbroker: no broker runs on {directory / "none"}\n'


def test_a_broker_without_a_socket_in_this_network_namespace_is_no_missing_broker(broker, directory, monkeypatch):
    monkeypatch.setattr('kbroker.daemon.status.socket_name', lambda directory: '\0kbroker-status-elsewhere')
    with pytest.raises(OSError, match=f'a broker runs on {directory}, and its status socket cannot be reached from'):
        read_status(str(directory))


def entries_of_other_kinds(directory):
    """Return the paths below the directory that are neither regular files nor directories."""
    return [path for path in directory.rglob('*') if path.is_symlink() or not (path.is_file() or path.is_dir())]


def test_a_directory_can_be_copied_while_a_broker_runs(broker, directory, tmp_path):
    """In an earlier version, a socket in the directory made `shutil.copytree` fail."""
    assert entries_of_other_kinds(directory) == []
    shutil.copytree(directory, tmp_path / 'copy')


def test_a_kill_leaves_only_files_and_a_copy_is_served_beside_the_original(broker, directory, tmp_path):
    """In an earlier version, a socket remained in the directory after a kill. The abstract name of the socket follows
    the inode of the directory, so the broker on a copy has a socket of its own.
    """
    broker.kill9()
    assert entries_of_other_kinds(directory) == []
    shutil.copytree(directory, tmp_path / 'copy')
    broker.start()
    with BrokerProcess(tmp_path / 'copy') as other:
        assert read_status(str(directory))['pid'] == broker.pid
        assert read_status(str(tmp_path / 'copy'))['pid'] == other.pid


def test_a_peer_that_connects_and_leaves_does_no_harm(broker, directory):
    for _ in range(20):
        connected(directory).close()
    assert read_status(str(directory))['pid'] == broker.pid


def connected(directory):
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(socket_name(str(directory)))
    return peer


def test_more_silent_peers_than_the_bound_do_not_keep_others_from_asking(broker, directory):
    silent = [connected(directory) for _ in range(MOST_PEERS + 1)]
    assert silent[0].recv(1) == b''     # the oldest one gave way
    assert read_status(str(directory))['pid'] == broker.pid
    for peer in silent:
        peer.close()


@pytest.mark.parametrize('question', [b'{', b'[]', b'7', b'\xff', b'[' * 60_000])
def test_a_question_that_is_no_object_is_not_answered(broker, directory, question):
    with connected(directory) as peer:
        peer.sendall(question)
        peer.shutdown(socket.SHUT_WR)
        assert peer.recv(1) == b''
    assert read_status(str(directory))['pid'] == broker.pid


def test_a_question_that_is_too_long_is_not_read_to_its_end(broker, directory):
    with connected(directory) as peer, pytest.raises((BrokenPipeError, ConnectionResetError)):
        while True:
            peer.sendall(b' ' * MOST_QUESTION_BYTES)
    assert read_status(str(directory))['pid'] == broker.pid


@pytest.fixture
def status_socket(tmp_path):
    """A reactor and a status socket in `tmp_path`, whose answer is larger than the buffer of any socket."""
    def answer(question):
        yield
        return question | {'long': 'x' * ANSWER_BYTES}

    clock = Clock()
    timers = Timers(clock)
    reactor = Reactor(clock, timers)
    status_socket = StatusSocket(reactor, LongWork(timers), str(tmp_path), answer)
    yield reactor, status_socket
    status_socket.close()
    reactor.close()


def test_an_answer_without_room_in_the_socket_follows_as_the_peer_reads(status_socket, tmp_path):
    reactor, asked = status_socket
    answer = bytearray()
    with connected(tmp_path) as peer:
        peer.sendall(b'{"a": 1}')
        peer.shutdown(socket.SHUT_WR)
        peer.setblocking(False)
        while not answer.endswith(b'}'):
            reactor.run_once()
            with contextlib.suppress(BlockingIOError):
                answer += peer.recv(1 << 16)
        assert json.loads(answer) == {'a': 1, 'long': 'x' * ANSWER_BYTES}
        assert len(asked) == 0 and peer.recv(1) == b''


def test_a_peer_that_closes_amid_its_answer_is_forgotten(status_socket, tmp_path):
    reactor, asked = status_socket
    with connected(tmp_path) as peer:
        peer.shutdown(socket.SHUT_WR)
        peer.setblocking(False)
        while True:
            reactor.run_once()
            with contextlib.suppress(BlockingIOError):
                if peer.recv(1):
                    break
        assert len(asked) == 1
    while len(asked):
        reactor.run_once()


def test_a_question_for_holds_is_answered_with_the_cluster(broker, directory):
    assert read_status(str(directory), {'holds': {'topic': 'orders'}}) == {
        'cluster_id': meta_properties(directory)['cluster.id'], 'records': 0, 'ranges': [], 'left_out': 0}
    for odd in (None, [], 7, 'orders'):
        assert read_status(str(directory), {'holds': odd})['pid'] == broker.pid
    assert read_status(str(directory), {'holds': {'topic': [], 'partition': {}, 'x': 1}})['records'] == 0


def meta_properties(directory):
    return dict(line.split('=', 1) for line in (directory / 'meta.properties').read_text().splitlines() if '=' in line)


def held_and_committed(peer):
    """Write a committed transaction, an open one that holds another one, and the offset of a group."""
    create_topics(peer, orders=3, audit=1)
    done, first, second = (Tv1Producer(peer, name) for name in ('done', 'first', 'second'))
    done.add('audit', 0)
    done.write('audit', 0)
    done.end(True)
    first.add('orders', 0, 1)
    first.write('orders', 0)
    second.add('orders', 0)
    second.write('orders', 0)
    peer.ask('FindCoordinator', key_type=0, coordinator_keys=['workers'])
    peer.ask('OffsetCommit', 9, group_id='workers', generation_id_or_member_epoch=-1, topics=[
        dict(name='orders', partitions=[dict(partition_index=0, committed_offset=0)])])


def test_open_transactions_lags_and_rates_are_shown_and_watched(broker, directory):
    with SocketPeer(broker.address) as peer:
        held_and_committed(peer)
        printed = run_status('--data-dir', directory).stdout.splitlines()
        report = json.loads(run_status('--data-dir', directory, '--json').stdout)
        assert report['transactions']['open'] == 2
        assert [(row['transactional_id'], row['held_offsets'], row['partitions'])
                for row in report['transactions']['oldest']] == [
            ('first', 2, ['orders-0', 'orders-1']), ('second', 0, ['orders-0'])]
        assert report['transactions']['held'] == [{
            'topic': 'orders', 'partition': 0, 'distance': 2, 'last_stable_offset': 0, 'high_watermark': 2,
            'transactional_id': 'first', 'producer_id': report['transactions']['oldest'][0]['producer_id']}]
        lag, = report['groups']['lags']
        assert (lag['group'], lag['lag'], lag['stable_lag']) == ('workers', 2, 0)
        assert report['counters']['transactions_committed'] == 1 and report['counters']['produced_records'] == 3
        assert report['counters']['requests'] > 10
        assert 0 < report['disk']['free_bytes'] <= report['disk']['size_bytes']
        labels = {line.split('  ')[0] for line in printed}
        assert {'disk', 'rates', 'open', 'held', 'groups', 'topics', 'late'} < labels and 'HANGING' not in labels
        assert 'first                     Ongoing' in '\n'.join(printed)
    watching = subprocess.Popen([sys.executable, '-m', 'kbroker', 'status', '--data-dir', directory, '--json',
                                 '--watch', '0.1'], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with watching:
        first, second = (json.loads(watching.stdout.readline()) for _ in range(2))
        assert second['counters']['produced_records'] == 3 and second['uptime_ms'] > first['uptime_ms']
        assert 'since the start' in rates_of(first)
        assert 'records     0.0/s in (0 B/s), 0.0/s out (0 B/s)' in rates_of(second, first)
        assert 'in the last ' in rates_of(second, first)
        assert 'since the start' in rates_of(second, first | {'pid': 1})      # the broker was restarted
        broker.stop()
        assert watching.wait(30) == 1
        assert watching.stderr.read() in (f'kbroker: no broker runs on {directory}\n',
                                          f'kbroker: the broker on {directory} ended while it answered\n')


def test_the_certificate_that_expires_first_and_all_expired_ones_are_shown():
    report = certificates_of({'SSL': [certificate('CN=broker', 86_400), certificate('CN=ca', 900_000)],
                              'REPLICATION': [certificate('CN=old', -3_600), certificate('CN=older', -7_200),
                                              certificate('CN=broker', 86_400)]})
    assert [row['subject'] for row in report] == ['CN=older', 'CN=old', 'CN=broker', 'CN=ca']
    assert list(lines_of_certificates(report, 0)) == [
        'CERTIFICATE has expired 2 h ago: CN=older of listener REPLICATION, ssl.keystore.location: a.pem',
        'CERTIFICATE has expired 1 h ago: CN=old of listener REPLICATION, ssl.keystore.location: a.pem']
    assert list(lines_of_certificates(report[2:], 0)) == [
        'certificate expires in 1 d: CN=broker of listener REPLICATION, ssl.keystore.location: a.pem']


def certificate(subject, not_after_s):
    return Certificate('ssl.keystore.location', 'a.pem', 'certificate', subject, 0, not_after_s)


def rates_of(report, before=None):
    return '\n'.join(lines_of_rates(report, before))


def test_names_of_clients_neither_fill_nor_forge_a_report(tmp_path):
    """A report has at most 64 KiB, however long and odd the names of clients are."""
    with InProcessBroker(tmp_path / 'data') as broker:
        peer = InProcessPeer(broker)
        create_topics(peer, **{f'{"long" * 50}-{number}': 10 for number in range(3)})
        for number in range(8):
            producer = Tv1Producer(peer, f'{number}\u202e\x1b[31m' + '\U0001f3ed' * 5_000)
            for topic in broker.topics.topics():
                if not topic.is_internal:
                    producer.add(topic.name, *range(10))
                    producer.write(topic.name, number)
        report = run_to_end(numbers_of(broker, Traffic(), {}))
        assert len(report['transactions']['oldest']) == len(report['transactions']['held']) == 5
        assert len(json.dumps(report)) < 25_000
        whole = {**report, 'version': '1', 'pid': 1, 'uptime_s': 1, 'uptime_ms': 1000, 'address': '', 'directory': '',
                 'durability': 'disk', 'resident_bytes': 0, 'most_resident_bytes': 0, 'failure': None,
                 'refused_stale_requests': 0, 'ledger': []}
        lines = list(lines_of(whole))
        assert all(line.isprintable() for line in lines)
        assert any(line.startswith('0\\u202e\\x1b[31m') and 'more characters' in line for line in lines)


class Traffic:
    """The traffic of a server without connections."""

    def __init__(self):
        self.traffic = {}

    def sent_times(self):
        return (), [0], 0.0
