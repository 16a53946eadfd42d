"""Tasks of the sink that each write a separate transaction, with a broker and without Spark."""
import time
from contextlib import closing, nullcontext

import pytest
from click.testing import CliRunner
from sink_steps import VALUE, batch, commit, create, options, planned, staged, values_in
from support.brokers.broker_process import PROMPT, BrokerProcess
from support.kafka.apache_kafka import KafkaProcess

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client import Admin, Consumer, Producer, TransactionInfo
from kbroker.client.errors import ClientError
from kbroker.client.producer_id import ProducerIdAndEpoch
from kbroker.protocol import messages
from kbroker_tools.base.command import ToolError
from kbroker_tools.commands.finish_spark import _check_ledger
from kbroker_tools.commands.transactions import main
from kbroker_tools.spark import KafkaLogDataSource
from kbroker_tools.spark.sink import id_counts, ledger, protocol
from kbroker_tools.spark.sink.options import LEDGER_TOPIC, parse_sink_options
from kbroker_tools.spark.sink.store import BrokerStore, is_stale
from kbroker_tools.spark.sink.values import (
    NO_TIMEOUT_MS,
    QUERY,
    Decision,
    Handle,
    LostRowsError,
    SinkError,
    Unit,
    driver_id,
)

SAFE_DOWNGRADE = 2
LIMIT_S = 120
TWO_PHASE = 'transaction.two.phase.commit.enable'


@pytest.fixture(scope='module')
def two_phase_broker(request, tmp_path_factory):
    """Yield a broker for all tests of the module. If the broker is kbroker, it allows two-phase commit."""
    kind = KafkaProcess if request.config.getoption('--against') == 'apache-kafka' else BrokerProcess
    with kind(tmp_path_factory.mktemp('two-phase') / 'data', PROMPT | {TWO_PHASE: 'true'}) as broker:
        yield broker


@pytest.fixture
def admin(two_phase_broker):
    with Admin(two_phase_broker.address) as admin:
        yield admin


@pytest.fixture
def make(two_phase_broker, admin):
    """Return a function that makes a topic and returns the options of a query with tasks that write."""
    def make(topic, **more):
        create(admin, topic, 1)
        return options(two_phase_broker, topic, **{'commit': 'prepared', **more})
    return make


def open_ids(admin, prefix):
    return [row.transactional_id for row in admin.list_transactions(['Ongoing'])
            if row.transactional_id.startswith(f'{prefix}~')]


def drivers_of(admin, prefix):
    """Return the description of the drivers' transactional id."""
    return admin.describe_transactions([driver_id(prefix)]).popitem()[1]


def finish(broker, prefix, *more):
    return CliRunner().invoke(main, ['finish-spark', '--bootstrap-server', broker.address, '--prefix', prefix, *more])


