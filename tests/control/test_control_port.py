"""The control port of a running broker: its routes, what it refuses, and its long polls."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading

import pytest
from support.brokers.broker_process import BrokerProcess
from support.brokers.control_port_broker import ControlPortBroker
from support.brokers.in_process_broker import frame_of, read_answer
from support.clients.raw_client import RawClient
from support.messages.message_builder import build
from support.runner.free_ports import free_port

from kbroker.control.points import ACTIONS, POINTS
from kbroker.control.process import MOST_PAUSE_MS
from kbroker.control.routes import MOST_RULE_BYTES, MOST_WAIT_MS, OPENAPI, Controlled, routes_of
from kbroker.control.rules import COUNTS, FIELDS, SELECTORS
from kbroker.http.connection import MOST_BODY_BYTES

ROOT = pathlib.Path(__file__).parents[2]
HOLD = {'point': 'request', 'action': 'hold', 'select': {'client_id': 'held'}}
LIMIT_S = 120


@pytest.fixture(scope='module')
def shared(tmp_path_factory):
    with ControlPortBroker(tmp_path_factory.mktemp('control') / 'data') as broker:
        yield broker
        broker.stop()


@pytest.fixture
def broker(shared):
    """The broker of the module, without rules."""
    yield shared
    assert shared.ask('DELETE', '/rules')[0] == 200


@pytest.fixture
def own_broker(tmp_path):
    with ControlPortBroker(tmp_path / 'data') as broker:
        yield broker


class Client:
    """A client of Kafka's protocol with a client id."""

    def __init__(self, broker, client_id):
        self._client = RawClient.at(broker.address, LIMIT_S)
        self._client_id = client_id
        self._request = build('ApiVersionsRequest')

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._client.close()

    def send(self):
        self._client.send(frame_of(self._request, 0, self._client_id))
        return self

    def error_code(self):
        """Return the error code of the next answer."""
        return read_answer(self._request, 0, self._client.receive()).error_code

    def is_answered(self):
        return self._client.has_data()


