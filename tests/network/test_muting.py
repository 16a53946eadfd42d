"""The broker stops reading a connection for the time that a quota demands, and reads it again afterwards (KIP-219)."""
from support.clients.socket_peers import frame

from kbroker.network.connection import Commons


def mute_at(*bodies, time_ms=500):
    """Return a handler that echoes each body, and mutes the connection for `time_ms` if the body is one of `bodies`."""
    def handle(connection, sequence, request):
        if bytes(request) in bodies:
            connection.mute(time_ms)
        connection.reply(sequence, [frame(bytes(request))])
    return handle


def pass_time(peer, clock, ms):
    clock.advance(ms)
    peer.settle()


def test_an_answer_is_sent_at_once_and_the_next_request_waits(connect, clock):
    peer = connect(mute_at(b'greedy'))
    peer.send(frame(b'greedy'))
    assert frame(b'greedy') in peer.receive()
    peer.send(frame(b'next'))
    assert peer.receive() == b''
    pass_time(peer, clock, 499)
    assert peer.receive() == b''
    pass_time(peer, clock, 1)
    assert frame(b'next') in peer.receive()


def test_requests_that_came_with_the_greedy_one_wait_too(connect, clock):
    peer = connect(mute_at(b'greedy'))
    peer.send(frame(b'first') + frame(b'greedy') + frame(b'third') + frame(b'fourth'))
    received = peer.receive()
    assert frame(b'greedy') in received and b'third' not in received
    pass_time(peer, clock, 500)
    received = peer.receive()
    assert b'third' in received and b'fourth' in received


def test_the_longest_time_counts(connect, clock):
    peer = connect(mute_at(b'greedy'))
    peer.send(frame(b'greedy'))
    peer.connection.mute(100)
    peer.connection.mute(800)
    peer.send(frame(b'next'))
    peer.receive()
    pass_time(peer, clock, 799)
    assert peer.receive() == b''
    pass_time(peer, clock, 1)
    assert frame(b'next') in peer.receive()


def test_a_muted_connection_is_not_read(connect, clock):
    peer = connect(mute_at(b'greedy'))
    peer.send(frame(b'greedy'))
    before = peer.commons.received_bytes
    rest = peer.offer(frame(bytes(900_000)) * 8)
    assert peer.commons.received_bytes == before and rest
    assert not peer.connection.is_reading
    pass_time(peer, clock, 500)
    peer.offer(rest)
    assert peer.commons.received_bytes > before


def test_the_time_and_the_answer_are_both_awaited(deferred, clock):
    handler, peer = deferred
    peer.send(frame(b'greedy') + frame(b'next'))
    peer.connection.mute(500)
    pass_time(peer, clock, 500)
    assert handler.bodies == [b'greedy']
    handler.answer(0, [b'done'])
    peer.settle()
    assert handler.bodies == [b'greedy', b'next']


def test_a_request_that_lets_the_next_pass_does_not_end_the_muting(deferred, clock):
    handler, peer = deferred
    peer.send(frame(b'greedy') + frame(b'next'))
    peer.connection.mute(500)
    peer.connection.let_next_pass(0)
    peer.settle()
    assert handler.bodies == [b'greedy']
    pass_time(peer, clock, 500)
    assert handler.bodies == [b'greedy', b'next']


def test_other_connections_are_not_muted(connect, clock):
    greedy = connect(mute_at(b'greedy'))
    modest = connect(None, commons=greedy.commons)
    greedy.send(frame(b'greedy'))
    modest.send(frame(b'modest'))
    assert frame(b'modest') in modest.receive()


def test_a_muted_connection_counts_as_idle(connect, clock):
    peer = connect(mute_at(b'greedy', time_ms=10**9))
    peer.send(frame(b'greedy'))
    peer.receive()
    assert Commons.sweep_interval_ms(4) == 1
    for _ in range(6):
        peer.commons.sweep([peer.connection])
    assert peer.connection.is_closed


def test_a_muted_connection_ends_at_once_when_the_broker_stops(connect, reactor):
    peer = connect(mute_at(b'greedy', time_ms=10**9))
    peer.send(frame(b'greedy'))
    peer.connection.close_after_flush()
    peer.settle()
    assert peer.connection.is_closed
    assert reactor.timers.next_delay_ms() is None


def test_nothing_happens_when_a_closed_connection_is_muted(connect, reactor):
    peer = connect(mute_at())
    peer.connection.close('the test says so')
    peer.connection.mute(500)
    assert reactor.timers.next_delay_ms() is None


def test_the_time_of_receiving_and_sending_is_measured_on_demand(connect):
    peer = connect(mute_at())
    peer.send(frame(b'first'))
    assert peer.connection.take_network_us() == 0
    peer.commons.measures_time = True
    for _ in range(100):
        peer.send(frame(bytes(100_000)))
        peer.receive()
    assert peer.connection.take_network_us() > 0
    assert peer.connection.take_network_us() == 0
