"""Tests of the assignors that assign partitions: tables of inputs with their results, and properties that every result
has."""
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.worlds.stepwise_work import StepwiseWork

from kbroker.base.long_work import run_to_end
from kbroker.group.assignors import range as range_assignor
from kbroker.group.assignors import simple, uniform
from kbroker.group.assignors.spec import Spec, SpecMember

ASSIGNORS = {'range': range_assignor.assign, 'uniform': uniform.assign, 'simple': simple.assign}
TOPICS = {f'T{number}'.encode(): f'T{number}' for number in range(1, 5)}


def partitions_of(text):
    """Return {topic: partitions} for a text of words. The word T1:0-2,5 means the partitions 0, 1, 2 and 5 of T1."""
    found = {}
    for word in text.split():
        topic, _, partitions = word.partition(':')
        found[topic.encode()] = frozenset(
            number for part in partitions.split(',')
            for number in range(int(part.split('-')[0]), int(part.split('-')[-1]) + 1))
    return found


def member(member_id, topics, target='', instance=None):
    return SpecMember(member_id, instance, frozenset(topic.encode() for topic in topics.split()), partitions_of(target))


def spec(members, **counts):
    return Spec(members, {topic.encode(): count for topic, count in counts.items()},
                len({found.topics for found in members}) <= 1)


def assign(name, wanted):
    return run_to_end(ASSIGNORS[name](wanted))


@pytest.mark.parametrize(('name', 'wanted', 'expected'), [
    pytest.param('range', spec([member(name, 'T1 T3') for name in 'ABC'], T1=3, T3=2),
                 {'A': 'T1:0 T3:0', 'B': 'T1:1 T3:1', 'C': 'T1:2'}, id='range'),
    pytest.param('range', spec([member('A', 'T1 T2'), member('B', 'T3'), member('C', 'T2 T3')], T1=3, T2=3, T3=2),
                 {'A': 'T1:0-2 T2:0-1', 'B': 'T3:0', 'C': 'T2:2 T3:1'}, id='range, different topics'),
    pytest.param('range', spec([member('A', 'T1', instance='A'), member('B', 'T1'), member('C', 'T1', instance='C')],
                               T1=5), {'A': 'T1:0-1', 'C': 'T1:2-3', 'B': 'T1:4'}, id='range, static members first'),
    pytest.param('range', spec([member('Z', 'T1', instance='A'), member('B', 'T1'), member('C', 'T1', instance='C')],
                               T1=5), {'Z': 'T1:0-1', 'C': 'T1:2-3', 'B': 'T1:4'}, id='range, a new member id'),
    pytest.param('uniform', spec([member('A', 'T1 T2', 'T1:0-1 T2:0-1'), member('B', 'T1 T2', 'T1:2 T2:2')],
                                 T1=3, T2=3), {'A': 'T1:0-1 T2:0', 'B': 'T1:2 T2:1-2'}, id='uniform'),
    pytest.param('uniform', spec([member('A', 'T1 T2', 'T1:0 T2:0'), member('B', 'T1 T2', 'T1:1 T2:1')], T1=3, T2=3),
                 {'A': 'T1:0,2 T2:0', 'B': 'T1:1 T2:1-2'}, id='uniform, a member left'),
    pytest.param('uniform', spec([member('A', 'T2', 'T1:0 T2:0'), member('B', 'T2', 'T1:1 T2:1')], T1=2, T2=2),
                 {'A': 'T2:0', 'B': 'T2:1'}, id='uniform, a topic less'),
    pytest.param('uniform', spec([
        member('A', 'T1', 'T1:0-2'), member('B', 'T1 T2', 'T1:3 T2:0'),
        member('C', 'T1 T2 T3', 'T1:4-5 T2:1-3 T3:0-3')], T1=6, T2=4, T3=4),
        {'A': 'T1:0-2,5', 'B': 'T1:3 T2:0-3', 'C': 'T1:4 T3:0-3'}, id='uniform, different topics'),
    pytest.param('uniform', spec([
        member('A', 'T1', 'T1:0-5,7,9'), member('B', 'T1 T2', 'T1:6,8,10 T2:0-4'), member('C', 'T1 T2')], T1=11, T2=5),
        {'A': 'T1:0-5', 'B': 'T2:0-4', 'C': 'T1:6-10'}, id='uniform, the last member of a level gives first'),
    pytest.param('uniform', Spec([member('A', 'T1 T2 T3', 'T1:0-1 T2:0-1 T3:0-1'), member('B', 'T1 T2 T3')],
                                 {b'T1': 2, b'T2': 2, b'T3': 2}, False),
                 {'A': 'T2:0 T3:0-1', 'B': 'T1:0-1 T2:1'}, id='uniform, all topics, as if different'),
    pytest.param('uniform', spec([member('A', 'T1', 'T1:0-9'), member('B', 'T1')], T1=2),
                 {'A': 'T1:0', 'B': 'T1:1'}, id='uniform, the topic was created again with fewer partitions'),
    pytest.param('simple', spec([member(name, 'T1') for name in 'ABC'], T1=2),
                 {'A': 'T1:0-1', 'B': 'T1:0', 'C': 'T1:1'}, id='simple, three members for two partitions'),
    pytest.param('simple', spec([member('A', 'T1'), member('B', 'T1')], T1=5),
                 {'A': 'T1:0,2,4', 'B': 'T1:1,3'}, id='simple, a member each'),
    pytest.param('simple', spec([member('A', 'T1', 'T1:0-4'), member('B', 'T1')], T1=5),
                 {'A': 'T1:0-2', 'B': 'T1:3-4'}, id='simple, a member joins'),
    pytest.param('simple', spec([member('A', 'T1'), member('B', 'T2'), member('C', 'T1 T2')], T1=1, T2=2),
                 {'A': 'T1:0', 'B': 'T2:0', 'C': 'T1:0 T2:1'}, id='simple, different topics'),
    *(pytest.param(name, Spec([], {}, True), {}, id=f'{name}, no members') for name in ASSIGNORS),
    *(pytest.param(name, spec([member('A', '')]), {'A': ''}, id=f'{name}, no topics') for name in ASSIGNORS),
])
def test_an_assignor(name, wanted, expected):
    assert assign(name, wanted) == {member_id: partitions_of(text) for member_id, text in expected.items()}


