"""Arguments of the public client: the accepted forms, and a clear error for each other form. The client sends no
request then."""
from datetime import UTC, datetime

import pytest
from support.brokers.fake_cluster import FakeCluster

from kbroker.client import Admin, Consumer, NewTopic, OffsetAndMetadata, Producer
from kbroker.record.records import decode_records

AT = ('t', 0)


@pytest.fixture
def producer():
    return Producer(FakeCluster())


def sent_headers(producer):
    producer.flush()
    (records,) = [decode_records(data) for data in producer._cluster.broker.sent_bytes]
    return [record.headers for record in records]


FORMS = [
    [('h', b'1'), ('ü', None)], (('h', b'1'), ('ü', None)), [['h', b'1'], ['ü', None]], {'h': b'1', 'ü': None},
    [(b'h', b'1'), ('ü'.encode(), None)], {b'h': bytearray(b'1'), 'ü'.encode(): None},
    {'h': memoryview(b'1'), 'ü': None}.items()]


@pytest.mark.parametrize('headers', FORMS, ids=range(len(FORMS)))
def test_headers_may_have_each_obvious_form(producer, headers):
    producer.send('t', b'v', headers=headers)
    assert sent_headers(producer) == [[('h', b'1'), ('ü', None)]]


@pytest.mark.parametrize('headers', FORMS, ids=range(len(FORMS)))
def test_headers_of_rows_have_the_same_forms(producer, headers):
    producer.send_batch('t', [b'v', b'w'], headers=[headers, ()])
    assert sent_headers(producer) == [[('h', b'1'), ('ü', None)], []]


HEADERS = [
    ('h', TypeError, 'found str as headers, expected pairs of a name and bytes, or a dict'),
    (7, TypeError, 'found int as headers'),
    (['ab'], TypeError, "found 'ab' as a header, expected a pair of a name and bytes"),
    ([('h', b'1', 2)], TypeError, 'as a header, expected a pair'),
    ([(1, b'1')], TypeError, 'found int as the name of a header, expected str, or bytes of UTF-8'),
    ([(b'\xff', b'1')], ValueError, r"found b'\\xff' as the name of a header, expected UTF-8"),
    ([('h', 'v')], TypeError, 'found str as the value of a header, expected bytes or None'),
    ({'h': 1}, TypeError, 'found int as the value of a header, expected bytes or None')]


@pytest.mark.parametrize(('headers', 'kind', 'words'), HEADERS, ids=range(len(HEADERS)))
@pytest.mark.parametrize('send', [
    lambda producer, headers: producer.send('t', b'v', headers=headers),
    lambda producer, headers: producer.send_batch('t', [b'v'], headers=[headers])], ids=['send', 'send_batch'])
def test_other_headers_are_refused_and_nothing_is_sent(producer, send, headers, kind, words):
    with pytest.raises(kind, match=words):
        send(producer, headers)
    producer.flush()
    assert not producer._cluster.broker.sent


RECORDS = [
    ({'topic': b't'}, 'found bytes as a topic, expected str'), ({'topic': None}, 'found NoneType as a topic'),
    ({'value': 'v'}, 'found str as a value, expected bytes or None'), ({'value': 7}, 'found int as a value'),
    ({'key': 'k'}, 'found str as a key, expected bytes or None'),
    ({'partition': '0'}, 'found str as a partition, expected int'),
    ({'partition': 0.0}, 'found float as a partition, expected int'),
    ({'timestamp_ms': 1.5}, 'found float as a timestamp, expected milliseconds since 1970 as int'),
    ({'timestamp_ms': datetime.now(UTC)}, 'found datetime.datetime as a timestamp, expected milliseconds'),
    ({'timestamp_ms': '1'}, 'found str as a timestamp')]


@pytest.mark.parametrize(('given', 'words'), RECORDS, ids=range(len(RECORDS)))
def test_a_record_with_an_argument_of_another_type_is_refused_and_not_sent(producer, given, words):
    with pytest.raises(TypeError, match=words.replace('datetime.datetime', 'datetime')):
        producer.send(**({'topic': 't', 'value': b'v'} | given))
    producer.flush()
    assert not producer._cluster.broker.sent


