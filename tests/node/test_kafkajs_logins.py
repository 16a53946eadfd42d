"""kafkajs logs in by every mechanism, reports a wrong password, and renews its login."""
import json
import subprocess

import pytest
from kafkajs import script
from support.brokers.secured_broker import MECHANISMS, PASSWORD, unsecured_token

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]

LIMIT_S = 120
HANDSHAKES = 5
"""The logins of a case: those of two connections, and three renewals."""
CASES = [(protocol, mechanism) for protocol in ('SASL_PLAINTEXT', 'SASL_SSL') for mechanism in MECHANISMS]


def case(secured, protocol, mechanism, password=PASSWORD, handshakes=0):
    """Return a case for `logins.js`. With a wrong password, the token is expired."""
    login = {'username': 'alice', 'password': password}
    if mechanism == 'OAUTHBEARER':
        login = {'token': unsecured_token('alice', 3600 if password == PASSWORD else -3600)}
    certificates = {'ca': str(secured.plan.certificates / 'ca.pem')} if protocol == 'SASL_SSL' else {}
    return {'brokers': [secured.plan.addresses[protocol]], 'mechanism': mechanism, 'handshakes': handshakes,
            'topic': f'{protocol}-{mechanism}-{handshakes}'} | login | certificates


def run(cases):
    done = subprocess.run(['node', script('logins.js')], input=json.dumps(cases), capture_output=True, text=True,
                          timeout=LIMIT_S, check=True)
    return json.loads(done.stdout)


def test_kafkajs_produces_and_reads_after_a_login(secured):
    answers = run([case(secured, *wanted) for wanted in CASES])
    assert answers == [{'error': '', 'sent': 1, 'read': [0]}] * len(CASES)


def test_kafkajs_reports_a_wrong_password(secured):
    for (_, mechanism), answer in zip(CASES, run([case(secured, *wanted, 'wrong') for wanted in CASES]), strict=True):
        if mechanism == 'PLAIN':
            assert answer['error'].endswith('Authentication failed: Invalid username or password')
        elif mechanism == 'OAUTHBEARER':  # kafkajs does not read the error and goes on as if it were logged in
            assert answer['error'] in ('KafkaJSConnectionClosedError: Closed connection',
                                       'KafkaJSConnectionError: Connection error: read ECONNRESET')
        else:
            assert answer['error'].endswith(f'due to invalid credentials with SASL mechanism {mechanism}')


@pytest.fixture(scope='module')
def renewed(secured):
    """Run a producer for each mechanism at the same time, which renews its login. Return their results by mechanism."""
    answers = run([case(secured, 'SASL_PLAINTEXT', mechanism, handshakes=HANDSHAKES) for mechanism in MECHANISMS])
    return dict(zip(MECHANISMS, answers, strict=True))


@pytest.mark.parametrize('mechanism', MECHANISMS)
def test_kafkajs_renews_its_login_and_loses_no_message(secured, renewed, mechanism):
    answer = renewed[mechanism]
    assert answer == {'error': '', 'sent': answer['sent'], 'read': list(range(answer['sent']))}
    renewals = secured.renewals(mechanism)
    assert len(renewals) >= HANDSHAKES - 2
    assert {line['outcome'] for line in renewals} == {'ok'}
