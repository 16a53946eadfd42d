"""OAUTHBEARER: the form of its messages, and unsecured tokens."""
import base64
import json

import pytest

from kbroker.base.clock import ManualClock
from kbroker.base.errors import ConfigError
from kbroker.security.mechanism import AuthenticationError, Login
from kbroker.security.oauthbearer import LARGEST_BEARER_BYTES, UnsecuredOAuthBearer

NOW_S = 1_700_000_000
VECTOR = ('eyJhbGciOiJub25lIn0.'
          'eyJzdWIiOiJhbGljZSIsImlhdCI6MTcwMDAwMDAwMCwiZXhwIjoxNzAwMDAzNjAwLCJzY29wZSI6WyJhIiwiYiJdfQ.')
CLAIMS = {'sub': 'alice', 'iat': NOW_S, 'exp': NOW_S + 3600}
INVALID = b'{"status":"invalid_token"}'


def part(value):
    text = value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()
    return base64.urlsafe_b64encode(text).rstrip(b'=').decode()


def unsigned(claims=None, header=None):
    return f'{part(header or {"alg": "none"})}.{part(CLAIMS if claims is None else claims)}.'


def message(token, authzid='', extensions=''):
    return f'n,{authzid},\x01auth=Bearer {token}\x01{extensions}\x01'.encode()


def mechanism(now_s=NOW_S, **options):
    return UnsecuredOAuthBearer({f'unsecuredValidator{name}': value for name, value in options.items()},
                                ManualClock(now_s * 1000))


def log_in(token, made=None, **more):
    exchange = (made or mechanism()).begin()
    return exchange.step(message(token, **more)), exchange


def refused(first, made=None):
    with pytest.raises(AuthenticationError) as caught:
        (made or mechanism()).begin().step(first)
    return caught.value


def test_the_vector_logs_in():
    answer, exchange = log_in(VECTOR)
    assert answer == b'' and exchange.outcome == Login('alice', 1_700_003_600_000)


@pytest.mark.parametrize('first', [
    f'n,,\x01auth=bEARER {VECTOR}\x01\x01', f'n,,\x01x=1\x01auth=Bearer {VECTOR}\x01y= \t\r\n~\x01\x01',
    f'n,a=alice,\x01auth=Bearer {VECTOR}\x01traceId=9\x01\x01'])
def test_forms_of_the_message(first):
    exchange = mechanism().begin()
    assert exchange.step(first.encode()) == b'' and exchange.outcome.name == 'alice'


@pytest.mark.parametrize('first', [
    '', 'n,,', 'n,,\x01\x01', f'n,,\x01auth=Bearer {VECTOR}\x01', f'n,,auth=Bearer {VECTOR}\x01\x01',
    f'y,,\x01auth=Bearer {VECTOR}\x01\x01', f'n,,\x01auth=Basic {VECTOR}\x01\x01', 'n,,\x01auth=Bearer \x01\x01',
    f'n,,\x01auth=Bearer {VECTOR}\x01auth=Bearer {VECTOR}\x01\x01', f'n,,\x01x1=1\x01auth=Bearer {VECTOR}\x01\x01',
    f'n,,\x01auth=Bearer  {VECTOR}\x01\x01', f'n,,\x01auth=Bearer {VECTOR}\x01\x01\x01', '\x01',
    f'n,,\x01auth=Bearer {VECTOR}\x01x=\x7f\x01\x01', f'n,,\x01auth=Bearer {VECTOR}\x01x=ä\x01\x01',
    f'n,,\x01auth=Bearer {VECTOR}#\x01\x01',
])
def test_a_message_that_is_none_fails_without_a_hint(first):
    assert refused(first.encode()).client_text is None


def test_an_authorization_id_has_to_be_the_principal():
    assert refused(message(VECTOR, 'a=bob')).client_text == (
        'Authentication failed: Client requested an authorization id (bob) that is different from the token\'s '
        'principal name (alice)')
    assert refused(b'n,a=\xff' + message(VECTOR)[2:]).client_text is None


def test_a_refused_token_is_answered_in_json_and_the_login_fails_when_the_client_gives_up():
    answer, exchange = log_in('a.b.')
    assert answer == INVALID and exchange.outcome is None
    with pytest.raises(AuthenticationError) as caught:
        exchange.step(b'\x01')
    assert caught.value.client_text == INVALID.decode() and caught.value.reason.startswith('the token is refused: ')


def test_after_a_refusal_a_client_may_try_again_a_few_times():
    _, exchange = log_in('a.b.')
    assert exchange.step(message(VECTOR)) == b'' and exchange.outcome.name == 'alice'
    _, exchange = log_in('a.b.')
    for _ in range(3):
        exchange.step(message('a.b.'))
    with pytest.raises(AuthenticationError, match='4 refused tokens'):
        exchange.step(message(VECTOR))


