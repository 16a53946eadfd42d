"""Health and metrics of a broker: during its start, on loopback, and beyond it."""
import json
import pathlib
import ssl
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from support.brokers.broker_process import BrokerProcess
from support.clients.certificates import make_certificates
from support.runner.free_ports import free_port

from kbroker.base.errors import ConfigError
from kbroker.daemon.monitoring import Monitoring
from kbroker.http.tokens import read_token
from kbroker.settings.config import Config
from kbroker.settings.exposure import check_exposed_metrics

TOKEN = 'a-token-of-enough-characters'
OPENMETRICS = {'Accept': 'application/openmetrics-text; version=1.0.0, text/plain; q=0.5'}


def ask(url, context=None, **headers):
    """Return (status, text) of a GET."""
    try:
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=60, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture(scope='module')
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp('certificates'))


@pytest.fixture
def token_file(tmp_path):
    file = tmp_path / 'token'
    file.write_text(f'{TOKEN}\n')
    file.chmod(0o600)
    return file


def test_a_broker_that_starts_is_alive_and_not_ready():
    config = Config({'metrics.listen': '127.0.0.1:0'})
    monitoring = Monitoring(config, None)
    try:
        assert ask(f'{monitoring.url}livez') == (200, 'ok\n')
        assert ask(f'{monitoring.url}readyz') == (503, 'the broker starts: it reads and recovers its logs\n')
        assert ask(f'{monitoring.url}metrics')[0] == 503
    finally:
        monitoring.close()


def test_a_reload_puts_a_new_token_in_force_and_keeps_the_last_one_if_the_file_has_none(token_file, caplog):
    config = Config({'metrics.listen': '127.0.0.1:0', 'metrics.token.file': str(token_file)})
    monitoring = Monitoring(config, None)

    def status_with(token):
        return ask(f'{monitoring.url}metrics', Authorization=f'Bearer {token}')[0]

    try:
        token_file.write_text('another-token-of-enough-characters')
        assert (status_with(TOKEN), status_with('another-token-of-enough-characters')) == (503, 401)
        monitoring.reload()
        assert (status_with(TOKEN), status_with('another-token-of-enough-characters')) == (401, 503)
        token_file.write_text('short')
        monitoring.reload()
        assert status_with('another-token-of-enough-characters') == 503
        assert 'the token of the metrics is not replaced: metrics.token.file: found 5 bytes' in caplog.text
        token_file.unlink()
        monitoring.reload()
        assert status_with('another-token-of-enough-characters') == 503
        assert f'not replaced: {token_file}: No such file or directory' in caplog.text
    finally:
        monitoring.close()


def test_a_broker_that_serves_is_ready_and_its_metrics_are_openmetrics(start_broker):
    url = f'http://127.0.0.1:{free_port()}'
    broker = start_broker({'metrics.listen': url})
    assert ask(f'{url}/readyz') == (200, 'ok\n')
    status, text = ask(f'{url}/metrics', **OPENMETRICS)
    assert (status, text.endswith('# EOF\n')) == (200, True)
    list(text_string_to_metric_families(text))
    assert any(f'are on {url}/' in line for line in broker.lines)


def test_beyond_loopback_the_metrics_need_tls_and_a_token(start_broker, certificates, token_file):
    port = free_port()
    start_broker({'metrics.listen': f'https://0.0.0.0:{port}', 'metrics.token.file': str(token_file),
                  'listener.name.metrics.ssl.keystore.location': str(certificates / 'server.pem')})
    context = ssl.create_default_context(cafile=certificates / 'ca.pem')
    url = f'https://127.0.0.1:{port}'
    assert ask(f'{url}/readyz', context) == (200, 'ok\n')
    assert ask(f'{url}/metrics', context)[0] == 401
    assert ask(f'{url}/metrics', context, Authorization=f'Bearer {TOKEN}')[0] == 200


def test_a_client_certificate_serves_instead_of_a_token(start_broker, certificates):
    port = free_port()
    start_broker({'metrics.listen': f'https://0.0.0.0:{port}',
                  'listener.name.metrics.ssl.keystore.location': str(certificates / 'server.pem'),
                  'listener.name.metrics.ssl.truststore.location': str(certificates / 'ca.pem'),
                  'listener.name.metrics.ssl.client.auth': 'required'})
    context = ssl.create_default_context(cafile=certificates / 'ca.pem')
    url = f'https://127.0.0.1:{port}/metrics'
    with pytest.raises((urllib.error.URLError, OSError)):
        ask(url, context)
    context.load_cert_chain(certificates / 'client.pem')
    assert ask(url, context)[0] == 200


