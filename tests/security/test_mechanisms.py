"""The mechanisms that a listener's settings enable, and attacks of an outsider on each mechanism."""
import contextlib
import http.server
import random
import ssl
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from joserfc.jwk import ECKey
from support.clients.certificates import make_certificates
from support.clients.exchanges import answer_of
from support.clients.login_mechanisms import JAAS, OAUTH, TOKENS, UNVERIFIED, every_mechanism, made, write_key_set

from kbroker.base.errors import ConfigError
from kbroker.client.sasl import conversation
from kbroker.security.key_source import LARGEST_SET_BYTES, Place
from kbroker.security.mechanism import LARGEST_TOKEN_BYTES, AuthenticationError, generic_text
from kbroker.security.mechanisms import HANDLER, LOGIN_MODULES, MECHANISMS, VALIDATOR


def complaint(name, values=None, **more):
    with pytest.raises(ConfigError) as caught:
        made(name, values, **more)
    assert 'horse' not in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope='module')
def signing_key():
    return ECKey.generate_key('P-256')


@pytest.fixture
def key_file(signing_key, tmp_path):
    return write_key_set(tmp_path, signing_key)


def test_each_mechanism_is_made_of_its_settings(key_file):
    plain = made('PLAIN', {JAAS: f'{LOGIN_MODULES["PLAIN"]} required user_alice=horse;'})
    exchange = plain.begin()
    exchange.step(b'\0alice\0horse')
    assert (plain.name, exchange.outcome.name) == ('PLAIN', 'alice')
    for name in ('SCRAM-SHA-256', 'SCRAM-SHA-512'):
        for values in ({}, {JAAS: f'{LOGIN_MODULES[name]} required username=admin password=horse;'}):
            talk, exchange = conversation(name, 'alice', 'horse'), made(name, values).begin()
            talk.send(exchange.step(next(talk)))
    assert 'unsigned' in made('OAUTHBEARER', {JAAS: OAUTH}).warnings[0]
    signed = made('OAUTHBEARER', {JAAS: OAUTH, HANDLER: VALIDATOR, 'sasl.oauthbearer.jwks.endpoint.url': key_file,
                                  **UNVERIFIED})
    assert [warning.split(': ')[1] for warning in signed.warnings] == [
        'tokens of every issuer whose key is in the key set are accepted',
        'tokens for every audience, or for none, are accepted']
    signed.load()
    signed.start()
    signed.close()


@pytest.mark.parametrize(('name', 'values', 'words'), [
    ('GSSAPI', {}, 'sasl.enabled.mechanisms: found GSSAPI, expected some of PLAIN'),
    ('PLAIN', {}, 'listener.name.x.y.sasl.jaas.config: found none, expected org.apache'),
    ('PLAIN', {JAAS: 'horse'}, 'listener.name.x.y.sasl.jaas.config: found the end at character 6'),
    ('PLAIN', {JAAS: OAUTH}, 'found another login module, expected org.apache.kafka.common.security.plain.Plain'),
    ('SCRAM-SHA-256', {JAAS: OAUTH}, 'found another login module'),
    ('OAUTHBEARER', {}, 'found none, expected org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule'),
    ('OAUTHBEARER', {JAAS: OAUTH, HANDLER: VALIDATOR}, 'jwks.endpoint.url: found none, expected the address'),
])
def test_a_setting_that_is_missing_or_wrong_is_named(name, values, words):
    assert words in complaint(name, values)


def test_a_listener_that_others_reach_lets_no_client_choose_its_name(key_file):
    assert 'can write their own tokens' in complaint('OAUTHBEARER', {JAAS: OAUTH}, is_guarded=False)


@pytest.mark.parametrize('is_guarded', [True, False])
@pytest.mark.parametrize(('claim', 'value'), [('issuer', 'https://issuer'), ('audience', ('kafka',))])
def test_a_claim_of_signed_tokens_is_unverified_only_if_the_operator_says_so(key_file, claim, value, is_guarded):
    """Apache Kafka 4.4.0 does not start without these settings. Apache Kafka 4.3 starts."""
    expected, allowance = f'sasl.oauthbearer.expected.{claim}', f'sasl.oauthbearer.allow.unverified.{claim}'
    values = {JAAS: OAUTH, HANDLER: VALIDATOR, 'sasl.oauthbearer.jwks.endpoint.url': key_file, **UNVERIFIED,
              allowance: False}
    words = complaint('OAUTHBEARER', values, is_guarded=is_guarded)
    assert f'{expected}: found none, expected the {claim} of the tokens' in words and f'{allowance}=true' in words
    for change, count in (({allowance: True}, 2), ({expected: value}, 1), ({expected: value, allowance: True}, 1)):
        assert len(made('OAUTHBEARER', values | change, is_guarded=is_guarded).warnings) == count


def test_signed_tokens_without_the_library_name_the_extra(monkeypatch, key_file):
    for name in [name for name in sys.modules if name.partition('.')[0] == 'joserfc']:
        monkeypatch.setitem(sys.modules, name, None)
    for module in ('jwks', 'key_source', 'signed_tokens'):
        monkeypatch.delitem(sys.modules, f'kbroker.security.{module}')
        monkeypatch.delattr(f'kbroker.security.{module}')
    values = {JAAS: OAUTH, HANDLER: VALIDATOR, 'sasl.oauthbearer.jwks.endpoint.url': key_file}
    assert 'pip install "kbroker[oauth]"' in complaint('OAUTHBEARER', values)


def test_the_generic_text_is_kafkas():
    assert generic_text('SCRAM-SHA-256') == ('Authentication failed during authentication due to invalid credentials '
                                             'with SASL mechanism SCRAM-SHA-256')
    assert 'during re-authentication due' in generic_text('PLAIN', is_renewal=True)


