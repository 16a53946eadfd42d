"""A test of a connection that closes half way through a long frame. `run_alone` calls it in a process that runs no
other test."""
from __future__ import annotations

import pathlib
import resource

from support.clients.socket_peers import Peer, commons_for, frame

from kbroker.base.clock import ManualClock, Timers
from kbroker.network.reactor import Reactor

MIB = 1024 * 1024
PART_MIB = 8
LONG = frame(bytes(40 * MIB))
RECEIVED_MIB = 20


def resident_mib():
    return int(pathlib.Path('/proc/self/statm').read_text().split()[1]) * resource.getpagesize() / MIB


def held_mib_in_turns(peer, clock):
    """Return the memory that the connections hold, in MiB: at the call, and after each turn that frees a part of it."""
    memory, found = peer.commons.memory, []
    while not found or memory.held_bytes < found[-1]:
        found.append(memory.held_bytes)
        clock.advance(1)
        peer.reactor.run_once()
    return [held_bytes / MIB for held_bytes in found]


def the_frame_is_freed_in_parts(directory):
    clock = ManualClock()
    reactor = Reactor(clock, Timers(clock))
    peer = Peer(reactor, None, len(LONG), commons_for(reactor, None, max_request_bytes=len(LONG)))
    before_mib = resident_mib()
    peer.send(LONG[:RECEIVED_MIB * MIB])
    peer.connection.close('the test')
    assert resident_mib() > before_mib + RECEIVED_MIB - 5, 'the frame is in memory'
    held_mib = held_mib_in_turns(peer, clock)
    assert held_mib == [20, 20 - PART_MIB, 20 - 2 * PART_MIB, 0], held_mib
    after_mib = resident_mib()
    assert after_mib < before_mib + 5, f'found {after_mib} MiB, expected less than {before_mib} + 5 MiB'
    peer.socket.close()
    reactor.close()