@pytest.mark.parametrize(('settings', 'text'), [
    ({'metrics.listen': '0.0.0.0:9464'}, 'metrics.listen: other machines reach 0.0.0.0:9464. Expected an address of '),
    ({'metrics.listen': 'https://:9464'}, 'other machines reach https://:9464'),
    ({'metrics.listen': ':9464', 'metrics.token.file': 'x'}, 'other machines reach :9464')])
def test_an_address_beyond_loopback_without_a_login_is_refused(settings, text):
    config = Config(settings)
    with pytest.raises(ConfigError, match=text):
        check_exposed_metrics(config, config.metrics_listener)
    config = Config(settings | {'kbroker.allow.insecure.listener': 'true'})
    assert len(check_exposed_metrics(config, config.metrics_listener)) == 1


@pytest.mark.parametrize('address', ['9464', 'localhost', 'ftp://localhost:1', 'localhost:65536', 'a b:1', '::1:9464'])
def test_an_address_that_is_none_is_refused(address):
    with pytest.raises(ConfigError, match=r'metrics\.listen: found .*, expected HOST:PORT, or https://HOST:PORT'):
        Config({'metrics.listen': address})


def test_the_name_of_the_listener_belongs_to_the_metrics():
    with pytest.raises(ConfigError, match=r'found the name METRICS, which is the one of metrics\.listen'):
        Config({'metrics.listen': 'localhost:9464', 'listeners': 'METRICS://localhost:9092',
                'listener.security.protocol.map': 'METRICS:PLAINTEXT'})


@pytest.mark.parametrize('text', ['', 'short', 'two words of enough characters', 'ümläut-with-enough-characters'])
def test_a_file_without_a_token_is_refused(tmp_path, text):
    file = tmp_path / 'token'
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(ConfigError, match=r'metrics\.token\.file: found .* expected one word'):
        read_token(str(file), 'metrics.token.file', allows_readable=False)


def serve_in_vain(tmp_path, *assignments):
    """Return the output of a start that fails."""
    options = [argument for each in assignments for argument in ('--set', each)]
    done = subprocess.run([sys.executable, '-m', 'kbroker', 'serve', '--data-dir', str(tmp_path / 'data'), '--listen',
                           '127.0.0.1:0', *options], cwd=pathlib.Path(__file__).parents[2], capture_output=True,
                          text=True, check=False)
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(('setting', 'text'), [
    ('metrics.listen=0.0.0.0:1', 'metrics.listen: other machines reach 0.0.0.0:1'),
    ('metrics.listen=https://127.0.0.1:0', 'found none, expected the key and certificate chain')])
def test_a_start_without_what_the_address_needs_ends_in_one_line(tmp_path, setting, text):
    assert text in serve_in_vain(tmp_path, setting)


def test_a_taken_port_names_its_process(tmp_path, start_broker):
    port = free_port()
    broker = start_broker({'metrics.listen': f'127.0.0.1:{port}'})
    assert f'cannot listen on 127.0.0.1:{port} for metrics: Address already in use: process {broker.pid} ' in (
        serve_in_vain(tmp_path, f'metrics.listen=127.0.0.1:{port}'))


def test_a_broker_without_the_setting_imports_nothing_of_it():
    loaded = subprocess.run(
        [sys.executable, '-c', 'import kbroker.daemon.broker, sys, json; print(json.dumps(list(sys.modules)))'],
        cwd=pathlib.Path(__file__).parents[2], capture_output=True, text=True, check=True).stdout
    assert not {'h11', 'prometheus_client', 'kbroker.http', 'kbroker.metrics', 'http'} & set(json.loads(loaded))


def test_a_restart_after_a_kill_binds_the_same_port(tmp_path):
    port = free_port()
    with BrokerProcess(tmp_path / 'data', {'metrics.listen': f'127.0.0.1:{port}'}) as broker:
        assert ask(f'http://127.0.0.1:{port}/livez')[0] == 200
        broker.kill9()
        broker.start()
        assert ask(f'http://127.0.0.1:{port}/livez')[0] == 200
