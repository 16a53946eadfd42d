"""The producer with scripted brokers: order, retries, lost sequence numbers, transactions."""
import pytest
from support.brokers.fake_cluster import LOST, FakeCluster

from kbroker.base.clock import ManualClock
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.errors import ClientError
from kbroker.client.producer import Producer
from kbroker.client.stream_settings import ProducerSettings
from kbroker.client.transaction_manager import GroupMetadata, OffsetAndMetadata
from kbroker.client.transaction_state import FatalProducerError, IllegalProducerState, TransactionError


def started(cluster, **settings):
    """Return a producer that sends each record in its own batch, and the list of its reported deliveries."""
    reports = []
    producer = Producer(cluster, ProducerSettings(batch_size_bytes=0, linger_ms=0, **settings), reports.append,
                        ManualClock(), sleep=lambda seconds: None)
    return producer, reports


def outcome(reports):
    return [(delivery.contexts[0], delivery.error and delivery.error.code) for delivery in reports]


def send_all(producer, values):
    for value in values:
        producer.send('t', value, context=value)


def delivered(cluster, *values, codes=(), before_an_answer=False, **settings):
    """Send each value in a separate batch, and return the outcomes. The first answers have the error codes `codes`.
    With `before_an_answer`, all batches are sent before the first answer arrives.
    """
    cluster.codes[0] = list(codes)
    producer, reports = started(cluster, **settings)
    cluster.answers_flow = not before_an_answer
    send_all(producer, values)
    cluster.answers_flow = True
    producer.flush()
    return outcome(reports)


def test_batches_are_numbered_in_the_order_of_their_records():
    cluster = FakeCluster()
    assert delivered(cluster, b'a', b'b', b'c') == [(b'a', None), (b'b', None), (b'c', None)]
    assert cluster.broker.sent == [(0, 0, 0, [b'a']), (0, 0, 1, [b'b']), (0, 0, 2, [b'c'])]


def test_what_was_refused_behind_a_batch_goes_out_again_behind_it():
    cluster = FakeCluster()
    moved, out_of_order = ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    found = delivered(cluster, b'a', b'b', b'c', b'd', codes=[moved, *[out_of_order] * 3], before_an_answer=True)
    assert [value for value, _ in found] == [b'a', b'b', b'c', b'd']
    assert [sent[2:] for sent in cluster.broker.sent[4:]] == [(0, [b'a']), (1, [b'b']), (2, [b'c']), (3, [b'd'])]
    assert cluster.forgotten == 1


def test_at_most_five_requests_wait_at_a_broker():
    cluster = FakeCluster()
    producer, _ = started(cluster)
    cluster.answers_flow = False
    send_all(producer, [b'%d' % number for number in range(9)])
    assert len(cluster.broker.sent) == 5
    cluster.answers_flow = True
    producer.flush()
    assert len(cluster.broker.sent) == 9


def test_a_batch_that_was_written_before_counts_as_written():
    assert delivered(FakeCluster(), b'a', codes=[ErrorCode.DUPLICATE_SEQUENCE_NUMBER]) == [(b'a', None)]


def test_a_batch_that_is_too_large_is_halved_under_the_same_numbers():
    cluster = FakeCluster()
    cluster.codes[0] = [ErrorCode.MESSAGE_TOO_LARGE]
    reports = []
    producer = Producer(cluster, ProducerSettings(), reports.append, ManualClock())
    send_all(producer, [b'a', b'b', b'c'])
    producer.flush()
    assert cluster.broker.sent == [(0, 0, 0, [b'a', b'b', b'c']), (0, 0, 0, [b'a']), (0, 0, 1, [b'b', b'c'])]
    assert all(delivery.error is None for delivery in reports)


def test_after_a_lost_batch_the_rest_is_renumbered_under_the_next_epoch():
    cluster = FakeCluster()
    codes = [ErrorCode.INVALID_RECORD, *[ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER] * 2]
    assert delivered(cluster, b'a', b'b', b'c', codes=codes, before_an_answer=True) == [
        (b'a', ErrorCode.INVALID_RECORD), (b'b', None), (b'c', None)]
    assert [sent[1:] for sent in cluster.broker.sent[3:]] == [(1, 0, [b'b']), (1, 1, [b'c'])]


