"""The public interface of the client: its names, its settings, and the uses that it refuses."""
import multiprocessing
import subprocess
import sys
import threading
import typing

import pytest
from support.brokers.fake_cluster import FakeCluster

import kbroker.client
from kbroker.base.errors import ErrorCode
from kbroker.client import Acl, Admin, Consumer, KafkaError, OffsetAndMetadata, Producer
from kbroker.client.admin import as_offsets
from kbroker.client.config import CONNECTION_SETTINGS, SECURITY_SETTINGS, ClientConfig
from kbroker.client.errors import ClientError
from kbroker.client.opening import InvalidSetting, setting_name
from kbroker.client.options import ConnectionOptions, ConsumerOptions, ProducerOptions
from kbroker.client.stream_settings import ConsumerSettings, ProducerSettings


def test_the_names_of_the_client_are_those_of_its_list():
    assert sorted(kbroker.client.__all__) == [
        'Acl', 'Admin', 'ConfigEntry', 'ConfigSynonym', 'ConsumedBatch', 'Consumer', 'Delivery', 'FatalProducerError',
        'GroupInfo', 'GroupListing', 'GroupMemberInfo', 'GroupMetadata', 'KafkaError', 'LogDirectory', 'NewTopic',
        'OffsetAndMetadata', 'PreparedTransaction', 'Producer', 'ProducerFencedError', 'ProducerInfo',
        'RebalanceListener', 'Record', 'ReplicaSize', 'ScramCredentialInfo', 'ScramCredentialUpsertion', 'ShareOffset',
        'Slices', 'StreamsGroupInfo', 'StreamsMemberInfo', 'SubtopologyInfo', 'TopologyDescription',
        'TopologyNode', 'TransactionError', 'TransactionInfo', 'TransactionListing']
    for name in kbroker.client.__all__:
        assert getattr(kbroker.client, name).__name__ == name
        assert name in dir(kbroker.client)
    with pytest.raises(AttributeError, match="has no attribute 'Cluster'"):
        _ = kbroker.client.Cluster


def test_a_name_is_loaded_when_it_is_used():
    program = ('import sys, kbroker.client; before = {name for name in sys.modules if name.startswith("kbroker")};'
               'kbroker.client.KafkaError; print(sorted(before), "kbroker.client.producer" in sys.modules)')
    done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=True)
    assert done.stdout == "['kbroker', 'kbroker.client'] False\n"


def test_settings_have_kafkas_names_with_dots_or_underscores():
    producer = Producer('one:1,two:2', linger_ms=20, settings={'compression.type': 'lz4', 'linger.ms': 3}, acks='all',
                        enable_idempotence=True, request_timeout_ms=7)
    assert (producer.settings.linger_ms, producer.settings.compression.name) == (20, 'LZ4')
    consumer = Consumer(['one:1', 'two:2'], group_id='g', topics=['t'], isolation_level='read_committed')
    assert (consumer.settings.group_id, consumer.settings.isolation_level) == ('g', 'read_committed')
    admin = Admin(bootstrap_servers='[::1]:9', client_id='me')
    assert (admin.cluster.config.bootstrap, admin.cluster.config.client_id) == ((('::1', 9),), 'me')


@pytest.mark.parametrize(('make', 'message'), [
    (lambda: Producer('h:1', lingerms=1), 'lingerms: this client does not have this setting: did you mean linger.ms?'),
    (lambda: Producer('h:1', settings={'group.id': 'g'}), 'group.id: this client does not have this setting'),
    (lambda: Consumer('h:1', settings={'isolation.levle': 'x'}), 'did you mean isolation.level?'),
    (lambda: Consumer('h:1', settings={'transactional.id': 'x'}), 'transactional.id: this client does not have'),
    (lambda: Admin('h:1', linger_ms=3), 'linger.ms: this client does not have this setting'),
    (lambda: Producer('h:1', sasl_username='u'), 'no effect unless security.protocol contains SASL'),
    (lambda: Producer(FakeCluster(), client_id='x'), 'client.id: this client does not have this setting'),
    (lambda: Producer('h:1', acks='2'), "acks: found '2', expected all or -1 or 1 or 0"),
    (lambda: Producer('h'), "bootstrap server: found 'h', expected HOST:PORT"),
    (Producer, 'bootstrap server: found none, expected HOST:PORT')])
def test_a_setting_that_is_unknown_or_wrong_is_refused_by_the_constructor(make, message):
    with pytest.raises(InvalidSetting) as raised:
        make()
    assert message in str(raised.value)
    assert isinstance(raised.value, ValueError)


