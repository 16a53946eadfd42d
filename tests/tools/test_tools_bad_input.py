"""Every command reports bad input in one line with the right exit code, never with a traceback."""
import contextlib
import errno
import os
import signal
import ssl
import subprocess
import threading

import pytest
from support.brokers.scripted_broker import ScriptedBroker, running, serving
from support.clients.certificates import make_certificates
from support.disk.handwritten_directory import HandwrittenDirectory
from support.runner.command_runner import ROOT, command_line, run_command, run_in_process
from support.runner.free_ports import free_port

from kbroker.log.fs import ReadOnlyFileSystem
from kbroker.protocol import messages
from kbroker.record.batch import encode_batch

LIMIT_S = 120
ORDERS = ('orders', 0)
ASKING = {
    'topics': ['--list'], 'groups': ['--list'], 'configs': ['--describe', '--entity-type', 'brokers'],
    'produce': ['--topic', 'orders'], 'consume': ['--topic', 'orders', '--from-beginning'], 'transactions': ['list'],
    'txn-state': ['--from-beginning'],
}
"""Every command that sends requests to a broker, with arguments."""
OFFLINE = {name: arguments for name, arguments in ASKING.items() if name != 'produce'} | {
    'configs': ['--describe', '--entity-type', 'topics'], 'transactions': ['why-stuck', 'orders']}


def ask(name, port, arguments):
    arguments = ['--bootstrap-server', f'127.0.0.1:{port}', *arguments]
    # The producer polls the descriptor of its input, so it needs a process.
    return run_command(name, *arguments, stdin='line\n') if name == 'produce' else run_in_process(name, *arguments)


def assert_one_line(done, *words, code=1):
    assert (done.returncode, done.stdout) == (code, ''), done
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert all(word in done.stderr for word in words), done.stderr


# ---- servers that answer at the port of a broker

def answering(data):
    def handle(connection):
        connection.recv(1000)
        connection.sendall(data)
    return serving(handle)


PEERS = {
    'cannot be reached (Connection refused): is a broker running there?':
        lambda: contextlib.nullcontext(free_port()),
    'answers with HTTP: that is not the port of a Kafka broker':
        lambda: answering(b'HTTP/1.1 400 Bad Request\r\n\r\n'),
    'closed the connection instead of answering ApiVersions': lambda: answering(b''),
    'which is not the size of a Kafka response': lambda: answering(b'SSH-2.0-OpenSSH'),
}


@pytest.mark.parametrize('words', PEERS)
def test_a_port_without_a_broker_is_reported(words):
    for name, arguments in ASKING.items():
        with PEERS[words]() as port:
            assert_one_line(ask(name, port, arguments), f':{port}', words)


def test_a_tls_port_is_reported_with_the_setting_that_it_wants(tmp_path):
    """A TLS server answers plain text with an alert, which may be lost. The error message names TLS with and without
    the alert."""
    make_certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / 'server.pem')

    def handle(connection):
        with contextlib.suppress(ssl.SSLError):
            context.wrap_socket(connection, server_side=True)

    for name, arguments in ASKING.items():
        with serving(handle) as port:
            assert_one_line(ask(name, port, arguments),
                            f':{port}', 'security.protocol')


LACKING = [
    ('Metadata', 'topics', ['--list']), ('CreateTopics', 'topics', ['--create', '--topic', 'new']),
    ('CreatePartitions', 'topics', ['--alter', '--topic', 'orders', '--partitions', '2']),
    ('DeleteTopics', 'topics', ['--delete', '--topic', 'orders']),
    ('DescribeConfigs', 'topics', ['--describe', '--topic', 'orders']),
    ('ListGroups', 'groups', ['--list']), ('FindCoordinator', 'groups', ['--describe', '--group', 'g']),
    ('FindCoordinator', 'groups', ['--delete', '--group', 'g']),
    ('DescribeConfigs', 'configs', ['--describe', '--topic', 'orders']),
    ('IncrementalAlterConfigs', 'configs', ['--alter', '--topic', 'orders', '--add-config', 'retention.ms=5']),
    ('InitProducerId', 'produce', ['--topic', 'orders']),
    ('Produce', 'produce', ['--topic', 'orders', '--command-property', 'enable.idempotence=false']),
    ('ListOffsets', 'consume', ['--topic', 'orders']),
    ('Fetch', 'consume', ['--topic', 'orders', '--partition', '0', '--offset', '0']),
    ('JoinGroup', 'consume', ['--topic', 'orders', '--group', 'g']),
    ('ListOffsets', 'txn-state', ['--from-beginning']),
]


