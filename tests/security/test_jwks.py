"""OAUTHBEARER with signed tokens: keys, malformed tokens, claims, and key sets that are loaded again."""
import base64
import functools
import hmac
import json
import logging

import pytest
from joserfc import jws
from joserfc.jwk import ECKey, OctKey, OKPKey, RSAKey
from support.clients.exchanges import answer_of

from kbroker.base.clock import ManualClock, Timers
from kbroker.base.errors import ConfigError
from kbroker.security.jwks import ALGORITHMS, MOST_KEYS, REGISTRY, KeySetError, parse_keys
from kbroker.security.key_source import (
    FILE_CHECK_MS,
    KEY_ID_PAUSE_MS,
    LARGEST_SET_BYTES,
    LONGEST_KEY_ID,
    REFRESH_PAUSE_MS,
    KeySet,
    Place,
    RefreshSettings,
)
from kbroker.security.mechanism import Login
from kbroker.security.oauthbearer import LARGEST_BEARER_BYTES, TokenRefused
from kbroker.security.signed_tokens import SignedOAuthBearer, TokenSettings
from kbroker.security.surroundings import Background

NOW_S = 1_700_000_000
SETTINGS = TokenSettings('https://issuer', ('kafka', 'other'))
CLAIMS = {'sub': ' alice ', 'iat': NOW_S, 'exp': NOW_S + 60, 'iss': 'https://issuer', 'aud': 'kafka'}


@functools.cache
def key(kind='RSA', size=2048):
    """Return a private key, which is cached because an RSA key takes long to make."""
    makers = {'RSA': RSAKey, 'EC': ECKey, 'OKP': OKPKey, 'oct': OctKey}
    return makers[kind].generate_key(size)


def public(made, key_id='k', **more):
    return {**made.as_dict(private=False), 'kid': key_id, **more}


def key_set(*rows):
    return json.dumps({'keys': list(rows)}).encode()


def token(claims=None, made=None, algorithm='RS256', key_id='k', **header):
    members = {'alg': algorithm, **({} if key_id is None else {'kid': key_id}), **header}
    return jws.serialize_compact(members, json.dumps(CLAIMS if claims is None else claims), made or key(),
                                 registry=REGISTRY)


class Bench:
    """A key set, and the mechanism that verifies tokens with it. The test runs the jobs of the key set's worker."""

    def __init__(self, tmp_path, text=None, settings=SETTINGS):
        self.file = tmp_path / 'keys.json'
        self.clock = ManualClock(NOW_S * 1000)
        self.timers = Timers(self.clock)
        self.jobs = []
        self.write(key_set(public(key())) if text is None else text)
        place = Place(f'file://{self.file}', {})
        self.keys = KeySet(place, self.clock, Background(self.timers, lambda *job: self.jobs.append(job)),
                           RefreshSettings())
        self.mechanism = SignedOAuthBearer(self.keys, settings, self.clock)
        self.mechanism.load()
        self.mechanism.start()

    def write(self, text):
        self.file.write_bytes(text)

    def validate(self, bearer):
        if not self.mechanism.check_of(bearer)():
            raise TokenRefused('the signature does not fit')
        return self.mechanism.login_of(bearer)

    def refusal(self, bearer):
        with pytest.raises(TokenRefused) as caught:
            self.validate(bearer)
        assert caught.value.status == '{"status":"invalid_token"}' and 'alice' not in caught.value.reason
        return caught.value.reason

    def advance(self, ms):
        self.clock.advance(ms)
        self.timers.run_due()

    def work(self):
        """Run the jobs of the worker, and return their number."""
        jobs, self.jobs = self.jobs, []
        for job, done in jobs:
            try:
                result = job()
            except Exception as error:
                result = error
            done(result)
        return len(jobs)


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def test_a_signed_token_logs_in(bench):
    assert bench.validate(token()) == Login('alice', (NOW_S + 60) * 1000)
    exchange = bench.mechanism.begin()
    assert answer_of(exchange, f'n,,\x01auth=Bearer {token()}\x01\x01'.encode()) == b''
    assert exchange.outcome == Login('alice', (NOW_S + 60) * 1000)


