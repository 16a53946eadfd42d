"""The marker kafka_explore: the names of its runs, in one process and in two, its report, and its errors."""
import re

from support.runner.suites import Suite

LOOP = '''
    import pytest
    from kbroker.client import KafkaError, Producer

    def pay(address):
        """Writes a payment twice if the first answer is lost."""
        while True:
            try:
                with Producer(address, client_id='app', enable_idempotence=False, retries=0) as producer:
                    producer.send('payments', b'10')
                    producer.flush()
                    return
            except (KafkaError, OSError):
                pass

    @pytest.mark.kafka_explore(kill=('request', 'reply'))
    def test_pay(kafka):
        kafka.create_topic('payments')
        pay(kafka.bootstrap_servers)
        assert kafka.values('payments') == [b'10']

    def test_other():
        pass
'''
NAMES = re.compile(r'test_pay\[step-(\d+)-(request|reply)\]')


def failures(run):
    return [name for name, outcome in run.outcomes.items() if outcome == 'FAILED']


def row_of(run, name):
    """Return the row of the report's table with the step of this name."""
    return re.search(rf'^ *{NAMES.fullmatch(name)[1]}  .*$', run.output, re.MULTILINE)[0]


def test_each_step_is_a_test_the_report_names_the_step_that_fails_and_its_name_repeats_it(tmp_path):
    suite = Suite(tmp_path, LOOP)
    suite.command = lambda *arguments: [*Suite.command(suite, *arguments), '-p', 'cacheprovider']
    run = suite.run('-n', '2')
    outcomes = run.outcomes
    assert outcomes.pop('test_other') == 'PASSED'
    assert all(NAMES.fullmatch(name) for name in outcomes), run.output
    [failed] = failures(run)
    assert re.search(r'  reply of Produce, payments-0, client_id=app +FAILED +-$', row_of(run, failed)), run.output
    assert 'the answer was lost after its effect' in run.output
    assert "AssertionError: assert [b'10', b'10'] == [b'10']" in run.output
    for arguments in (['-k', f'step {NAMES.fullmatch(failed)[1]}'], ['--lf']):
        again = suite.run(*arguments)
        assert again.outcomes == {failed: 'FAILED'}, again.output
        assert row_of(again, failed).split() == row_of(run, failed).removesuffix('-').split()


def test_a_run_is_repeated_by_its_name_where_no_steps_are_stored(tmp_path):
    run = Suite(tmp_path, LOOP).run('test_suite.py::test_pay[step-1-request]')
    assert run.outcomes == {'test_pay[step-1-request]': 'PASSED'}, run.output


def test_a_session_that_runs_no_explored_test_starts_no_broker(tmp_path):
    suite = Suite(tmp_path, LOOP.replace('import pytest', 'import sys, pytest').replace(
        'pass\n', "assert 'kbroker.testing.broker' not in sys.modules"))
    assert suite.run('-k', 'test_other').outcomes == {'test_other': 'PASSED'}
    assert '::test_pay\n' in suite.run('--collect-only', '-q').output


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


def test_each_mistake_is_one_clear_error_and_a_step_that_is_not_reached_again_is_skipped(tmp_path):
    run = Suite(tmp_path, ERRORS).run()
    assert run.outcomes == {
        'test_fails_already': 'FAILED', 'test_reaches_no_step': 'FAILED', 'test_wrong_fault': 'ERROR',
        'test_wrong_argument': 'ERROR', 'test_without_broker': 'ERROR', 'test_without_restart': 'ERROR',
        'test_parameters[1-step-9-request]': 'PASSED', 'test_parameters[2-step-9-request]': 'PASSED',
        'test_parameters[2-step-13-request]': 'PASSED'}, run.output
    for text in (
            "the first run, which has no fault, failed: AssertionError: assert [] == ['payments']",
            'the application reached no step: found no request except those of the test kit',
            "kill: found 'brokers', expected one of broker, reply, request, application; did you mean broker?",
            'found kil=, expected one of kill, error, select, steps, seed; did you mean kill?',
            'the test does not use the fixture kafka, whose broker has the faults: let it use kafka',
            'let it call kafka_application.restart_with(restart)',
            'not reached again: request of Produce, payments-0, client_id=kbroker-client'):
        assert text in run.output, text
    assert re.search('9  request of Produce, payments-0, client_id=kbroker-client +not reached', run.output)
