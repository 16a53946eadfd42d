"""A broker under attack, a good client that uses the broker during the attack, and the limits that both must keep.

    def test_an_attack(besieged):
        broker = besieged({'max.connections': '100'})       # a process; settings are optional
        with broker.watched(rss_mb=150):
            with broker.connect() as attacker:              # a RawClient
                attacker.ask(MetadataRequest(topics=[]), 12)

`watched` starts a good client in a separate process. The block is the attack. When it ends, `watched` checks that:

- the broker's longest turn took at most TURN_LIMIT_MS, its longest tick at most WORST_LIMIT_MS of processor time
- 99 of 100 operations of the good client took at most P99_LIMIT_MS of adjusted time, and none took more than
  WORST_LIMIT_MS: `good_client.py` describes this time, which excludes delays by other programs
- all records came back, and the broker logged no traceback
- the broker left no objects that only the garbage collector could free
- the broker's resident memory was never above `rss_mb`

The limits are times on the reference processor of `support/runner/attempts`. During the attack, the good client
measures how much slower the present processor is, and the limits grow accordingly. An attack that exceeds a time limit
runs again on a fresh broker, up to three times in all. It passes if one run keeps the limits: a long turn that the
attack causes would occur in each run.

An attack that the broker cannot withstand yet is marked as `xfail(strict=True)` with the reason. A long form of an
attack is marked as `soak`. `-s` prints the measurements, with the wall time.

With `--measure-attacks FILE`, each attack first measures a good client without the attack, and appends a line to FILE.
`attack_measurements.py` makes a table of it.
"""
from __future__ import annotations

import collections
import contextlib
import itertools
import json
import os
import pathlib
import queue
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from hostile.attack_measurements import Measurement
from support.brokers.broker_process import PROMPT, ROOT, BrokerProcess
from support.clients.raw_client import RawClient
from support.messages.message_builder import build
from support.runner.attempts import TooSlow, slowness

from kbroker.daemon.status import read_status
from kbroker.protocol.messages import FindCoordinatorRequest

TURN_LIMIT_MS = 10
P99_LIMIT_MS = 10
WORST_LIMIT_MS = 50
ANSWER_LIMIT_S = 100

MEASURED = {'kbroker.measure.turns': 'true', 'kbroker.durability': 'page-cache'}
GOOD_CLIENT = pathlib.Path(__file__).with_name('good_client.py')


class Operations(NamedTuple):
    """The p99 and the maximum of the good client's operation times, in ms: both as adjusted time and as wall time."""

    count: int
    p99_ms: float
    worst_ms: float
    wall_p99_ms: float
    wall_worst_ms: float
    slowness: float

    @classmethod
    def of(cls, found: list[tuple[int, int]], factor: float) -> Operations:
        wall = sorted(wall_us / 1000 for wall_us, _ in found)
        adjusted = sorted(adjusted_us / 1000 for _, adjusted_us in found)
        place = len(found) * 99 // 100
        return cls(len(found), adjusted[place], adjusted[-1], wall[place], wall[-1], factor)


REPLACED_CLASS = collections.Counter({'builtins.type': 1, 'builtins.getset_descriptor': 2, 'builtins.dict': 1,
                                      'builtins.tuple': 1})


