"""Replies from files that are not in the page cache. Only the connection of such a reply waits for the disk."""
import gc
import logging
import socket
import sys

import pytest
from support.clients.socket_peers import (
    CallingServer,
    ColdFile,
    DeferringHandler,
    LateWorker,
    Peer,
    Slice,
    commons_for,
    echo,
    frame,
)

from kbroker.network.limits import Limits
from kbroker.network.server import Endpoint, Hooks, Server
from kbroker.network.worker import Worker

CONTENT = bytes(range(256)) * 400
MEBIBYTE = 1 << 20


@pytest.fixture
def cold(tmp_path):
    def cold(content=CONTENT):
        (tmp_path / 'segment').write_bytes(content)
        return ColdFile(str(tmp_path / 'segment'))

    return cold


@pytest.fixture
def worker(reactor):
    return LateWorker(reactor)


@pytest.fixture
def connect_to(reactor, connect, worker):
    """Return a function that connects a peer which `handle` serves, with a worker for cold reads."""
    def connect_to(handle):
        closed = []
        peer = connect(handle, commons=commons_for(reactor, handle, closed.append, worker.submit))
        peer.closed = closed
        return peer

    return connect_to


@pytest.fixture
def fetch(connect_to):
    """Return a function that returns a peer to whose request the broker replies with `segments`."""
    def fetch(*segments):
        handler = DeferringHandler(pipelined=True)
        peer = connect_to(handler)
        peer.send(frame(b'fetch'))
        handler.answer(0, list(segments))
        peer.settle()
        peer.handler = handler
        return peer

    return fetch


def test_what_is_staged_is_sent_and_the_cold_rest_when_a_worker_has_read_it(fetch, cold, worker):
    file = cold()
    file.warm_bytes = 1000
    peer = fetch(b'head', Slice(file, 500, 2000), b'tail')
    expected = frame(b'head' + CONTENT[500:2500] + b'tail')
    assert peer.receive() == expected[:8 + 500]
    assert len(worker.jobs) == 1
    worker.work()
    assert peer.receive() == expected[8 + 500:]
    assert not worker.jobs
    assert peer.connection.replies.queued_bytes == peer.connection.replies.memory_bytes == 0


def test_replies_behind_a_cold_one_wait_their_turn(fetch, cold, worker):
    file = cold()
    file.warm_bytes = 10
    peer = fetch(b'0', Slice(file, 10, 20), Slice(file, 0, 10))
    peer.send(frame(b'next') + frame(b'cold'))
    peer.handler.answer(1, [b'A' * 40_000])
    peer.handler.answer(2, [Slice(file, 40, 5)])
    first, later = frame(b'0' + CONTENT[10:30] + CONTENT[:10]), frame(b'A' * 40_000) + frame(CONTENT[40:45])
    assert peer.receive() == first[:5]
    assert len(worker.jobs) == 1
    worker.work()
    assert peer.receive() == first[5:] + later[:-5]
    worker.work()
    assert peer.receive() == later[-5:]
    assert not worker.jobs


def test_requests_are_taken_while_a_reply_is_cold(fetch, cold, worker):
    peer = fetch(Slice(cold(), 0, 10))
    peer.send(frame(b'next'))
    assert peer.handler.bodies == [b'fetch', b'next'] and len(worker.jobs) == 1


def test_other_connections_are_served_meanwhile(reactor, connect, fetch, cold, worker):
    file = cold()
    waiting = fetch(Slice(file, 0, 1000))
    other = connect(None, commons=commons_for(reactor, echo, submit=worker.submit))
    other.send(frame(b'hello'))
    assert other.receive() == frame(b'hello')
    assert waiting.receive() == frame(CONTENT[:1000])[:4]
    worker.work()
    assert waiting.receive() == frame(CONTENT[:1000])[4:]


def test_a_connection_that_waits_for_the_disk_asks_the_loop_for_nothing(reactor, fetch, cold, worker):
    peer = fetch(Slice(cold(), 0, 1000))
    peer.receive()
    assert [reactor.run_once() for _ in range(3)] == [0, 0, 0]
    assert len(worker.jobs) == 1


def test_what_is_evicted_again_is_read_all_the_same(fetch, cold, worker):
    file = cold()
    file.evicts_again = True
    peer = fetch(Slice(file, 0, 1000), Slice(file, 5000, 1000))
    received = peer.receive()
    for left in (1, 0):
        worker.work()
        received += peer.receive()
        assert len(worker.jobs) == left
    assert received == frame(CONTENT[:1000] + CONTENT[5000:6000])


def test_a_long_slice_is_warmed_as_it_is_sent(fetch, cold, worker):
    content = CONTENT * 40
    file = cold(content)
    peer = fetch(Slice(file, 0, len(content)))
    received = peer.receive()
    while worker.jobs:
        warm_bytes = file.warm_bytes
        worker.work()
        assert 0 < file.warm_bytes - warm_bytes <= MEBIBYTE + 4096
        received += peer.receive()
    assert received == frame(content)


