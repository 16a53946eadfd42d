import contextlib
import gc
import itertools
import os
import random
import resource
import socket
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clients.socket_peers import DeferringHandler, Peer, commons_for, echo, frame

from kbroker.base.clock import ManualClock, Timers
from kbroker.base.errors import ProtocolError
from kbroker.base.repeats import WINDOW_MS
from kbroker.network.connection import FRAMES_OF_A_TURN, MAX_QUEUED_BYTES, MAX_UNANSWERED, Commons
from kbroker.network.reactor import Reactor
from kbroker.network.refusals import MOST_REFUSALS

MORE_THAN_ALLOWED = (1 << 31) - 1
GROWS_UP_TO = 2 << 20
"""The buffer of a frame doubles until this many bytes of the frame have arrived. Then it grows to the size of the
frame."""


def test_bytes_that_come_one_by_one_make_the_same_requests(connect):
    peer = connect(echo)
    for byte in frame(b'hello') + frame(b'') + frame(b'world'):
        peer.send(bytes([byte]))
    assert peer.receive() == frame(b'hello') + frame(b'') + frame(b'world')
    assert peer.commons.requests == 3
    assert peer.commons.received_bytes == peer.commons.sent_bytes == 22


def test_a_request_can_be_changed_in_place(connect):
    def shout(connection, sequence, request):
        request[0] = ord('H')
        connection.reply(sequence, [bytes(request)])

    peer = connect(shout)
    peer.send(frame(b'hello'))
    assert peer.receive() == frame(b'Hello')


def test_a_request_is_a_view_of_its_own_bytes_alone(connect):
    seen = []

    def look(connection, sequence, request):
        assert (request.format, request.ndim, request.readonly, request.contiguous) == ('B', 1, False, True)
        assert request.shape == (len(request),) and request.nbytes == len(request)
        with pytest.raises(IndexError):
            request[len(request)]
        seen.append((bytes(request), bytes(request[1:]), bytes(request[-2:])))
        connection.reply(sequence, None)

    peer = connect(look)
    peer.send(frame(b'hello') + frame(b'') + frame(b'x'))
    assert seen == [(b'hello', b'ello', b'lo'), (b'', b'', b''), (b'x', b'', b'x')]


def test_a_large_request_grows_with_its_bytes(connect):
    handler = DeferringHandler()
    peer = connect(handler, max_request_bytes=16 << 20)
    body = os.urandom(5_000_000)
    data = frame(body) + frame(b'next')
    for position in range(0, len(data), 300_000):
        peer.send(data[position:position + 300_000])
        assert peer.connection.framer.held_bytes <= 4 * (position + 300_000)
    handler.answer(0, [])
    peer.settle()
    assert handler.bodies == [body, b'next']


def test_requests_around_every_size_of_a_buffer_arrive_unchanged(connect):
    edges = [size << 10 for size in (32, 64, 128, 512, 1024, 2048)]
    sizes = [edge + delta for edge in edges for delta in range(-5, 2)]
    bodies = [os.urandom(size) for size in sizes] + [b'', b'small'] * 3
    random.Random(7).shuffle(bodies)
    expected = iter(bodies)

    def compare(connection, sequence, request):
        assert request == next(expected)
        connection.reply(sequence, None)

    peer = connect(compare, max_request_bytes=4 << 20)
    peer.send(b''.join(frame(body) for body in bodies))
    assert next(expected, None) is None
    assert peer.connection.framer.pending_bytes == 0


def test_a_view_of_a_request_is_closed_when_its_handler_returns(connect):
    kept = []

    def keep(connection, sequence, request):
        kept.append(request)
        connection.reply(sequence, None)

    connect(keep).send(frame(b'request'))
    with pytest.raises(ValueError, match='released memoryview'):
        bytes(kept[0])


@pytest.mark.parametrize('size', [-1, 1001])
def test_an_impossible_size_closes_the_connection_and_is_logged(connect, caplog, size):
    peer = connect(echo, max_request_bytes=1000)
    peer.send(frame(b'good') + size.to_bytes(4, 'big', signed=True))
    assert peer.receive() == frame(b'good')
    assert peer.is_cut_off
    assert peer.closed == [peer.connection]
    assert f'connection 1 of 10.0.0.1:4711 closed: protocol error: frame size: found {size}' in caplog.text


