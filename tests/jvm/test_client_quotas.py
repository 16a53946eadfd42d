"""kbroker and Apache Kafka throttle the same requests for the same time, and their commands for quotas print the same.

Covers KIP-546 and KIP-599.
"""
import time

import pytest
from raw_peer import RawPeer
from support.brokers.broker_process import PROMPT
from support.kafka.apache_kafka import config_command, run_several_tools
from support.kafka.beside_kafka import both_brokers
from support.kafka.shown_metadata import await_shown_metadata
from support.messages.message_builder import batch_of
from support.runner.command_runner import run_in_process

from kbroker.apis.serving.served import served_apis
from kbroker.base.errors import ErrorCode
from kbroker.client.admin import Admin
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(600)]

TOOL = config_command()
DESCRIBE_SCRAM = 50
QUOTA = 100_000
SIZES = (1, 100_000, 999_000, 1_000_000, 1_040_000)


@pytest.fixture(scope='module')
def brokers(tmp_path_factory):
    """Apache Kafka and kbroker."""
    with both_brokers(tmp_path_factory.mktemp('quotas'), PROMPT) as brokers:
        yield brokers


def limit(address, client_id, user=None, **quotas):
    """Set quotas of a client id, or of a user and a client id, and wait until the broker applies them."""
    cluster = Cluster(ClientConfig.load(address))
    entity = [('client-id', client_id), *([] if user is None else [('user', user)])]
    assert Admin(cluster).alter_client_quotas(entity, quotas) is None
    cluster.close()
    await_shown_metadata(address)


def throttle_of(address, client_id, *requests):
    """Send requests, each (API, version, fields), from a new client. Return the throttle time in the answer to the last
    request.
    """
    peer = RawPeer(address, 'orders')
    for api, version, fields in requests:
        answer = peer.ask(api, version, client_id=client_id, **fields)
    peer.close()
    return answer


def produce_of(size_bytes):
    return 'Produce', 12, {'acks': -1, 'timeout_ms': 10000, 'topic_data': [{'name': 'orders', 'partition_data': [
        {'index': 0, 'records': batch_of(1_700_000_000_000, bytes(size_bytes))}]}]}


def test_the_first_requests_of_clients_are_throttled_for_the_same_time(brokers):
    """For the first request of a client, both brokers assume an elapsed time of 0, so only its bytes count."""
    found = []
    for broker in brokers:
        peer = RawPeer(broker.address, 'orders')
        peer.create_topic('orders', max_message_bytes='2000000')
        peer.close()
        times = []
        for number, size_bytes in enumerate(SIZES):
            limit(broker.address, f'producer-{number}', producer_byte_rate=float(QUOTA))
            times.append(throttle_of(broker.address, f'producer-{number}', produce_of(size_bytes)).throttle_time_ms)
        for version in (4, 11, 12):
            limit(broker.address, f'consumer-{version}', consumer_byte_rate=float(QUOTA) - 2000)
            answer = throttle_of(broker.address, f'consumer-{version}', ('Fetch', version, {
                'replica_id': -1, 'max_wait_ms': 0, 'min_bytes': 1, 'max_bytes': 5_000_000, 'topics': [
                    {'topic': 'orders', 'partitions': [
                        {'partition': 0, 'fetch_offset': 3, 'partition_max_bytes': 5_000_000}]}]}))
            assert not answer.responses
            times.append(answer.throttle_time_ms)
        found.append(times)
    assert found[0] == found[1]
    assert found[0][:3] == [0, 0, 0] and min(found[0][3:]) > 0


def test_partitions_above_the_quota_are_refused_for_the_same_time(brokers):
    for broker in brokers:
        limit(broker.address, 'maker', controller_mutation_rate=10.0)
        began = time.monotonic()
        answers = [throttle_of(broker.address, 'maker', ('CreateTopics', 7, {'timeout_ms': 10000, 'topics': [
            {'name': name, 'num_partitions': count, 'replication_factor': 1}]}))
            for name, count in (('wide', 200), ('next', 1))]
        elapsed_ms = (time.monotonic() - began) * 1000
        assert [answer.topics[0].error_code for answer in answers] == [0, ErrorCode.THROTTLING_QUOTA_EXCEEDED]
        assert answers[0].throttle_time_ms == 0
        assert 9000 - elapsed_ms - 1 <= answers[1].throttle_time_ms <= 9000


TIMED = [
    ('ApiVersions', 3, {'client_software_name': 'judge', 'client_software_version': '1'}),
    ('Metadata', 12, {'topics': None}),
    ('DescribeCluster', 1, {}),
    ('ListGroups', 4, {}),
    ('DescribeConfigs', 4, {'resources': [
        {'resource_type': 4, 'resource_name': '1', 'configuration_keys': None}]}),
    ('DescribeConfigs', 4, {'resources': [
        {'resource_type': 2, 'resource_name': 'not there', 'configuration_keys': None}]}),
    ('Produce', 12, {'acks': -1, 'timeout_ms': 10000, 'topic_data': [{'name': 'not-there', 'partition_data': [
        {'index': 0, 'records': batch_of(1_700_000_000_000, b'value')}]}]}),
    ('Fetch', 12, {'replica_id': -1, 'max_wait_ms': 0, 'min_bytes': 1, 'max_bytes': 1_000_000, 'topics': [
        {'topic': 'not-there', 'partitions': [
            {'partition': 0, 'fetch_offset': 0, 'partition_max_bytes': 1_000_000}]}]}),
]
"""Requests whose processing time counts, even if the answer is an error."""
WINDOW_MS = 1000