@pytest.mark.parametrize(('algorithm', 'kind', 'size'), [
    *((name, 'RSA', 2048) for name in ('RS256', 'RS384', 'RS512', 'PS256', 'PS384', 'PS512')),
    ('ES256', 'EC', 'P-256'), ('ES384', 'EC', 'P-384'), ('ES512', 'EC', 'P-521'), ('EdDSA', 'OKP', 'Ed25519'),
    ('EdDSA', 'OKP', 'Ed448'), ('Ed25519', 'OKP', 'Ed25519'), ('Ed448', 'OKP', 'Ed448')])
def test_each_algorithm_of_the_list(tmp_path, algorithm, kind, size):
    made = key(kind, size)
    for row in (public(made), public(made, alg=algorithm, use='sig')):
        assert Bench(tmp_path, key_set(row)).validate(token(made=made, algorithm=algorithm)).name == 'alice'
    others = [other for other, fit in ALGORITHMS.items() if other != algorithm and fit.key_type == kind][:1]
    assert '0 keys' in Bench(tmp_path, key_set(public(made, alg=others[0]))).refusal(token(made=made,
                                                                                         algorithm=algorithm))


def forged(header, signature=b''):
    def part(value):
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b'=').decode()
    return f'{part(header)}.{part(CLAIMS)}.{base64.urlsafe_b64encode(signature).rstrip(b"=").decode()}'


def test_a_token_without_a_signature_is_refused(bench):
    assert bench.refusal(forged({'alg': 'none', 'kid': 'k'})) == 'found no signature'
    for algorithm in ('none', 'None', 'NONE', '', None, 7, ['RS256']):
        assert 'another algorithm' in bench.refusal(forged({'alg': algorithm, 'kid': 'k'}, b'x'))
    assert 'another algorithm' in bench.refusal(forged({'kid': 'k'}, b'x'))


def test_a_public_key_is_no_secret_of_an_hmac(bench):
    for secret in (key().as_pem(private=False), key().as_der(private=False), json.dumps(public(key())).encode()):
        for algorithm, reason in (('HS256', 'another algorithm'), ('RS256', 'the signature does not fit')):
            text = forged({'alg': algorithm, 'kid': 'k'}).rstrip('.')
            signature = hmac.digest(secret, text.encode(), 'sha256')
            assert reason in bench.refusal(forged({'alg': algorithm, 'kid': 'k'}, signature))


def test_symmetric_keys_of_the_set_are_left_out(tmp_path):
    secret = key('oct', 256)
    row = secret.as_dict(private=True) | {'kid': 'k'}
    with pytest.raises(ConfigError, match='no usable key; key 1: found another key type'):
        Bench(tmp_path, key_set(row))
    bench = Bench(tmp_path, key_set(row, public(key())))
    signature = hmac.digest(secret.raw_value, forged({'alg': 'HS256', 'kid': 'k'}).rstrip('.').encode(), 'sha256')
    assert 'another algorithm' in bench.refusal(forged({'alg': 'HS256', 'kid': 'k'}, signature))


def test_a_changed_token_or_another_key_does_not_fit(bench):
    header, payload, signature = token().split('.')
    other = token(CLAIMS | {'sub': 'bob'}).split('.')[1]
    assert bench.refusal(f'{header}.{other}.{signature}') == 'the signature does not fit'
    assert bench.refusal(f'{header}.{payload}.{signature[:-4]}AAAA') == 'the signature does not fit'
    stranger = RSAKey.generate_key(2048)
    assert bench.refusal(token(made=stranger)) == 'the signature does not fit'
    # A token may contain a key, but the broker ignores it.
    assert bench.refusal(token(made=stranger, jwk=public(stranger))) == 'the signature does not fit'
    assert bench.refusal(token(made=key('EC', 'P-256'), algorithm='ES256')).startswith('found 0 keys for the key id')


