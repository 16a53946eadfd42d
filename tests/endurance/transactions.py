"""The transactions of the load: the workloads of kbroker-verify, at a bounded rate, and transactions that time out.

The history of the clients is checked for every anomaly that kbroker-verify knows.
"""
from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from endurance.worker import Load

from kbroker.client import Admin, KafkaError, NewTopic
from kbroker.client.admin import LATEST, IsolationLevel
from kbroker_tools.verify.checker import check
from kbroker_tools.verify.clients import confluent, own
from kbroker_tools.verify.clients.face import ClientFailure, Maker, Place, Writer
from kbroker_tools.verify.final_read import read_to_ends
from kbroker_tools.verify.history import load as load_history
from kbroker_tools.verify.lines import READ_COMMITTED, READ_UNCOMMITTED, Outcome
from kbroker_tools.verify.recorder import Recorder
from kbroker_tools.verify.run import INPUT, KEEP_EVERYTHING, LIST, OUTPUT, PARTITIONS, offsets_of_group
from kbroker_tools.verify.workloads import (
    POLL_S,
    RESEEK_SHARE,
    Attempt,
    Fencer,
    ListAppender,
    Sender,
    Session,
    Setting,
    Tail,
    Transformer,
    Worker,
    claimed,
)

LONGEST_PAUSE_S = 0.4
PATIENCE_S = 120
LOOK_AGAIN_S = 0.2
DISAPPEARING_SHARE = 0.5
MOST_REREAD = 200
ONGOING = 'Ongoing'


class Paced:
    """A writer that pauses before each of its transactions and batches."""

    def __init__(self, kind: Callable[[str, Sequence[Place], str | None], Writer], stop: threading.Event,
                 chance: random.Random, servers: str, places: Sequence[Place], transactional_id: str | None):
        self._writer = kind(servers, places, transactional_id)
        self._stop = stop
        self._chance = chance
        self._is_transactional = transactional_id is not None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._writer, name)

    def begin(self) -> None:
        self._stop.wait(self._chance.uniform(0, LONGEST_PAUSE_S))
        self._writer.begin()

    def flush(self) -> None:
        if not self._is_transactional:
            self._stop.wait(self._chance.uniform(0, LONGEST_PAUSE_S))
        self._writer.flush()


class NearTail(Tail):
    """A reader that sometimes seeks back by a few records. If it could seek to any offset, it would read too much in a
    test of hours.
    """

    def work(self) -> None:
        session = Session(self._recorder, self._maker, self._isolation)
        with closing(session):
            session.seek(self._positions)
            while not self._stop.is_set():
                for partition, offsets, _ in session.poll(POLL_S):
                    self._positions[partition] = offsets[-1] + 1
                if self._rng.random() < RESEEK_SHARE:
                    self._positions = {partition: self._rng.randint(max(0, end - MOST_REREAD), end)
                                       for partition, end in self._positions.items()}
                    session.seek(self._positions)


class Lingerer(Worker):
    """A worker whose transactions stay open longer than their timeout. Their commit must fail. Sometimes the producer
    disappears without a commit.
    """

    def __init__(self, name: str, setting: Setting, rng: random.Random, makers: Sequence[Maker], topic: str,
                 servers: str):
        super().__init__(name, setting, rng)
        self._makers = makers
        self._partitions = setting.indexes(topic)
        self._servers = servers
        self.timed_out = 0

    def work(self) -> None:
        producer, writer = claimed(self._recorder, self._rng.choice(self._makers), self.name)
        with closing(writer):
            writer.begin()
            attempt = Attempt(self._recorder, producer, writer)
            try:
                attempt.send(self._rng.choice(self._partitions))
                writer.flush()
                has_timed_out = self._await_timeout()
                if self._rng.random() < DISAPPEARING_SHARE:
                    attempt.record(Outcome.UNKNOWN)
                    return
                attempt.commit()
            except (ClientFailure, KafkaError, OSError):
                attempt.fail()
                return
            assert not has_timed_out, 'a transaction was committed that had timed out'

    def _await_timeout(self) -> bool:
        """Wait until the broker has ended the transaction. Return False if the run ends earlier."""
        with Admin(self._servers) as admin:
            while not self._stop.wait(LOOK_AGAIN_S):
                found = admin.describe_transactions([self.name])[self.name]
                if isinstance(found, KafkaError):
                    raise found
                if found.state != ONGOING:
                    self.timed_out += 1
                    return True
        return False


