"""The broker's side of SCRAM: recorded logins of RFC 7677 and of Apache Kafka, downgrades, replays, and unknown
users."""
import base64
import hashlib
import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.client.sasl import conversation
from kbroker.security.mechanism import AuthenticationError, Exchange, Login
from kbroker.security.scram import (
    Scram,
    ScramCredential,
    _converse,
    credential_of,
    credential_of_salted_password,
    keys_of_salted_password,
    made_up_credential,
    new_salt,
    salted_password,
)

SECRET = b's' * 32
MECHANISMS = ('SCRAM-SHA-256', 'SCRAM-SHA-512')

# Recorded logins by name. Each is: mechanism, user, password, salt, iterations, messages.
VECTORS = {
    'RFC 7677': ('SCRAM-SHA-256', 'user', 'pencil', base64.b64decode('W22ZaJ0SNY7soEsUEjb6gQ=='), 4096, (
        b'n,,n=user,r=rOprNGfwEbeRWgbNEkqO',
        b'r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096',
        b'c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=',
        b'v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=')),
    'SHA-512': ('SCRAM-SHA-512', 'alice', 'alice-secret', b'1fs2ok0hpkspsl0s0k6c', 8192, (
        b'n,,n=alice,r=fyko+d2lbbFgONRv9qkxdawL',
        b'r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=MWZzMm9rMGhwa3Nwc2wwczBrNmM=,i=8192',
        b'c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=thkKC8R5bjneaiFAGbSNSPF8dJIBCHV92egk+uuJK3xaVmwzzvnYNl'
        b'0e0Hgg+R+wvwwIJjkWW2nMNv6M7E7JCQ==',
        b'v=pJ1KVQp+P1heeFQ2Q/r181WRx9IHmUpc0iIm7U5WGSDhJS/8Y9VzZQ0Rpnz7JC/0z12zIEai0B4NUlcWTZHuzw==')),
    'escapes': ('SCRAM-SHA-256', 'a,b=c', 'p=1,2', bytes(range(16)), 4096, (
        b'n,,n=a=2Cb=3Dc,r=abcDEF123',
        b'r=abcDEF123xyz789,s=AAECAwQFBgcICQoLDA0ODw==,i=4096',
        b'c=biws,r=abcDEF123xyz789,p=3YcdL7DoAPDQGh3L28UtseOn0T5FsjUodpO+Q7uVWO8=',
        b'v=TO0JYTcMR+bUp9XeEgvq5hKTFic9ArPhbdNQxKcD1Z8=')),
}


def exchange_of(name):
    """Return (the broker's side of a recorded login, the recorded messages). The broker uses the recorded server
    nonce."""
    mechanism, user, password, salt, iterations, messages = VECTORS[name]
    credential = credential_of(mechanism, password, salt, iterations)
    nonce = messages[1].partition(b',')[0].removeprefix(messages[0].partition(b',r=')[2].join((b'r=', b'')))
    lookup = {(mechanism, user): credential}
    return Exchange(_converse(mechanism, lambda *key: lookup.get(key), SECRET, nonce)), messages


def mechanism_with(users, name='SCRAM-SHA-256'):
    lookup = {(name, user): credential_of(name, password, new_salt(), 4096) for user, password in users.items()}
    return Scram(name, lambda *key: lookup.get(key), SECRET)


ONE_USER = mechanism_with({'alice': 'horse'})


def log_in(mechanism, username, password):
    """Log in with kbroker's client. Return the broker's side of the login."""
    talk, exchange = conversation(mechanism.name, username, password), mechanism.begin()
    message = next(talk)
    while True:
        answer = exchange.step(message)
        try:
            message = talk.send(answer)
        except StopIteration:
            return exchange


def refused(exchange, message):
    with pytest.raises(AuthenticationError) as caught:
        exchange.step(message)
    assert 'horse' not in f'{caught.value} {caught.value.client_text}'
    with pytest.raises(AuthenticationError, match='after the end'):
        exchange.step(message)
    assert exchange.outcome is None
    return caught.value


@pytest.mark.parametrize('name', VECTORS)
def test_the_vectors_log_in(name):
    exchange, (first, challenge, final, verifier) = exchange_of(name)
    assert exchange.step(first) == challenge and exchange.outcome is None
    assert exchange.step(final) == verifier
    assert exchange.outcome == Login(VECTORS[name][1], None)