@pytest.mark.parametrize(('members', 'partitions', 'wishes'), [
    (2, 5, [3, 2]), (3, 2, [2, 1, 1]), (1, 3, [3]), (4, 4, [1, 1, 1, 1]), (5, 1, [1] * 5)])
def test_the_wishes_of_members_of_a_share_group(members, partitions, wishes):
    found = assign('simple', spec([member(f'm{number}', 'T1') for number in range(members)], T1=partitions))
    assert [len(share.get(b'T1', ())) for share in found.values()] == wishes


def test_every_shared_partition_keeps_a_member_while_members_join():
    targets = {}
    for members in range(1, 102):
        ids = [f'm{number}' for number in range(members)]
        found = assign('simple', Spec([
            SpecMember(member_id, None, frozenset([b'T1', b'T3']), targets.get(member_id, {})) for member_id in ids],
            {b'T1': 24, b'T3': 2}, True))
        assert held(found).keys() == {(topic, number) for topic, count in ((b'T1', 24), (b'T3', 2))
                                      for number in range(count)}
        targets = found


def held(found):
    """Return {(topic, partition): ids of the members to which it is assigned}."""
    owners = {}
    for member_id, share in found.items():
        for topic, partitions in share.items():
            assert partitions
            for partition in partitions:
                owners.setdefault((topic, partition), []).append(member_id)
    return owners


COUNTS = st.fixed_dictionaries({topic: st.integers(1, 6) for topic in TOPICS})
SUBSCRIPTION = st.frozensets(st.sampled_from(sorted(TOPICS)))


@st.composite
def groups(draw, homogeneous=None):
    """Draw the Spec of a group. The previous targets of its members give each partition to at most one member."""
    counts = draw(COUNTS)
    ids = [f'm{number}' for number in range(draw(st.integers(1, 6)))]
    alike = draw(st.booleans()) if homogeneous is None else homogeneous
    topics = draw(SUBSCRIPTION) if alike else None
    before = draw(st.lists(st.sampled_from([*ids, 'gone']), min_size=24, max_size=24))
    targets = {member_id: {} for member_id in [*ids, 'gone']}
    for number, owner in enumerate(before):
        topic = sorted(TOPICS)[number % 4]
        targets[owner][topic] = targets[owner].get(topic, frozenset()) | {number // 4}
    members = [SpecMember(member_id, None, draw(SUBSCRIPTION) if topics is None else topics, targets[member_id])
               for member_id in ids]
    return Spec(members, {topic: count for topic, count in counts.items()
                          if any(topic in found.topics for found in members)}, alike)


PROPERTY = settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)


