"""A broker under a mixed load for hours breaks no promise, and holds no more memory, files or state after the load than
before.

Clients of three libraries write, read in groups of three kinds, and end transactions in every way. Topics are created
and deleted, old segments expire, and tables are compacted. The test has three phases, each with a separate load
process:

1. The broker restarts again and again: after clean stops and after SIGKILL.
2. A warm-up, without restarts. Then the broker counts what it holds.
3. The long load, on the same process. Then the broker counts again.

A phase ends when the checks of `phase.py` have passed, all topics and groups are deleted, and all ids have expired.
Each line of the broker's log at WARNING or above must have a reason in `log_lines.py`.
"""
from __future__ import annotations

import json
import pathlib
import random
import subprocess
import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from endurance import comparison, log_lines
from endurance.phase import READY, delete_groups
from support.brokers.broker_process import ROOT
from support.brokers.counted_broker import Count, CountedBroker
from support.clients.promises import findings_in

from kbroker.base.errors import ErrorCode, KafkaError

PHASE = pathlib.Path(__file__).with_name('phase.py')
SETTINGS = {
    'group.initial.rebalance.delay.ms': '0', 'group.min.session.timeout.ms': '1000',
    'transaction.abort.timed.out.transaction.cleanup.interval.ms': '200',
    # The expiration is longer than any client repeats a batch, because the broker needs the producer's state to
    # recognise a repetition.
    'transactional.id.expiration.ms': '60000', 'transaction.remove.expired.transaction.cleanup.interval.ms': '1000',
    'producer.id.expiration.ms': '60000', 'producer.id.expiration.check.interval.ms': '1000',
    'log.retention.check.interval.ms': '1000', 'log.segment.delete.delay.ms': '1000', 'log.cleaner.backoff.ms': '1000',
    'offsets.topic.segment.bytes': '1048576', 'transaction.state.log.segment.bytes': '1048576',
    'share.coordinator.state.topic.segment.bytes': '1048576', 'offsets.topic.num.partitions': '4',
    'transaction.state.log.num.partitions': '4', 'share.coordinator.state.topic.num.partitions': '2',
    # The fetch session of a client that is gone remains until another session needs its slot. There are so few slots
    # that all of them are in use whenever the broker counts.
    'max.incremental.fetch.session.cache.slots': '16', 'metadata.log.max.record.bytes.between.snapshots': '100000'}
RESTARTS_SHARE, WARM_UP_SHARE, LONG_SHARE = 0.4, 0.15, 0.45
LIFE_S = 15, 60
"""The time between two restarts in seconds."""
LEAST_S = 900
"""The shortest duration of the test in seconds. A warm-up of less than two minutes does not fill the caches, and their
growth would look like a leak.
"""
DRAIN_S = 240
END_S = 3600
"""The time in seconds after which an ending load process counts as hanging. It includes the checks."""
LOOK_AGAIN_S = 0.5


class Mixture:
    """A broker and its load processes, one after the other."""

    def __init__(self, broker: CountedBroker, directory: pathlib.Path, seed: int):
        self._broker = broker
        self._directory = directory
        self._seed = seed
        self._random = random.Random(seed)
        self.restarts = 0

    def run(self, name: str, seconds: float, restarts: bool = False) -> None:
        """Run a phase, and wait until the broker is drained. Raise AssertionError with the output of a failed phase."""
        output = self._directory / f'{name}.out'
        arguments = [sys.executable, str(PHASE), self._broker.address, name, str(self._directory), str(self._seed),
                     'yes' if restarts else 'no']
        with output.open('w') as out, subprocess.Popen(arguments, cwd=ROOT, text=True, stdin=subprocess.PIPE,
                                                       stdout=subprocess.PIPE, stderr=out) as load:
            try:
                assert load.stdout is not None and load.stdin is not None
                if load.stdout.readline() == f'{READY}\n':
                    self._pass(load, seconds, restarts)
                report, _ = load.communicate(timeout=END_S)
            finally:
                load.kill()
        print(f'\n{name}, {seconds:.0f} s:', report, sep='\n', end='')
        assert load.returncode == 0, f'{name}: {report}{output.read_text()}'
        self._await_drained()

    def _pass(self, load: subprocess.Popen[str], seconds: float, restarts: bool) -> None:
        """Wait for `seconds`. If `restarts`, restart the broker repeatedly. Return early if the load ends."""
        end, restart_at = time.monotonic() + seconds, time.monotonic() + self._random.uniform(*LIFE_S)
        while time.monotonic() < end and load.poll() is None:
            if restarts and time.monotonic() >= restart_at:
                if self._random.random() < 0.5:
                    self._broker.kill9()
                else:
                    self._broker.stop()
                self._broker.start()
                self.restarts += 1
                restart_at = time.monotonic() + self._random.uniform(*LIFE_S)
            time.sleep(LOOK_AGAIN_S)    # the load is a matter of time

    def _await_drained(self) -> None:
        deadline = time.monotonic() + DRAIN_S
        while not comparison.is_drained(ledger := self._broker.ledger()):
            assert time.monotonic() < deadline, f'the broker still holds {ledger}'
            time.sleep(LOOK_AGAIN_S)    # ids expire with the time


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_broker_holds_no_more_after_a_long_mixed_load_than_before(tmp_path, soak_minutes, soak_seed, tally):
    """The three phases together take twice `soak_minutes`."""
    seconds = max(LEAST_S, 2 * 60 * soak_minutes)
    broker = CountedBroker(tmp_path / 'data', SETTINGS)
    broker.start()
    try:
        mixture = Mixture(broker, tmp_path, soak_seed)
        mixture.run('restarts', RESTARTS_SHARE * seconds, restarts=True)
        mixture.run('warm', WARM_UP_SHARE * seconds)
        before = broker.count()
        mixture.run('long', LONG_SHARE * seconds)
        after = broker.count()
        broker.stop()
    finally:
        broker.kill9()
    print(f'{mixture.restarts} restarts; {words(before)} before, {words(after)} after; '
          f'explained lines: {dict(log_lines.explained(broker.lines))}')
    assert log_lines.unexplained(broker.lines) == []
    assert list(comparison.growth(before, after)) == []
    assert findings_in(str(tmp_path / 'data')) == []
    tally('minutes of mixed load', round(seconds / 60))


