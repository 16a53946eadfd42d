"""Consumer groups of KIP-848: the cost of a rebalance and of idle members, on Apache Kafka and kbroker.

    python bench/groups.py [--quick] [--rounds N] [--peers NAMES]

**rebalance**: 100 members, each on its own connection, join one group over 1,000 partitions within one second. Every
member behaves as Kafka's consumer does: it heartbeats at the interval that the broker names, and at once after its
assignment changed. The measured time begins at the first join. It ends when every member is at the group's last epoch
and has its whole assignment. The broker's CPU time is measured over the same time.

**idle**: 10,000 members of one group on 20 connections. Each sends the heartbeat of a member for which nothing changes.
The figure is the broker's CPU time per heartbeat.

Each round runs every broker once, on its own directory, in the opposite order of the previous round. Figures are
medians over the rounds, with their ranges.
"""
from __future__ import annotations

import dataclasses
import heapq
import itertools
import pathlib
import selectors
import socket
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from functools import partial

import click

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parent.parent),
                str(pathlib.Path(__file__).parent.parent / 'tests')]

from broker import Stopwatch  # noqa: E402
from peer_brokers import Site  # noqa: E402
from rounds import GroupError, play, spread  # noqa: E402
from support.brokers.in_process_broker import frame_of, read_answer  # noqa: E402

from kbroker.base.errors import ErrorCode  # noqa: E402
from kbroker.protocol.messages import (  # noqa: E402
    ConsumerGroupHeartbeatRequest,
    FindCoordinatorRequest,
)

VERSION = 1
JOIN_SPAN_S = 1.0
LIMIT_S = 120.0
REBALANCE_TIMEOUT_MS = 300_000
TOPIC = 'wide'


@dataclasses.dataclass
class Sizes:
    members: int
    partitions: int
    idle_members: int
    idle_connections: int
    idle_rounds: int


