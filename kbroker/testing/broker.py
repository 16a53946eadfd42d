"""The broker of a test."""
from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from kbroker.base.errors import KafkaError
from kbroker.base.topic_partition import TopicPartition
from kbroker.client import GroupInfo, NewTopic, Producer, StreamsGroupInfo, TransactionInfo
from kbroker.client.producer import Headers
from kbroker.testing.control import WAIT_S, WORK_S, Clock, Control, Fault, Hold, Selector, Step, last_steps
from kbroker.testing.errors import BrokerError, NotReachedError
from kbroker.testing.keeper import CONTROL, DEFAULT_LISTENERS
from kbroker.testing.process import Given, Process
from kbroker.testing.questions import CLIENT_ID, FoundRecord, Isolation, PartitionOffsets, Questions
from kbroker.testing.snapshots import Snapshot

if TYPE_CHECKING:
    from typing import Unpack

NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
LOOK_MS = 1_000
"""The most milliseconds between two looks of `wait_for`: time alone may change an answer, without a step."""
MOST_SHOWN = 500
"""The most characters of a value in a failed wait."""

Found = TypeVar('Found')


class Broker:
    """A broker in a process of its own, on free ports of 127.0.0.1, with a fresh directory.

    The constructor returns when the broker serves requests. `close`, or the end of a `with` block, ends the broker and
    removes its directory. All methods block; from asyncio, call them with `asyncio.to_thread`. Several threads may use
    one broker. After a fork, it belongs to the process that started it.

    * `data_dir`: a log directory to serve, of kbroker or of Apache Kafka. It stays when the broker is closed.
    * `copy_of`: the log directory of a stopped or killed broker, of which this broker serves a copy.
    * `settings`: settings of the broker under Kafka's names. The default of group.initial.rebalance.delay.ms is 0, so
      that the first member of a group need not wait.
    * `listeners`: maps the name of each listener to its security protocol. The kit asks its questions on the first
      listener with PLAINTEXT; without one, the broker gets a further listener for them.
    * `control`: whether the broker has a control port, which holds, faults, steps and the clock need.
    """

    def __init__(self, *, data_dir: Path | str | None = None, copy_of: Path | str | None = None,
                 settings: Mapping[str, str] = NO_SETTINGS, listeners: Mapping[str, str] = DEFAULT_LISTENERS,
                 control: bool = True):
        self._process = Process(Given(None if data_dir is None else Path(data_dir),
                                      None if copy_of is None else Path(copy_of), settings, listeners, control))
        self._has_given_directory = data_dir is not None
        self._listeners = dict(listeners)
        self._control = Control(self._process.ports[CONTROL], self._process.describe_end) if control else None
        self._questions = Questions(self._process.client_settings, self._is_holding)
        self._is_killed = self._is_paused = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the broker. If the block raised nothing, call `check` first."""
        try:
            if kind is None and self._control is not None:
                self.check()
        finally:
            self.close()

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT of the first listener."""
        return self.address(next(iter(self._listeners)))

    def address(self, listener: str) -> str:
        """Return HOST:PORT of a listener."""
        return f'127.0.0.1:{self._process.ports[listener]}'

    @property
    def control(self) -> Control:
        """The control port. Raise BrokerError if the broker has none."""
        if self._control is None:
            raise BrokerError('this broker has no control port: create it with control=True')
        return self._control

    @property
    def control_address(self) -> str:
        """HOST:PORT of the control port."""
        return f'127.0.0.1:{self.control.port}'

    @property
    def data_dir(self) -> Path:
        """The log directory."""
        return self._process.data_dir

    @property
    def log_path(self) -> Path:
        """The file with the log of all processes of this broker, as JSON lines."""
        return self._process.log_path

    def log_lines(self) -> list[dict[str, Any]]:
        """Return the entries of the log. Each has at least a `message`."""
        return self._process.log_lines()

    @property
    def pid(self) -> int:
        """The id of the process that serves now, or served last."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.is_running

    # ---- the process

    def start(self) -> None:
        """Start the broker again after its end: the same directory, the same ports, the same clock.

        Holds, faults and steps do not survive the end of a process.
        """
        if not self._process.is_running:
            self._note_end()
            self._process.start()
            if self._control is not None:
                self._control.begin()
            self._is_killed = self._is_paused = False

    def stop(self) -> None:
        """Stop the broker cleanly. The directory stays."""
        self._end_by(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the broker with SIGKILL, and wait for its end. The directory stays.

        What was held ends with the process, as in a crash.
        """
        self._end_by(signal.SIGKILL)

    def wait_until_dead(self, timeout_s: float = WAIT_S) -> None:
        """Wait until the process has ended, for example at the step of a `kill_at`. Raise BrokerError."""
        self._process.await_end(timeout_s)

    def pause(self) -> None:
        """Stop the process with SIGSTOP: it keeps its connections, and answers nothing until `resume`."""
        self._process.send_signal(signal.SIGSTOP)
        self._is_paused = True

    def resume(self) -> None:
        """Let a paused process continue."""
        self._process.send_signal(signal.SIGCONT)
        self._is_paused = False

    def close(self, keep_as: Path | str | None = None) -> None:
        """Kill the broker, release its ports, and remove its directory unless the test gave the directory.

        With `keep_as`, move the log directory to that path, for `Broker(data_dir=…)`.
        """
        if keep_as is not None and self._has_given_directory:
            raise BrokerError(f'found keep_as {keep_as}, expected none: the test gave {self.data_dir}, which stays')
        if self._control is not None:
            self._control.close()
        self._process.close(None if keep_as is None else Path(keep_as))

    def _end_by(self, number: signal.Signals) -> None:
        if self._process.is_running:
            if self._control is not None:
                if self._is_paused:
                    self._control.note_death()
                else:
                    self._control.end()
            self._is_killed = True
            self._process.end_by(number)

    def _note_end(self) -> None:
        if self._control is not None and not self._is_killed:
            self._control.note_death()

    # ---- topics and records

    def create_topic(self, name: str, partitions: int = 1, settings: Mapping[str, str] = NO_SETTINGS) -> None:
        """Create a topic. Raise KafkaError."""
        with self._questions.admin() as admin:
            _raise_first(admin.create_topics([NewTopic(name, partitions, configs=dict(settings))]))

    def delete_topic(self, name: str) -> None:
        """Delete a topic. Raise KafkaError."""
        with self._questions.admin() as admin:
            _raise_first(admin.delete_topics([name]))

    def send(self, topic: str, value: bytes | None, *, key: bytes | None = None, partition: int | None = None,
             headers: Headers = ()) -> None:
        """Write a record, and return when it is durable. Raise KafkaError."""
        with Producer(settings={**self._process.client_settings, 'client.id': CLIENT_ID}) as producer:
            producer.send(topic, value, key, headers, partition=partition)
            producer.flush()

    # ---- questions

    def _is_holding(self) -> bool:
        return self._control is not None and any(rule.held for rule in self._control.rules)

    def topics(self) -> list[str]:
        """Return the names of all topics except the internal ones."""
        return self._questions.topics()

    def values(self, topic: str, isolation: Isolation = 'read_committed') -> list[bytes | None]:
        """Return the values of all records of a topic, in the order of partitions and offsets."""
        return [record.value for record in self.records(topic, isolation)]

    def records(self, topic: str, isolation: Isolation = 'read_committed') -> list[FoundRecord]:
        """Return all records of a topic, in the order of partitions and offsets."""
        return self._questions.records(topic, isolation)

    def offsets(self, topic: str) -> dict[int, PartitionOffsets]:
        """Return {partition: offsets}: the start, the end and the last stable offset."""
        return self._questions.offsets(topic)

    def last_stable_offset(self, topic: str, partition: int = 0) -> int:
        """Return the offset up to which readers of committed records get records."""
        return self._questions.last_stable_offset(topic, partition)

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """Return {(topic, partition): committed offset} of a group, without offsets of open transactions."""
        return self._questions.committed(group)

    def groups(self) -> list[GroupInfo | StreamsGroupInfo]:
        """Return all groups with their members, sorted by id."""
        return self._questions.groups()

    def transactions(self) -> list[TransactionInfo]:
        """Return the transactions that are open or being ended, sorted by transactional id."""
        return self._questions.transactions()

    def wait_for(self, predicate: Callable[[], Found], timeout_s: float = WAIT_S) -> Found:
        """Call `predicate` after each step of the broker, until its result is true. Return that result.

        An AssertionError of `predicate` counts as a result that is not true. Raise NotReachedError with the last
        result and the last steps if that takes longer than `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        since = self.control.last_number()
        while True:
            found: object
            try:
                found = result = predicate()
                if result:
                    return result
            except AssertionError as error:
                found = error
            left_ms = int(1000 * (deadline - time.monotonic()))
            if left_ms <= 0:
                shown = repr(found)
                cut = shown if len(shown) <= MOST_SHOWN else f'{shown[:MOST_SHOWN]}...'
                raise NotReachedError('\n'.join([f'not reached within {timeout_s:g} s; the last result was {cut}',
                                                 *last_steps(self.control)]))
            since = self.control.wait_for_step(since, min(left_ms, LOOK_MS))

    # ---- control

    def hold(self, point: str, **selector: Unpack[Selector]) -> Hold:
        """Hold the operations that reach a point. Use the result as a context manager."""
        return Hold(self.control, point, 'hold', selector)

    def fail(self, point: str, error: str | None = None, **selector: Unpack[Selector]) -> Fault:
        """Let operations fail: a request with an error of Kafka, or an operation of the disk without one.

        The points of the disk are `sync`, which fails, and `write`, for which the disk is full.
        """
        if error is not None:
            return Fault(self.control, point, 'error', selector, error=error)
        return Fault(self.control, point, 'full' if point == 'write' else 'fail', selector)

    def delay(self, point: str, ms: int, **selector: Unpack[Selector]) -> Fault:
        """Delay operations that reach a point."""
        return Fault(self.control, point, 'delay', selector, delay_ms=ms)

    def drop(self, point: str, **selector: Unpack[Selector]) -> Fault:
        """Close the connection of a request: at `request` before its effect, at `reply` after it."""
        return Fault(self.control, point, 'drop', selector)

    def kill_at(self, point: str, **selector: Unpack[Selector]) -> Fault:
        """Kill the process at a step. Wait for it with `wait_until_dead`, and call `start`."""
        return Fault(self.control, point, 'kill', selector)

    def pause_at(self, point: str, **selector: Unpack[Selector]) -> Fault:
        """Stop the process at a step, as `pause` does. `resume` lets it continue."""
        return Fault(self.control, point, 'pause', selector)

    def steps(self, since: int = 0) -> list[Step]:
        """Return the steps that the process has reached after step `since`, in order.

        After `kill` or `stop`, return those of the process that has ended. The kit's own requests are no steps.
        """
        return self.control.steps(since)

    @property
    def clock(self) -> Clock:
        """The clock of the broker."""
        return Clock(self.control)

    def unmatched(self) -> list[str]:
        """Return a description of each hold and fault that has matched no step so far."""
        if self._control is None:
            return []
        if not self._is_killed and not self._process.is_running:
            self._control.note_death()
        return self._control.unmatched()

    def check(self) -> None:
        """Raise NotReachedError if a hold or a fault has matched no step: the test did not test what it meant to."""
        unmatched = self.unmatched()
        if unmatched:
            raise NotReachedError('\n'.join(['no step was matched by', *(f'  {text}' for text in unmatched),
                                             *last_steps(self.control)]))

    # ---- copies

    def reset(self) -> None:
        """Make the broker as empty as a new one: no topics, groups and transactional ids, no holds, faults and steps.

        Settings, quotas, ACLs and credentials become those of the start of the process. The clock runs on.
        """
        self.control.reset()

    def snapshot(self) -> Snapshot:
        """Copy the directory of the running broker at one point of its history. Raise BrokerError while it holds."""
        directory = self._process.new_snapshot_directory()
        self.control.ask('POST', '/snapshot', {'directory': str(directory)}, limit_s=WORK_S)
        return Snapshot(directory, Broker)


def _raise_first(results: Mapping[str, KafkaError | None]) -> None:
    for error in results.values():
        if error is not None:
            raise error
