"""The broker returns the memory of a frame of tens of MiB to the kernel in parts, so that no turn of the loop is
long."""
import itertools

import pytest
from network.closed_frame import LONG, PART_MIB, held_mib_in_turns, the_frame_is_freed_in_parts
from support.clients.socket_peers import commons_for, frame
from support.runner.alone import run_alone


@pytest.fixture
def open_peer(reactor, connect):
    """Return a function that returns a peer which may send long frames."""
    return lambda handle: connect(handle, commons=commons_for(reactor, handle, max_request_bytes=len(LONG)))


def test_a_connection_that_closes_gives_the_memory_of_its_frame_back_in_parts(tmp_path):
    run_alone(the_frame_is_freed_in_parts, tmp_path)


def test_a_frame_that_was_served_gives_its_memory_back_in_parts(open_peer, clock):
    peer = open_peer(lambda connection, sequence, request: connection.reply(sequence, None))
    peer.send(LONG)
    assert peer.commons.requests == 1
    held_mib = held_mib_in_turns(peer, clock)
    assert max(before - after for before, after in itertools.pairwise(held_mib)) <= PART_MIB
    assert held_mib[-1] == 0


def test_a_frame_that_its_handler_keeps_stays_until_the_handler_has_done(open_peer, clock):
    kept = []
    peer = open_peer(lambda connection, sequence, request: kept.append(connection.keep_frame()))
    body = bytes(range(256)) * (40 * 4096)
    peer.send(frame(body))
    peer.connection.close('the test')
    held_mib_in_turns(peer, clock)
    assert kept[0].buffer[4:] == body
    assert peer.commons.memory.held_bytes >= len(body)
    del kept[:]
    held_mib = held_mib_in_turns(peer, clock)
    assert max(before - after for before, after in itertools.pairwise(held_mib)) <= PART_MIB
    assert held_mib[-1] == 0
