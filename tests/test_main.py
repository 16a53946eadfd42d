"""The command line calls the right functions of a broker. The broker of these tests only records the calls.

Covers KIP-900.
"""
import errno
import json
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import types
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner
from support.brokers.in_process_broker import InProcessBroker
from support.clients.certificates import certificate_between

from kbroker import __version__
from kbroker.base.clock import ManualClock, Timers
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.daemon import container, systemd
from kbroker.daemon.logs import JournalFormatter
from kbroker.daemon.main import main
from kbroker.metadata.features import RELEASES
from kbroker.network.reactor import Reactor
from kbroker.settings.config import Config
from kbroker.settings.properties import read_properties


class RecordingBroker:
    address = '127.0.0.1:9092'
    directory = '/data'
    fails_with: Exception | None = None
    made: 'list[RecordingBroker]' = []  # noqa: RUF012  (a fresh subclass for each test)

    def __init__(self, config, _controlled_clock=None, _controlling=None):
        self.config = config
        self.calls = []
        self.clock = ManualClock()
        self.timers = Timers(self.clock)
        self.reactor = Reactor(self.clock, self.timers)
        self.made.append(self)

    def start(self):
        self.calls.append('start')
        if self.fails_with:
            raise self.fails_with

    def run(self):
        self.clock.advance(5000)
        self.timers.run_due()
        os.kill(os.getpid(), signal.SIGTERM)
        self.reactor.run()
        self.alarm_s = signal.alarm(0)
        self.progress.end()
        self.calls.append('stopped')

    def reload(self):
        self.calls.append('reload')

    def stop(self, progress):
        self.progress = progress
        self.calls.append('stop')
        self.reactor.stop()


@pytest.fixture
def broker(monkeypatch):
    """The class that `serve` uses instead of the broker. The fixture restores signal handlers and logging after the
    test.
    """
    fresh = type('FreshBroker', (RecordingBroker,), {'made': []})
    monkeypatch.setitem(sys.modules, 'kbroker.daemon.broker', types.SimpleNamespace(Broker=fresh))
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    actions = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP,
                                                            signal.SIGALRM)}
    umask = os.umask(0o077)
    os.umask(umask)
    yield fresh
    os.umask(umask)
    for made in fresh.made:
        made.reactor.close()
    signal.alarm(0)
    for number, action in actions.items():
        signal.signal(number, action)
    root.handlers[:], root.level = handlers, level


def run(*arguments):
    return CliRunner().invoke(main, arguments)


def test_version():
    assert run('--version').output == f'kbroker {__version__}, Kafka protocol 4.4\n'


def test_serve_starts_says_that_it_is_ready_and_stops_on_a_signal(broker):
    result = run('serve', '--data-dir', '/data', '--listen', '127.0.0.1:9092')
    assert result.exit_code == 0
    assert 'ready on 127.0.0.1:9092, data in /data, durability disk' in result.stderr
    made, = broker.made
    assert made.calls == ['start', 'stop', 'stopped']
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, 'a second signal must end the process at once'
    assert made.alarm_s > 0, 'a shutdown must not last forever'


def test_variables_give_the_options_and_the_command_line_wins(broker, tmp_path, monkeypatch):
    settings = tmp_path / 'server.properties'
    settings.write_text('num.partitions=2\nlog.retention.hours=5\n')
    for name, value in {'CONFIG': str(settings), 'DATA_DIR': '/data', 'LISTEN': '0.0.0.0:9092', 'LOG_JSON': 'true',
                        'ADVERTISE': 'localhost:9092', 'SET': 'num.partitions=3 log.retention.bytes=4'}.items():
        monkeypatch.setenv(f'KBROKER_{name}', value)
    result = run('serve', '--advertise', 'kbroker:9092')
    assert result.exit_code == 0
    assert result.stderr.startswith('{"time_ms"')
    config = broker.made[0].config
    assert (config['num.partitions'], config['log.retention.bytes'], config['log.retention.hours']) == (3, 4, 5)
    assert config.log_directory == '/data'
    assert [str(listener) for listener in config.bound_listeners] == ['PLAINTEXT://0.0.0.0:9092']
    assert [str(listener) for listener in config.advertised] == ['PLAINTEXT://kbroker:9092']


def test_a_variable_with_a_wrong_value_is_named(monkeypatch):
    monkeypatch.setenv('KBROKER_CONFIG', '/nowhere/server.properties')
    result = run('serve')
    assert result.exit_code == 2
    assert "(env var: 'KBROKER_CONFIG'): File '/nowhere/server.properties' does not exist." in result.stderr