def test_a_partition_that_forgot_the_producer_gets_the_batch_again_under_the_next_epoch():
    cluster = FakeCluster()
    cluster.codes[0] = [ErrorCode.NONE, ErrorCode.UNKNOWN_PRODUCER_ID]
    producer, reports = started(cluster)
    for value in (b'a', b'b'):
        send_all(producer, [value])
        producer.flush()
    assert cluster.broker.sent == [(0, 0, 0, [b'a']), (0, 0, 1, [b'b']), (0, 1, 0, [b'b'])]
    assert outcome(reports) == [(b'a', None), (b'b', None)]


def test_a_first_batch_that_a_later_one_overtook_is_sent_again_under_the_next_epoch():
    """A new leader refuses the first batch. It then accepts the second batch, because it knows no sequence number of
    the producer."""
    cluster = FakeCluster()
    codes = [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER]
    assert delivered(cluster, b'a', b'b', codes=codes, before_an_answer=True) == [(b'b', None), (b'a', None)]
    assert cluster.broker.sent[2:] == [(0, 0, 0, [b'a']), (0, 1, 0, [b'a'])]


def test_a_broken_connection_is_reopened_and_the_batch_sent_again():
    cluster = FakeCluster()
    cluster.breaks = 1
    assert delivered(cluster, b'a') == [(b'a', None)]


def test_after_so_many_retries_a_batch_fails():
    cluster = FakeCluster()
    refused = ErrorCode.NOT_ENOUGH_REPLICAS
    assert delivered(cluster, b'a', codes=[refused] * 3, retries=2) == [(b'a', refused)]
    assert len(cluster.broker.sent) == 3


def test_with_acks_0_nothing_is_waited_for_and_nothing_numbered():
    cluster = FakeCluster()
    assert delivered(cluster, b'a', b'b', acks=0, enable_idempotence=False) == [(b'a', None), (b'b', None)]
    assert [sent[2] for sent in cluster.broker.sent] == [-1, -1]


def test_without_anybody_to_tell_a_failure_is_raised_by_the_next_call():
    cluster = FakeCluster()
    cluster.codes[0] = [ErrorCode.INVALID_RECORD]
    producer = Producer(cluster, ProducerSettings(), clock=ManualClock())
    producer.send('t', b'a')
    with pytest.raises(KafkaError, match='t-0: INVALID_RECORD'):
        producer.flush()
    producer.flush()


