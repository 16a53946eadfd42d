"""Bearer tokens of the client: unsecured tokens that it makes itself, tokens from a file, and tokens of an identity
provider."""
import base64
import http.server
import json
import threading
from urllib.parse import parse_qs

import pytest
from support.brokers.scripted_broker import exactly, serving

from kbroker.base.clock import ManualClock
from kbroker.base.errors import ConfigError, KafkaError
from kbroker.client.config import ClientConfig
from kbroker.client.errors import ClientError
from kbroker.security.oauthbearer import UnsecuredOAuthBearer

URL = 'sasl.oauthbearer.token.endpoint.url'
BASE = {'bootstrap.servers': 'h:1', 'security.protocol': 'SASL_PLAINTEXT', 'sasl.mechanism': 'OAUTHBEARER'}
PACKAGE = 'org.apache.kafka.common.security.oauthbearer'
HANDLER = f'{PACKAGE}.OAuthBearerLoginCallbackHandler'


def jaas(options):
    return {'sasl.jaas.config': f'{PACKAGE}.OAuthBearerLoginModule required {options};'}


def source(settings):
    config = ClientConfig.from_settings(BASE | settings)
    assert 'horse' not in repr(config) and 'horse' not in repr(config.sasl_token)
    return config.sasl_token


def complaint(settings):
    with pytest.raises(ConfigError) as caught:
        source(settings)
    assert 'horse' not in str(caught.value)
    return str(caught.value)


def test_the_client_writes_its_own_token():
    token = source(jaas('unsecuredLoginStringClaim_sub="alice" unsecuredLoginNumberClaim_n="1.5" '
                        'unsecuredLoginListClaim_scope="|a|b" unsecuredLoginLifetimeSeconds="60"')).token()
    header, claims, signature = (base64.urlsafe_b64decode(part + '==') for part in token.split('.'))
    claims = json.loads(claims)
    assert (json.loads(header), signature) == ({'alg': 'none'}, b'')
    assert claims['exp'] - claims['iat'] == pytest.approx(60)
    assert (claims['sub'], claims['n'], claims['scope']) == ('alice', 1.5, ['a', 'b'])
    clock = ManualClock()
    clock.set_wall_ms(round(claims['iat'] * 1000))
    assert UnsecuredOAuthBearer({'unsecuredValidatorRequiredScope': 'b'}, clock).login_of(token).name == 'alice'


@pytest.mark.parametrize(('options', 'words'), [
    ('', 'found no user, expected sasl.oauthbearer.token.endpoint.url, or for development the option unse'),
    ('unsecuredLoginPrincipalClaimName=user unsecuredLoginStringClaim_sub=a', 'unsecuredLoginStringClaim_user='),
    ('unsecuredLoginNumberClaim_sub="1"', 'found no user'),
    ('unsecuredLoginNumberClaim_x="horse"', 'expected a number'),
    ('unsecuredLoginStringClaim_sub=a unsecuredLoginNumberClaim_exp="1"', 'found a claim iat or exp'),
    ('unsecuredLoginStringClaim_sub=a unsecuredLoginLifetimeSeconds="0"', 'expected seconds, 1 or more'),
    ('unsecuredLoginStringClaim_sub=a unsecuredLoginExtension_auth=x', 'found an extension \'auth\''),
    ('unsecuredLoginStringClaim_sub=a extension_x1=x', 'found an extension \'x1\''),
])
def test_a_login_module_that_describes_no_token(options, words):
    assert words in complaint(jaas(options))


def test_a_token_is_read_from_a_file_for_each_login(tmp_path):
    file = tmp_path / 'token'
    settings = {URL: f'file://{file}', 'sasl.login.callback.handler.class': HANDLER,
                'sasl.oauthbearer.jwt.retriever.class': f'{PACKAGE}.FileJwtRetriever'}
    with pytest.raises(ClientError, match='No such file'):
        source(settings).token()
    tokens = source(settings)
    for text in ('a.b.c', 'd.e.f'):
        file.write_text(f' {text}\n')
        assert tokens.token() == text
    file.write_text('horse horse')
    with pytest.raises(KafkaError, match='11 characters that are not a bearer token') as caught:
        tokens.token()
    assert 'horse' not in str(caught.value)


