"""A run. It creates the topics, starts the workers and the nemesis, reads the final logs, and records everything in a
history."""
from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from kbroker.base.errors import ErrorCode
from kbroker.base.topic_partition import TopicPartition
from kbroker.client import Admin, KafkaError
from kbroker.client.admin import LATEST, IsolationLevel, NewTopic
from kbroker.client.cluster import Cluster
from kbroker.client.config import ClientConfig
from kbroker.protocol.api_keys import ApiKey
from kbroker_tools.proxy.relay import Proxy
from kbroker_tools.verify.broker_command import BrokerCommand, BrokerCommandError
from kbroker_tools.verify.clients import java, own
from kbroker_tools.verify.clients.face import ClientFailure, Maker, Membership, Place
from kbroker_tools.verify.final_read import read_to_ends
from kbroker_tools.verify.lines import READ_COMMITTED, READ_UNCOMMITTED
from kbroker_tools.verify.nemesis import LONGEST_CLOCK_JUMP_S, Nemesis
from kbroker_tools.verify.recorder import Recorder
from kbroker_tools.verify.sharing import DELIVERY_LIMIT, MEMBERS, ShareGroup, Sharer, drain, prepare
from kbroker_tools.verify.workloads import (
    Fencer,
    ListAppender,
    MovingTransformer,
    Sender,
    Setting,
    Tail,
    Transformer,
    Worker,
)

LIST, INPUT, OUTPUT = 'list', 'input', 'output'
PARTITIONS = {LIST: 4, INPUT: 2, OUTPUT: 2}
"""The least number of partitions of each topic. Each client transforms one partition of the input topic."""
WORKLOADS = ('list', 'transform', 'rebalance', 'share', 'fence')
TRANSFORMS = {'transform', 'rebalance'}
"""The workloads that read the input topic."""
PROTOCOLS = ('classic', 'consumer')
LEAST_MEMBERS = 2
CLIENTS = ('kbroker', 'confluent', 'java')
KEEP_EVERYTHING = {'cleanup.policy': 'delete', 'retention.ms': '-1', 'retention.bytes': '-1'}
FINISH_S = 300
"""The number of seconds that the end of the run waits for the last calls of the clients and for the restart of the
broker."""
PATIENCE_S = 60
LOOK_AGAIN_S = 0.2
PROGRESS_S = 1


@dataclass(frozen=True)
class Plan:
    """The plan of a run: its workloads, its faults and its duration."""

    servers: str
    seconds: float
    nemesis: tuple[str, ...] = ()
    workloads: tuple[str, ...] | None = None
    """The workloads of the run. None means all workloads that the broker can serve."""
    clients: tuple[str, ...] = CLIENTS[:2]
    java_classpath: str | None = None
    """The class path with the jars of Kafka's clients, if Java is one of the clients."""
    protocols: tuple[str, ...] | None = None
    """The group protocols of the workload in which members join and leave. None means all protocols that the broker
    serves."""
    pause_s: tuple[float, float] = (0.5, 4)
    seed: int = 0
    workers: int = 2
    """The number of list appenders for each client."""
    patience_s: float = PATIENCE_S
    """The most seconds that the run waits for each of these: a client of which no record was acknowledged, a
    transaction that does not end, and a reader that receives nothing."""


@dataclass
class RunResult:
    """The result of a run. `problems` has faults of the run itself, such as a broker that ended although the run did
    not stop it. If there is a problem, the history has no line `finish`."""

    problems: list[str] = field(default_factory=list)


Progress = Callable[[float, Mapping[str, int]], None]
"""A function that is called about once a second. The arguments are the seconds since the start, and the counts of the
recorder."""


def clients_available(wanted: Collection[str], java_classpath: str | None = None) -> tuple[str, ...]:
    """Return the wanted clients that are installed. Raise ImportError if a client is installed but cannot be
    imported."""
    is_installed = {'kbroker': True, 'confluent': 'confluent' in wanted and _has_confluent(),
                    'java': java_classpath is not None}
    return tuple(name for name in CLIENTS if name in wanted and is_installed[name])


def _has_confluent() -> bool:
    if find_spec('confluent_kafka') is None:
        return False
    from kbroker_tools.verify.clients import confluent  # noqa: F401
    return True


class Served(NamedTuple):
    """The features of a broker that not every broker has."""

    protocols: tuple[str, ...]
    """The group protocols that the broker serves."""
    has_share_groups: bool