def test_without_a_worker_cold_slices_are_read_at_once(deferred, cold):
    handler, peer = deferred
    peer.send(frame(b'fetch'))
    handler.answer(0, [Slice(cold(), 0, 1000), Slice(cold(), 7, 1000)])
    assert peer.receive() == frame(CONTENT[:1000] + CONTENT[7:1007])


def test_a_file_that_became_shorter_closes_the_connection(fetch, cold, worker, caplog):
    peer = fetch(Slice(cold(b'short'), 0, 10))
    worker.work()
    assert len(peer.receive()) == 4 and peer.is_cut_off and len(peer.closed) == 1
    assert 'segment: found 5 bytes at 0, expected 10' in caplog.text


def test_a_worker_that_cannot_read_closes_the_connection(fetch, cold, worker, caplog, monkeypatch):
    def warm(self, size, position):
        raise OSError(5, 'Input/output error')

    monkeypatch.setattr(ColdFile, 'warm', warm)
    peer = fetch(Slice(cold(), 0, 10))
    worker.work()
    assert len(peer.receive()) == 4 and peer.is_cut_off and len(peer.closed) == 1
    assert 'the reply cannot be read: [Errno 5] Input/output error' in caplog.text


@pytest.mark.parametrize('has_read', [False, True])
def test_a_connection_that_closes_while_it_waits_is_left_alone(reactor, fetch, cold, worker, has_read):
    file = cold()
    body = b'x' * 100_000
    peer = fetch(Slice(file, 0, 10), body)
    references = sys.getrefcount(body)
    if has_read:
        worker.work()
    peer.connection.close('the test closes it', logging.DEBUG)
    gc.collect()
    assert sys.getrefcount(body) < references, 'the unsent bytes are still referenced'
    assert peer.connection.replies.queued_bytes == 0
    if not has_read:
        worker.work()
        assert file.warm_bytes == 0, 'the worker has read for a peer that has left'
    peer.settle()
    assert len(peer.closed) == 1 and not worker.jobs


def test_a_peer_that_resets_while_its_reply_is_cold_is_forgotten(fetch, cold, worker):
    peer = fetch(Slice(cold(), 0, 10))
    peer.socket.close()
    peer.settle()
    assert len(peer.closed) == 1
    worker.work()
    peer.settle()


def test_a_peer_whose_reply_is_cold_is_not_idle(fetch, cold, worker):
    peer = fetch(Slice(cold(), 0, 10))
    for _ in range(10):
        peer.commons.sweep([peer.connection])
    assert not peer.connection.is_closed


def test_a_leaving_connection_sends_its_cold_reply_first(fetch, cold, worker):
    peer = fetch(Slice(cold(), 0, 10))
    peer.connection.close_after_flush()
    peer.settle()
    assert not peer.connection.is_closed
    worker.work()
    assert peer.receive() == frame(CONTENT[:10])
    assert peer.connection.is_closed


@pytest.fixture
def served(reactor, cold, worker):
    """Yield a server whose only client waits for a cold reply, and the client."""
    def answer(connection, sequence, request):
        connection.reply(sequence, [Slice(file, 0, 10)])

    file = cold()
    server = Server(reactor, [Endpoint('127.0.0.1', 0)], CallingServer(answer), Limits(max_request_bytes=1 << 20),
                    hooks=Hooks(submit=worker.submit))
    with socket.create_connection(server.addresses[0], timeout=180) as client:
        client.sendall(frame(b'fetch'))
        while not worker.jobs:
            reactor.run_once(60_000)
        yield server, client


def test_a_drain_waits_for_a_cold_reply(reactor, served, worker):
    server, client = served
    drained = []
    server.drain(1000, lambda: drained.append(1))
    reactor.run_once()
    assert not drained
    worker.work()
    while not drained:
        reactor.run_once(60_000)
    assert client.recv(100, socket.MSG_WAITALL) == frame(CONTENT[:10])


def test_a_drain_ends_at_its_deadline_though_the_disk_does_not_answer(reactor, clock, served, worker):
    server, _ = served
    drained = []
    server.drain(1000, lambda: drained.append(1))
    clock.advance(1000)
    reactor.run_once()
    assert drained == [1]
    worker.work()
    reactor.run_once()


def test_a_worker_thread_and_the_loop_serve_cold_files_together(reactor, tmp_path):
    worker = Worker(reactor)
    peers = []
    for index in range(8):
        path = tmp_path / str(index)
        path.write_bytes(CONTENT[index:] * 30)
        handler = DeferringHandler()
        peer = Peer(reactor, handler, 1000, commons_for(reactor, handler, submit=worker.submit, max_request_bytes=1000))
        peer.send(frame(b'fetch'))
        handler.answer(0, [b'head', Slice(ColdFile(str(path)), 0, path.stat().st_size)])
        peers.append((peer, frame(b'head' + path.read_bytes()), bytearray()))
    while any(len(received) < len(expected) for _, expected, received in peers):
        reactor.run_once(10)
        for peer, _, received in peers:
            received += peer.receive()
    assert all(received == expected for _, expected, received in peers)
    worker.close()
    for peer, _, _ in peers:
        peer.connection.close('the test ends', logging.DEBUG)
        peer.socket.close()