@pytest.mark.parametrize(('lacking', 'name', 'arguments'), LACKING)
def test_a_broker_that_lacks_an_api_is_reported_with_its_name(lacking, name, arguments):
    broker = ScriptedBroker()
    broker.versions.pop(lacking, None)

    def metadata(request, respond=broker.metadata):
        if request.topics is None:
            request.topics = [messages.MetadataRequest.MetadataRequestTopic(name=topic)
                              for topic in ('orders', '__transaction_state')]
        return respond(request)

    def coordinator(request):
        found = messages.FindCoordinatorResponse
        return found(coordinators=[found.Coordinator(key=key, node_id=1, host='127.0.0.1', port=broker.port)
                                   for key in request.coordinator_keys])

    broker.answers |= {'Metadata': metadata, 'FindCoordinator': coordinator}
    with running(broker):
        done = run_command(name, '--bootstrap-server', f'127.0.0.1:{broker.port}', *arguments, stdin='line\n')
    lines = [line for line in done.stderr.splitlines() if not line.startswith('Processed a total of 0')]
    assert (done.returncode, done.stdout, len(lines)) == (1, '', 1), done
    assert f'127.0.0.1:{broker.port} does not serve {lacking}' in lines[0]


# ---- directories and files

@pytest.fixture
def directory(tmp_path):
    """Return a directory with a partition of 200 kB, which is more than a pipe can hold, and with a transaction."""
    stage = HandwrittenDirectory(tmp_path / 'data')
    stage.row('tx', 'Ongoing', (7, 3), 1, start=1, partitions=[ORDERS])
    stage.append(ORDERS, encode_batch([(stage.time(2), b'key', b'value' * 1000)] * 40))
    stage.data(ORDERS, (7, 3), 1)
    stage.group('readers', ORDERS, 0)
    return stage.write()


CHECK_AND_DUMP = {'check': [], 'dump-log': []}


def offline(name, arguments, place):
    """Return the command line of a command for a directory. `check` and `dump-log` get the directory as an argument,
    not as an option."""
    return (name, *arguments, *([place] if name in CHECK_AND_DUMP else ['--data-dir', place]))


EVERY_READER = [(name, arguments) for name, arguments in (OFFLINE | CHECK_AND_DUMP).items()]


@pytest.mark.parametrize(('name', 'arguments'), EVERY_READER)
def test_a_place_that_is_not_there_or_no_log_directory_is_reported(name, arguments, tmp_path):
    (tmp_path / 'file').write_text('notes')
    for place in (tmp_path / '7.log', tmp_path / 'file'):
        done = run_command(*offline(name, arguments, place))
        assert str(place) in done.stderr.splitlines()[-1] and 'Traceback' not in done.stderr
        # Like Kafka's tool, dump-log skips a file with an unknown suffix.
        assert done.returncode == (2 if name != 'dump-log' else 0 if place.exists() else 1), done
    (tmp_path / 'empty').mkdir()
    assert_one_line(run_command(*offline(name, arguments, tmp_path / 'empty')), str(tmp_path / 'empty'))


@pytest.mark.parametrize(('name', 'arguments'), OFFLINE.items())
def test_a_directory_that_may_not_be_read_is_reported(name, arguments, directory, monkeypatch):
    def refuse(self, path):
        raise PermissionError(errno.EACCES, 'Permission denied', path)

    monkeypatch.setattr(ReadOnlyFileSystem, 'listdir', refuse)
    assert_one_line(run_in_process(*offline(name, arguments, directory)), f'{directory}: Permission denied')


@pytest.mark.parametrize(('name', 'arguments'), EVERY_READER)
@pytest.mark.parametrize('size', [0, 7, 100])
def test_files_cut_anywhere_end_in_an_answer_or_in_one_line(name, arguments, size, directory):
    for path in directory.glob('*/*'):
        if path.is_file():
            os.truncate(path, min(size, path.stat().st_size))
    done = run_command(*offline(name, arguments, directory))
    assert done.returncode in (0, 1)
    assert 'Traceback' not in done.stderr
    assert name in CHECK_AND_DUMP or done.returncode == 0 or done.stderr.splitlines()[-1].startswith('kbroker-')


# ---- timeouts

def begun(name, *arguments, **streams):
    return subprocess.Popen(command_line(name, *arguments), cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
                            text=True, **streams)


def test_ctrl_c_ends_a_command_that_waits_for_a_broker_at_once():
    asked = threading.Semaphore(0)

    def silent(connection):
        connection.recv(1000)
        asked.release()
        connection.recv(1)

    with serving(silent) as port, contextlib.ExitStack() as stack:
        processes = [stack.enter_context(begun(name, *arguments, '--bootstrap-server', f'127.0.0.1:{port}',
                                               stdout=subprocess.PIPE)) for name, arguments in ASKING.items()
                     if name not in ('produce', 'transactions')]
        for _ in processes:
            assert asked.acquire(timeout=LIMIT_S)
        for process in processes:
            process.send_signal(signal.SIGINT)
        for process in processes:
            stdout, stderr = process.communicate(timeout=LIMIT_S)
            assert (process.returncode, stdout, stderr) == (130, '', ''), process.args


def test_a_reader_that_is_gone_ends_every_command_quietly(directory):
    processes = []
    for name, arguments in EVERY_READER:
        reader, writer = os.pipe()
        os.close(reader)
        processes.append(begun(*offline(name, arguments, directory), stdout=writer))
        os.close(writer)
    for process in processes:
        _, stderr = process.communicate(timeout=LIMIT_S)
        said = [line for line in stderr.splitlines() if not line.startswith('Processed a total of')]
        assert (process.returncode, said) == (141, []), process.args
