"""Rules: what they match, how often they act, which of them contradict each other, and what is wrong with bad ones."""
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.base.clock import ManualClock, Timers
from kbroker.base.errors import ErrorCode
from kbroker.control import rules
from kbroker.control.points import ACTIONS, POINTS
from kbroker.control.rules import (
    MOST_RECORD_BYTES,
    MOST_RULES,
    BadRule,
    ContradictingRule,
    Rules,
    UnknownRule,
    contradict,
    has_facts,
    matches,
    parse_rule,
)

PRODUCE = {'api': 'Produce', 'client_id': 'app', 'topic': 'orders', 'partition': 0}


class Operation:
    """An operation that notes what happens to it."""

    def __init__(self, connection_id=1):
        self.connection_id = connection_id
        self.events = []

    def __call__(self):
        self.events.append('goes on')

    def fail(self, code, message):
        self.events.append(code.name)

    def drop(self, reason):
        self.events.append('dropped')


class World:
    def __init__(self):
        self.clock = ManualClock()
        self.timers = Timers(self.clock)
        self.signals = []
        self.rules = Rules(self.clock, self.timers, self.signals.append)

    def add(self, point='request', action='hold', select=None, **more):
        return self.rules.add({'point': point, 'action': action, 'select': select or {}, **more})

    def reach(self, point='request', operation=None, **facts):
        """Let an operation reach a point. Return it, with what has happened to it by then."""
        operation = operation or Operation()
        if not self.rules.reach(point, dict(facts or PRODUCE), operation):
            operation()
        return operation


@pytest.fixture
def world():
    return World()


def test_requests_of_the_test_kit_pass_all_rules_and_are_no_steps(world):
    world.add()
    assert world.reach(api='Fetch', client_id='kbroker-testing').events == ['goes on']
    assert world.reach(api='Fetch', client_id='kbroker').events == []
    assert [step['client_id'] for step in world.rules.steps_since(0)[0]] == ['kbroker']


# Matching

@given(st.text('ab*', max_size=8), st.text('ab', max_size=8))
def test_a_star_stands_for_any_characters(pattern, text):
    expected = re.fullmatch('.*'.join(map(re.escape, pattern.split('*'))), text) is not None
    assert matches(pattern, text) == expected


@given(st.text(max_size=6).filter(lambda text: '*' not in text), st.text(max_size=6))
def test_a_text_without_a_star_matches_only_itself(pattern, text):
    assert matches(pattern, text) == (pattern == text)


NAMES = st.sampled_from(['a', 'b', 'ab'])
PATTERNS = st.sampled_from(['a', 'b', 'ab', '*', 'a*', '*b'])
SELECTORS = st.fixed_dictionaries({}, optional={
    'api': PATTERNS, 'topic': PATTERNS, 'partition': st.integers(0, 1), 'group': PATTERNS})
FACTS = st.fixed_dictionaries({}, optional={
    'api': NAMES, 'topic': NAMES, 'partition': st.integers(0, 1), 'group': NAMES})


@given(SELECTORS, FACTS)
def test_a_selector_matches_if_each_of_its_values_does(select, facts):
    expected = all(name in facts and (facts[name] == value if type(value) is int else matches(value, facts[name]))
                   for name, value in select.items())
    assert has_facts(select, facts) == expected


@given(SELECTORS, st.lists(st.tuples(NAMES, st.integers(0, 1)), min_size=1, max_size=3))
def test_a_step_with_several_partitions_matches_like_one_of_them(select, targets):
    select.pop('api', None), select.pop('group', None)
    facts = [{'topic': topic, 'partition': partition} for topic, partition in targets]
    assert has_facts(select, {'targets': facts}) == any(has_facts(select, each) for each in facts)


@given(SELECTORS, FACTS)
def test_an_exact_selector_matches_only_steps_without_other_facts(select, facts):
    assert has_facts(select | {'exact': True}, facts) == (has_facts(select, facts) and set(facts) <= set(select))


def test_an_exact_selector_finds_the_step_that_the_record_shows(world):
    kinds = [PRODUCE, PRODUCE | {'transactional_id': 'tx'}, {'api': 'Produce', 'client_id': 'app'}]
    for facts in [*kinds, *kinds]:
        world.reach(**facts)
    record = [step for step in world.rules.steps_since(0)[0] if step['occurrence'] == 2]
    for step, facts in zip(record, kinds, strict=True):
        again = World()
        names = {name: step[name] for name in ('api', 'client_id', 'topic', 'partition', 'transactional_id')
                 if name in step}
        again.add(action='drop', select=names | {'exact': True, 'occurrence': 2})
        events = [again.reach(**each).events for each in [*kinds, *kinds]]
        assert events.index(['dropped']) == step['number'] - 1
        assert events.count(['dropped']) == 1
        assert facts.items() <= step.items()