def test_a_token_that_is_not_a_token(bench):
    for bearer, reason in (('x', 'three parts'), ('a.b.c', 'header that is not'), ('..x', 'three parts'),
                           ('A' * (LARGEST_BEARER_BYTES + 1), 'at most 16384'),
                           (token(key_id=7 and 'k', typ='JWT') + '=', 'the signature does not fit'),
                           (forged({'alg': 'RS256', 'kid': 7}, b'x'), 'key id that is not a text'),
                           (forged({'alg': 'RS256', 'kid': 'k', 'crit': ['exp']}, b'x'), 'asks for an extension'),
                           (forged({'alg': 'RS256', 'kid': 'k', 'b64': False}, b'x'), 'asks for an extension'),
                           (forged({'alg': 'RS256', 'kid': 'k'}, b'x'), 'the signature does not fit'),
                           (token([CLAIMS]), 'payload that is not a JSON object')):
        assert reason in bench.refusal(bearer)


def test_nesting_of_any_depth_is_refused(bench):
    """At some depths, one parser of the token stays within Python's recursion bound, and the next parser exceeds it."""
    for depth in range(1, 1100):
        header = b'{"alg":"RS256","kid":"k","x":%b%b}' % (b'[' * depth, b']' * depth)
        assert bench.refusal(f'{base64.urlsafe_b64encode(header).rstrip(b"=").decode()}.e30.AAAA') in (
            'the signature does not fit', 'found a header that is not a JSON object')


def test_headers_of_identity_providers_are_accepted(bench):
    assert bench.validate(token(typ='at+jwt', nonce='x' * 600, x5t='y', pi_sri='z')).name == 'alice'


@pytest.mark.parametrize(('change', 'reason'), [
    ({'exp': None}, 'claim exp that'), ({'iat': None}, 'claim iat that'), ({'exp': 'x'}, 'claim exp that'),
    ({'exp': NOW_S - 30}, 'has expired'), ({'iat': NOW_S + 31}, 'in the future'), ({'nbf': NOW_S + 31}, 'not yet'),
    ({'iss': 'https://issuer/'}, 'another issuer'), ({'iss': None}, 'another issuer'), ({'iss': ['x']}, 'another'),
    ({'aud': None}, 'another audience'), ({'aud': 'kafk'}, 'another audience'), ({'aud': []}, 'another audience'),
    ({'aud': ['x', 'y']}, 'another audience'), ({'aud': {'kafka': 1}}, 'claim aud'), ({'aud': [['x']]}, 'claim aud'),
    ({'sub': ''}, 'no text in the claim sub'), ({'sub': None}, 'no text'), ({'sub': 5}, 'no text'),
])
def test_claims_that_do_not_fit(bench, change, reason):
    assert reason in bench.refusal(token(CLAIMS | change))


@pytest.mark.parametrize('name', ['exp', 'iat'])
def test_times_that_are_missing(bench, name):
    assert bench.refusal(token({key: value for key, value in CLAIMS.items() if key != name})) == (
        'found no claim exp or no claim iat')


@pytest.mark.parametrize('change', [
    {'exp': NOW_S - 29}, {'iat': NOW_S + 30}, {'nbf': NOW_S + 30}, {'aud': ['x', 'other']}, {'aud': ['kafka']},
    {'exp': NOW_S + 0.5}, {'scope': {'any': 'thing'}}])
def test_claims_that_fit(bench, change):
    assert bench.validate(token(CLAIMS | change)).name == 'alice'


def test_without_expected_issuer_and_audience(tmp_path):
    bench = Bench(tmp_path, settings=TokenSettings())
    plain = {'sub': 'alice', 'iat': NOW_S, 'exp': NOW_S + 60}
    assert bench.validate(token(plain | {'iss': 'any'})).name == 'alice'
    for audience in ('kafka', ['x', 'y'], None, 7):
        assert bench.validate(token(plain | {'aud': audience})).name == 'alice'
    assert Bench(tmp_path, settings=TokenSettings(name_claim='user')).validate(token(plain | {'user': 'b'})).name == 'b'


