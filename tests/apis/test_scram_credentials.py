"""DescribeUserScramCredentials and AlterUserScramCredentials: the bytes on the wire and in the log, and refused
requests."""
import base64
import hashlib
import pathlib

import pytest
from support.brokers.in_process_broker import InProcessBroker

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.metadata.added_scram import parse_add_scram
from kbroker.metadata.scram_records import LARGEST_SALT_BYTES
from kbroker.protocol import messages

# The bytes of requests that Apache Kafka 4.3.1 has read, and of the answers and the record that it wrote.
ALTER = bytes.fromhex(
    '003300000000000a00016300010206616c696365020000200015316673326f6b3068706b7370736c3073306b366341b579738c5bfb99db4f'
    '3524bdcfdbbc37403ff1b9f7ba828c22574227b0ca28cc73924626110c8d7e35002ecb3e012e330a759c2ac8da941fdd0650c4ff82b3d40000')
ALTERED = bytes.fromhex('0000000a00000000000206616c6963650000000000')
RECORD = bytes.fromhex(
    '010b0006616c6963650215316673326f6b3068706b7370736c3073306b3663419507be82c19cb25e73aa961f79bf3f8c88390beb83328489'
    '9cb299cbabd49deefe13dbac450ce9f8170973fdb52878925e4e10a8d77aac5aac1cd0144e7b056741c8bcecdcf103136c8b8cfc0a315bc7'
    '00052ffadb7f5471de7d7568a7ccd0cb32fdebdc7a9bee766400da261bbad3270e844104ae7c988481ffb82251512c28ce0000200000')
DESCRIBE = bytes.fromhex('003200000000000b000163000000')
DESCRIBED = bytes.fromhex('0000000b00000000000000010206616c696365000001020200002000000000')
SHA_256, SHA_512 = 1, 2
SALTED = {SHA_256: bytes(32), SHA_512: bytes(64)}


@pytest.fixture
def broker(tmp_path):
    with InProcessBroker(tmp_path) as broker:
        yield broker


def reply(broker, frame):
    connection = broker.connect()
    broker.send(connection, frame)
    while not connection.replies:
        broker.turn()
    return connection.replies[-1]


def alter(broker, deletions=(), upsertions=()):
    request = messages.AlterUserScramCredentialsRequest
    answer = broker.ask(request(
        deletions=[request.ScramCredentialDeletion(name=name, mechanism=code) for name, code in deletions],
        upsertions=[request.ScramCredentialUpsertion(name=name, mechanism=code, iterations=iterations, salt=b'salt',
                                                     salted_password=SALTED.get(code, b''))
                    for name, code, iterations in upsertions]))
    return {row.user: (row.error_code, row.error_message) for row in answer.results}


def describe(broker, *users):
    request = messages.DescribeUserScramCredentialsRequest
    answer = broker.ask(request(users=[request.UserName(name=user) for user in users]))
    assert answer.error_code == 0
    return {row.user: (row.error_code, [(info.mechanism, info.iterations) for info in row.credential_infos])
            for row in answer.results}


def test_requests_answers_and_the_record_are_those_of_kafka(broker):
    assert reply(broker, ALTER) == ALTERED
    assert reply(broker, DESCRIBE) == DESCRIBED
    log = (pathlib.Path(broker.directory) / '__cluster_metadata-0' / '00000000000000000000.log').read_bytes()
    assert RECORD in log


@pytest.mark.parametrize(('upsertion', 'code', 'text'), [
    (('', SHA_256, 4096), ErrorCode.UNACCEPTABLE_CREDENTIAL, 'Username must not be empty'),
    (('a', 3, 4096), ErrorCode.UNSUPPORTED_SASL_MECHANISM, 'Unknown SCRAM mechanism'),
    (('a', SHA_256, 4095), ErrorCode.UNACCEPTABLE_CREDENTIAL, 'Too few iterations'),
    (('a', SHA_256, 16385), ErrorCode.UNACCEPTABLE_CREDENTIAL, 'Too many iterations'),
])
def test_a_credential_that_cannot_be_is_refused_and_the_others_are_set(broker, upsertion, code, text):
    assert alter(broker, upsertions=[upsertion, ('good', SHA_512, 4096)]) == {
        upsertion[0]: (code, text), 'good': (0, None)}
    assert describe(broker) == {'good': (0, [(SHA_512, 4096)])}


def test_a_user_who_is_named_twice_is_refused_and_nothing_of_it_is_done(broker):
    twice = 'A user credential cannot be altered twice in the same request'
    assert alter(broker, upsertions=[('a', SHA_256, 4096), ('b', SHA_256, 4096), ('a', SHA_512, 4096)]) == {
        'a': (ErrorCode.DUPLICATE_RESOURCE, twice), 'b': (0, None)}
    assert alter(broker, deletions=[('b', SHA_256)], upsertions=[('b', SHA_512, 4096)]) == {
        'b': (ErrorCode.DUPLICATE_RESOURCE, twice)}
    assert describe(broker) == {'b': (0, [(SHA_256, 4096)])}