@pytest.mark.parametrize('mechanism', MECHANISMS)
@pytest.mark.parametrize('salted', [b'x', b'password', bytes(100)])
def test_a_salted_password_of_any_length_logs_in(mechanism, salted):
    digest = mechanism[6:].replace('-', '').lower()
    credential = credential_of_salted_password(mechanism, salted, b'salt', 4096)
    exchange = Scram(mechanism, lambda *key: credential, SECRET).begin()
    challenge = exchange.step(b'n,,n=alice,r=abc')
    final = b'c=biws,' + challenge.partition(b',')[0]
    transcript = b','.join((b'n=alice,r=abc', challenge, final))
    client_key = hmac.digest(salted, b'Client Key', digest)
    signature = hmac.digest(hashlib.new(digest, client_key).digest(), transcript, digest)
    proof = bytes(left ^ right for left, right in zip(client_key, signature, strict=True))
    verifier = exchange.step(final + b',p=' + base64.b64encode(proof))
    assert verifier == b'v=' + base64.b64encode(
        hmac.digest(hmac.digest(salted, b'Server Key', digest), transcript, digest))
    assert exchange.outcome == Login('alice', None)


def test_the_keys_are_those_of_the_vectors():
    salted = salted_password('SCRAM-SHA-256', 'pencil', base64.b64decode('W22ZaJ0SNY7soEsUEjb6gQ=='), 4096)
    assert salted.hex() == 'c4a49510323ab4f952cac1fa99441939e78ea74d6be81ddf7096e87513dc615d'
    keys = keys_of_salted_password('SCRAM-SHA-256', salted)
    assert [key.hex() for key in keys] == [
        'a60fc923d67e8644a92d16b96eda5ef4656b0c725c484374be25535576996e8b',
        '586e5df283e6dceb5c3e791d8b8528ec191e664045ce971792e2e6b5bb13e2a6',
        'c1f3cbc1c13a9d35a14c0990eed97629ea225863e566a4314ab99f3f00e5d9d5']
    credential = credential_of_salted_password('SCRAM-SHA-256', salted, b'salt', 4096)
    assert credential == ScramCredential(b'salt', keys.stored_key, keys.server_key, 4096)
    for shown in (repr(keys), repr(credential)):
        assert 'b\'' not in shown and 'x' not in shown


@pytest.mark.parametrize('name', MECHANISMS)
@settings(deadline=None, max_examples=15)
@given(user=st.text(st.characters(exclude_categories=['Cs'], exclude_characters='\0'), min_size=1, max_size=30),
       password=st.text(st.characters(exclude_categories=['Cs'])))
def test_our_client_logs_in_with_any_name_and_password(name, user, password):
    assert log_in(mechanism_with({user: password}, name), user, password).outcome == Login(user)


@pytest.mark.parametrize('first', [
    b'', b'n,,', b'y,,n=alice,r=x', b'p=tls-unique,,n=alice,r=x', b'n,,n=alice', b'n,,n=,r=x', b'n,,n=alice,r=',
    b'n,,n=a=2cb,r=x', b'n,,n=a=b,r=x', b'n,,n=al\0ice,r=x', b'n,,n=alice,r=a b', b'n,,n=alice,r=x,y',
    b'n,alice,n=b,r=x', b'n,,n=\xff,r=x', b'n,a=\xff,n=alice,r=x', b'n,,m=x,n=alice,r=x', b'n,,n=alice,r=x,m=y',
    b' n,,n=alice,r=x', b'n,,n=' + b'n' * 1025 + b',r=x', b'n,,n=alice,r=' + b'x' * 8192,
])
def test_a_first_message_that_is_none_fails_without_a_hint(first):
    assert refused(ONE_USER.begin(), first).client_text is None


def test_a_user_may_not_log_in_as_another():
    error = refused(ONE_USER.begin(), b'n,a=bob,n=alice,r=x')
    assert error.client_text == (
        'Authentication failed: Client requested an authorization id that is different from username')
    assert refused(ONE_USER.begin(), b'n,a=bob,n=carol,r=x').client_text == error.client_text
    assert ONE_USER.begin().step(b'n,a=alice,n=alice,r=x').startswith(b'r=x')


@pytest.mark.parametrize('change', [
    lambda message: message.replace(b'c=biws', b'c=eSws'),            # y,, : the client would have bound the channel
    lambda message: message.replace(b'c=biws', b'c='),
    lambda message: message.replace(b'r=', b'r=x'),
    lambda message: message.replace(b',p=', b',m=1,p='),
    lambda message: message.replace(b',p=', b',x=1,p='),              # the proof covers extensions
    lambda message: message[:-4] + b'AAA=',
    lambda message: message.partition(b',p=')[0] + b',p=',
    lambda message: message.partition(b',p=')[0],
    lambda message: message + b',x=y',
    lambda message: b'',
])
def test_a_changed_final_message_fails_without_a_hint(change):
    exchange, (first, _, final, _) = exchange_of('RFC 7677')
    exchange.step(first)
    assert refused(exchange, change(final)).client_text is None


