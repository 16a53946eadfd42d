"""`kbroker status` asks a running broker for its state."""
import contextlib
import json
import os
import socket
import stat
import subprocess
import sys

import pytest
from support.broker_process import ROOT, BrokerProcess

from kbroker.clock import Clock, Timers
from kbroker.long_work import LongWork
from kbroker.network.reactor import Reactor
from kbroker.status import (
    MOST_PEERS,
    MOST_QUESTION_BYTES,
    SOCKET_NAME,
    StatusSocket,
    duration,
    read_status,
    size,
)

ANSWER_BYTES = 5_000_000


def run_status(*arguments):
    return subprocess.run([sys.executable, '-m', 'kbroker', 'status', *map(str, arguments)], cwd=ROOT,
                          capture_output=True, text=True, check=False)


@pytest.fixture
def directory(tmp_path):
    """A path that is too long for a socket address."""
    return tmp_path / ('a' * 60) / ('b' * 60)


@pytest.fixture
def broker(directory):
    directory.parent.mkdir()
    broker = BrokerProcess(directory)
    broker.start()
    yield broker
    broker.kill9()


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
    lines = {line['what']: line for line in report['ledger']}
    assert lines['connections']['now'] == 1
    assert lines['processes that ask for the status'] == {
        'what': 'processes that ask for the status', 'unit': '', 'now': 1, 'bound': MOST_PEERS,
        'limit': 'the oldest gives way'}
    assert all(line['bound'] is None or 0 <= line['now'] <= line['bound'] for line in lines.values())
    for what in lines:
        assert f'\n{what} ' in printed.stdout


def test_only_the_brokers_user_may_ask(broker, directory):
    mode = os.stat(directory / SOCKET_NAME).st_mode
    assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o600)


def test_without_a_broker_the_command_says_so(broker, directory):
    broker.kill9()
    expected = f'kbroker: no broker runs on {directory}\n'
    killed = run_status('--data-dir', directory)
    assert (killed.returncode, killed.stderr) == (1, expected)
    broker.start()      # in spite of the socket that the killed broker left
    assert read_status(str(directory))['pid'] == broker.pid
    broker.stop()
    assert not (directory / SOCKET_NAME).exists()
    assert run_status('--data-dir', directory).stderr == expected
    assert run_status('--data-dir', directory / 'none').stderr == f'kbroker: no broker runs on {directory / "none"}\n'


def test_a_peer_that_connects_and_leaves_does_no_harm(broker, directory):
    for _ in range(20):
        with socket.socket(socket.AF_UNIX) as peer:
            descriptor = os.open(directory, os.O_RDONLY)
            peer.connect(f'/proc/self/fd/{descriptor}/{SOCKET_NAME}')
            os.close(descriptor)
    assert read_status(str(directory))['pid'] == broker.pid


def connected(directory):
    peer = socket.socket(socket.AF_UNIX)
    descriptor = os.open(directory, os.O_RDONLY)
    peer.connect(f'/proc/self/fd/{descriptor}/{SOCKET_NAME}')
    os.close(descriptor)
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


def test_sizes_and_times_are_written_for_people():
    assert [size(number) for number in (0, 1023, 1024, 64 << 20, 3 << 29)] == [
        '0 B', '1023 B', '1.0 KiB', '64.0 MiB', '1.5 GiB']
    assert [duration(seconds) for seconds in (0, 59, 60, 3 * 3600 + 120 + 1, 10 * 86400)] == [
        '0 s', '59 s', '1 min', '3 h 2 min', '10 d']
