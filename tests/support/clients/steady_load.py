"""Transactional producers that write without a pause, while a test moves and stops the brokers under them."""
from __future__ import annotations

import collections
import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence

from confluent_kafka import KafkaException
from confluent_kafka import Producer as LibrdkafkaProducer
from support.clients.librdkafka import LIMIT_S
from support.clients.line_producer import LineProducer
from support.kafka.apache_kafka import java

from kbroker.client import Producer
from kbroker.client.errors import ClientError
from kbroker.client.transaction_manager import GroupMetadata

TIMEOUT_S = 20
"""The time after which a writer gives up an operation, and fences itself with a new instance."""
AN_ABORT_EVERY = 5
PAUSE_S = 0.05
"""The pause between two transactions of a writer. Without it, three writers take all processors."""
NO_LOGIN: Mapping[str, str] = {}
Place = tuple[str, int]


class Writer(ABC):
    """A producer with one transactional id. Each transaction writes one value to each place. If `has_group`, it also
    commits the number of the value as the offset of the group `readers-NAME`.

    `committed`, `aborted` and `unknown` have the values of the ended transactions. After an error, the next instance
    with the same id decides the transaction whose end is unknown.
    """

    has_group = True
    errors: tuple[type[BaseException], ...] = (KafkaException, ClientError, AssertionError, OSError)

    def __init__(self, name: str, servers: Sequence[str], places: Sequence[Place], login: Mapping[str, str]):
        self.name = name
        self.servers = ','.join(servers)
        self.places = places
        self.login = login
        self.group = f'readers-{name}'
        self.committed: list[str] = []
        self.aborted: list[str] = []
        self.unknown: list[str] = []
        self.problems: collections.Counter[str] = collections.Counter()
        self.has_given_up = False

    @abstractmethod
    def open(self) -> None:
        """Start an instance, and initialize its transactional id."""

    @abstractmethod
    def close(self) -> None:
        """Drop the instance."""

    @abstractmethod
    def write(self, value: str, offset: int) -> None:
        """Begin a transaction, write the value to each place, and add the offset of the group."""

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    def run(self, load: SteadyLoad) -> None:
        """Write transactions until the load stops. Then decide a transaction whose end is unknown."""
        is_open, number = False, 0
        while not load.is_stopping or not is_open:
            try:
                if not is_open:
                    self.open()
                    is_open = True
                    continue
                number += 1
                fate = self.write_one(number)
            except self.errors as error:
                self.problems[f'{type(error).__name__}: {error}'[:200]] += 1
                self.close()
                if load.is_over:
                    self.has_given_up = True
                    return
                if not is_open:
                    continue
                is_open = False
                fate = self.unknown
            fate.append(f'{self.name}-{number}')
            load.note()
        self.close()

    def write_one(self, number: int) -> list[str]:
        """Write a transaction. Return the list to which its value belongs."""
        self.write(f'{self.name}-{number}', number)
        if number % AN_ABORT_EVERY == 0:
            self.abort()
            return self.aborted
        self.commit()
        return self.committed


class ClientWriter(Writer):
    """A writer with kbroker's client."""

    def open(self) -> None:
        self._producer = Producer(self.servers.split(','), {**self.login, 'transactional.id': self.name, 'acks': 'all',
                                                            'max.block.ms': TIMEOUT_S * 1000})
        self._producer.init_transactions()

    def close(self) -> None:
        with contextlib.suppress(*self.errors):
            self._producer.close()

    def write(self, value: str, offset: int) -> None:
        self._producer.begin_transaction()
        for topic, partition in self.places:
            self._producer.send(topic, value.encode(), partition=partition)
        self._producer.send_offsets_to_transaction({self.places[0]: offset}, GroupMetadata(self.group))
        self._producer.flush()

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()


class LibrdkafkaWriter(Writer):
    """A writer with librdkafka. It commits no offsets: if the broker restarts while librdkafka adds offsets to a
    transaction, its `send_offsets_to_transaction` can wait forever, whatever its timeout is.
    """

    has_group = False

    def open(self) -> None:
        settings = {**self.login, 'bootstrap.servers': self.servers, 'log_level': 0}
        self._producer = LibrdkafkaProducer({**settings, 'transactional.id': self.name})
        self._producer.init_transactions(TIMEOUT_S)

    def close(self) -> None:
        del self._producer

    def write(self, value: str, offset: int) -> None:
        self._producer.begin_transaction()
        for topic, partition in self.places:
            self._producer.produce(topic, value, partition=partition)

    def commit(self) -> None:
        self._producer.commit_transaction(TIMEOUT_S)

    def abort(self) -> None:
        self._producer.abort_transaction(TIMEOUT_S)