def test_extensions_of_both_messages_are_part_of_the_proof():
    exchange, (first, challenge, final, _) = exchange_of('RFC 7677')
    first += b',ext=1'
    assert exchange.step(first) == challenge
    without_proof = final.partition(b',p=')[0] + b',b=2,a=1'
    keys = keys_of_salted_password('SCRAM-SHA-256', salted_password(
        'SCRAM-SHA-256', 'pencil', base64.b64decode('W22ZaJ0SNY7soEsUEjb6gQ=='), 4096))
    signature = hmac.digest(keys.stored_key, b','.join((first[3:], challenge, without_proof)), 'sha256')
    proof = bytes(a ^ b for a, b in zip(keys.client_key, signature, strict=True))
    exchange.step(without_proof + b',p=' + base64.b64encode(proof))
    assert exchange.outcome == Login('user')
    assert hashlib.sha256(keys.client_key).digest() == keys.stored_key


def test_a_recorded_login_cannot_be_replayed():
    talk, exchange = conversation('SCRAM-SHA-256', 'alice', 'horse'), ONE_USER.begin()
    first = next(talk)
    final = talk.send(exchange.step(first))
    exchange.step(final)
    again = ONE_USER.begin()
    again.step(first)
    assert 'nonce' in refused(again, final).reason


@pytest.mark.parametrize('later', [None, credential_of('SCRAM-SHA-256', 'new', b'salt', 4096)])
def test_a_credential_that_changes_during_the_login_is_out_of_force(later):
    in_force = {('SCRAM-SHA-256', 'alice'): credential_of('SCRAM-SHA-256', 'horse', b'salt', 4096)}
    mechanism = Scram('SCRAM-SHA-256', lambda *key: in_force.get(key), SECRET)
    talk, exchange = conversation('SCRAM-SHA-256', 'alice', 'horse'), mechanism.begin()
    final = talk.send(exchange.step(next(talk)))
    in_force['SCRAM-SHA-256', 'alice'] = later
    assert refused(exchange, final).client_text is None


def test_a_finished_exchange_takes_nothing_more():
    exchange = log_in(ONE_USER, 'alice', 'horse')
    with pytest.raises(AuthenticationError, match='after the end'):
        exchange.step(b'n,,n=bob,r=x')
    assert exchange.outcome == Login('alice')


def challenge_of(mechanism, user):
    answer = mechanism.begin().step(b'n,,n=%b,r=x' % user.encode()).decode()
    return dict(part.split('=', 1) for part in answer.split(','))


def test_an_unknown_user_gets_the_same_challenge_each_time_and_fails_at_the_end():
    mechanism = ONE_USER
    first, again, other = (challenge_of(mechanism, user) for user in ('bob', 'bob', 'carol'))
    assert (first['s'], first['i']) == (again['s'], again['i'])
    assert first['s'] != other['s'] and first['r'] != again['r']
    assert challenge_of(Scram(mechanism.name, lambda *_: None, b't' * 32), 'bob')['s'] != first['s']
    talk, exchange = conversation(mechanism.name, 'bob', 'horse'), mechanism.begin()
    message = talk.send(exchange.step(next(talk)))
    unknown = refused(exchange, message)
    with pytest.raises(AuthenticationError) as caught:
        log_in(mechanism, 'alice', 'wrong')
    assert (unknown.client_text, caught.value.client_text) == (None, None)
    assert unknown.reason.replace('bob', 'alice') == caught.value.reason


def test_a_made_up_salt_looks_like_a_stored_one():
    made_up = {len(made_up_credential('SCRAM-SHA-256', f'user-{number}', SECRET).salt) for number in range(2000)}
    real = {len(new_salt()) for _ in range(2000)}
    assert max(made_up) == max(real) and made_up <= {23, 24, 25, 26} and real <= {22, 23, 24, 25, 26}
    assert set(made_up_credential('SCRAM-SHA-512', 'x', SECRET).salt) <= set(b'0123456789abcdefghijklmnopqrstuvwxyz')
    assert len(made_up_credential('SCRAM-SHA-512', 'x', SECRET).stored_key) == 64


def test_a_user_of_the_other_mechanism_and_a_weak_credential_are_unknown():
    weak = credential_of('SCRAM-SHA-256', 'horse', b'weak', 4095)
    mechanism = Scram('SCRAM-SHA-256', lambda *_: weak, SECRET)
    assert challenge_of(mechanism, 'bob')['s'] == challenge_of(ONE_USER, 'bob')['s']
    asked = []
    challenge_of(Scram('SCRAM-SHA-512', lambda *key: asked.append(key), SECRET), 'bob')
    assert asked == [('SCRAM-SHA-512', 'bob')]


def test_a_delegation_token_is_an_unknown_credential():
    answer = ONE_USER.begin().step(b'n,,n=alice,r=x,tokenauth=true')
    assert base64.b64encode(made_up_credential('SCRAM-SHA-256', 'alice', SECRET).salt) in answer
