"""The workloads. A workload is a series of client operations that continues until the run stops. It runs in its own
thread.

A worker records each transaction when the transaction ends or fails. After a failure that a client does not survive,
the worker creates a new client. If a commit was requested but not confirmed, the worker records that the end of the
transaction is unknown.
"""
from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from kbroker.base.errors import KafkaError
from kbroker_tools.verify.clients.face import (
    ClientFailure,
    Getter,
    InstanceFailure,
    Maker,
    Member,
    Membership,
    Place,
    Writer,
)
from kbroker_tools.verify.lines import NOT_ACKNOWLEDGED, READ_COMMITTED, Outcome
from kbroker_tools.verify.recorder import Reads, Recorder

POLL_S = 0.1
PAUSE_AFTER_FAILURE_S = 0.2
ABORTED_SHARE = 0.25
READING_SHARE = 0.3
LONGEST_PAUSE_S = 0.03
MOST_WRITES = 6
RESEEK_SHARE = 0.01
MEMBERSHIP_S = (2, 10)
"""The range of the time, in seconds, for which a member stays in its group."""
LONGEST_ABSENCE_S = 2


@dataclass
class Setting:
    """The objects that all workers of a run share."""

    recorder: Recorder
    stop: threading.Event
    places: Sequence[Place]
    committed_offsets: Callable[[str], Mapping[int, int]]
    """A function that returns {partition: committed offset} for a group, when no transaction holds the offsets any
    more."""

    def indexes(self, topic: str) -> list[int]:
        """Return the indexes of the topic's partitions in the list of the run's partitions."""
        return [index for index, place in enumerate(self.places) if place.topic == topic]


class Worker(ABC):
    """A thread with a workload. If it ended early because of a fault of this program, `error` has the exception."""

    def __init__(self, name: str, setting: Setting, rng: random.Random):
        self.name = name
        self.error: BaseException | None = None
        self._setting = setting
        self._recorder = setting.recorder
        self._stop = setting.stop
        self._rng = rng
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait until the worker ends. Return False if it has not ended after `timeout_s` seconds."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    self.work()
                except (ClientFailure, KafkaError, OSError):
                    self._stop.wait(PAUSE_AFTER_FAILURE_S)
        except BaseException as error:
            self.error = error

    @abstractmethod
    def work(self) -> None:
        """Create clients and work with them, until the run stops or a client fails."""


class Attempt:
    """A transaction in progress, and the fields that will be recorded about it."""

    def __init__(self, recorder: Recorder, producer: int, writer: Writer):
        self.number = recorder.new_transaction()
        self._recorder = recorder
        self._producer = producer
        self._writer = writer
        self._begin = recorder.now()
        self._commit: int | None = None
        self._writes: list[int] = []
        self.transform: dict[str, Any] = {}

    def send(self, partition: int) -> int:
        number = self._recorder.new_record()
        self._writes += [number, partition, NOT_ACKNOWLEDGED, self._recorder.now()]
        self._writer.send(partition, number)
        return number

    def commit(self) -> None:
        """Commit the transaction and record it. If the commit fails, the end of the transaction is unknown."""
        self._commit = self._recorder.now()
        self._writer.commit()
        self.record(Outcome.COMMITTED)

    def abort(self) -> None:
        self._writer.abort()
        self.record(Outcome.ABORTED if self._commit is None else Outcome.UNKNOWN)

    def fail(self) -> bool:
        """Abort the transaction after a failure, if the producer still can, and record it. Return True if the producer
        can be used again."""
        try:
            self.abort()
            return True
        except ClientFailure:
            self.record(Outcome.UNKNOWN)
            return False

    def record(self, outcome: Outcome) -> None:
        acknowledged = self._writer.acknowledged
        for index in range(0, len(self._writes), 4):
            self._writes[index + 2] = acknowledged.get(self._writes[index], NOT_ACKNOWLEDGED)
        acknowledged.clear()
        self._recorder.transaction(self.number, self._producer, self._begin, self._commit, outcome, self._writes,
                                   **self.transform)


class Session:
    """The client of a reader, and the number under which its polls are recorded.

    A failed poll may have skipped records. The next poll therefore begins where the last successful poll ended.
    """

    def __init__(self, recorder: Recorder, maker: Maker, isolation: str):
        self._recorder = recorder
        self._getter: Getter = maker.getter(isolation)
        self._number = recorder.reader(isolation, maker.name)
        self._positions: dict[int, int] = {}
        self._has_failed = False
        self._sought: list[int] = []

    def seek(self, positions: Mapping[int, int]) -> None:
        self._getter.seek(positions)
        self._positions = dict(positions)
        self._has_failed = False
        self._sought = [number for pair in positions.items() for number in pair]

    def poll(self, timeout_s: float, transaction: int | None = None) -> Sequence[tuple[int, list[int], list[int]]]:
        begin = self._recorder.now()
        if self._has_failed:
            self.seek(self._positions)
        try:
            reads = self._getter.poll(timeout_s)
        except ClientFailure:
            self._has_failed = True
            raise
        self._positions |= {partition: offsets[-1] + 1 for partition, offsets, _ in reads}
        if reads:
            self._recorder.poll(self._number, begin, reads, seek=self._sought, transaction=transaction)
            self._sought = []
        return reads

    def close(self) -> None:
        self._getter.close()