def test_a_file_for_several_programs_may_hold_other_settings():
    """The commands read settings files that other programs use, too, and pass a connected cluster to the client."""
    cluster = FakeCluster()
    cluster.config = ClientConfig.from_settings({'bootstrap.servers': 'h:1', 'interceptor.classes': 'x',
                                                 'linger.ms': '8'})
    assert Producer(cluster).settings.linger_ms == 8
    assert Producer(cluster, {'linger.ms': 9}).settings.linger_ms == 9
    with pytest.raises(TypeError, match=r'found linger\.ms beside ProducerSettings'):
        Producer(cluster, ProducerSettings(), linger_ms=3)


@pytest.mark.parametrize(('options', 'settings'), [(ProducerOptions, ProducerSettings),
                                                   (ConsumerOptions, ConsumerSettings)])
def test_the_typed_parameters_are_the_settings(options, settings):
    names = {setting_name(name) for name in typing.get_type_hints(options)}
    connection = {setting_name(name) for name in typing.get_type_hints(ConnectionOptions)}
    assert names - connection == settings.defaults().keys()
    assert set(CONNECTION_SETTINGS) <= connection <= {*CONNECTION_SETTINGS, *SECURITY_SETTINGS}


def test_the_defaults_of_the_settings_are_valid_values():
    for settings in (ProducerSettings, ConsumerSettings):
        given = {name: default for name, default in settings.defaults().items() if default}
        del given['group.protocol' if settings is ConsumerSettings else 'transaction.timeout.ms']
        assert settings.from_properties(given) == settings()


# ---- uses that are refused

USES = {
    Producer: [lambda client: client.send('t', b'a'), lambda client: client.flush(), lambda client: client.poll(0),
               lambda client: client.prepared, lambda client: client.end_prepared('x', 1, 1)],
    Consumer: [lambda client: client.poll(0), lambda client: client.assign([]), lambda client: client.commit({}),
               lambda client: client.subscribe(['t'])]}


@pytest.mark.parametrize('make', [Producer, Consumer])
def test_a_closed_client_is_refused(make):
    with make(FakeCluster()) as client:
        pass
    for use in USES[make]:
        with pytest.raises(RuntimeError, match='that was closed, expected an open one'):
            use(client)
    client.close()


def test_a_consumer_whose_last_commit_fails_closes_its_connections(monkeypatch):
    consumer, closed = Consumer('h:1', group_id='g'), []
    clusters = [consumer._session.member_cluster, consumer._cluster]
    for cluster in clusters:
        monkeypatch.setattr(cluster, 'close', lambda closing=cluster: closed.append(closing))

    def fail():
        raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, 'no coordinator')

    monkeypatch.setattr(consumer._session, 'commit_if_still_member', fail)
    with pytest.raises(KafkaError, match='no coordinator'):
        consumer.close()
    assert closed == clusters


@pytest.mark.parametrize(('options', 'limit_ms'), [({}, 30_000), ({'timeout_ms': 5}, 5)])
def test_a_close_bounds_all_that_it_waits_for_together(options, limit_ms, monkeypatch):
    consumer, bounds = Consumer('h:1', group_id='g'), []
    monkeypatch.setattr(consumer._session.member_cluster, 'end_within', bounds.append)
    monkeypatch.setattr(consumer._session.heartbeats, 'stop', lambda timeout_ms: bounds.append(timeout_ms) or True)
    consumer.close(commits=False, **options)
    assert bounds == [limit_ms, limit_ms]


class UnansweredHeartbeat:
    """A stand-in for a member's heartbeats while their thread waits for an answer."""

    uses_member = True

    def __init__(self, stop=lambda timeout_ms: False):
        self.stop = stop


def reading_consumer(monkeypatch, stop=lambda timeout_ms: False):
    """Return (a consumer that has read a partition, a list that gets an entry when the consumer closes its member's
    connections)."""
    consumer, closed = Consumer('h:1', group_id='g', enable_auto_commit=True), []
    consumer.assign([('t', 0)])
    consumer.seek('t', 0, 5)
    consumer._session.heartbeats = UnansweredHeartbeat(stop)
    monkeypatch.setattr(consumer._session.member_cluster, 'close', lambda: closed.append('member'))
    return consumer, closed


def test_a_close_raises_if_a_heartbeat_without_an_answer_prevents_its_commit(monkeypatch):
    consumer, closed = reading_consumer(monkeypatch)
    with pytest.raises(ClientError, match=r"positions of group 'g' were not committed: .* a heartbeat within 700 ms"):
        consumer.close(timeout_ms=700)
    assert closed == [], 'the thread uses the connections'
    consumer._session.heartbeats.uses_member = False
    consumer.close()
    assert closed == ['member']


