"""Apache Kafka and kbroker give the same answers to tokens of the SASL mechanisms, valid or not."""
import base64
import json
import time

import pytest
from support.clients.raw_client import RawClient
from support.kafka.secured_kafka import MECHANISMS, PASSWORD, SecuredKafka

from kbroker.base.clock import Clock
from kbroker.base.errors import ErrorCode
from kbroker.client.sasl import conversation
from kbroker.protocol import messages
from kbroker.security.mechanism import AuthenticationError, generic_text
from kbroker.security.oauthbearer import INVALID_TOKEN, UnsecuredOAuthBearer
from kbroker.security.plain import WRONG, Plain
from kbroker.security.scram import Scram, credential_of
from kbroker.settings.jaas import parse_jaas

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

SCRAM = 'SCRAM-SHA-256'
CLOSED = 'the connection was closed'
NOW_S = int(time.time())
DAY_S = 86_400
"""The lifetime of tokens in seconds. It is long, because the tokens are created when pytest imports the module, long
before the tests run.
"""


def part(value):
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b'=').decode()


def bearer(claims=None, header=None, signature='', **change):
    members = {'sub': 'alice', 'iat': NOW_S, 'exp': NOW_S + DAY_S, 'scope': ['produce']} | change
    return f'{part(header or {"alg": "none"})}.{part(claims or members)}.{signature}'


def message(token, authzid='', pairs='', scheme='Bearer'):
    return f'n,{authzid},\x01auth={scheme} {token}\x01{pairs}\x01'.encode()


def final(change=lambda message: message, password=PASSWORD, first=lambda message: message):
    """Return the script of a SCRAM login. `first` and `change` may alter its messages."""
    def script():
        talk = conversation(SCRAM, 'alice', password, 'abcdefgh')
        answer = yield first(next(talk))
        yield change(talk.send(answer))
    return script


# A case is a list of tokens, or a generator function that yields tokens and receives the answers.
PLAINS = [
    b'\0alice\0wonder land', b'alice\0alice\0wonder land', b'', b'alice', b'\0alice', b'\0\0x', b'\0alice\0', b'\0\0',
    b'\0alice\0wrong', b'\0Alice\0wonder land', b'\0bob\0wonder land', b'bob\0alice\0wonder land',
    b'bob\0alice\0wrong', b'\0alice\0wonder land\0', b'\0alice\0wonder land\0x', b'\0a\0b\0c\0d\0e', b'\0alice\0 ',
    b'\0 \0x', 'ä\0alice\0wonder land'.encode()]
SCRAMS = [
    final(), final(password='wrong'), final(lambda text: text.replace(b'r=', b'r=x')),
    final(lambda text: text[:-3] + b'x'), final(lambda text: b''), final(lambda text: text + b',x=y'),
    final(lambda text: text.partition(b',p=')[0]), final(lambda text: text.replace(b'c=biws', b'c=eSws')),
    *([text] for text in (
        b'', b'n,,', b'y,,n=alice,r=abc', b'p=tls-unique,,n=alice,r=abc', b'n,,n=alice', b'n,,n=,r=abc',
        b'n,,n=alice,r=', b'n,,n=a=2cb,r=abc', b'n,,n=al=ice,r=abc', b'n,,n=alice,r=a b', b'n,,n=alice,r=abc,y',
        b'n,a=bob,n=alice,r=abc', b' n,,n=alice,r=abc', b'n,,n=alice,r=abc,ext=1', b'n,a=alice,n=alice,r=abc'))]
