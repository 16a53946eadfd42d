"""The assignor `cooperative-sticky`: balance, stickiness, and partitions that move in two rebalances."""
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from kbroker.client.assignor import Member, decode_member, encode_subscription
from kbroker.client.sticky_assignor import assign_cooperatively, assign_sticky

TOPICS = 'abc'
COUNTS = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 7))
SUBSCRIPTIONS = st.lists(st.frozensets(st.sampled_from(TOPICS), min_size=1), min_size=1, max_size=5)


def members(subscriptions, owned=None, generation=1):
    owned = owned or {}
    return [Member(f'm{number}', None, topics, frozenset(owned.get(f'm{number}', ())), generation)
            for number, topics in enumerate(subscriptions)]


def all_partitions(subscriptions, counts):
    return sorted((topic, index) for topic in set().union(*subscriptions) for index in range(counts.get(topic, 0)))


@given(COUNTS, SUBSCRIPTIONS)
def test_every_partition_goes_to_one_subscriber_and_no_other_subscriber_could_take_from_a_fuller_one(
        counts, subscriptions):
    group = members(subscriptions)
    found = assign_sticky(group, counts)
    assert sorted(partition for partitions in found.values() for partition in partitions) == all_partitions(
        subscriptions, counts)
    for member in group:
        assert {topic for topic, _ in found[member.member_id]} <= member.topics
        for other in group:
            if len(found[other.member_id]) >= len(found[member.member_id]) + 2:
                assert not {topic for topic, _ in found[other.member_id]} & member.topics


@given(COUNTS, SUBSCRIPTIONS)
def test_a_group_that_has_not_changed_keeps_its_assignment(counts, subscriptions):
    first = assign_sticky(members(subscriptions), counts)
    assert assign_cooperatively(members(subscriptions, first), counts) == first


@given(COUNTS, SUBSCRIPTIONS, st.frozensets(st.sampled_from(TOPICS), min_size=1), st.integers(0, 4))
def test_a_change_reaches_the_balanced_assignment_in_two_rebalances(counts, subscriptions, joining, leaving):
    """Between the two rebalances, no partition has two owners: the first rebalance assigns only partitions without an
    owner."""
    first = assign_sticky(members(subscriptions), counts)
    first.pop(f'm{leaving}', None)
    changed = [topics for number, topics in enumerate(subscriptions) if number != leaving]
    names = [f'm{number}' for number in range(len(subscriptions)) if number != leaving] + ['new']

    def group(owned):
        return [Member(name, None, topics, frozenset(owned.get(name, ())), 1)
                for name, topics in zip(names, [*changed, joining], strict=True)]

    target = assign_sticky(group(first), counts)
    between = assign_cooperatively(group(first), counts)
    for name in names:
        assert set(between[name]) <= set(target[name])
        for other in names:
            assert other == name or not set(between[name]) & set(first.get(other, ()))
    after = assign_cooperatively(group(between), counts)
    assert sorted(chain(*after.values())) == sorted(chain(*target.values()))
    assert all(set(between[name]) <= set(after[name]) for name in names)
    assert assign_cooperatively(group(after), counts) == after


def test_a_new_member_takes_no_more_than_its_share():
    owned = {'m0': [('a', 0), ('a', 1)], 'm1': [('a', 2), ('a', 3)]}
    found = assign_cooperatively(members([frozenset('a')] * 3, owned), {'a': 4})
    assert sorted(map(len, found.values())) == [0, 1, 2]
    assert all(set(found[name]) <= set(owned[name]) for name in owned)


def test_the_claims_of_a_former_generation_and_of_two_members_do_not_count():
    old = Member('m0', None, frozenset('a'), frozenset({('a', 0)}), 3)
    new = [Member(f'm{number}', None, frozenset('a'), frozenset({('a', 1)}), 4) for number in (1, 2)]
    assert sorted(partition for partitions in assign_cooperatively([old, *new], {'a': 2}).values()
                  for partition in partitions) == [('a', 0), ('a', 1)]


def test_a_subscription_says_what_its_member_owns_and_since_when():
    found = decode_member('m', None, encode_subscription(['b', 'a'], [('a', 1)], 7))
    assert found == Member('m', None, frozenset('ab'), frozenset({('a', 1)}), 7)
    # The bytes of a subscription in version 1, as Apache Kafka's client sends it. The user data contains the
    # generation.
    data = (b'\x00\x01' b'\x00\x00\x00\x01\x00\x01a' b'\x00\x00\x00\x04\x00\x00\x00\x09'
            b'\x00\x00\x00\x01\x00\x01a\x00\x00\x00\x01\x00\x00\x00\x02')
    assert decode_member('m', None, data) == Member('m', None, frozenset('a'), frozenset({('a', 2)}), 9)
