import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.socket_peers import frame

from kbroker.errors import ProtocolError
from kbroker.network.framing import Framer, ReceiveBuffers

SHARED_BYTES = 64


def make_framer(max_frame_bytes=1 << 20):
    return Framer(ReceiveBuffers(SHARED_BYTES), max_frame_bytes)


@pytest.mark.parametrize('split', range(len(frame(b'first')) + len(frame(b'')) + len(frame(b'third one')) + 1))
def test_a_split_at_any_byte_changes_nothing(split):
    data = frame(b'first') + frame(b'') + frame(b'third one')
    framer = make_framer()
    assert framer.feed(data[:split]) + framer.feed(data[split:]) == [b'first', b'', b'third one']
    assert framer.pending_bytes == framer.held_bytes == 0


@given(bodies=st.lists(st.binary(max_size=5 * SHARED_BYTES), max_size=12), data=st.data())
def test_frames_come_whole_and_in_order_however_the_bytes_arrive(bodies, data):
    stream = b''.join(frame(body) for body in bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    framer = make_framer()
    received = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        received += framer.feed(stream[start:end])
    assert received == bodies
    assert framer.held_bytes == 0


@pytest.mark.parametrize('size', [-1, -2**31, 1001, 2**31 - 1])
def test_an_impossible_size_is_refused_before_its_bytes_come(size):
    with pytest.raises(ProtocolError, match=f'found {size}, expected 0 to 1000'):
        make_framer(1000).feed(size.to_bytes(4, 'big', signed=True))


def test_the_largest_size_passes():
    assert make_framer(1000).feed(frame(bytes(1000))) == [bytes(1000)]


def test_memory_follows_what_came_not_what_was_announced():
    framer = make_framer(2**31 - 1)
    framer.feed((2**31 - 1).to_bytes(4, 'big'))
    for _ in range(1000):
        framer.feed(bytes(17))
        assert framer.held_bytes <= 2 * framer.pending_bytes


def test_a_buffer_that_a_large_frame_left_behind_serves_the_next():
    buffers = ReceiveBuffers(SHARED_BYTES)
    large = frame(bytes(100_000))
    first, second = Framer(buffers, 1 << 20), Framer(buffers, 1 << 20)
    first.feed(large)
    second.feed(large[:50])
    assert second.held_bytes > 100_000
    assert second.feed(large[50:]) == [bytes(100_000)]


def test_a_few_bytes_do_not_take_a_large_buffer_along():
    buffers = ReceiveBuffers(SHARED_BYTES)
    Framer(buffers, 1 << 20).feed(frame(bytes(1_000_000)))
    for announced in (100, 100_000):
        modest = Framer(buffers, 1 << 20)
        modest.feed(frame(bytes(announced))[:20])
        assert modest.held_bytes < 4 * announced


def test_a_refused_frame_does_not_take_the_ones_before_it_along():
    framer = make_framer(1000)
    with pytest.raises(ProtocolError):
        framer.feed(frame(b'good') + b'\xff\xff\xff\xff')
    assert framer.pending_bytes == 4