@pytest.mark.parametrize(('kind', 'is_warned'), [('', False), ('lxc', False), ('oci', True)])
def test_a_container_warns_about_records_on_no_volume_and_other_machines_do_not(broker, monkeypatch, kind, is_warned):
    monkeypatch.setattr(container, 'mount_of', lambda directory, lines: ('/', 'overlay'))
    monkeypatch.setenv('container', kind)
    assert ('WARNING kbroker: /data is on no volume' in run('serve').stderr) == is_warned


def test_the_address_for_clients_may_come_from_a_file(broker, tmp_path):
    (tmp_path / 'advertise').write_text('localhost:49153\n')
    assert run('serve', '--advertise', f'@{tmp_path / "advertise"}').exit_code == 0
    assert [str(listener) for listener in broker.made[0].config.advertised] == ['PLAINTEXT://localhost:49153']


def test_a_file_for_the_address_that_cannot_be_read_is_one_line(tmp_path):
    (tmp_path / 'binary').write_bytes(b'\xff')
    for path, reason in ((tmp_path, 'Is a directory'), (tmp_path / 'binary', 'not UTF-8 text')):
        result = run('serve', '--advertise', f'@{path}')
        assert result.exit_code == 1
        assert result.stderr == f'kbroker: --advertise: {path}: {reason}; expected a file with HOST:PORT\n'


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_comes_with_the_ready_line_stops_the_broker_cleanly(start_broker, number):
    broker = start_broker()
    assert broker.end_by(number) == 0
    assert (broker.directory / '.kafka_cleanshutdown').exists()


def test_a_second_broker_on_the_directory_is_refused_in_one_line(start_broker):
    broker = start_broker()
    second = subprocess.run([sys.executable, '-m', 'kbroker', 'serve', '--listen', '127.0.0.1:0', '--data-dir',
                             str(broker.directory)], capture_output=True, text=True, timeout=180, check=False)
    assert (second.returncode, second.stderr.count('\n')) == (1, 1)
    assert second.stderr.startswith('kbroker: ')
    assert str(broker.directory) in second.stderr


def test_an_address_in_use_is_reported_in_one_line(start_broker, tmp_path):
    broker = start_broker()
    second = subprocess.run([sys.executable, '-m', 'kbroker', 'serve', '--listen', broker.address, '--data-dir',
                             str(tmp_path / 'other')], capture_output=True, text=True, timeout=180, check=False)
    assert second.returncode == 1
    assert second.stderr.splitlines()[-1].startswith(
        f'kbroker: cannot listen on {broker.address}: Address already in use: process {broker.pid} (')
    assert 'Traceback' not in second.stderr


def test_json_logs_carry_the_ready_line_as_fields(broker):
    result = run('serve', '--log-json')
    ready = json.loads(result.stderr.splitlines()[0])
    assert {name: ready[name] for name in ('level', 'event', 'address', 'directory', 'durability')} == {
        'level': 'info', 'event': 'ready', 'address': '127.0.0.1:9092', 'directory': '/data', 'durability': 'disk'}


def test_lines_for_the_journal_carry_their_level_and_no_time(tmp_path):
    file = tmp_path / 'server.properties'
    file.write_text('num.partitions=0\n')
    with (tmp_path / 'stderr').open('w+b') as stderr:
        told = os.fstat(stderr.fileno())
        subprocess.run([sys.executable, '-m', 'kbroker', 'serve', '--config', str(file)], stderr=stderr, timeout=180,
                       check=False, env=os.environ | {'JOURNAL_STREAM': f'{told.st_dev}:{told.st_ino}'})
        stderr.seek(0)
        assert stderr.read().decode().startswith('<3>kbroker: num.partitions: found ')


def test_every_line_of_a_traceback_in_the_journal_has_its_level():
    try:
        raise ValueError('two\nlines')
    except ValueError:
        record = logging.LogRecord('kbroker.apis', logging.ERROR, __file__, 1, 'failed', (), sys.exc_info())
    lines = JournalFormatter().format(record).splitlines()
    assert lines[0] == '<3>apis: failed'
    assert len(lines) > 3
    assert all(line.startswith('<3>') for line in lines)