def in_thread(call):
    """Call in a thread. Return a function that waits for the result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()

    def join():
        thread.join(LIMIT_S)
        return results[0]

    return join


def test_the_broker_describes_itself(broker):
    status, found = broker.ask('GET', '/')
    assert status == 200
    assert found['pid'] == broker.pid
    assert found['directory'] == str(broker.directory)
    assert found['listeners'] == {'PLAINTEXT': broker.address}
    assert found['control'] == broker.control
    assert set(found) == set(schema('Broker')['properties'])


def test_the_status_of_the_broker_names_the_port(broker):
    status = json.loads(run_command('status', '--data-dir', str(broker.directory), '--json').stdout)
    assert status['control'] == broker.control
    lines = run_command('status', '--data-dir', str(broker.directory)).stdout.splitlines()
    assert f'CONTROL     http://{broker.control} can stop, kill and falsify this broker' in lines


def test_a_hold_is_matched_released_and_removed_with_its_final_counts(broker):
    status, rule = broker.ask('POST', '/rules', HOLD)
    assert (status, rule['matched'], rule['held']) == (201, 0, 0)
    path = f'/rules/{rule["id"]}'
    waiting = in_thread(lambda: broker.ask('GET', f'{path}?matched=1&wait_ms=60000'))
    with Client(broker, 'held') as client:
        client.send()
        assert waiting()[1]['matched'] == 1
        assert broker.ask('GET', path)[1]['held'] == 1
        assert not client.is_answered()
        assert broker.ask('POST', f'{path}/release')[1]['held'] == 0
        assert client.error_code() == 0
    status, final = broker.ask('DELETE', path)
    assert (status, final['matched'], final['held']) == (200, 1, 0)
    assert broker.ask('GET', path) == (404, {'error': f'there is no rule {rule["id"]}, and no other rule'})


def test_a_poll_of_steps_ends_with_the_next_step(broker):
    _, before = broker.ask('GET', '/steps')
    waiting = in_thread(lambda: broker.ask('GET', f'/steps?since={before["next"]}&wait_ms=60000'))
    with Client(broker, 'seen') as client:
        assert client.send().error_code() == 0
    status, after = waiting()
    assert status == 200
    step = after['steps'][0]
    assert (step['number'], step['point'], step['api'], step['client_id']) == (
        before['next'] + 1, 'request', 'ApiVersions', 'seen')
    assert after['next'] == after['steps'][-1]['number']


def test_a_poll_ends_when_its_time_is_over(broker):
    _, found = broker.ask('GET', '/steps')
    assert broker.ask('GET', f'/steps?since={found["next"]}&wait_ms=50') == (200, {'steps': [], 'next': found['next']})
    _, rule = broker.ask('POST', '/rules', HOLD)
    assert broker.ask('GET', f'/rules/{rule["id"]}?matched=1&wait_ms=50')[1]['matched'] == 0


def test_a_poll_of_a_rule_ends_when_the_rule_is_removed(broker):
    _, rule = broker.ask('POST', '/rules', HOLD)
    waiting = in_thread(lambda: broker.ask('GET', f'/rules/{rule["id"]}?wait_ms=60000'))
    until_polls(broker, 1)
    broker.ask('DELETE', '/rules')
    assert waiting()[0] == 404


def ledger(broker):
    """Return the sizes in the ledger of the broker."""
    report = json.loads(run_command('status', '--data-dir', str(broker.directory), '--json').stdout)
    return {line['what']: line['now'] for line in report['ledger']}


def until_polls(broker, count):
    while ledger(broker)['polls of the control port'] != count:
        pass


def test_a_client_that_goes_away_ends_its_poll(broker):
    since = broker.ask('GET', '/steps')[1]['next']
    connections = [broker.connect_to_control() for _ in range(20)]
    for connection in connections:
        connection.request('GET', f'/steps?since={since}&wait_ms=60000')
    until_polls(broker, 20)
    for connection in connections:
        connection.close()
    until_polls(broker, 0)


def test_steps_are_forgotten_and_their_numbers_go_on(broker):
    with Client(broker, 'forgotten') as client:
        client.send().error_code()
    last = broker.ask('GET', '/steps')[1]['next']
    assert broker.ask('DELETE', '/steps') == (200, {})
    assert broker.ask('GET', '/steps') == (200, {'steps': [], 'next': last})


def test_an_error_of_kafka_is_answered_instead_of_the_effect(broker):
    broker.ask('POST', '/rules', {'point': 'request', 'action': 'error', 'error': 'UNSUPPORTED_VERSION',
                                  'select': {'client_id': 'failed', 'occurrence': 1}})
    with Client(broker, 'failed') as client:
        assert [client.send().error_code() for _ in range(2)] == [35, 0]


@pytest.mark.parametrize(('method', 'path', 'body', 'status', 'text'), [
    ('GET', '/nothing', None, 404, r"found the path '/nothing', expected one of /, .*"),
    ('PUT', '/rules', {}, 405, "found the method 'PUT', expected POST or GET or HEAD or DELETE"),
    ('GET', '/steps?since=x', None, 400, r'since: found "x", expected a number from 0 to \d+'),
    ('GET', '/steps?wait_ms=60001', None, 400, 'wait_ms: found "60001", expected a number from 0 to 60000'),
    ('GET', '/steps?sinc=1', None, 400,
     r'sinc: found a field that does not exist, expected one of since, wait_ms; did you mean since\?'),
    ('GET', '/rules/seven', None, 400, r'id: found "seven", expected a number from 0 to \d+'),
    ('GET', '/rules/4711', None, 404, 'there is no rule 4711, and no other rule'),
    ('POST', '/rules', b'[1]', 400, r'body: found \[1\], expected a JSON object'),
    ('POST', '/rules', b'{"point":', 400, r'body: found no JSON \(.*\), expected one object'),
    ('POST', '/rules', b'{"point": NaN}', 400, 'body: found NaN, expected a number of JSON'),
    ('POST', '/rules', b'{"a": 1, "a": 2}', 400, 'a: found the field twice, expected it once'),
    ('POST', '/rules', b'\xff', 400, 'body: found bytes that are not UTF-8, expected one JSON object'),
    ('POST', '/rules', b'[' * 60_000, 400, 'body: found JSON that is nested too deep, expected one object'),
    ('POST', '/rules', b'9' * 60_000, 400, r'body: found no JSON \(.*\), expected one object'),
    ('POST', '/rules', {'point': 'request', 'action': 'hold', 'select': {'topic': 'x' * MOST_RULE_BYTES}}, 413,
     r'body: found a rule of \d+ bytes, expected at most \d+'),
    ('POST', '/rules', bytes(MOST_BODY_BYTES + 1), 413, 'found a body above 65536 bytes, expected fewer'),
    ('POST', '/rules', {'point': 'transaction.prepred', 'action': 'hold'}, 400,
     r"there is no point 'transaction.prepred'; did you mean transaction.prepared\?; expected one of request, .*"),
    ('DELETE', '/rules', {'all': True}, 400, 'all: found a field that does not exist, expected none'),
    ('POST', '/clock', {}, 400, 'body: found 0 fields, expected one of stop, run, set_ms, advance_ms'),
    ('POST', '/clock', {'stop': 1}, 400, 'stop: found 1, expected true'),
    ('POST', '/clock', {'advance_ms': -1}, 400, r'advance_ms: found -1, expected a number from 0 to \d+'),
    ('POST', '/clock', {'set_ms': 1}, 409, 'set_ms: found 1 .* the clock cannot go backwards.*'),
    ('POST', '/process/pause', {}, 400, 'ms: found no such field, expected a number from 1 to 3600000'),
    ('POST', '/process/pause', {'ms': 1e300}, 400, r'ms: found 1e\+300, expected a number from 1 to 3600000'),
    ('POST', '/process/kill', {'now': True}, 400, 'now: found a field that does not exist, expected none'),
])
def test_a_request_that_makes_no_sense_is_refused_in_one_sentence(broker, method, path, body, status, text):
    found, answer = broker.ask(method, path, body)
    assert (found, [*answer]) == (status, ['error'])
    assert re.fullmatch(text, answer['error'], re.DOTALL), answer


def test_rules_that_contradict_each_other_are_a_conflict(broker):
    broker.ask('POST', '/rules', {'point': 'request', 'action': 'drop'})
    status, answer = broker.ask('POST', '/rules', {'point': 'request', 'action': 'error',
                                                   'error': 'NOT_COORDINATOR'})
    assert status == 409
    assert 'contradicts rule' in answer['error']


@pytest.mark.parametrize(('headers', 'status'), [
    ({'Origin': 'http://localhost'}, 403), ({'Content-Type': 'text/plain'}, 415), ({'Host': 'stranger.example'}, 421)])
def test_a_page_in_a_browser_cannot_use_the_port(broker, headers, status):
    found, answer = broker.ask('POST', '/rules', HOLD, **headers)
    assert (found, [*answer]) == (status, ['error'])
    assert broker.ask('GET', '/rules') == (200, {'rules': []})


def test_a_killed_broker_answers_first(own_broker):
    assert own_broker.ask('POST', '/process/kill') == (202, {})
    assert own_broker._wait() == -signal.SIGKILL


def test_process_1_which_ignores_its_own_signals_ends_nevertheless_and_refuses_to_pause():
    program = ('import os; os.kill = lambda *_: None; os.getpid = lambda: 1\n'
               'from kbroker.control import process, routes\n'
               'try: routes.refuse_pause_of_process_1()\n'
               'except routes.ControlError as error: print(error, flush=True)\n'
               'process.send_signal(9)')
    done = subprocess.run([sys.executable, '-c', program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (128 + signal.SIGKILL, '')
    assert 'Run it under an init: podman run --init' in done.stdout


def test_a_paused_broker_answers_first_and_wakes_without_help(own_broker):
    assert own_broker.ask('POST', '/process/pause', {'ms': 300}) == (202, {'ms': 300})
    assert own_broker.ask('GET', '/')[0] == 200
    children = pathlib.Path(f'/proc/{own_broker.pid}/task/{own_broker.pid}/children')
    assert children.read_text() == ''


def test_the_child_of_a_pause_ends_with_a_broker_that_is_killed(own_broker):
    own_broker.ask('POST', '/process/pause', {'ms': MOST_PAUSE_MS})
    [child] = pathlib.Path(f'/proc/{own_broker.pid}/task/{own_broker.pid}/children').read_text().split()
    own_broker.kill9()
    while pathlib.Path(f'/proc/{child}').exists():
        pass


def test_a_broker_whose_pause_another_process_ends_leaves_no_child(own_broker):
    own_broker.ask('POST', '/process/pause', {'ms': MOST_PAUSE_MS})
    while state_of(own_broker.pid) != 'T':
        pass
    own_broker._process.send_signal(signal.SIGCONT)
    assert own_broker.ask('GET', '/')[0] == 200
    assert pathlib.Path(f'/proc/{own_broker.pid}/task/{own_broker.pid}/children').read_text() == ''


def state_of(pid):
    return pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0]


def test_a_broker_that_holds_requests_stops_cleanly_with_a_stopped_clock(own_broker):
    own_broker.ask('POST', '/clock', {'stop': True})
    own_broker.ask('POST', '/rules', HOLD)
    with Client(own_broker, 'held') as client:
        client.send()
        own_broker.ask('GET', '/rules/1?wait_ms=60000')
        own_broker.stop()


def run_command(*arguments, **variables):
    return subprocess.run([sys.executable, '-m', 'kbroker', *arguments], cwd=ROOT, capture_output=True, text=True,
                          check=False, timeout=LIMIT_S)


def serve_in_vain(tmp_path, *options):
    """Return the last line of the output of a start that fails."""
    done = run_command('serve', '--data-dir', str(tmp_path / 'data'), '--listen', '127.0.0.1:0', *options)
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize(('options', 'text'), [
    (('--control', '0.0.0.0:0'), '--control: other machines reach 0.0.0.0:0, and whoever reaches it can kill the '
     'broker. Expected an address of loopback, or a token: --control-token-file FILE'),
    (('--control', ':0'), '--control: other machines reach :0, '),
    (('--control', '9090'), "--control: found '9090', expected HOST:PORT, an IPv6 host in brackets"),
    (('--control-token-file', 'token'),
     '--control-token-file: found no --control, expected its address, too: --control HOST:PORT'),
    (('--control', '127.0.0.1:0', '--control-token-file', '/nowhere/token'), '/nowhere/token: No such file')])
def test_options_that_make_no_sense_end_the_start_in_one_line(tmp_path, options, text):
    line = serve_in_vain(tmp_path, *options)
    assert line.startswith('kbroker: ')
    assert text in line


def test_a_port_in_use_ends_the_start_in_one_line(tmp_path, broker):
    line = serve_in_vain(tmp_path, '--control', broker.control)
    assert f'cannot listen on {broker.control} for the control port: Address already in use' in line
    assert f'process {broker.pid}' in line


def test_beyond_loopback_clients_need_the_token(tmp_path):
    token = tmp_path / 'token'
    token.write_text('a-token-of-enough-characters\n')
    token.chmod(0o600)
    port = free_port()
    with ControlPortBroker(tmp_path / 'data', control=f'0.0.0.0:{port}',
                          options=('--control-token-file', str(token))) as broker:
        broker.control = f'127.0.0.1:{port}'
        status, answer = broker.ask('GET', '/')
        assert (status, answer['error']) == (
            401, 'expected the token of --control-token-file, as Authorization: Bearer TOKEN or as a password')
        assert broker.ask('GET', '/', Authorization='Bearer a-token-of-enough-characters')[0] == 200
        [line] = [json.loads(line) for line in broker.lines if '"control"' in line]
        assert line['level'] == 'warning'
        assert 'its clients can stop, kill and falsify this broker; its token travels without TLS' in line['message']


def test_a_broker_without_the_option_has_none_of_it(tmp_path):
    """Its only port is that of Kafka's clients, and its process has loaded no module of the control port."""
    with BrokerProcess(tmp_path / 'data') as broker:
        assert listening_ports(broker.pid) == {int(broker.address.rpartition(':')[2])}
    program = ROOT / 'tests' / 'gates' / 'started_broker.py'
    loaded = subprocess.run([sys.executable, str(program), str(tmp_path / 'other')], cwd=ROOT, capture_output=True,
                            text=True, check=True, env=os.environ | {'PYTHONPATH': str(ROOT)}).stdout.split()
    assert 'kbroker.daemon.broker' in loaded
    assert [name for name in loaded if name.startswith(('kbroker.control', 'kbroker.http', 'h11'))
            or name in ('kbroker.daemon.controlling', 'kbroker.topics.controlled_flusher')] == []