def claimed(recorder: Recorder, maker: Maker, transactional_id: str | None) -> tuple[int, Writer]:
    """Return a new producer that has claimed its transactional id. Raise ClientFailure if it cannot claim the id."""
    begin, writer = recorder.now(), maker.writer(transactional_id)
    try:
        if transactional_id is not None:
            writer.claim()
    except BaseException:
        writer.close()
        raise
    number = recorder.new_producer()
    recorder.producer(number, transactional_id, maker.name, begin)
    return number, writer


class ListAppender(Worker):
    """A workload of transactions. Each transaction appends to several partitions of a topic and reads from the topic.
    Some transactions are aborted."""

    def __init__(self, name: str, setting: Setting, rng: random.Random, maker: Maker, topic: str):
        super().__init__(name, setting, rng)
        self._maker = maker
        self._partitions = setting.indexes(topic)

    def work(self) -> None:
        producer, writer = claimed(self._recorder, self._maker, self.name)
        with closing(writer), closing(Session(self._recorder, self._maker, READ_COMMITTED)) as session:
            session.seek(dict.fromkeys(self._partitions, 0))
            while not self._stop.is_set():
                self._transact(producer, writer, session)

    def _transact(self, producer: int, writer: Writer, session: Session) -> None:
        writer.begin()
        attempt = Attempt(self._recorder, producer, writer)
        try:
            for _ in range(self._rng.randint(1, MOST_WRITES)):
                attempt.send(self._rng.choice(self._partitions))
                if self._rng.random() < READING_SHARE:
                    writer.flush()
                    self._stop.wait(self._rng.uniform(0, LONGEST_PAUSE_S))
                    session.poll(0, attempt.number)
            writer.flush()
            self._stop.wait(self._rng.uniform(0, LONGEST_PAUSE_S))
            if self._rng.random() < ABORTED_SHARE:
                attempt.abort()
            else:
                attempt.commit()
        except ClientFailure:
            if not attempt.fail():
                raise


class Sender(Worker):
    """A workload of records outside of transactions. An idempotent producer sends them. They are the input of the
    transforms."""

    def __init__(self, name: str, setting: Setting, rng: random.Random, maker: Maker, topic: str):
        super().__init__(name, setting, rng)
        self._maker = maker
        self._partitions = setting.indexes(topic)

    def work(self) -> None:
        producer, writer = claimed(self._recorder, self._maker, None)
        try:
            while not self._stop.is_set():
                self._send(producer, writer)
                self._stop.wait(self._rng.uniform(0, 4 * LONGEST_PAUSE_S))
        finally:
            writer.close()

    def _send(self, producer: int, writer: Writer) -> None:
        writes: list[int] = []
        try:
            for _ in range(self._rng.randint(1, MOST_WRITES)):
                number, partition = self._recorder.new_record(), self._rng.choice(self._partitions)
                writes += [number, partition, NOT_ACKNOWLEDGED, self._recorder.now()]
                writer.send(partition, number)
            writer.flush()
        finally:
            for index in range(0, len(writes), 4):
                writes[index + 2] = writer.acknowledged.get(writes[index], NOT_ACKNOWLEDGED)
            writer.acknowledged.clear()
            self._recorder.sends(producer, writes)


class Transforming(Worker):
    """A workload of transactions that read input records, write one output record for each of them, and commit the
    offsets."""

    def __init__(self, name: str, setting: Setting, rng: random.Random, maker: Maker, group: str, output: str):
        super().__init__(name, setting, rng)
        self._maker = maker
        self._group = group
        self._outputs = setting.indexes(output)

    def _transform(self, producer: int, writer: Writer, reads: Reads, positions: Mapping[int, int],
                   committer: Any) -> Mapping[int, int] | None:
        """Transform the records of a poll in one transaction. Return {partition: next offset}, or None if the
        transaction was aborted.

        `positions` has the first offset of each partition that was not transformed yet. `committer` is the group in the
        form that `Writer.send_offsets` accepts. If ClientFailure is raised, the end of the transaction is unknown.
        """
        writer.begin()
        attempt = Attempt(self._recorder, producer, writer)
        sources: list[int] = []
        after = {partition: offsets[-1] + 1 for partition, offsets, _ in reads}
        attempt.transform = {'group': self._group, 'sources': sources, 'consumed': [
            number for partition, end in after.items() for number in (partition, positions[partition], end)]}
        try:
            for partition, offsets, _ in reads:
                for offset in offsets:
                    sources += [attempt.send(self._rng.choice(self._outputs)), partition, offset]
            writer.flush()
            writer.send_offsets(committer, after)
            self._stop.wait(self._rng.uniform(0, LONGEST_PAUSE_S))
            if self._rng.random() < ABORTED_SHARE:
                attempt.abort()
                return None
            attempt.commit()
        except ClientFailure as error:
            attempt.fail()
            raise ClientFailure('the position is not known') from error
        return after