@pytest.mark.parametrize(('position', 'options'), [(5, {'commits': False}), (5, {'timeout_ms': 0}), (None, {})])
def test_a_close_that_has_nothing_to_commit_does_not_raise_for_a_heartbeat(monkeypatch, position, options):
    consumer, closed = reading_consumer(monkeypatch)
    consumer._positions.offsets['t', 0] = position
    consumer.close(**options)
    assert closed == []


def test_a_close_that_is_interrupted_in_a_heartbeat_leaves_the_connections_to_its_thread(monkeypatch):
    def interrupt(timeout_ms):
        raise KeyboardInterrupt

    consumer, closed = reading_consumer(monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt):
        consumer.close()
    assert closed == []
    with pytest.raises(RuntimeError, match='that was closed'):
        consumer.poll(0)


def test_a_close_that_is_interrupted_in_its_commit_waits_a_second_for_the_goodbye(monkeypatch):
    """Without the bound of one second, a close after Ctrl-C could wait 30 s for a coordinator that does not answer."""
    def interrupt():
        raise KeyboardInterrupt

    consumer, bounds = Consumer('h:1', group_id='g', topics=['t']), []
    monkeypatch.setattr(consumer._session, 'commit_if_still_member', interrupt)
    monkeypatch.setattr(consumer._session.member_cluster, 'end_within', bounds.append)
    monkeypatch.setattr(consumer._session.member, 'leave_quietly', lambda: bounds.append('goodbye'))
    with pytest.raises(KeyboardInterrupt):
        consumer.close()
    assert bounds == [30_000, 1000, 'goodbye']


def test_a_close_in_negative_time_is_refused():
    consumer = Consumer('h:1', group_id='g')
    with pytest.raises(ValueError, match='found -1 as timeout_ms, expected 0 or more'):
        consumer.close(timeout_ms=-1)
    consumer.close()


def test_a_closed_admin_is_refused():
    with Admin('localhost:1') as admin:
        pass
    with pytest.raises(RuntimeError, match='found an admin that was closed'):
        admin.create_topics({'t': 1})
    admin.close()


@pytest.mark.parametrize('make', [Producer, Consumer])
def test_a_second_thread_is_refused(make):
    client = make(FakeCluster())
    client.poll(0)
    raised = []

    def run():
        for use in [*USES[make], lambda client: client.close()]:
            try:
                use(client)
            except RuntimeError as error:
                raised.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert len(raised) == len(USES[make]) + 1
    assert all('is used by two threads, expected one' in text for text in raised)
    client.poll(0)


def test_a_client_may_be_made_in_one_thread_and_used_in_another():
    producer = Producer(FakeCluster(), linger_ms=0)
    thread = threading.Thread(target=lambda: producer.send('t', b'a'))
    thread.start()
    thread.join()
    with pytest.raises(RuntimeError, match='it belongs to the thread that used it first'):
        producer.flush()


def use_after_fork(clients, results):
    for client in clients:
        try:
            client.poll(0)
        except RuntimeError as error:
            results.put(str(error))
        client.close()


def test_a_forked_process_is_refused_and_closes_without_a_word():
    cluster = FakeCluster()
    clients = [Producer(cluster, linger_ms=0), Consumer(cluster)]
    context = multiprocessing.get_context('fork')
    results = context.SimpleQueue()
    process = context.Process(target=use_after_fork, args=(clients, results))
    process.start()
    process.join()
    assert [results.get() for _ in clients] == [
        f'found a {name} that was made before a fork, expected one that this process made: both would share its '
        'connections' for name in ('producer', 'consumer')]
    clients[0].send('t', b'a')
    clients[0].flush()


def test_an_error_of_the_block_is_not_replaced_by_one_of_the_end():
    cluster = FakeCluster()
    cluster.codes[0] = [ErrorCode.INVALID_RECORD]
    with pytest.raises(ZeroDivisionError) as raised, Producer(cluster) as producer:
        producer.send('t', b'a')
        raise ZeroDivisionError
    assert 'The producer could not be closed: t-0: INVALID_RECORD' in raised.value.__notes__[0]
    cluster.codes[0] = [ErrorCode.INVALID_RECORD]
    with pytest.raises(KafkaError, match='INVALID_RECORD'), Producer(cluster) as producer:
        producer.send('t', b'a')


# ---- statistics