@pytest.mark.parametrize('error', [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_of_a_report_is_raised_and_loses_no_other_batch_of_the_answer(error):
    """A batch whose outcome was never reported would count as in flight, and the producer's `close` would wait for it
    for ever."""
    cluster, reports = FakeCluster(partitions=3), []

    def on_delivery(delivery):
        reports.append(delivery.contexts)
        if len(reports) == 1:
            raise error

    producer = Producer(cluster, ProducerSettings(linger_ms=60_000), on_delivery, ManualClock())
    for partition in range(3):
        producer.send('t', b'a', partition=partition, context=partition)
    with pytest.raises(error):
        producer.flush()
    assert producer.stats()['requests_in_flight'] == 0
    producer.close()
    assert sorted(reports) == [[0], [1], [2]]
    assert len(cluster.broker.sent) == 3 and producer._is_idle()


def test_an_error_of_a_report_is_raised_when_the_transaction_is_aborted():
    def on_delivery(delivery):
        raise ZeroDivisionError

    producer = Producer(FakeCluster(), ProducerSettings(transactional_id='x', linger_ms=60_000), on_delivery,
                        ManualClock())
    producer.init_transactions()
    producer.begin_transaction()
    producer.send('t', b'a')
    with pytest.raises(ZeroDivisionError):
        producer.abort_transaction()
    assert producer.stats()['abort_total'] == 1
    producer.close()


def test_a_record_over_the_limit_is_refused_at_once():
    producer, _ = started(FakeCluster(), max_request_size_bytes=1000)
    with pytest.raises(KafkaError, match=r'the record takes 2024 bytes, max\.request\.size is 1000'):
        producer.send('t', bytes(2000))


@pytest.mark.parametrize(('options', 'kind', 'message'), [
    ({'timestamp_ms': 2**63}, ValueError, 'found timestamp 9223372036854775808, expected milliseconds since 1970'),
    ({'timestamp_ms': -1}, ValueError, 'found timestamp -1, expected'),
    ({'timestamp_ms': 'now'}, TypeError, 'int'),
    ({'partition': 2**40}, ValueError, 'found partition 1099511627776, expected 0 to 2147483647'),
    ({'key': 'text'}, TypeError, 'found str as a key'), ({'value': 5}, TypeError, 'found int as a value')])
def test_a_record_with_a_wrong_part_is_refused_and_not_queued(options, kind, message):
    cluster = FakeCluster()
    producer, _ = started(cluster)
    with pytest.raises(kind, match=message):
        producer.send('t', **{'value': b'a', **options})
    producer.flush()
    assert cluster.broker.sent == []


def test_a_partition_that_does_not_exist_is_refused():
    producer, _ = started(FakeCluster())
    with pytest.raises(KafkaError, match='t-3 does not exist: the topic has 1 partitions'):
        producer.send('t', b'a', partition=3)


# ---- transactions

def begun(cluster, version=2):
    cluster.broker.finalized_features['transaction.version'] = version
    producer, reports = started(cluster, transactional_id='x')
    producer.init_transactions()
    producer.begin_transaction()
    return producer, reports


def called(cluster):
    return [name for name, _ in cluster.calls]


def test_a_transaction_of_version_2_says_nothing_but_its_end_which_gives_the_next_epoch():
    cluster = FakeCluster()
    producer, _ = begun(cluster)
    for value in (b'a', b'b'):
        send_all(producer, [value])
        producer.commit_transaction()
        producer.begin_transaction()
    assert called(cluster) == ['InitProducerId', 'EndTxn', 'EndTxn']
    assert [sent[1:3] for sent in cluster.broker.sent] == [(0, 0), (1, 0)]


def test_a_transaction_of_version_1_adds_partitions_and_keeps_its_epoch():
    cluster = FakeCluster(partitions=2)
    producer, _ = begun(cluster, version=1)
    producer.send('t', b'a', partition=0)
    producer.send('t', b'b', partition=1)
    producer.commit_transaction()
    producer.begin_transaction()
    producer.send('t', b'c', partition=0)
    producer.commit_transaction()
    added = [sorted(index for topic in request.v3_and_below_topics for index in topic.partitions)
             for name, request in cluster.calls if name == 'AddPartitionsToTxn']
    assert sorted(index for indexes in added[:-1] for index in indexes) == [0, 1]
    assert added[-1] == [0]
    assert [sent[:3] for sent in cluster.broker.sent if sent[0] == 0] == [(0, 0, 0), (0, 0, 1)]


def test_the_markers_of_the_last_transaction_are_waited_for():
    cluster = FakeCluster()
    producer, _ = begun(cluster, version=1)
    cluster.codes['AddPartitionsToTxn'] = [ErrorCode.CONCURRENT_TRANSACTIONS] * 3
    send_all(producer, [b'a'])
    producer.commit_transaction()
    assert called(cluster).count('AddPartitionsToTxn') == 4


def test_an_empty_transaction_is_not_sent_to_the_coordinator():
    cluster = FakeCluster()
    producer, _ = begun(cluster)
    producer.commit_transaction()
    assert called(cluster) == ['InitProducerId']


def test_offsets_become_part_of_a_transaction():
    for version, expected in ((1, ['AddOffsetsToTxn', 'TxnOffsetCommit', 'EndTxn']),
                              (2, ['TxnOffsetCommit', 'EndTxn'])):
        cluster = FakeCluster()
        producer, _ = begun(cluster, version)
        producer.send_offsets_to_transaction({('t', 0): OffsetAndMetadata(5)}, GroupMetadata('g', 3, 'm'))
        producer.commit_transaction()
        assert called(cluster)[1:] == expected
        commit = next(request for name, request in cluster.calls if name == 'TxnOffsetCommit')
        assert (commit.generation_id_or_member_epoch, commit.member_id) == (3, 'm')


def test_offsets_of_a_group_need_only_its_id():
    cluster = FakeCluster()
    producer, _ = begun(cluster)
    producer.send_offsets_to_transaction({('t', 0): 5}, 'g')
    (commit,) = [request for name, request in cluster.calls if name == 'TxnOffsetCommit']
    assert (commit.group_id, commit.generation_id_or_member_epoch, commit.member_id) == ('g', -1, '')


@pytest.mark.parametrize('offsets', [{('t', 0): 5}, {}], ids=['offsets', 'none'])
@pytest.mark.parametrize(('group', 'found'), [(b'g', 'bytes'), (None, 'NoneType'), (('g', 3, 'm'), 'tuple')])
def test_another_group_of_offsets_is_refused_before_anything_is_sent(offsets, group, found):
    cluster = FakeCluster()
    producer, _ = begun(cluster)
    with pytest.raises(TypeError, match=f'found {found} as a group, expected its id as str, or `group_metadata`'):
        producer.send_offsets_to_transaction(offsets, group)
    assert called(cluster) == ['InitProducerId']


def test_after_a_refused_batch_a_transaction_can_only_be_aborted():
    cluster = FakeCluster()
    cluster.codes[0] = [ErrorCode.INVALID_RECORD]
    producer, _ = begun(cluster)
    send_all(producer, [b'a'])
    with pytest.raises(TransactionError, match='can only be aborted: t-0: INVALID_RECORD'):
        producer.commit_transaction()
    producer.abort_transaction()
    producer.begin_transaction()
    send_all(producer, [b'b'])
    producer.commit_transaction()
    assert [request.committed for name, request in cluster.calls if name == 'EndTxn'] == [False, True]


def test_after_a_lost_batch_version_1_asks_for_the_next_epoch():
    cluster = FakeCluster()
    cluster.codes[0] = [ErrorCode.INVALID_RECORD]
    producer, _ = begun(cluster, version=1)
    send_all(producer, [b'a'])
    with pytest.raises(TransactionError):
        producer.commit_transaction()
    producer.abort_transaction()
    assert called(cluster) == ['InitProducerId', 'AddPartitionsToTxn', 'EndTxn', 'InitProducerId']
    assert cluster.calls[-1][1].producer_id == 7


@pytest.mark.parametrize('code', [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_a_fenced_producer_is_of_no_more_use(code):
    cluster = FakeCluster()
    producer, _ = begun(cluster)
    send_all(producer, [b'a'])
    cluster.codes['EndTxn'] = [code]
    with pytest.raises(FatalProducerError, match='another producer uses'):
        producer.commit_transaction()
    with pytest.raises(FatalProducerError):
        producer.begin_transaction()


def test_records_need_a_transaction():
    producer, _ = started(FakeCluster(), transactional_id='x')
    producer.init_transactions()
    with pytest.raises(IllegalProducerState, match='found a producer that is ready, expected a transaction'):
        producer.send('t', b'a')


def test_an_abort_drops_what_was_not_sent():
    cluster = FakeCluster()
    cluster.broker.finalized_features['transaction.version'] = 2
    reports = []
    producer = Producer(cluster, ProducerSettings(transactional_id='x', linger_ms=1000), reports.append, ManualClock())
    producer.init_transactions()
    producer.begin_transaction()
    producer.send('t', b'a', context=b'a')
    producer.abort_transaction()
    assert cluster.broker.sent == []
    assert outcome(reports) == [(b'a', ErrorCode.OPERATION_NOT_ATTEMPTED)]
    assert called(cluster) == ['InitProducerId']


def test_a_batch_whose_answer_was_lost_is_asked_about_before_the_others_are_renumbered():
    """The partition already has the second batch, whose answer was lost. With a new sequence number, the broker would
    append it again."""
    cluster = FakeCluster()
    clock = ManualClock()
    reports = []
    producer = Producer(cluster, ProducerSettings(batch_size_bytes=0, linger_ms=0, delivery_timeout_ms=1000),
                        reports.append, clock, sleep=lambda seconds: None)
    cluster.codes[0] = [LOST, LOST]
    cluster.answers_flow = False
    producer.send('t', b'a', context=b'a')
    clock.advance(600)
    producer.send('t', b'b', context=b'b')
    producer.send('t', b'c', context=b'c')
    clock.advance(600)
    cluster.codes[0] = [ErrorCode.DUPLICATE_SEQUENCE_NUMBER]
    cluster.answers_flow = True
    producer.flush()
    assert outcome(reports) == [(b'a', ErrorCode.REQUEST_TIMED_OUT), (b'b', None), (b'c', None)]
    send_all(producer, [b'd'])
    producer.flush()
    assert [sent[1:] for sent in cluster.broker.sent[-3:]] == [(0, 1, [b'b']), (0, 2, [b'c']), (1, 0, [b'd'])]


def test_a_batch_of_a_request_that_could_not_be_sent_is_sent_by_a_later_turn():
    cluster = FakeCluster()
    producer, reports = started(cluster)
    node, cluster.node = cluster.node, raising(ClientError('the host name cannot be resolved', is_lasting=True))
    with pytest.raises(ClientError, match='host name'):
        send_all(producer, [b'a'])
        producer.flush()
    with pytest.raises(ClientError, match='host name'):
        producer.flush()
    cluster.node = node
    producer.flush()
    assert outcome(reports) == [(b'a', None)]


def test_a_producer_whose_request_cannot_be_sent_ends():
    cluster = FakeCluster()
    cluster.node = raising(KafkaError(ErrorCode.SASL_AUTHENTICATION_FAILED, 'a wrong password'))
    with pytest.raises(KafkaError, match='password'), started(cluster)[0] as producer:
        producer.send('t', b'a')


def raising(error):
    def raise_error(*_):
        raise error
    return raise_error


def test_a_connection_that_was_closed_elsewhere_is_reopened_and_the_batch_sent_again():
    """An interrupt while the client receives an answer also closes the connection."""
    cluster = FakeCluster()
    producer, reports = started(cluster)
    cluster.answers_flow = False
    send_all(producer, [b'a'])
    producer.poll(0)
    cluster.broker.close()
    cluster.answers_flow = True
    producer.flush()
    assert outcome(reports) == [(b'a', None)]


@pytest.mark.parametrize('level', [1, 2])
def test_after_a_failure_a_transaction_takes_no_more_rows(level):
    """Below transaction.version 2, a further batch to another partition would be a fatal error of the producer."""
    cluster = FakeCluster()
    cluster.broker.finalized_features['transaction.version'] = level
    cluster.codes[0] = [ErrorCode.INVALID_RECORD]
    producer, _ = started(cluster, transactional_id='x')
    a, b, c = (letter * 300_000 for letter in (b'a', b'b', b'c'))   # each is sent before the next one is queued
    with pytest.raises(TransactionError, match='INVALID_RECORD'), producer.transaction():
        producer.send_batch('t', [a, b, c], partition=0)
    assert [values for _, _, _, values in cluster.broker.sent] == [[a]]


def test_the_batches_of_several_partitions_that_fill_in_one_turn_share_a_request():
    cluster = FakeCluster(partitions=3)
    producer, reports = started(cluster)
    rows = [b'%d' % number for number in range(9)]
    producer.send_batch('t', rows, keys=rows)
    producer.flush()
    assert len(reports) == 9 and producer.stats()['request_total'] < 9


def test_without_a_report_the_commit_of_a_record_that_was_not_written_is_a_transaction_error():
    cluster = FakeCluster()
    cluster.codes[0] = [ErrorCode.INVALID_RECORD]
    producer = Producer(cluster, transactional_id='x', clock=ManualClock(), sleep=lambda seconds: None)
    with pytest.raises(TransactionError, match='INVALID_RECORD'), producer.transaction():
        producer.send('t', b'a')
    with producer.transaction():
        producer.send('t', b'b')
    assert [request.committed for name, request in cluster.calls if name == 'EndTxn'] == [False, True]
