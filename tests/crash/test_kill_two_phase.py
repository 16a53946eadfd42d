"""A broker is killed around every row and marker of transactions in two-phase commit (KIP-939).

An application writes a transaction, prepares it, and stores its token. The application restarts twice and keeps the
transaction. Then an external system decides, and the application commits or aborts accordingly. The broker kills itself
at one of the writes for the transaction. After a restart, a producer of `kbroker.client` completes the prepared
transaction with the stored token.

Covers promises 2, 4 and 5 of docs/design.md.
"""
from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from support.brokers.broker_process import PROMPT
from support.brokers.killing_broker import (
    COMPLETE,
    EMPTY,
    KEPT,
    MARKER,
    ONGOING,
    PREPARE,
    RECORDS,
    KillingBroker,
    Point,
)
from support.clients.promises import findings_in
from support.clients.raw_client import RawClient
from support.clients.two_phase_application import LIMIT_S, OFFSET, TOPIC, TwoPhaseApplication, find_coordinators

from kbroker.client import Admin, Consumer, Producer
from kbroker.client.admin import IsolationLevel, NewTopic
from kbroker.record.batch import iter_batches
from kbroker.record.control import read_end_txn_marker

NEVER_MS = 2147483647
ORDERS = ((TOPIC, 0), (TOPIC, 1))
STATE, OFFSETS, FIRST, SECOND = '__transaction_state-0', '__consumer_offsets-0', 'orders-0', 'orders-1'
SETTINGS = {**PROMPT, 'offsets.topic.num.partitions': '1', 'transaction.state.log.num.partitions': '1',
            'transaction.two.phase.commit.enable': 'true'}
TIMELY = {'request_timeout_ms': 5000, 'retry_backoff_ms': 20}

WRITING = ((STATE, EMPTY, 1), (STATE, ONGOING, 1), (FIRST, RECORDS, 1), (STATE, ONGOING, 2), (SECOND, RECORDS, 1),
           (STATE, ONGOING, 3), (OFFSETS, RECORDS, 1))
KEEPING = ((STATE, KEPT, 1), (STATE, KEPT, 2))
DECIDING = ((STATE, PREPARE, 1),)
ENDING = ((FIRST, MARKER, 1), (SECOND, MARKER, 1), (OFFSETS, MARKER, 1), (STATE, COMPLETE, 1))
EVERYTHING = [Point(*place, moment) for place in (*WRITING, *KEEPING, *DECIDING, *ENDING)
              for moment in ('before', 'torn', 'after')]
SAMPLE = [Point(STATE, KEPT, 1, 'after'), Point(STATE, PREPARE, 1, 'torn'), Point(STATE, PREPARE, 1, 'after'),
          Point(SECOND, MARKER, 1, 'before'), Point(STATE, COMPLETE, 1, 'before')]


def place_of(point: Point) -> tuple[str, str, int]:
    return point.partition, point.kind, point.number


def leaves_open(point: Point) -> bool:
    """Return whether the transaction is undecided when the broker starts after the kill."""
    return place_of(point) in WRITING + KEEPING or (place_of(point) in DECIDING and point.moment != 'after')


TWICE = [(first, second)
         for first in EVERYTHING if place_of(first) not in WRITING and first.moment != 'torn'
         and (place_of(first), first.moment) != (ENDING[-1], 'after')
         for place in ([KEEPING[0], *DECIDING, *ENDING] if leaves_open(first) else ENDING)
         for second in (Point(*place, 'before'), Point(*place, 'after'))]
"""Pairs of kills: the second one hits while the broker or the application recovers from the first one."""


@dataclass
class Story(TwoPhaseApplication):
    """A two-phase application, and the points at which its broker is killed."""

    points: tuple[Point, ...] = ()

    @property
    def most_markers(self) -> int:
        """The largest number of markers that a partition may have for the transaction. If a kill hits between a marker
        and the Complete row, the restarted broker writes the markers a second time.
        """
        return 1 + sum(place_of(point) in ENDING for point in self.points)


