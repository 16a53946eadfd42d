"""A loop with confluent-kafka reads, processes and writes exactly once while the test kills its instances and the
broker.

librdkafka does not implement KIP-890. The broker itself recognizes late requests of an earlier transaction.

Covers promises 1, 2, 4 and 5 of docs/design.md.
"""
import random
import sys
import time

import confluent_loop
import pytest
from confluent_loop import GROUP, INPUT, OUTPUT, result_of
from killed_copies import PARTITIONS, WAIT_S, KilledProcess, create_topics
from support.clients.committed_records import committed_records
from support.clients.markers import await_markers

from kbroker.client import Admin, Producer

pytestmark = pytest.mark.timeout(3600)

INSTANCES = 2
ROUNDS = 20
RECORDS = 200
"""The number of records in a round. Both instances are busy with them when the test kills one or the broker."""
POLL_S = 0.02
BROKER, INSTANCE = 'broker', 'instance'


class Instance(KilledProcess):
    """A process of the loop. `Group.await_commits` starts it again if it has ended by itself."""

    def __init__(self, address, name, directory):
        super().__init__(directory / f'{name}.log')
        self._words = [address, name]

    def command(self):
        return [sys.executable, confluent_loop.__file__, *self._words]


class Group:
    """The instances of a group, with access to their input, their output and their committed offsets."""

    def __init__(self, address, directory):
        self._address = address
        self._admin = Admin(address)
        self.instances = [Instance(address, f'squares-{number}', directory) for number in range(INSTANCES)]
        self.sent = 0

    def __enter__(self):
        for instance in self.instances:
            instance.start()
        return self

    def __exit__(self, *error):
        self.kill()
        self._admin.close()

    def kill(self):
        for instance in self.instances:
            instance.kill()

    def feed(self):
        with Producer(self._address) as producer:
            for number in range(self.sent, self.sent + RECORDS):
                producer.send(INPUT, b'%d' % number, partition=number % PARTITIONS)
        self.sent += RECORDS

    def await_commits(self, count):
        """Wait until the offsets of `count` records are committed."""
        deadline = time.monotonic() + WAIT_S
        while sum(self.committed().values()) < count:
            assert time.monotonic() < deadline, (self.committed(), *(each.output for each in self.instances))
            for instance in self.instances:
                if instance.process.poll() is not None:
                    instance.start()
            time.sleep(POLL_S)      # the instances run in their own processes

    def committed(self):
        return {partition: found.offset for (_, partition), found in self._admin.list_group_offsets(GROUP).items()}

    def written(self):
        """Return the committed output by partition. No open transaction may hide a part of it."""
        found = {partition: [] for partition in range(PARTITIONS)}
        for partition, record in committed_records(self._admin, OUTPUT, PARTITIONS):
            found[partition].append(record.value)
        return found


def check_squares(broker, directory, kills, rng):
    """Check that the output has the square of each input number once and in order, and that all offsets are
    committed."""
    create_topics(broker.address, INPUT)
    with Group(broker.address, directory) as group:
        for victim in kills:
            group.feed()
            group.await_commits(group.sent - rng.randrange(RECORDS // 4, RECORDS))
            if victim == BROKER:
                broker.kill9()
                broker.start()
            else:
                instance = rng.choice(group.instances)
                instance.kill()
                instance.start()
        group.await_commits(group.sent)
        group.kill()
        await_markers(broker.address)
        numbers = {partition: range(partition, group.sent, PARTITIONS) for partition in range(PARTITIONS)}
        assert group.committed() == {partition: len(given) for partition, given in numbers.items()}
        assert group.written() == {partition: [result_of(b'%d' % number) for number in given]
                                   for partition, given in numbers.items()}


def test_a_group_squares_each_number_once_though_an_instance_and_the_broker_are_killed(start_broker, tmp_path):
    check_squares(start_broker(), tmp_path, [BROKER, INSTANCE], random.Random(1))


@pytest.mark.soak
def test_a_group_squares_each_number_once_though_instances_and_the_broker_are_killed_again_and_again(
        start_broker, tmp_path, soak_seed, soak_count, tally):
    rng = random.Random(soak_seed)
    rounds = soak_count(ROUNDS, 5)
    check_squares(start_broker(), tmp_path, rng.choices([INSTANCE, BROKER], k=rounds), rng)
    tally('kills of a broker, a client or an application', rounds)