# ---- the key set

@pytest.mark.parametrize(('row', 'reason'), [
    (7, 'expected a JSON object'), ({}, 'another key type'), ({'kty': 'oct', 'k': 'AAAA'}, 'another key type'),
    ({'kty': ['RSA']}, 'as texts'), ({'kty': 'RSA', 'n': 'AQAB', 'e': 'AQAB', 'kid': 7}, 'as texts'),
    ({'kty': 'EC', 'crv': 'secp256k1'}, 'another curve'), ({'kty': 'OKP', 'crv': 'X25519'}, 'another curve'),
    ({'kty': 'EC', 'crv': ['P-256']}, 'as texts'), ({'kty': 'EC', 'crv': 'P-256', 'x': 'AA', 'y': 'AA'}, 'not a key'),
    ({'kty': 'RSA', 'n': 5, 'e': 'AQAB'}, 'of 0 bits'), ({'kty': 'RSA'}, 'of 0 bits'),
    ({'kty': 'RSA', 'n': 'ä', 'e': 'AQAB'}, 'of 0 bits'), ({'kty': 'RSA', 'n': '-' * 400, 'e': 'ä'}, 'not a key'),
    ({'kty': 'RSA', 'n': '-' * 400, 'e': ['AQAB']}, 'not a key'), ({'kty': 'RSA', 'n': '-' * 400}, 'not a key'),
    ({'kty': 'RSA', 'alg': 'HS256'}, 'another algorithm'), ({'kty': 'RSA', 'use': 'enc'}, 'not made for signatures'),
    ({'kty': 'RSA', 'key_ops': ['encrypt']}, 'not made for signatures'), ({'kty': 'RSA', 'key_ops': 7}, 'not made for'),
    ({'kty': 'RSA', 'd': 'x'}, 'a private key'),
])
def test_a_key_that_is_not_usable_is_left_out(row, reason):
    with pytest.raises(KeySetError, match=f'no usable key; key 1: .*{reason}'):
        parse_keys(key_set(row))
    keys, left_out = parse_keys(key_set(row, public(key())))
    assert len(keys) == 1 and reason in left_out[0]