@pytest.mark.parametrize(('sent', 'words'), [
    (bytes.fromhex('1603010200010001fc0303'), 'the client speaks TLS, and this listener does not: set its '
                                              'security.protocol to that of the listener'),
    (b'GET / HTTP/1.1\r\n\r\n', 'the client speaks HTTP, and this is a listener for Kafka clients')])
def test_a_client_of_another_protocol_is_named_and_its_repetitions_are_counted(connect, caplog, clock, reactor, sent,
                                                                               words):
    commons = commons_for(reactor, echo)
    for _ in range(20):
        connect(echo, commons=commons).send(sent)
    (line,) = caplog.messages
    assert line.startswith('connection 1 of 10.0.0.1:4711 closed by listener ')
    assert line.endswith(words)
    clock.advance(WINDOW_MS)
    reactor.run_once()
    assert caplog.messages[1].startswith('19 more connections of 10.0.0.1 closed by listener ')


def test_many_kinds_of_refused_connections_are_a_bounded_number_of_lines(connect, caplog, reactor):
    commons = commons_for(reactor, echo)
    for number in range(3 * MOST_REFUSALS):
        connect(echo, commons=commons).send((0x7F000000 + number).to_bytes(4))
    assert len(caplog.messages) == MOST_REFUSALS + 1


def test_a_frame_for_which_there_is_no_memory_closes_the_connection_after_the_replies_that_are_ready(connect, caplog):
    handler = DeferringHandler(pipelined=True)
    peer = connect(handler, max_request_bytes=MORE_THAN_ALLOWED)
    peer.send(frame(b'good') + MORE_THAN_ALLOWED.to_bytes(4, 'big'))
    peer.send(bytes(GROWS_UP_TO - 4))
    assert not peer.closed
    peer.socket.send(b'+')
    handler.answer(0, [b'reply'])
    with little_memory():
        peer.reactor.run_once()
    assert peer.closed == [peer.connection]
    assert peer.socket.recv(100) == frame(b'reply')
    assert f'closed: the system has no memory for {MORE_THAN_ALLOWED + 4} bytes of a request' in caplog.text