def test_the_broker_takes_all_descriptors_that_it_may_have(broker):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        run('serve')
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_options_win_over_the_file_and_set_wins_over_options(broker, tmp_path):
    file = tmp_path / 'server.properties'
    file.write_text('log.dirs=/file\nnum.partitions=2\nnum.io.threads=8\nnode.id=4\nnode.id=5\n')
    result = run('serve', '--config', str(file), '--data-dir', '/option', '--listen', '0.0.0.0:1', '--advertise',
                 'me:2', '--set', 'num.partitions=3', '--set', 'kbroker.durability = page-cache')
    config = broker.made[0].config
    assert (config.log_directory, config.num_partitions, config.node_id) == ('/option', 3, 5)
    assert config.kbroker_durability == 'page-cache'
    assert (config.listeners, config.advertised_listeners) == (('PLAINTEXT://0.0.0.0:1',), ('PLAINTEXT://me:2',))
    assert 'WARNING' in result.stderr
    assert 'num.io.threads has no effect' in result.stderr
    assert 'node.id is given again' in result.stderr


@pytest.mark.parametrize(('error', 'line'), [
    (KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, '/data: in use by another broker'),
     '/data: in use by another broker'),
    (OSError(errno.ELOOP, 'Too many levels of symbolic links', '/data/.lock'),
     '/data/.lock: Too many levels of symbolic links'),
    (OSError('cannot listen on 127.0.0.1:9092: Address already in use'),
     'cannot listen on 127.0.0.1:9092: Address already in use'),
])
def test_what_an_operator_can_mend_is_one_line_without_a_traceback(broker, error, line):
    broker.fails_with = error
    result = run('serve')
    assert (result.exit_code, result.stderr) == (1, f'kbroker: {line}\n')


def test_a_wrong_setting_stops_the_start_with_a_suggestion(broker):
    result = run('serve', '--set', 'num.partition=3')
    assert result.exit_code == 1
    assert result.stderr == 'kbroker: num.partition is not a setting; did you mean num.partitions?\n'
    assert broker.made == []


@pytest.mark.parametrize('arguments', [('serve', '--set', 'x'), ('serve', '--config', '/nowhere'), ('serve', '--nope')])
def test_wrong_usage_exits_with_2(arguments):
    assert run(*arguments).exit_code == 2


def test_the_service_manager_is_notified_of_start_watchdog_and_stop(broker, tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / 'notify'))
        listener.setblocking(False)
        monkeypatch.setenv('NOTIFY_SOCKET', str(tmp_path / 'notify'))
        monkeypatch.setenv('WATCHDOG_USEC', '10000000')
        monkeypatch.setenv('WATCHDOG_PID', str(os.getpid()))
        assert run('serve').exit_code == 0
        said = [listener.recv(4096).decode() for _ in range(3)]
    assert said == ['READY=1\nSTATUS=Serving on 127.0.0.1:9092', 'WATCHDOG=1', 'STOPPING=1']


