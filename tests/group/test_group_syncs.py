"""The number of syncs to the disk when members join: one sync for each turn of the group, however many members join in
the turn."""
from __future__ import annotations

import pathlib
from collections import Counter

import pytest
from support.brokers.in_process_broker import InProcessBroker, InProcessConnection, frame_of, read_answer
from support.disk.faulty_file_systems import FailingFileSystem
from support.messages.message_builder import build

from kbroker.base.errors import ErrorCode

TOPIC, PARTITIONS, MEMBERS, TICKS = 'wide', 50, 100, 4
OFFSETS = '__consumer_offsets'
TOPOLOGY = {'epoch': 0, 'subtopologies': [
    {'subtopology_id': '0', 'source_topics': [TOPIC], 'source_topic_regex': [], 'repartition_sink_topics': [],
     'state_changelog_topics': [], 'repartition_source_topics': [], 'copartition_groups': []}]}
JOINS = {
    'Consumer': (1, {'subscribed_topic_names': [TOPIC], 'rebalance_timeout_ms': 60_000, 'topic_partitions': []}),
    'Share': (1, {'subscribed_topic_names': [TOPIC]}),
    'Streams': (0, {'rebalance_timeout_ms': 60_000, 'process_id': 'p', 'topology': TOPOLOGY, 'active_tasks': [],
                    'standby_tasks': [], 'warmup_tasks': [], 'endpoint_information_epoch': 0,
                    'shutdown_application': False}),
}


class CountingFileSystem(FailingFileSystem):
    """A file system that counts the syncs of log files for each topic."""

    def __init__(self) -> None:
        super().__init__(self._count)
        self.syncs: Counter[str] = Counter()

    def _count(self, operation: str, path: str) -> int | None:
        if operation == 'sync' and path.endswith('.log'):
            self.syncs[pathlib.Path(path).parent.name.rpartition('-')[0]] += 1
        return None


@pytest.fixture
def fs():
    return CountingFileSystem()


@pytest.fixture
def broker(tmp_path, fs):
    with InProcessBroker(tmp_path, {'group.streams.initial.rebalance.delay.ms': '0'}, fs=fs) as broker:
        broker.ask(build('CreateTopicsRequest', topics=[
            {'name': TOPIC, 'num_partitions': PARTITIONS, 'replication_factor': 1}]))
        for key in 'Consumer', 'Share', 'Streams':
            broker.ask(build('FindCoordinatorRequest', key_type=0, coordinator_keys=[key]), 4)
        finish(broker)
        yield broker


def finish(broker: InProcessBroker) -> None:
    broker.turn()
    while len(broker.long_work):
        broker.turn()


@pytest.mark.parametrize('kind', JOINS)
def test_the_joins_of_a_tick_share_a_sync(broker, fs, kind):
    version, fields = JOINS[kind]
    requests = [build(f'{kind}GroupHeartbeatRequest', group_id=kind, member_id=f'm{number}', member_epoch=0, **fields)
                for number in range(MEMBERS)]
    connections = [broker.connect() for _ in requests]
    before = fs.syncs[OFFSETS]
    for tick in range(TICKS):
        for request, connection in list(zip(requests, connections, strict=True))[tick::TICKS]:
            broker.serve(connection, frame_of(request, version))
        broker.turn()
    finish(broker)
    answers = [answer_of(request, version, connection)
               for request, connection in zip(requests, connections, strict=True)]
    assert {ErrorCode(answer.error_code) for answer in answers} == {ErrorCode.NONE}
    # A turn of the group serves all joins that wait. There is at most one turn for each tick of the loop, and one more
    # for joins that arrived during a turn.
    assert 1 <= fs.syncs[OFFSETS] - before <= TICKS + 1


def answer_of(request: object, version: int, connection: InProcessConnection) -> object:
    assert connection.closed is None and connection.replies[0] is not None
    return read_answer(request, version, connection.replies[0])