@pytest.mark.parametrize(('token', 'reason'), [
    ('x', 'three parts'), ('..', 'three parts'), (VECTOR + '.', 'three parts'), (VECTOR + 'c2ln', 'found a signature'),
    ('.' + VECTOR, 'three parts'),
    ('e30.' + VECTOR.partition('.')[2], 'another algorithm'),
    ('a+b.' + VECTOR.partition('.')[2], 'header that is not base64url'),
    ('a.' + VECTOR.partition('.')[2], 'header that is not a JSON object'),
    (unsigned(header={'alg': 'RS256'}), 'another algorithm'), (unsigned(header={'alg': 'None'}), 'another algorithm'),
    (unsigned(header=b'{"alg":"RS256","alg":"none"}'), 'header that is not a JSON object'),
    (unsigned(b'[]'), 'payload that is not a JSON object'), (unsigned(b'\xff'), 'payload that is not'),
    (unsigned(b'[' * 8000), 'payload that is not'), (unsigned(b'{"exp":' + b'9' * 5000 + b'}'), 'payload that is not'),
    (unsigned(b'{"sub":"a","exp":NaN}'), 'payload that is not'),
    (unsigned(CLAIMS | {'sub': None}), 'no text in the claim sub'), (unsigned(CLAIMS | {'sub': ' '}), 'no text'),
    (unsigned(CLAIMS | {'sub': 7}), 'no text'), (unsigned(CLAIMS | {'sub': ['alice']}), 'no text'),
    (unsigned(b'{"sub":"\\ud800","exp":1700003600}'), 'surrogate'),
    (unsigned({'sub': 'alice'}), 'no claim exp'), (unsigned(CLAIMS | {'exp': 'soon'}), 'claim exp that is not a time'),
    (unsigned(CLAIMS | {'exp': True}), 'claim exp'), (unsigned(CLAIMS | {'exp': 1e300}), 'claim exp'),
    (unsigned(CLAIMS | {'exp': -1}), 'claim exp'), (unsigned(CLAIMS | {'iat': [1]}), 'claim iat'),
    (unsigned(b'{"sub":"a","exp":1e999}'), 'claim exp'), (unsigned(CLAIMS | {'exp': 10**400}), 'claim exp'),
    (unsigned(CLAIMS | {'iat': -10**400}), 'claim iat'),
    (unsigned(CLAIMS | {'exp': NOW_S}), 'has expired'), (unsigned(CLAIMS | {'iat': NOW_S + 1}), 'in the future'),
    (unsigned(CLAIMS | {'scope': {}}), 'claim scope'), (unsigned(CLAIMS | {'scope': [1]}), 'claim scope'),
    ('a' * (LARGEST_BEARER_BYTES + 1), 'at most 16384'),
])
def test_a_token_that_is_not_valid_is_refused(token, reason):
    answer, exchange = log_in(token)
    assert answer == INVALID
    with pytest.raises(AuthenticationError, match=reason) as caught:
        exchange.step(b'\x01')
    assert 'alice' not in caught.value.reason


def test_the_clock_may_be_skewed_by_an_option():
    skewed = mechanism(AllowableClockSkewMs='5000')
    assert log_in(unsigned(CLAIMS | {'iat': NOW_S + 5}), skewed)[0] == b''
    assert log_in(unsigned(CLAIMS | {'iat': NOW_S + 6}), skewed)[0] == INVALID
    assert log_in(unsigned({'sub': 'alice', 'exp': NOW_S - 4}), skewed)[0] == b''
    assert log_in(unsigned({'sub': 'alice', 'exp': NOW_S - 5}), skewed)[0] == INVALID
    assert log_in(unsigned({'sub': 'alice', 'iat': NOW_S + 3, 'exp': NOW_S + 3}), skewed)[0] == INVALID


def test_a_required_scope_that_is_missing_is_named_as_kafka_does():
    scoped = mechanism(RequiredScope=' a  b ')
    assert log_in(VECTOR, scoped)[0] == b''
    for claims in (CLAIMS, CLAIMS | {'scope': ['a']}, CLAIMS | {'scope': 'a b'}):
        assert log_in(unsigned(claims), scoped)[0] == b'{"status":"insufficient_scope", "scope":"[a, b]"}'
    assert log_in(unsigned(CLAIMS | {'scope': 'a'}), mechanism(RequiredScope='a'))[0] == b''


def test_options_name_the_claims():
    named = mechanism(PrincipalClaimName='name', ScopeClaimName='scp', RequiredScope='x')
    assert log_in(unsigned({'name': 'bob', 'exp': NOW_S + 1.5, 'scp': ['x']}), named)[1].outcome == (
        Login('bob', NOW_S * 1000 + 1500))


@pytest.mark.parametrize('options', [{'AllowableClockSkewMs': '-1'}, {'AllowableClockSkewMs': 'x'}, {'Principal': 'x'}])
def test_an_option_that_is_not_valid_is_refused(options):
    with pytest.raises(ConfigError, match=r'oauthbearer\.sasl\.jaas\.config: .*unsecuredValidator'):
        mechanism(**options)
    assert UnsecuredOAuthBearer({'unsecuredLoginStringClaim_sub': 'admin'}, ManualClock()).warnings