class Transformer(Transforming):
    """A transform of a constant set of partitions. It stores its positions, and after a failure it reads the committed
    offsets."""

    def __init__(self, name: str, setting: Setting, rng: random.Random, maker: Maker, group: str, output: str,
                 inputs: Sequence[int]):
        super().__init__(name, setting, rng, maker, group, output)
        self._inputs = inputs

    def work(self) -> None:
        producer, writer = claimed(self._recorder, self._maker, self.name)
        with closing(writer), closing(Session(self._recorder, self._maker, READ_COMMITTED)) as session:
            committed = self._setting.committed_offsets(self._group)
            positions = {partition: committed.get(partition, 0) for partition in self._inputs}
            session.seek(positions)
            while not self._stop.is_set():
                reads = session.poll(POLL_S)
                if not reads:
                    continue
                after = self._transform(producer, writer, reads, positions, self._group)
                if after is None:
                    session.seek(positions)
                else:
                    positions |= after


class MovingTransformer(Transforming):
    """A transform by a member of a group. The member joins and leaves again and again, so that partitions move between
    members.

    In the history, each assignment has a separate reader, which begins at the offsets that are committed when it is
    assigned.
    """

    def __init__(self, name: str, setting: Setting, rng: random.Random, maker: Maker, membership: Membership,
                 output: str):
        super().__init__(name, setting, rng, maker, membership.group, output)
        self._membership = membership

    def work(self) -> None:
        producer, writer = claimed(self._recorder, self._maker, self.name)
        with closing(writer):
            while not self._stop.is_set():
                with closing(self._maker.member(self._membership)) as member:
                    self._belong(member, producer, writer)
                self._stop.wait(self._rng.uniform(0, LONGEST_ABSENCE_S))

    def _belong(self, member: Member, producer: int, writer: Writer) -> None:
        """Join the group and work as a member for some time. Raise ClientFailure after a failure, because the member
        cannot continue."""
        end = time.monotonic() + self._rng.uniform(*MEMBERSHIP_S)
        reader, changes = -1, -1
        sought: list[int] = []
        while not self._stop.is_set() and time.monotonic() < end:
            begin = self._recorder.now()
            reads = member.poll(POLL_S)
            if not reads:
                continue
            if changes != member.changes:
                reader, changes, sought = self._recorder.reader(READ_COMMITTED, self._maker.name), member.changes, []
            self._recorder.poll(reader, begin, reads, seek=sought)
            sought = []
            positions = {partition: offsets[0] for partition, offsets, _ in reversed(reads)}
            if self._transform(producer, writer, reads, positions, member.metadata()) is None:
                member.rewind(positions)
                sought = [number for pair in positions.items() for number in pair]


class Fencer(Worker):
    """A workload with one transactional id, which a series of producers claim. A fenced producer continues to write,
    and its writes must fail."""

    def __init__(self, name: str, setting: Setting, rng: random.Random, makers: Sequence[Maker], topic: str):
        super().__init__(name, setting, rng)
        self._makers = makers
        self._partitions = setting.indexes(topic)

    def work(self) -> None:
        producer, writer = claimed(self._recorder, self._rng.choice(self._makers), self.name)
        try:
            while not self._stop.is_set():
                producer, writer = self._replace(producer, writer)
        finally:
            writer.close()

    def _replace(self, producer: int, writer: Writer) -> tuple[int, Writer]:
        """Begin a transaction, claim the id with a new producer, and continue with the fenced producer. Return the new
        producer."""
        writer.begin()
        attempt = Attempt(self._recorder, producer, writer)
        try:
            for _ in range(2):
                attempt.send(self._rng.choice(self._partitions))
            writer.flush()
            successor, following = claimed(self._recorder, self._rng.choice(self._makers), self.name)
        except ClientFailure:
            attempt.fail()
            raise
        try:
            for _ in range(2):
                attempt.send(self._rng.choice(self._partitions))
            writer.flush()
            attempt.commit()
        except ClientFailure as error:
            if isinstance(error, InstanceFailure):
                attempt.record(Outcome.UNKNOWN)
            else:
                attempt.fail()
        finally:
            writer.close()
        self._stop.wait(self._rng.uniform(0, 4 * LONGEST_PAUSE_S))
        return successor, following


class Tail(Worker):
    """A reader of all partitions. It begins at the start of the logs. At times it begins again somewhere in the
    middle."""

    def __init__(self, name: str, setting: Setting, rng: random.Random, maker: Maker, isolation: str):
        super().__init__(name, setting, rng)
        self._maker = maker
        self._isolation = isolation
        self._positions = dict.fromkeys(range(len(setting.places)), 0)

    def work(self) -> None:
        session = Session(self._recorder, self._maker, self._isolation)
        try:
            session.seek(self._positions)
            while not self._stop.is_set():
                for partition, offsets, _ in session.poll(POLL_S):
                    self._positions[partition] = offsets[-1] + 1
                if self._rng.random() < RESEEK_SHARE:
                    self._positions = {partition: self._rng.randint(0, end)
                                       for partition, end in self._positions.items()}
                    session.seek(self._positions)
        finally:
            session.close()