def test_a_request_with_several_groups_matches_each():
    assert has_facts({'group': 'b'}, {'groups': ['a', 'b']})
    assert not has_facts({'group': 'c'}, {'groups': ['a', 'b']})


# How often a rule acts

@given(occurrence=st.none() | st.integers(1, 4), times=st.none() | st.integers(1, 3), steps=st.integers(0, 8))
def test_a_rule_acts_from_its_occurrence_on_and_at_most_so_often(occurrence, times, steps):
    world = World()
    counts = {'occurrence': occurrence, 'times': times}
    rule = world.add(action='drop', select={name: value for name, value in counts.items() if value is not None})
    found = [world.reach().events == ['dropped'] for _ in range(steps)]
    first, most = occurrence or 1, times or (1 if occurrence else steps)
    assert found == [first <= number < first + most for number in range(1, steps + 1)]
    assert rule.matched == sum(found)


def test_the_occurrence_counts_only_steps_that_match_the_rest(world):
    world.add(action='drop', select={'topic': 'orders', 'occurrence': 2})
    assert world.reach(topic='other', api='Produce').events == ['goes on']
    assert world.reach().events == ['goes on']
    assert world.reach(topic='other', api='Produce').events == ['goes on']
    assert world.reach().events == ['dropped']


# Actions

def test_a_held_operation_goes_on_when_its_rule_is_released(world):
    rule = world.add()
    first, second = world.reach(), world.reach()
    assert (first.events, rule.describe()['held'], rule.describe()['steps']) == ([], 2, [1, 2])
    world.rules.release(rule.id)
    assert (first.events, second.events, rule.describe()['held']) == (['goes on'], ['goes on'], 0)
    assert world.reach().events == []


def test_all_rules_are_removed_at_once(world):
    world.add(), world.add(point='reply')
    operations = [world.reach(), world.reach('reply')]
    assert [rule.matched for rule in world.rules.clear()] == [1, 1]
    assert [each.events for each in operations] == [['goes on'], ['goes on']]
    assert world.rules.all() == []


def test_a_rule_that_was_removed_does_not_act_on_an_operation_that_waits_for_another(world):
    held, failing = world.add(), world.add(action='error', error='NOT_COORDINATOR')
    operation = world.reach()
    world.rules.remove(failing.id)
    world.rules.release(held.id)
    assert operation.events == ['goes on']


def test_two_holds_have_to_be_released_both(world):
    rules = [world.add(), world.add()]
    operation = world.reach()
    world.rules.release(rules[0].id)
    assert (operation.events, [len(rule.held) for rule in rules]) == ([], [0, 1])
    world.rules.release(rules[1].id)
    assert operation.events == ['goes on']


def test_a_delay_is_over_when_the_clock_says_so(world):
    world.add(action='delay', delay_ms=10)
    operation = world.reach()
    world.clock.advance(9)
    world.timers.run_due()
    assert operation.events == []
    world.clock.advance(1)
    world.timers.run_due()
    assert operation.events == ['goes on']


def test_a_closed_connection_takes_its_operations_along(world):
    rule = world.add()
    world.add(point='reply', action='delay', delay_ms=10)
    mine, delayed, other = (world.reach(operation=Operation(1)), world.reach('reply', Operation(1)),
                            world.reach(operation=Operation(2)))
    world.rules.connection_closed(1)
    assert len(rule.held) == 1
    world.clock.advance(10)
    world.timers.run_due()
    world.rules.release(rule.id)
    assert (mine.events, delayed.events, other.events) == ([], [], ['goes on'])


def test_a_stop_lets_all_operations_go_on(world):
    world.add(), world.add(point='append.durable', action='delay', delay_ms=99)
    operations = [world.reach(), world.reach('append.durable')]
    world.rules.close()
    assert [each.events for each in [*operations, world.reach()]] == [['goes on']] * 3
    world.clock.advance(99)
    world.timers.run_due()
    assert operations[1].events == ['goes on']


def test_the_disk_asks_which_rules_act_and_only_these_steps_are_recorded(world):
    rule = world.add('sync', 'fail', {'topic': 'orders', 'occurrence': 2})
    assert world.rules.decide('sync', {'topic': 'orders', 'partition': 0}) == []
    assert world.rules.decide('sync', {'topic': 'orders', 'partition': 0}) == [rule]
    assert [step['point'] for step in world.rules.steps_since(0)[0]] == ['sync']


# Contradictions

