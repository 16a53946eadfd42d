"""The login of a connection: the requests that each state serves, and their answers, which equal Apache Kafka's."""
import hashlib

import pytest
from api_client import ApiClient
from login_broker import LISTENER, login_broker
from support.brokers.in_process_broker import frame_of
from support.brokers.secured_broker import MECHANISMS, OAUTH_JAAS, PASSWORD, PLAIN_JAAS, unsecured_token
from support.clients.login_client import LoginClient, connect, versions

from kbroker.apis.serving.served import served_apis
from kbroker.base.errors import ErrorCode
from kbroker.client.sasl import conversation
from kbroker.protocol import messages
from kbroker.protocol.api_keys import ApiKey
from kbroker.security.failed_logins import MOST_AT_ONCE, PACE_MS
from kbroker.security.principal import ANONYMOUS, Principal
from kbroker.security.session import LoginState

ALICE = Principal('User', 'alice')
GOOD = b'\0alice\0' + PASSWORD.encode()
WRONG = b'\0alice\0nonsense'
WRONG_TEXT = 'Authentication failed: Invalid username or password'
DELAY_MS = 100
LIFETIME_MS = 60_000
BROKER = 4


class Client(LoginClient):
    def log_in(self, token=GOOD, mechanism='PLAIN'):
        return super().log_in(token, mechanism)


def metadata():
    return messages.MetadataRequest(topics=None)


@pytest.fixture
def settings():
    return {}


@pytest.fixture
def broker(tmp_path, settings):
    with login_broker(tmp_path, settings) as broker:
        yield broker


@pytest.fixture
def client(broker):
    return Client(broker)


def test_a_login_by_plain_gives_the_connection_its_principal(client):
    assert client.connection.largest_frame_bytes == 65536
    assert (client.session.principal, client.session.state) == (ANONYMOUS, LoginState.INTRODUCED)
    answer = client.handshake()
    assert (answer.error_code, set(answer.mechanisms)) == (0, set(MECHANISMS))
    answer = client.token(GOOD)
    assert (answer.error_code, answer.error_message, answer.auth_bytes, answer.session_lifetime_ms) == (0, '', b'', 0)
    assert (client.session.principal, client.session.state) == (ALICE, LoginState.LOGGED_IN)
    assert not client.session.is_guarded
    assert client.connection.largest_frame_bytes is None
    assert len(client.ask(metadata(), 12).brokers) == 1