def test_an_abstract_notification_socket_is_reached(monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind('')  # the kernel chooses an abstract name
        listener.setblocking(False)
        monkeypatch.setenv('NOTIFY_SOCKET', '@' + listener.getsockname()[1:].decode())
        systemd.notify('READY=1')
        assert listener.recv(64) == b'READY=1'


def test_the_watchdog_of_another_process_is_none_of_ours(monkeypatch):
    monkeypatch.setenv('WATCHDOG_USEC', '10000000')
    monkeypatch.setenv('WATCHDOG_PID', '1')
    assert systemd.watchdog_interval_ms() is None
    monkeypatch.delenv('WATCHDOG_PID')
    assert systemd.watchdog_interval_ms() == 5000
    monkeypatch.delenv('WATCHDOG_USEC')
    assert systemd.watchdog_interval_ms() is None


def test_config_prints_a_file_of_defaults_that_checks(tmp_path):
    text = run('config').output
    given, warnings = read_properties(text)
    assert warnings == []
    assert Config(given).describe() != []
    defaults = Config({})
    assert all(Config(given)[name] == defaults[name] for name in given)
    file = tmp_path / 'server.properties'
    file.write_text(text)
    assert run('config', '--check', str(file)).exit_code == 0


def test_config_check_names_everything_that_is_wrong(tmp_path):
    file = tmp_path / 'server.properties'
    file.write_text('num.partitions=x\nlog.retension.ms=1\nnum.io.threads=1\n')
    result = run('config', '--check', str(file))
    assert result.exit_code == 1
    assert result.stderr == ("error: num.partitions: found 'x', expected a whole number\n"
                             'error: log.retension.ms is not a setting; did you mean log.retention.ms?\n')
    file.write_text('num.io.threads=1\n')
    result = run('config', '--check', str(file))
    assert result.exit_code == 0
    assert result.stderr == 'warning: num.io.threads has no effect: one thread serves all connections\n'


def test_config_check_reads_the_certificates_of_each_listener(tmp_path):
    now = datetime.now(UTC)
    paths = {name: tmp_path / f'{name}.pem' for name in ('old', 'soon', 'missing')}
    for name, days in (('old', -1), ('soon', 12.5)):
        paths[name].write_text(certificate_between(name, now - timedelta(days=90), now + timedelta(days=days)))
        paths[name].chmod(0o600)
    file = tmp_path / 'server.properties'

    def check(ssl, inside):
        file.write_text('listeners=SSL://127.0.0.1:1,INSIDE://127.0.0.1:2\n'
                        'listener.security.protocol.map=SSL:SSL,INSIDE:SSL\n'
                        f'ssl.keystore.location={paths[ssl]}\n'
                        f'listener.name.inside.ssl.keystore.location={paths[inside]}\n')
        result = run('config', '--check', str(file))
        return result.exit_code, result.stderr.splitlines()

    code, (warning,) = check('soon', 'soon')
    assert code == 0
    assert warning.startswith(f'warning: ssl.keystore.location: {paths["soon"]}: the certificate CN=soon expires at ')
    code, (error, warning) = check('soon', 'old')
    assert code == 1
    assert error.startswith(f'error: ssl.keystore.location: {paths["old"]}: the certificate CN=old expired at ')
    assert warning.startswith('warning: ')
    code, (error,) = check('missing', 'missing')
    assert code == 1
    assert error.startswith(f'error: {paths["missing"]}: No such file or directory')


def test_config_check_wants_an_address_for_clients_where_the_machine_has_no_name(tmp_path, monkeypatch):
    monkeypatch.setattr(socket, 'gethostname', lambda: 'nowhere.invalid')
    file = tmp_path / 'server.properties'
    file.write_text('listeners=PLAINTEXT://0.0.0.0:9092\nkbroker.allow.insecure.listener=true\n')
    result = run('config', '--check', str(file))
    assert result.exit_code == 1
    assert result.stderr == ("error: advertised.listeners: found no host for PLAINTEXT://:9092, and this machine's "
                             "name 'nowhere.invalid' does not resolve; expected the name or address that clients "
                             'connect to: advertised.listeners=PLAINTEXT://HOST:9092\n')
    monkeypatch.setattr(socket, 'gethostname', lambda: 'localhost')
    result = run('config', '--check', str(file))
    assert result.exit_code == 0
    assert result.stderr.startswith('warning: clients connect to localhost')


def test_storage_formats_a_directory_with_the_first_user_in_it(tmp_path):
    arguments = ['storage', '--data-dir', str(tmp_path / 'data'), '--cluster-id', 'a2Jyb2tlci1qdWRnZXMtMA',
                 '--add-scram', 'SCRAM-SHA-512=[name=admin,password=secret of admin]']
    assert run(*arguments).output == (
        f'{tmp_path / "data"}: formatted for cluster a2Jyb2tlci1qdWRnZXMtMA, with 1 SCRAM credentials\n')
    with InProcessBroker(tmp_path / 'data') as node:
        assert node.metadata.cluster_id == 'a2Jyb2tlci1qdWRnZXMtMA'
        assert list(node.metadata.image.scram_credentials) == [('admin', 2)]
    again = run(*arguments)
    assert again.exit_code == 1
    assert 'found meta.properties, so the directory is already formatted; expected an empty directory' in again.stderr
    assert 'secret' not in again.stderr


@pytest.mark.parametrize(('options', 'levels', 'costs'), [
    (['format'], RELEASES['4.3'], []),
    (['--release-version', '4.3'], RELEASES['4.3'], []),
    (['format', '--release-version', '4.4'], RELEASES['4.4'], [
        'metadata.version 33: Apache Kafka before 4.4 cannot open the directory, and the level cannot be lowered again',
        'share.version 2: Apache Kafka before 4.4 cannot open the directory, and the level can be lowered again']),
    (['format', '--feature', 'share.version=2', '--feature', 'streams.version=0'],
     {name: level for name, level in {**RELEASES['4.3'], 'share.version': 2}.items() if name != 'streams.version'},
     ['share.version 2: Apache Kafka before 4.4 cannot open the directory, and the level can be lowered again'])])
def test_storage_formats_with_the_levels_of_a_release_and_says_what_they_cost(tmp_path, options, levels, costs):
    result = run('storage', *options, '--data-dir', str(tmp_path / 'data'))
    assert result.exit_code == 0, result.stderr
    assert result.output.splitlines()[1:] == costs
    for _ in range(2):
        with InProcessBroker(tmp_path / 'data') as node:
            assert node.metadata.image.features == levels


@pytest.mark.parametrize(('options', 'message'), [
    (['--release-version', '4.5'], "found the release '4.5', expected one of 4.3, 4.4"),
    (['--feature', 'share.version'], "found 'share.version', expected NAME=LEVEL"),
    (['--feature', 'share.version=-1'], "found 'share.version=-1', expected NAME=LEVEL"),
    (['--feature', 'share.version=3'], 'found share.version at level 3, expected 0 to 2'),
    (['--feature', 'metadata.version=33'], "found the feature 'metadata.version', expected one of eligible.leader"),
    (['--feature', 'share.version=1', '--feature', 'share.version=2'], 'found the feature share.version twice')])
def test_storage_refuses_levels_that_a_new_directory_cannot_have(tmp_path, options, message):
    result = run('storage', 'format', '--data-dir', str(tmp_path / 'data'), *options)
    assert (result.exit_code, message in result.stderr) == (1, True), result.stderr
    assert not (tmp_path / 'data').exists()


@pytest.mark.parametrize('option', [('--release-version', '4.4'), ('--feature', 'share.version=2')])
def test_storage_changes_no_level_of_a_formatted_directory(tmp_path, option):
    given = ['storage', '--data-dir', str(tmp_path / 'data'), '--add-scram', 'SCRAM-SHA-512=[name=a,password=secret]']
    assert run(*given).exit_code == 0
    result = run(*given, *option)
    assert result.exit_code == 1
    assert 'already formatted; expected an empty directory, or --add-scram alone' in result.stderr


def test_storage_adds_users_to_a_stopped_broker_and_not_to_a_running_one(start_broker):
    broker = start_broker()

    def add(user, password):
        return run('storage', '--data-dir', str(broker.directory), '--add-scram',
                   f'SCRAM-SHA-256=[name={user},password={password}]')

    assert add('early', 'secret').exit_code == 1
    broker.stop()
    for user, password in (('a', 'one'), ('b', 'two'), ('a', 'three')):
        result = add(user, password)
        assert (result.exit_code, result.output) == (0, f'{broker.directory}: 1 SCRAM credentials written\n')
    with InProcessBroker(broker.directory) as node:
        assert list(node.metadata.image.scram_credentials) == [('a', 1), ('b', 1)]


def test_storage_refuses_a_user_twice_and_another_cluster_id(tmp_path):
    user, file = 'SCRAM-SHA-512=[name=admin,password=secret]', tmp_path / 'server.properties'
    file.write_text(f'log.dirs={tmp_path / "data"}\n')
    for arguments, expected in ((('--add-scram', user, '--add-scram', user), 'twice'),
                                (('--cluster-id', 'x'), 'expected the 22 characters of a uuid'),
                                (('--add-scram', 'admin:secret'), 'expected SCRAM-SHA-256 or SCRAM-SHA-512')):
        result = run('storage', '--config', str(file), *arguments)
        assert result.exit_code == 1
        assert expected in result.stderr
        assert 'secret' not in result.stderr
    assert not (tmp_path / 'data').exists()


def test_config_check_finds_what_a_secured_start_would(tmp_path):
    file = tmp_path / 'server.properties'
    for lines, expected in (
            (['listeners=PLAINTEXT://0.0.0.0:1', 'advertised.listeners=PLAINTEXT://a:1'],
             'kbroker.allow.insecure.listener=true starts the broker nevertheless'),
            (['listeners=SASL_PLAINTEXT://127.0.0.1:1', 'sasl.enabled.mechanisms=PLAIN'],
             'listener.name.sasl_plaintext.plain.sasl.jaas.config: found none'),
            (['listeners=SASL_PLAINTEXT://127.0.0.1:1', 'sasl.enabled.mechanisms=PLAIN',
              'listener.name.sasl_plaintext.plain.sasl.jaas.config=org.example.Other required;'],
             'found another login module, expected org.apache.kafka.common.security.plain.PlainLoginModule'),
            (['listeners=SSL://127.0.0.1:1', 'ssl.principal.mapping.rules=RULE:x'], 'ssl.principal.mapping.rules')):
        file.write_text('\n'.join(lines))
        result = run('config', '--check', str(file))
        assert (result.exit_code, expected in result.stderr) == (1, True), result.stderr


@pytest.mark.parametrize('content', [b'a=\\u1', b'a=\xff'])
def test_a_file_that_cannot_be_read_as_settings_is_one_line(tmp_path, content):
    file = tmp_path / 'server.properties'
    file.write_bytes(content)
    result = run('config', '--check', str(file))
    assert result.exit_code == 1
    assert result.stderr.startswith(f'kbroker: {file}: ')
    assert result.stderr.count('\n') == 1
