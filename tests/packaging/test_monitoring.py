"""The alerts and the dashboards in packaging/ ask for metrics that exist. Prometheus scrapes a live broker and an
exporter, and answers each query.
"""
from __future__ import annotations

import importlib
import json
import pkgutil
import re
import subprocess
import urllib.parse
import urllib.request

import pytest
import yaml
from support.brokers.broker_process import PROMPT_SHARES, BrokerProcess, Process
from support.brokers.confined_broker import until
from support.clients.certificates import make_certificates
from support.clients.tv1_producer import SocketPeer, Tv1Producer
from support.runner.command_runner import command_line, run_in_process
from support.runner.free_ports import free_port
from support.runner.pages import ROOT, blocks, load, rows_of_table

import kbroker.metrics
from kbroker.client import Admin
from kbroker.metrics.table import Metric
from kbroker.settings.config import Config
from kbroker_tools.exporter import metrics as exporter_metrics

PAGE = 'docs/monitoring.md'
PACKAGING = ROOT / 'packaging'
RULES = PACKAGING / 'prometheus' / 'rules.yml'
ALERTS = [rule for group in yaml.safe_load(RULES.read_text())['groups'] for rule in group['rules']]
DASHBOARDS = load(PACKAGING / 'grafana' / 'dashboards.py').dashboards()
COMPOSE = yaml.safe_load((PACKAGING / 'compose.yaml').read_text())['services']
NAME = re.compile(r'\b(?:kbroker|kafka)_\w+')
TOKEN = 'a-token-of-enough-characters'
POINTS = 3
"""The scrapes of each target that precede the queries. A rate needs two."""

EMPTY_IF_ALL_IS_WELL = {
    'kbroker_authorization_denials_total', 'kbroker_connections_refused_total', 'kbroker_failed_logins_total',
    'kbroker_logins_total', 'kbroker_quota_throttles_total', 'kbroker_metrics_series_left_out',
    'kbroker_share_group_in_flight_records', 'kbroker_exporter_share_group_lag',
    'kbroker_exporter_collection_problems', 'kbroker_exporter_transaction_hanging_age_seconds'}
"""The metrics without a series on this broker: it denies no request, no client logs in, no share group is in use."""


def metrics_of(module):
    return [value for value in vars(module).values() if isinstance(value, Metric)]


def metrics_of_the_broker():
    """Return the metrics of the broker, each once, sorted by name."""
    modules = [importlib.import_module(f'kbroker.metrics.{module.name}')
               for module in pkgutil.iter_modules(kbroker.metrics.__path__)]
    found = {metric.name: metric for module in modules for metric in metrics_of(module)}
    return [found[name] for name in sorted(found)]


def name_of(metric):
    return f'{metric.name}_total' if metric.kind == 'counter' else metric.name


def names_in_text(metric):
    """Return the names of the series of a metric."""
    if metric.kind == 'histogram':
        return [f'{metric.name}{suffix}' for suffix in ('_bucket', '_count', '_sum')]
    return [name_of(metric)]


DECLARED = {name for metric in [*metrics_of_the_broker(), *metrics_of(exporter_metrics)]
            for name in names_in_text(metric)}


def panels(file):
    return [panel for panel in json.loads(DASHBOARDS[file])['panels'] if panel['type'] != 'row']


QUERIES = [(file, panel['title'], target['expr']) for file in DASHBOARDS for panel in panels(file)
           for target in panel['targets']]


@pytest.mark.parametrize('file', DASHBOARDS)
def test_a_dashboard_is_that_of_its_program(file):
    assert (PACKAGING / 'grafana' / file).read_text() == DASHBOARDS[file], 'run packaging/grafana/dashboards.py'


@pytest.mark.parametrize('file', DASHBOARDS)
def test_panels_do_not_overlap_and_have_distinct_ids(file):
    content = json.loads(DASHBOARDS[file])
    cells = [(x, y) for panel in content['panels'] for place in [panel['gridPos']]
             for x in range(place['x'], place['x'] + place['w']) for y in range(place['y'], place['y'] + place['h'])]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) == 23
    assert len({panel['id'] for panel in content['panels']}) == len(content['panels'])