@contextlib.contextmanager
def little_memory():
    """Limit the memory of this process, so that an allocation of MORE_THAN_ALLOWED fails and smaller ones succeed."""
    with open('/proc/self/statm') as file:
        present_bytes = int(file.read().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (present_bytes + MORE_THAN_ALLOWED // 2, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_a_protocol_error_of_the_handler_closes_the_connection(connect, caplog):
    def refuse(connection, sequence, request):
        raise ProtocolError('no such api key')

    peer = connect(refuse)
    peer.send(frame(b'?') + frame(b'?'))
    assert peer.is_cut_off
    assert peer.commons.requests == 1
    assert 'no such api key' in caplog.text


def test_another_error_of_the_handler_leaves_the_loop(connect, reactor):
    def fail(connection, sequence, request):
        raise ZeroDivisionError

    peer = connect(fail)
    peer.socket.send(frame(b'?'))
    with pytest.raises(ZeroDivisionError):
        reactor.run_once()


def test_the_next_request_waits_for_the_answer_to_the_one_before(deferred):
    handler, peer = deferred
    peer.send(frame(b'a') + frame(b'b') + frame(b'c'))
    assert handler.bodies == [b'a']
    handler.answer(0, [b'A'])
    peer.settle()
    assert handler.bodies == [b'a', b'b']
    handler.answer(1, None)
    peer.settle()
    assert handler.bodies == [b'a', b'b', b'c']


def test_a_handler_can_let_the_next_request_pass(deferred):
    handler, peer = deferred
    peer.send(frame(b'a') + frame(b'b') + frame(b'c'))
    peer.connection.let_next_pass(handler.requests[0].sequence)
    peer.settle()
    assert handler.bodies == [b'a', b'b']
    peer.connection.let_next_pass(handler.requests[0].sequence)  # does not answer the second
    handler.answer(0, [b'A'])
    peer.settle()
    assert handler.bodies == [b'a', b'b']
    assert peer.receive() == frame(b'A')


def test_requests_that_passed_unanswered_are_bounded(pipelined):
    handler, peer = pipelined
    peer.send(frame(b'x') * (MAX_UNANSWERED + 10))
    assert len(handler.requests) == MAX_UNANSWERED
    peer.send(frame(b'y'))
    assert not peer.connection.is_reading
    handler.answer(1, [b'X'])  # cannot leave before the first reply, so the bound still holds
    peer.settle()
    assert len(handler.requests) == MAX_UNANSWERED
    handler.answer(0, [b'X'])
    peer.settle()
    assert len(handler.requests) == MAX_UNANSWERED + 2
    for index in range(2, MAX_UNANSWERED + 2):
        handler.answer(index, None)
    peer.settle()
    assert handler.bodies[-1] == b'y'
    assert peer.connection.is_reading


def test_a_peer_that_does_not_read_is_not_read(connect):
    body = bytes(10_000)

    def answer(connection, sequence, request):
        connection.reply(sequence, [body])

    peer = connect(answer)
    sent = 0
    while True:
        peer.settle()
        try:
            sent += peer.socket.send(frame(bytes(100)) * 100)
        except BlockingIOError:
            break
    assert not peer.connection.is_reading
    assert peer.connection.replies.queued_bytes < MAX_QUEUED_BYTES + len(frame(body))
    received = 0
    while sent % 104:
        peer.socket.setblocking(False)
        received += len(peer.receive())
        sent += peer.socket.send(bytes(104 - sent % 104))
    received += len(peer.receive())
    assert received == sent // 104 * len(frame(body))
    assert peer.connection.is_reading


def test_a_frame_of_another_connection_is_served_between_those_of_a_greedy_one(connect):
    order = []

    def note(connection, sequence, request):
        order.append(bytes(request))
        connection.reply(sequence, None)

    greedy, modest = connect(note), connect(note)
    greedy.socket.send(frame(b'greedy') * 1000)
    modest.socket.send(frame(b'modest'))
    modest.settle()
    assert order.index(b'modest') < 150
    for _ in range(20):
        greedy.settle()
    assert order.count(b'greedy') == 1000


def test_a_greedy_peer_has_one_turn_of_bounded_frames_in_each_tick(connect, reactor):
    handed_out = []

    def note(connection, sequence, request):
        handed_out.append(bytes(request))
        connection.reply(sequence, None)

    greedy, modest = connect(note), connect(note)
    greedy.socket.send(frame(b'greedy') * 2000)
    ticks = 0
    while handed_out.count(b'greedy') < 2000:
        modest.socket.send(frame(b'modest'))
        before = len(handed_out)
        reactor.run_once()
        assert handed_out[before:].count(b'greedy') <= FRAMES_OF_A_TURN
        assert handed_out[before:].count(b'modest') == 1, 'served in the tick in which it arrived'
        ticks += 1
    assert ticks <= 2000 // FRAMES_OF_A_TURN + 20


def test_a_greedy_peer_of_large_frames_is_read_once_in_each_tick(connect, reactor):
    def ignore(connection, sequence, request):
        connection.reply(sequence, None)

    greedy, modest = connect(ignore, 16 << 20), connect(ignore)
    for listening in greedy.socket, modest.socket:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    unsent = memoryview(frame(bytes(12 << 20)))
    while greedy.commons.requests == 0:
        with contextlib.suppress(BlockingIOError):
            unsent = unsent[greedy.socket.send(unsent[:2 << 20]):]
        modest.socket.send(frame(b'modest'))
        before = (greedy.commons.received_bytes, modest.commons.requests)
        reactor.run_once()
        assert greedy.commons.received_bytes - before[0] <= 512 * 1024
        assert modest.commons.requests - before[1] == 1


def test_greedy_peers_share_a_bounded_time_of_each_tick_and_take_turns_in_it(connect, reactor):
    served = []

    def spin(connection, sequence, request):
        served.append(bytes(request))
        if request != b'modest':
            end = time.monotonic() + 0.0003
            while time.monotonic() < end:
                pass
        connection.reply(sequence, None)

    greedy, modest = [connect(spin) for _ in range(20)], connect(spin)
    for index, peer in enumerate(greedy):
        peer.socket.send(frame(b'%d' % index) * 40)
    reactor.run_once()
    assert len(served) <= 20 * 5, 'the first turn of each ends after a millisecond'
    while len(served) < 20 * 40:
        before = len(served)
        modest.socket.send(frame(b'modest'))
        reactor.run_once()
        assert served[before] == b'modest', 'no greedy peer comes first'
        assert 1 < len(served) - before <= 1 + 10, 'the time of two turns'
        served.remove(b'modest')
    turns = [int(peer) for peer, _ in itertools.groupby(served)]
    assert turns[:7 * 20] == list(range(20)) * 7


def test_a_short_reply_leaves_in_its_tick_however_many_long_ones_wait(connect, reactor):
    body = bytes(300_000)

    def answer(connection, sequence, request):
        connection.reply(sequence, [b'short' if request == b'modest' else body])

    greedy, modest = [connect(answer) for _ in range(20)], connect(answer)
    received = [0] * len(greedy)
    for peer in greedy:
        peer.socket.send(frame(b'fetch') * 5)
    while sum(received) < 20 * 5 * len(frame(body)):
        modest.socket.send(frame(b'modest'))
        reactor.run_once()
        assert modest.socket.recv(100) == frame(b'short')
        for index, peer in enumerate(greedy):
            with contextlib.suppress(BlockingIOError):
                received[index] += len(peer.socket.recv(1 << 20))
    assert set(received) == {5 * len(frame(body))}


def test_frames_that_wait_in_memory_change_nothing_that_epoll_is_asked(deferred, reactor):
    handler, peer = deferred
    peer.send(frame(b'a') + frame(b'b'))
    assert handler.bodies == [b'a'] and peer.connection.is_reading
    peer.send(frame(b'c'))
    assert not peer.connection.is_reading
    for index in range(3):
        handler.answer(index, [])
        peer.settle()
    assert handler.bodies == [b'a', b'b', b'c']
    assert peer.connection.is_reading


def test_replies_of_one_tick_leave_in_one_call_and_later_ones_ask_epoll_for_nothing(connect, reactor):
    peer = connect(echo)
    peer.socket.send(frame(b'x') * 10)
    asked = set()
    for _ in range(3):
        reactor.run_once()
        asked.add(peer.connection.interest)
    assert len(asked) == 1
    assert peer.receive() == frame(b'x') * 10


def test_a_peer_that_ends_its_side_still_gets_its_answers(deferred):
    handler, peer = deferred
    peer.send(frame(b'a') + frame(b'b') + b'\0\0')
    peer.socket.shutdown(socket.SHUT_WR)
    peer.settle()
    handler.answer(0, [b'A'])
    peer.settle()
    handler.answer(1, [b'B'])
    assert peer.receive() == frame(b'A') + frame(b'B')
    assert peer.is_cut_off and peer.connection.is_closed


def test_an_idle_peer_that_ends_its_side_is_closed(connect):
    peer = connect(echo)
    peer.socket.shutdown(socket.SHUT_WR)
    assert peer.is_cut_off
    assert peer.closed == [peer.connection]


def test_a_peer_that_vanishes_during_a_reply_makes_no_noise(deferred, caplog):
    handler, peer = deferred
    peer.send(frame(b'fetch'))
    handler.answer(0, [bytes(8 << 20)])
    peer.settle()
    peer.socket.close()
    peer.settle()
    assert peer.closed == [peer.connection]
    assert caplog.text == ''


def test_a_peer_that_vanishes_before_its_reply_is_forgotten(deferred):
    handler, peer = deferred
    peer.send(frame(b'fetch'))
    peer.socket.close()
    peer.settle()
    assert peer.connection.is_closed
    handler.answer(0, [b'too late'])
    peer.connection.let_next_pass(0)
    peer.settle()


def test_close_after_flush_sends_what_is_owed_and_hands_out_no_more(deferred):
    handler, peer = deferred
    peer.send(frame(b'a') + frame(b'b'))
    peer.connection.close_after_flush()
    peer.settle()
    assert not peer.connection.is_closed
    handler.answer(0, [bytes(3 << 20)])
    assert peer.receive() == frame(bytes(3 << 20))
    assert peer.is_cut_off
    assert handler.bodies == [b'a']


def test_a_handler_may_close_the_connection(connect):
    def close(connection, sequence, request):
        connection.close('not welcome')
        assert request[0] == ord('b')

    peer = connect(close)
    peer.send(frame(b'bye') * 3)
    assert peer.is_cut_off
    assert peer.commons.requests == 1


def sweep(peer, times=1):
    for _ in range(times):
        peer.commons.sweep([peer.connection])


SWEEPS = 5


def test_a_silent_peer_is_idle(connect):
    peer = connect(echo)
    sweep(peer, SWEEPS - 1)
    assert not peer.connection.is_closed
    sweep(peer)
    assert peer.connection.is_closed


def test_each_request_is_a_sign_of_life(connect):
    peer = connect(echo)
    for _ in range(5):
        sweep(peer, SWEEPS - 1)
        peer.send(frame(b'heartbeat'))
    assert not peer.connection.is_closed


def test_a_frame_that_trickles_is_idle(connect):
    peer = connect(echo)
    peer.send((1 << 20).to_bytes(4, 'big'))
    for _ in range(SWEEPS):
        peer.send(b'slow')
        sweep(peer)
    assert peer.connection.is_closed


def test_a_large_frame_that_grows_is_not_idle(connect):
    peer = connect(echo)
    peer.send((1 << 20).to_bytes(4, 'big'))
    for _ in range(3 * SWEEPS):
        peer.send(bytes(5000))
        sweep(peer)
    assert not peer.connection.is_closed


def test_a_peer_that_waits_for_its_answer_is_not_idle(deferred):
    handler, peer = deferred
    peer.send(frame(b'long poll'))
    sweep(peer, 3 * SWEEPS)
    handler.answer(0, [b'at last'])
    assert peer.receive() == frame(b'at last')


def test_a_peer_that_does_not_take_its_answer_is_idle(deferred):
    handler, peer = deferred
    peer.send(frame(b'fetch'))
    handler.answer(0, [bytes(8 << 20)])
    peer.settle()
    sweep(peer, SWEEPS)
    assert peer.connection.is_closed


def test_the_sweeps_of_an_idle_time_are_spread_over_it():
    assert Commons.sweep_interval_ms(600_000) == 150_000
    assert Commons.sweep_interval_ms(0) == 1


def test_closed_connections_leave_no_memory_behind(connect):
    def come_and_go(times):
        for _ in range(times):
            peer = connect(echo)
            peer.send(frame(b'a request') + frame(b'half of one')[:8])
            peer.receive()
            peer.socket.close()
            peer.settle()
            assert peer.connection.is_closed
            peers.clear()
        gc.collect()

    peers = connect.__closure__[0].cell_contents
    come_and_go(10)
    descriptors = len(os.listdir('/proc/self/fd'))
    tracemalloc.start()
    try:
        come_and_go(1)
        before, _ = tracemalloc.get_traced_memory()
        come_and_go(200)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 20_000
    assert len(os.listdir('/proc/self/fd')) < descriptors + 100     # other threads of this process open some


@given(data=st.data(), bodies=st.lists(st.binary(max_size=9), min_size=1, max_size=8))
def test_answers_leave_in_order_whatever_the_order_of_events(data, bodies):
    clock = ManualClock()
    reactor = Reactor(clock, Timers(clock))
    handler = DeferringHandler()
    peer = Peer(reactor, handler, 1000)
    unsent = b''.join(frame(body) for body in bodies)
    answered, passed = set(), set()
    while len(answered) < len(bodies):
        waiting = [index for index in range(len(handler.requests)) if index not in answered]
        assert len([index for index in waiting if index not in passed]) <= 1
        step = data.draw(st.sampled_from(['send'] * bool(unsent) + ['answer', 'pass'] * bool(waiting) + ['settle']))
        if step == 'send':
            size = data.draw(st.integers(1, len(unsent)))
            peer.socket.send(unsent[:size])
            unsent = unsent[size:]
        elif step == 'answer':
            index = data.draw(st.sampled_from(waiting))
            handler.answer(index, [handler.requests[index].body])
            answered.add(index)
        elif step == 'pass':
            index = data.draw(st.sampled_from(waiting))
            peer.connection.let_next_pass(handler.requests[index].sequence)
            passed.add(index)
        else:
            peer.settle()
            assert unsent or len(answered) == len(bodies) or len(handler.requests) > len(answered)
    assert peer.receive() == b''.join(frame(body) for body in bodies)
    assert handler.bodies == bodies
    peer.connection.close('the test ends')
    peer.socket.close()
    reactor.close()