def decide_only(given, *results):
    """Make the decision, and stop before the transactions of the tasks are committed, as in a crash."""
    with closing(BrokerStore(parse_sink_options(given, is_stream=True))) as store:
        store.end = lambda handles, commit: (_ for _ in ()).throw(KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            protocol.commit(store, [result.staged for result in results], protocol.Bounds(10**9))


@pytest.mark.parametrize(('two_phase', 'timeout_ms'), [('auto', NO_TIMEOUT_MS), ('off', 900_000)])
def test_tasks_write_without_a_time_limit_if_the_broker_has_two_phase_commit(
        make, admin, monkeypatch, two_phase_broker, two_phase, timeout_ms):
    given = make(f'limit-{two_phase}', twoPhase=two_phase)
    task = planned(given)
    results = [staged(monkeypatch, task, 0, 'a', partition=0), staged(monkeypatch, task, 0, partition=1, attempt=1),
               staged(monkeypatch, task, 0, 'b', partition=2, attempt=2)]
    assert [result.staged.handle is None for result in results] == [False, True, False]
    _, row = admin.describe_transactions([results[0].staged.handle.transactional_id]).popitem()
    if isinstance(two_phase_broker, BrokerProcess):     # Apache Kafka does not serve InitProducerId 6
        assert (row.state, row.timeout_ms) == ('Ongoing', timeout_ms)
    assert values_in_progress(two_phase_broker, given) == []
    commit(given, 0, *results)
    assert sorted(values_in(two_phase_broker, given['topic'])) == [b'a', b'b']
    assert open_ids(admin, given['topic']) == []
    assert staged(monkeypatch, planned(given), 0, 'replayed').staged.is_skipped


def values_in_progress(broker, given):
    """Return the values that a consumer reads while the transactions of tasks are open."""
    with Consumer(broker.address, isolation_level='read_committed', auto_offset_reset='earliest') as consumer:
        consumer.assign([(given['topic'], 0)])
        return [record.value for each in consumer.poll(0) for record in each.records()]


def test_the_next_plan_commits_what_a_dead_driver_has_decided_and_aborts_the_rest(
        make, admin, monkeypatch, two_phase_broker):
    given = make('dead-after')
    task = planned(given)
    results = [staged(monkeypatch, task, 0, 'decided', partition=each, attempt=each) for each in range(2)]
    staged(monkeypatch, task, 0, 'loser', partition=1, attempt=7)
    decide_only(given, *results)
    assert len(open_ids(admin, 'dead-after')) == 3
    again = staged(monkeypatch, planned(given), 0, 'replayed')
    assert again.staged.is_skipped and open_ids(admin, 'dead-after') == []
    assert values_in(two_phase_broker, 'dead-after') == [b'decided', b'decided']


@pytest.mark.parametrize(('way', 'two_phase', 'limit_ms'), [
    ('driver', None, 60_000), ('prepared', 'off', 30_000), ('auto', 'off', 30_000), ('auto', 'on', 60_000)])
def test_a_driver_must_decide_early_if_transactions_of_its_tasks_may_time_out(
        make, admin, two_phase_broker, way, two_phase, limit_ms):
    if two_phase == 'on' and not isinstance(two_phase_broker, BrokerProcess):
        pytest.skip('Apache Kafka does not serve InitProducerId 6')
    name = f'limit-of-{way}-{two_phase}'
    planned(make(name, commit=way, **({'twoPhase': two_phase} if two_phase else {})))
    assert drivers_of(admin, name).timeout_ms == limit_ms


def test_a_driver_that_stands_still_after_its_check_cannot_decide(make, admin, monkeypatch, two_phase_broker):
    given = make('still', twoPhase='off', decisionMargin='1s')
    result = staged(monkeypatch, planned(given), 0, 'x')
    with closing(BrokerStore(parse_sink_options(given, is_stream=True))) as store:
        find = store.open_transactions

        def stand_still(*arguments):
            found = find(*arguments)
            while drivers_of(admin, 'still').state == 'Ongoing':
                pass
            return found

        monkeypatch.setattr(store, 'open_transactions', stand_still)
        with pytest.raises(SinkError, match=r'or half of decisionMargin \(500 ms\) has passed'):
            protocol.commit(store, [result.staged], protocol.Bounds(10**9, 1000))
        assert store.decisions('still') == []
    KafkaLogDataSource(given).streamWriter(VALUE, False).abort([result], 0)
    assert values_in(two_phase_broker, 'still') == []


def test_an_abort_ends_the_transactions_of_a_unit_that_is_not_decided(
        make, admin, monkeypatch, two_phase_broker, caplog):
    given = make('stopped')
    task = planned(given)
    result = staged(monkeypatch, task, 0, 'undecided')
    other = KafkaLogDataSource(given).streamWriter(VALUE, False)
    other.abort([None, result], 0)
    assert open_ids(admin, 'stopped') == []
    assert (f"micro-batch 0 of query q of prefix 'stopped' was stopped: it was withdrawn, and 1 transactions of its "
            f'tasks were aborted: {result.staged.handle.transactional_id}') in caplog.text
    with pytest.raises(SinkError, match='1 transactions of tasks that are not open any more'):
        commit(given, 0, result)
    late = staged(monkeypatch, task, 0, 'late', attempt=9)
    with pytest.raises(SinkError, match=r"comes too late.* has taken the prefix 'stopped'"):
        commit(given, 0, late)
    assert open_ids(admin, 'stopped') == []
    replayed = staged(monkeypatch, planned(given), 0, 'replayed')
    commit(given, 0, replayed)
    other.abort([replayed], 0)      # a query may be stopped after its decision
    assert 'was stopped: it was decided before, and none of its transactions was left to commit' in caplog.text
    assert values_in(two_phase_broker, 'stopped') == [b'replayed'] and open_ids(admin, 'stopped') == []


@pytest.mark.parametrize('has_result', [False, True])
def test_an_abort_after_its_topic_was_deleted_ends_all_transactions(make, admin, monkeypatch, has_result):
    """Spark calls abort without a result if no task has finished. A deleted partition needs no marker."""
    given = make(f'deleted-{has_result}')
    result = staged(monkeypatch, planned(given), 0, 'lost with the topic')
    assert admin.delete_topics([given['topic']]) == {given['topic']: None}
    KafkaLogDataSource(given).streamWriter(VALUE, False).abort([result if has_result else None], 0)
    assert open_ids(admin, given['topic']) == []
    name = result.staged.handle.transactional_id
    await_state(admin, name, 'CompleteAbort')


def await_state(admin, transactional_id, state):
    """Wait until the transaction has the state. The coordinator answers a commit before the transaction is complete."""
    deadline = time.monotonic() + LIMIT_S
    while (found := admin.describe_transactions([transactional_id])[transactional_id].state) != state:
        assert time.monotonic() < deadline, found


def test_an_abort_without_results_ends_the_transactions_of_the_last_plan(
        make, admin, monkeypatch, two_phase_broker, caplog):
    given = make('unfinished')
    task = planned(given)
    for attempt in range(2):
        staged(monkeypatch, task, 0, 'unfinished', attempt=attempt)
    away = given | {'kafka.bootstrap.servers': '127.0.0.1:1'}
    KafkaLogDataSource(away).streamWriter(VALUE, False).abort([None, None], 0)
    assert "the last micro-batch or job of prefix 'unfinished' was stopped, and could not be withdrawn: " in caplog.text
    KafkaLogDataSource(given).streamWriter(VALUE, False).abort([None, None], 0)
    assert open_ids(admin, 'unfinished') == []
    commit(given, 0, staged(monkeypatch, planned(given), 0, 'replayed'))
    assert values_in(two_phase_broker, 'unfinished') == [b'replayed']


@pytest.mark.parametrize('is_begun', [False, True])
def test_an_attempt_that_comes_too_late_leaves_no_transaction_open(
        make, admin, monkeypatch, two_phase_broker, is_begun):
    """The unit is decided before the attempt begins its transaction, or between that and the attempt's first rows."""
    given = make(f'too-late-{is_begun}', **{'kafka.linger.ms': '60000'})
    task = planned(given)
    result = staged(monkeypatch, task, 0, 'decided')
    staged(monkeypatch, task, 0, attempt=1)     # the context of the attempt

    def rows():
        if is_begun:
            yield batch(value=['late'])
        commit(given, 0, result)
        yield batch(value=['late'])

    assert 'comes too late' in task.run_task(Unit(QUERY + 'q', 0), rows()).staged.late
    assert open_ids(admin, given['topic']) == []
    assert values_in(two_phase_broker, given['topic']) == [b'decided']


@pytest.mark.parametrize('is_begun', [False, True])
def test_a_driver_that_was_overtaken_fails_and_leaves_the_newer_one_alone(
        make, admin, monkeypatch, two_phase_broker, is_begun):
    """The newer driver starts before any task of the older one has a result. It may abort a transaction while its task
    writes."""
    given = make(f'overtaken-{is_begun}', **{'kafka.buffer.memory': '10000'})
    older = planned(given)
    staged(monkeypatch, older, 0, attempt=1)     # the context of the attempt
    newer = []

    def rows():
        if is_begun:
            yield batch(value=['older' * 1000] * 9)     # the last ones find room when the first ones are written
            assert len(open_ids(admin, given['topic'])) == 1
        newer.append(planned(given))
        yield batch(value=['older'])
        yield batch(value=['rest'])

    rest = rows()
    late = older.run_task(Unit(QUERY + 'q', 0), rest)
    assert list(rest) == [] and open_ids(admin, given['topic']) == []
    result = staged(monkeypatch, newer[0], 0, 'new', attempt=2)
    with pytest.raises(SinkError, match=r"comes too late.* has taken the prefix 'overtaken"):
        commit(given, 0, late)
    KafkaLogDataSource(given).streamWriter(VALUE, False).abort([late], 0)
    commit(given, 0, result)
    assert values_in(two_phase_broker, given['topic']) == [b'new']


def test_a_task_whose_transaction_an_operator_ends_fails_and_its_repetition_is_committed(
        make, admin, monkeypatch, two_phase_broker):
    """The plan of the task may still decide, so the task is not late."""
    given = make('ended-by-operator', **{'kafka.buffer.memory': '10000'})
    task = planned(given)
    staged(monkeypatch, task, 0, attempt=1)     # the context of the attempt

    def rows():
        yield batch(value=['first' * 1000] * 9)     # the last ones find room when the first ones are written
        (name, row), = admin.describe_transactions(open_ids(admin, given['topic'])).items()
        with closing(BrokerStore(parse_sink_options(given, is_stream=True))) as store:
            assert store.end([Handle(name, ProducerIdAndEpoch(row.producer_id, row.producer_epoch))], False) == []
        yield batch(value=['second'])

    with pytest.raises(KafkaError) as failed:
        task.run_task(Unit(QUERY + 'q', 0), rows())
    assert is_stale(failed.value)
    commit(given, 0, staged(monkeypatch, task, 0, 'repeated', attempt=2))
    assert values_in(two_phase_broker, given['topic']) == [b'repeated']


def test_a_driver_that_was_overtaken_after_its_tasks_names_the_prefix(make, monkeypatch, two_phase_broker):
    given = make('overtaken-after')
    result = staged(monkeypatch, planned(given), 0, 'older')
    newer = staged(monkeypatch, planned(given), 0, 'new', attempt=1)
    with pytest.raises(SinkError, match="has taken the prefix 'overtaken-after'"):
        commit(given, 0, result)
    commit(given, 0, newer)
    assert values_in(two_phase_broker, given['topic']) == [b'new']


def test_a_late_task_that_cannot_abort_its_transaction_logs_it_and_the_next_plan_ends_it(
        make, admin, monkeypatch, two_phase_broker, caplog):
    given = make('late-and-lost', **{'kafka.linger.ms': '60000'})
    task = planned(given)
    staged(monkeypatch, task, 0, attempt=1)     # the context of the attempt

    def rows():
        yield batch(value=['late'])     # queued, and not yet sent
        KafkaLogDataSource(given).streamWriter(VALUE, False).abort([], 0)

    def fail(producer):
        raise ClientError('the broker does not answer')

    with monkeypatch.context() as patched:
        patched.setattr(Producer, 'abort_transaction', fail)
        late = task.run_task(Unit(QUERY + 'q', 0), rows())
    assert 'comes too late' in late.staged.late and len(open_ids(admin, given['topic'])) == 1
    assert ('task 0 (attempt 1) of micro-batch 0 of query q came too late: The producer could not be closed: the '
            'broker does not answer. If its transaction is open, the next plan of the prefix') in caplog.text
    planned(given)
    assert open_ids(admin, given['topic']) == []


def test_a_task_that_fails_aborts_its_transaction(make, admin, monkeypatch):
    given = make('fails')
    task = planned(given)
    staged(monkeypatch, task, 0)        # gives the task a context
    rows = iter([batch(value=['x']), batch(value=['y' * 2_000_000])])
    with pytest.raises(SinkError, match='found a row of 2,'):
        task.run_task(Unit(QUERY + 'q', 0), rows)
    assert open_ids(admin, 'fails') == []


@pytest.mark.parametrize(('more', 'partition', 'text'), [
    ({'maxPrepared': '2'}, 2, 'found rows in task 2, but maxPrepared is 2'),
    ({'transactionTimeout': '20d', 'twoPhase': 'off', 'decisionMargin': '2s'}, 1,
     'found a transactionTimeout of 1728000000 ms, which is more than the broker allows'),
])
def test_a_task_that_may_not_write_opens_no_transaction(make, admin, monkeypatch, more, partition, text):
    given = make(f'refused-{partition}') | more
    with pytest.raises(SinkError, match=text):
        staged(monkeypatch, planned(given), 0, 'x', partition=partition)
    assert open_ids(admin, given['transactionalIdPrefix']) == []


@pytest.mark.parametrize('code', [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH,
                                  ErrorCode.INVALID_TXN_STATE])
def test_a_driver_whose_transaction_was_ended_names_the_prefix_and_the_time(make, code):
    """Brokers answer a commit after the timeout with different errors."""
    given = make(f'ended-{code.name.lower()}', commit='driver', transactionTimeout='2s')

    def refused():
        raise KafkaError(code, 'committing')

    with closing(BrokerStore(parse_sink_options(given, is_stream=True))) as store:
        decision = Decision(given['topic'], Unit(QUERY + 'q', 0), 0, planned(given).plan.pair)
        with pytest.raises(SinkError, match=r"has taken the prefix 'ended-.*or transactionTimeout \(.* has passed"):
            store.write([], decision, refused)


def test_a_task_that_meets_another_cluster_than_its_plan_writes_nothing(make, admin, monkeypatch):
    given = make('elsewhere')
    task = planned(given)
    object.__setattr__(task.plan, 'cluster_id', 'elsewhere')
    with pytest.raises(SinkError, match='and the write was planned for cluster elsewhere'):
        staged(monkeypatch, task, 0, 'x')
    assert open_ids(admin, 'elsewhere') == []


def test_a_large_task_writes_its_rows_and_a_small_one_returns_them(make, monkeypatch, two_phase_broker):
    given = make('sizes', commit='auto', maxStagedBytes='4k')
    task = planned(given)
    large = [f'{number * 7919 ** 9:x}' for number in range(1000)]
    results = [staged(monkeypatch, task, 0, 'small', partition=0), staged(monkeypatch, task, 0, *large, partition=1)]
    assert [(result.staged.handle is None, bool(result.staged.chunks)) for result in results] == [
        (True, True), (False, False)]
    commit(given, 0, *results)
    assert sorted(values_in(two_phase_broker, 'sizes')) == sorted([b'small', *(value.encode() for value in large)])


def test_finish_spark_ends_the_transactions_of_tasks_as_the_ledger_decides(
        make, admin, monkeypatch, two_phase_broker):
    given = make('finished')
    task = planned(given)
    decided = staged(monkeypatch, task, 0, 'decided')
    staged(monkeypatch, task, 1, 'orphan', attempt=5)
    decide_only(given, decided)
    refused = finish(two_phase_broker, 'finished', '--ledger-topic', 'no-ledger')
    assert refused.exit_code == 1 and 'expected the ledger of the query' in refused.output
    shown = finish(two_phase_broker, 'finished', '--dry-run')
    assert shown.exit_code == 0 and '1 would be committed and 1 aborted; 0 decided ones are lost' in shown.output
    assert len(open_ids(admin, 'finished')) == 2
    done = finish(two_phase_broker, 'finished')
    assert done.exit_code == 0 and '1 were committed and 1 aborted; 0 decided ones are lost' in done.output
    assert "fencing the drivers of 'finished~d': a query that still runs" in done.output
    assert values_in(two_phase_broker, 'finished') == [b'decided'] and open_ids(admin, 'finished') == []
    epoch = drivers_of(admin, 'finished').producer_epoch
    for more in ((), ('--accept-loss',)):       # there is nothing to accept, so a query that runs goes on
        assert 'and its tasks have none' in finish(two_phase_broker, 'finished', *more).output
    assert 'There is nothing to settle' in finish(two_phase_broker, 'finished', '--dry-run').output
    assert drivers_of(admin, 'finished').producer_epoch == epoch


def test_finish_spark_refuses_a_ledger_that_lacks_the_decision_of_the_query(
        make, admin, monkeypatch, two_phase_broker):
    """With that ledger, the decided transaction would be aborted."""
    given = make('own-ledger', ledgerTopic='own-ledger-decisions')
    planned(make('default-ledger'))     # creates the default ledger
    decide_only(given, staged(monkeypatch, planned(given), 0, 'decided'))
    for more in ((), ('--dry-run',), ('--accept-loss',)):
        refused = finish(two_phase_broker, 'own-ledger', *more)
        assert refused.exit_code == 1 and 'It is not in __kbroker_spark_commits' in refused.output
        assert 'give its ledgerTopic with --ledger-topic. Nothing was changed' in refused.output
    assert len(open_ids(admin, 'own-ledger')) == 1
    done = finish(two_phase_broker, 'own-ledger', '--ledger-topic', 'own-ledger-decisions')
    assert done.exit_code == 0 and '1 were committed' in done.output
    assert values_in(two_phase_broker, 'own-ledger') == [b'decided']


@pytest.mark.parametrize(('producer_epoch', 'is_right'), [(5, True), (4, True), (6, True), (3, False)])
def test_a_ledger_is_right_if_it_has_the_last_decision_of_the_drivers_or_a_later_one(producer_epoch, is_right):
    """A query that is still running may make a new decision between the reads of the ledger and of the drivers' id."""
    row = TransactionInfo(driver_id('p'), 1, 7, 5, 'CompleteCommit', 60_000, None, ())
    decision = Decision('p', Unit(QUERY + '1', 3), 10, ProducerIdAndEpoch(7, producer_epoch))
    with nullcontext() if is_right else pytest.raises(ToolError, match='It is not in decisions-of-p'):
        _check_ledger('decisions-of-p', row, [decision])


def test_finish_spark_shows_at_once_what_it_would_do_while_another_query_holds_the_ledger(
        make, admin, monkeypatch, two_phase_broker):
    given = make('hidden', ledgerTopic='shared-ledger')
    result = staged(monkeypatch, planned(given), 0, 'decided')
    with monkeypatch.context() as patch, Producer(two_phase_broker.address, transactional_id='holder~d') as holder:
        patch.setattr(ledger.Ledger, 'decisions', lambda self, prefix: pytest.fail('waits for the ledger'))
        patch.setattr(ledger, 'ENDING_MS', 0)
        holder.begin_transaction()
        holder.send('shared-ledger', b'{}', b'holder~query.1', partition=0)
        holder.flush()
        decide_only(given, result)
        shown = finish(two_phase_broker, 'hidden', '--dry-run', '--ledger-topic', 'shared-ledger')
        assert shown.exit_code == 0 and '0 would be committed and 1 aborted' in shown.output
        assert 'An open transaction in shared-ledger may hide later decisions' in shown.output
        holder.abort_transaction()
    shown = finish(two_phase_broker, 'hidden', '--dry-run', '--ledger-topic', 'shared-ledger')
    assert '1 would be committed and 0 aborted' in shown.output and 'may hide' not in shown.output


def test_finish_spark_ends_a_transaction_that_has_outlived_the_id_of_its_drivers(make, admin, two_phase_broker):
    planned(make('other'))      # creates the ledger
    create(admin, 'outlived', 1)
    with Producer(two_phase_broker.address, transactional_id='outlived~t.9.0.0.0') as writer:
        writer.begin_transaction()
        writer.send('outlived', b'x')
        writer.flush()
        done = finish(two_phase_broker, 'outlived')
        assert done.exit_code == 0 and "'outlived~d' has expired" in done.output and '1 aborted' in done.output
        assert open_ids(admin, 'outlived') == []


def test_a_decided_transaction_that_was_aborted_stops_the_query_until_the_loss_is_accepted(
        make, admin, monkeypatch, two_phase_broker, caplog):
    given = make('lost')
    task = planned(given)
    results = [staged(monkeypatch, task, 0, 'x', partition=each, attempt=each) for each in range(2)]
    decide_only(given, *results)
    name = results[1].staged.handle.transactional_id
    admin.fence_producers([name])
    KafkaLogDataSource(given).streamWriter(VALUE, False).abort(results, 0)
    assert "of prefix 'lost' was stopped: micro-batch 0 of query q is decided, but 1 transactions" in caplog.text
    for _ in range(2):
        with pytest.raises(LostRowsError, match=f'micro-batch 0 of query q is decided, but 1 .*: {name}'):
            planned(given)
    shown = finish(two_phase_broker, 'lost')
    assert shown.exit_code == 1 and '--accept-loss' in shown.output
    assert '1 decided ones are lost: the loss would be accepted' in finish(
        two_phase_broker, 'lost', '--accept-loss', '--dry-run').output
    assert finish(two_phase_broker, 'lost', '--accept-loss').exit_code == 0
    again = staged(monkeypatch, planned(given), 0, 'x')
    assert again.staged.is_skipped and values_in(two_phase_broker, 'lost') == [b'x']


def test_a_broker_killed_between_the_tasks_and_the_commit_loses_nothing(start_broker, monkeypatch):
    broker = start_broker({TWO_PHASE: 'true'})
    with Admin(broker.address) as admin:
        create(admin, 'killed', 1)
    given = options(broker, 'killed', commit='prepared')
    task = planned(given)
    results = [staged(monkeypatch, task, 0, 'a', partition=each, attempt=each) for each in range(2)]
    broker.kill9()
    broker.start()
    decide_only(given, *results)
    broker.kill9()
    broker.start()
    assert staged(monkeypatch, planned(given), 0, 'replayed').staged.is_skipped
    assert values_in(broker, 'killed') == [b'a', b'a']


def test_a_broker_that_lacks_what_the_options_need_is_refused_before_anything_is_written(start_broker):
    broker = start_broker()
    with Admin(broker.address) as admin:
        create(admin, 'lacks', 1)
        with pytest.raises(SinkError, match='a broker without two-phase commit'):
            planned(options(broker, 'lacks', commit='auto', twoPhase='on'))
        request = messages.UpdateFeaturesRequest
        admin.cluster.controller().call(request(feature_updates=[request.FeatureUpdateKey(
            feature='transaction.version', max_version_level=1, upgrade_type=SAFE_DOWNGRADE)]))
        with pytest.raises(SinkError, match=r'transaction\.version 1, expected 2'):
            planned(options(broker, 'lacks', commit='prepared'))
        found = planned(options(broker, 'lacks', commit='auto')).plan
        assert found.commit == 'driver' and not found.is_two_phase


def test_a_margin_that_the_broker_cannot_keep_is_refused_before_anything_is_written(start_broker):
    """The broker looks for expired transactions every 10 s by default."""
    broker = start_broker({'transaction.abort.timed.out.transaction.cleanup.interval.ms': '10000'})
    with Admin(broker.address) as admin:
        create(admin, 'margin', 1)
        given = options(broker, 'margin', twoPhase='off', commit='auto', decisionMargin='20s')
        with pytest.raises(SinkError, match='a decisionMargin of 20000 ms, expected more than 20000 ms: the broker'):
            planned(given)
        assert driver_id('margin') not in [row.transactional_id for row in admin.list_transactions()]
        assert LEDGER_TOPIC not in admin.cluster.topics()
        planned(given | {'decisionMargin': '21s'})


def test_many_ids_are_reported(make, monkeypatch, caplog):
    given = make('many')
    monkeypatch.setattr(id_counts, 'MANY', 0)
    planned(given)
    assert not caplog.records
    commit(given, 0, staged(monkeypatch, planned(given), 0, 'x'))
    planned(given)
    assert 'the broker keeps 1 transactional ids of the tasks of many' in caplog.text


def test_at_least_once_writes_at_once(make, monkeypatch, two_phase_broker, admin):
    given = make('at-once')
    needed = {name: given[name] for name in ('kafka.bootstrap.servers', 'topic')}
    task = KafkaLogDataSource(needed | {'delivery': 'at_least_once'}).streamWriter(VALUE, False)
    message = task.write(iter([batch(value=['a'])]))
    assert values_in(two_phase_broker, 'at-once') == [b'a']
    task.abort([message], 0)
    task.commit([message], 0)
    assert values_in(two_phase_broker, 'at-once') == [b'a']
