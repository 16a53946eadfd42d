"""A worker verifies the signatures of tokens. The loop does not wait for the worker, and requests of a connection keep
their order."""
import json

import pytest
from joserfc import jws
from joserfc.jwk import ECKey
from login_broker import LISTENER, login_broker
from support.brokers.secured_broker import MODULES
from support.clients.login_client import LoginClient
from support.clients.socket_peers import LateWorker

from kbroker.apis.serving import token_checks
from kbroker.base.errors import ErrorCode
from kbroker.protocol import messages
from kbroker.security.mechanisms import VALIDATOR
from kbroker.security.principal import Principal
from kbroker.security.session import LoginState

KEY = ECKey.generate_key('P-256')
PREFIX = f'{LISTENER}.oauthbearer'
REFUSAL = b'{"status":"invalid_token"}'
DELAY_MS = 100


@pytest.fixture
def worker():
    return LateWorker()


@pytest.fixture
def broker(tmp_path, worker):
    keys = tmp_path / 'keys.json'
    keys.write_text(json.dumps({'keys': [KEY.as_dict(private=False)]}))
    settings = {f'{PREFIX}.sasl.server.callback.handler.class': VALIDATOR,
                f'{PREFIX}.sasl.oauthbearer.jwks.endpoint.url': f'file://{keys}',
                f'{PREFIX}.sasl.oauthbearer.expected.audience': 'kafka',
                f'{PREFIX}.sasl.oauthbearer.allow.unverified.issuer': 'true',
                f'{PREFIX}.sasl.jaas.config': f'{MODULES}.oauthbearer.OAuthBearerLoginModule required;'}
    with login_broker(tmp_path / 'data', settings, worker.submit) as broker:
        yield broker


def message(broker, user='alice', made=KEY):
    now_s = broker.clock.wall_ms() // 1000
    claims = {'sub': user, 'iat': now_s, 'exp': now_s + 3600, 'aud': 'kafka'}
    token = jws.serialize_compact({'alg': 'ES256'}, json.dumps(claims), made)
    return f'n,,\x01auth=Bearer {token}\x01\x01'.encode()


def begun(broker, token, version=1):
    """Return a client that has sent its token."""
    client = LoginClient(broker)
    assert client.handshake('OAUTHBEARER', version).error_code == 0
    if version == 0:
        broker.send(client.connection, token)
    else:
        assert client.token(token) is None, 'the loop does not wait for the signature'
    return client


def answer(client):
    return client.answer(messages.SaslAuthenticateRequest(), 2)


def test_a_login_is_answered_when_its_signature_is_verified(broker, worker):
    client = begun(broker, message(broker))
    assert client.session.state == LoginState.TOKENS
    assert client.session.principal.name == 'ANONYMOUS'
    worker.work()
    found = answer(client)
    assert (found.error_code, found.auth_bytes, found.session_lifetime_ms) == (0, b'', 3_600_000)
    assert (client.session.principal, client.session.state) == (Principal('User', 'alice'), LoginState.LOGGED_IN)


def test_a_login_without_headers_waits_for_its_signature_too(broker, worker):
    client = begun(broker, message(broker), version=0)
    answers = len(client.connection.replies)
    worker.work()
    assert client.connection.replies[answers:] == [b'']
    assert client.session.principal == Principal('User', 'alice')


@pytest.mark.parametrize('is_broken', [False, True])
def test_a_signature_that_does_not_fit_and_a_check_that_fails_refuse_the_token(broker, worker, is_broken, caplog):
    client = begun(broker, message(broker, made=ECKey.generate_key('P-256')))
    if is_broken:
        worker.jobs = [(lambda: 1 / 0, done) for _, done in worker.jobs]
    worker.work()
    assert answer(client).auth_bytes == REFUSAL
    assert client.token(b'\x01') is None
    client.wait(DELAY_MS)
    found = answer(client)
    assert (found.error_code, found.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, REFUSAL.decode())
    assert ('the check of a token failed' in caplog.text) is is_broken


def test_checks_run_one_at_a_time_in_the_order_of_the_tokens(broker, worker):
    clients = [begun(broker, message(broker, f'user-{number}')) for number in range(3)]
    for number, client in enumerate(clients):
        assert len(worker.jobs) == 1
        assert [each.session.state == LoginState.LOGGED_IN for each in clients] == [
            other < number for other in range(3)]
        worker.work()
        assert client.session.principal.name == f'user-{number}'
    assert not worker.jobs


def test_the_token_of_a_client_that_left_is_not_checked(broker, worker):
    clients = [begun(broker, message(broker)) for _ in range(3)]
    clients[0].connection.close('it left during its check')
    clients[1].connection.close('it left before its check')
    worker.work()
    assert len(broker.authentication.token_checks) == 0
    assert clients[0].session.state == LoginState.TOKENS
    worker.work()
    assert clients[2].session.state == LoginState.LOGGED_IN
    assert not worker.jobs


def test_a_renewal_leaves_the_old_session_in_force_until_its_signature_is_verified(broker, worker):
    client = begun(broker, message(broker))
    worker.work()
    assert answer(client).error_code == 0
    assert client.handshake('OAUTHBEARER').error_code == 0
    assert client.token(message(broker, 'bob')) is None
    assert (client.session.principal.name, client.session.state) == ('alice', LoginState.RENEWING)
    worker.work()
    client.wait(DELAY_MS)
    assert 'Cannot change principals' in answer(client).error_message


def test_tokens_beyond_the_bound_of_the_line_end_their_connections(broker, worker, monkeypatch):
    monkeypatch.setattr(token_checks, 'MOST_WAITING', 2)
    clients = [begun(broker, message(broker)) for _ in range(4)]
    assert [client.connection.closed for client in clients] == [
        None, None, None, 'too many tokens wait for the check of their signature']
    for _ in range(3):
        worker.work()
    assert [client.session.state == LoginState.LOGGED_IN for client in clients] == [True, True, True, False]
