"""Frames are cut from a stream of bytes, however the bytes arrive. These tests use a small shared receive buffer."""
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clients.socket_peers import Peer, commons_for, frame

from kbroker.base.clock import ManualClock, Timers
from kbroker.network.reactor import Reactor

SHARED_BYTES = 64


class Stream(Peer):
    """A peer whose bytes the broker reads at once. `framer` is the framer of the broker's connection."""

    def __init__(self, world):
        super().__init__(world.reactor, None, 0, world.commons)
        self.world = world
        self.framer = self.connection.framer

    def feed(self, data):
        """Send the bytes. Return the bodies of the frames that these bytes complete."""
        self.world.bodies.clear()
        for start in range(0, len(data), 1 << 16):
            self.socket.sendall(data[start:start + (1 << 16)])
            while self.reactor.run_once():
                pass
        return list(self.world.bodies)


class World:
    """Streams that share one receive buffer."""

    def __init__(self, max_request_bytes=1 << 20):
        clock = ManualClock()
        self.bodies = []
        self.reactor = Reactor(clock, Timers(clock))
        self.commons = commons_for(self.reactor, self.serve, receive_buffer_bytes=SHARED_BYTES,
                                   max_request_bytes=max_request_bytes)
        self.streams = []

    def serve(self, connection, sequence, body):
        self.bodies.append(bytes(body))
        connection.reply(sequence, None)

    def open(self):
        self.streams.append(Stream(self))
        return self.streams[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for stream in self.streams:
            stream.connection.close('the test ends')
            stream.socket.close()
        self.reactor.close()


@pytest.fixture
def world():
    with World() as world:
        yield world


@pytest.fixture
def strict():
    """Yield a stream whose frames may have up to 1000 bytes."""
    with World(1000) as world:
        yield world.open()


@pytest.mark.parametrize('split', range(len(frame(b'first')) + len(frame(b'')) + len(frame(b'third one')) + 1))
def test_a_split_at_any_byte_changes_nothing(world, split):
    data = frame(b'first') + frame(b'') + frame(b'third one')
    stream = world.open()
    assert stream.feed(data[:split]) + stream.feed(data[split:]) == [b'first', b'', b'third one']
    assert stream.framer.pending_bytes == stream.framer.held_bytes == 0


@given(bodies=st.lists(st.binary(max_size=5 * SHARED_BYTES), max_size=12), data=st.data())
def test_frames_come_whole_and_in_order_however_the_bytes_arrive(bodies, data):
    sent = b''.join(frame(body) for body in bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=20)))
    with World() as world:
        stream = world.open()
        received = []
        for start, end in zip([0, *cuts], [*cuts, len(sent)], strict=True):
            received += stream.feed(sent[start:end])
        assert received == bodies
        assert stream.framer.held_bytes == 0


@pytest.mark.parametrize('size', [-1, -2**31, 1001, 2**31 - 1])
def test_an_impossible_size_is_refused_before_its_bytes_come(strict, caplog, size):
    strict.feed(size.to_bytes(4, 'big', signed=True))
    assert strict.connection.is_closed
    assert f'frame size: found {size}, expected 0 to 1000' in caplog.text


def test_the_largest_size_passes(strict):
    assert strict.feed(frame(bytes(1000))) == [bytes(1000)]


def test_memory_follows_the_bytes_that_came_not_the_announced_size():
    with World(2**31 - 1) as world:
        stream = world.open()
        stream.feed((2**31 - 1).to_bytes(4, 'big'))
        for _ in range(1000):
            stream.feed(bytes(17))
            assert stream.framer.held_bytes <= 2 * stream.framer.pending_bytes


def test_a_buffer_that_a_large_frame_left_behind_serves_the_next(world):
    large = frame(bytes(100_000))
    first, second = world.open(), world.open()
    first.feed(large)
    second.feed(large[:50])
    assert second.framer.held_bytes > 100_000
    assert second.feed(large[50:]) == [bytes(100_000)]


def test_a_few_bytes_do_not_take_a_large_buffer_along(world):
    world.open().feed(frame(bytes(1_000_000)))
    for announced in (100, 100_000):
        modest = world.open()
        modest.feed(frame(bytes(announced))[:20])
        assert modest.framer.held_bytes < 4 * announced


def test_a_refused_frame_does_not_take_the_ones_before_it_along(strict):
    assert strict.feed(frame(b'good') + b'\xff\xff\xff\xff') == [b'good']
    assert strict.connection.is_closed
