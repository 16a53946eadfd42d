"""The assignor that assigns tasks to members of streams groups."""
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kbroker.base.long_work import run_to_end
from kbroker.group.assignors.sticky import Role, TaskMember, TaskSpec, assign

ACTIVE, STANDBY = (Role.ACTIVE, '0'), (Role.STANDBY, '0')


def member(name, process=None, active=(), standby=(), offsets=None):
    return TaskMember(name, process or name, {key: frozenset(tasks) for key, tasks in (
        (ACTIVE, active), (STANDBY, standby)) if tasks}, {'0': offsets} if offsets else {})


def run(members, tasks=3, replicas=0, stateful=frozenset('0')):
    found = run_to_end(assign(TaskSpec(members, {'0': tasks}, stateful, replicas)))
    return {member_id: {role.value: set(share) for (role, _), share in shares.items()}
            for member_id, shares in found.items()}


@pytest.mark.parametrize(('members', 'options', 'expected'), [
    pytest.param([member('m1', standby=[2]), member('m2', standby=[1]), member('m3', standby=[0])], {},
                 {'m1': {'active': {2}}, 'm2': {'active': {1}}, 'm3': {'active': {0}}}, id='standby becomes active'),
    pytest.param([member('m1', active=[0, 1, 2]), member('m2')], {},
                 {'m1': {'active': {0, 1}}, 'm2': {'active': {2}}}, id='a member joins'),
    pytest.param([member('m1', 'p', active=[0, 1]), member('m2', 'p', active=[2, 3]), member('m3', 'q')],
                 {'tasks': 6}, {'m1': {'active': {0, 1}}, 'm2': {'active': {2, 3}}, 'm3': {'active': {4, 5}}},
                 id='the least loaded process'),
    pytest.param([member('m1'), member('m2')], {'tasks': 2, 'replicas': 1},
                 {'m1': {'active': {1}, 'standby': {0}}, 'm2': {'active': {0}, 'standby': {1}}}, id='standby tasks'),
    pytest.param([member('m1', 'p'), member('m2', 'p')], {'tasks': 2, 'replicas': 1},
                 {'m1': {'active': {0}}, 'm2': {'active': {1}}}, id='too few processes for standby tasks'),
    pytest.param([member('m1'), member('m2')], {'tasks': 2, 'replicas': 1, 'stateful': frozenset()},
                 {'m1': {'active': {1}}, 'm2': {'active': {0}}}, id='no standby task without state'),
    pytest.param([member('m1', 'p', standby=[2]), member('m2', 'p', active=[0, 1]), member('m3', 'q', standby=[2])],
                 {'tasks': 4}, {'m1': {'active': {2}}, 'm2': {'active': {0, 1}}, 'm3': {'active': {3}}},
                 id='a less loaded process with a member of as many tasks'),
    pytest.param([member('m1', offsets={0: 3}), member('m2', offsets={0: 5})], {'tasks': 1},
                 {'m1': {}, 'm2': {'active': {0}}}, id='the member with the larger offset'),
    pytest.param([member('m1', offsets={0: 9}), member('m2', standby=[0], offsets={0: 1})], {'tasks': 1},
                 {'m1': {}, 'm2': {'active': {0}}}, id='the standby owner before a larger offset'),
    pytest.param([member('m1', standby=[0]), member('m2', standby=[0], offsets={0: 1})], {'tasks': 1},
                 {'m1': {}, 'm2': {'active': {0}}}, id='the standby owner with the larger offset'),
    pytest.param([member('m1', offsets={7: 9}), member('m2')], {'tasks': 1},
                 {'m1': {}, 'm2': {'active': {0}}}, id='an offset of a task that is gone'),
    pytest.param([member('m1', 'p', standby=[0]), member('m2', 'q', standby=[0]), member('m3', 'p', active=[0]),
                  member('m4', 'a')], {'tasks': 1, 'replicas': 1},
                 {'m1': {}, 'm2': {'standby': {0}}, 'm3': {'active': {0}}, 'm4': {}},
                 id='the next standby owner if the process of the first has the task'),
    pytest.param([], {}, {}, id='no members'),
])
def test_tasks(members, options, expected):
    assert run(members, **options) == expected


@st.composite
def groups(draw):
    ids = [f'm{number}' for number in range(draw(st.integers(1, 6)))]
    tasks = {subtopology: draw(st.integers(0, 6)) for subtopology in '01'}
    all_tasks = [(subtopology, task) for subtopology in '01' for task in range(6)]
    targets = {one: {} for one in [*ids, 'gone']}
    for role in Role.ACTIVE, Role.STANDBY:
        for (subtopology, task), owner in zip(all_tasks, draw(st.lists(
                st.sampled_from([*ids, 'gone']), min_size=12, max_size=12)), strict=True):
            key = role, subtopology
            targets[owner][key] = targets[owner].get(key, frozenset()) | {task}
    offsets = st.dictionaries(st.sampled_from('01'), st.dictionaries(st.integers(0, 6), st.integers(-2, 3)))
    members = [TaskMember(one, draw(st.sampled_from('pqr')), targets[one], draw(st.just({}) | offsets)) for one in ids]
    return TaskSpec(members, tasks, frozenset(draw(st.sets(st.sampled_from('01')))), draw(st.integers(0, 2)))


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(groups())
def test_each_task_is_active_once_and_on_so_many_other_processes_as_asked(spec):
    found = run_to_end(assign(spec))
    process_of = {member.member_id: member.process_id for member in spec.members}
    places = {}
    for member_id, shares in found.items():
        for (role, subtopology), numbers in shares.items():
            for number in numbers:
                places.setdefault((subtopology, number), []).append((role, process_of[member_id]))
    assert places.keys() == {(subtopology, task) for subtopology, count in spec.tasks.items() for task in range(count)}
    for (subtopology, _), roles in places.items():
        replicas = spec.standby_replicas if subtopology in spec.stateful else 0
        assert [role for role, _ in roles].count(Role.ACTIVE) == 1
        assert len({process for _, process in roles}) == len(roles)
        assert len(roles) == 1 + min(replicas, len(set(process_of.values())) - 1)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(groups())
def test_no_process_could_give_an_active_task_to_a_much_less_loaded_one(spec):
    found = run_to_end(assign(TaskSpec(spec.members, spec.tasks, spec.stateful, 0)))
    most = -(-sum(spec.tasks.values()) // len(spec.members))
    members_of = {}
    for member in spec.members:
        members_of.setdefault(member.process_id, []).append(sum(map(len, found[member.member_id].values())))
    for sizes in members_of.values():
        assert sum(sizes) <= most * len(sizes)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.integers(1, 6), st.integers(0, 12), st.integers(0, 1))
def test_an_assignment_stays_while_the_members_do(members, tasks, replicas):
    one_by_one = [TaskMember(f'm{number}', f'm{number}') for number in range(members)]
    found = run_to_end(assign(TaskSpec(one_by_one, {'0': tasks}, frozenset('0'), replicas)))
    again = [TaskMember(one.member_id, one.process_id, found[one.member_id]) for one in reversed(one_by_one)]
    assert run_to_end(assign(TaskSpec(again, {'0': tasks}, frozenset('0'), replicas))) == found
