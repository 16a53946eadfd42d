"""The bounds for the creation of internal topics of streams groups: the number of creations in progress, and of
remembered errors."""
import pytest

from kbroker.base.clock import ManualClock, Timers
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.long_work import LongWork
from kbroker.group.streams.topics import MOST_NOTED, StreamsTopics
from kbroker.metadata.topic_operations import NewTopic


class SlowTopics:
    """A stand-in for the topic registry. A creation of topics stays in progress until the test ends it."""

    def __init__(self):
        self.names = []
        self.is_over = False

    def create_many(self, new_topics, charge):
        self.names += [new.name for new in new_topics]
        while not self.is_over:
            yield
        return [KafkaError(ErrorCode.POLICY_VIOLATION, new.name) for new in new_topics]


@pytest.fixture
def topics():
    return SlowTopics()


@pytest.fixture
def long_work():
    return LongWork(Timers(ManualClock()))


@pytest.fixture
def streams_topics(topics, long_work):
    return StreamsTopics(topics, ManualClock(), long_work)


def create(streams_topics, numbers):
    streams_topics.create((NewTopic(f't{number}', 1) for number in numbers), 1000, lambda count: None)


def test_a_creation_that_finds_no_room_is_left_to_the_next_heartbeat(streams_topics, topics, long_work):
    create(streams_topics, range(MOST_NOTED - 1))
    create(streams_topics, range(MOST_NOTED + 10))
    create(streams_topics, range(MOST_NOTED, MOST_NOTED + 10))
    assert topics.names == [f't{number}' for number in range(MOST_NOTED)]
    topics.is_over = True
    long_work.finish()
    create(streams_topics, [MOST_NOTED])
    assert topics.names[-1] == f't{MOST_NOTED}'


def test_of_too_many_errors_the_oldest_is_forgotten(streams_topics):
    names = [f't{number}' for number in range(MOST_NOTED + 1)]
    for name in names:
        streams_topics.note_error(name, KafkaError(ErrorCode.POLICY_VIOLATION, name), 1000)
    assert streams_topics.errors(names) == {name: name for name in names[1:]}
