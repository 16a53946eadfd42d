"""The exploration of loops that read, process and write: it finds nothing in a correct loop, and each mistake in a loop
that people make, at the step that shows it.
"""
import pytest
from loops import confluent_loops, kbroker_loops
from loops.supervisor import Supervisor

from kbroker.testing import ExplorationFailed, explore

INPUT, OUTPUT, COUNT = 'input', 'output', 3
LIMIT_S, MISTAKE_LIMIT_S = 60, 6
MODULES = {'confluent-kafka': confluent_loops, 'kbroker.client': kbroker_loops}


def run_of(client, name, limit_s=LIMIT_S):
    """Return a run of a loop as a process, which checks that the output has each square once."""
    def run(kafka, application=None):
        kafka.create_topic(INPUT)
        kafka.create_topic(OUTPUT)
        for number in range(COUNT):
            kafka.send(INPUT, b'%d' % number)
        with Supervisor(MODULES[client], kafka.bootstrap_servers, name, COUNT) as supervisor:
            if application is not None:
                application.restart_with(supervisor.restart)
            supervisor.wait(limit_s)
        kafka.wait_for(lambda: not kafka.transactions())
        assert kafka.values(OUTPUT) == [b'%d' % number ** 2 for number in range(COUNT)]
    return run


@pytest.mark.parametrize('client', MODULES)
def test_a_step_of_a_correct_loop_passes(client):
    report = explore(run_of(client, 'Correct'), kill=('broker', 'application'), steps=1)
    assert len(report.outcomes) == 2 and not report.failed


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize('client', MODULES)
def test_all_steps_of_a_correct_loop_pass(client, soak_count, soak_seed, tally):
    report = explore(run_of(client, 'Correct'), kill=('broker', 'reply', 'request', 'application'),
                     error=('CONCURRENT_TRANSACTIONS', 'ILLEGAL_GENERATION', 'MESSAGE_TOO_LARGE', 'NOT_COORDINATOR',
                            'NOT_LEADER_OR_FOLLOWER'),
                     steps=soak_count(1000), seed=soak_seed)
    print(report)
    tally('kills of a broker, a client or an application', len(report.outcomes) - len(report.not_reached))


MISTAKES = {
    'OffsetsOutside': ({'kill': 'application', 'select': {'point': 'reply', 'api': 'EndTxn'}}, 'reply of EndTxn'),
    'NoAbort': ({'error': 'ILLEGAL_GENERATION', 'steps': 1}, 'request of TxnOffsetCommit'),
    'ReusedId': ({'error': 'ILLEGAL_GENERATION', 'steps': 1}, 'request of TxnOffsetCommit'),
    'UncheckedFlush': ({'error': 'MESSAGE_TOO_LARGE'}, 'request of Produce'),
    'NewProducer': ({'kill': 'reply', 'select': {'api': 'Produce'}}, 'reply of Produce'),
}
"""Maps each loop with a mistake to the faults that find it, and to the step that the report names."""
OFTEN = {'confluent-kafka': ('OffsetsOutside', 'UncheckedFlush'),
         'kbroker.client': ('NewProducer', 'ReusedId')}
"""The loops that the default run explores. A soak explores all of them."""


@pytest.mark.parametrize(('client', 'name'), [
    pytest.param(client, name, marks=[] if name in OFTEN[client] else pytest.mark.soak)
    for client in MODULES for name in MISTAKES])
def test_a_mistake_is_found_and_the_report_names_the_step(client, name):
    arguments, step = MISTAKES[name]
    with pytest.raises(ExplorationFailed) as caught:
        explore(run_of(client, name, MISTAKE_LIMIT_S), **arguments)
    failed = caught.value.report.failed
    assert all(outcome.case.step.words.startswith(step) for outcome in failed)
    assert f'First failure: {failed[0].case.words}' in str(caught.value)
    assert 'kafka: timeline of input:0' in str(caught.value)
