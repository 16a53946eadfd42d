"""Connections without a login: their number, their time and their frames are bounded."""
import pytest
from support.clients.socket_peers import Peer, commons_for, frame

from kbroker.network.newcomers import LOGIN_LIMIT_MS, MAX_LOGINS


def ignore(connection, sequence, body):
    connection.reply(sequence, b'ok')


@pytest.fixture
def join(reactor):
    """Yield a function that connects a peer which has not logged in."""
    peers = []
    commons = commons_for(reactor, ignore, max_connections=6)

    def join():
        peer = Peer(reactor, ignore, 1 << 20, commons)
        peer.connection.await_login(100)
        peers.append(peer)
        return peer

    yield join
    for peer in peers:
        peer.connection.close('the test ends')
        peer.socket.close()


def test_a_login_takes_a_limited_time(reactor, clock, join):
    early, member = join(), join()
    member.connection.end_login()
    clock.advance(LOGIN_LIMIT_MS - 1)
    reactor.timers.run_due()
    late = join()
    assert not early.connection.is_closed
    clock.advance(1)
    reactor.timers.run_due()
    assert (early.connection.is_closed, member.connection.is_closed, late.connection.is_closed) == (True, False, False)
    clock.advance(LOGIN_LIMIT_MS)
    reactor.timers.run_due()
    assert (member.connection.is_closed, late.connection.is_closed) == (False, True)


def test_the_oldest_login_gives_way_at_half_of_all_connections(join):
    peers = [join() for _ in range(4)]
    assert [peer.connection.is_closed for peer in peers] == [True, False, False, False]
    assert (peers[0].commons.newcomers.logins, peers[0].commons.newcomers.max_logins) == (3, 3)
    peers[1].connection.end_login()
    join()
    assert [peer.connection.is_closed for peer in peers] == [True, False, False, False]


def test_a_frame_before_the_login_is_short(join):
    newcomer, member = join(), join()
    member.connection.end_login()
    for peer in (newcomer, member):
        peer.send(frame(bytes(101)))
    assert (newcomer.connection.is_closed, member.connection.is_closed) == (True, False)


def test_few_timers_watch_many_logins(reactor, join):
    for _ in range(50):
        join().connection.end_login()
    assert len(reactor.timers) == 1


def test_without_a_limit_on_connections_there_is_one_on_logins(reactor):
    assert commons_for(reactor, ignore).newcomers.max_logins == MAX_LOGINS