class Transactions:
    """The topics, the workers and the history of a phase."""

    def __init__(self, load: Load, directory: Path, seed: int):
        self._load = load
        self._path = directory / f'{load.prefix}.jsonl'
        self._out = self._path.open('w', encoding='utf-8')
        self._places = [Place(load.name(name), partition)
                        for name, count in PARTITIONS.items() for partition in range(count)]
        self.recorder = Recorder(self._out, [f'{place.topic}-{place.partition}' for place in self._places],
                                 {'servers': load.servers, 'seed': seed})
        self._random = random.Random(seed)
        self._stop = load.stop_writing
        self.workers: list[Worker] = []
        self._lingerer: Lingerer | None = None

    def create(self, admin: Admin) -> None:
        found = admin.create_topics([NewTopic(self._load.name(name), count, 1, None, KEEP_EVERYTHING)
                                     for name, count in PARTITIONS.items()])
        assert not any(found.values()), found

    def _committed(self, group: str) -> Mapping[int, int]:
        found = offsets_of_group(group, self._load.servers, own.CONNECTION)
        return {self._places.index(place): offset for place, offset in found.items()}

    def start(self) -> None:
        setting = Setting(self.recorder, self._stop, self._places, self._committed)
        makers = [Maker(name, partial(Paced, writer, self._stop, self._chance()), getter, member, self._load.servers,
                        self._places)
                  for name, writer, getter, member in (
                      (own.NAME, own.OwnWriter, own.OwnGetter, own.OwnMember),
                      (confluent.NAME, confluent.ConfluentWriter, confluent.ConfluentGetter,
                       confluent.ConfluentMember))]
        listed, inputs, outputs = map(self._load.name, (LIST, INPUT, OUTPUT))
        for number, maker in enumerate(makers):
            name = self._load.name(maker.name)
            self.workers += [
                ListAppender(f'{name}-list', setting, self._chance(), maker, listed),
                Sender(f'{name}-input', setting, self._chance(), maker, inputs),
                Transformer(f'{name}-transform', setting, self._chance(), maker, (inputs, outputs),
                            self._load.name('transform'), [setting.indexes(inputs)[number]])]
        self._lingerer = Lingerer(self._load.name('lingering'), setting, self._chance(), makers, listed,
                                  self._load.servers)
        self.workers += [
            NearTail('committed', setting, self._chance(), makers[0], READ_COMMITTED),
            NearTail('uncommitted', setting, self._chance(), makers[1], READ_UNCOMMITTED),
            Fencer(self._load.name('fenced'), setting, self._chance(), makers, listed), self._lingerer]
        for worker in self.workers:
            worker.start()

    def _chance(self) -> random.Random:
        return random.Random(self._random.random())

    # ---- the end

    def check(self) -> str:
        """Read all topics to their ends, and check the history. Raise AssertionError with the anomalies."""
        with self._out:
            self._read_final()
            self.recorder.finish()
        history = load_history(self._path)
        verdict = check(history)
        found = [(kind, evidence) for kind, evidence in verdict.found]
        assert not found, found
        assert verdict.is_conclusive, verdict.idle_clients
        self._path.unlink()
        counts = ', '.join(f'{count:,} {name}' for name, count in self.recorder.counts.items() if count)
        timed_out = 0 if self._lingerer is None else self._lingerer.timed_out
        return f'transactions: {counts}, {timed_out:,} timed out'

    def _read_final(self) -> None:
        for index, (stable, high) in self._await_stable().items():
            self.recorder.stable(index, stable, high)
        for isolation in (READ_COMMITTED, READ_UNCOMMITTED):
            self._read_all(isolation)
        group = self._load.name('transform')
        committed = self._committed(group)
        self.recorder.committed(group, {index: committed.get(index, 0) for index, place in enumerate(self._places)
                                        if place.topic == self._load.name(INPUT)})

    def _read_all(self, isolation: str) -> None:
        reader = self.recorder.reader(isolation, own.NAME, is_final=True)
        ends = {index: high for index, (_, high) in self._ends().items()}
        with closing(own.OwnGetter(self._load.servers, self._places, isolation)) as getter:
            read_to_ends(self.recorder, reader, getter, ends, PATIENCE_S)

    def _await_stable(self) -> dict[int, tuple[int, int]]:
        """Wait until no transaction is open, or until a time limit. Return {partition: (last stable offset, end
        offset)}.
        """
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = self._ends()
            if all(stable == high for stable, high in found.values()) or time.monotonic() > deadline:
                return found
            time.sleep(LOOK_AGAIN_S)    # a broker sends no event when its last stable offset moves

    def _ends(self) -> dict[int, tuple[int, int]]:
        places: dict[tuple[str, int], int] = dict.fromkeys(self._places, LATEST)
        with Admin(self._load.servers) as admin:
            stable, high = admin.list_offsets(places, IsolationLevel.READ_COMMITTED), admin.list_offsets(places)
        return {index: (stable[place].offset, high[place].offset) for index, place in enumerate(self._places)}
