"""Share groups of KIP-932: how fast eight consumers share the records of a topic, on Apache Kafka and kbroker.

    python bench/shares.py [--quick] [--rounds N] [--peers NAMES] [--records N]

The topic has four partitions of 1 KiB records, in batches of 16 KiB. Eight members of one share group, each on its own
connection, read it from the start to the end. Every member behaves as Kafka's share consumer does by default: a fetch
requests at most 500 records, and the next fetch accepts them. The measured time begins at the first fetch and ends when
all records are accepted. The broker's CPU time is measured over the same time.

Each round runs every broker once, on its own directory, in the opposite order of the previous round. Before the
measured group starts, a first group reads the whole topic. Figures are medians over the rounds, with their ranges.
"""
from __future__ import annotations

import dataclasses
import pathlib
import selectors
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from functools import partial

import click

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parent.parent),
                str(pathlib.Path(__file__).parent.parent / 'tests')]

from broker import Stopwatch  # noqa: E402
from groups import LIMIT_S, Peer, check, find_coordinator  # noqa: E402
from peer_brokers import Site  # noqa: E402
from rounds import GroupError, play, spread  # noqa: E402
from support.brokers.in_process_broker import frame_of, read_answer  # noqa: E402
from support.messages.message_builder import build  # noqa: E402

from kbroker.base.errors import ErrorCode  # noqa: E402

FETCH_VERSION, HEARTBEAT_VERSION, LIST_VERSION = 2, 1, 7
LATEST = -1
GROUP_RESOURCE, SET = 32, 0
ACCEPT = 1
TOPIC = 'shared'
PARTITIONS = 4
RECORD_BYTES = 1024
BATCH_BYTES = 16 * 1024
MAX_RECORDS = 500
MAX_BYTES = 50 * 1024 * 1024
WAIT_MS = 500
HEARTBEAT_S = 5.0
NOT_READY = {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}


class Member:
    """A member of the share group. Each of its fetches accepts the records of the previous fetch."""

    def __init__(self, group: str, address: str):
        self.peer = Peer(address)
        self.group = group
        self.member_id = str(uuid.uuid4())
        self.member_epoch = self.session_epoch = 0
        self.assigned: dict[bytes, list[int]] = {}
        self.accepted = 0
        self._beats = Peer(address)
        self._last_beat_s = 0.0
        self._acquired: dict[tuple[bytes, int], list[tuple[int, int]]] = {}
        self._request: object = None

    def heartbeat(self) -> None:
        """Send a heartbeat, with which the member joins the group or stays in it. Adopt the assignment."""
        self._last_beat_s = time.monotonic()
        request = build('ShareGroupHeartbeatRequest', group_id=self.group, member_id=self.member_id,
                        member_epoch=self.member_epoch,
                        subscribed_topic_names=[TOPIC] if self.member_epoch == 0 else None)
        answer = read_answer(request, HEARTBEAT_VERSION, self._beats.ask(frame_of(request, HEARTBEAT_VERSION)))
        if ErrorCode(answer.error_code) in NOT_READY:
            return
        check(answer)
        self.member_epoch = answer.member_epoch
        if answer.assignment is not None:
            self.assigned = {each.topic_id: list(each.partitions) for each in answer.assignment.topic_partitions}

    def fetch(self) -> None:
        """Send a fetch that accepts the records of the previous fetch."""
        if time.monotonic() - self._last_beat_s > HEARTBEAT_S:
            self.heartbeat()
        said: dict[bytes, list[object]] = {}
        named = [(topic_id, index) for topic_id, indexes in self.assigned.items() for index in indexes]
        for topic_id, index in named if self.session_epoch == 0 else self._acquired:
            said.setdefault(topic_id, []).append({'partition_index': index, 'acknowledgement_batches': [
                {'first_offset': first, 'last_offset': last, 'acknowledge_types': [ACCEPT]}
                for first, last in self._acquired.get((topic_id, index), ())]})
        self._request = build(
            'ShareFetchRequest', group_id=self.group, member_id=self.member_id, share_session_epoch=self.session_epoch,
            max_wait_ms=WAIT_MS, min_bytes=1, max_bytes=MAX_BYTES, max_records=MAX_RECORDS, batch_size=MAX_RECORDS,
            topics=[{'topic_id': topic_id, 'partitions': partitions} for topic_id, partitions in said.items()])
        self.peer.send([frame_of(self._request, FETCH_VERSION)])

    def take(self, reply: bytes) -> None:
        answer = read_answer(self._request, FETCH_VERSION, reply)
        check(answer)
        self.session_epoch += 1
        self.accepted += sum(last - first + 1 for ranges in self._acquired.values() for first, last in ranges)
        self._acquired = {}
        for topic in answer.responses:
            for partition in topic.partitions:
                codes = {ErrorCode(partition.error_code), ErrorCode(partition.acknowledge_error_code)}
                if codes != {ErrorCode.NONE}:
                    raise GroupError(f'partition {partition.partition_index}: {codes}')
                if partition.acquired_records:
                    self._acquired[topic.topic_id, partition.partition_index] = [
                        (each.first_offset, each.last_offset) for each in partition.acquired_records]

    def close(self) -> None:
        self.peer.close()
        self._beats.close()


