"""kbroker-certs makes the files that a secure broker and its clients need, and only their owner can read them. The
quick start of docs/security.md works."""
import os
import re
import subprocess

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from support.brokers.broker_process import BrokerProcess
from support.runner.command_runner import install_programs, run_command, run_in_process
from support.runner.free_ports import free_port
from support.runner.pages import blocks

from kbroker.settings.config import Config
from kbroker.settings.properties import read_properties


def certs(directory, *options):
    return run_command('certs', 'dev', directory, *options)


def openssl(*arguments):
    return subprocess.run(['openssl', *map(str, arguments)], capture_output=True, text=True, check=True).stdout


def test_the_files_are_for_their_owner_and_make_a_chain(tmp_path):
    made = certs(tmp_path / 'certs', '--host', 'broker.example.org', '--host', '10.1.2.3', '--host', '::1')
    assert made.returncode == 0, made.stderr
    directory = tmp_path / 'certs'
    assert {path.name: oct(path.stat().st_mode & 0o777) for path in directory.iterdir()} == dict.fromkeys(
        ('ca.pem', 'ca.key', 'broker.pem', 'broker.properties', 'admin.pem', 'admin.properties'), '0o600')
    assert directory.stat().st_mode & 0o777 == 0o700
    assert set(made.stdout.split()) == {str(path) for path in directory.iterdir()}
    for name, purpose in (('broker', 'sslserver'), ('admin', 'sslclient')):
        assert 'OK' in openssl('verify', '-x509_strict', '-purpose', purpose, '-CAfile', directory / 'ca.pem',
                               directory / f'{name}.pem')
    names = openssl('x509', '-in', directory / 'broker.pem', '-noout', '-ext', 'subjectAltName')
    assert 'DNS:broker.example.org, IP Address:10.1.2.3, IP Address:0:0:0:0:0:0:0:1' in names


def test_a_second_run_adds_a_client_and_keeps_the_rest(tmp_path):
    assert certs(tmp_path).returncode == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    again = certs(tmp_path, '--client', 'admin', '--client', 'app')
    assert again.stdout.split() == [str(tmp_path / 'app.pem'), str(tmp_path / 'app.properties')]
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert 'OK' in openssl('verify', '-CAfile', tmp_path / 'ca.pem', tmp_path / 'app.pem')


@pytest.mark.parametrize('options', [
    ('--host', 'a b'), ('--host', 'x,DNS:evil'), ('--host', 'a\nb'), ('--client', '../up'), ('--client', 'a/CN=admin'),
    ('--client', 'ca'), ('--client', 'broker'), ('--client', '')])
def test_names_that_would_mean_something_else_are_refused(tmp_path, options):
    refused = certs(tmp_path / 'certs', *options)
    assert refused.returncode == 1
    assert f'{options[0]}: found ' in refused.stderr
    assert not list((tmp_path / 'certs').glob('*.pem'))


def test_without_openssl_the_command_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv('PATH', str(tmp_path))
    refused = run_in_process('certs', 'dev', tmp_path / 'certs')
    assert refused.returncode == 1
    assert 'found no program openssl' in refused.stderr


def test_the_settings_of_the_broker_bind_loopback_only_for_local_names(tmp_path):
    for directory, hosts, bound in ((tmp_path / 'local', (), '127.0.0.1:9093'),
                                    (tmp_path / 'remote', ('--host', 'broker.example.org'), ':9093')):
        assert certs(directory, *hosts).returncode == 0
        given, warnings = read_properties((directory / 'broker.properties').read_text())
        assert warnings == []
        assert given['listeners'] == f'SSL://{bound}'
        assert Config(given).warnings == []


class BrokerOfALine(BrokerProcess):
    """A broker that is started by a command line of a shell."""

    def __init__(self, line, directory):
        super().__init__(directory / 'data')
        self._line = f'cd {directory}; PATH={directory / "bin"}:$PATH; exec {line} --log-json'

    def start(self):
        self.launch(['sh', '-c', self._line])


def test_three_commands_make_a_secure_broker(tmp_path):
    """Run the quick start of docs/security.md on a free port."""
    page = next(block for block in blocks('docs/security.md', 'console') if 'kbroker-certs dev' in block)
    make, serve, create = re.findall(r'^\$ (.*)$', page, re.MULTILINE)
    install_programs(tmp_path / 'bin')
    port = free_port()

    def shell(line):
        return subprocess.run(
            ['sh', '-c', line.replace('localhost:9093', f'localhost:{port}')], cwd=tmp_path, capture_output=True,
            env=os.environ | {'PATH': f'{tmp_path / "bin"}:{os.environ["PATH"]}'}, text=True, timeout=180, check=False)

    assert shell(make).returncode == 0
    certificates = tmp_path / 'certs'
    settings = certificates / 'broker.properties'
    settings.write_text(settings.read_text().replace(':9093', f':{port}'))
    broker = BrokerOfALine(serve.removesuffix(' &'), tmp_path)
    broker.start()
    try:
        done = shell(create)
        assert (done.returncode, done.stdout) == (0, 'Created topic orders.\n'), done.stderr
        bare = {'bootstrap.servers': f'localhost:{port}', 'security.protocol': 'SSL',
                'ssl.ca.location': str(certificates / 'ca.pem')}
        with_key = bare | {'ssl.certificate.location': str(certificates / 'admin.pem'),
                           'ssl.key.location': str(certificates / 'admin.pem')}
        assert 'orders' in AdminClient(with_key).list_topics(timeout=180).topics
        with pytest.raises(KafkaException):
            AdminClient(bare | {'log_level': 0}).list_topics(timeout=2)
        assert shell(make + ' --client app').returncode == 0
        denied = shell(create.replace('admin.properties', 'app.properties').replace('orders', 'others'))
        assert denied.returncode == 1
        assert 'AUTHORIZATION_FAILED' in denied.stderr
    finally:
        broker.kill9()
