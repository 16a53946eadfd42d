"""The workload of share groups. Members join and leave. They accept, reject, release or keep the records that they
receive.

All members use kbroker's own client, because it is the only one of the three clients with share groups for Python.
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
"""The limits for the deliveries of a record: the highest that Kafka allows, and the default in releases without the
setting.

Faults of the network can hide a delivery from the members. With a high limit, it is improbable that all deliveries of a
record are hidden.
"""
LOCK_S = 15
SETTINGS = {'share.auto.offset.reset': 'earliest', 'share.isolation.level': 'read_committed',
            'share.record.lock.duration.ms': str(LOCK_S * 1000)}
OUTCOMES = (AcknowledgeType.ACCEPT, AcknowledgeType.REJECT, AcknowledgeType.RELEASE, None)
WEIGHTS = (80, 3, 12, 5)
"""The weights of the four outcomes. If the outcome is None, the member keeps the record until it leaves or until the
lock on the record expires."""


def prepare(group: str, servers: str) -> int:
    """Set the configs of a share group. Return the limit for the deliveries of a record. Raise KafkaError if the broker
    refuses the configs."""
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
    """Maps each partition to the offsets that a member tried to accept or reject. Offsets that the broker refused are
    omitted."""


class Sharing:
    """The session of one member. It records the deliveries to the member and their outcomes."""

    def __init__(self, recorder: Recorder, member: own.OwnSharer, group: ShareGroup):
        self._recorder = recorder
        self._member = member
        self._group = group
        self._number = recorder.sharer(group.name, own.NAME)
        now = recorder.now()
        self._ends = deque((now, now), maxlen=2)
        """The times at which the last two polls with records ended. The records of a poll may have been requested
        before the previous poll ended, but not before the poll before it ended."""

    def serve(self, choose: Callable[[], AcknowledgeType | None]) -> None:
        """Poll for records, and settle the delivered records. Raise ClientFailure if a call fails."""
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
    """A worker that joins a share group as a member and leaves it, again and again."""

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
    """Accept all remaining records. Stop when the number of settled records is the number of visible records, or when
    no offset has moved for `patience_s` seconds.

    `visible` maps each partition to its number of visible records. The start offset of a group may be behind the
    records that it has settled, so it does not show the end. Return {partition: start offset}. Raise KafkaError or
    OSError if the broker cannot report the start offsets.
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