def read_from_the_start(address: str, group: str) -> None:
    request = build('IncrementalAlterConfigsRequest', resources=[
        {'resource_type': GROUP_RESOURCE, 'resource_name': group, 'configs': [
            {'name': 'share.auto.offset.reset', 'config_operation': SET, 'value': 'earliest'}]}])
    peer = Peer(address)
    answer = read_answer(request, 1, peer.ask(frame_of(request, 1)))
    peer.close()
    check(answer.responses[0])


def count_records(address: str) -> int:
    request = build('ListOffsetsRequest', replica_id=-1, topics=[{'name': TOPIC, 'partitions': [
        {'partition_index': index, 'timestamp': LATEST} for index in range(PARTITIONS)]}])
    peer = Peer(address)
    answer = read_answer(request, LIST_VERSION, peer.ask(frame_of(request, LIST_VERSION)))
    peer.close()
    return sum(partition.offset for partition in answer.topics[0].partitions)


def join(members: list[Member]) -> None:
    """Send heartbeats until all partitions are assigned as evenly as possible."""
    deadline = time.monotonic() + LIMIT_S
    wanted = PARTITIONS * -(-len(members) // PARTITIONS)
    while not all(member.assigned for member in members) or (
            sum(len(indexes) for member in members for indexes in member.assigned.values()) < wanted):
        for member in members:
            member.heartbeat()
        if time.monotonic() > deadline:
            raise GroupError(f'the partitions are not assigned after {LIMIT_S:g} s')
        time.sleep(0.02)    # a coordinator assigns later, and notifies a member only when it heartbeats again


def share(site: Site, members_count: int, records: int, group: str) -> tuple[float, float]:
    """Return (the seconds until a group has accepted all records, the broker's CPU seconds in this time)."""
    address = site.broker.address
    find_coordinator(address, group)
    read_from_the_start(address, group)
    members = [Member(group, address) for _ in range(members_count)]
    selector = selectors.DefaultSelector()
    try:
        join(members)
        for member in members:
            selector.register(member.peer.socket, selectors.EVENT_READ, member)
        watch, began = Stopwatch(site.broker.pid), time.monotonic()
        for member in members:
            member.fetch()
        while sum(member.accepted for member in members) < records:
            if time.monotonic() - began > LIMIT_S:
                raise GroupError(f'{sum(member.accepted for member in members)} of {records} after {LIMIT_S:g} s')
            for key, _ in selector.select(1.0):
                for reply in key.data.peer.replies():
                    key.data.take(reply)
                    key.data.fetch()
        seconds = time.monotonic() - began
        return seconds, watch.span().broker_cpu_s
    finally:
        selector.close()
        for member in members:
            member.close()


@dataclasses.dataclass
class Figures:
    records_per_s: list[float] = dataclasses.field(default_factory=list)
    cpu_us: list[float] = dataclasses.field(default_factory=list)


def measure(site: Site, members: int, records: int, number: int, figures: Figures) -> None:
    """Measure a broker once. Raise GroupError, LoadError or OSError if it fails."""
    site.create_topic(TOPIC, PARTITIONS)
    batches = -(-records * RECORD_BYTES // BATCH_BYTES)
    site.load([f'produce:topic={TOPIC},partitions={PARTITIONS},connections={PARTITIONS},depth=5,'
               f'record={RECORD_BYTES},size={BATCH_BYTES},count={batches}'], LIMIT_S, 0)
    records = count_records(site.broker.address)    # batches hold whole records, so it is not what was asked
    share(site, members, records, f'warm-{number}')    # a JVM compiles meanwhile
    seconds, cpu_s = share(site, members, records, f'measured-{number}')
    figures.records_per_s.append(records / seconds)
    figures.cpu_us.append(1e6 * cpu_s / records)


def table(heading: str, found: Mapping[str, Figures]) -> Iterator[str]:
    yield f'{heading}\n'
    yield '| broker | records/s | broker CPU us per record |'
    yield '|---|--:|--:|'
    for name, figures in found.items():
        if figures.cpu_us:
            yield f'| {name} | {spread(figures.records_per_s, ".0f")} | {spread(figures.cpu_us, ".2f")} |'


@click.command(help=__doc__)
@click.option('--quick', is_flag=True, help='Share few records once, to see that it works.')
@click.option('--rounds', default=5, show_default=True)
@click.option('--peers', 'names', default='kafka,kbroker-disk', show_default=True)
@click.option('--records', default=400_000, show_default=True)
def main(quick: bool, rounds: int, names: str, records: int) -> None:
    members = 2 if quick else 8
    records = 2_000 if quick else records
    play(names, 1 if quick else rounds, Figures,
         lambda site, number, figures: measure(site, members, records, number, figures),
         partial(table, f'{members} members, {records} records'))


if __name__ == '__main__':
    main()
