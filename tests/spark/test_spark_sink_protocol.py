"""The protocol of the sink in memory: random schedules of planners, attempts, commits, aborts, deaths and zombies."""
import pytest
from support.spark.sink_model import Coordinator, MemoryStore, Process
from support.spark.sink_schedule import Schedule

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.client.producer_id import ProducerIdAndEpoch
from kbroker_tools.spark.sink.protocol import Bounds, Wanted, abort, check_current, choose, commit, finish, plan
from kbroker_tools.spark.sink.settling import ENTERED_FROM, Phase, UnitEnding
from kbroker_tools.spark.sink.values import (
    JOB,
    NO_TIMEOUT_MS,
    QUERY,
    Commit,
    DecidedError,
    Decision,
    Handle,
    LateError,
    LostRowsError,
    Plan,
    SinkError,
    Staged,
    Unit,
    tasks_of,
)

PAIR = ProducerIdAndEpoch(7, 0)
QUERY_1 = QUERY + '1'
BOUNDS = Bounds(10**9)
SHAPES = [(way, is_two_phase, queries) for way in Commit for is_two_phase in (True, False) for queries in (1, 2)]


def every(owner):
    return True


def run_schedule(seed, way, is_two_phase, queries):
    schedule = Schedule(seed, way, is_two_phase, queries)
    schedule.run()
    schedule.check()
    return schedule


# ---- random schedules

@pytest.mark.parametrize('seed', range(5))
@pytest.mark.parametrize(('way', 'is_two_phase', 'queries'), SHAPES)
def test_each_unit_is_visible_once_whoever_dies_and_whichever_zombie_goes_on(seed, way, is_two_phase, queries):
    run_schedule(seed, way, is_two_phase, queries)


def run_without_deaths(seed, queries):
    """Run until all attempts have ended. After the last settlement, only an attempt itself can end its transaction."""
    schedule = Schedule(seed, Commit.PREPARED, is_two_phase=True, queries=queries, is_mortal=False)
    schedule.run()
    schedule.check()


@pytest.mark.parametrize('seed', range(3))
@pytest.mark.parametrize('queries', [1, 2])
def test_attempts_that_come_late_leave_no_transaction_open(seed, queries):
    run_without_deaths(seed, queries)


@pytest.mark.soak
@pytest.mark.parametrize('queries', [1, 2])
def test_attempts_that_come_late_leave_no_transaction_open_in_many_schedules(queries, soak_count):
    for seed in range(100, 100 + soak_count(150)):
        run_without_deaths(seed, queries)


@pytest.mark.soak
@pytest.mark.parametrize(('way', 'is_two_phase', 'queries'), SHAPES)
def test_each_unit_is_visible_once_in_many_schedules(way, is_two_phase, queries, soak_count):
    for seed in range(100, 100 + soak_count(100)):
        schedule = run_schedule(seed, way, is_two_phase, queries)
        assert not (is_two_phase and schedule.losses), f'seed {seed}'


# ---- scenes

def planned(store, way=Commit.PREPARED):
    return plan(store, 'p', every, Wanted(way))


def written(store, found, unit, *rows, task=0, attempt=0, timeout_ms=NO_TIMEOUT_MS):
    """Let a task write the rows in a transaction, and return its result."""
    handle = store.write_rows(f'{tasks_of("p", found.pair)}{task}.{attempt}', rows, timeout_ms)
    return Staged(found, unit, len(rows), handle=handle)


def staged(found, unit, *rows):
    return Staged(found, unit, len(rows), rows)


def states(store):
    return [task.state for task in store.coordinator.tasks.values()]


def test_staged_and_written_rows_become_visible_with_one_decision():
    store, unit = MemoryStore(Coordinator()), Unit(QUERY_1, 0)
    found = planned(store, Commit.AUTO)
    messages = [staged(found, unit, b'a', b'b'), written(store, found, unit, b'c'), Staged(found, unit)]
    written(store, found, unit, b'loser', task=1)
    assert commit(store, messages, BOUNDS).rows == 3
    assert store.coordinator.visible == {b'a': 1, b'b': 1, b'c': 1}
    assert states(store) == ['CompleteCommit', 'CompleteAbort']