OAUTHS = [
    bearer(), bearer(scope='produce'), bearer(scope=['consume', 'produce']), bearer(scope=['consume']),
    bearer(scope='produce consume'), bearer(exp=NOW_S - 60), bearer(exp=NOW_S + DAY_S + 0.5),
    bearer(iat=NOW_S + DAY_S // 2),
    bearer(exp=None), bearer(exp='soon'), bearer(sub=' '), bearer(sub=7), bearer(iat=None),
    bearer(header={'alg': 'HS256'}), bearer(header={'alg': 'none', 'kid': 'x'}), bearer(signature='AAAA'), 'x', 'a.b.c',
    bearer() + '.', '..' + bearer(), bearer(b'[]'), bearer(b'x')]
OAUTH_MESSAGES = [
    b'', b'\x01', b'n,,', message(bearer(), 'a=alice'), message(bearer(), 'a=bob'), message(bearer(), pairs='x=1\x01'),
    message(bearer(), pairs='x1=1\x01'), message(bearer(), scheme='bearer'), message(bearer(), scheme='BEARER'),
    message(bearer())[:-1], message(bearer()) + b'\x01', b'y' + message(bearer())[1:]]
CASES = [*(('PLAIN', [token]) for token in PLAINS), *((SCRAM, case) for case in SCRAMS),
         *(('OAUTHBEARER', [message(token), b'\x01']) for token in OAUTHS),
         *(('OAUTHBEARER', [first]) for first in OAUTH_MESSAGES),
         ('OAUTHBEARER', [message('a.b.'), message(bearer())])]


def conversed(case, ask):
    """Return the answers to a case as (error code, message, bytes). The bytes of a challenge are replaced by its kind.
    """
    script = case() if callable(case) else iter(case)
    answers, answer = [], None
    while True:
        try:
            token = script.send(answer) if callable(case) else next(script)
        except StopIteration:
            return answers
        code, text, answer = ask(token)
        is_challenge = answer.startswith((b'r=', b'v='))
        answers.append((code, text, answer[:2] if is_challenge else answer))
        if code != 0 or not answer:
            return answers


def of_kafka(address, mechanism, case):
    with RawClient.at(address, 20) as client:
        client.ask(messages.SaslHandshakeRequest(mechanism=mechanism), 1)

        def ask(token):
            try:
                answer = client.ask(messages.SaslAuthenticateRequest(auth_bytes=token), 1)
            except ConnectionError:
                return CLOSED, None, b''
            return answer.error_code, answer.error_message, bytes(answer.auth_bytes)
        return conversed(case, ask)


def of_kbroker(mechanism, case):
    exchange = mechanism.begin()

    def ask(token):
        try:
            return 0, '', exchange.step(token)
        except AuthenticationError as error:
            return (int(ErrorCode.SASL_AUTHENTICATION_FAILED),
                    generic_text(mechanism.name) if error.client_text is None else error.client_text, b'')
    return conversed(case, ask)


@pytest.fixture(scope='module')
def kafka(tmp_path_factory):
    kafka = SecuredKafka(tmp_path_factory.mktemp('kafka'))
    kafka.kafka.settings['connection.failed.authentication.delay.ms'] = '0'
    kafka.kafka.start()
    kafka.add_user('alice', PASSWORD)
    yield kafka
    kafka.kafka.kill9()


@pytest.fixture(scope='module')
def ours():
    jaas = MECHANISMS['SASL_PLAINTEXT']
    credential = credential_of(SCRAM, PASSWORD, b'salt', 4096)
    return {'PLAIN': Plain(parse_jaas(jaas['PLAIN']).options),
            SCRAM: Scram(SCRAM, lambda _, name: credential if name == 'alice' else None, b's' * 32),
            'OAUTHBEARER': UnsecuredOAuthBearer(parse_jaas(jaas['OAUTHBEARER']).options, Clock())}


def test_the_answers_are_those_of_kafka(kafka, ours):
    address = kafka.addresses['SASL_PLAINTEXT']
    different = []
    for number, (mechanism, case) in enumerate(CASES):
        theirs, found = of_kafka(address, mechanism, case), of_kbroker(ours[mechanism], case)
        if theirs != found:
            different.append((number, mechanism, case if isinstance(case, list) else 'a script', theirs, found))
    assert not different, '\n'.join(map(str, different))


STRICTER = {
    'a user name that is not UTF-8': ('PLAIN', [b'\0alice\xff\0wonder land']),
    'another scheme than bearer': ('OAUTHBEARER', [message(bearer(), scheme='Basic')]),
    'an unknown user of SCRAM': (SCRAM, [b'n,,n=nobody,r=abc']),
    'a name of SCRAM outside ASCII': (SCRAM, ['n,,n=ä,r=abc'.encode()]),
    'a mandatory extension of SCRAM': (SCRAM, [b'n,,m=x,n=alice,r=abc']),
    'the channel binding of another first message': (
        SCRAM, final(first=lambda text: text.replace(b'n,,', b'n,a=alice,'))),
    'an extension that the proof leaves out': (SCRAM, final(lambda text: text.replace(b',p=', b',x=y,p='))),
    'a claim sub that is null': ('OAUTHBEARER', [message(bearer(sub=None))]),
}


@pytest.mark.parametrize('name', STRICTER)
def test_where_kbroker_differs_on_purpose(kafka, ours, name):
    """Operators and attackers can notice these differences, but no known client behaves differently because of them."""
    mechanism, case = STRICTER[name]
    theirs, found = of_kafka(kafka.addresses['SASL_PLAINTEXT'], mechanism, case), of_kbroker(ours[mechanism], case)
    failure, challenge, success = (58, generic_text(mechanism), b''), (0, '', b'r='), (0, '', b'v=')
    assert (theirs, found) == {
        'a user name that is not UTF-8': ([(58, WRONG, b'')], [failure]),
        'another scheme than bearer': ([(CLOSED, None, b'')], [failure]),
        'an unknown user of SCRAM': ([failure], [challenge]),
        'a name of SCRAM outside ASCII': ([failure], [challenge]),
        'a mandatory extension of SCRAM': ([challenge], [failure]),
        'the channel binding of another first message': ([challenge, success], [challenge, failure]),
        'an extension that the proof leaves out': ([challenge, success], [challenge, failure]),
        'a claim sub that is null': ([(0, '', b'')], [(0, '', INVALID_TOKEN.encode())]),
    }[name]