def test_rsa_keys_are_neither_short_nor_huge():
    for size in (1024, 2040, 8200, 80_000):
        modulus = base64.urlsafe_b64encode(b'\0' + b'\xff' * (size // 8)).rstrip(b'=').decode()
        with pytest.raises(KeySetError, match=f'RSA key of {size} bits, expected 2048 to 8192'):
            parse_keys(key_set({'kty': 'RSA', 'e': 'AQAB', 'n': modulus}))


@pytest.mark.parametrize('text', [
    b'', b'[]', b'{}', b'\xff', b'{"keys":{}}', b'{"keys":[]}', b'[' * 100_000, b'{"keys":[],"keys":[]}',
    key_set(*[{}] * (MOST_KEYS + 1))])
def test_a_key_set_that_is_none(text):
    with pytest.raises(KeySetError):
        parse_keys(text)


def test_two_keys_of_one_id_are_used_only_if_the_algorithm_decides(tmp_path):
    twice = Bench(tmp_path, key_set(public(key()), public(RSAKey.generate_key(2048))))
    assert twice.refusal(token()) == 'found 2 keys for the key id and algorithm RS256, expected one'
    decided = Bench(tmp_path, key_set(public(key()), public(key('EC', 'P-256'))))
    assert decided.validate(token()).name == 'alice'
    assert decided.validate(token(made=key('EC', 'P-256'), algorithm='ES256')).name == 'alice'


def test_a_token_without_a_key_id_needs_a_set_with_one_fitting_key(bench, tmp_path):
    assert bench.validate(token(key_id=None)).name == 'alice'
    two = Bench(tmp_path, key_set(public(key()), public(RSAKey.generate_key(2048), 'other')))
    assert 'found 2 keys' in two.refusal(token(key_id=None))


@pytest.mark.parametrize('url', ['ftp://h/x', 'https:///x', 'file://host/x', 'file:x', 'x', '', 'https://user:pw@h/x'])
def test_an_address_that_is_none(url):
    with pytest.raises(ConfigError, match=r'sasl\.oauthbearer\.jwks\.endpoint\.url: found') as caught:
        Place(url, {})
    assert 'pw' not in str(caught.value)


def test_a_set_that_cannot_be_loaded_prevents_the_start(tmp_path):
    for text in (b'{}', b' ' * (LARGEST_SET_BYTES + 1)):
        with pytest.raises(ConfigError, match='the key set cannot be loaded'):
            Bench(tmp_path, text)
    with pytest.raises(ConfigError, match='No such file'):
        KeySet(Place(f'file://{tmp_path}/no', {}), ManualClock(), None, RefreshSettings()).load()


def test_a_changed_file_is_read_again(bench):
    new = key('EC', 'P-256')
    bench.write(key_set(public(new, 'new')))
    assert bench.validate(token()).name == 'alice'
    bench.advance(FILE_CHECK_MS)
    assert bench.work() == 1
    assert bench.validate(token(made=new, algorithm='ES256', key_id='new')).name == 'alice'
    assert 'unknown key id' in bench.refusal(token())


def test_an_unchanged_file_is_not_parsed_again(bench, monkeypatch):
    monkeypatch.setattr('kbroker.security.key_source.parse_keys', None)
    for _ in range(3):
        bench.advance(FILE_CHECK_MS)
        assert bench.work() == 1
    assert bench.validate(token()).name == 'alice'


def test_a_set_that_cannot_be_read_leaves_the_old_keys_and_is_tried_again_with_growing_pauses(bench, caplog):
    caplog.set_level(logging.INFO)
    bench.write(b'{}')
    bench.advance(FILE_CHECK_MS)
    assert bench.work() == 1
    for pause_ms in (100, 200, 400, 800, 1600, 3200, 6400, 10_000, 10_000):
        assert bench.validate(token()).name == 'alice'
        bench.write(b'{}')
        bench.advance(pause_ms - 1)
        assert bench.work() == 0
        bench.advance(1)
        assert bench.work() == 1
    bench.write(key_set(public(key())))
    bench.advance(10_000)
    bench.work()
    assert [record.levelname for record in caplog.records] == ['WARNING', 'INFO']
    bench.advance(FILE_CHECK_MS)
    assert bench.work() == 1


def test_an_unknown_key_id_loads_the_set_again_at_once(bench):
    new = key('EC', 'P-256')
    bench.write(key_set(public(key()), public(new, 'new')))
    bearer = token(made=new, algorithm='ES256', key_id='new')
    assert bench.refusal(bearer) == 'found an unknown key id; the key set is loaded again'
    assert bench.work() == 1
    assert bench.validate(bearer).name == 'alice'


def test_unknown_key_ids_load_the_set_at_most_once_in_a_while(bench):
    def asks(key_id):
        bench.refusal(token(key_id=key_id))
        return bench.work()
    assert asks('a') == 1 and asks('a') == 0 and asks('b') == 0
    bench.clock.advance(REFRESH_PAUSE_MS)
    assert asks('a') == 0 and asks('x' * (LONGEST_KEY_ID + 1)) == 0 and asks('b') == 1
    bench.clock.advance(KEY_ID_PAUSE_MS)
    assert asks('a') == 1
    for number in range(1000):
        bench.clock.advance(REFRESH_PAUSE_MS)
        assert asks(str(number)) == 1
    assert len(bench.keys._unknown) <= 16


def test_one_load_at_a_time(bench):
    bench.refusal(token(key_id='a'))
    bench.advance(60_000)
    bench.refusal(token(key_id='b'))
    assert bench.work() == 1


def test_a_closed_key_set_does_nothing(bench):
    bench.refusal(token(key_id='a'))
    bench.mechanism.close()
    bench.work()
    bench.advance(10**9)
    assert bench.work() == 0 and len(bench.timers) == 0