def test_a_planner_that_pauses_between_the_list_and_the_confirmation_ends_nothing_of_a_newer_one():
    coordinator = Coordinator()
    store, unit = MemoryStore(coordinator), Unit(QUERY_1, 0)
    stale = planned(store)
    written(store, stale, unit, b'stale')
    older = Process(lambda process: planned(MemoryStore(coordinator, process.turn)))
    for _ in range(4):      # broker, fence, decisions and the list
        older.run_turn()
    newer = planned(store)
    message = written(store, newer, unit, b'new')
    while not older.is_over:
        older.run_turn()
    assert isinstance(older.error, SinkError) and "another query or driver has taken the prefix 'p'" in str(older.error)
    assert commit(store, [message], BOUNDS) is not None
    assert coordinator.visible == {b'new': 1}
    older.kill()


def test_a_planner_that_found_nothing_open_fails_if_a_newer_one_has_overtaken_it():
    """Otherwise all tasks of the older planner would be late."""
    coordinator = Coordinator()
    older = Process(lambda process: planned(MemoryStore(coordinator, process.turn)))
    for _ in range(4):      # broker, fence, decisions and the list
        older.run_turn()
    newer = planned(MemoryStore(coordinator))
    while not older.is_over:
        older.run_turn()
    older.kill()
    assert isinstance(older.error, SinkError) and "another query or driver has taken the prefix 'p'" in str(older.error)
    assert coordinator.drivers_pair == newer.pair


def test_a_decided_transaction_that_a_list_lacks_is_committed_before_the_next_decision():
    """The next decision replaces the row of the ledger. After that, the transaction would count as undecided."""
    coordinator = Coordinator()
    store, unit = MemoryStore(coordinator), Unit(QUERY_1, 0)
    found = planned(store)
    message = written(store, found, unit, b'a')
    store.write([message], Decision('p', unit, 1, found.pair, (message.handle,)), lambda: None)  # then the driver dies
    moving = MemoryStore(coordinator, lacks_one=lambda: True)
    assert planned(moving).is_decided(unit) and states(store) == ['CompleteCommit']


def test_an_abort_beside_its_own_commit_leaves_a_unit_whole_or_undecided():
    """If a query is stopped during a commit, Spark calls abort in another process, while the process of the commit
    still runs."""
    outcomes = set()
    for turns in range(12):
        coordinator = Coordinator()
        store, unit = MemoryStore(coordinator), Unit(QUERY_1, 0)
        found = planned(store)
        messages = [written(store, found, unit, b'%d' % task, task=task) for task in range(2)]
        committing = Process(lambda process, messages=messages, coordinator=coordinator: commit(
            MemoryStore(coordinator, process.turn), messages, BOUNDS))
        for _ in range(turns):
            if not committing.is_over:
                committing.run_turn()
        abort(store, found)
        while not committing.is_over:
            committing.run_turn()
        committing.kill()
        assert 'Ongoing' not in states(store)
        outcomes.add((bool(coordinator.ledger), sum(coordinator.visible.values())))
    assert outcomes == {(False, 0), (True, 2)}


@pytest.mark.parametrize('end', [
    lambda store, found, message: commit(store, [message], BOUNDS),
    lambda store, found, message: abort(store, found),
    lambda store, found, message: planned(store)], ids=['decision', 'abort', 'newer plan'])
def test_a_task_that_begins_after_the_end_of_its_plan_is_refused(end):
    store = MemoryStore(Coordinator())
    found = planned(store)
    message = written(store, found, Unit(QUERY_1, 0), b'row')
    check_current(store, found)
    end(store, found, message)
    with pytest.raises(LateError, match=r"comes too late.* the prefix 'p'"):
        check_current(store, found)


def test_a_commit_with_a_late_result_fails_and_its_abort_leaves_a_newer_driver_alone():
    store, unit = MemoryStore(Coordinator()), Unit(QUERY_1, 0)
    older = planned(store)
    first = written(store, older, unit, b'older')
    newer = planned(store)
    message = written(store, newer, unit, b'new')
    with pytest.raises(LateError) as late:
        check_current(store, older)
    with pytest.raises(SinkError, match='comes too late'):
        commit(store, [first, Staged(older, unit, late=str(late.value))], BOUNDS)
    abort(store, older)
    assert commit(store, [message], BOUNDS) is not None
    assert store.coordinator.visible == {b'new': 1}


def test_an_abort_of_an_older_driver_leaves_a_newer_one_alone():
    store, unit = MemoryStore(Coordinator()), Unit(QUERY_1, 0)
    older = planned(store)
    newer = planned(store)
    message = written(store, newer, unit, b'new')
    abort(store, older)
    assert commit(store, [message], BOUNDS) is not None
    assert store.coordinator.visible == {b'new': 1}


