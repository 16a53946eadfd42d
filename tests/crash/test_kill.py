"""A broker process that is killed repeatedly during transactions keeps everything that it acknowledged, exactly once.

Two applications copy records from an input topic to an output topic of several partitions, in transactions. Each
transaction includes the offsets of its input. The number of the transaction decides whether the application commits or
aborts it. A third application writes with an idempotent producer. All are unmodified clients: they notice a kill only
by the errors that it causes, and retry as applications do.

Covers promises 1, 2, 4 and 5 of docs/design.md.
"""
from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from support.brokers.broker_process import BrokerProcess
from support.clients.librdkafka import LIMIT_S, committed_offset, create_topics, values_of
from support.clients.promises import findings_in

DEFAULT_ROUNDS = 25
SOAK_ROUNDS = 500
PARTITIONS = 3
OUTPUT, PLAIN, INPUT = 'output', 'plain', 'input'
SETTINGS = {'offsets.topic.num.partitions': '2', 'transaction.state.log.num.partitions': '2',
            'transaction.abort.timed.out.transaction.cleanup.interval.ms': '500', 'log.roll.ms': '2000'}
CLIENT = {'reconnect.backoff.ms': 20, 'reconnect.backoff.max.ms': 100, 'retry.backoff.ms': 20, 'log_level': 0,
          # After a new bootstrap, librdkafka 2.16 waits forever for the group coordinator that it knew before.
          'metadata.recovery.strategy': 'none'}


class Progress:
    """Wakes the test whenever an application has committed or ended."""

    def __init__(self) -> None:
        self._condition = threading.Condition()

    def notify(self) -> None:
        with self._condition:
            self._condition.notify_all()

    def wait_until(self, holds: Callable[[], bool]) -> None:
        with self._condition:
            assert self._condition.wait_for(holds, LIMIT_S), 'no progress under load'


@dataclass
class TransactionalApplication:
    """An application that copies records in transactions. `committed` and `aborted` have the transactions whose end the
    broker confirmed. `doubtful` has those whose outcome is unknown.
    """

    name: str
    address: str
    stop: threading.Event
    progress: Progress
    committed: list[int] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)
    doubtful: list[int] = field(default_factory=list)
    error: BaseException | None = None
    has_ended: bool = False

    def run(self) -> None:
        try:
            number = 0
            while not self.stop.is_set():
                number = self._run_instance(number)
        except BaseException as error:
            self.error = error
        finally:
            self.has_ended = True
            self.progress.notify()

    def _run_instance(self, number: int) -> int:
        """Run one producer until the test stops it or it cannot continue. Return the number of the last transaction."""
        producer = Producer({
            'bootstrap.servers': self.address, 'transactional.id': self.name, 'linger.ms': 0,
            'transaction.timeout.ms': 10_000, **CLIENT})
        consumer = Consumer({'bootstrap.servers': self.address, 'group.id': self.name, **CLIENT})
        try:
            producer.init_transactions(LIMIT_S)
            while not self.stop.is_set():
                number += 1
                if not self._transact(producer, consumer, number):
                    break
            return number
        except KafkaException as error:
            if error.args[0].fatal() or error.args[0].retriable() or error.args[0].txn_requires_abort():
                return number
            raise
        finally:
            consumer.close()

    def _transact(self, producer: Producer, consumer: Consumer, number: int) -> bool:
        """Run one transaction. Return True if the producer can continue."""
        self.doubtful.append(number)
        is_to_commit = number % 3 != 0
        try:
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                for copy in range(2):
                    producer.produce(OUTPUT, f'{self.name} {number} {partition}.{copy}', partition=partition)
            producer.send_offsets_to_transaction([TopicPartition(INPUT, 0, number)],
                                                 consumer.consumer_group_metadata(), LIMIT_S)
            while is_to_commit:
                try:
                    producer.commit_transaction(LIMIT_S)
                    break
                except KafkaException as error:
                    if not error.args[0].retriable():
                        raise
            if is_to_commit:
                self._confirm(number, self.committed)
                return True
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                return False
        self._abort(producer)
        self._confirm(number, self.aborted)
        return True

    def _abort(self, producer: Producer) -> None:
        while True:
            try:
                producer.abort_transaction(LIMIT_S)
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise

    def _confirm(self, number: int, outcome: list[int]) -> None:
        self.doubtful.remove(number)
        outcome.append(number)
        self.progress.notify()


