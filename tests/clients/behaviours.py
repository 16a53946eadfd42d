"""Tests of the behaviour that every client must see. A test module for each client library supplies the client."""
import itertools
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager

import pytest

LIMIT_S = 120
_numbers = itertools.count()


def fresh(name):
    """Return a name that no other test uses."""
    return f'{name}-{next(_numbers)}'


def values(start, stop):
    return {f'v{number}' for number in range(start, stop)}


def until(holds):
    """Call `holds` until its result is true, and return the result. `holds` blocks in the client, so no sleep is
    needed."""
    deadline = time.monotonic() + LIMIT_S
    while not (result := holds()):
        assert time.monotonic() < deadline, f'not true within {LIMIT_S} s'
    return result


class Closing(ABC):
    """An object of a client library that a `with` block closes at its end."""

    @abstractmethod
    def close(self): ...

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


class Producer(Closing):
    """A producer of a client library. `send` queues a record; `flush` returns when all records are acknowledged."""

    @abstractmethod
    def send(self, topic, partition, value, key=None, headers=()): ...
    @abstractmethod
    def flush(self): ...
    @abstractmethod
    def begin(self): ...
    @abstractmethod
    def send_offsets(self, offsets, consumer):
        """Commit `offsets`, {(topic, partition): offset}, for the consumer's group in the transaction."""
    @abstractmethod
    def commit(self): ...
    @abstractmethod
    def abort(self): ...


class Consumer(Closing):
    """A consumer of a client library."""

    @abstractmethod
    def subscribe(self, topic): ...
    @abstractmethod
    def poll(self):
        """Return (partition, offset, key, value, headers) of each record that arrived within 200 ms."""
    @abstractmethod
    def assignment(self):
        """Return the set of assigned (topic, partition)."""
    @abstractmethod
    def read_all(self, topic, partitions):
        """Return all records of the topic's partitions up to the end that the consumer's isolation level shows."""
    @abstractmethod
    def commit(self): ...
    @abstractmethod
    def committed(self, topic, partition):
        """Return the committed offset of the group, or None."""


class Client(ABC):
    """A client library, connected to `address`."""

    fenced: tuple[type[Exception], ...]
    """The exception that this library raises for a fenced producer."""
    errors: tuple[type[Exception], ...]
    """The exception that this library raises for a refused operation."""

    def __init__(self, address):
        self.address = address

    @abstractmethod
    def create_topic(self, topic, partitions): ...
    @abstractmethod
    def producer(self, *, acks='all', idempotent=True): ...
    @abstractmethod
    def transactional(self, transactional_id, timeout_ms=60_000):
        """Return a producer that has initialised its transactions."""
    @abstractmethod
    def consumer(self, group, isolation='read_uncommitted'): ...

    def new_topic(self, name, partitions):
        topic = fresh(name)
        self.create_topic(topic, partitions)
        return topic

    def produce(self, topic, partitions, start, stop):
        with self.producer() as producer:
            send(producer, topic, partitions, start, stop)
            producer.flush()

    def read(self, topic, partitions, isolation):
        """Return all records of the topic's partitions up to the current end that the isolation level shows."""
        with self.consumer(fresh('reader'), isolation) as consumer:
            return consumer.read_all(topic, range(partitions))

    def values(self, topic, partitions, isolation):
        """Return the values of all records that the isolation level shows. Fail if a value occurs twice."""
        found = [value for _, _, _, value, _ in self.read(topic, partitions, isolation)]
        assert len(found) == len(set(found)), 'duplicate records'
        return set(found)

    def expect_committed(self, topic, partitions, expected):
        """Wait until read_committed shows exactly the `expected` values. The wait is needed because a broker answers a
        commit before it writes the markers."""
        def shows():
            found = self.values(topic, partitions, 'read_committed')
            assert found <= expected
            return found == expected

        until(shows)


@contextmanager
def client_of(library, address):
    """Yield a client of this library. Close the client at the end, if the library's clients can be closed."""
    client = library(address)
    try:
        yield client
    finally:
        getattr(client, 'close', bool)()


def send(producer, topic, partitions, start, stop):
    for number in range(start, stop):
        producer.send(topic, number % partitions, f'v{number}')


