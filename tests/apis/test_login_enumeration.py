"""Neither the broker's answers to a failed login nor its work for these answers show whether the user exists.

Wall time is too noisy for a test, so the work is counted: the lines of the broker that Python executes from the frame
to the answer. `tests/security/test_enumeration` counts the calls of hash functions within the mechanisms.
"""
import hashlib
import pathlib
import sys
from collections import Counter

import pytest
from login_broker import audited, login_broker
from support.clients.login_client import LoginClient

import kbroker
from kbroker.base.errors import ErrorCode
from kbroker.client.sasl import conversation
from kbroker.protocol import messages

BROKER = str(pathlib.Path(kbroker.__file__).parent)
CODES = {'SCRAM-SHA-256': 1, 'SCRAM-SHA-512': 2}
KNOWN, UNKNOWN = 'alice', 'malio'
"""The names have the same length. Otherwise the answers would differ in length, because they contain the name."""
DELAY_MS = 100


@pytest.fixture
def broker(tmp_path):
    with login_broker(tmp_path, {}) as broker:
        audited(broker)
        request = messages.AlterUserScramCredentialsRequest
        for mechanism, code in CODES.items():
            salted = hashlib.pbkdf2_hmac(mechanism[6:].replace('-', '').lower(), b'secret', SALT, 4096)
            answer = broker.ask(request(deletions=[], upsertions=[request.ScramCredentialUpsertion(
                name=KNOWN, mechanism=code, iterations=4096, salt=SALT, salted_password=salted)]))
            assert [result.error_code for result in answer.results] == [0]
        yield broker


SALT = b'0123456789abcdefghijklmnop'


class Watch:
    """Counts the executed lines of the broker's code."""

    def __init__(self):
        self.lines = Counter()

    def of(self, run):
        """Return the result of `run()` and the lines that it executed, with their counts."""
        self.lines = Counter()

        def trace(frame, event, _):
            # `_base36` is not counted: it takes as many steps as its random number has digits.
            if frame.f_code.co_filename.startswith(BROKER) and frame.f_code.co_name != '_base36':
                self.lines[frame.f_code.co_filename, frame.f_lineno, event] += 1
            return trace
        sys.settrace(trace)
        try:
            found = run()
        finally:
            sys.settrace(None)
        return found, frozenset(self.lines.items())


def failed_login(broker, mechanism, name, number):
    """Fail to log in as a user. Return the answers without their random parts, and the executed lines of each step."""
    client = LoginClient(broker)
    client.connection.client_host = f'10.0.0.{number}'      # no address has to wait after a failure
    client.handshake(mechanism)
    watch, works, shapes = Watch(), [], []
    talk, answer = conversation(mechanism, name, 'wrong', 'nonce'), None
    while True:
        token = talk.send(answer)
        found, lines = watch.of(lambda token=token: client.token(token))
        works.append(lines)
        if found is None:
            break
        answer = found.auth_bytes
        nonce, salt, iterations = answer.split(b',')
        shapes.append((found.error_code, nonce[:7], salt[:2], iterations))
    _, lines = watch.of(lambda: client.wait(DELAY_MS))
    return [*shapes, client.answer(messages.SaslAuthenticateRequest(), 2)], [*works, lines]


@pytest.mark.parametrize('mechanism', ['PLAIN', *CODES])
def test_a_failed_login_is_answered_alike_and_with_the_same_work_whether_the_user_exists(broker, mechanism):
    for name in (KNOWN, UNKNOWN):       # the first logins import and remember
        failed_login(broker, mechanism, name, 200)
    known, unknown = (failed_login(broker, mechanism, name, number) for number, name in enumerate((KNOWN, UNKNOWN)))
    assert known[0] == unknown[0]
    assert known[0][-1].error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    for mine, theirs in zip(known[1], unknown[1], strict=True):
        assert mine == theirs, sorted(mine ^ theirs)
    assert all(known[1])


def test_an_empty_password_of_a_user_that_exists_is_answered_as_that_of_one_that_does_not(broker):
    answers = []
    for number, name in enumerate((KNOWN, UNKNOWN)):
        client = LoginClient(broker)
        client.connection.client_host = f'10.0.1.{number}'
        client.handshake('PLAIN')
        client.token(b'\0%b\0' % name.encode())
        client.wait(DELAY_MS)
        answers.append(client.answer(messages.SaslAuthenticateRequest(), 2))
    assert answers[0] == answers[1]