def words(count: Count) -> str:
    return (f'{count.resident_kb:,} KiB, {count.descriptors} descriptors, {count.threads} threads, '
            f'{count.blocks:,} blocks, {sum(count.objects.values()):,} objects')


COUNT = Count(40_000, 30, 10, 150_000, {'builtins.list': 3000, 'kbroker.base.clock.Timer': 26}, {},
              dict.fromkeys((*comparison.EMPTY_AFTERWARDS, *comparison.NOT_COMPARED), 0))


@pytest.mark.parametrize('more', [
    {'resident_kb': 80_000}, {'descriptors': 60}, {'threads': 11}, {'blocks': 170_000},
    {'garbage': {'kbroker.apis.fetch.fetch.Fetch': 1}}, {'garbage': {'builtins.list': 101}},
    {'objects': {'builtins.list': 3200}}, {'objects': {'kbroker.base.clock.Timer': 160}}, {'objects': {'Waiter': 101}},
    {'ledger': COUNT.ledger | {'long work': 1}}])
def test_whatever_a_broker_holds_more_is_found(more):
    assert len(list(comparison.growth(COUNT, replace(COUNT, **more)))) == 1


def test_a_little_more_is_no_growth():
    assert list(comparison.growth(COUNT, COUNT)) == []
    assert list(comparison.growth(COUNT, replace(
        COUNT, resident_kb=41_000, descriptors=37, garbage={'datetime.date': 2},
        objects={'builtins.list': 3010, 'kbroker.base.clock.Timer': 28},
        ledger=COUNT.ledger | {'open files': 5}))) == []


class GhostAdmin:
    """An admin whose first attempt to delete a group fails, because a member that has disappeared still counts as a
    member.
    """

    def __init__(self) -> None:
        self.answers: list[KafkaError | None] = [KafkaError(ErrorCode.NON_EMPTY_GROUP, ''), None]

    def list_groups(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(group_id='g')] if self.answers else []

    def delete_groups(self, group_ids: list[str]) -> dict[str, KafkaError | None]:
        return {group_id: self.answers.pop(0) for group_id in group_ids}


def test_groups_are_deleted_once_the_members_that_a_restart_cut_off_are_gone():
    admin = GhostAdmin()
    delete_groups(admin, 60)    # type: ignore[arg-type]
    assert not admin.answers


def test_a_member_that_stays_without_a_restart_is_found():
    with pytest.raises(AssertionError, match='groups cannot be deleted'):
        delete_groups(GhostAdmin(), 0)    # type: ignore[arg-type]


@pytest.mark.parametrize(('line', 'is_explained'), [
    ({'level': 'info', 'message': 'anything'}, True),
    ({'level': 'warning', 'message': 'the loop was held for 108 ms: the whole tick'}, True),
    ({'level': 'warning', 'message': 'something else'}, False),
    ({'level': 'warning', 'message': 'the loop was held for 108 ms: the tick', 'traceback': 'Traceback'}, False),
    ({'level': 'error', 'message': 'retention failed'}, False), ([], False), ('Fatal Python error', False)])
def test_a_line_without_a_reason_is_found(line, is_explained):
    text = line if isinstance(line, str) else json.dumps(line)
    assert (log_lines.unexplained([text]) == []) == is_explained