@pytest.mark.parametrize(('settings', 'words'), [
    ({URL: 'ftp://h/x'}, f'{URL}: found something else'), ({URL: 'https://user:horse@h/x'}, f'{URL}: found something'),
    ({URL: 'https://h/x'}, 'found no id or no secret'),
    ({URL: 'https://h/x'} | jaas('clientId=me'), 'found no id or no secret'),
    ({'sasl.login.callback.handler.class': 'x.Y', URL: 'file:///x'}, "found 'x.Y', expected one of org.apache"),
    ({'sasl.oauthbearer.assertion.file': 'x', URL: 'file:///x'}, 'this client does not know this setting'),
])
def test_settings_that_do_not_fit(settings, words):
    assert words in complaint(settings)


@pytest.fixture
def provider():
    """Yield an identity provider: its URL, the requests that it received, and the answers that it gives."""
    asked, answers = [], []

    class Provider(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers['Content-Length'])).decode()
            asked.append((self.headers['Authorization'], parse_qs(body)))
            status, members = answers.pop(0)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(members if isinstance(members, bytes) else json.dumps(members).encode())

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Provider)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f'http://127.0.0.1:{server.server_port}/token', asked, answers
    server.shutdown()
    server.server_close()


def test_an_identity_provider_is_asked_when_the_token_grows_old(provider):
    url, asked, answers = provider
    tokens = source({URL: url, 'sasl.oauthbearer.scope': 'a b'} | jaas('clientId=me clientSecret="ho+rse"'))
    tokens.clock = clock = ManualClock()
    answers[:] = [(200, {'access_token': 'one', 'expires_in': 100}), (200, {'access_token': 'two'})]
    assert [tokens.token(), tokens.token()] == ['one', 'one']
    clock.advance(79_999)
    assert tokens.token() == 'one'
    clock.advance(1)
    assert tokens.token() == 'two'
    assert asked == [(f'Basic {base64.b64encode(b"me:ho+rse").decode()}',
                      {'grant_type': ['client_credentials'], 'scope': ['a b']})] * 2


def test_an_identity_provider_is_awaited_no_longer_than_the_login_may_take():
    with serving(lambda connection: exactly(connection, 1_000_000)) as port:
        tokens = source({URL: f'http://127.0.0.1:{port}/token'} | jaas('clientId=me clientSecret=horse'))
        with pytest.raises(ClientError, match='found no answer in time'):
            tokens.token(limit_ms=20)


def test_id_and_secret_may_be_settings_and_encoded(provider):
    url, asked, answers = provider
    answers.append((200, {'access_token': 'x', 'expires_in': 'soon'}))
    source({URL: url, 'sasl.oauthbearer.client.credentials.client.id': 'me@x',
            'sasl.oauthbearer.client.credentials.client.secret': 'h+rse',
            'sasl.oauthbearer.header.urlencode': 'true'}).token()
    assert asked == [(f'Basic {base64.b64encode(b"me%40x:h%2Brse").decode()}', {'grant_type': ['client_credentials']})]


@pytest.mark.parametrize(('status', 'members', 'error', 'words'), [
    (401, {'error': 'invalid_client', 'error_description': 'horse'}, KafkaError, r'status 401 \(invalid_client\)'),
    (400, b'horse', KafkaError, 'status 400, expected 200 and a token'), (200, b'[]', KafkaError, 'expected 200 and'),
    (200, {'access_token': 'horse horse'}, KafkaError, 'not a bearer token'), (200, {}, KafkaError, 'expected'),
    (503, b'', ClientError, 'status 503'), (200, b' ' * 70_000, ClientError, 'more than 65536 bytes')])
def test_an_identity_provider_that_gives_no_token(provider, status, members, error, words):
    url, _, answers = provider
    answers.append((status, members))
    with pytest.raises(error, match=words) as caught:
        source({URL: url} | jaas('clientId=me clientSecret=horse')).token()
    assert 'horse' not in str(caught.value)