def served_by(servers: str) -> Served:
    """Ask a broker for its features, and return them. Raise KafkaError or ClientError if the broker fails."""
    with closing(Cluster(ClientConfig.from_settings(own.CONNECTION | {'bootstrap.servers': servers}))) as cluster:
        broker = cluster.retrying(cluster.any, 'ApiVersions')
        has_consumer_groups = ApiKey.CONSUMER_GROUP_HEARTBEAT in broker.api_versions
        has_share_groups = broker.finalized_features.get('share.version', 0) > 0
        return Served(PROTOCOLS if has_consumer_groups else PROTOCOLS[:1], has_share_groups)


def offsets_of_group(group: str, servers: str, settings: Mapping[str, str]) -> dict[Place, int]:
    """Return the committed offsets of a group, when no transaction holds them any more. Raise KafkaError or OSError if
    they cannot be read."""
    with Admin(servers, settings) as admin:
        try:
            found = admin.list_group_offsets(group, require_stable=True)
        except KafkaError as error:
            if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            return {}       # some brokers return this error until a group has committed
    return {Place(*place): row.offset for place, row in found.items()}


class Run:
    """One run against a broker that is already running.

    The constructor raises KafkaError or OSError if the broker does not report its features or if the topics cannot be
    created. It raises JavaEnded or OSError if Java does not start.
    """

    def __init__(self, plan: Plan, history: Path, broker: BrokerCommand | None = None, clock_file: Path | None = None,
                 progress: Progress = lambda seconds, counts: None):
        self._plan = plan
        self._history = history
        self._broker = broker
        self._clock_file = clock_file
        self._progress = progress
        self._rng = random.Random(plan.seed)
        self._prefix = f'kbroker-verify-{time.time_ns() // 1_000_000:x}'
        self._workloads = plan.workloads or WORKLOADS
        self._protocols: tuple[str, ...] = ()
        self._share_group = ShareGroup(f'{self._prefix}-share', f'{self._prefix}-{LIST}')
        self._delivery_limit = DELIVERY_LIMIT
        self._partitions = PARTITIONS | {INPUT: max(PARTITIONS[INPUT], len(plan.clients))}
        self._places = [Place(f'{self._prefix}-{name}', partition)
                        for name, count in self._partitions.items() for partition in range(count)]
        self.writers: set[str] = set()
        """The names of the clients that write. The run waits until a record of each client was acknowledged."""
        self.problems: list[str] = []
        """The faults of the run. If there is one, the history has no line `finish`."""

    def run(self) -> RunResult:
        """Execute the plan. When this method returns, all threads and processes that it has started have ended."""
        self._create_topics()
        self._choose_workloads()
        host, _, port = self._plan.servers.split(',')[0].rpartition(':')
        with ExitStack() as stack:
            out = stack.enter_context(self._history.open('w', encoding='utf-8'))
            recorder = Recorder(out, [f'{place.topic.removeprefix(self._prefix)[1:]}-{place.partition}'
                                      for place in self._places], self._description())
            proxy = Proxy([(host.strip('[]'), int(port))], random.Random(self._rng.random()))
            stack.callback(proxy.close)
            stop = threading.Event()
            setting = Setting(recorder, stop, self._places, self._reader_of_offsets(proxy.address, own.CONNECTION))
            workers = self._workers(setting, self._makers(stack, proxy.address), proxy.address)
            if self.work(workers, stop, recorder, proxy):
                self.read_to_the_end(recorder)
            if proxy.problem is not None:
                self.problems.append(f'the proxy failed: {proxy.problem!r}')
            if not self.problems:
                recorder.finish()
        return RunResult(self.problems)

    def _description(self) -> dict[str, object]:
        plan = self._plan
        return {'servers': plan.servers, 'seconds': plan.seconds, 'seed': plan.seed, 'prefix': self._prefix,
                'nemesis': list(plan.nemesis), 'workloads': list(self._workloads), 'protocols': list(self._protocols),
                'clients': list(plan.clients),
                'started': round(time.time() * 1000)}

    # ---- before

    def _choose_workloads(self) -> None:
        """Remove workloads that the broker cannot serve. A workload that the plan names is not removed."""
        served = served_by(self._plan.servers)
        if self._plan.workloads is None and not served.has_share_groups:
            self._workloads = tuple(name for name in WORKLOADS if name != 'share')
        if 'rebalance' in self._workloads:
            self._protocols = self._plan.protocols or served.protocols
        if 'share' in self._workloads:
            self._delivery_limit = prepare(self._share_group.name, self._plan.servers)

    def _create_topics(self) -> None:
        topics = [NewTopic(f'{self._prefix}-{name}', count, 1, None, KEEP_EVERYTHING)
                  for name, count in self._partitions.items()]
        with Admin(self._plan.servers) as admin:
            for error in admin.create_topics(topics).values():
                if error is not None:
                    raise error

    def _reader_of_offsets(self, servers: str,
                           settings: Mapping[str, str]) -> Callable[[str], Mapping[int, int]]:
        indexes = {place: index for index, place in enumerate(self._places)}

        def committed_offsets(group: str) -> Mapping[int, int]:
            return {indexes[place]: offset for place, offset in offsets_of_group(group, servers, settings).items()}

        return committed_offsets

    def _makers(self, stack: ExitStack, servers: str) -> list[Maker]:
        makers: list[Maker] = []
        if 'kbroker' in self._plan.clients:
            makers.append(Maker(own.NAME, own.OwnWriter, own.OwnGetter, own.OwnMember, servers, self._places))
        if 'confluent' in self._plan.clients:
            from kbroker_tools.verify.clients import confluent
            makers.append(Maker(confluent.NAME, confluent.ConfluentWriter, confluent.ConfluentGetter,
                                confluent.ConfluentMember, servers, self._places))
        if self._plan.java_classpath is not None and 'java' in self._plan.clients:
            machine = java.Machine(self._plan.java_classpath)
            stack.callback(machine.close)
            makers.append(Maker(java.NAME, partial(java.JavaWriter, machine), partial(java.JavaGetter, machine),
                                partial(java.JavaMember, machine), servers, self._places))
        return makers

    def _workers(self, setting: Setting, makers: Sequence[Maker], servers: str) -> list[Worker]:
        self.writers = {maker.name for maker in makers}
        list_topic, input_topic, output_topic = (f'{self._prefix}-{name}' for name in (LIST, INPUT, OUTPUT))
        workers: list[Worker] = []

        def rng() -> random.Random:
            return random.Random(self._rng.random())

        for maker in makers:
            if 'list' in self._workloads:
                workers += [ListAppender(f'{self._prefix}-{maker.name}-{number}', setting, rng(), maker, list_topic)
                            for number in range(self._plan.workers)]
            workers += [Tail(f'{maker.name} {isolation}', setting, rng(), maker, isolation)
                        for isolation in (READ_COMMITTED, READ_UNCOMMITTED)]
        if TRANSFORMS & set(self._workloads):
            workers += [Sender(f'{maker.name} input', setting, rng(), maker, input_topic) for maker in makers]
        if 'transform' in self._workloads:
            group = f'{self._prefix}-transform'
            workers += [Transformer(f'{group}-{partition}', setting, rng(), makers[index % len(makers)], group,
                                    output_topic, [partition])
                        for index, partition in enumerate(setting.indexes(input_topic))]
        for group, protocol in self._moving_groups().items():
            workers += [MovingTransformer(f'{group}-{number}', setting, rng(), makers[number % len(makers)],
                                          Membership(group, protocol, input_topic), output_topic)
                        for number in range(max(len(makers), LEAST_MEMBERS))]
        if 'share' in self._workloads:
            workers += [Sharer(f'{self._share_group.name} {number}', setting, rng(), servers, self._share_group)
                        for number in range(MEMBERS)]
        if 'fence' in self._workloads:
            workers.append(Fencer(f'{self._prefix}-fenced', setting, rng(), makers, list_topic))
        return workers

    def _moving_groups(self) -> dict[str, str]:
        """Return {group: protocol} for the groups whose members join and leave during the run."""
        return {f'{self._prefix}-{protocol}': protocol for protocol in self._protocols}

    def _groups(self) -> list[str]:
        fixed = [f'{self._prefix}-transform'] if 'transform' in self._workloads else []
        return [*fixed, *self._moving_groups()]

    # ---- the work

    def work(self, workers: Sequence[Worker], stop: threading.Event, recorder: Recorder, proxy: Proxy) -> bool:
        """Run the workers until the planned time has passed and a record of each client was acknowledged.

        Return False if a worker or the nemesis has not stopped. The logs may then still change, so a read would not be
        final.
        """
        nemesis = Nemesis(self._plan.nemesis, recorder, random.Random(self._rng.random()), proxy, self._broker,
                          self._clock_file)
        failures: list[BaseException] = []

        def disturb() -> None:
            try:
                nemesis.run(stop, self._plan.pause_s)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=disturb, name='nemesis', daemon=True)
        begin = time.monotonic()
        try:
            for worker in workers:
                worker.start()
            thread.start()
            while (left := self._seconds_left(time.monotonic() - begin, recorder)) > 0 and not failures:
                stop.wait(min(PROGRESS_S, left))
                self._progress(min(time.monotonic() - begin, self._plan.seconds), recorder.counts)
        finally:
            stop.set()
            deadline = time.monotonic() + FINISH_S
            if thread.ident is not None:
                thread.join(FINISH_S)
        self.problems += [f'the nemesis failed: {error}' for error in failures]
        ended = [worker for worker in workers if worker.join(max(0, deadline - time.monotonic()))]
        self.problems += [f'the worker {worker.name!r} did not stop within {FINISH_S} s' for worker in workers
                          if worker not in ended]
        self.problems += [f'the worker {worker.name!r} failed: {worker.error!r}' for worker in ended
                          if worker.error is not None]
        if thread.is_alive():
            self.problems.append(f'the last fault did not end within {FINISH_S} s')
        return len(ended) == len(workers) and not thread.is_alive()

    def _seconds_left(self, spent: float, recorder: Recorder) -> float:
        """Return the number of seconds to wait. After the planned time, it is positive as long as a client has no
        acknowledged record."""
        left = self._plan.seconds - spent
        if left > 0 or self.writers <= recorder.active_clients:
            return left
        return min(LOOK_AGAIN_S, left + self._plan.patience_s)

    # ---- after

    def read_to_the_end(self, recorder: Recorder) -> None:
        """Record the final logs. If the broker cannot be read, record a problem of the run."""
        try:
            if self._broker is not None:
                self._broker.check()
            self._read_final(recorder)
        except (BrokerCommandError, KafkaError, OSError) as error:
            self.problems.append(f'the final reads failed: {error}')

    def _read_final(self, recorder: Recorder) -> None:
        stable = self._await_stable()
        for index, (last_stable, high) in stable.items():
            recorder.stable(index, last_stable, high)
        visible = self._read_all(recorder, READ_COMMITTED, {index: end for index, (end, _) in stable.items()})
        self._read_all(recorder, READ_UNCOMMITTED, {index: high for index, (_, high) in stable.items()})
        for group in self._groups():
            self._record_offsets(recorder, group)
        if 'share' in self._workloads:
            shared = {index: count for index, count in visible.items()
                      if self._places[index].topic == self._share_group.topic}
            starts = drain(recorder, self._plan.servers, self._places, self._share_group, shared, self._plan.patience_s)
            recorder.shared(self._share_group.name, self._delivery_limit, starts)

    def _record_offsets(self, recorder: Recorder, group: str) -> None:
        """Record the committed offsets of a group of transforms. If a transaction holds them until the patience of the
        run ends, record this instead.

        The client repeats its request with pauses.
        """
        settings = {'default.api.timeout.ms': str(round(self._plan.patience_s * 1000))}
        try:
            committed = self._reader_of_offsets(self._plan.servers, settings)(group)
        except KafkaError as error:
            if error.code is not ErrorCode.UNSTABLE_OFFSET_COMMIT:
                raise
            recorder.unstable(group)
        else:
            recorder.committed(group, {index: committed.get(index, 0) for index, place
                                             in enumerate(self._places) if place.topic.endswith(INPUT)})

    def _await_stable(self) -> dict[int, tuple[int, int]]:
        """Wait until the last stable offset and the high watermark of each partition are equal, or until the patience
        of the run ends. Return {partition: (last stable offset, high watermark)}."""
        places: dict[TopicPartition, int] = dict.fromkeys(self._places, LATEST)
        deadline = time.monotonic() + self._plan.patience_s
        if 'clock' in self._plan.nemesis:   # a clock jump can delay the timeout of a transaction by its length
            deadline += LONGEST_CLOCK_JUMP_S
        with Admin(self._plan.servers) as admin:
            while True:
                committed = admin.list_offsets(places, IsolationLevel.READ_COMMITTED)
                high = admin.list_offsets(places)
                found = {index: (committed[place].offset, high[place].offset)
                         for index, place in enumerate(self._places)}
                if all(stable == end for stable, end in found.values()) or time.monotonic() > deadline:
                    return found
                time.sleep(LOOK_AGAIN_S)    # a broker sends no event when its last stable offset moves

    def _read_all(self, recorder: Recorder, isolation: str, ends: Mapping[int, int]) -> Mapping[int, int]:
        """Read each partition from its start to its end. Return {partition: number of records}."""
        reader = recorder.reader(isolation, own.NAME, is_final=True)
        try:
            with closing(own.OwnGetter(self._plan.servers, self._places, isolation)) as getter:
                return read_to_ends(recorder, reader, getter, ends, self._plan.patience_s)
        except ClientFailure as error:
            self.problems.append(f'the final read failed: {error}')
            return {}
