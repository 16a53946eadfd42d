"""The workload of share groups: members that come and go, and that accept, reject, release or keep their records.

Of the three clients, only kbroker's own gives a program in Python a member of a share group.
"""
from __future__ import annotations

import random
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client import Admin
from kbroker.client.admin import AlterOp
from kbroker.client.admin_requests import ResourceType
from kbroker.client.share_sessions import AcknowledgeType
from kbroker_tools.verify.clients import own
from kbroker_tools.verify.clients.face import ClientFailure, Place
from kbroker_tools.verify.recorder import Recorder
from kbroker_tools.verify.workloads import (
    LONGEST_ABSENCE_S,
    MEMBERSHIP_S,
    PAUSE_AFTER_FAILURE_S,
    POLL_S,
    Setting,
    Worker,
)

MEMBERS = 3
DELIVERY_LIMIT, SMALLER_LIMIT = 10, 5
"""The most deliveries of a record: Kafka's largest setting, and its default in releases without this setting.

The faults of the network can hide a delivery from a member. Faults that hide all of them are improbable.
"""
LOCK_S = 15
SETTINGS = {'share.auto.offset.reset': 'earliest', 'share.isolation.level': 'read_committed',
            'share.record.lock.duration.ms': str(LOCK_S * 1000)}
OUTCOMES = (AcknowledgeType.ACCEPT, AcknowledgeType.REJECT, AcknowledgeType.RELEASE, None)
WEIGHTS = (80, 3, 12, 5)
"""The weights of the four outcomes. With None, the member keeps the record until its membership or the lock ends."""


def prepare(group: str, servers: str) -> int:
    """Set the configs of a share group. Return the most deliveries of a record. Raise KafkaError."""
    with Admin(servers, own.CONNECTION) as admin:
        _set(admin, group, SETTINGS)
        try:
            _set(admin, group, {'share.delivery.count.limit': str(DELIVERY_LIMIT)})
        except KafkaError as error:
            if error.code is not ErrorCode.INVALID_CONFIG:
                raise
            return SMALLER_LIMIT
    return DELIVERY_LIMIT


def _set(admin: Admin, group: str, settings: Mapping[str, str]) -> None:
    changes: list[tuple[str, AlterOp, str | None]] = [(name, AlterOp.SET, value) for name, value in settings.items()]
    for error in admin.incremental_alter_configs({(ResourceType.GROUP, group): changes}).values():
        if error is not None:
            raise error


@dataclass
class ShareGroup:
    """The share group of a run, and the records that its members have settled."""

    name: str
    topic: str
    settled: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    """The offsets, by partition, that a member tried to accept or reject, unless the broker refused."""


class Sharing:
    """A session of one member, which records its deliveries and their outcomes."""

    def __init__(self, recorder: Recorder, member: own.OwnSharer, group: ShareGroup):
        self._recorder = recorder
        self._member = member
        self._group = group
        self._number = recorder.sharer(group.name, own.NAME)
        now = recorder.now()
        self._ends = deque((now, now), maxlen=2)
        """The ends of the last polls with records. The next records may have been requested before the last poll
        ended."""

    def serve(self, choose: Callable[[], AcknowledgeType | None]) -> None:
        """Poll, and settle the delivered records. Raise ClientFailure."""
        reads = self._member.poll(POLL_S)
        if not reads:
            return
        self._ends.append(self._recorder.deliveries(self._number, self._ends[0], reads))
        outcomes = {(partition, offset): choose() for partition, offsets, _, _ in reads for offset in offsets}
        begin = self._recorder.now()
        settled = {place: kind for place, kind in outcomes.items() if kind is not None}
        confirmed, unknown = self._member.settle(settled)
        for is_confirmed, places in ((True, confirmed), (False, unknown)):
            flat = [number for place in places if settled[place] is not AcknowledgeType.RELEASE for number in place]
            if flat:
                self._recorder.outcomes(self._number, begin, flat, is_confirmed=is_confirmed)
            for partition, offset in zip(flat[::2], flat[1::2], strict=True):
                self._group.settled[partition].add(offset)


class Sharer(Worker):
    """A member of a share group, which joins and leaves again and again."""

    def __init__(self, name: str, setting: Setting, rng: random.Random, servers: str, group: ShareGroup):
        super().__init__(name, setting, rng)
        self._servers = servers
        self._group = group

    def work(self) -> None:
        end = time.monotonic() + self._rng.uniform(*MEMBERSHIP_S)
        with closing(own.OwnSharer(self._servers, self._setting.places, self._group.name, self._group.topic)) as member:
            sharing = Sharing(self._recorder, member, self._group)
            while not self._stop.is_set() and time.monotonic() < end:
                sharing.serve(self._choose)
        self._stop.wait(self._rng.uniform(0, LONGEST_ABSENCE_S))

    def _choose(self) -> AcknowledgeType | None:
        return self._rng.choices(OUTCOMES, WEIGHTS)[0]


def drain(recorder: Recorder, servers: str, places: Sequence[Place], group: ShareGroup, visible: Mapping[int, int],
          patience_s: float) -> dict[int, int]:
    """Accept all remaining records, until as many are settled as are visible, or no offset moves for long.

    `visible` has the number of records by partition. The start offset of a group may lag behind the records that it has
    settled, so it does not show the end. Return the start offset of each partition. Raise KafkaError or OSError if the
    broker cannot report it.
    """
    def left() -> int:
        return sum(max(count - len(group.settled[partition]), 0) for partition, count in visible.items())

    before, deadline = left(), time.monotonic() + LOCK_S + patience_s
    while left() and time.monotonic() < deadline:
        try:
            with closing(own.OwnSharer(servers, places, group.name, group.topic)) as member:
                sharing = Sharing(recorder, member, group)
                while left() and time.monotonic() < deadline:
                    sharing.serve(lambda: AcknowledgeType.ACCEPT)
                    if left() < before:
                        before, deadline = left(), time.monotonic() + LOCK_S + patience_s
        except ClientFailure:
            time.sleep(PAUSE_AFTER_FAILURE_S)   # a broker sends no event when it can answer again
    with Admin(servers, own.CONNECTION) as admin:
        found = admin.list_share_group_offsets(group.name)
    offsets = {partition: found.get(places[partition]) for partition in visible}
    return {partition: 0 if row is None else row.start_offset or 0 for partition, row in offsets.items()}