@pytest.mark.parametrize('name', ['range', 'uniform'])
@PROPERTY
@given(data=st.data())
def test_every_partition_has_exactly_one_member_which_subscribes_to_it(name, data):
    wanted = data.draw(groups())
    found = assign(name, wanted)
    assert found.keys() == {one.member_id for one in wanted.members}
    topics = {one.member_id: one.topics for one in wanted.members}
    owners = held(found)
    assert owners.keys() == {(topic, number) for topic, count in wanted.partitions.items() for number in range(count)}
    for (topic, _), owner in owners.items():
        assert len(owner) == 1 and topic in topics[owner[0]]


@PROPERTY
@given(groups(homogeneous=True))
def test_uniform_is_balanced_and_moves_no_more_than_it_has_to(wanted):
    found = assign('uniform', wanted)
    sizes = [sum(map(len, share.values())) for share in found.values()]
    assert max(sizes) - min(sizes) <= 1
    for one in wanted.members:
        had = {(topic, number) for topic, numbers in one.target.items() for number in numbers
               if topic in wanted.partitions and number < wanted.partitions[topic]}
        has = {(topic, number) for topic, numbers in found[one.member_id].items() for number in numbers}
        assert len(had & has) >= min(len(had), sum(wanted.partitions.values()) // len(wanted.members))


@PROPERTY
@given(groups(homogeneous=False))
def test_no_move_of_one_partition_improves_the_balance_of_uniform(wanted):
    found = assign('uniform', wanted)
    size = {member_id: sum(map(len, share.values())) for member_id, share in found.items()}
    for topic in wanted.partitions:
        subscribers = [one.member_id for one in wanted.members if topic in one.topics]
        owners = [size[member_id] for member_id in subscribers if topic in found[member_id]]
        assert max(owners) - min(size[member_id] for member_id in subscribers) <= 1


@pytest.mark.parametrize('name', ['range', 'uniform'])
@PROPERTY
@given(data=st.data())
def test_a_target_assigned_again_stays(name, data):
    """An assignor that gets its own result as the previous targets returns the same result, even if the members are
    listed in a different order."""
    wanted = data.draw(groups())
    found = assign(name, wanted)
    again = data.draw(st.permutations([
        SpecMember(one.member_id, None, one.topics, found[one.member_id]) for one in wanted.members]))
    assert assign(name, Spec(again, wanted.partitions, wanted.is_homogeneous)) == found


@PROPERTY
@given(groups())
def test_sharing_is_balanced_and_settles(wanted):
    found = assign('simple', wanted)
    owners = held(found)
    for topic, count in wanted.partitions.items():
        subscribers = [one for one in wanted.members if topic in one.topics]
        everywhere = sum(wanted.partitions.values()) if wanted.is_homogeneous else count
        for number in range(count):
            assert 1 <= len(owners[topic, number]) <= -(-len(subscribers) // everywhere)
    again = [SpecMember(one.member_id, None, one.topics, found[one.member_id]) for one in wanted.members]
    assert assign('simple', Spec(again, wanted.partitions, wanted.is_homogeneous)) == found


@pytest.mark.parametrize('name', ASSIGNORS)
@pytest.mark.parametrize('is_homogeneous', [True, False])
def test_many_partitions_and_members_are_assigned_in_parts(name, is_homogeneous):
    topics = [f'topic-{number:04}'.encode() for number in range(100)]
    members = [SpecMember(f'm{number:04}', None, frozenset(topics[number % (1 if is_homogeneous else 2):]), {})
               for number in range(100)]
    work = StepwiseWork()
    results = []
    work.start(ASSIGNORS[name](Spec(members, dict.fromkeys(topics, 20), is_homogeneous)),
               lambda error, found: results.append(found))
    parts = 0
    while len(work):
        work.step()
        parts += 1
    assert len(results[0]) == 100
    assert parts > 20