class BesiegedBroker(BrokerProcess):
    """A broker process that measures the turns of its loop."""

    def __init__(self, directory: pathlib.Path, settings: Mapping[str, str],
                 report: Callable[[Measurement], object] | None = None):
        """If `report` is given, measure the good client before each attack, and call `report` with the measurement of
        each attack."""
        super().__init__(directory, PROMPT | MEASURED | settings)
        self._report = report
        self._turns: queue.Queue[dict[str, Any]] = queue.Queue()
        self._garbage: queue.Queue[dict[str, int]] = queue.Queue()
        self._long_turns: list[str] = []
        self._garbage_of_start: collections.Counter[str] = collections.Counter()

    def start(self) -> None:
        super().start()
        self._garbage_of_start += self.garbage()    # some of it comes again: classes that `dataclass` replaced

    def is_ready_line(self, line: str) -> bool:
        entry: dict[str, Any] = self._entry(line)
        if entry.get('event') == 'turns':
            self._turns.put(entry)
        elif entry.get('event') == 'garbage':
            self._garbage.put(entry['types'])
        elif entry.get('event') == 'long-turn':
            self._long_turns.append(entry['message'])
        return super().is_ready_line(line)

    def connect(self) -> RawClient:
        host, _, port = self.address.rpartition(':')
        return RawClient(host, int(port))

    def turns(self) -> dict[str, Any]:
        """Return the broker's measurements of its turns since the last call."""
        os.kill(self.pid, signal.SIGUSR1)
        return self._turns.get(timeout=ANSWER_LIMIT_S)

    def garbage(self) -> collections.Counter[str]:
        """Let the broker run the garbage collector. Count by type the freed objects that were created since the start.
        The count omits classes that `dataclass` replaced while a module was imported after the start.
        """
        os.kill(self.pid, signal.SIGUSR2)
        found = collections.Counter(self._garbage.get(timeout=ANSWER_LIMIT_S)) - self._garbage_of_start
        for _ in range(found['builtins.type']):
            found -= REPLACED_CLASS
        return found

    def resident_mb(self, name: str = 'VmRSS') -> float:
        status = pathlib.Path(f'/proc/{self.pid}/status').read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(name)) / 1024

    def find_coordinator(self, key_type: int = 0, key: str = 'crowd') -> None:
        """Send FindCoordinator until the internal topic that the coordinator needs exists."""
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        with self.connect() as client:
            while client.ask(request, 6).coordinators[0].error_code:
                pass

    def held(self, what: str) -> int:
        """Return the present amount in the line `what` of the broker's ledger of structures."""
        ledger = read_status(str(self.directory))['ledger']
        found: int = next(line['now'] for line in ledger if line['what'] == what)
        return found

    def forget_peak(self) -> None:
        """Reset the broker's VmHWM, the peak of its resident memory, to the memory that is resident now."""
        pathlib.Path(f'/proc/{self.pid}/clear_refs').write_text('5')

    @contextlib.contextmanager
    def watched(self, rss_mb: float, *, turn_limit_ms: float = TURN_LIMIT_MS,
                worst_limit_ms: float = WORST_LIMIT_MS) -> Iterator[None]:
        """Run the block, which is the attack, while the good client works. Then check that broker and client kept the
        limits."""
        quiet = self._quiet_phase() if self._report is not None else None
        with self._good_client() as client:
            try:
                assert client.stdout is not None and client.stdout.readline() == 'ready\n'
                self.turns()
                self._long_turns.clear()
                self.forget_peak()
                before_mb = self.resident_mb()
                yield
                operations = self._end_of(client)
            finally:
                client.kill()
        if self._report is not None and quiet is not None:
            self._report(Measurement(before_mb, self.resident_mb('VmHWM'), quiet.wall_p99_ms, operations.wall_p99_ms))
        self._judge(operations, rss_mb, turn_limit_ms, worst_limit_ms)

    def _good_client(self) -> subprocess.Popen[str]:
        host, _, port = self.address.rpartition(':')
        return subprocess.Popen([sys.executable, str(GOOD_CLIENT), host, port, str(self.pid)], cwd=ROOT, text=True,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def _quiet_phase(self) -> Operations:
        with self._good_client() as client:
            return self._end_of(client)

    @staticmethod
    def _end_of(client: subprocess.Popen[str]) -> Operations:
        output = client.communicate(timeout=ANSWER_LIMIT_S)[0]
        assert client.returncode == 0, 'the good client failed, see its traceback'
        found = json.loads(output.splitlines()[-1])
        return Operations.of(found['operations'], slowness(found['references_s']))

    def _judge(self, operations: Operations, rss_mb: float, turn_limit_ms: float, worst_limit_ms: float) -> None:
        turns, peak_mb = self.turns(), self.resident_mb('VmHWM')
        print(f'\n  good client: {operations.count} operations, p99 {operations.p99_ms:.1f} ms, worst '
              f'{operations.worst_ms:.1f} ms (wall: {operations.wall_p99_ms:.1f} and {operations.wall_worst_ms:.1f} ms)'
              f'\n  broker: {turns["turns"]} turns, the longest {turns["longest_turn_us"] / 1000:.1f} ms '
              f'({turns["longest_turn"]}), the longest tick {turns["longest_tick_us"] / 1000:.1f} ms, '
              f'memory {peak_mb:.0f} MB\n  the processor is {operations.slowness:.2f} times slower than the reference')
        assert peak_mb <= rss_mb
        for what, taken_ms, limit_ms in (
                (f'the longest turn, {turns["longest_turn"]}', turns['longest_turn_us'] / 1000, turn_limit_ms),
                ('the longest tick', turns['longest_tick_us'] / 1000, WORST_LIMIT_MS),
                ('99 of 100 operations of the good client', operations.p99_ms, P99_LIMIT_MS),
                ('its worst operation', operations.worst_ms, worst_limit_ms)):
            if taken_ms > limit_ms * operations.slowness:
                raise TooSlow(f'{what}: {taken_ms:.1f} ms, expected at most {limit_ms:g} ms, times '
                              f'{operations.slowness:.2f} for this processor; long turns: {self._long_turns[:20]}')


@contextlib.contextmanager
def many_connections(broker: BesiegedBroker, count: int,
                     connect: Callable[[], RawClient] | None = None) -> Iterator[list[RawClient]]:
    """Open many connections to the broker; close them at the end of the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count + 100:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 100), hard))
    with contextlib.ExitStack() as opened:
        yield [opened.enter_context((connect or broker.connect)()) for _ in range(count)]


def replies_to(client: RawClient, frames: Iterable[bytes], at_once: int = 64) -> Iterator[bytes]:
    """Send the frames in groups of `at_once`, and yield the reply to each frame."""
    left = iter(frames)
    while burst := list(itertools.islice(left, at_once)):
        client.socket.sendall(b''.join(len(frame).to_bytes(4, 'big') + frame for frame in burst))
        for _ in burst:
            yield client.receive()


def create(client: RawClient, name: str, partitions: int, **configs: str) -> None:
    """Create a topic. The names of configs have underscores instead of dots."""
    topic = {'name': name, 'num_partitions': partitions, 'replication_factor': 1, 'configs': [
        {'name': key.replace('_', '.'), 'value': value} for key, value in configs.items()]}
    answer = client.ask(build('CreateTopicsRequest', timeout_ms=60_000, topics=[topic]), 7)
    assert answer.topics[0].error_code == 0


def produce_request(name: str, batches: Iterable[tuple[int, bytes]], acks: int = -1) -> Any:
    """Return a Produce request to a topic. `batches` are pairs of (partition, batch)."""
    partitions = [{'index': index, 'records': batch} for index, batch in batches]
    return build('ProduceRequest', acks=acks, timeout_ms=30_000, topic_data=[
        {'name': name, 'partition_data': partitions}])


def produce(client: RawClient, name: str, batches: Iterable[tuple[int, bytes]]) -> list[Any]:
    """Produce to a topic pairs of (partition, batch). Return the answers for the partitions."""
    found: list[Any] = client.ask(produce_request(name, batches), 9).responses[0].partition_responses
    return found


def fetch_request(name: str, partitions: int, most_bytes: int, session_epoch: int) -> Any:
    """Return a Fetch from offset 0 of the first `partitions` partitions of a topic, which the broker answers without a
    wait."""
    wanted = [{'partition': index, 'fetch_offset': 0, 'partition_max_bytes': most_bytes} for index in range(partitions)]
    return build('FetchRequest', max_wait_ms=0, min_bytes=1, max_bytes=most_bytes, session_epoch=session_epoch,
                 topics=[{'topic': name, 'partitions': wanted}])