def test_the_option_loads_no_slow_module_that_most_tests_do_not_need():
    """A test suite starts hundreds of brokers with a control port."""
    loaded = subprocess.run([sys.executable, '-c', 'import kbroker.daemon.controlling, sys; print(*sys.modules)'],
                            cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert {'ssl', 'hashlib', 'shutil', 'subprocess', 'asyncio', 'tempfile'}.isdisjoint(loaded)


def test_a_broker_with_the_option_has_one_port_more(broker):
    assert listening_ports(broker.pid) == {int(address.rpartition(':')[2]) for address in (
        broker.address, broker.control)}


def listening_ports(pid):
    """Return the ports of TCP on which a process listens."""
    sockets = {os.readlink(each) for each in pathlib.Path(f'/proc/{pid}/fd').iterdir()}
    rows = [line.split() for line in pathlib.Path(f'/proc/{pid}/net/tcp').read_text().splitlines()[1:]]
    return {int(row[1].rpartition(':')[2], 16) for row in rows if row[3] == '0A' and f'socket:[{row[9]}]' in sockets}


# ---- the description in the package

def description():
    return json.loads(OPENAPI.read_text())


def schema(name):
    return description()['components']['schemas'][name]


def test_the_description_is_served(broker):
    assert broker.ask('GET', '/openapi.json') == (200, description())


def test_the_description_has_each_route_and_no_other():
    described = {(method.upper(), path) for path, methods in description()['paths'].items() for method in methods
                 if method != 'parameters'}
    works = dict.fromkeys(('/reset', '/snapshot'))
    routes = {(method, route.path) for route in routes_of(Controlled(None, None, None, None, works))
              for method in route.methods if method != 'HEAD'}
    assert described == routes


def test_the_description_has_each_point_action_field_and_bound():
    assert schema('PointName')['enum'] == [*POINTS]
    assert schema('Action')['enum'] == [*ACTIONS]
    assert set(schema('NewRule')['properties']) == set(FIELDS)
    assert set(schema('Selector')['properties']) == set(SELECTORS)
    assert set(COUNTS) <= set(schema('Selector')['properties'])
    facts = {fact for point in POINTS.values() for fact in point.describe()['facts']}
    assert set(schema('Step')['properties']) == facts
    text = OPENAPI.read_text()
    assert f'"maximum": {MOST_WAIT_MS}' in text
    assert f'"maximum": {MOST_PAUSE_MS}' in text
