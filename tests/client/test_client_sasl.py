"""The client's SASL exchanges agree with the vectors of the RFCs, and with a server that is written from RFC 5802."""
import base64
import hashlib
import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.sasl import conversation, plain, scram

NONCE = 'rOprNGfwEbeRWgbNEkqO'
SERVER_NONCE = NONCE + '%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0'
CHALLENGE = f'r={SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096'.encode()


def started():
    talk = scram('SCRAM-SHA-256', 'user', 'pencil', NONCE)
    return talk, next(talk)


def ended(talk, words):
    with pytest.raises(StopIteration):
        talk.send(words)


def refused(talk, words):
    with pytest.raises(KafkaError) as caught:
        talk.send(words)
    assert caught.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert 'pencil' not in str(caught.value)
    return str(caught.value)


def test_plain_is_rfc_4616():
    talk = plain('tim', 'tanstaaftanstaaf')
    assert next(talk) == b'\0tim\0tanstaaftanstaaf'
    ended(talk, b'')


def test_scram_sha_256_is_the_example_of_rfc_7677():
    talk, first = started()
    assert first == b'n,,n=user,r=rOprNGfwEbeRWgbNEkqO'
    assert talk.send(CHALLENGE) == (f'c=biws,r={SERVER_NONCE},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=').encode()
    ended(talk, b'v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=')


@pytest.mark.parametrize('final', [
    b'v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=', b'v=', b'', b'v=AAAA'])
def test_a_broker_that_does_not_know_the_password_is_not_believed(final):
    talk, _ = started()
    talk.send(CHALLENGE)
    assert 'did not prove' in refused(talk, final)


def test_an_error_of_the_broker_is_reported():
    talk, _ = started()
    talk.send(CHALLENGE)
    assert "the broker says 'invalid-proof'" in refused(talk, b'e=invalid-proof')


@pytest.mark.parametrize(('challenge', 'reason'), [
    (b'r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096', 'the nonce of the broker'),
    (f'r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096'.encode(), 'the nonce of the broker'),
    (f'r={SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4095'.encode(), "'4095' iterations, expected 4096 to"),
    (f'r={SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=999999999'.encode(), "'999999999' iterations"),
    (f'r={SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i={"9" * 100}'.encode(), 'iterations'),
    (f'r={SERVER_NONCE},s=*,i=4096'.encode(), 'not base64'),
    (f'm=x,r={SERVER_NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096'.encode(), 'an extension'),
    (b'\xff', 'not UTF-8'), (b'', 'the nonce of the broker'),
])
def test_a_challenge_that_is_none_is_refused(challenge, reason):
    talk, _ = started()
    assert reason in refused(talk, challenge)


@settings(deadline=None, max_examples=15)
@given(mechanism=st.sampled_from(['SCRAM-SHA-256', 'SCRAM-SHA-512']), password=st.text(min_size=1),
       username=st.text(st.characters(exclude_categories=['Cs']), min_size=1), salt=st.binary(min_size=8, max_size=24))
def test_the_proof_is_the_one_a_server_expects(mechanism, username, password, salt):
    digest = 'sha' + mechanism[-3:]
    talk = conversation(mechanism, username, password)
    first = next(talk).decode()
    name, nonce = first.removeprefix('n,,n=').rsplit(',r=', 1)
    assert name.replace('=2C', ',').replace('=3D', '=') == username

    challenge = f'r={nonce}server,s={base64.b64encode(salt).decode()},i=4096'
    reply = talk.send(challenge.encode()).decode()
    bare, _, proof = reply.rpartition(',p=')
    assert bare == f'c=biws,r={nonce}server'
    salted = hashlib.pbkdf2_hmac(digest, password.encode(), salt, 4096)
    stored = hashlib.new(digest, hmac.digest(salted, b'Client Key', digest)).digest()
    transcript = f'{first[3:]},{challenge},{bare}'.encode()
    signature = hmac.digest(stored, transcript, digest)
    client_key = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
    assert hashlib.new(digest, client_key).digest() == stored
    ended(talk, b'v=' + base64.b64encode(hmac.digest(hmac.digest(salted, b'Server Key', digest), transcript, digest)))