@pytest.mark.parametrize(('percentage', 'expected_ms'), [(1e-7, WINDOW_MS), (10_000.0, 0)])
def test_request_time_above_the_quota_is_throttled_for_one_window(brokers, percentage, expected_ms):
    """On any machine, a request takes longer than the small percentage allows, and no request uses up the large
    percentage. For the small one, the throttle time would be hours, but it is at most one window.
    """
    for broker in brokers:
        for number, request in enumerate(TIMED):
            client_id = f'timed-{expected_ms}-{number}'
            limit(broker.address, client_id, 'ANONYMOUS', request_percentage=percentage)
            answer = throttle_of(broker.address, client_id, request)
            assert answer.throttle_time_ms == expected_ms, (broker, request)
            if request[0] == 'Fetch':
                assert bool(answer.responses) is (expected_ms == 0)


def test_clients_of_one_quota_share_their_time(brokers):
    """The first request uses up the quota of the user's client id, so a new connection is throttled as well."""
    for broker in brokers:
        limit(broker.address, 'shared', 'ANONYMOUS', request_percentage=1e-7)
        peers = [RawPeer(broker.address, 'orders') for _ in range(2)]
        times = [peer.ask('Metadata', 12, client_id='shared', topics=[]).throttle_time_ms for peer in peers]
        others = peers[0].ask('Metadata', 12, client_id='another', topics=[]).throttle_time_ms
        for peer in peers:
            peer.close()
        assert (times, others) == ([WINDOW_MS, WINDOW_MS], 0), broker


@pytest.mark.parametrize('percentage', [0.0, -1.0])
def test_a_share_that_is_none_is_refused(brokers, percentage):
    found = []
    for broker in brokers:
        peer = RawPeer(broker.address, 'orders')
        answer = peer.ask('AlterClientQuotas', 1, entries=[{
            'entity': [{'entity_type': 'user', 'entity_name': 'anyone'}],
            'ops': [{'key': 'request_percentage', 'value': percentage, 'remove': False}]}])
        found.append([entry.error_code for entry in answer.entries])
        peer.close()
    assert found[0] == found[1] == [ErrorCode.INVALID_REQUEST]


ALTERED = [
    ('--entity-type', 'users', '--entity-name', '{}-alice', '--add-config', 'producer_byte_rate=1048576'),
    ('--entity-type', 'users', '--entity-name', '{}-alice', '--entity-type', 'clients', '--entity-default',
     '--add-config', 'consumer_byte_rate=12345678,request_percentage=25.5'),
    ('--entity-type', 'clients', '--entity-name', '{}-app', '--add-config', 'controller_mutation_rate=0.5'),
    ('--client', '{}-app', '--add-config', 'producer_byte_rate=5'),
    ('--entity-type', 'users', '--entity-default', '--add-config', 'request_percentage=50'),
    ('--entity-type', 'clients', '--entity-name', '{}-app', '--entity-type', 'users', '--entity-default',
     '--add-config', 'producer_byte_rate=7'),
]
DELETED = [('--client', '{}-app', '--delete-config', 'producer_byte_rate')]
SALTED = [
    ('--entity-type', 'users', '--entity-name', '{}-alice', '--add-config',
     'SCRAM-SHA-512=[iterations=8192,password=a secret]'),
    ('--user', '{}-alice', '--add-config', 'SCRAM-SHA-256=[password=another]'),
]
DESCRIBED = [('--entity-type', 'clients'), ('--entity-type', 'clients', '--entity-name', 'they-app'),
             ('--ip', '10.0.0.1'),
             ('--entity-type', 'users', '--entity-default'), ('--entity-type', 'ips'), ('--ip-defaults',),
             ('--entity-type', 'users', '--entity-type', 'clients'), ('--client-defaults',),
             ('--entity-type', 'users', '--entity-name', 'they-alice', '--entity-type', 'clients')]
OF_USERS = [('--entity-type', 'users'), ('--user', 'they-alice'), ('--user', 'nobody')]


@pytest.mark.parametrize('number', [0, 1], ids=['apache-kafka', 'kbroker'])
def test_the_command_prints_what_kafkas_tool_prints(brokers, number):
    """Each of the two commands changes its own entities. Both commands describe all entities."""
    address = brokers[number].address
    has_scram = number == 0 or any(api.key == DESCRIBE_SCRAM for api in served_apis())
    changes = [*ALTERED, ('--ip', '10.0.0.1', '--add-config', 'connection_creation_rate=5'),
               ('--ip-defaults', '--add-config', 'connection_creation_rate=9'), *(SALTED if has_scram else [])]
    parts = [[('--alter', *run) for run in changes], [('--alter', *run) for run in DELETED],
             [('--describe', *run) for run in [*DESCRIBED, *(OF_USERS if has_scram else [])]]]
    kafkas = []
    for runs in parts:
        kafkas += run_several_tools(
            [[TOOL, '--bootstrap-server', address, *(word.format('they') for word in run)] for run in runs])
        await_shown_metadata(address)       # the next part needs the changes of this one
    for run, kafka in zip([run for runs in parts for run in runs], kafkas, strict=True):
        assert kafka.code == 0, (run, kafka)
        if run[0] == '--alter':
            ours = run_in_process('configs', '--bootstrap-server', address, *(word.format('they') for word in run))
            await_shown_metadata(address)
        else:
            ours = run_in_process('configs', '--bootstrap-server', address, *run)
        assert ours.returncode == 0, (run, ours.stderr)
        assert tokens(ours.stdout) == tokens(kafka.output), run


def tokens(text):
    """Return the lines of a text as sorted lists of values, in sorted order. Kafka prints lines and values in the order
    of its hash tables.
    """
    return sorted((where, sorted(values.split(', '))) for where, _, values in
                  (line.partition(' are ') for line in text.splitlines()))