class Behaviours:
    """The tests that need no restart. A subclass names its `library`."""

    library: type[Client]

    @pytest.fixture
    def client(self, shared_broker):
        with client_of(self.library, shared_broker.address) as client:
            yield client

    @pytest.mark.parametrize('acks', [1, 'all'])
    def test_records_come_back_in_order_with_key_headers_and_offset(self, client, acks):
        topic = client.new_topic('plain', 1)
        with client.producer(acks=acks, idempotent=False) as producer:
            for number in range(100):
                producer.send(topic, 0, f'v{number}', key=f'k{number}', headers=[('h', bytes([number]))])
            producer.flush()
        expected = [(0, number, f'k{number}', f'v{number}', [('h', bytes([number]))]) for number in range(100)]
        # With acks=1, the broker answers before the sync, and consumers see the records after it.
        until(lambda: client.read(topic, 1, 'read_uncommitted') == expected)

    def test_an_idempotent_producer_writes_each_record_once(self, client):
        topic = client.new_topic('idempotent', 3)
        client.produce(topic, 3, 0, 3000)
        assert client.values(topic, 3, 'read_uncommitted') == values(0, 3000)

    def test_a_group_shares_partitions_and_takes_over_those_of_a_member_that_leaves(self, client):
        topic, group = client.new_topic('group', 4), fresh('group')
        client.produce(topic, 4, 0, 40)
        seen = set()

        def collect(*consumers):
            for consumer in consumers:
                seen.update(value for _, _, _, value, _ in consumer.poll())
            return [len(consumer.assignment()) for consumer in consumers]

        with client.consumer(group) as first:
            first.subscribe(topic)
            until(lambda: collect(first) == [4] and seen == values(0, 40))
            first.commit()
            with client.consumer(group) as second:
                second.subscribe(topic)
                until(lambda: collect(first, second) == [2, 2])
                client.produce(topic, 4, 40, 80)
                until(lambda: collect(first, second) and seen == values(0, 80))
                first.commit()
                second.commit()
            until(lambda: collect(first) == [4])
        with client.consumer(group) as third:
            assert sum(third.committed(topic, partition) for partition in range(4)) == 80

    def test_a_committed_transaction_appears_whole_on_every_partition(self, client):
        topic = client.new_topic('commit', 3)
        with client.transactional(fresh('tx')) as producer:
            for start in range(0, 30, 6):
                producer.begin()
                send(producer, topic, 3, start, start + 6)
                producer.commit()
        client.expect_committed(topic, 3, values(0, 30))

    def test_an_open_and_an_aborted_transaction_show_only_to_read_uncommitted(self, client):
        topic = client.new_topic('abort', 2)
        with client.transactional(fresh('tx')) as producer:
            producer.begin()
            send(producer, topic, 2, 0, 10)
            producer.flush()
            assert client.values(topic, 2, 'read_uncommitted') == values(0, 10)
            assert client.values(topic, 2, 'read_committed') == set()
            producer.abort()
            producer.begin()
            send(producer, topic, 2, 10, 20)
            producer.commit()
        client.expect_committed(topic, 2, values(10, 20))
        assert client.values(topic, 2, 'read_uncommitted') == values(0, 20)

    def test_transactions_without_a_record_do_no_harm(self, client):
        topic = client.new_topic('empty', 1)
        with client.transactional(fresh('tx')) as producer:
            for end in (producer.abort, producer.commit) * 2:
                producer.begin()
                end()
            producer.begin()
            send(producer, topic, 1, 0, 1)
            producer.commit()
        client.expect_committed(topic, 1, values(0, 1))

    def test_offsets_of_a_transaction_count_when_it_commits_and_not_when_it_aborts(self, client):
        source, target, group = client.new_topic('source', 1), client.new_topic('target', 1), fresh('group')
        client.produce(source, 1, 0, 10)
        with client.consumer(group, 'read_committed') as consumer, client.transactional(fresh('tx')) as producer:
            consumer.subscribe(source)
            until(consumer.poll)
            producer.begin()
            producer.send(target, 0, 'aborted')
            producer.send_offsets({(source, 0): 5}, consumer)
            producer.abort()
            assert consumer.committed(source, 0) is None
            producer.begin()
            producer.send(target, 0, 'v0')
            producer.send_offsets({(source, 0): 10}, consumer)
            producer.commit()
            until(lambda: consumer.committed(source, 0) == 10)
        client.expect_committed(target, 1, values(0, 1))

    def test_a_second_instance_fences_the_first(self, client):
        topic, transactional_id = client.new_topic('fencing', 1), fresh('tx')
        old = client.transactional(transactional_id)
        old.begin()
        old.send(topic, 0, 'old')
        old.flush()
        with client.transactional(transactional_id) as young:
            with pytest.raises(client.fenced):
                old.commit()
            old.close()
            young.begin()
            send(young, topic, 1, 0, 1)
            young.commit()
        client.expect_committed(topic, 1, values(0, 1))

    def test_a_transaction_past_its_timeout_is_aborted_and_its_producer_cannot_commit(self, client):
        topic = client.new_topic('timeout', 1)
        late = client.transactional(fresh('tx'), timeout_ms=1000)
        late.begin()
        late.send(topic, 0, 'late')
        late.flush()
        client.produce(topic, 1, 0, 1)
        # The timed-out transaction holds the last stable offset. A read_committed consumer sees v0 only after the
        # coordinator has aborted it.
        client.expect_committed(topic, 1, values(0, 1))
        with pytest.raises(client.errors):
            late.commit()
        late.close()


class Restarts:
    """The tests that stop or kill the broker. A subclass names its `library`."""

    library: type[Client]

    @pytest.fixture
    def client(self, broker):
        with client_of(self.library, broker.address) as client:
            yield client

    @pytest.mark.parametrize('way', ['stop', 'kill9'])
    def test_a_transaction_outlives_a_restart_of_the_broker(self, broker, client, way):
        topic = client.new_topic('restart', 2)
        with client.transactional(fresh('tx')) as producer:
            producer.begin()
            send(producer, topic, 2, 0, 10)
            producer.flush()
            getattr(broker, way)()
            broker.start()
            send(producer, topic, 2, 10, 20)
            producer.commit()
        client.expect_committed(topic, 2, values(0, 20))