def test_a_deletion_needs_a_credential(broker):
    assert alter(broker, deletions=[('a', SHA_256)])['a'][0] == ErrorCode.RESOURCE_NOT_FOUND
    alter(broker, upsertions=[('a', SHA_256, 5000)])
    alter(broker, upsertions=[('a', SHA_512, 6000)])
    assert describe(broker, 'a') == {'a': (0, [(SHA_256, 5000), (SHA_512, 6000)])}
    assert alter(broker, deletions=[('a', SHA_256)]) == {'a': (0, None)}
    assert alter(broker, deletions=[('a', SHA_256)])['a'][0] == ErrorCode.RESOURCE_NOT_FOUND
    assert describe(broker, 'a') == {'a': (0, [(SHA_512, 6000)])}


def test_users_without_credentials_and_repeated_ones_have_an_error_each(broker):
    alter(broker, upsertions=[('a', SHA_256, 5000)])
    assert describe(broker, 'a', 'b', 'c', 'c') == {
        'a': (0, [(SHA_256, 5000)]), 'b': (ErrorCode.RESOURCE_NOT_FOUND, []), 'c': (ErrorCode.DUPLICATE_RESOURCE, [])}


@pytest.mark.parametrize(('salted_bytes', 'code'), [
    (0, ErrorCode.UNACCEPTABLE_CREDENTIAL), (1, 0), (8, 0), (64, 0), (4096, 0),
    (4097, ErrorCode.UNACCEPTABLE_CREDENTIAL)])
def test_a_salted_password_has_any_length_within_a_bound(broker, salted_bytes, code):
    """kafka-go's tests send a salted password that is shorter than the digest, and Apache Kafka accepts it."""
    request = messages.AlterUserScramCredentialsRequest
    answer = broker.ask(request(deletions=[], upsertions=[request.ScramCredentialUpsertion(
        name='a', mechanism=SHA_256, iterations=4096, salt=b'salt', salted_password=bytes(salted_bytes))]))
    assert answer.results[0].error_code == code
    parsed = f'SCRAM-SHA-256=[name=a,salt=aGk=,saltedpassword={base64.b64encode(bytes(salted_bytes)).decode()}]'
    if code:
        with pytest.raises(KafkaError, match='expected 1 to 4096'):
            parse_add_scram(parsed)
    else:
        assert parse_add_scram(parsed).name == 'a'


@pytest.mark.parametrize(('salt_bytes', 'code'), [
    (0, 0), (LARGEST_SALT_BYTES, 0), (LARGEST_SALT_BYTES + 1, ErrorCode.UNACCEPTABLE_CREDENTIAL)])
def test_a_salt_has_a_bound(broker, salt_bytes, code):
    request = messages.AlterUserScramCredentialsRequest
    answer = broker.ask(request(deletions=[], upsertions=[request.ScramCredentialUpsertion(
        name='a', mechanism=SHA_256, iterations=4096, salt=bytes(salt_bytes), salted_password=bytes(32))]))
    assert answer.results[0].error_code == code


def test_credentials_survive_a_restart(tmp_path):
    with InProcessBroker(tmp_path) as broker:
        alter(broker, upsertions=[('a', SHA_256, 5000)])
    with InProcessBroker(tmp_path) as broker:
        assert describe(broker) == {'a': (0, [(SHA_256, 5000)])}


def test_the_option_of_the_command_means_what_kafkas_means():
    record = parse_add_scram('SCRAM-SHA-512=[name=alice,password=alice-secret,salt=MWZzMm9rMGhwa3Nwc2wwczBrNmM=,'
                             'iterations=8192]')
    assert (record.name, record.mechanism, record.iterations) == ('alice', SHA_512, 8192)
    assert record.stored_key in RECORD
    assert record.server_key in RECORD
    salted = base64.b64encode(hashlib.pbkdf2_hmac('sha256', b'pw', b'salt', 4096)).decode()
    quoted = parse_add_scram('SCRAM-SHA-256=[name="a",password="pw",salt=c2FsdA==]')
    assert quoted == parse_add_scram(f'SCRAM-SHA-256=[name=a,salt=c2FsdA==,saltedpassword={salted}]')
    assert quoted.name == 'a'


@pytest.mark.parametrize('text', [
    'SCRAM-SHA-1=[name=a,password=hidden]', 'SCRAM-SHA-256=name=a,password=hidden', 'SCRAM-SHA-256=[name=a]',
    'SCRAM-SHA-256=[password=hidden]', 'SCRAM-SHA-256=[name=a,password=hidden,color=red]',
    'SCRAM-SHA-256=[name=a,password=]', 'SCRAM-SHA-256=[name=a,saltedpassword=aGlkZGVu]',
    'SCRAM-SHA-256=[name=a,password=hidden,salt=%%]',
    'SCRAM-SHA-256=[name=a,password=hidden,iterations=4095]', 'SCRAM-SHA-256=[name=a,password=hidden,iterations=x]',
])
def test_another_option_is_refused_without_the_password(text):
    with pytest.raises(Exception, match=r'expected|iterations|empty|base64') as refused:
        parse_add_scram(text)
    assert 'hidden' not in str(refused.value)