def test_the_expected_cluster_is_compared_only_after_the_login(broker):
    """Apache Kafka 4.4.0 does the same: a client may fail a login whose ApiVersions has an unexpected error."""
    elsewhere, half, right = (
        messages.ApiVersionsRequest(client_software_name='x', client_software_version='1', cluster_id=cluster_id,
                                    node_id=node_id)
        for cluster_id, node_id in (('other', 1), (None, 1), (broker.metadata.cluster_id, broker.metadata.node_id)))
    connection = connect(broker)
    for request, code, state in ((half, ErrorCode.INVALID_REQUEST, LoginState.UNKNOWN),
                                 (elsewhere, ErrorCode.NONE, LoginState.INTRODUCED)):
        broker.send(connection, frame_of(request, 5))
        assert connection.replies[-1][4:6] == code.to_bytes(2)
        assert (connection.session.state, connection.is_leaving) == (state, False)
    client = Client(broker)
    client.log_in()
    assert [client.ask(request, 5).error_code for request in (elsewhere, half, right)] == [
        ErrorCode.REBOOTSTRAP_REQUIRED, ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert len(client.ask(metadata(), 12).brokers) == 1


def test_a_login_by_tokens_without_headers(broker, client):
    assert client.handshake(version=0).error_code == 0
    client.broker.send(client.connection, GOOD)
    assert client.connection.replies[-1] == b''
    assert client.session.principal == ALICE
    other = Client(broker)
    other.handshake(version=0)
    answers = len(other.connection.replies)
    other.broker.send(other.connection, WRONG)
    assert (other.connection.is_leaving, other.connection.closed) == (True, None)
    other.wait(DELAY_MS)
    assert (other.connection.closed, len(other.connection.replies)) == ('its login failed', answers)


@pytest.mark.parametrize('request_', [metadata(), messages.SaslAuthenticateRequest(auth_bytes=GOOD), versions()])
def test_nothing_but_a_handshake_follows_the_versions(client, request_):
    version = 12 if request_ == metadata() else 2
    assert client.ask(request_, version) is None
    assert 'not before a login' in client.connection.closed


def test_nothing_but_versions_and_handshake_is_served_at_first(broker):
    for frame in (frame_of(metadata(), 12), b'', b'\0', b'GET / HTTP/1.1\r\n\r\n', GOOD):
        client = Client(broker)
        client.connection.session = broker.authentication.open(client.connection)
        broker.send(client.connection, frame)
        assert client.connection.closed
        assert len(client.connection.replies) == client.answered


def test_versions_that_are_refused_do_not_use_up_the_turn(broker):
    client = Client(broker)
    client.connection.session = broker.authentication.open(client.connection)
    assert client.ask(versions(name='-bad-'), 3).error_code == ErrorCode.INVALID_REQUEST
    frame = bytearray(frame_of(versions(), 4))
    frame[3] = 99
    broker.send(client.connection, bytes(frame))
    answer = client.answer(versions(), 0)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert client.ask(versions(), 3).error_code == 0
    assert client.log_in().error_code == 0


def test_a_wrong_password_is_answered_after_the_delay_and_nothing_is_served_meanwhile(client):
    client.handshake()
    assert client.token(WRONG) is None
    assert client.connection.is_leaving
    client.wait(DELAY_MS - 1)
    assert client.answer(messages.SaslAuthenticateRequest(), 2) is None
    client.wait(1)
    answer = client.answer(messages.SaslAuthenticateRequest(), 2)
    assert (answer.error_code, answer.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, WRONG_TEXT)
    assert (client.session.state, client.session.principal) == (LoginState.FAILED, ANONYMOUS)


@pytest.mark.parametrize('settings', [{'connection.failed.authentication.delay.ms': '0'}])
def test_without_a_delay_a_failure_is_answered_at_once(client, settings):
    client.handshake()
    assert client.token(WRONG).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert client.connection.is_leaving


def test_a_mechanism_that_is_not_enabled_is_answered_with_those_that_are(client):
    assert client.handshake('GSSAPI') is None
    client.wait(DELAY_MS)
    answer = client.answer(messages.SaslHandshakeRequest(), 1)
    assert (answer.error_code, set(answer.mechanisms)) == (ErrorCode.UNSUPPORTED_SASL_MECHANISM, set(MECHANISMS))


@pytest.mark.parametrize(('request_', 'version'), [
    (messages.SaslHandshakeRequest(mechanism='PLAIN'), 1), (versions(), 3), (metadata(), 12)])
def test_another_request_among_the_tokens_is_answered_in_its_own_form(client, request_, version):
    client.handshake()
    assert client.ask(request_, version) is None
    client.wait(DELAY_MS)
    answer = client.answer(request_, version)
    if request_ == metadata():
        assert (answer.brokers, answer.cluster_id) == ([], None)
    else:
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert client.connection.is_leaving


def test_any_request_among_the_tokens_ends_the_login_and_no_more(broker):
    """A request during the login fails as a whole. Depending on the API, it gets an answer or its connection is
    closed."""
    for api in served_apis():
        for version in range(api.min_version, api.max_version + 1):
            if api.key == ApiKey.SASL_AUTHENTICATE:
                continue
            client = Client(broker)
            client.handshake()
            assert client.ask(api.request_class(), version) is None
            client.wait(DELAY_MS)
            assert client.session.state == LoginState.FAILED
            if client.connection.closed is None:
                client.answer(api.request_class(), version)
                assert client.connection.is_leaving
            else:
                assert client.connection.closed == 'its login failed'


@pytest.mark.parametrize(('method', 'version', 'frame'), [
    ('_step', 0, GOOD), ('_step', 1, frame_of(messages.SaslAuthenticateRequest(auth_bytes=GOOD), 2)),
    ('take_bare_token', 0, GOOD), ('refuse', 1, frame_of(metadata(), 12))])
def test_an_error_of_the_broker_in_a_login_ends_no_more_than_the_login(
        broker, monkeypatch, caplog, method, version, frame):
    client, other = Client(broker), Client(broker)
    other.handshake()
    client.handshake(version=version)

    def fail(*_):
        raise OverflowError('a bug')

    with monkeypatch.context() as patched:
        patched.setattr(broker.authentication, method, fail)
        broker.send(client.connection, frame)
    client.wait(DELAY_MS)
    assert client.connection.is_leaving or client.connection.closed
    assert client.session.principal == ANONYMOUS
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [OverflowError]
    assert not any(PASSWORD in record.getMessage() for record in caplog.records)
    assert other.token(GOOD).error_code == 0


def test_a_login_has_few_tokens(client):
    client.handshake('OAUTHBEARER')
    for _ in range(8):
        client.token(b'n,,\x01auth=Bearer a.b.c\x01\x01')
    client.wait(DELAY_MS)
    assert client.session.state == LoginState.FAILED


def test_sasl_on_a_connection_that_is_logged_in_is_refused_and_the_connection_stays(broker):
    plain, logged_in = Client(broker, 'PLAINTEXT'), Client(broker)
    logged_in.log_in()
    for client in (plain, logged_in):
        answer = client.handshake()
        assert (answer.error_code, answer.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])
        answer = client.token(GOOD)
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert answer.error_message == 'SaslAuthenticate request received after successful authentication'
        assert len(client.ask(metadata(), 12).brokers) == 1


