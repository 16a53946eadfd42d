"""Features of a consumer with a live broker: iteration, positions, pauses, timestamps, heartbeats, cooperative
groups."""
import threading
import time
from contextlib import ExitStack

import confluent_kafka
import pytest

from kbroker.client import Admin, Consumer, KafkaError, Producer, RebalanceListener, TransactionError
from kbroker.client.admin import NewTopic

LIMIT_S = 120


@pytest.fixture
def address(shared_broker):
    return shared_broker.address


@pytest.fixture
def topic(address, request):
    """Create a topic of two partitions, each with ten records at the times 0, 10, 20 ..."""
    name = request.node.name.replace('[', '-').replace(']', '')
    with Admin(address) as admin:
        assert admin.create_topics([NewTopic(name, 2)]) == {name: None}
    with Producer(address, batch_size=0, linger_ms=0) as producer:
        for number in range(20):
            producer.send(name, b'%d' % number, partition=number % 2, timestamp_ms=number // 2 * 10)
    return name


class Notes(RebalanceListener):
    """A listener that records the partitions that are revoked or lost."""

    def __init__(self):
        self.revoked = []

    def on_partitions_revoked(self, partitions):
        self.revoked += partitions


def consumer_of(address, topic, **options):
    return Consumer(address, topics=[topic], auto_offset_reset='earliest', enable_auto_commit=False, **options)


def values(batch):
    return [record.value for record in batch.records()]


def test_the_position_follows_the_batches_that_an_iteration_has_reached(address, topic):
    with Consumer(address, auto_offset_reset='earliest', max_poll_records=1) as consumer:
        consumer.assign([(topic, 0)])
        for count, batch in enumerate(consumer, 1):
            assert values(batch) == [b'%d' % (2 * count - 2)]
            assert consumer.position(topic, 0) == count
            assert consumer.offsets_to_commit()[topic, 0].offset == count
            if count == 5:
                consumer.seek(topic, 0, 2)
                break
        assert values(next(iter(consumer))) == [b'4']
        assert values(consumer.poll(LIMIT_S * 1000)[0]) == [b'6']


def test_an_iteration_ends_when_its_consumer_is_closed(address, topic):
    consumer = Consumer(address, auto_offset_reset='earliest')
    consumer.assign([(topic, 0)])
    for _ in consumer:
        consumer.close()


def test_a_paused_partition_is_not_read_until_it_is_resumed(address, topic):
    with Consumer(address, auto_offset_reset='earliest', max_poll_records=1) as consumer:
        consumer.assign([(topic, 0), (topic, 1)])
        first = next(iter(consumer))
        consumer.pause([(topic, first.partition)])
        assert consumer.paused == {(topic, first.partition)}
        found = []
        while len(found) < 10:
            found += [(batch.partition, value) for batch in consumer.poll(LIMIT_S * 1000) for value in values(batch)]
        assert {partition for partition, _ in found} == {1 - first.partition}
        consumer.resume(consumer.paused)
        second = next(iter(consumer))
        assert (second.partition, second.offsets[0]) == (first.partition, 1)
        with pytest.raises(KeyError):
            consumer.pause([(topic, 7)])


def test_offsets_are_found_by_time(address, topic):
    with Consumer(address, auto_offset_reset='none') as consumer:
        partitions = [(topic, 0), (topic, 1)]
        consumer.assign(partitions)
        found = consumer.offsets_for_times({(topic, 0): 25, (topic, 1): 1000})
        assert (found[topic, 0].offset, found[topic, 0].timestamp_ms, found[topic, 1]) == (3, 30, None)
        assert consumer.beginning_offsets(partitions) == dict.fromkeys(partitions, 0)
        assert consumer.end_offsets(partitions) == dict.fromkeys(partitions, 10)
        consumer.seek_to_time(90)
        assert [consumer.position(*partition) for partition in partitions] == [9, 9]
        consumer.seek_to_time(91, [(topic, 1)])
        assert [consumer.position(*partition) for partition in partitions] == [9, 10]
        consumer.seek_to_beginning([(topic, 1)])
        consumer.seek_to_end([(topic, 0)])
        assert [consumer.position(*partition) for partition in partitions] == [10, 0]


def test_a_consumer_counts_its_records(address, topic):
    with Consumer(address, auto_offset_reset='earliest') as consumer:
        consumer.assign([(topic, 0)])
        consumer.poll(LIMIT_S * 1000)
        stats = consumer.stats()
        assert (stats['records_consumed_total'], stats['records_lag'], stats['assigned_partitions']) == (10, 0, 1)
        assert stats['bytes_consumed_total'] > 10 * 61
        with Producer(address) as producer:
            producer.send(topic, b'more', partition=0)
        consumer.poll(LIMIT_S * 1000)
        assert consumer.stats()['records_consumed_total'] == 11


def test_a_consumer_keeps_no_lag_of_a_partition_that_it_reads_no_more(address, topic):
    with Consumer(address, auto_offset_reset='earliest', max_poll_records=1, fetch_max_wait_ms=1) as consumer:
        for partition in (0, 1, 0, 1):
            consumer.assign([(topic, partition)])
            next(iter(consumer))
            assert consumer._lags.keys() == {(topic, partition)}


def test_a_close_without_time_commits_nothing_and_gives_the_partitions_back(address, topic):
    listener = Notes()
    consumer = Consumer(address, topics=[topic], auto_offset_reset='earliest', group_id=topic, listener=listener)
    next(iter(consumer))
    consumer.close(timeout_ms=0)
    assert listener.revoked == [(topic, 0), (topic, 1)]
    assert f'heartbeats of group {topic}' not in [thread.name for thread in threading.enumerate()]
    with Admin(address) as admin:
        assert admin.list_group_offsets(topic) == {}


def test_a_transaction_commits_the_positions_of_a_consumer(address, topic):
    with (consumer_of(address, topic, group_id=topic, isolation_level='read_committed', max_poll_records=1) as consumer,
          Producer(address, transactional_id=topic) as producer):
        batch = next(iter(consumer))
        at = (topic, batch.partition)
        with pytest.raises(ZeroDivisionError), producer.transaction() as transaction:
            transaction.send_offsets(consumer)
            raise ZeroDivisionError
        assert consumer.committed([at]) == {}
        with producer.transaction() as transaction:
            transaction.send_offsets(consumer)
        assert consumer.committed([at])[at].offset == 1
        with producer.transaction() as transaction:
            transaction.send_offsets({at: consumer.committed([at])[at]._replace(offset=5)}, consumer.group_metadata)
        assert consumer.committed([at])[at].offset == 5
        stale = consumer.group_metadata._replace(generation_id=99)
        with pytest.raises(TransactionError), producer.transaction() as transaction:
            transaction.send_offsets(consumer.offsets_to_commit(), stale)


@pytest.mark.parametrize('protocol', [{'session_timeout_ms': 6000, 'heartbeat_interval_ms': 100},
                                      {'group_protocol': 'consumer'}], ids=['classic', 'consumer'])
def test_a_busy_member_sends_heartbeats(address, topic, protocol):
    with consumer_of(address, topic, group_id=topic, **protocol) as consumer:
        while not consumer.poll(100):
            pass
        before = consumer._session.member.next_heartbeat_ms()
        deadline = time.monotonic() + LIMIT_S
        while consumer._session.member.next_heartbeat_ms() == before:
            assert time.monotonic() < deadline
            threading.Event().wait(0.05)


def test_a_member_that_gave_up_its_place_neither_commits_nor_reads_again_what_another_one_has_read(address, topic):
    with (consumer_of(address, topic, group_id=topic) as busy,
          Producer(address, transactional_id=topic) as producer):
        first = next(iter(busy))
        busy._session.member.give_up()      # as after max.poll.interval.ms
        with consumer_of(address, topic, group_id=topic) as other:
            poll_until([other], lambda: sorted(other._positions.offsets.values(), key=str) == [10, 10])
            with pytest.raises(TransactionError), producer.transaction() as transaction:
                transaction.send_offsets(busy)
            other.commit()
        with pytest.raises(TransactionError), producer.transaction() as transaction:
            transaction.send_offsets(busy)
        with pytest.raises(KafkaError, match='UNKNOWN_MEMBER_ID'):
            busy.commit()
        assert busy.committed([(topic, first.partition)])[topic, first.partition].offset == 10
        again = poll_until([busy], lambda: sorted(busy._positions.offsets.values(), key=str) == [10, 10])
        assert again == []


def poll_until(consumers, condition):
    """Poll until the condition holds, and return (consumer, partition, value) of each record.

    A join waits for the other members, so each consumer polls in a separate thread.
    """
    ended, errors, found = threading.Event(), [], []

    def run(consumer):
        try:
            while not ended.is_set():
                found.extend((consumer, batch.partition, value) for batch in consumer.poll(20)
                             for value in values(batch))
        except Exception as error:
            errors.append(error)
        consumer._use.thread = -1   # another thread goes on with it

    for consumer in consumers:
        consumer._use.thread = -1
    threads = [threading.Thread(target=run, args=[consumer]) for consumer in consumers]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + LIMIT_S
    while not condition() and not errors and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    ended.set()
    for thread in threads:
        thread.join()
    assert not errors
    assert condition()
    return found


def test_members_of_a_cooperative_group_keep_what_does_not_move(address, topic):
    options = {'group_id': topic, 'heartbeat_interval_ms': 100, 'session_timeout_ms': 30_000,
               'partition_assignment_strategy': 'org.apache.kafka.clients.consumer.CooperativeStickyAssignor'}
    with ExitStack() as stack:
        first = stack.enter_context(consumer_of(address, topic, **options))
        read = poll_until([first], lambda: sorted(first._positions.offsets.values(), key=str) == [10, 10])
        second = stack.enter_context(consumer_of(address, topic, **options))
        read += poll_until([first, second], lambda: (len(first.assignment), len(second.assignment)) == (1, 1))
        assert first.assignment | second.assignment == {(topic, 0), (topic, 1)}
        (_, kept), = first.assignment
        read += poll_until([first, second], lambda: 10 in second._positions.offsets.values())
        assert len([value for consumer, partition, value in read if partition == kept]) == 10, 'it was never left'
        assert len([value for consumer, _, value in read if consumer is second]) == 10
        second.close()
        poll_until([first], lambda: len(first.assignment) == 2)


class CommitsWhatGoes(RebalanceListener):
    """A listener that commits the positions of revoked partitions, and records all calls."""

    def __init__(self):
        self.consumer = None
        self.notes = []

    def on_partitions_assigned(self, partitions):
        self.notes.append(('assigned', partitions))

    def on_partitions_revoked(self, partitions):
        self.notes.append(('revoked', partitions))
        found = self.consumer.offsets_to_commit()
        self.consumer.commit({at: found[at] for at in partitions if at in found})

    def on_partitions_lost(self, partitions):
        self.notes.append(('lost', partitions))


@pytest.mark.parametrize('protocol', [
    {'heartbeat_interval_ms': 100, 'partition_assignment_strategy': 'range'},
    {'heartbeat_interval_ms': 100, 'partition_assignment_strategy': 'cooperative-sticky'},
    {'group_protocol': 'consumer'},
    {'group_protocol': 'consumer', 'group_instance_id': 'static'}], ids=['range', 'cooperative', 'consumer', 'static'])
def test_what_a_listener_commits_is_not_read_again_by_the_next_owner(address, topic, protocol):
    """Only the listener commits. If the consumer called it after the partition had moved, a record would be read
    twice."""
    listeners = CommitsWhatGoes(), CommitsWhatGoes()
    instance = protocol.get('group_instance_id')
    with ExitStack() as stack:
        def member(number):
            own = {'group_instance_id': f'{instance}-{number}'} if instance else {}
            found = stack.enter_context(consumer_of(address, topic, group_id=topic, listener=listeners[number],
                                                    **{**protocol, **own}))
            listeners[number].consumer = found
            return found

        first = member(0)
        read = poll_until([first], lambda: sorted(first._positions.offsets.values(), key=str) == [10, 10])
        first.pause(sorted(first.assignment)[:1])
        second = member(1)
        read += poll_until([first, second], lambda: (len(first.assignment), len(second.assignment)) == (1, 1)
                           and {*first._positions.offsets.values(), *second._positions.offsets.values()} == {10})
    assert sorted(value for _, _, value in read) == sorted(b'%d' % number for number in range(20))
    both = [(topic, 0), (topic, 1)]
    assert next(note for note in listeners[0].notes if note[1]) == ('assigned', both)
    for listener in listeners:
        assert listener.notes[-1][0] == 'revoked' and len(listener.notes[-1][1]) == 1
        assert not any(kind == 'lost' for kind, _ in listener.notes)
    gone = {partition for listener in listeners for kind, found in listener.notes if kind == 'revoked'
            for partition in found}
    assert gone == set(both)


def test_a_member_that_gave_up_its_place_may_choose_partitions_and_commit(address, topic):
    with consumer_of(address, topic, group_id=topic) as consumer:
        next(iter(consumer))
        consumer._session.member.give_up()      # as after max.poll.interval.ms
        consumer.assign([(topic, 0)])
        consumer.seek(topic, 0, 4)
        consumer.commit()
        assert consumer.committed([(topic, 0)])[topic, 0].offset == 4
        consumer.subscribe([topic])
        poll_until([consumer], lambda: len(consumer.assignment) == 2)
        consumer.unsubscribe()
        consumer.assign([(topic, 1)])
        consumer.seek(topic, 1, 3)
    with consumer_of(address, topic, group_id=topic) as consumer:
        assert {at: found.offset for at, found in consumer.committed([(topic, 0), (topic, 1)]).items()} == {
            (topic, 0): 4}, 'enable.auto.commit is false'


@pytest.mark.parametrize('protocol', [{}, {'group_protocol': 'consumer'}], ids=['classic', 'consumer'])
def test_a_topic_that_begins_to_match_a_pattern_is_read(address, topic, protocol):
    with Consumer(address, group_id=topic, metadata_max_age_ms=50, **protocol) as consumer:
        consumer.subscribe(pattern=f'{topic}|{topic}-later')
        poll_until([consumer], lambda: len(consumer.assignment) == 2)
        with Admin(address) as admin:
            admin.create_topics({f'{topic}-later': 1})
        poll_until([consumer], lambda: (f'{topic}-later', 0) in consumer.assignment)


@pytest.mark.parametrize('protocol', [{}, {'group_protocol': 'consumer'}], ids=['classic', 'consumer'])
def test_a_subscription_goes_on_without_a_topic_that_was_deleted(address, topic, protocol):
    doomed = f'{topic}-doomed'
    with (Admin(address) as admin, Producer(address, linger_ms=0) as producer,
          Consumer(address, group_id=topic, auto_offset_reset='earliest', **protocol) as consumer):
        admin.create_topics({doomed: 1})
        consumer.subscribe([topic, doomed])
        poll_until([consumer], lambda: (10 in consumer._positions.offsets.values()
                                        and (doomed, 0) in consumer.assignment))
        assert admin.delete_topics([doomed]) == {doomed: None}
        poll_until([consumer], lambda: (doomed, 0) not in consumer.assignment)
        producer.send(topic, b'later', partition=0)
        producer.flush()
        poll_until([consumer], lambda: consumer._positions.offsets.get((topic, 0)) == 11)


def test_a_consumer_of_chosen_partitions_reports_that_their_topic_was_deleted(address, topic):
    with Admin(address) as admin, Consumer(address, auto_offset_reset='earliest') as consumer:
        consumer.assign([(topic, 0)])
        consumer.poll(LIMIT_S * 1000)
        admin.delete_topics([topic])
        with pytest.raises(KafkaError, match=f'topic {topic}: UNKNOWN_TOPIC_OR_PARTITION'):
            while True:
                consumer.poll(1000)


def test_a_cooperative_group_is_shared_with_librdkafka(address, topic):
    """Each client leads the group once: first the client that joins first, and after it has left the other one."""
    options = {'group_id': topic, 'heartbeat_interval_ms': 100, 'session_timeout_ms': 30_000,
               'partition_assignment_strategy': 'cooperative-sticky'}
    other = confluent_kafka.Consumer({
        'bootstrap.servers': address, 'group.id': topic, 'partition.assignment.strategy': 'cooperative-sticky',
        'auto.offset.reset': 'earliest', 'heartbeat.interval.ms': 100, 'session.timeout.ms': 30_000})
    shares = []

    def poll_other():
        other.poll(0.02)
        shares.append((len(ours.assignment), len(other.assignment())))

    with consumer_of(address, topic, **options) as ours:
        poll_until([ours], lambda: len(ours.assignment) == 2)
        other.subscribe([topic])
        poll_until([ours], lambda: poll_other() or shares[-1] == (1, 1))
    poll = other.poll
    deadline = time.monotonic() + LIMIT_S
    while len(other.assignment()) < 2 and time.monotonic() < deadline:
        poll(0.02)
    with consumer_of(address, topic, **options) as ours:
        poll_until([ours], lambda: poll_other() or shares[-1] == (1, 1))
        kept, = ours.assignment
        assert kept not in {(at.topic, at.partition) for at in other.assignment()}
    other.close()
