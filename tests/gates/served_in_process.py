"""A program for callgrind: serves each kind of request in a broker without sockets, between marks.

    valgrind --tool=callgrind --dump-before=getsid python tests/gates/served_in_process.py COUNT DIRECTORY

A mark is a call of getsid(2), which nobody else makes: with the option above callgrind writes there what it has
counted since the last one. Each kind of request has three: what lies before the first is preparation, then comes a loop
of none, then one of COUNT. The work is the same in every run: the clock is a manual one, the requests are made before,
and nothing collects cycles.
"""
from __future__ import annotations

import gc
import os
import pathlib
import sys
from typing import Any

sys.path[:0] = [str(pathlib.Path(__file__).parents[1]), str(pathlib.Path(__file__).parents[2])]

from request_work import SETTINGS, WORKS, Work, assert_answered  # noqa: E402
from support.in_process_broker import InProcessBroker, InProcessConnection, frame_of  # noqa: E402

WARM_UP = 20


class Sink(InProcessConnection):
    """Keeps what the network would send, and does not read the slices of files: they are the network's to send."""

    def reply(self, sequence: int, segments: bytes | list[Any] | None) -> None:
        self.last = segments

    def last_reply(self) -> bytes:
        super().reply(0, self.last)
        reply = self.replies.pop()
        assert reply is not None
        return reply


def serve(broker: InProcessBroker, connection: Sink, frames: list[bytes]) -> None:
    for frame in frames:
        broker.send(connection, frame)


def mark() -> None:
    os.getsid(0)


def main(count: int, directory: str) -> None:
    gc.disable()
    with InProcessBroker(directory, SETTINGS) as broker:
        work = Work(broker.ask, broker.clock.wall_ms())
        for make in WORKS.values():
            requests = make(work, WARM_UP + count)
            frames = [frame_of(request, version) for request, version in requests]
            connection = Sink(1)
            serve(broker, connection, frames[:WARM_UP])
            mark()
            serve(broker, connection, [])
            mark()
            serve(broker, connection, frames[WARM_UP:])
            mark()
            assert_answered(*requests[-1], connection.last_reply())


if __name__ == '__main__':
    main(int(sys.argv[1]), sys.argv[2])