# ---- a key set that is fetched from a URL

ANSWERS = {}


class KeyServer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        status, headers, body = ANSWERS[self.path]
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope='module')
def key_server(tmp_path_factory):
    """Yield a server of key sets: (certificates, {protocol: address}, answers by path)."""
    certificates = make_certificates(tmp_path_factory.mktemp('certificates'))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / 'server.pem')
    addresses, servers = {}, []
    for protocol in ('http', 'https'):
        server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), KeyServer)
        if protocol == 'https':
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        addresses[protocol] = f'{protocol}://127.0.0.1:{server.server_port}'
    yield certificates, addresses, ANSWERS
    for server in servers:
        server.shutdown()
        server.server_close()


def read_over(url, certificates):
    return Place(url, {'ssl.truststore.type': 'PEM', 'ssl.truststore.location': str(certificates / 'ca.pem')}).read()


def test_a_key_set_is_fetched_over_http_and_https(key_server):
    certificates, addresses, answers = key_server
    answers['/keys?x=1'] = 200, {}, b'{"keys":[]}'
    answers['/moved'] = 302, {'Location': '/keys?x=1'}, b''
    for address in addresses.values():
        for path in ('/keys?x=1', '/moved'):
            assert read_over(address + path, certificates) == b'{"keys":[]}'


def test_an_answer_that_is_no_key_set_is_named(key_server):
    certificates, addresses, answers = key_server
    answers |= {'/none': (404, {}, b''), '/large': (200, {}, b' ' * (LARGEST_SET_BYTES + 1)),
                '/away': (302, {'Location': addresses['http'] + '/keys'}, b''),
                '/loop': (302, {'Location': '/loop'}, b''), '/file': (302, {'Location': 'file:///etc/passwd'}, b'')}
    for path, words in (('/none', 'found status 404, expected 200'), ('/large', 'found more than 1048576 bytes'),
                        ('/away', 'redirect to another protocol'), ('/file', 'redirect to another protocol'),
                        ('/loop', 'more than 3 redirects')):
        with pytest.raises(Exception, match=words):
            read_over(addresses['https'] + path, certificates)
    with pytest.raises(Exception, match='no answer'):
        read_over('http://127.0.0.1:1/keys', certificates)


def test_a_certificate_of_a_stranger_is_not_accepted(key_server):
    _, addresses, _ = key_server
    with pytest.raises(Exception, match='the certificate is not accepted'):
        Place(addresses['https'] + '/keys', {}).read()
    with pytest.raises(ConfigError, match=r'ssl\.cipher\.suites: this option'):
        Place(addresses['https'], {'ssl.cipher.suites': 'x'})


# ---- mutated and random tokens

PIECES = [b'', b'n,', b',', b'a=', b'n=', b'r=', b'm=', b'p=', b'=2C', b'=3D', b'=', b'\0', b'\x01', b'auth=Bearer ',
          b'.', b'..', b'eyJhbGciOiJub25lIn0', b'eyJhbGciOiJFUzI1NiJ9', b'W' * 40, b'\xff\xfe', 'ä€𝄞'.encode(), b'e30',
          b'tokenauth=true', b'{}', b'[', b'"', b'A' * 3000]


def mutated(chance, token):
    """Return a token that differs from `token` in up to three places."""
    for _ in range(chance.randrange(4)):
        at = chance.randrange(len(token) + 1)
        end = min(len(token), at + chance.randrange(6))
        token = token[:at] + chance.choice((chance.choice(PIECES), chance.randbytes(3))) + token[end:]
    return token


def bombard(mechanisms, chance, count):
    """Send `count` tokens, every second one as the next step of a login. The mechanism may raise only
    AuthenticationError."""
    for _ in range(count // 2):
        exchange = chance.choice(mechanisms).begin()
        first = mutated(chance, chance.choice(TOKENS))
        try:
            answer = answer_of(exchange, first)
            second = chance.choice((mutated(chance, chance.choice(TOKENS)),
                                    b'c=biws,%b,p=%b' % (answer.partition(b',')[0], b'A' * 42 + b'A=')))
            answer_of(exchange, mutated(chance, second))
        except AuthenticationError as error:
            assert 'horse' not in f'{error} {error.client_text}' and len(error.reason) < LARGEST_TOKEN_BYTES * 8
        if exchange.outcome is not None:
            assert exchange.outcome.name.encode()


def test_mutated_tokens_raise_nothing_but_authentication_errors(key_file):
    bombard(every_mechanism(key_file), random.Random(14), 6000)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_million_mutated_tokens_raise_nothing_but_authentication_errors(key_file, soak_count, tally):
    count = soak_count(1_000_000)
    bombard(every_mechanism(key_file), random.Random(), count)
    tally('mutated tokens of logins', count)


@settings(deadline=None, max_examples=200)
@given(tokens=st.lists(st.binary(max_size=200) | st.sampled_from(TOKENS), max_size=4),
       choice=st.integers(0, len(MECHANISMS) - 1))
def test_any_tokens_raise_nothing_but_authentication_errors(tokens, choice):
    values = {JAAS: f'{LOGIN_MODULES[MECHANISMS[choice]]} required user_alice=horse;'}
    exchange = made(MECHANISMS[choice], values).begin()
    for token in tokens:
        with contextlib.suppress(AuthenticationError):
            exchange.step(token)


def test_a_token_above_the_bound_ends_the_exchange(key_file):
    for mechanism in every_mechanism(key_file):
        exchange = mechanism.begin()
        for token in (b'x' * (LARGEST_TOKEN_BYTES + 1), b'\0alice\0horse'):
            with pytest.raises(AuthenticationError):
                exchange.step(token)
        assert exchange.outcome is None
