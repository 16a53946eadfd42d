"""Requests that lie in the socket together: appends to a partition are written by one call, and nobody can tell."""
import errno
import pathlib
import resource
import tempfile

import pytest
from building import batch_of, build
from hypothesis import given, settings
from hypothesis import strategies as st
from in_process import InProcessBroker, frame_of, read_answer
from log.faulty_fs import FailingFileSystem
from network.network_peers import Peer, frame

from kbroker.apis.dispatch import Dispatcher, served_apis
from kbroker.errors import ErrorCode
from kbroker.network.connection import Commons
from kbroker.network.reactor import Reactor

PARTITIONS = 2
FEW = {'transaction.state.log.num.partitions': '1', 'offsets.topic.num.partitions': '1'}
VERSION = 12


class Bursts:
    """A broker with a topic `orders` and a peer that sends requests to it, over a socket, all at once or each alone."""

    def __init__(self, directory, durability='page-cache', fs=None):
        self.directory = pathlib.Path(directory)
        self.node = InProcessBroker(directory, FEW | {'kbroker.durability': durability}, fs=fs).__enter__()
        self.node.topics.create('orders', PARTITIONS, {})
        self.reactor = Reactor(self.node.clock, self.node.timers)
        self.reactor.at_tick_end.append(self.node.turn_ends)
        dispatcher = Dispatcher(self.node, served_apis())
        self.peer = Peer(self.reactor, None, 1 << 20, Commons(self.reactor, dispatcher.handle, None, 1 << 20,
                                                              server=dispatcher))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.peer.connection.close('the test ends')
        self.peer.socket.close()
        self.reactor.close()
        self.node.__exit__(None, None, None)

    def send(self, requests, *, at_once=True):
        """The answers, in order, without those that are not given."""
        frames = [frame(frame_of(request, VERSION, correlation_id=number)) for number, request in enumerate(requests)]
        received = bytearray()
        for data in [b''.join(frames)] if at_once else frames:
            self.peer.send(data)
            received += self.peer.receive()
        replies = []
        while received:
            size = int.from_bytes(received[:4], 'big')
            replies.append(bytes(received[4:4 + size]))
            del received[:4 + size]
        return replies

    def files(self):
        """What the topic's logs hold."""
        return {path: (self.directory / path).read_bytes() for path in
                sorted(path.relative_to(self.directory) for path in self.directory.glob('orders-*/*.log'))}


def produce(node, *values, partition=0, acks=-1, topic='orders', transactional_id=None, **options):
    batch = batch_of(node.clock.wall_ms(), *values, **options)
    return build('ProduceRequest', transactional_id=transactional_id, acks=acks, timeout_ms=1000, topic_data=[
        {'name': topic, 'partition_data': [{'index': partition, 'records': batch}]}])


def damaged(node):
    request = produce(node, b'a')
    records = request.topic_data[0].partition_data[0].records
    request.topic_data[0].partition_data[0].records = records[:-1] + b'?'
    return request


def fetch(partition=0):
    wanted = {'partition': partition, 'fetch_offset': 0, 'partition_max_bytes': 1 << 20}
    return build('FetchRequest', max_wait_ms=0, min_bytes=1, max_bytes=1 << 20, session_epoch=-1,
                 topics=[{'topic': 'orders', 'partitions': [wanted]}])


def produced(requests, replies):
    """(error code, base offset) of each."""
    parts = [read_answer(request, VERSION, reply).responses[0].partition_responses[0]
             for request, reply in zip(requests, replies, strict=True)]
    return [(part.error_code, part.base_offset) for part in parts]


KINDS = {
    'plain': lambda node, at: produce(node, b'a', partition=at % PARTITIONS),
    'two records': lambda node, at: produce(node, b'a', b'b', partition=at % PARTITIONS),
    'acks=1': lambda node, at: produce(node, b'a', acks=1),
    'acks=0': lambda node, at: produce(node, b'a', acks=0),
    'idempotent': lambda node, at: produce(node, b'a', producer_id=1000, producer_epoch=0, base_sequence=at // 2),
    'without a time': lambda node, at: produce(node, (-1, None, b'a'), partition=1),
    'damaged': lambda node, at: damaged(node),
    'nowhere': lambda node, at: produce(node, b'a', topic='unknown'),
    'fetch': lambda node, at: fetch(at % PARTITIONS),
    'transactional': lambda node, at: produce(node, b'a', transactional_id='unknown', producer_id=1, producer_epoch=0,
                                              base_sequence=0, transactional=True),
}


@settings(max_examples=40, deadline=None)
@given(kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=12),
       durability=st.sampled_from(['page-cache', 'disk']))
