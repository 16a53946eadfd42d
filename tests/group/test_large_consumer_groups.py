"""Consumer groups with regular expressions that match many topics: no turn of the event loop takes long, because the
work is divided into parts. Times are processor times of this thread, so that the load of the machine does not change
them.
"""
import pytest
from support.runner.attempts import assert_within
from support.worlds.consumer_groups import Consumer, consumer_group
from support.worlds.measured_world import LONGEST_TURN_S, large_world

TOPICS = 30_000


@pytest.fixture
def world():
    with large_world() as found:
        for number in range(TOPICS):
            found.topics.create(f'topic-{number}', 0)
        yield found


def test_no_turn_is_long_that_counts_the_topics_of_an_expression(world):
    Consumer(world, 'a', regex='topic-.*').join()
    assert len(consumer_group(world).names) == TOPICS
    assert_within(world.longest_turn_s, LONGEST_TURN_S)