def test_each_name_in_a_query_is_a_declared_metric():
    queries = [query for _, _, query in QUERIES] + [alert['expr'] for alert in ALERTS]
    assert {name for query in queries for name in NAME.findall(query)} <= DECLARED


def test_the_page_lists_each_metric_and_each_alert():
    listed = [[cell.replace('`', '') for cell in row] for row in rows_of_table(PAGE, 'metric')]
    assert listed == [[name_of(metric), metric.kind, ', '.join(metric.labels), metric.help, metric.series]
                      for metric in metrics_of_the_broker()]
    assert [(name.strip('`'), severity) for name, severity, *_ in rows_of_table(PAGE, 'alert')] == [
        (alert['alert'], alert['labels']['severity']) for alert in ALERTS]


def test_compose_scrapes_the_loopback_address_of_the_metrics_and_shows_the_dashboards():
    broker, prometheus, grafana = (COMPOSE[name] for name in ('kbroker', 'prometheus', 'grafana'))
    config = Config(dict(each.split('=', 1) for each in broker['environment']['KBROKER_SET'].split()))
    scraped = yaml.safe_load((PACKAGING / 'prometheus' / 'prometheus.yml').read_text())['scrape_configs']
    assert [each['static_configs'][0]['targets'] for each in scraped] == [[config.metrics_listen]]
    assert prometheus['network_mode'] == 'service:kbroker'
    assert prometheus['profiles'] == grafana['profiles'] == ['monitoring']
    for service in prometheus, grafana:
        for volume in service['volumes']:
            if volume.startswith('./'):
                assert (PACKAGING / volume.partition(':')[0]).is_dir()
    provided, = (PACKAGING / 'grafana' / 'provisioning' / 'dashboards').iterdir()
    path = yaml.safe_load(provided.read_text())['providers'][0]['options']['path']
    assert f'./grafana:{path}:ro' in grafana['volumes']


@pytest.mark.prometheus
@pytest.mark.parametrize('command', [
    ('check', 'rules', 'rules.yml'), ('test', 'rules', 'rules_test.yml'), ('check', 'config', 'prometheus.yml')],
    ids=' '.join)
