"""The threads of the mixed load, and the records that they write."""
from __future__ import annotations

import itertools
import random
import threading
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field

import kafka.errors
from confluent_kafka import KafkaException

from kbroker.client import KafkaError
from kbroker_tools.verify.clients.face import ClientFailure

FAILURES = ClientFailure, KafkaError, OSError, KafkaException, kafka.errors.KafkaError, BufferError
"""The exceptions that the client libraries raise."""
PAUSE_AFTER_FAILURE_S = 0.3
PADDING_BYTES = 100


class Numbers:
    """A set of numbers that are 0 or above. It uses a byte of memory for each number up to the largest one."""

    def __init__(self) -> None:
        self._has = bytearray()
        self._lock = threading.Lock()

    def __contains__(self, number: int) -> bool:
        return number < len(self._has) and bool(self._has[number])

    def __len__(self) -> int:
        return self._has.count(1)

    def add(self, number: int) -> bool:
        """Add a number. Return whether it is new."""
        with self._lock:
            if number >= len(self._has):
                self._has.extend(bytes(number + 1 - len(self._has)))
            is_new = not self._has[number]
            self._has[number] = 1
        return is_new

    def without(self, others: Numbers) -> list[int]:
        return [number for number in range(len(self._has)) if self._has[number] and number not in others]


def value_of(number: int, padding: int = PADDING_BYTES) -> bytes:
    """Return the value of a record: a checksum, the number, and padding that the number determines."""
    rest = b'%d:' % number + random.Random(number).randbytes(padding)
    return b'%08x:' % zlib.crc32(rest) + rest


def number_of(value: bytes | None) -> int:
    """Return the number in a value. Raise AssertionError if the checksum is wrong."""
    assert value is not None
    checksum, _, rest = bytes(value).partition(b':')
    assert int(checksum, 16) == zlib.crc32(rest), f'the checksum of {value!r} is wrong'
    return int(rest.partition(b':')[0])


@dataclass
class Load:
    """The settings, state and results that all workers of a phase share."""

    servers: str
    prefix: str
    """The prefix of the names of all topics, groups and transactional ids."""
    survives_restarts: bool
    """True if the broker restarts during the load. If it is false, a client may fail only where its worker expects a
    failure.
    """
    stop_writing: threading.Event = field(default_factory=threading.Event)
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when the groups have received every record."""
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    acknowledged: Numbers = field(default_factory=Numbers)
    """The records of the topic `kept` that a client reported as written."""

    def name(self, what: str) -> str:
        return f'{self.prefix}-{what}'


class Worker(ABC):
    """A thread of the load. If an exception ended it, this is `error`. It shows a fault of the broker or of the test.
    """

    def __init__(self, name: str, load: Load, seed: int):
        self.name = name
        self.load = load
        self.chance = random.Random(f'{seed} {name}')
        self.stop = load.stop_writing
        self.error: BaseException | None = None
        self.done: Counter[str] = Counter()
        """How often the worker did each kind of action, for the report."""
        self.failures: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end of the worker. Return False if it is still running."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def pause(self, longest_s: float) -> None:
        self.stop.wait(self.chance.uniform(0, longest_s))

    def _run(self) -> None:
        try:
            while not self.stop.is_set():
                try:
                    self.work()
                except FAILURES as error:
                    if not self.load.survives_restarts:
                        raise
                    self.failures[type(error).__name__] += 1
                    self.stop.wait(PAUSE_AFTER_FAILURE_S)
        except BaseException as error:
            self.error = error

    @abstractmethod
    def work(self) -> None:
        """Create clients and work with them for a while, or until the worker is stopped."""
