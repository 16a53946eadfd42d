"""Appends of one tick to a partition share one write, and have the same results as single appends."""
import errno
import pathlib
import resource
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.brokers.in_process_broker import InProcessBroker, frame_of, read_answer
from support.clients.socket_peers import Peer, frame
from support.disk.faulty_file_systems import FailingFileSystem
from support.messages.message_builder import batch_of, build

from kbroker.apis.serving.dispatch import Dispatcher
from kbroker.apis.serving.served import served_apis
from kbroker.base.errors import ErrorCode
from kbroker.network.connection import Commons
from kbroker.network.limits import Limits
from kbroker.network.reactor import Reactor
from kbroker.record.batch import iter_batches
from kbroker.record.records import decode_records

PARTITIONS = 2
FEW = {'transaction.state.log.num.partitions': '1', 'offsets.topic.num.partitions': '1'}
VERSION = 12


class Bursts:
    """A broker with a topic `orders`, and peers that send requests to the broker over sockets.

    `send` sends all requests from the first peer, at once or one by one. `send_from_each` sends one request from each
    peer, all in one tick.
    """

    def __init__(self, directory, durability='page-cache', fs=None, peers=1):
        self.directory = pathlib.Path(directory)
        self.node = InProcessBroker(directory, FEW | {'kbroker.durability': durability}, fs=fs).__enter__()
        self.node.topics.create('orders', PARTITIONS, {})
        self.node.long_work.finish()    # the directories of the partitions are made
        self.reactor = Reactor(self.node.clock, self.node.timers)
        self.reactor.at_tick_end.append(self.node.end_tick)
        dispatcher = Dispatcher(self.node, served_apis(), self.node.tick)
        commons = Commons(self.reactor, dispatcher, Limits(max_request_bytes=1 << 20))
        self.peers = [Peer(self.reactor, None, 1 << 20, commons) for _ in range(peers)]
        self.peer = self.peers[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for peer in self.peers:
            peer.connection.close('the test ends')
            peer.socket.close()
        self.reactor.close()
        self.node.__exit__(None, None, None)

    def send(self, requests, *, at_once=True):
        """Send the requests from one peer. Return the answers in the order of the requests, without entries for
        unanswered requests."""
        frames = [frame(frame_of(request, VERSION, correlation_id=number)) for number, request in enumerate(requests)]
        received = bytearray()
        for data in [b''.join(frames)] if at_once else frames:
            self.peer.send(data)
            received += self.peer.receive()
        return split(received)

    def send_from_each(self, requests):
        """Send one request from each peer. Return the answers."""
        for number, (peer, request) in enumerate(zip(self.peers, requests, strict=True)):
            peer.socket.send(frame(frame_of(request, VERSION, correlation_id=number)))
        return [reply for peer in self.peers for reply in split(peer.receive())]

    def make_busy(self):
        """Append twice in one tick. A partition gathers appends only after a tick with several appends."""
        requests = [produce(self.node, b'a') for _ in range(2)]
        assert produced(requests, self.send(requests)) == [(0, 0), (0, 1)]

    def files(self):
        """Return {path: content} of the topic's log files."""
        return {path: (self.directory / path).read_bytes() for path in
                sorted(path.relative_to(self.directory) for path in self.directory.glob('orders-*/*.log'))}


def split(received):
    replies = []
    received = bytearray(received)
    while received:
        size = int.from_bytes(received[:4], 'big')
        replies.append(bytes(received[4:4 + size]))
        del received[:4 + size]
    return replies


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
    """Return (error code, base offset) from each reply."""
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
    if durability == 'disk':        # a fetch sees only what the disk has synced by then
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
        bursts.make_busy()
        fs.writes = 0
        requests = [produce(bursts.node, b'v' * 1000) for _ in range(5)]
        assert produced(requests, bursts.send(requests)) == [(0, offset) for offset in range(2, 7)]
        assert fs.writes == 1


def test_a_long_burst_is_written_from_where_it_lies(tmp_path):
    """The burst is larger than the arena, so the broker writes its bytes from the receive buffer. The next connection
    that the broker reads overwrites this buffer."""
    fs = CountedWrites()
    with Bursts(tmp_path, fs=fs, peers=2) as bursts:
        bursts.make_busy()
        fs.writes = 0
        requests = [produce(bursts.node, bytes([48 + at]) * 30_000) for at in range(4)]
        data = [b''.join(frame(frame_of(request, VERSION)) for request in requests[at:at + 2]) for at in (0, 2)]
        for _ in range(2):
            for peer, half in zip(bursts.peers, data, strict=True):
                peer.socket.send(half)
            for peer in bursts.peers:
                assert len(split(peer.receive())) == 2
        values = [record.value[:1] for _, batch in bursts.node.logs.logs['orders', 0].batches(2)
                  for record in decode_records(batch)]
        assert values == [b'0', b'1', b'2', b'3'] * 2
        assert fs.writes < 8


@pytest.mark.parametrize('durability', ['page-cache', 'disk'])
def test_appends_of_several_connections_to_a_partition_are_one_write(tmp_path, durability):
    fs = CountedWrites()
    with Bursts(tmp_path, durability, fs, peers=5) as bursts:
        bursts.make_busy()
        fs.writes = 0
        requests = [produce(bursts.node, bytes([48 + at]) * 1000) for at in range(5)]
        assert produced(requests, bursts.send_from_each(requests)) == [(0, offset) for offset in range(2, 7)]
        assert fs.writes == 1
        values = [record.value[:1] for _, batch in bursts.node.logs.logs['orders', 0].batches(2)
                  for record in decode_records(batch)]
        assert values == [b'0', b'1', b'2', b'3', b'4']


def test_a_partition_where_appends_come_alone_writes_each_at_once(tmp_path):
    """The partition writes a lone append at once, because gathering it would only add a copy. After a tick with several
    appends, the partition gathers the appends of each tick."""
    with Bursts(tmp_path) as bursts:
        for offset in range(3):
            bursts.peer.socket.send(frame(frame_of(produce(bursts.node, b'a'), VERSION)))
            bursts.reactor.run_once()
            assert not bursts.node.tick
            assert bursts.node.topics.get('orders', 0).high_watermark == offset + 1


def test_what_is_gathered_can_be_read_in_the_same_turn_up_to_what_was_written_before(tmp_path):
    """The fetch finds its last batch by reading batch headers. Some of these headers are not in the file yet."""
    with Bursts(tmp_path, peers=81) as bursts:
        bursts.make_busy()
        requests = [*[produce(bursts.node, b'a') for _ in range(80)], fetch()]
        *answers, fetched = bursts.send_from_each(requests)
        assert produced(requests[:80], answers) == [(0, offset) for offset in range(2, 82)]
        partition, = read_answer(requests[-1], VERSION, fetched).responses[0].partitions
        assert (partition.error_code, partition.high_watermark) == (0, 2)
        assert [header.last_offset for header, _ in iter_batches(partition.records)] == [0, 1]


def test_more_than_the_arena_holds_is_written_in_between(tmp_path):
    with Bursts(tmp_path, peers=30) as bursts:
        bursts.make_busy()
        requests = [produce(bursts.node, b'v' * 20_000) for _ in range(30)]
        assert produced(requests, bursts.send_from_each(requests)) == [(0, offset) for offset in range(2, 32)]
        log = bursts.node.logs.logs['orders', 0]
        assert [header.last_offset for header, _ in log.batches(2)] == [*range(2, 32)]


@pytest.mark.parametrize('peers', [1, 3])
def test_what_was_gathered_and_cannot_be_written_is_refused_and_not_in_the_log(tmp_path, peers):
    fs = CountedWrites()
    with Bursts(tmp_path, fs=fs, peers=peers) as bursts:
        bursts.make_busy()
        fs.code, fs.partial_bytes = errno.EIO, 100
        requests = [produce(bursts.node, b'a') for _ in range(3)]
        replies = bursts.send(requests) if peers == 1 else bursts.send_from_each(requests)
        assert produced(requests, replies) == [(ErrorCode.KAFKA_STORAGE_ERROR, -1)] * 3
        bursts.node.crash()
    with InProcessBroker(tmp_path, FEW) as node:
        assert node.topics.get('orders', 0).log_end_offset == 2


def test_what_was_gathered_and_is_written_in_part_is_refused_as_a_whole(tmp_path):
    with Bursts(tmp_path) as bursts:
        bursts.make_busy()
        written_bytes = len(bursts.files()[pathlib.Path('orders-0', '0' * 20 + '.log')])
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (written_bytes * 7 // 4, limits[1]))
        try:
            requests = [produce(bursts.node, b'a') for _ in range(3)]
            assert produced(requests, bursts.send(requests)) == [(ErrorCode.KAFKA_STORAGE_ERROR, -1)] * 3
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert len(bursts.files()[pathlib.Path('orders-0', '0' * 20 + '.log')]) == written_bytes
        bursts.node.crash()


def test_a_topic_that_is_deleted_in_the_turn_of_an_append_answers_it(tmp_path):
    with Bursts(tmp_path, peers=3) as bursts:
        bursts.make_busy()
        appends = [produce(bursts.node, b'a') for _ in range(2)]
        deletion = build('DeleteTopicsRequest', topic_names=['orders'], timeout_ms=1000)
        for peer, request, version in zip(bursts.peers, [*appends, deletion], [VERSION, VERSION, 5], strict=True):
            peer.socket.send(frame(frame_of(request, version)))
        replies = [reply for peer in bursts.peers for reply in split(peer.receive())]
        assert produced(appends, replies[:2]) == [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)] * 2
        assert [topic.error_code for topic in read_answer(deletion, 5, replies[2]).responses] == [0]


def test_a_connection_that_ends_within_a_burst_takes_nothing_with_it(tmp_path):
    """The unwritten bytes of the burst are in a buffer that the connection owns."""
    with Bursts(tmp_path) as bursts:
        requests = [produce(bursts.node, b'v' * 20_000), produce(bursts.node, b'v' * 20_000)]
        frames = [frame(frame_of(request, VERSION)) for request in requests]
        bursts.peer.send(b''.join(frames) + frame(b'no request') + frames[0])
        bursts.peer.settle()
        assert bursts.peer.connection.is_closed
        log = bursts.node.logs.logs['orders', 0]
        assert [header.last_offset for header, _ in log.batches()] == [0, 1]
