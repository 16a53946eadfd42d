"""A program for callgrind: serves each kind of request in a broker without sockets, between marks.

    PYTHONPATH=. valgrind --tool=callgrind --instr-atstart=no --dump-before=getsid \\
        python tests/gates/served_in_process.py COUNT DIRECTORY [NAME...]

With names of requests, the program serves only these requests. The client is then a user whose rights come from ACLs,
among 10,000 other ACLs. Counting begins when the first requests are ready, because under callgrind the start of the
program takes longer than the requests. A mark is a call of getsid(2), which no other code makes. With the option
--dump-before, callgrind writes at each mark the counts since the last mark. Each kind of request has three marks: after
the preparation, after a loop of no requests, and after a loop of COUNT requests. The work is the same in every run: the
clock is manual, the requests exist before the loop, and the garbage collector is off.
"""
from __future__ import annotations

import gc
import os
import pathlib
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from callgrind import count_from_now_on
from request_work import SETTINGS, WORKS, Work, assert_answered
from support.brokers.in_process_broker import InProcessBroker, InProcessConnection, frame_of

from kbroker.protocol.messages import AccessControlEntryRecord
from kbroker.security.acl_codes import Operation, PatternType, Permission, ResourceType
from kbroker.security.principal import parse_principal
from kbroker.security.session import Session

WARM_UP = 20
ACLS = 10_000
OWN_TYPES = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID, ResourceType.CLUSTER)


class Sink(InProcessConnection):
    """A connection that keeps its replies. It does not read their file slices, which only the network reads."""

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


def session_of(broker: InProcessBroker) -> Session:
    """Return the session of a user whose rights all come from ACLs. The broker also has many ACLs of other users."""
    assert broker.authorizer is not None
    for number in range(ACLS):
        is_own = number < len(OWN_TYPES)
        broker.authorizer.put(AccessControlEntryRecord(
            id=number.to_bytes(16, 'big'), resource_type=OWN_TYPES[number] if is_own else ResourceType.TOPIC,
            resource_name='*' if is_own else f'topic-{number}', pattern_type=PatternType.LITERAL,
            principal='User:alice', host='*', operation=Operation.ALL, permission_type=Permission.ALLOW))
    alice = parse_principal('User:alice')
    return Session(alice, broker.authorizer.access_of(alice, '127.0.0.1'))


def main(count: int, directory: str, *guarded: str) -> None:
    gc.disable()
    settings = SETTINGS | ({'authorizer.class.name': 'StandardAuthorizer'} if guarded else {})
    with InProcessBroker(directory, settings) as broker:
        work = Work(broker.ask, broker.clock.wall_ms())
        session = session_of(broker) if guarded else None
        for number, make in enumerate([WORKS[name] for name in guarded or WORKS]):
            requests = make(work, WARM_UP + count)
            frames = [frame_of(request, version) for request, version in requests]
            connection = Sink(1, session)
            if number == 0:
                count_from_now_on()
            serve(broker, connection, frames[:WARM_UP])
            mark()
            serve(broker, connection, [])
            mark()
            serve(broker, connection, frames[WARM_UP:])
            mark()
            assert_answered(*requests[-1], connection.last_reply())


if __name__ == '__main__':
    main(int(sys.argv[1]), *sys.argv[2:])
