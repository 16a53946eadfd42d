"""The bound for the memory that group ids and member ids take in share sessions."""
import pytest

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.object_memory import memory_of
from kbroker.group.share.sessions import MOST_NAME_BYTES, SessionKey, ShareSessions

LONG = 'x' * 30_000 + '\U0001f600'


def test_sessions_with_long_names_are_bounded_by_their_memory():
    """Before the bound existed, 2,000 sessions with the longest group ids and member ids took 650 MB."""
    sessions = ShareSessions(lambda: 2_000)
    begun = []
    with pytest.raises(KafkaError) as caught:
        for number in range(2_000):
            begun.append(sessions.begin(SessionKey(f'{number}{LONG}', f'{number}{LONG}'), number, []))
    assert caught.value.code is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert len(begun) == MOST_NAME_BYTES // memory_of(begun[0].key)


def test_the_memory_of_names_ends_with_their_sessions_and_connections():
    sessions = ShareSessions(lambda: 2_000)
    left = []
    sessions.on_leave.append(left.append)
    for connection in (1, 2):
        for member in ('a', 'b'):
            sessions.begin(SessionKey('g', member), connection, [])
    assert sessions.name_bytes == 2 * memory_of(('g', 'a')) + memory_of('g'), 'both members went to the second one'
    for member in ('a', 'b'):
        sessions.end(sessions.find(SessionKey('g', member), 1))
    assert sessions.name_bytes > 0
    for connection in (1, 2):
        sessions.connection_closed(connection)
    assert (sessions.name_bytes, left) == (0, ['g', 'g'])
