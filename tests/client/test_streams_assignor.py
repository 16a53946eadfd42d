"""The range assignor computes the same ranges as Apache Kafka's range assignor, and encodes them in the format of other
clients."""
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.base.errors import KafkaError
from kbroker.client.assignor import (
    Member,
    assign_ranges,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)


def members(*names, topics=('a', 'b')):
    return [Member(name, None, frozenset(topics)) for name in names]


def test_the_first_members_get_what_is_left_over():
    assert assign_ranges(members('m2', 'm1'), {'a': 3, 'b': 2}) == {
        'm1': [('a', 0), ('a', 1), ('b', 0)], 'm2': [('a', 2), ('b', 1)]}


def test_a_topic_goes_to_its_subscribers_alone():
    found = assign_ranges([*members('m1'), *members('m0', topics=['b'])], {'a': 2, 'b': 1})
    assert found == {'m1': [('a', 0), ('a', 1)], 'm0': [('b', 0)]}


def test_a_topic_that_does_not_exist_gives_nothing():
    assert assign_ranges(members('m1', topics=['none']), {}) == {'m1': []}


def test_static_members_stand_before_the_others_in_the_order_of_their_names():
    group = [Member('z', 'i1', frozenset('a')), Member('a', 'i2', frozenset('a')), Member('b', None, frozenset('a'))]
    assert assign_ranges(group, {'a': 3}) == {'z': [('a', 0)], 'a': [('a', 1)], 'b': [('a', 2)]}


@given(st.dictionaries(st.sampled_from('abcd'), st.integers(1, 9)),
       st.lists(st.sets(st.sampled_from('abcd'), min_size=1), min_size=1, max_size=5))
def test_every_partition_goes_to_one_subscriber(counts, subscriptions):
    group = [Member(str(number), None, frozenset(topics)) for number, topics in enumerate(subscriptions)]
    given_out = [(partition, member) for member, partitions in assign_ranges(group, counts).items()
                 for partition in partitions]
    wanted = {topic for topics in subscriptions for topic in topics} & counts.keys()
    assert sorted(partition for partition, _ in given_out) == [
        (topic, partition) for topic in sorted(wanted) for partition in range(counts[topic])]
    assert all(topic in group[int(member)].topics for (topic, _), member in given_out)


def test_subscription_and_assignment_are_the_bytes_of_the_consumer_protocol():
    assert encode_subscription(['t'], [('t', 1)]) == (
        b'\x00\x01' b'\x00\x00\x00\x01\x00\x01t' b'\xff\xff\xff\xff'
        b'\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x01\x00\x00\x00\x01')
    assert encode_assignment([('t', 1), ('t', 0)]) == (
        b'\x00\x00' b'\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x01' b'\xff\xff\xff\xff')


def test_what_is_encoded_is_decoded():
    assert decode_subscription(encode_subscription(['b', 'a'], [('a', 0)])) == {'a', 'b'}
    assert decode_assignment(encode_assignment([('b', 2), ('a', 0)])) == [('a', 0), ('b', 2)]
    assert decode_assignment(b'') == []


def test_a_newer_subscription_is_read_by_its_beginning():
    newer = b'\x00\x09' + encode_subscription(['t'])[2:] + b'\xff\xff\xff\xff' + b'\xff\xff' + b'new'
    assert decode_subscription(newer) == {'t'}


@pytest.mark.parametrize('data', [b'\x00', b'\xff\xff\x00\x00\x00\x00', b'\x00\x00\x00\x00\x00\x09'])
def test_bytes_that_are_no_subscription_are_refused(data):
    with pytest.raises(KafkaError, match='another protocol than consumer'):
        decode_subscription(data)
