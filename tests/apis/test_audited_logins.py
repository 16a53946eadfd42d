"""The broker logs a line for each login. The line of a failed login has the name that the client tried."""
import json

import pytest
from login_broker import LISTENER, audited, login_broker
from support.brokers.secured_broker import PASSWORD, unsecured_token
from support.clients.login_client import LoginClient

from kbroker.client.sasl import conversation
from kbroker.security.audit import MOST_OF_A_FIELD

LIFETIME_MS = 60_000


@pytest.fixture
def broker(tmp_path):
    with login_broker(tmp_path, {f'{LISTENER}.plain.connections.max.reauth.ms': str(LIFETIME_MS)}) as broker:
        yield audited(broker)


def failure(broker, mechanism, *tokens):
    """Send tokens of a login that fails. Return its line in the audit."""
    client = LoginClient(broker)
    client.handshake(mechanism)
    for token in tokens:
        client.token(token)
    line = json.loads(broker.lines.texts[-1])
    assert (line['event'], line['outcome'], line['principal'], line['mechanism']) == (
        'login', 'SASL_AUTHENTICATION_FAILED', 'User:ANONYMOUS', mechanism)
    return line


def bearer(token, authzid=''):
    return f'n,{authzid},\x01auth=Bearer {token}\x01\x01'.encode()


@pytest.mark.parametrize(('token', 'name'), [
    (b'\0alice\0nonsense', 'alice'), (b'\0mallory\0x', 'mallory'), (b'\0alice\0', 'alice'),
    (b'bob\0alice\0' + PASSWORD.encode(), 'alice'), (b'\0\0x', None), (b'alice', None)])
def test_the_name_of_a_failed_login_by_plain_is_audited(broker, token, name):
    assert failure(broker, 'PLAIN', token).get('claimed_name') == name


@pytest.mark.parametrize('mechanism', ['SCRAM-SHA-256', 'SCRAM-SHA-512'])
def test_the_name_of_a_failed_login_by_scram_is_audited(broker, mechanism):
    talk, client = conversation(mechanism, 'mallory', 'guess'), LoginClient(broker)
    client.handshake(mechanism)
    client.token(talk.send(client.token(next(talk)).auth_bytes))
    line = json.loads(broker.lines.texts[-1])
    assert (line['outcome'], line['claimed_name']) == ('SASL_AUTHENTICATION_FAILED', 'mallory')
    assert failure(broker, mechanism, b'n,,n=mallory,r=x', b'nonsense')['claimed_name'] == 'mallory'
    assert failure(broker, mechanism, b'n,a=bob,n=mallory,r=x')['claimed_name'] == 'mallory'
    assert 'claimed_name' not in failure(broker, mechanism, b'nonsense')


def test_the_subject_that_a_refused_token_claims_is_audited(broker):
    now_s = broker.clock.wall_ms() // 1000
    expired = unsecured_token('mallory', 5, now_s=now_s - 3600)
    assert failure(broker, 'OAUTHBEARER', bearer(expired), b'\x01')['claimed_name'] == 'mallory'
    assert failure(broker, 'OAUTHBEARER', *[bearer(expired)] * 5)['claimed_name'] == 'mallory'
    good = unsecured_token('mallory', 5, now_s=now_s)
    assert failure(broker, 'OAUTHBEARER', bearer(good, 'a=bob'))['claimed_name'] == 'mallory'
    assert 'claimed_name' not in failure(broker, 'OAUTHBEARER', bearer('a.b.c'), b'\x01')


@pytest.mark.parametrize('gives_up', [True, False])
def test_a_client_that_leaves_after_its_token_was_refused_has_failed_once(broker, gives_up):
    client = LoginClient(broker)
    client.handshake('OAUTHBEARER')
    expired = unsecured_token('mallory', 5, now_s=broker.clock.wall_ms() // 1000 - 3600)
    assert client.token(bearer(expired)).auth_bytes
    if gives_up:
        client.token(b'\x01')
    before = len(broker.lines.texts)
    broker.authentication.connection_closed(client.connection)
    assert len(broker.lines.texts) - before == (not gives_up)
    line = json.loads(broker.lines.texts[-1])
    assert (line['outcome'], line['claimed_name']) == ('SASL_AUTHENTICATION_FAILED', 'mallory')
    assert len(broker.authentication.failed_logins) == 1


def test_a_client_that_leaves_during_a_login_or_after_it_leaves_no_line(broker):
    for token in (b'', b'\0alice\0' + PASSWORD.encode()):
        client = LoginClient(broker)
        client.handshake()
        if token:
            client.token(token)
        before = len(broker.lines.texts)
        broker.authentication.connection_closed(client.connection)
        assert len(broker.lines.texts) == before


def test_a_name_that_is_long_or_made_to_forge_a_line_is_cut_and_escaped(broker):
    name = 'x"\n{"event": "login"}\u202e' + 'y' * 20_000
    line = failure(broker, 'PLAIN', b'\0' + name.encode() + b'\0guess')
    assert '\n' not in broker.lines.texts[-1] and '\u202e' not in broker.lines.texts[-1]
    assert line['claimed_name'].startswith('x"\\n{"event": "login"}\\u202eyyy')
    assert len(line['claimed_name']) < MOST_OF_A_FIELD + 100
    assert len(broker.lines.texts[-1]) < 4 * MOST_OF_A_FIELD


def test_a_renewal_under_another_name_is_audited_with_both_names(broker):
    client = LoginClient(broker)
    client.log_in(b'\0alice\0' + PASSWORD.encode())
    line = json.loads(broker.lines.texts[-1])
    assert (line['outcome'], line['principal']) == ('ok', 'User:alice')
    assert 'claimed_name' not in line
    client.log_in(b'\0bob\0x')
    line = json.loads(broker.lines.texts[-1])
    assert (line['event'], line['principal'], line['claimed_name']) == ('reauthentication', 'User:alice', 'bob')