def test_a_burst_is_answered_as_its_requests_one_by_one(kinds, durability):
    if durability == 'disk':        # what a fetch sees there depends on whether the disk had time in between
        kinds = [kind for kind in kinds if kind != 'fetch']
    found = []
    for at_once in (True, False):
        with tempfile.TemporaryDirectory() as directory, Bursts(directory, durability) as bursts:
            requests = [KINDS[kind](bursts.node, at) for at, kind in enumerate(kinds)]
            found.append((bursts.send(requests, at_once=at_once), bursts.files()))
    assert found[0] == found[1]


@pytest.mark.parametrize('kind', ['plain', 'idempotent', 'without a time'])
def test_each_kind_is_appended_in_a_burst(tmp_path, kind):
    with Bursts(tmp_path) as bursts:
        requests = [KINDS[kind](bursts.node, 2 * at) for at in range(3)]
        assert produced(requests, bursts.send(requests)) == [(0, 0), (0, 1), (0, 2)]


class CountedWrites(FailingFileSystem):
    def __init__(self):
        super().__init__(self.see)
        self.writes = 0
        self.code = None

    def see(self, operation, path):
        if operation == 'write' and 'orders-0' in path and path.endswith('.log'):
            self.writes += 1
            return self.code
        return None


def test_appends_of_a_burst_to_a_partition_are_one_write(tmp_path):
    fs = CountedWrites()
    with Bursts(tmp_path, fs=fs) as bursts:
        requests = [produce(bursts.node, b'v' * 1000) for _ in range(5)]
        assert produced(requests, bursts.send(requests)) == [(0, offset) for offset in range(5)]
        assert fs.writes == 1


def test_a_burst_that_cannot_be_written_is_refused_and_not_in_the_log(tmp_path):
    fs = CountedWrites()
    with Bursts(tmp_path, fs=fs) as bursts:
        kept = [produce(bursts.node, b'a')]
        assert produced(kept, bursts.send(kept)) == [(0, 0)]
        fs.code, fs.partial_bytes = errno.EIO, 100
        requests = [produce(bursts.node, b'a') for _ in range(3)]
        assert produced(requests, bursts.send(requests)) == [(ErrorCode.KAFKA_STORAGE_ERROR, -1)] * 3
        bursts.node.crash()
    with InProcessBroker(tmp_path, FEW) as node:
        assert node.topics.get('orders', 0).log_end_offset == 1


def test_a_burst_that_is_written_in_part_is_refused_as_a_whole(tmp_path):
    with Bursts(tmp_path) as bursts:
        kept = [produce(bursts.node, b'a')]
        assert produced(kept, bursts.send(kept)) == [(0, 0)]
        written_bytes = len(bursts.files()[pathlib.Path('orders-0', '0' * 20 + '.log')])
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (written_bytes * 5 // 2, limits[1]))
        try:
            requests = [produce(bursts.node, b'a') for _ in range(3)]
            assert produced(requests, bursts.send(requests)) == [(ErrorCode.KAFKA_STORAGE_ERROR, -1)] * 3
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert len(bursts.files()[pathlib.Path('orders-0', '0' * 20 + '.log')]) == written_bytes
        bursts.node.crash()


def test_a_connection_that_ends_within_a_burst_takes_nothing_with_it(tmp_path):
    """The bytes of what is not written yet are the connection's."""
    with Bursts(tmp_path) as bursts:
        requests = [produce(bursts.node, b'v' * 20_000), produce(bursts.node, b'v' * 20_000)]
        frames = [frame(frame_of(request, VERSION)) for request in requests]
        bursts.peer.send(b''.join(frames) + frame(b'no request') + frames[0])
        bursts.peer.settle()
        assert bursts.peer.connection.is_closed
        log = bursts.node.topics.get('orders', 0).log
        assert [header.last_offset for header, _ in log.batches()] == [0, 1]