@dataclass
class IdempotentApplication:
    """An application that writes numbered records with an idempotent producer. `acknowledged` has the numbers of the
    acknowledged records.
    """

    address: str
    stop: threading.Event
    progress: Progress
    acknowledged: list[int] = field(default_factory=list)
    error: BaseException | None = None
    has_ended: bool = False

    def run(self) -> None:
        try:
            producer = Producer({'bootstrap.servers': self.address, 'enable.idempotence': True, 'linger.ms': 1,
                                 **CLIENT})
            number = 0
            while not self.stop.is_set():
                producer.produce(PLAIN, str(number), partition=number % PARTITIONS, on_delivery=self._delivered)
                number += 1
                producer.poll(0.002)
            assert producer.flush(LIMIT_S) == 0
        except BaseException as error:
            self.error = error
        finally:
            self.has_ended = True
            self.progress.notify()

    def _delivered(self, error: KafkaError | None, message: object) -> None:
        assert error is None, error
        self.acknowledged.append(int(message.value()))  # type: ignore[attr-defined]


def check_transactions(found: list[str], applications: list[TransactionalApplication], offsets: dict[str, int]) -> None:
    assert len(found) == len(set(found)), 'duplicate records'
    for application in applications:
        visible: dict[int, int] = {}
        for value in found:
            name, number, _ = value.split()
            if name == application.name:
                visible[int(number)] = visible.get(int(number), 0) + 1
        assert set(visible.values()) <= {2 * PARTITIONS}, 'a transaction is only partly visible'
        assert set(application.committed) <= set(visible), 'a committed transaction is lost'
        assert not set(application.aborted) & set(visible), 'an aborted transaction is visible'
        assert set(visible) <= set(application.committed) | set(application.doubtful)
        assert offsets[application.name] == max(visible), 'the offsets are not those of the last commit'


def run_rounds(directory, rounds: int, settings: dict[str, str]) -> None:
    rng = random.Random(20)
    broker = BrokerProcess(directory, SETTINGS | settings)
    broker.start()
    stop = threading.Event()
    threads: list[threading.Thread] = []
    try:
        create_topics(broker.address, **{OUTPUT: PARTITIONS, PLAIN: PARTITIONS, INPUT: 1})
        progress = Progress()
        applications = [TransactionalApplication(f'app-{number}', broker.address, stop, progress)
                        for number in range(2)]
        plain = IdempotentApplication(broker.address, stop, progress)

        def has_one_ended() -> bool:
            return any(application.has_ended for application in (*applications, plain))

        threads = [threading.Thread(target=application.run) for application in (*applications, plain)]
        for thread in threads:
            thread.start()
        for _ in range(rounds):
            before = commits(applications)
            progress.wait_until(lambda before=before: commits(applications) > before or has_one_ended())
            stop.wait(rng.random() * 0.3)
            broker.kill9()
            broker.start()
        progress.wait_until(lambda: all(application.committed for application in applications) or has_one_ended())
        stop.set()
        for thread in threads:
            thread.join(2 * LIMIT_S)
        for application in (*applications, plain):
            if application.error is not None:
                raise application.error
        for application in applications:    # a new instance aborts what the previous one left open
            successor = Producer({'bootstrap.servers': broker.address, 'transactional.id': application.name})
            successor.init_transactions(LIMIT_S)
        offsets = {application.name: committed_offset(broker.address, application.name, INPUT)
                   for application in applications}
        check_transactions(values_of(broker.address, OUTPUT, range(PARTITIONS)), applications, offsets)
        found = values_of(broker.address, PLAIN, range(PARTITIONS))
        assert len(found) == len(set(found)) and {int(value) for value in found} >= set(plain.acknowledged)
        broker.stop()
    finally:
        stop.set()
        broker.kill9()
        for thread in threads:
            thread.join(2 * LIMIT_S)
    assert broker.tracebacks() == []
    assert findings_in(str(directory)) == []


def commits(applications: list[TransactionalApplication]) -> int:
    return sum(len(application.committed) for application in applications)


@pytest.mark.parametrize(('durability', 'rounds'), [('disk', DEFAULT_ROUNDS), ('page-cache', 10)])
def test_a_broker_that_is_killed_loses_nothing_and_repeats_nothing(tmp_path, durability, rounds):
    run_rounds(tmp_path / 'data', rounds, {'kbroker.durability': durability})


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_broker_that_is_killed_five_hundred_times_loses_nothing_and_repeats_nothing(tmp_path, soak_count, tally):
    rounds = soak_count(SOAK_ROUNDS, DEFAULT_ROUNDS)
    run_rounds(tmp_path / 'data', rounds, {})
    tally('kills of a broker, a client or an application', rounds)
