"""The broker's side of PLAIN, with the error texts of Apache Kafka."""
import pytest

from kbroker.client.sasl import plain
from kbroker.security.mechanism import LARGEST_NAME_BYTES, LARGEST_TOKEN_BYTES, AuthenticationError, Login
from kbroker.security.plain import Plain

MECHANISM = Plain({'user_alice': 'horse', 'user_': 'horse', 'user_empty': '', 'user_a b@c': 'hórse',
                   'username': 'admin', 'password': 'horse', 'user_' + 'n' * (LARGEST_NAME_BYTES + 1): 'horse'})


def refused(token):
    exchange = MECHANISM.begin()
    with pytest.raises(AuthenticationError) as caught:
        exchange.step(token)
    assert exchange.outcome is None and 'horse' not in f'{caught.value} {caught.value.client_text}'
    return caught.value.client_text


@pytest.mark.parametrize(('token', 'name'), [
    (b'\0alice\0horse', 'alice'), (b'alice\0alice\0horse', 'alice'), ('\0a b@c\0hórse'.encode(), 'a b@c')])
def test_a_user_logs_in(token, name):
    exchange = MECHANISM.begin()
    assert exchange.step(token) == b'' and exchange.outcome == Login(name, None)
    with pytest.raises(AuthenticationError, match='after the end'):
        exchange.step(token)


def test_our_client_logs_in():
    exchange = MECHANISM.begin()
    exchange.step(next(plain('alice', 'horse')))
    assert exchange.outcome == Login('alice')


@pytest.mark.parametrize(('token', 'client_text'), [
    (b'', 'Invalid SASL/PLAIN response: expected 3 tokens, got 1'),
    (b'alice\0horse', 'Invalid SASL/PLAIN response: expected 3 tokens, got 2'),
    (b'\0alice\0horse\0', 'Invalid SASL/PLAIN response: expected 3 tokens, got 4'),
    (b'\0alice\0horse\0\0\0', 'Invalid SASL/PLAIN response: expected 3 tokens, got 4'),
    (b'\0\0horse', 'Authentication failed: username not specified'),
    (b'\0alice\0', 'Authentication failed: password not specified'),
    (b'\0empty\0', 'Authentication failed: password not specified'),
    (b'\0alice\0Horse', 'Authentication failed: Invalid username or password'),
    (b'\0Alice\0horse', 'Authentication failed: Invalid username or password'),
    (b'\0admin\0horse', 'Authentication failed: Invalid username or password'),
    (b'bob\0alice\0wrong', 'Authentication failed: Invalid username or password'),
    (b'bob\0alice\0horse',
     'Authentication failed: Client requested an authorization id that is different from username'),
    (b'\0alice\0horse\xff', None),
    (b'\0' + b'n' * (LARGEST_NAME_BYTES + 1) + b'\0horse', None),
    (b'\0alice\0' + b'x' * LARGEST_TOKEN_BYTES, None),
])
def test_a_refusal_has_kafkas_text(token, client_text):
    assert refused(token) == client_text


def test_a_listener_without_users_is_reported():
    assert 'no PLAIN users' in Plain({'username': 'admin', 'password': 'horse'}).warnings[0]
    assert MECHANISM.warnings == ()


def test_no_password_is_kept():
    def everything(value, depth=0):
        yield repr(value)
        for part in (value.values() if isinstance(value, dict) else vars(value).values() if hasattr(value, '__dict__')
                     else ()):
            if depth < 4:
                yield from everything(part, depth + 1)
    assert not any('horse' in text for text in everything(MECHANISM))