def test_promtool_accepts(command):
    done = subprocess.run(['promtool', *command], cwd=RULES.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.prometheus
def test_each_alert_has_a_test():
    tests = yaml.safe_load((RULES.parent / 'rules_test.yml').read_text())['tests']
    fired = {rule['alertname'] for test in tests for rule in test.get('alert_rule_test', []) if rule['exp_alerts']}
    assert fired == {alert['alert'] for alert in ALERTS}


# ---- a real Prometheus

class Exporter(Process):
    """kbroker-exporter on a port of 127.0.0.1."""

    def __init__(self, address, port):
        super().__init__()
        self._arguments = command_line('exporter', '--bootstrap-server', address, '--listen', f'127.0.0.1:{port}',
                                       '--interval', '0')

    def start(self):
        self.launch(self._arguments)

    def is_ready_line(self, line):
        return ': serving http' in line


class Prometheus(Process):
    """A Prometheus with a configuration file, on a port of 127.0.0.1."""

    def __init__(self, directory):
        super().__init__()
        self.url = f'http://127.0.0.1:{free_port()}/api/v1'
        self._arguments = ['prometheus', f'--config.file={directory / "prometheus.yml"}',
                           f'--storage.tsdb.path={directory / "data"}',
                           f'--web.listen-address={self.url.removeprefix("http://").removesuffix("/api/v1")}']

    def start(self):
        self.launch(self._arguments)

    def is_ready_line(self, line):
        return 'Server is ready to receive web requests' in line

    def get(self, path, **query):
        with urllib.request.urlopen(f'{self.url}/{path}?{urllib.parse.urlencode(query)}', timeout=60) as answer:
            return json.load(answer)['data']

    def ask(self, query):
        """Return the series of a query."""
        return self.get('query', query=query)['result']


def use(address, peer):
    """Give a broker committed, aborted and open transactions, a consumer, a group with a lag, and a refused request."""
    for _ in range(2):
        peer.ask('CreateTopics', timeout_ms=30_000, topics=[dict(name='orders', num_partitions=2,
                                                                 replication_factor=1)])
    pay, hold = Tv1Producer(peer, 'pay'), Tv1Producer(peer, 'hold', timeout_ms=600_000)
    for committed in (True, False):
        pay.add('orders', 0)
        pay.write('orders')
        pay.end(committed)
    hold.add('orders', 0)
    hold.write('orders')
    hold.write('orders')
    with Admin(address) as admin:
        admin.alter_group_offsets('readers', {('orders', 0): 0})
    done = run_in_process('consume', '--bootstrap-server', address, '--topic', 'orders', '--from-beginning',
                          '--max-messages', '1')
    assert done.returncode == 0, done.stderr


def configuration_of_the_page(directory, port, exporter_port):
    """Return the configuration of the page, with the addresses and the files of this test."""
    text, = (block for block in blocks(PAGE, 'yaml') if 'scrape_configs' in block)
    for old, new in (('broker.example.org:9464', f'127.0.0.1:{port}'), ('localhost:9308', f'127.0.0.1:{exporter_port}'),
                     ('/etc/prometheus/kbroker.token', str(directory / 'token')),
                     ('/etc/prometheus/kbroker-ca.pem', str(directory / 'ca.pem'))):
        assert old in text
        text = text.replace(old, new)
    config = yaml.safe_load(text)
    assert config['rule_files'] == ['rules.yml']
    return config | {'rule_files': [str(RULES)], 'global': {'scrape_interval': '1s', 'evaluation_interval': '1s'}}


@pytest.fixture(scope='module')
def prometheus(tmp_path_factory):
    """A Prometheus that has scraped a broker and an exporter, with TLS and a token as on the page."""
    directory = make_certificates(tmp_path_factory.mktemp('prometheus'))
    token = directory / 'token'
    token.write_text(TOKEN)
    token.chmod(0o600)
    port, exporter_port = free_port(), free_port()
    settings = PROMPT_SHARES | {
        'metrics.listen': f'https://127.0.0.1:{port}', 'metrics.token.file': str(token),
        'listener.name.metrics.ssl.keystore.location': str(directory / 'server.pem'),
        'offsets.topic.num.partitions': '1', 'transaction.state.log.num.partitions': '1'}
    config = configuration_of_the_page(directory, port, exporter_port)
    (directory / 'prometheus.yml').write_text(yaml.safe_dump(config))
    with BrokerProcess(directory / 'broker', settings) as broker, SocketPeer(broker.address) as peer:
        use(broker.address, peer)
        with Exporter(broker.address, exporter_port), Prometheus(directory) as prometheus:
            ready = f'count(count_over_time(up[1m]) >= {POINTS} and up == 1)'
            until(lambda: [found['value'][1] for found in prometheus.ask(ready)] == ['2'], 'both targets are scraped')
            yield prometheus


@pytest.mark.prometheus
def test_each_query_of_the_dashboards_has_data(prometheus):
    instances = {file: prometheus.ask(metric)[0]['metric']['instance'] for file, metric in (
        ('kbroker.json', 'kbroker_build_info'), ('kafka-exporter.json', 'kbroker_exporter_build_info'))}
    empty = [(file, title, query) for file, title, query in QUERIES
             if not set(NAME.findall(query)) & EMPTY_IF_ALL_IS_WELL and not prometheus.ask(
                 query.replace('$instance', instances[file]).replace('$__rate_interval', '1m'))]
    assert empty == []


@pytest.mark.prometheus
def test_the_metrics_that_are_empty_if_all_is_well_are_empty(prometheus):
    assert [name for name in EMPTY_IF_ALL_IS_WELL if prometheus.ask(name)] == []


@pytest.mark.prometheus
def test_each_rule_is_evaluated_on_metrics_that_have_data_and_none_alerts(prometheus):
    def rules():
        return [rule for group in prometheus.get('rules')['groups'] for rule in group['rules']]

    until(lambda: all(rule['health'] != 'unknown' for rule in rules()), 'each rule is evaluated')
    assert [(rule['name'], rule['health'], rule['state']) for rule in rules()] == [
        (alert['alert'], 'ok', 'inactive') for alert in ALERTS]
    names = {name for alert in ALERTS for name in NAME.findall(alert['expr'])} - EMPTY_IF_ALL_IS_WELL
    assert [name for name in sorted(names) if not prometheus.ask(name)] == []