class Peer:
    """A connection that sends many requests before it reads the replies."""

    def __init__(self, address: str):
        host, _, port = address.rpartition(':')
        self.socket = socket.create_connection((host, int(port)), LIMIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()

    def send(self, frames: list[bytes]) -> None:
        self.socket.sendall(b''.join(len(frame).to_bytes(4, 'big') + frame for frame in frames))

    def replies(self) -> Iterator[bytes]:
        """Receive once, and yield the complete replies."""
        part = self.socket.recv(1 << 20)
        if not part:
            raise GroupError('the broker closed a connection')
        self._received += part
        while len(self._received) >= 4:
            size = int.from_bytes(self._received[:4], 'big')
            if len(self._received) < 4 + size:
                return
            reply = bytes(self._received[4:4 + size])
            del self._received[:4 + size]
            yield reply

    def ask(self, frame: bytes) -> bytes:
        self.send([frame])
        while True:
            for reply in self.replies():
                return reply

    def close(self) -> None:
        self.socket.close()


class Member:
    """A member that heartbeats as Kafka's consumer does."""

    def __init__(self, group: str, address: str):
        self.peer = Peer(address)
        self.group = group
        self.member_id = str(uuid.uuid4())
        self.epoch = 0
        self.owned: dict[bytes, list[int]] = {}
        self.interval_s = 0.0
        self._has_to_confirm = False

    def heartbeat(self) -> None:
        request = ConsumerGroupHeartbeatRequest(group_id=self.group, member_id=self.member_id, member_epoch=self.epoch)
        if self.epoch == 0:
            request.rebalance_timeout_ms = REBALANCE_TIMEOUT_MS
            request.subscribed_topic_names = [TOPIC]
            request.topic_partitions = []
        elif self._has_to_confirm:
            request.topic_partitions = [
                ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in self.owned.items()
            ]
        self._has_to_confirm = False
        self.peer.send([frame_of(request, VERSION)])

    def take(self, reply: bytes) -> bool:
        """Adopt the answer to a heartbeat. Return True if the member has to send the next heartbeat immediately."""
        answer = read_answer(ConsumerGroupHeartbeatRequest(), VERSION, reply)
        check(answer)
        self.epoch, self.interval_s = answer.member_epoch, answer.heartbeat_interval_ms / 1000
        if answer.assignment is not None:
            owned = {each.topic_id: sorted(each.partitions) for each in answer.assignment.topic_partitions}
            self._has_to_confirm = owned != self.owned
            self.owned = owned
        return self._has_to_confirm


def check(answer: object) -> None:
    code = ErrorCode(answer.error_code)  # type: ignore[attr-defined]
    if code is not ErrorCode.NONE:
        raise GroupError(f'{code.name}: {answer.error_message}')  # type: ignore[attr-defined]


def find_coordinator(address: str, group: str) -> None:
    """Send FindCoordinator for the group until the broker has created its offsets topic and coordinates the group."""
    request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
    heartbeat = ConsumerGroupHeartbeatRequest(group_id=group, member_id='probe', member_epoch=7)
    peer = Peer(address)
    deadline = time.monotonic() + LIMIT_S
    while True:
        found = read_answer(request, 4, peer.ask(frame_of(request, 4))).coordinators[0]
        if found.error_code == ErrorCode.NONE:
            answer = read_answer(heartbeat, VERSION, peer.ask(frame_of(heartbeat, VERSION)))
            if answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                break
            if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
                raise GroupError('the broker does not serve the protocol')
        if time.monotonic() > deadline:
            raise GroupError(f'no coordinator: {ErrorCode(found.error_code).name}')
        time.sleep(0.1)     # a broker notifies no client when its coordinator has loaded
    peer.close()


def rebalance(site: Site, sizes: Sizes, group: str) -> tuple[float, float]:
    """Let all members join a group. Return (the seconds until the group is stable, the broker's CPU seconds)."""
    find_coordinator(site.broker.address, group)
    members = [Member(group, site.broker.address) for _ in range(sizes.members)]
    selector = selectors.DefaultSelector()
    for member in members:
        selector.register(member.peer.socket, selectors.EVENT_READ, member)
    watch, began = Stopwatch(site.broker.pid), time.monotonic()
    order = itertools.count()
    due = [(began + JOIN_SPAN_S * number / len(members), next(order), member) for number, member in enumerate(members)]
    try:
        while not is_stable(members, sizes.partitions):
            now = time.monotonic()
            if now - began > LIMIT_S:
                raise GroupError(f'not stable after {LIMIT_S:g} s')
            while due and due[0][0] <= now:
                heapq.heappop(due)[2].heartbeat()
            for key, _ in selector.select(max(0.0, due[0][0] - now) if due else 1.0):
                member = key.data
                for reply in member.peer.replies():
                    if member.take(reply):
                        member.heartbeat()
                    else:
                        heapq.heappush(due, (time.monotonic() + member.interval_s, next(order), member))
        seconds = time.monotonic() - began
        return seconds, watch.span().broker_cpu_s
    finally:
        selector.close()
        for member in members:
            member.peer.close()


def is_stable(members: list[Member], partitions: int) -> bool:
    """Return whether all members are at the same epoch and share the partitions evenly."""
    counts = [sum(map(len, member.owned.values())) for member in members]
    is_at_one_epoch = len({member.epoch for member in members}) == 1
    return is_at_one_epoch and sum(counts) == partitions and max(counts) - min(counts) <= 1


def idle(site: Site, sizes: Sizes, group: str) -> float:
    """Return the broker's CPU in microseconds per heartbeat of a member for which nothing changes."""
    find_coordinator(site.broker.address, group)
    peers = [Peer(site.broker.address) for _ in range(sizes.idle_connections)]
    each = sizes.idle_members // len(peers)
    ids = [[str(uuid.uuid4()) for _ in range(each)] for _ in peers]
    try:
        epochs = [dict(zip(own, exchange(peer, [joining(group, member_id) for member_id in own]), strict=True))
                  for peer, own in zip(peers, ids, strict=True)]
        settle(group, peers, epochs)
        frames = [[frame_of(idling(group, member_id, epoch), VERSION) for member_id, epoch in own.items()]
                  for own in epochs]
        beat(peers, frames)  # the first one is not counted: it may still change a member
        watch = Stopwatch(site.broker.pid)
        for _ in range(sizes.idle_rounds):
            beat(peers, frames)
        return 1e6 * watch.span().broker_cpu_s / (sizes.idle_rounds * each * len(peers))
    finally:
        for peer in peers:
            peer.close()


def joining(group: str, member_id: str) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(
        group_id=group, member_id=member_id, member_epoch=0, rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
        subscribed_topic_names=[TOPIC], topic_partitions=[])


def idling(group: str, member_id: str, epoch: int) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(group_id=group, member_id=member_id, member_epoch=epoch)


def confirming(group: str, member_id: str, epoch: int) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(group_id=group, member_id=member_id, member_epoch=epoch, topic_partitions=[])


def exchange(peer: Peer, requests: list[ConsumerGroupHeartbeatRequest]) -> list[int]:
    """Send all requests, then read the replies. Return the members' epochs."""
    peer.send([frame_of(request, VERSION) for request in requests])
    epochs: list[int] = []
    while len(epochs) < len(requests):
        for reply in peer.replies():
            answer = read_answer(requests[0], VERSION, reply)
            check(answer)
            epochs.append(answer.member_epoch)
    return epochs


def settle(group: str, peers: list[Peer], epochs: list[dict[str, int]]) -> None:
    """Send heartbeats without owned partitions until all members are at the same epoch twice in a row."""
    deadline, agreed = time.monotonic() + LIMIT_S, 0
    while agreed < 2:
        for peer, own in zip(peers, epochs, strict=True):
            requests = [confirming(group, member_id, epoch) for member_id, epoch in own.items()]
            own.update(zip(own, exchange(peer, requests), strict=True))
        agreed = agreed + 1 if len({epoch for own in epochs for epoch in own.values()}) == 1 else 0
        if time.monotonic() > deadline:
            raise GroupError(f'{sum(map(len, epochs))} members do not agree on an epoch after {LIMIT_S:g} s')


def beat(peers: list[Peer], frames: list[list[bytes]]) -> None:
    """Send one heartbeat of every member, on all connections at once, and read the replies."""
    selector = selectors.DefaultSelector()
    left = {}
    for peer, own in zip(peers, frames, strict=True):
        selector.register(peer.socket, selectors.EVENT_READ, peer)
        left[peer] = len(own)
        peer.send(own)
    while left:
        for key, _ in selector.select(LIMIT_S):
            peer = key.data
            left[peer] -= sum(1 for _ in peer.replies())
            if not left[peer]:
                selector.unregister(peer.socket)
                del left[peer]
    selector.close()


@dataclasses.dataclass
class Figures:
    stable_s: list[float] = dataclasses.field(default_factory=list)
    stable_cpu_s: list[float] = dataclasses.field(default_factory=list)
    idle_us: list[float] = dataclasses.field(default_factory=list)


def measure(site: Site, sizes: Sizes, number: int, figures: Figures) -> None:
    """Measure a broker once. Raise GroupError, LoadError or OSError if it fails."""
    site.create_topic(TOPIC, sizes.partitions)
    rebalance(site, sizes, f'warm-{number}')    # a JVM compiles meanwhile
    seconds, cpu_s = rebalance(site, sizes, f'rebalance-{number}')
    figures.stable_s.append(seconds)
    figures.stable_cpu_s.append(cpu_s)
    figures.idle_us.append(idle(site, sizes, f'idle-{number}'))


def table(sizes: Sizes, found: Mapping[str, Figures]) -> Iterator[str]:
    yield f'{sizes}\n'
    yield '| broker | stable after s | broker CPU s | idle heartbeat, broker CPU us |'
    yield '|---|--:|--:|--:|'
    for name, figures in found.items():
        if figures.idle_us:
            yield (f'| {name} | {spread(figures.stable_s, ".2f")} | {spread(figures.stable_cpu_s, ".2f")} | '
                   f'{spread(figures.idle_us, ".1f")} |')


@click.command(help=__doc__)
@click.option('--quick', is_flag=True, help='Run small groups once, to see that it works; the figures are meaningless.')
@click.option('--rounds', default=5, show_default=True)
@click.option('--peers', 'names', default='kafka,kbroker-disk', show_default=True)
def main(quick: bool, rounds: int, names: str) -> None:
    sizes = Sizes(4, 16, 40, 2, 1) if quick else Sizes(100, 1000, 10_000, 20, 5)
    play(names, 1 if quick else rounds, Figures,
         lambda site, number, figures: measure(site, sizes, number, figures), partial(table, sizes))


if __name__ == '__main__':
    main()
