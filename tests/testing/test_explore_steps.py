"""The steps of an exploration: how a step is found again in another run, and which faults are tried at which steps."""
import pytest

from kbroker.base.errors import ErrorCode
from kbroker.testing.control import Step
from kbroker.testing.exploring.faults import Case, Fault, plan_of
from kbroker.testing.exploring.possible_errors import POSSIBLE_ERRORS
from kbroker.testing.exploring.report import FAILED, NOT_REACHED, PASSED, Outcome, Report
from kbroker.testing.exploring.steps import ReachedStep, chosen, reached_steps, sample

APP = 'rdkafka'


def sequence(*steps):
    return [Step(number, point, **facts) for number, (point, facts) in enumerate(steps, 1)]


def requests(*apis):
    return reached_steps(sequence(*(('request', {'api': api, 'client_id': APP}) for api in apis)))


def test_a_step_is_identified_by_its_point_its_names_and_its_occurrence():
    found = requests('Fetch', 'EndTxn', 'Fetch')
    assert found == [
        ReachedStep(1, 'request', {'api': 'Fetch', 'client_id': APP}, 1),
        ReachedStep(2, 'request', {'api': 'EndTxn', 'client_id': APP}, 1),
        ReachedStep(3, 'request', {'api': 'Fetch', 'client_id': APP}, 2)]
    assert found[2].words == 'request of Fetch, client_id=rdkafka, occurrence 2'


def test_facts_that_differ_from_run_to_run_do_not_identify_a_step():
    first, second = (reached_steps(sequence(('append.written', {
        'topic': 'output', 'partition': 0, 'offset': offset, 'producer_id': offset, 'wall_ms': offset})))
        for offset in (1, 2))
    assert first == second


def test_generated_parts_of_names_are_replaced_by_a_star():
    [step] = reached_steps(sequence(('group.rebalance', {'group': 'g-0b7e1c9a-8f4d-4f0e-9a43-5f6f1f0f7a11'})))
    assert step.select == {'group': 'g-*'}
    [step] = reached_steps(sequence(('request', {'api': 'Fetch', 'client_id': 'app-1-48213'})))
    assert step.select['client_id'] == 'app-1-*'


def test_the_appends_of_the_kit_are_no_steps_of_the_application():
    produce = {'api': 'Produce', 'client_id': APP, 'correlation_id': 7, 'topic': 'output'}
    steps = sequence(
        ('append.written', {'topic': 'input', 'partition': 0}),
        ('append.written', {'topic': 'output', 'partition': 0}),
        ('request', produce),
        ('append.written', {'topic': 'input', 'partition': 0}),
        ('append.written', {'topic': 'output', 'partition': 0}),
        ('reply', produce),
        ('append.written', {'topic': 'output', 'partition': 0}),
        ('append.written', {'topic': '__transaction_state', 'partition': 3}))
    assert [(step.point, step.select['topic'], step.occurrence) for step in reached_steps(steps)] == [
        ('request', 'output', 1), ('append.written', 'output', 2), ('reply', 'output', 1),
        ('append.written', '__transaction_state', 1)]


def test_the_append_of_a_marker_is_a_step_of_the_application():
    steps = sequence(
        ('transaction.marker', {'topic': 'output', 'partition': 0, 'transactional_id': 'a'}),
        *((point, {'topic': 'output', 'partition': partition}) for partition in (0, 1)
          for point in ('append.written', 'append.durable')),
        ('append.written', {'topic': 'output', 'partition': 0}))
    assert [step.select['partition'] for step in reached_steps(steps)] == [0, 0, 0]


def test_a_sample_is_in_order_and_the_same_for_a_seed():
    steps = requests(*'abcdefghij')
    assert sample(steps, 4, 7) == sample(steps, 4, 7) != sample(steps, 4, 8)
    assert [step.number for step in sample(steps, 4, 7)] == sorted(step.number for step in sample(steps, 4, 7))
    assert sample(steps, 10, 7) == sample(steps, None, 7) == steps


def test_steps_are_chosen_by_point_and_names():
    steps = requests('Fetch', 'EndTxn', 'TxnOffsetCommit')
    assert [step.number for step in chosen(steps, {'api': '*Txn*'})] == [2, 3]
    assert chosen(steps, {'api': '*Txn*', 'point': 'reply'}) == []
    assert chosen(steps, {'topic': '*'}) == []