class JavaWriter(Writer):
    """A writer with Kafka's producer. It cannot log in."""

    def open(self) -> None:
        self._producer = LineProducer(java('kbroker.LineProducer', self.servers, self.name))

    def close(self) -> None:
        self._producer.__exit__()

    def write(self, value: str, offset: int) -> None:
        self._producer.begin()
        for topic, partition in self.places:
            self._producer.send(topic, partition, value)
        self._producer.send_offsets(self.group, self.places[0][0], offset)

    def commit(self) -> None:
        self._producer.commit()

    def abort(self) -> None:
        self._producer.abort()


class SteadyLoad:
    """Writers, each in a thread. The `with` block starts them, and at its end waits until no end is unknown.

    `login` are settings of librdkafka. With a login, the load has no JavaWriter. A test measures its phases in commits
    (`await_more`), not in seconds.
    """

    def __init__(self, servers: Sequence[str], places: Sequence[Place], limit_s: float = LIMIT_S,
                 login: Mapping[str, str] = NO_LOGIN):
        self._stop = threading.Event()
        kinds: tuple[type[Writer], ...] = (ClientWriter, LibrdkafkaWriter, *(() if login else (JavaWriter,)))
        self.writers = [kind(kind.__name__, servers, places, login) for kind in kinds]
        self._limit_s = limit_s
        self._progress = threading.Condition()
        self._threads = [threading.Thread(target=writer.run, args=(self,), daemon=True) for writer in self.writers]

    @property
    def is_stopping(self) -> bool:
        return self._stop.is_set()

    @property
    def is_over(self) -> bool:
        """Return whether a writer that still has errors gives up."""
        return self.is_stopping and time.monotonic() > self._stop_by

    def __enter__(self) -> SteadyLoad:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop_by = time.monotonic() + self._limit_s
        self._stop.set()
        if kind is None:
            for thread in self._threads:
                thread.join(self._limit_s + TIMEOUT_S)
            assert not any(thread.is_alive() for thread in self._threads), self.problems()
            assert not any(writer.has_given_up for writer in self.writers), self.problems()

    def note(self) -> None:
        """Report a transaction, and pause the writer."""
        with self._progress:
            self._progress.notify_all()
        self._stop.wait(PAUSE_S)

    def problems(self) -> dict[str, collections.Counter[str]]:
        return {writer.name: writer.problems for writer in self.writers}

    def await_more(self, count: int) -> None:
        """Wait until each writer has committed `count` more transactions."""
        wanted = {writer.name: len(writer.committed) + count for writer in self.writers}
        with self._progress:
            assert self._progress.wait_for(lambda: all(len(writer.committed) >= wanted[writer.name]
                                                       for writer in self.writers), self._limit_s), (
                wanted, {writer.name: len(writer.committed) for writer in self.writers}, self.problems())


def check_written(writers: Iterable[Writer], values: Mapping[Place, list[str]], offsets: Mapping[str, int]) -> None:
    """Check that each place has the committed values once and in order, and that the groups have the last offsets.

    `values` maps each place to its committed values, and `offsets` maps each group to its committed offset. A value
    whose transaction has an unknown end must be in all places or in none. Raise AssertionError if a value is wrong.
    """
    for writer in writers:
        known = set(writer.committed) | set(writer.unknown)
        found = {place: [value for value in values[place] if value.startswith(f'{writer.name}-')]
                 for place in writer.places}
        first, *others = found.values()
        assert all(other == first for other in others), (writer.name, found)
        assert numbers(first) == sorted(set(numbers(first))), (writer.name, first)
        assert not (missing := set(writer.committed) - set(first)), (writer.name, missing)
        assert not (more := set(first) - known), (writer.name, more)
        assert not writer.has_group or offsets[writer.group] == numbers(first)[-1], (writer.name, offsets, first[-3:])


def numbers(values: Collection[str]) -> list[int]:
    return [int(value.rpartition('-')[2]) for value in values]