CALLS = [
    (lambda consumer: consumer.assign('t'), "found 't' as partitions, expected pairs of a topic and a number"),
    (lambda consumer: consumer.assign(AT), r"found the partition \('t', 0\) alone, expected a list of partitions"),
    (lambda consumer: consumer.assign(['t']), "found 't' as a partition, expected a pair"),
    (lambda consumer: consumer.assign([(b't', 0)]), 'found bytes as a topic, expected str'),
    (lambda consumer: consumer.assign([('t', '0')]), 'found str as a partition of t, expected int'),
    (lambda consumer: consumer.pause(['t']), "found 't' as a partition"),
    (lambda consumer: consumer.committed([('t', None)]), 'found NoneType as a partition of t, expected int'),
    (lambda consumer: consumer.commit([AT]), 'found list as offsets, expected a dict from partitions to offsets'),
    (lambda consumer: consumer.commit({'t': 1}), "found 't' as a partition"),
    (lambda consumer: consumer.commit({AT: '1'}), 'found str as the offset of t-0, expected int'),
    (lambda consumer: consumer.commit({AT: OffsetAndMetadata(1.0)}), 'found float as the offset of t-0'),
    (lambda consumer: consumer.commit({AT: True}), 'found bool as the offset of t-0'),
    (lambda consumer: consumer.seek('t', '0', 1), 'found str as a partition of t'),
    (lambda consumer: consumer.position('t', '0'), 'found str as a partition of t'),
    (lambda consumer: consumer.offsets_for_times({AT: 1.5}), 'found float as a time in ms, expected int'),
    (lambda consumer: consumer.offsets_for_times({AT: datetime.now(UTC)}), 'found datetime as a time in ms'),
    (lambda consumer: consumer.seek_to_time(datetime.now(UTC)), 'found datetime as a timestamp in ms, expected int'),
    (lambda consumer: consumer.end_offsets(7), 'found 7 as partitions'),
    (lambda consumer: consumer.poll('1'), 'found str as timeout_ms in ms, expected int'),
    (lambda consumer: consumer.poll(None), 'found NoneType as timeout_ms in ms'),
    (lambda consumer: consumer.close(timeout_ms='1'), 'found str as timeout_ms in ms'),
    (lambda consumer: consumer.subscribe(7), 'found 7 as topics, expected a list'),
    (lambda consumer: consumer.subscribe([b't']), 'found bytes as a topic, expected str')]


@pytest.mark.parametrize(('call', 'words'), CALLS, ids=range(len(CALLS)))
def test_a_consumer_refuses_an_argument_of_another_type(call, words):
    consumer = Consumer('127.0.0.1:1', group_id='g', enable_auto_commit=False)
    consumer.assign([AT])
    with pytest.raises(TypeError, match=words):
        call(consumer)
    assert consumer.assignment == {AT}
    consumer.close(timeout_ms=0)


def test_a_time_below_zero_and_an_unknown_isolation_level_are_refused():
    with pytest.raises(ValueError, match=r"isolation\.level: found 'dirty', expected read_unc"):
        Consumer('127.0.0.1:1', isolation_level='dirty')
    with Consumer('127.0.0.1:1') as consumer, pytest.raises(ValueError, match='found -1 as timeout_ms, expected 0'):
        consumer.poll(-1)


ADMIN_CALLS = [
    (lambda admin: admin.list_offsets([AT]), 'found list as times, expected a dict'),
    (lambda admin: admin.list_offsets({AT: None}), 'found NoneType as a time in ms'),
    (lambda admin: admin.delete_records({AT: '5'}), 'found str as the offset of t-0'),
    (lambda admin: admin.delete_records({'t': 5}), "found 't' as a partition"),
    (lambda admin: admin.describe_producers([b't']), "found b't' as a partition"),
    (lambda admin: admin.create_topics(['t']), 'found str as a topic, expected NewTopic'),
    (lambda admin: admin.create_topics({'t': '3'}), 'found str as the partitions of t, expected int'),
    (lambda admin: admin.create_topics([NewTopic(b't', 1)]), 'found bytes as a topic, expected str'),
    (lambda admin: admin.create_partitions({'t': '3'}), 'found str as the partitions of t, expected int'),
    (lambda admin: admin.create_partitions([('t', 3)]), 'found list as counts, expected a dict'),
    (lambda admin: admin.delete_topics('t'), "found 't' as topics, expected a list"),
    (lambda admin: admin.alter_group_offsets('g', [AT]), 'found list as offsets, expected a dict')]


@pytest.mark.parametrize(('call', 'words'), ADMIN_CALLS, ids=range(len(ADMIN_CALLS)))
def test_an_admin_refuses_an_argument_of_another_type(call, words):
    with Admin('127.0.0.1:1') as admin, pytest.raises(TypeError, match=words):
        call(admin)
