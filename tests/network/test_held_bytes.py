"""The memory of all connections together is bounded, and no connection waits forever at the bound."""
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clients.socket_peers import DeferringHandler, Peer, commons_for, echo, frame

from kbroker.base.clock import ManualClock, Timers
from kbroker.log.fs import File
from kbroker.network.memory import RELIEF_INTERVAL_MS, SMALL_BYTES
from kbroker.network.reactor import Reactor

LIMIT = 100_000
LONG = frame(bytes(150_000))
FULL = frame(bytes(300_000))
HELD = FULL[:120_000]
"""The beginning of a frame whose buffer takes all memory that connections may hold."""


def swallow(connection, sequence, request):
    connection.reply(sequence, None)


@pytest.fixture
def share(reactor, connect):
    """Return a function that returns peers whose connections share one bound."""
    def share(handle, count, max_held_bytes=LIMIT):
        commons = commons_for(reactor, handle, max_held_bytes=max_held_bytes)
        return [connect(handle, commons=commons) for _ in range(count)]

    return share


def test_a_frame_that_is_not_whole_counts_as_much_as_its_buffer(share):
    (peer,) = share(swallow, 1)
    peer.send(LONG[:10])
    assert peer.commons.memory.held_bytes == 0
    peer.send(LONG[10:90_000])
    assert 90_000 <= peer.commons.memory.held_bytes <= 180_000
    peer.send(LONG[90_000:])
    assert peer.commons.memory.held_bytes == 0 and peer.commons.requests == 1


def test_a_frame_that_is_announced_and_does_not_come_takes_no_memory_from_others(share):
    silent = share(swallow, 20)
    for peer in silent:
        peer.send((1 << 20).to_bytes(4, 'big') + bytes(1000))
    commons = silent[0].commons
    assert commons.memory.held_bytes == 0
    (modest,) = [Peer(commons.reactor, swallow, 1 << 20, commons)]
    modest.send(LONG)
    assert commons.requests == 1
    modest.connection.close('the test ends')


def test_at_the_bound_one_long_frame_goes_on_the_next_waits_and_a_short_one_passes(share):
    first, second, third, fourth = share(swallow, 4)
    first.send(HELD)
    second.send(LONG[:50_000])
    rest = third.offer(LONG)
    assert third.connection.framer.pending_bytes <= SMALL_BYTES
    assert not third.connection.is_reading
    assert third.commons.requests == 0
    fourth.send(frame(bytes(SMALL_BYTES - 4)) + frame(b'short'))
    assert third.commons.requests == 2
    second.send(LONG[50_000:])
    while rest:
        rest = third.offer(rest)
    third.settle()
    assert third.commons.requests == 4
    assert third.connection.is_reading
    first.send(FULL[len(HELD):])
    assert first.commons.requests == 5
    assert first.commons.memory.held_bytes == 0


def test_frames_that_have_begun_come_to_their_end_at_the_bound_one_by_one(share):
    peers = share(swallow, 5)
    for peer in peers:
        peer.send(frame(bytes(60_000))[:50_000])
    assert peers[0].commons.memory.held_bytes <= LIMIT + 2 * 65536, 'the fourth one waits'
    for peer in peers:
        peer.send(frame(bytes(60_000))[50_000:])
    for _ in range(5):
        peers[0].settle()
    assert peers[0].commons.requests == 5
    assert peers[0].commons.memory.held_bytes == 0


def test_a_peer_that_holds_memory_and_moves_nothing_is_closed_while_others_wait(share, clock, caplog):
    silent, leader, waiting = share(swallow, 3)
    silent.send(HELD)
    leader.send(LONG[:50_000])
    rest = waiting.offer(LONG)
    assert not waiting.connection.is_reading
    for _ in range(2):
        clock.advance(RELIEF_INTERVAL_MS)
        waiting.settle()
    assert silent.connection.is_closed and leader.connection.is_closed
    assert 'closed 2 connections' in caplog.text
    while rest:
        rest = waiting.offer(rest)
    for _ in range(5):
        waiting.settle()
    assert waiting.commons.requests == 1


