"""The metadata hashes of topics equal the hashes in rows that Apache Kafka has written."""
import pytest

from kbroker.base.long_work import run_to_end
from kbroker.group.modern.metadata_hash import HashedTopic, metadata_hash, topic_hash
from kbroker.group.modern.sorted_names import RUN_NAMES, sorted_in_parts

T = HashedTopic(bytes(range(16)), 't', 3)
T_IN_RACK = T._replace(racks=('r1',))
U = HashedTopic(bytes(range(16, 32)), 'u', 1)


@pytest.mark.parametrize(('topic', 'expected'), [(T, 'ffd99859f59f80f5'), (T_IN_RACK, 'a03e22cddd65be08')])
def test_hash_of_a_topic(topic, expected):
    assert f'{topic_hash(topic):x}' == expected


@pytest.mark.parametrize(('topics', 'expected'), [
    pytest.param([T], 0x923c2ee2c05e23d7, id='one topic'),
    pytest.param([T_IN_RACK], 0x7da7af4b68c7334a, id='in a rack'),
    pytest.param([T, U], 0x1a1baefa5d383141, id='two topics'),
    pytest.param([U, T], 0x1a1baefa5d383141, id='in any order'),
    pytest.param([], 0, id='no topics'),
])
def test_hash_of_a_group(topics, expected):
    assert run_to_end(metadata_hash(topics)) % 2 ** 64 == expected


def test_the_order_of_very_many_topics_does_not_count():
    topics = [HashedTopic(bytes(16), f'topic-{number}', 1) for number in range(5_000)]
    assert run_to_end(metadata_hash(topics)) == run_to_end(metadata_hash(sorted(topics)))


@pytest.mark.parametrize('count', [0, 1, RUN_NAMES, RUN_NAMES + 1, 5 * RUN_NAMES])
def test_names_are_sorted_in_parts(count):
    names = {f'{number * 7919 % 10_007}' for number in range(count)}
    assert run_to_end(sorted_in_parts(names)) == sorted(names)


def test_the_hash_is_signed():
    assert run_to_end(metadata_hash([T])) == -7909395294144551977




def test_the_order_of_racks_does_not_count():
    assert topic_hash(T._replace(racks=('a', 'b'))) == topic_hash(T._replace(racks=('b', 'a')))


@pytest.mark.parametrize('changed', [
    T._replace(topic_id=bytes(16)), T._replace(name='v'), T._replace(partitions=4), T._replace(racks=('r1', 'r2'))])
def test_every_property_of_a_topic_counts(changed):
    assert topic_hash(changed) not in (topic_hash(T), topic_hash(T_IN_RACK))
