"""An outsider cannot learn from the broker's work whether a user exists.

Wall time is too noisy for a test, so the work is counted: the lines that Python executes, and the calls of hash
functions.
"""
import contextlib
import hashlib
import hmac
import sys
import types
from collections import Counter

import pytest

from kbroker.client.sasl import conversation
from kbroker.security import plain, scram
from kbroker.security.mechanism import AuthenticationError
from kbroker.security.plain import Plain
from kbroker.security.scram import Scram, credential_of

USERS = [f'user-{number:04}' for number in range(200)]
STRANGERS = [f'none-{number:04}' for number in range(200)]
SALT = b'0123456789abcdefghijklmnop'


class Work:
    """Counts the work of a call: its executed lines of code, and its calls of hash functions."""

    def __init__(self, monkeypatch):
        self.count = Counter()
        for module in (plain, scram):
            monkeypatch.setattr(module, 'hmac', self._spied(hmac, ('digest', 'compare_digest')))
            monkeypatch.setattr(module, 'hashlib', self._spied(hashlib, ('sha256', 'new', 'pbkdf2_hmac')))

    def _spied(self, module, names):
        def spied(name):
            def call(*arguments):
                self.count[name] += 1
                return getattr(module, name)(*arguments)
            return call
        return types.SimpleNamespace(**{name: spied(name) for name in names})

    def of(self, run):
        """Return the executed lines and the hash calls of `run()`, with their counts."""
        self.count.clear()

        def trace(frame, event, _):
            # `_base36` is not counted: it takes as many steps as its random number has digits.
            if '/kbroker/security/' in frame.f_code.co_filename and frame.f_code.co_name != '_base36':
                self.count[frame.f_code.co_filename, frame.f_lineno, event] += 1
            return trace
        sys.settrace(trace)
        try:
            run()
        finally:
            sys.settrace(None)
        return frozenset(self.count.items())


@pytest.fixture
def work(monkeypatch):
    return Work(monkeypatch)


def fails(exchange, message):
    with contextlib.suppress(AuthenticationError):
        exchange.step(message)
    assert exchange.outcome is None


def test_plain_does_the_same_work_for_every_name(work):
    mechanism = Plain({f'user_{name}': 'horse' for name in USERS})
    works = {work.of(lambda name=name: fails(mechanism.begin(), b'\0%b\0wrong' % name.encode()))
             for name in (*USERS, *STRANGERS)}
    assert len(works) == 1 and any(place == 'compare_digest' for place, _ in works.pop())


@pytest.mark.parametrize('name', ['SCRAM-SHA-256', 'SCRAM-SHA-512'])
def test_scram_does_the_same_work_for_every_name(work, name):
    users = dict.fromkeys(USERS, credential_of(name, 'horse', SALT, 4096))
    mechanism = Scram(name, lambda _, user: users.get(user), b's' * 32)
    works = set()
    for user in (*USERS[:30], *STRANGERS[:30]):
        talk, exchange, answers = conversation(name, user, 'wrong', 'nonce'), mechanism.begin(), []
        first = next(talk)
        before = work.of(lambda exchange=exchange, first=first, answers=answers: answers.append(exchange.step(first)))
        final = talk.send(answers[0])
        works.add((before, work.of(lambda exchange=exchange, final=final: fails(exchange, final))))
    assert len(works) == 1


def test_the_answers_of_scram_do_not_show_who_exists():
    """Check with a chi-squared test that the lengths of challenges have the same distribution for users and for
    strangers."""
    users = {name: scram.ScramCredential(scram.new_salt(), b'k' * 32, b'k' * 32, 4096) for name in USERS}
    mechanism = Scram('SCRAM-SHA-256', lambda _, user: users.get(user), b's' * 32)

    def salt_lengths(names):
        return Counter(len(mechanism.begin().step(b'n,,n=%b,r=x' % name.encode()).split(b',')[1]) for name in names)
    known, unknown = salt_lengths(USERS), salt_lengths(STRANGERS)
    statistic = sum((known[length] - unknown[length]) ** 2 / (known[length] + unknown[length])
                    for length in known.keys() | unknown.keys())
    assert statistic < 25  # one degree of freedom or two: p below 0.00001