@pytest.mark.parametrize(('one', 'other'), [
    ({'action': 'drop'}, {'action': 'kill'}),
    ({'action': 'error', 'error': 'NOT_COORDINATOR'}, {'action': 'drop', 'select': {'topic': 'orders'}}),
    ({'action': 'error', 'error': 'NOT_COORDINATOR', 'select': {'api': 'End*'}},
     {'action': 'error', 'error': 'REQUEST_TIMED_OUT', 'select': {'api': 'EndTxn'}}),
    ({'action': 'drop', 'select': {'occurrence': 2}}, {'action': 'kill', 'select': {'occurrence': 2}}),
])
def test_a_fault_that_contradicts_another_is_refused_and_both_are_named(world, one, other):
    first = world.add(**one)
    with pytest.raises(ContradictingRule, match=re.escape(first.text)) as refused:
        world.add(**other)
    assert parse_rule(9, {'point': 'request', **other}).text in str(refused.value)
    world.rules.remove(first.id)
    world.add(**other)


@pytest.mark.parametrize(('one', 'other'), [
    ({'action': 'hold'}, {'action': 'drop'}),
    ({'action': 'delay', 'delay_ms': 5}, {'action': 'error', 'error': 'NOT_COORDINATOR'}),
    ({'action': 'drop', 'select': {'topic': 'a'}}, {'action': 'kill', 'select': {'topic': 'b'}}),
    ({'action': 'drop', 'select': {'topic': 'a*'}}, {'action': 'kill', 'select': {'topic': 'b'}}),
    ({'action': 'drop', 'select': {'partition': 0}}, {'action': 'kill', 'select': {'partition': 1}}),
    ({'action': 'drop', 'select': {'occurrence': 1}}, {'action': 'kill', 'select': {'occurrence': 2}}),
    ({'action': 'drop'}, {'action': 'drop'}),
    ({'action': 'drop'}, {'point': 'reply', 'action': 'kill'}),
])
def test_rules_that_an_operation_can_obey_both_are_no_contradiction(world, one, other):
    world.add(**one), world.add(**other)


def test_a_rule_that_is_used_up_contradicts_nothing(world):
    world.add(action='drop', select={'times': 1})
    world.reach()
    world.add(action='kill')


@given(SELECTORS, SELECTORS, FACTS)
def test_rules_that_meet_on_one_step_contradict_each_other(left, right, facts):
    one, other = (parse_rule(number, {'point': 'request', 'action': action}) for number, action in
                  enumerate(('drop', 'kill')))
    one.select, other.select = left, right
    if has_facts(left, facts) and has_facts(right, facts):
        assert contradict(one, other)
        assert contradict(other, one)


# Bad input

@pytest.mark.parametrize(('spec', 'text'), [
    ([], 'found a list, expected an object'),
    ({}, 'found nothing as the point'),
    ({'point': 'transaction.prepare', 'action': 'hold'}, 'did you mean transaction.prepared?'),
    ({'point': 'request'}, 'found the action None'),
    ({'point': 'append.written', 'action': 'error', 'error': 'NOT_COORDINATOR'},
     "found the action 'error', expected one that append.written has: hold, delay, kill, pause"),
    ({'point': 'request', 'action': 'holt'}, 'did you mean hold?'),
    ({'point': 'request', 'action': 'hold', 'selekt': {}}, "no field 'selekt'; did you mean select?"),
    ({'point': 'request', 'action': 'hold', 'select': []}, 'found a list as the selector'),
    ({'point': 'request', 'action': 'hold', 'select': {'topik': 'a'}}, 'did you mean topic?'),
    ({'point': 'append.written', 'action': 'hold', 'select': {'api': 'Produce'}},
     'found the selector api, which no step of append.written has; expected topic, partition, exact, '
     'occurrence, times'),
    ({'point': 'request', 'action': 'hold', 'select': {'partition': '0'}}, "found partition='0'"),
    ({'point': 'request', 'action': 'hold', 'select': {'partition': True}}, 'found partition=True'),
    ({'point': 'request', 'action': 'hold', 'select': {'occurrence': 0}}, 'found occurrence=0, expected'),
    ({'point': 'request', 'action': 'hold', 'select': {'exact': 1}}, 'found exact=1, expected true or false'),
    ({'point': 'request', 'action': 'hold', 'select': {'topic': ''}}, "found topic=''"),
    ({'point': 'request', 'action': 'hold', 'select': {'api': 'EndTransaction'}}, "no API 'EndTransaction'"),
    ({'point': 'request', 'action': 'error', 'error': 'NOT_LEADER'}, 'did you mean NOT_LEADER_OR_FOLLOWER?'),
    ({'point': 'request', 'action': 'error'}, 'found nothing as the error'),
    ({'point': 'request', 'action': 'error', 'error': 'NONE'}, 'found the error NONE'),
    ({'point': 'request', 'action': 'hold', 'error': 'NOT_COORDINATOR'}, 'found an error with the action hold'),
    ({'point': 'request', 'action': 'delay'}, 'found delay_ms=None'),
    ({'point': 'request', 'action': 'delay', 'delay_ms': 0}, 'found delay_ms=0'),
    ({'point': 'request', 'action': 'hold', 'delay_ms': 5}, 'found delay_ms with the action hold'),
])
def test_a_bad_rule_is_refused_with_one_sentence(world, spec, text):
    with pytest.raises(BadRule, match=re.escape(text)) as refused:
        world.rules.add(spec)
    assert '\n' not in str(refused.value)
    assert world.rules.all() == []


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3))