def test_a_transaction_that_has_ended_or_ends_soon_prevents_the_decision():
    coordinator = Coordinator(has_two_phase=False)
    store, unit = MemoryStore(coordinator), Unit(QUERY_1, 0)
    found = planned(store)
    message = written(store, found, unit, b'a', timeout_ms=100)
    coordinator.now_ms += 50
    with pytest.raises(SinkError, match=r'are open for more than 40 ms, their transactionTimeout \(100 ms\) less'):
        commit(store, [message], BOUNDS._replace(margin_ms=60))
    assert coordinator.end(message.handle, commit=False)
    with pytest.raises(SinkError, match=r"found 1 transactions of tasks that are not open any more.* the prefix 'p'"):
        commit(store, [message], BOUNDS)
    assert not coordinator.ledger and not coordinator.visible


def test_rows_that_are_lost_after_the_decision_are_reported_until_the_loss_is_accepted():
    coordinator = Coordinator(has_two_phase=False)
    unit = Unit(QUERY_1, 4)
    dying = Process(lambda process: commit(MemoryStore(coordinator, process.turn), messages, BOUNDS))
    store = MemoryStore(coordinator)
    found = planned(store)
    messages = [written(store, found, unit, b'%d' % task, task=task, timeout_ms=10) for task in range(2)]
    while not coordinator.ledger:
        dying.run_turn()
    dying.kill()
    coordinator.end(messages[0].handle, commit=True)
    coordinator.now_ms += 100
    coordinator.tick()
    for call in (lambda: planned(store), lambda: finish(store, 'p', accept_loss=False)):
        with pytest.raises(LostRowsError, match=r'micro-batch 4 of query 1 is decided, but 1 .*: p~t\.7\.1\.1\.0\. '):
            call()
    done = finish(store, 'p', accept_loss=True)
    assert [handle.transactional_id for handle in done.ended.lost] == ['p~t.7.1.1.0']
    assert planned(store).is_decided(unit) and coordinator.visible == {b'0': 1}


def test_a_failure_after_the_decision_says_that_the_unit_is_decided():
    class Unreachable(MemoryStore):
        def end(self, handles, commit):
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, 'no answer')

    store, unit = Unreachable(Coordinator()), Unit(JOB + 'a')
    found = planned(store)
    message = written(store, found, unit, b'a')
    with pytest.raises(DecidedError, match=r"job 'a' is decided and must not be repeated, .*: no answer\. The"):
        commit(store, [message], BOUNDS)
    other = MemoryStore(store.coordinator)
    stopped = abort(other, found)
    assert (stopped.ended.committed, stopped.is_decided) == ((message.handle,), True)
    assert other.coordinator.visible == {b'a': 1}


@pytest.mark.parametrize('is_decided', [False, True])
def test_an_abort_reports_whether_its_unit_was_decided_before(is_decided):
    """Spark may stop a commit after its decision. The abort then ends only the transaction of a second attempt."""
    store = MemoryStore(Coordinator())
    found = planned(store)
    message, copy = (written(store, found, Unit(QUERY_1, 0), b'row', task=task) for task in range(2))
    if is_decided:
        UnitEnding(store, found).decide([message], Decision('p', message.unit, 1, found.pair, (message.handle,)), 0)
        store.end([message.handle], commit=True)
    stopped = abort(store, found)
    assert stopped.is_decided is is_decided
    assert stopped.ended.aborted == ((copy.handle,) if is_decided else (message.handle, copy.handle))


@pytest.mark.parametrize(('wanted', 'version', 'has_two_phase', 'chosen'), [
    (Wanted(Commit.DRIVER), 0, False, (Commit.DRIVER, False)),
    (Wanted(Commit.AUTO), 1, False, (Commit.DRIVER, False)),
    (Wanted(Commit.AUTO), 2, True, (Commit.AUTO, True)),
    (Wanted(Commit.PREPARED), 2, False, (Commit.PREPARED, False)),
    (Wanted(Commit.PREPARED, two_phase=False), 2, True, (Commit.PREPARED, False)),
    (Wanted(Commit.PREPARED, two_phase=True), 2, True, (Commit.PREPARED, True)),
    (Wanted(Commit.PREPARED), 1, False, r'transaction\.version 1, expected 2, which commit=prepared needs'),
    (Wanted(Commit.AUTO, two_phase=True), 2, False, 'a broker without two-phase commit .* which twoPhase=on needs'),
])
def test_the_broker_decides_how_tasks_may_write(wanted, version, has_two_phase, chosen):
    coordinator = Coordinator(version, has_two_phase)
    if isinstance(chosen, tuple):
        assert choose(wanted, coordinator.facts) == chosen
        return
    with pytest.raises(SinkError, match=chosen):
        plan(MemoryStore(coordinator), 'p', every, wanted)
    assert coordinator.drivers_pair == PAIR, 'nothing was fenced'


