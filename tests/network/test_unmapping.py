"""The memory of a frame of tens of MiB goes back to the kernel in parts, so that no turn of the loop is long."""
import itertools
import pathlib
import resource

import pytest
from support.socket_peers import commons_for, frame

MIB = 1024 * 1024
FRAME_MIB = 40
PART_MIB = 8
LONG = frame(bytes(FRAME_MIB * MIB))


@pytest.fixture
def open_peer(reactor, connect):
    """A function that returns a peer which may send long frames."""
    return lambda handle: connect(handle, commons=commons_for(reactor, handle, max_request_bytes=len(LONG)))


def resident_mib():
    return int(pathlib.Path('/proc/self/statm').read_text().split()[1]) * resource.getpagesize() / MIB


def held_mib_in_turns(peer, clock):
    """Return the memory that the connections hold: now, and after each turn that frees some."""
    memory, found = peer.commons.memory, []
    while not found or memory.held_bytes < found[-1]:
        found.append(memory.held_bytes)
        clock.advance(1)
        peer.reactor.run_once()
    return [held_bytes / MIB for held_bytes in found]


def test_a_connection_that_closes_gives_the_memory_of_its_frame_back_in_parts(open_peer, clock):
    peer = open_peer(None)
    before_mib = resident_mib()
    peer.send(LONG[:20 * MIB])
    peer.connection.close('the test')
    assert resident_mib() > before_mib + 15
    assert held_mib_in_turns(peer, clock) == [20, 20 - PART_MIB, 20 - 2 * PART_MIB, 0]
    assert resident_mib() < before_mib + 5


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
    body = bytes(range(256)) * (FRAME_MIB * 4096)
    peer.send(frame(body))
    peer.connection.close('the test')
    held_mib_in_turns(peer, clock)
    assert kept[0].buffer[4:] == body
    assert peer.commons.memory.held_bytes >= FRAME_MIB * MIB
    del kept[:]
    held_mib = held_mib_in_turns(peer, clock)
    assert max(before - after for before, after in itertools.pairwise(held_mib)) <= PART_MIB
    assert held_mib[-1] == 0