def test_a_producer_counts_its_records_and_requests():
    cluster = FakeCluster()
    cluster.codes[0] = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE, ErrorCode.INVALID_RECORD]
    deliveries = []
    producer = Producer(cluster, on_delivery=deliveries.append, linger_ms=0, batch_size=0, buffer_memory=1000)
    for _ in range(2):
        producer.send('t', b'abc')
        producer.flush()
    assert producer.stats() == {
        'record_send_total': 1, 'record_error_total': 1, 'record_retry_total': 1, 'batch_split_total': 0,
        'request_total': 3, 'commit_total': 0, 'abort_total': 0, 'requests_in_flight': 0, 'buffer_total_bytes': 1000,
        'buffer_available_bytes': 1000}


def test_a_producer_counts_its_transactions():
    producer = Producer(FakeCluster(), transactional_id='x', linger_ms=0)
    for _ in range(2):
        with producer.transaction():
            producer.send('t', b'a')
    with pytest.raises(ZeroDivisionError), producer.transaction():
        raise ZeroDivisionError
    stats = producer.stats()
    assert (stats['commit_total'], stats['abort_total'], stats['record_send_total']) == (2, 1, 2)


# ---- offsets

@pytest.mark.parametrize(('offset', 'kind', 'message'), [
    (-1, ValueError, 'found offset -1 of t-0, expected 0 or more'), ('5', TypeError, 'found str as the offset of t-0'),
    (OffsetAndMetadata(-3), ValueError, 'found offset -3')])
def test_an_offset_that_no_partition_has_is_refused_before_anything_is_sent(offset, kind, message):
    consumer, offsets = Consumer('h:1', group_id='g'), {('t', 0): offset}
    consumer.assign([('t', 0)])
    producer = Producer(FakeCluster(), transactional_id='x')
    for use in (lambda: consumer.commit(offsets), lambda: Admin('h:1').alter_group_offsets('g', offsets),
                lambda: consumer.seek('t', 0, offset)):
        with pytest.raises(kind, match=message):
            use()
    with pytest.raises(kind, match=message), producer.transaction() as transaction:
        transaction.send_offsets(offsets, 'g')
    assert producer.stats()['abort_total'] == 1


def test_offsets_may_be_numbers():
    assert as_offsets({('t', 0): 5, ('t', 1): OffsetAndMetadata(6, metadata='m')}) == {
        ('t', 0): OffsetAndMetadata(5), ('t', 1): OffsetAndMetadata(6, metadata='m')}


# ---- names in requests of an admin

@pytest.mark.parametrize(('use', 'message'), [
    (lambda admin: admin.describe_config('topics', 't'), "found 'topics' as the type of a resource, expected one"),
    (lambda admin: admin.alter_config('table', 't', {}), "found 'table' as the type"),
    (lambda admin: admin.create_acls([Acl('topic', 't', 'literal', 'User:a', '*', 'reed', 'allow')]),
     "found 'reed' in an ACL, expected one of any, all, read"),
    (lambda admin: admin.describe_acls(Acl(resource_type='table')), "found 'table' in an ACL"),
    (lambda admin: admin.list_offsets({('t', 0): 'newest'}), "found 'newest' as a time, expected milliseconds or")])
def test_a_name_that_there_is_not_is_refused_with_those_that_there_are(use, message):
    with Admin('h:1') as admin, pytest.raises(ValueError, match=message):
        use(admin)


@pytest.mark.parametrize('topics', [[b't'], ['t', 1]])
def test_topics_that_are_no_strings_are_refused(topics):
    consumer = Consumer('h:1', group_id='g')
    for subscribe in (lambda: Consumer('h:1', group_id='g', topics=topics), lambda: consumer.subscribe(topics)):
        with pytest.raises(TypeError, match='as a topic, expected str'):
            subscribe()


@pytest.mark.parametrize(('name', 'message'), [
    ('delete_topics', "found 'abc' as topics, expected a list"), ('delete_groups', "found 'abc' as group.ids"),
    ('describe_classic_groups', "found 'abc' as group.ids"), ('list_groups', "found 'abc' as states"),
    ('describe_transactions', "found 'abc' as transactional.ids"),
    ('fence_producers', "found 'abc' as transactional.ids"), ('list_transactions', "found 'abc' as states"),
    ('describe_scram_credentials', "found 'abc' as users"), ('create_topics', "found 'abc' as topics")])
def test_a_single_name_is_no_collection_of_names(name, message):
    with Admin('h:1') as admin, pytest.raises(TypeError, match=message):
        getattr(admin, name)('abc')