@pytest.mark.parametrize('phase', Phase)
def test_a_step_out_of_order_is_refused(phase):
    decision = Decision('p', Unit(JOB), 0, PAIR)
    steps = {Phase.DECIDED: (Phase.CHECKED, lambda ending: ending.decide([], decision, 0)),
             Phase.COMMITTED: (Phase.COMMITTED, lambda ending: ending.commit_tasks(decision)),
             Phase.WITHDRAWN: (Phase.WITHDRAWN, UnitEnding.withdraw),
             Phase.SETTLED: (Phase.SETTLED, lambda ending: ending.settle(decision))}
    for last, (first, call) in steps.items():
        ending = UnitEnding(MemoryStore(Coordinator()), Plan('p', 'cluster', PAIR, {}))
        ending.phase = phase
        if phase in ENTERED_FROM[first]:
            call(ending)
            assert ending.phase is last
        else:
            with pytest.raises(RuntimeError, match=f'found a unit that is {phase.name.lower()}, expected one that is'):
                call(ending)


# ---- units and results

def test_a_unit_is_decided_for_its_owner_only():
    store = MemoryStore(Coordinator())
    for owner in (QUERY_1, QUERY + '2', JOB + 'a', JOB):
        found = planned(store, Commit.DRIVER)
        assert commit(store, [staged(found, Unit(owner, 3), owner.encode())], BOUNDS).rows == 1
    assert plan(store, 'p', lambda owner: owner.startswith(QUERY), Wanted()).decided == {QUERY_1: 3, QUERY + '2': 3}
    found = plan(store, 'p', QUERY_1.__eq__, Wanted())
    assert [found.is_decided(Unit(QUERY_1, batch)) for batch in (2, 3, 4)] == [True, True, False]
    assert not plan(store, 'p', lambda owner: False, Wanted()).decided


def test_a_job_without_a_key_is_never_a_repetition():
    store = MemoryStore(Coordinator())
    for count in (1, 2):
        found = planned(store, Commit.DRIVER)
        assert commit(store, [staged(found, Unit(JOB), b'x')], BOUNDS) is not None
        assert store.coordinator.visible[b'x'] == count


def test_a_decided_unit_is_skipped():
    store, unit = MemoryStore(Coordinator()), Unit(QUERY_1, 0)
    assert commit(store, [staged(planned(store), unit, b'x')], BOUNDS) is not None
    again = planned(store)
    assert again.is_decided(unit) and commit(store, [Staged(again, unit)], BOUNDS) is None


def test_results_that_do_not_belong_together_are_refused():
    first, second = (Plan('p', 'c', ProducerIdAndEpoch(7, epoch), {}) for epoch in (1, 2))
    unit = Unit(QUERY_1, 4)
    for messages, text in (
            ([], '0 tasks with 0 results'),
            ([Staged(first, unit), None], '2 tasks with 1 results'),
            ([Staged(first, unit), Staged(second, unit)], 'expected those of one plan'),
            ([Staged(first, unit), Staged(first, Unit(QUERY_1, 5))], 'expected those of one plan'),
            ([staged(first, unit, b'12345', b'678901')], 'staged 11 bytes, maxDriverBytes is 10: .* commit=auto')):
        with pytest.raises(SinkError, match=text):
            commit(MemoryStore(Coordinator()), messages, Bounds(10))


def test_a_row_of_the_ledger_is_read_as_it_was_written():
    handles = tuple(Handle(f'p~t.7.0.{task}.{task + 5}', ProducerIdAndEpoch(9, task)) for task in range(2))
    decision = Decision('p', Unit('job.a~b', 4), 17, PAIR, handles)
    assert Decision.read(decision.key(), decision.value()) == decision
    for key, value in ((b'p~query.1', decision.value()), (b'p~job.a~b', b'{}'), (b'\xff', b'{}'), (b'p~x', b'[')):
        with pytest.raises(SinkError, match='a row that the sink did not write'):
            Decision.read(key, value)


def test_a_row_of_a_decision_with_the_most_tasks_fits_into_a_request():
    handles = tuple(Handle(f'p~t.9000000000.32766.{task}.{10**9 + task}', ProducerIdAndEpoch(10**10, 32766))
                    for task in range(10_000))
    assert len(Decision('p', Unit(JOB), 0, PAIR, handles).value()) < 900_000