LIMITED = {f'{LISTENER}.plain.connections.max.reauth.ms': str(LIFETIME_MS)}


@pytest.mark.parametrize('settings', [LIMITED])
def test_a_session_with_an_end_is_renewed_before_or_after_it(client, settings):
    assert client.log_in().session_lifetime_ms == LIFETIME_MS
    assert client.ask(metadata(), 12) is not None
    assert client.log_in().session_lifetime_ms == LIFETIME_MS, 'the first renewal may begin at once'
    assert client.handshake().error_code == ErrorCode.ILLEGAL_SASL_STATE, 'the next one has to wait a second'
    client.wait(LIFETIME_MS)
    assert client.log_in().error_code == 0
    assert client.ask(metadata(), 12) is not None
    client.wait(LIFETIME_MS)
    assert client.ask(metadata(), 12) is None
    assert 'METADATA v12' in client.connection.closed


@pytest.mark.parametrize('settings', [LIMITED])
def test_a_renewal_by_another_user_fails(client, settings):
    client.log_in()
    assert client.log_in(b'\0bob\0x') is None
    client.wait(DELAY_MS)
    answer = client.answer(messages.SaslAuthenticateRequest(), 2)
    assert (answer.error_code, answer.error_message) == (
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        'Cannot change principals during re-authentication from User.alice: User.bob')
    assert client.session.principal == ALICE


@pytest.mark.parametrize('settings', [LIMITED])
def test_a_renewal_by_another_mechanism_ends_the_connection(broker, settings):
    client = Client(broker)
    client.log_in()
    assert client.handshake('OAUTHBEARER').error_code == 0
    assert client.token(b'n,,\x01auth=Bearer ' + unsecured_token('alice').encode() + b'\x01\x01') is None
    client.wait(DELAY_MS)
    assert client.connection.closed == 'its login failed'
    client = Client(broker)
    client.log_in()
    assert client.handshake('GSSAPI') is None
    assert 'not enabled' in client.connection.closed


@pytest.mark.parametrize('settings', [LIMITED])
def test_a_failed_renewal_is_said_to_be_one(client, settings):
    client.log_in()
    client.handshake()
    assert client.ask(metadata(), 12) is None
    client.wait(DELAY_MS)
    assert client.answer(metadata(), 12).brokers == []


