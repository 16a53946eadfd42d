"""The memory of all connections together is bounded, and no connection waits forever at the bound."""
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.socket_peers import DeferringHandler, Peer, commons_for, echo, frame

from kbroker.clock import ManualClock, Timers
from kbroker.log.fs import File
from kbroker.network.connection import SMALL_BYTES
from kbroker.network.reactor import Reactor

LIMIT = 100_000
LONG = frame(bytes(150_000))


def swallow(connection, sequence, request):
    connection.reply(sequence, None)


@pytest.fixture
def share(reactor, connect):
    """A function that returns peers whose connections share one bound."""
    def share(handle, count, max_held_bytes=LIMIT):
        commons = commons_for(reactor, handle, max_held_bytes=max_held_bytes)
        return [connect(handle, commons=commons) for _ in range(count)]

    return share


def test_a_frame_that_is_not_whole_counts_as_much_as_it_announces(share):
    (peer,) = share(swallow, 1)
    peer.send(LONG[:10])
    assert peer.commons.held_bytes == len(LONG)
    peer.send(LONG[10:])
    assert peer.commons.held_bytes == 0 and peer.commons.requests == 1


def test_at_the_bound_a_long_frame_waits_and_a_short_one_passes(share):
    first, second, third = share(swallow, 3)
    first.send(LONG[:10])
    rest = second.offer(LONG)
    assert second.connection.framer.pending_bytes <= SMALL_BYTES
    assert not second.connection.is_reading
    assert second.commons.requests == 0
    third.send(frame(bytes(SMALL_BYTES - 4)) + frame(b'short'))
    assert third.commons.requests == 2
    first.send(LONG[10:])
    while rest:
        rest = second.offer(rest)
    second.settle()
    assert second.commons.requests == 4
    assert second.connection.is_reading
    assert second.commons.held_bytes == 0


def test_frames_that_have_begun_may_come_to_their_end_at_the_bound(share):
    peers = share(swallow, 3)
    for peer in peers:
        peer.send(frame(bytes(60_000))[:50])
    assert peers[0].commons.held_bytes == 120_008, 'the third one waits'
    for peer in peers:
        peer.send(frame(bytes(60_000))[50:])
    assert peers[0].commons.requests == 3
    assert peers[0].commons.held_bytes == 0


def test_a_long_request_counts_until_it_is_answered(share):
    handler = DeferringHandler(pipelined=True)
    first, second = share(handler, 2)
    first.send(frame(bytes(60_000)) * 2 + frame(b'short'))
    assert first.commons.held_bytes == 120_000
    second.offer(LONG)
    assert len(handler.requests) == 3
    handler.answer(1, [])
    assert first.commons.held_bytes == 120_000, 'the count is updated at the end of the tick'
    second.settle()
    assert first.commons.held_bytes == 60_000 + len(LONG)


def test_a_reply_counts_until_the_peer_takes_it(share):
    def answer(connection, sequence, request):
        connection.reply(sequence, [bytes(600_000)])

    first, second = share(answer, 2)
    first.send(frame(b'fetch'))
    first.send(frame(b'fetch') * 2)
    assert first.commons.requests == 1, 'the others would add replies'
    assert first.commons.held_bytes == 600_000
    rest = second.offer(LONG)
    assert first.commons.requests == 1
    assert first.receive() == frame(bytes(600_000)) * 3
    while rest:
        rest = second.offer(rest)
    assert second.receive() == frame(bytes(600_000))
    assert second.commons.held_bytes == 0


def test_a_peer_that_takes_no_reply_does_not_keep_short_requests_of_others_waiting(share):
    def answer(connection, sequence, request):
        connection.reply(sequence, [bytes(600_000) if request == b'greedy' else b'small'])

    greedy, modest = share(answer, 2)
    greedy.send(frame(b'greedy'))
    assert greedy.commons.held_bytes > LIMIT
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
    assert peer.commons.held_bytes == 4
    assert len(peer.receive()) == size + 8
    assert peer.commons.held_bytes == 0


def test_a_connection_that_closes_gives_back_what_it_held(share):
    handler = DeferringHandler()
    first, second, third = share(handler, 3)
    first.send(frame(bytes(60_000)))
    second.send(LONG[:50_000])
    rest = third.offer(LONG)
    first.connection.close('the test says so')
    second.connection.close('the test says so')
    assert first.commons.held_bytes == 0
    while rest:
        rest = third.offer(rest)
    third.settle()
    assert len(handler.requests) == 2
    handler.answer(0, [])
    third.connection.close('the test says so')
    assert first.commons.held_bytes == 0


def test_a_connection_that_waits_for_memory_is_not_idle(share):
    first, second = share(swallow, 2)
    first.send(LONG[:10])
    second.offer(LONG)
    while not first.connection.is_closed:
        second.commons.sweep([first.connection, second.connection])
    assert not second.connection.is_closed
    second.settle()
    assert second.connection.is_reading


def test_without_a_bound_everything_is_read(share):
    peers = share(swallow, 3, max_held_bytes=-1)
    for peer in peers:
        peer.send(LONG[:-1])
    assert peers[0].commons.held_bytes >= 3 * len(LONG)


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
    assert commons.held_bytes == 0
    for peer in peers:
        peer.connection.close('the test ends')
        peer.socket.close()
    reactor.close()


def test_a_frame_that_its_handler_keeps_counts_until_it_is_forgotten(share):
    """The connection may close meanwhile: a peer could otherwise leave its frames behind uncounted."""
    kept = []
    first, second = share(lambda connection, sequence, request: kept.append(connection.keep_frame()), 2, 10**9)
    first.send(LONG)
    second.send(LONG)
    assert first.commons.held_bytes == 2 * (len(LONG) - 4)
    first.connection.close('a test')
    second.connection.reply(0, b'done')
    second.settle()
    assert first.commons.held_bytes == 2 * (len(LONG) - 4)
    del kept[0]
    assert first.commons.held_bytes == len(LONG) - 4
    kept.clear()
    assert first.commons.held_bytes == 0


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
    assert kept == [None] and peer.commons.held_bytes == 0