def test_a_peer_that_holds_memory_and_moves_is_not_closed(share, clock):
    slow, waiting = share(swallow, 2, max_held_bytes=10_000)
    slow.send(HELD)
    rest = waiting.offer(LONG + LONG)
    for part in range(4):
        slow.offer(FULL[len(HELD) + part * 40_000:][:40_000])
        rest = waiting.offer(rest)
        clock.advance(RELIEF_INTERVAL_MS // 2)
        waiting.settle()
    assert not slow.connection.is_closed


def test_frames_that_fill_the_memory_and_trickle_give_way(share, clock):
    """The peers that send single bytes wait for memory, too: the broker does not read what they send."""
    trickling = share(swallow, 5)
    for peer in trickling:
        peer.offer(HELD)
    waiting = Peer(trickling[0].reactor, swallow, 1 << 20, trickling[0].commons)
    rest = waiting.offer(LONG)
    for _ in range(10):
        for peer in trickling:
            if not peer.connection.is_closed:
                peer.offer(b'x')
        clock.advance(RELIEF_INTERVAL_MS)
        rest = waiting.offer(rest)
        if waiting.commons.requests:
            break
    assert waiting.commons.requests == 1
    assert not waiting.connection.is_closed
    waiting.connection.close('the test ends')


def test_replies_that_no_client_takes_stop_short_requests_too_at_last(share, clock):
    reply = bytes(1 << 20)

    def answer(connection, sequence, request):
        connection.reply(sequence, [reply])

    peers = share(answer, 40)
    for peer in peers:
        peer.send(frame(b'fetch'))
    assert peers[0].commons.memory.held_bytes <= LIMIT + 18 * len(reply)
    for _ in range(2):
        clock.advance(RELIEF_INTERVAL_MS)
        for _ in range(10):
            peers[0].settle()
    assert sum(peer.connection.is_closed for peer in peers) >= 15
    modest = Peer(peers[0].reactor, answer, 1 << 20, peers[0].commons)
    modest.send(frame(b'fetch'))
    assert modest.receive() == frame(reply)
    modest.connection.close('the test ends')


def test_a_long_request_counts_until_it_is_answered(share):
    handler = DeferringHandler(pipelined=True)
    first, second = share(handler, 2)
    first.send(frame(bytes(60_000)) * 2 + frame(b'short'))
    assert first.commons.memory.held_bytes == 120_000
    second.offer(LONG)
    assert len(handler.requests) == 3
    handler.answer(1, [])
    assert first.commons.memory.held_bytes == 120_000, 'the count is updated at the end of the tick'
    second.settle()
    assert first.commons.memory.held_bytes == 60_000 + second.connection.framer.held_bytes
    assert second.connection.framer.held_bytes > 60_000


def test_a_reply_counts_until_the_peer_takes_it(share):
    def answer(connection, sequence, request):
        connection.reply(sequence, [bytes(600_000)])

    first, second = share(answer, 2)
    first.send(frame(b'fetch'))
    first.send(frame(b'fetch') * 2)
    assert first.commons.requests == 1, 'the others would add replies'
    assert first.commons.memory.held_bytes == 600_000
    rest = second.offer(LONG)
    assert first.commons.requests == 1
    assert first.receive() == frame(bytes(600_000)) * 3
    while rest:
        rest = second.offer(rest)
    assert second.receive() == frame(bytes(600_000))
    assert second.commons.memory.held_bytes == 0


def test_a_peer_that_takes_no_reply_does_not_keep_short_requests_of_others_waiting(share):
    def answer(connection, sequence, request):
        connection.reply(sequence, [bytes(600_000) if request == b'greedy' else b'small'])

    greedy, modest = share(answer, 2)
    greedy.send(frame(b'greedy'))
    assert greedy.commons.memory.held_bytes > LIMIT
    for _ in range(3):
        modest.send(frame(b'modest') * 3)
        assert modest.receive() == frame(b'small') * 3


def test_slices_of_files_hold_no_memory(share, tmp_path):
    size = 64 << 20     # no socket accepts that at once
    with open(tmp_path / 'segment', 'wb') as segment:
        segment.truncate(size)
    file = File(str(tmp_path / 'segment'))
    (peer,) = share(lambda connection, sequence, request: connection.reply(
        sequence, [b'head', SimpleNamespace(file=file, position=0, size_bytes=size)]), 1)
    peer.send(frame(b'fetch'))
    assert peer.connection.replies.queued_bytes > 0
    assert peer.commons.memory.held_bytes == 4
    assert len(peer.receive()) == size + 8
    assert peer.commons.memory.held_bytes == 0


def test_a_connection_that_closes_gives_back_what_it_held(share):
    handler = DeferringHandler()
    first, second, third = share(handler, 3)
    second.send(LONG[:50_000])
    first.send(frame(bytes(120_000)))
    rest = third.offer(LONG)
    assert not third.connection.is_reading and first.commons.memory.held_bytes >= 170_000
    first.connection.close('the test says so')
    second.connection.close('the test says so')
    assert first.commons.memory.held_bytes == 0
    while rest:
        rest = third.offer(rest)
    third.settle()
    assert len(handler.requests) == 2
    handler.answer(0, [])
    third.connection.close('the test says so')
    assert first.commons.memory.held_bytes == 0


def test_a_connection_that_waits_for_memory_is_not_idle(share):
    first, second, third = share(swallow, 3)
    first.send(HELD)
    second.send(LONG[:50_000])
    third.offer(LONG)
    while not first.connection.is_closed:
        third.commons.sweep([first.connection, second.connection, third.connection])
    assert not third.connection.is_closed
    third.settle()
    assert third.connection.is_reading


def test_without_a_bound_everything_is_read(share):
    peers = share(swallow, 3, max_held_bytes=-1)
    for peer in peers:
        peer.send(LONG[:-1])
    assert peers[0].commons.memory.held_bytes >= 3 * len(LONG)


@settings(max_examples=50, deadline=None)
@given(data=st.data(), limit=st.integers(1, 40_000))
def test_every_request_is_served_at_last_however_small_the_bound(data, limit):
    reactor = Reactor(ManualClock(), Timers(ManualClock()))
    commons = commons_for(reactor, echo, max_request_bytes=1 << 16, max_held_bytes=limit)
    sizes = st.lists(st.integers(0, 30_000), min_size=1, max_size=5)
    streams = data.draw(st.lists(sizes, min_size=1, max_size=4))
    peers = [Peer(reactor, echo, 1 << 16, commons) for _ in streams]
    unsent = [b''.join(frame(bytes([index]) * size) for size in stream) for index, stream in enumerate(streams)]
    expected, received = list(unsent), [b''] * len(peers)
    for _ in range(10_000):
        if received == expected:
            break
        index = data.draw(st.integers(0, len(peers) - 1)) if any(unsent) else 0
        if unsent[index]:
            size = data.draw(st.integers(1, len(unsent[index])))
            unsent[index] = peers[index].offer(unsent[index][:size]) + unsent[index][size:]
        else:
            received = [data + peer.receive() for data, peer in zip(received, peers, strict=True)]
            unsent = [peer.offer(rest) for peer, rest in zip(peers, unsent, strict=True)]
    assert received == expected
    assert commons.memory.held_bytes == 0
    for peer in peers:
        peer.connection.close('the test ends')
        peer.socket.close()
    reactor.close()


def test_a_frame_that_its_handler_keeps_counts_until_it_is_forgotten(share):
    """The frame also counts after its connection has closed. Otherwise a peer could leave uncounted frames in
    memory."""
    kept = []
    first, second = share(lambda connection, sequence, request: kept.append(connection.keep_frame()), 2, 10**9)
    first.send(LONG)
    second.send(LONG)
    assert first.commons.memory.held_bytes == 2 * (len(LONG) - 4)
    first.connection.close('a test')
    second.connection.reply(0, b'done')
    second.settle()
    assert first.commons.memory.held_bytes == 2 * (len(LONG) - 4)
    del kept[0]
    assert first.commons.memory.held_bytes == len(LONG) - 4
    kept.clear()
    assert first.commons.memory.held_bytes == 0


def test_forgetting_a_kept_frame_admits_those_that_wait_for_memory(share):
    kept = []

    def keep(connection, sequence, request):
        kept.append(connection.keep_frame())
        connection.reply(sequence, None)

    first, second = share(keep, 2)
    first.send(LONG)
    rest = second.offer(LONG)
    assert second.commons.requests == 1
    first.connection.close('a test')
    kept.clear()
    while rest:
        rest = second.offer(rest)
    second.settle()
    assert second.commons.requests == 2


def test_a_kept_frame_stays_as_it_is_while_the_connection_reads_on(share):
    kept = []

    def keep(connection, sequence, request):
        frame = connection.keep_frame()
        kept.append((frame, bytes(request)))
        connection.reply(sequence, None)

    (peer,) = share(keep, 1, 10**9)
    sizes = (150_000, 200_000, 10, 170_000, 300_000, 40_000) * 3
    bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
    peer.send(b''.join(map(frame, bodies)))
    assert [body for _, body in kept] == bodies
    in_own_buffers = [(held.buffer, body) for held, body in kept if held.buffer is not None]
    assert len(in_own_buffers) > 5
    assert all(body in held for held, body in in_own_buffers)


def test_a_closed_connection_keeps_no_frame(share):
    kept = []

    def close(connection, sequence, request):
        connection.close('a test')
        kept.append(connection.keep_frame())

    (peer,) = share(close, 1)
    peer.send(LONG)
    assert kept == [None] and peer.commons.memory.held_bytes == 0
