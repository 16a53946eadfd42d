import contextlib
import pathlib
import sys
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clients.socket_peers import DeferringHandler, Peer, Slice, frame

from kbroker.base.clock import ManualClock, Timers
from kbroker.log.fs import Directory, File
from kbroker.network.reactor import Reactor


@pytest.fixture
def write(tmp_path):
    def write(content):
        (tmp_path / 'segment').write_bytes(content)
        return File(str(tmp_path / 'segment'))

    return write


@pytest.mark.parametrize('order', [(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0), (2, 0, 1)])
def test_replies_leave_in_the_order_of_the_requests(pipelined, order):
    handler, peer = pipelined
    peer.send(frame(b'a') + frame(b'b') + frame(b'c'))
    for index in order:
        handler.answer(index, [handler.requests[index].body.upper()])
    assert peer.receive() == frame(b'A') + frame(b'B') + frame(b'C')
    assert peer.connection.replies.unanswered == peer.connection.replies.queued_bytes == 0


def test_a_request_without_an_answer_delays_no_other(pipelined):
    handler, peer = pipelined
    peer.send(frame(b'a') + frame(b'b') + frame(b'c'))
    handler.answer(2, [b'C'])
    handler.answer(1, None)
    handler.answer(0, None)
    assert peer.receive() == frame(b'C')


def test_a_reply_joins_segments_of_every_kind(deferred, write):
    handler, peer = deferred
    peer.send(frame(b'fetch'))
    file = write(b'0123456789')
    handler.answer(0, [b'head', bytearray(b'-'), Slice(file, 3, 4), memoryview(b'xtailx')[1:-1], b'', Slice(file, 0, 0),
                    b'!'])
    assert peer.receive() == frame(b'head-3456tail!')


LONG = bytes(range(256)) * 200


def test_long_and_short_segments_leave_in_their_order(pipelined, write):
    handler, peer = pipelined
    peer.send(frame(b'?') * 4)
    file = write(LONG)
    handler.answer(0, [b'head', LONG, b'-', bytearray(LONG), Slice(file, 7, 50_000), LONG, LONG])
    handler.answer(1, [LONG])
    handler.answer(2, [b'short'])
    handler.answer(3, [LONG * 30])
    first = frame(b'head' + LONG + b'-' + LONG + LONG[7:50_007] + LONG + LONG)
    assert peer.receive() == first + frame(LONG) + frame(b'short') + frame(LONG * 30)
    assert peer.connection.replies.queued_bytes == peer.connection.replies.memory_bytes == 0


def test_more_segments_than_one_call_takes_all_leave(deferred):
    handler, peer = deferred
    peer.send(frame(b'?'))
    segments = [LONG if index % 2 else bytes([index]) for index in range(150)]
    handler.answer(0, segments)
    assert peer.receive() == frame(b''.join(segments))


def test_segments_that_are_sent_are_released(deferred):
    handler, peer = deferred
    peer.send(frame(b'?'))
    segments = [bytes([index]) * 100_000 for index in range(60)]
    counted = sys.getrefcount(segments[0]), sys.getrefcount(segments[-1])
    handler.answer(0, segments)
    peer.settle()
    assert (sys.getrefcount(segments[0]), sys.getrefcount(segments[-1])) == (counted[0], counted[1] + 1)
    assert peer.receive() == frame(b''.join(segments))


@settings(max_examples=40, deadline=None)
@given(data=st.data(), sizes=st.lists(st.lists(st.integers(0, 50_000), max_size=5), min_size=1, max_size=5),
       taken_bytes=st.integers(5_000, 200_000))
def test_replies_of_every_shape_arrive_whole_however_much_the_peer_takes(data, sizes, taken_bytes):
    reactor = Reactor(ManualClock(), Timers(ManualClock()))
    handler = DeferringHandler(pipelined=True)
    peer = Peer(reactor, handler, 1000)
    with tempfile.NamedTemporaryFile() as source:
        source.write(LONG * 2)
        source.flush()
        file = File(source.name)
        peer.send(frame(b'?') * len(sizes))
        kinds = {'bytes': lambda size: LONG[:size] * 2, 'view': lambda size: memoryview(LONG)[:size],
                 'slice': lambda size: Slice(file, size, size)}
        replies = [[kinds[data.draw(st.sampled_from(list(kinds)))](size) for size in reply] for reply in sizes]
        for index in data.draw(st.permutations(range(len(sizes)))):
            handler.answer(index, replies[index])
            peer.reactor.run_once()
        expected = b''.join(frame(b''.join(
            file.read_at(segment.size_bytes, segment.position) if isinstance(segment, Slice) else bytes(segment)
            for segment in reply)) for reply in replies)
        received = b''
        while len(received) < len(expected):
            reactor.run_once()
            assert not peer.closed
            with contextlib.suppress(BlockingIOError):
                received += peer.socket.recv(taken_bytes)
    assert received == expected
    assert peer.connection.replies.queued_bytes == peer.connection.replies.memory_bytes == 0
    peer.connection.close('the test ends')
    peer.socket.close()
    reactor.close()


def test_an_empty_reply_is_an_empty_frame(deferred):
    handler, peer = deferred
    peer.send(frame(b'?'))
    handler.answer(0, [])
    assert peer.receive() == frame(b'')


def bytes_read():
    """Return the number of bytes that this process has read with read and pread."""
    return int(pathlib.Path('/proc/self/io').read_text().split()[1])


def test_a_big_slice_is_read_piece_by_piece_as_the_peer_takes_it(deferred, write):
    handler, peer = deferred
    content = bytes(range(256)) * 64 * 1024
    file = write(content)
    peer.send(frame(b'fetch'))
    handler.answer(0, [b'head', Slice(file, 0, len(content)), b'tail'])
    before = bytes_read()
    peer.settle()
    assert bytes_read() - before < len(content) / 4
    assert peer.receive() == frame(b'head' + content + b'tail')


def test_a_second_answer_is_a_broken_invariant(pipelined):
    handler, peer = pipelined
    peer.send(frame(b'a') + frame(b'b'))
    handler.answer(1, [b'B'])
    with pytest.raises(ValueError, match='reply to request 1: expected one of 0 to 1'):
        handler.answer(1, [b'B'])
    handler.answer(0, [b'A'])
    with pytest.raises(ValueError, match='reply to request 0'):
        handler.answer(0, [b'A'])


def test_a_reply_over_two_gibibytes_is_refused(deferred, write):
    handler, peer = deferred
    peer.send(frame(b'a'))
    with pytest.raises(ValueError, match='a frame holds at most'):
        handler.answer(0, [Slice(write(b''), 0, 2**31)])


def test_a_slice_of_a_file_that_became_shorter_closes_the_connection(deferred, write, caplog):
    handler, peer = deferred
    peer.send(frame(b'fetch'))
    handler.answer(0, [b'head', Slice(write(b'short'), 0, 10)])
    assert peer.is_cut_off
    assert 'the reply cannot be read' in caplog.text
    assert 'segment: found 5 bytes at 0, expected 10' in caplog.text


def test_a_slice_that_cannot_be_read_closes_the_connection(deferred, tmp_path, caplog):
    handler, peer = deferred
    peer.send(frame(b'fetch'))
    handler.answer(0, [b'head', Slice(Directory(str(tmp_path)), 0, 10)])
    assert peer.is_cut_off
    assert 'the reply cannot be read' in caplog.text