class Place:
    """A broker, and the stories during which it was killed."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.broker = KillingBroker(directory, SETTINGS)
        self.stories: list[Story] = []

    def run(self, rounds: Iterable[tuple[Point, ...]]) -> None:
        """Run a story for each round, and check how the next broker recovers from it. Then check all stories together.
        """
        self.stories = [Story(f'tx-{number} {" and ".join(map(str, points))}', number % 2 == 0, len(KEEPING),
                              points=points)
                        for number, points in enumerate(rounds)]
        self.start(self.stories[0])
        self.make_topics()
        for story, following in zip_longest(self.stories, self.stories[1:]):
            self.kill(story)
            self.start(following)
            self.check_recovery(story)
        self.check_visible()
        self.broker.stop()
        self.check_files()

    def start(self, story: Story | None) -> None:
        """Start a broker that will kill itself at a point of `story`. With None, start an unmodified broker."""
        self.arm(story, 0)
        self.broker.start()

    def arm(self, story: Story | None, number: int) -> None:
        self.broker.point = None if story is None else story.points[number]
        self.broker.transactional_id = '' if story is None else story.name
        self.broker.counts_at_once = number > 0

    def kill(self, story: Story) -> None:
        """Run the story up to its kill. If the story has a second point, kill the broker again while it recovers."""
        with self.connected() as client, suppress(ConnectionError):
            story.run(client)
        self.broker.wait_killed()
        for number in range(1, len(story.points)):
            self.arm(story, number)
            if not leaves_open(story.points[0]):
                self.broker.start_until_killed()
                continue
            self.broker.start()
            with self.connected() as client, suppress(ConnectionError):
                story.recover(client)
            self.broker.wait_killed()

    def make_topics(self) -> None:
        with Admin(self.broker.address, **TIMELY) as admin:
            assert admin.create_topics([NewTopic(TOPIC, 2, 1)]) == {TOPIC: None}
        with self.connected() as client:
            find_coordinators(client)

    def connected(self) -> RawClient:
        return RawClient.at(self.broker.address, LIMIT_S)

    def check_recovery(self, story: Story) -> None:
        with Admin(self.broker.address, **TIMELY) as admin:
            if story.token is not None and all(map(leaves_open, story.points)):
                self.check_prepared(story, admin)
            with Producer(self.broker.address, transactional_id=story.name, two_phase_commit=True, linger_ms=0,
                          **TIMELY) as heir:
                found = heir.prepared
                assert found is None or str(found) == (story.token or f'{story.producer[0]}:{story.producer[1]}')
                if story.token is not None:
                    assert (found is not None) == all(map(leaves_open, story.points)), story
                assert heir.complete(story.decided) == (found is not None)
                assert not heir.complete(story.decided)
                with heir.transaction():
                    for partition in (0, 1):
                        heir.send(TOPIC, f'after {story.name}'.encode(), partition=partition)
            self.await_stable(admin)
            offsets = admin.list_group_offsets(story.name, require_stable=True)
            assert [row.offset for row in offsets.values()] == [OFFSET] * story.is_committed, story

    def check_prepared(self, story: Story, admin: Admin) -> None:
        """Check that the transaction is open with its producer and without a timeout, and that no record is visible."""
        row = admin.describe_transactions([story.name])[story.name]
        assert (f'{row.producer_id}:{row.producer_epoch}', row.state, row.timeout_ms) == (
            story.token, 'Ongoing', NEVER_MS), story
        assert set(row.partitions) == {*ORDERS, ('__consumer_offsets', 0)}
        stable, ends = self.ends(admin)
        assert all(stable[partition] < ends[partition] for partition in ORDERS), story

    def ends(self, admin: Admin) -> tuple[dict[Any, int], dict[Any, int]]:
        """Return the last stable offset and the high watermark of each partition."""
        times = dict.fromkeys(ORDERS, 'latest')
        stable = {at: row.offset for at, row in admin.list_offsets(times, IsolationLevel.READ_COMMITTED).items()}
        return stable, {at: row.offset for at, row in admin.list_offsets(times).items()}

    def await_stable(self, admin: Admin) -> None:
        """Wait until the last stable offset of each partition is its high watermark. The broker replies to EndTxn
        before it writes the markers.
        """
        deadline = time.monotonic() + LIMIT_S
        stable, ends = self.ends(admin)
        while stable != ends:
            assert time.monotonic() < deadline, (stable, ends)
            stable, ends = self.ends(admin)

    def check_visible(self) -> None:
        """Check that a reader sees each record of each committed transaction once, and no other records."""
        found: Counter[str] = Counter()
        with Consumer(self.broker.address, isolation_level='read_committed', auto_offset_reset='earliest',
                      **TIMELY) as consumer:
            ends = consumer.end_offsets(ORDERS)
            consumer.assign(ORDERS)
            while any((consumer.position(*partition) or 0) < end for partition, end in ends.items()):
                found.update(record.value.decode() for batch in consumer.poll(1000) for record in batch.records())
        values = [f'after {story.name}' for story in self.stories]
        values += [story.name for story in self.stories if story.is_committed]
        assert found == Counter(values * 2)

    def check_files(self) -> None:
        """Check that each partition has markers for each transaction, at most `most_markers`, and that all are commits
        or all are aborts.
        """
        for partition in (FIRST, SECOND, OFFSETS):
            markers = self.markers_in(partition)
            for story in self.stories:
                kinds = markers.get((story.producer[0], story.producer[1] + 1), [])
                assert len(kinds) <= story.most_markers, (partition, story, kinds)
                if story.token is not None:
                    assert set(kinds) == {'COMMIT' if story.is_committed else 'ABORT'}, (partition, story, kinds)
        assert self.broker.tracebacks() == []
        assert findings_in(str(self.directory)) == []

    def markers_in(self, partition: str) -> dict[tuple[int, int], list[str]]:
        found: dict[tuple[int, int], list[str]] = {}
        for path in (self.directory / partition).glob('*.log'):
            for header, batch in iter_batches(path.read_bytes()):
                if header.is_control:
                    found.setdefault((header.producer_id, header.producer_epoch), []).append(
                        read_end_txn_marker(batch).control_type.name)
        return found


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path / 'data')
    yield place
    place.broker.kill9()


def test_a_prepared_transaction_ends_once_although_the_broker_is_killed_at_its_rows_and_markers(place):
    place.run([(point,) for point in SAMPLE])


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize('turn', [0, 1])
def test_a_prepared_transaction_ends_once_wherever_the_broker_is_killed(place, turn, soak_sample, tally):
    """Every second transaction is aborted. With `turn` 1, the transactions are aborted that are committed with `turn`
    0.
    """
    points = soak_sample(EVERYTHING)
    place.run([(SAMPLE[0],)] * turn + [(point,) for point in points])
    tally('kills of a broker, a client or an application', turn + len(points))


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_prepared_transaction_ends_once_wherever_the_broker_is_killed_twice(place, soak_sample, tally):
    points = soak_sample(TWICE)
    place.run(points)
    tally('kills of a broker, a client or an application', 2 * len(points))