@pytest.mark.parametrize('settings', [{'connections.max.reauth.ms': str(LIFETIME_MS)}])
@pytest.mark.parametrize(('lifetime_s', 'expected_ms'), [(5, 5000), (3600, LIFETIME_MS)])
def test_a_session_ends_with_its_token_or_at_the_limit(client, settings, lifetime_s, expected_ms):
    token = unsecured_token('carol', lifetime_s, now_s=client.broker.clock.wall_ms() // 1000)
    answer = client.log_in(b'n,,\x01auth=Bearer ' + token.encode() + b'\x01\x01', 'OAUTHBEARER')
    assert answer.session_lifetime_ms == expected_ms
    client.wait(expected_ms - 1)
    assert client.ask(metadata(), 12) is not None
    client.wait(1)
    assert client.ask(metadata(), 12) is None
    assert client.connection.closed


def test_an_address_that_guesses_has_to_wait_and_its_right_password_still_counts(broker):
    for _ in range(MOST_AT_ONCE):
        client = Client(broker)
        client.log_in(WRONG)
    first, second = Client(broker), Client(broker)
    assert first.log_in().error_code == 0
    assert second.handshake() is None
    second.wait(PACE_MS)
    assert second.answer(messages.SaslHandshakeRequest(), 1).error_code == 0
    assert second.token(GOOD).error_code == 0


def test_secrets_are_in_no_representation(broker):
    logins = broker.authentication.listeners['SASL_PLAINTEXT']
    assert 'wonder' not in repr(logins)
    assert 'wonder' not in repr(broker.config.describe())


def change_broker(broker, configs, **options):
    changes = [(f'{LISTENER}.{name}', int(value is None), value) for name, value in configs.items()]
    return ApiClient(broker).change(BROKER, '1', *changes, **options)


def rename_alice(broker):
    users = PLAIN_JAAS.replace('user_alice', 'user_carol')
    assert change_broker(broker, {'plain.sasl.jaas.config': users}).error_code == 0


def test_users_that_change_at_run_time_count_from_the_next_login(broker):
    logged_in = Client(broker)
    logged_in.log_in()
    rename_alice(broker)
    assert logged_in.ask(metadata(), 12) is not None
    client = Client(broker)
    assert client.log_in(GOOD.replace(b'alice', b'carol')).error_code == 0
    assert Client(broker).log_in() is None


def test_a_login_fails_if_the_users_of_its_mechanism_changed_since_it_began(broker):
    client = Client(broker)
    client.handshake()
    rename_alice(broker)
    assert client.token(GOOD) is None
    client.wait(DELAY_MS)
    answer = client.answer(messages.SaslAuthenticateRequest(), 2)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert client.session.principal == ANONYMOUS


SCRAM_JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required;'
UNFIT = [
    ({'plain.sasl.jaas.config': SCRAM_JAAS}, 'another login module, expected org.apache.kafka.common.security.plain'),
    ({'scram-sha-256.sasl.jaas.config': PLAIN_JAAS}, 'another login module'),
    ({'oauthbearer.sasl.jaas.config': OAUTH_JAAS.replace(';', ' unsecuredValidatorNonsense=x;')}, 'found the option'),
]


@pytest.mark.parametrize('validate_only', [False, True])
@pytest.mark.parametrize(('configs', 'reason'), UNFIT)
def test_settings_that_do_not_fit_their_mechanism_are_refused_at_run_time(broker, configs, reason, validate_only):
    assert change_broker(broker, {'plain.sasl.jaas.config': PLAIN_JAAS.replace('bob', 'bert')}).error_code == 0
    stored, logins = dict(broker.metadata.image.configs), broker.authentication.listeners['SASL_PLAINTEXT']
    refusal = change_broker(broker, configs, validate_only=validate_only)
    assert refusal.error_code == ErrorCode.INVALID_REQUEST
    assert reason in refusal.error_message and 'wonder' not in refusal.error_message
    assert broker.metadata.image.configs == stored
    assert broker.authentication.listeners['SASL_PLAINTEXT'] is logins
    assert Client(broker).log_in().error_code == 0


@pytest.mark.parametrize('settings', [{}, {'kbroker.end.sessions.of.changed.users': 'true'}])
@pytest.mark.parametrize('is_deletion', [False, True])
def test_a_changed_credential_ends_sessions_if_the_operator_wants_it(broker, settings, is_deletion):
    request = messages.AlterUserScramCredentialsRequest

    def alter(name, password, is_deletion=False):
        salted = hashlib.pbkdf2_hmac('sha256', password, b'salt', 4096)
        broker.ask(request(
            deletions=[request.ScramCredentialDeletion(name=name, mechanism=1)] if is_deletion else [],
            upsertions=[] if is_deletion else [request.ScramCredentialUpsertion(
                name=name, mechanism=1, iterations=4096, salt=b'salt', salted_password=salted)]))

    alter('carol', b'one')
    alter('dave', b'one')
    carol, dave, alice = Client(broker), Client(broker), Client(broker)
    for client, name in ((carol, 'carol'), (dave, 'dave')):
        client.handshake('SCRAM-SHA-256')
        talk = conversation('SCRAM-SHA-256', name, 'one')
        answer = client.token(next(talk))
        client.token(talk.send(answer.auth_bytes))
        assert client.session.principal.name == name
    alice.log_in()
    alter('carol', b'two', is_deletion)
    assert (carol.connection.is_leaving, dave.connection.is_leaving, alice.connection.is_leaving) == (
        bool(settings), False, False)
    again = Client(broker)
    again.handshake('SCRAM-SHA-256')
    talk = conversation('SCRAM-SHA-256', 'carol', 'one')
    answer = again.token(next(talk))
    assert again.token(talk.send(answer.auth_bytes)) is None
    again.wait(DELAY_MS)
    answer = again.answer(messages.SaslAuthenticateRequest(), 2)
    assert answer.error_message == ('Authentication failed during authentication due to invalid credentials with SASL '
                                    'mechanism SCRAM-SHA-256')


def test_logins_count_by_mechanism(broker):
    Client(broker).log_in(GOOD)
    for _ in range(2):
        Client(broker).log_in(WRONG)
    Client(broker).handshake('NOTHING')
    assert (broker.authentication.logins, broker.authentication.failures) == ({'PLAIN': 1}, {'PLAIN': 2, 'unknown': 1})
