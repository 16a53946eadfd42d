"""The marker kafka_explore: the names of its runs, in one process and in two, its report, and its errors."""
import re

from support.runner.pages import blocks
from support.runner.suites import Suite

PAGE = 'docs/testing.md'
SUITE = next(block for block in blocks(PAGE, 'py') if 'kafka_explore' in block) + '''

def test_other():
    pass
'''
TEST = 'test_a_payment_is_written_once'
NAMES = re.compile(rf'{TEST}\[step-(\d+)-(request|reply)\]')


def failures(run):
    return [name for name, outcome in run.outcomes.items() if outcome == 'FAILED']


def row_of(run, name):
    """Return the row of the report's table with the step of this name."""
    return re.search(rf'^ *{NAMES.fullmatch(name)[1]}  .*$', run.output, re.MULTILINE)[0]


def test_each_step_is_a_test_the_report_names_the_step_that_fails_and_its_name_repeats_it(tmp_path):
    suite = Suite(tmp_path, SUITE)
    suite.command = lambda *arguments: [*Suite.command(suite, *arguments), '-p', 'cacheprovider']
    run = suite.run('-n', '2')
    outcomes = run.outcomes
    assert outcomes.pop('test_other') == 'PASSED'
    assert all(NAMES.fullmatch(name) for name in outcomes), run.output
    [failed] = failures(run)
    shown, = (block for block in blocks(PAGE, 'text') if TEST in block)
    assert shown.replace('test_payments.py', 'test_suite.py') in re.sub(' +$', '', run.output, flags=re.MULTILINE)
    for arguments in (['-k', f'step {NAMES.fullmatch(failed)[1]}'], ['--lf']):
        again = suite.run(*arguments)
        assert again.outcomes == {failed: 'FAILED'}, again.output
        assert row_of(again, failed).split() == row_of(run, failed).removesuffix('-').split()


def test_a_run_is_repeated_by_its_name_where_no_steps_are_stored(tmp_path):
    run = Suite(tmp_path, SUITE).run(f'test_suite.py::{TEST}[step-1-request]')
    assert run.outcomes == {f'{TEST}[step-1-request]': 'PASSED'}, run.output


def test_a_session_that_runs_no_explored_test_starts_no_broker(tmp_path):
    suite = Suite(tmp_path, SUITE.replace('import pytest', 'import sys, pytest').replace(
        'pass\n', "assert 'kbroker.testing.broker' not in sys.modules"))
    assert suite.run('-k', 'test_other').outcomes == {'test_other': 'PASSED'}
    assert f'::{TEST}\n' in suite.run('--collect-only', '-q').output


ERRORS = '''
    import pytest
    from kbroker.client import Producer

    explore = pytest.mark.kafka_explore

    @explore(kill='broker')
    def test_fails_already(kafka):
        assert kafka.topics() == ['payments']

    @explore(kill='broker')
    def test_reaches_no_step(kafka):
        kafka.create_topic('payments')
        kafka.send('payments', b'10')

    @explore(kill='broker')
    def test_kills_itself(kafka):
        kafka.kill()
        kafka.start()

    @explore(kill='brokers')
    def test_wrong_fault(kafka):
        pass

    @explore(kil='broker')
    def test_wrong_argument(kafka):
        pass

    @explore(kill='broker')
    def test_without_broker():
        pass

    @explore(kill='application')
    def test_without_restart(kafka):
        pass

    @explore(kill='request', select={'api': 'Produce'})
    def test_changes(kafka, tmp_path_factory):
        kafka.create_topic('payments')
        with Producer(kafka.bootstrap_servers) as producer:
            for path in (path for path in [tmp_path_factory.getbasetemp() / 'has-run'] if not path.exists()):
                path.touch()
                producer.send('payments', b'10')

    @pytest.mark.parametrize('count', [1, 2])
    @explore(kill='request', select={'api': 'Produce'})
    def test_parameters(kafka, count):
        kafka.create_topic('payments')
        with Producer(kafka.bootstrap_servers) as producer:
            for _ in range(count):
                producer.send('payments', b'10')
                producer.flush()
'''


FAILS_TWICE = '''
    import pytest
    from kbroker.client import Producer

    @pytest.mark.kafka_explore(kill='request', select={'api': 'Produce'})
    def test_fails(kafka):
        kafka.create_topic('payments')
        with Producer(kafka.bootstrap_servers) as producer:
            for _ in range(2):
                producer.send('payments', b'10')
                producer.flush()
        assert not kafka.control.rules
'''


def test_only_the_first_run_that_fails_has_timelines(tmp_path):
    run = Suite(tmp_path, FAILS_TWICE).run()
    assert list(run.outcomes.values()) == ['FAILED', 'FAILED']
    assert run.output.count('kafka: timeline of payments:0') == 1, run.output
    assert "pytest -k 'step-13-request' repeats this run alone." in run.output, run.output


def test_each_mistake_is_one_clear_error_and_a_step_that_is_not_reached_again_is_skipped(tmp_path):
    run = Suite(tmp_path, ERRORS).run()
    assert run.outcomes == {
        'test_fails_already': 'FAILED', 'test_reaches_no_step': 'FAILED', 'test_kills_itself': 'FAILED',
        'test_wrong_fault': 'ERROR',
        'test_wrong_argument': 'ERROR', 'test_without_broker': 'ERROR', 'test_without_restart': 'ERROR',
        'test_parameters[1-step-9-request]': 'PASSED', 'test_parameters[2-step-9-request]': 'PASSED',
        'test_parameters[2-step-13-request]': 'PASSED'}, run.output
    for text in (
            "the first run, which has no fault, failed: AssertionError: assert [] == ['payments']",
            'the application reached no step: found no request except those of the test kit',
            'the test ended its broker and started it again, found two processes, expected one',
            "kill: found 'brokers', expected one of broker, reply, request, application; did you mean broker?",
            'found kil=, expected one of kill, error, select, steps, seed; did you mean kill?',
            'the test does not use the fixture kafka, whose broker has the faults: let it use kafka',
            'let it call kafka_application.restart_with(restart)',
            'not reached again: request of Produce, payments-0, client_id=kbroker-client'):
        assert text in run.output, text
    assert re.search('9  request of Produce, payments-0, client_id=kbroker-client +not reached', run.output)