@given(st.fixed_dictionaries({}, optional={
    'point': st.sampled_from(list(POINTS)) | JSON, 'action': st.sampled_from(list(ACTIONS)) | JSON,
    'select': st.dictionaries(st.sampled_from(['api', 'topic', 'partition', 'occurrence']), JSON) | JSON,
    'error': st.sampled_from(list(ErrorCode.__members__)) | JSON, 'delay_ms': JSON}) | JSON)
def test_any_json_is_a_rule_or_is_refused(spec):
    try:
        rule = parse_rule(1, spec)
    except BadRule as error:
        assert str(error)
    else:
        assert parse_rule(1, {name: value for name, value in rule.describe().items()
                              if name in ('point', 'action', 'select', 'error', 'delay_ms')}).text == rule.text


def test_a_rule_that_does_not_exist_is_refused(world):
    with pytest.raises(UnknownRule, match='there is no rule 7, and no other rule'):
        world.rules.get(7)
    world.add()
    with pytest.raises(UnknownRule, match='there is no rule 7, only 1'):
        world.rules.remove(7)


def test_there_are_only_so_many_rules(world):
    for _ in range(MOST_RULES):
        world.add()
    with pytest.raises(BadRule, match='no more are possible'):
        world.add()


# The record of steps

def test_steps_are_recorded_in_order_with_their_occurrence(world):
    world.reach()
    world.reach('append.written', topic='orders', partition=0)
    world.reach()
    steps, last = world.rules.steps_since(0)
    assert [(step['number'], step['point'], step['occurrence']) for step in steps] == [
        (1, 'request', 1), (2, 'append.written', 1), (3, 'request', 2)]
    assert (last, world.rules.steps_since(3), world.rules.steps_since(2)[0]) == (3, ([], 3), steps[2:])


def test_facts_that_differ_from_run_to_run_do_not_make_another_kind_of_step(world):
    for number in range(3):
        world.reach('request', **PRODUCE, correlation_id=number, producer_id=number)
    assert [step['occurrence'] for step in world.rules.steps_since(0)[0]] == [1, 2, 3]


@given(st.integers(0, 12), st.integers(1, 5), st.integers(0, 10))
def test_steps_are_read_in_parts_from_any_number(since, most, steps):
    world = World()
    for _ in range(steps):
        world.reach()
    found, last = world.rules.steps_since(since, most)
    assert [step['number'] for step in found] == list(range(since + 1, steps + 1))[:most]
    assert last == (found[-1]['number'] if found else since)


def test_the_record_forgets_its_oldest_steps(world):
    for _ in range(40):
        world.reach(client_id='x' * (MOST_RECORD_BYTES // 32))
    steps, _ = world.rules.steps_since(0)
    assert world.rules.record_bytes <= MOST_RECORD_BYTES
    assert (steps[0]['number'], steps[-1]['number']) == (world.rules.forgotten + 1, 40)
    assert world.rules.forgotten > 0


def test_a_record_that_was_cleared_counts_occurrences_again(world):
    world.reach()
    world.rules.clear_steps()
    assert world.rules.steps_since(0) == ([], 1)
    world.reach()
    (step,), _ = world.rules.steps_since(0)
    assert (step['number'], step['occurrence']) == (2, 1)


def test_the_counts_of_occurrences_are_bounded(world, monkeypatch):
    monkeypatch.setattr(rules, 'MOST_COUNTED', 10)
    for partition in [*range(11), 10, 0]:
        world.reach('append.written', topic='orders', partition=partition)
    assert [step['occurrence'] for step in world.rules.steps_since(11)[0]] == [2, 1]


def test_listeners_are_called_after_each_step_and_each_change(world):
    calls = []
    world.rules.listeners.append(lambda: calls.append(len(world.rules.steps_since(0)[0])))
    world.reach()
    rule = world.add()
    world.reach()
    world.rules.release(rule.id)
    assert calls == [1, 1, 2, 2]