def test_each_fault_is_tried_where_it_is_possible():
    steps = reached_steps(sequence(
        ('request', {'api': 'EndTxn', 'client_id': APP}), ('transaction.prepared', {'transactional_id': 'a'}),
        ('reply', {'api': 'EndTxn', 'client_id': APP}), ('request', {'api': 'Fetch', 'client_id': APP})))
    plan = plan_of(('broker', 'reply', 'request'), 'NOT_COORDINATOR')
    assert [case.name for case in plan.cases(steps)] == [
        'step-1-broker', 'step-1-request', 'step-1-NOT_COORDINATOR', 'step-2-broker', 'step-3-broker', 'step-3-reply',
        'step-4-broker', 'step-4-request']


def test_the_sample_counts_only_steps_at_which_a_fault_is_possible():
    steps = requests('Fetch', 'EndTxn', 'Fetch', 'AddOffsetsToTxn', 'Fetch')
    assert [case.step.number for case in plan_of(error='NOT_COORDINATOR', steps=2).cases(steps)] == [2, 4]


@pytest.mark.parametrize(('arguments', 'message'), [
    ({}, 'found no fault, expected kill= with one of broker, reply, request, application, or error= with an error'),
    ({'kill': 'brocker'}, "kill: found 'brocker', expected one of broker, reply, request, application; did you mean "
                          'broker?'),
    ({'error': 'NOT_CORDINATOR'}, "error: found 'NOT_CORDINATOR', expected the name of an error of Kafka; did you mean "
                                  'NOT_COORDINATOR?'),
    ({'error': 'UNKNOWN_SERVER_ERROR'}, 'error: Kafka sends UNKNOWN_SERVER_ERROR in answer to no API that is explored'),
    ({'kill': 'reply', 'steps': 0}, 'steps: found 0, expected at least 1'),
    ({'kill': 'reply', 'select': {'apis': 'Fetch'}}, "select: found 'apis', expected one of point, api, topic, "),
])
def test_a_mistake_in_a_plan_is_one_clear_error(arguments, message):
    with pytest.raises(ValueError) as caught:
        plan_of(**arguments)
    assert str(caught.value).startswith(message)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize(('arguments', 'apis', 'message'), [
    ({'kill': 'broker'}, [], 'the application reached no step: found no request except those of the test kit'),
    ({'kill': 'broker', 'select': {'api': 'EndTxn'}}, ['Fetch'], 'select: none of the 1 steps that the application '
                                                                  'reached has api=EndTxn'),
    ({'kill': 'reply'}, ['Fetch'], 'reply: possible only at steps at the point reply, found none among 1 steps'),
    ({'error': 'CONCURRENT_TRANSACTIONS'}, ['Fetch'], 'CONCURRENT_TRANSACTIONS: possible only at requests of '
                                                      'AddOffsetsToTxn, AddPartitionsToTxn, EndTxn, InitProducerId, '),
])
def test_an_exploration_without_a_possible_step_is_one_clear_error(arguments, apis, message):
    with pytest.raises(ValueError) as caught:
        plan_of(**arguments).cases(requests(*apis))
    assert str(caught.value).startswith(message)
    assert '\n' not in str(caught.value)


def test_each_possible_error_is_one_of_kafka():
    assert {error for errors in POSSIBLE_ERRORS.values() for error in errors} <= set(ErrorCode.__members__)


def test_the_table_has_a_row_for_each_step_and_a_column_for_each_fault():
    one, two = requests('Fetch', 'EndTxn')
    broker, request = Fault('broker'), Fault('request')
    report = Report(9, [Outcome(Case(two, request), FAILED, 'AssertionError: too few', 'a picture'),
                        Outcome(Case(one, broker), PASSED), Outcome(Case(two, broker), NOT_REACHED)])
    assert str(report).splitlines() == [
        '2 of 9 steps, 3 runs, 1 passed, 1 failed, 1 not reached again',
        '',
        'step                                        broker       request',
        '   1  request of Fetch, client_id=rdkafka   passed       -',
        '   2  request of EndTxn, client_id=rdkafka  not reached  FAILED',
        '',
        'First failure: step 2 (request of EndTxn, client_id=rdkafka): the connection was cut before the request had '
        'an effect.',
        'AssertionError: too few',
        '',
        'a picture']
