"""The calls of a rebalance listener: their partitions, their order, and what the listener may do. The group is
scripted."""
import re
import threading

import pytest

from kbroker.base.clock import ManualClock
from kbroker.base.errors import ErrorCode
from kbroker.client import Consumer, KafkaError, RebalanceListener
from kbroker.client.background_heartbeats import BackgroundHeartbeats
from kbroker.client.cluster import Node
from kbroker.client.errors import ClientError
from kbroker.client.transaction_manager import GroupMetadata

ALL = [('t', 0), ('t', 1), ('t', 2)]


class Member:
    """A member that gets the assignments in `script` one after the other. An eager member gives up all its partitions
    before a join."""

    group_id = 'g'
    is_joining = False
    lost_place = frozenset({ErrorCode.UNKNOWN_MEMBER_ID})

    def __init__(self, clock, is_eager):
        self.clock, self.is_eager = clock, is_eager
        self.script = []
        self.notes = []
        self.generation_id = -1
        self.must_join, self.keeps_positions, self.has_lost_place = True, False, False
        self.sends_heartbeats = False
        self.heartbeat = lambda: None

    def next_heartbeat_ms(self):
        return self.clock.monotonic_ms() + 3000

    def heartbeat_if_due(self):
        self.heartbeat()

    def surrendered(self, topics, owned):
        return set(owned) if self.is_eager else set()

    def join(self, topics, owned):
        self.notes.append(('join', sorted(owned)))
        self.keeps_positions = bool(owned) and not self.has_lost_place
        self.generation_id, self.must_join, self.has_lost_place = self.generation_id + 1, False, False
        self.sends_heartbeats = True
        assigned = self.script.pop(0)
        if isinstance(assigned, Exception):
            raise assigned
        return assigned

    def commit(self, offsets):
        self.notes.append(('commit', {at: found.offset for at, found in offsets.items()}))

    def leave_quietly(self):
        self.notes.append('leave')

    def leave_for_good(self):
        self.notes.append('leave for good')

    @property
    def metadata(self):
        return GroupMetadata('g', self.generation_id)


class Listener(RebalanceListener):
    def __init__(self, notes):
        self.notes = notes
        self.acts = lambda partitions: None

    def on_partitions_assigned(self, partitions):
        self.notes.append(('assigned', partitions))
        self.acts(partitions)

    def on_partitions_revoked(self, partitions):
        self.notes.append(('revoked', partitions))
        self.acts(partitions)

    def on_partitions_lost(self, partitions):
        self.notes.append(('lost', partitions))


class Scene:
    def __init__(self, is_eager=False, **options):
        self.clock = ManualClock()
        self.member = Member(self.clock, is_eager)
        self.notes = self.member.notes
        self.listener = Listener(self.notes)
        options.setdefault('enable_auto_commit', False)
        self.consumer = Consumer('h:1', clock=self.clock, group_id='g', topics=['t'], listener=self.listener, **options)
        self.consumer._session.member = self.member
        self.consumer._session.heartbeats = BackgroundHeartbeats(self.member, 300_000, self.clock)
        self.consumer._session.heartbeats.start = lambda: None
        self.member.within = self.consumer._session.member_cluster.within
        self.consumer._session._watch_topics = lambda: None

    def rebalance(self, *assigned):
        self.member.script.append(list(assigned))
        self.member.must_join = True
        self.consumer._session.keep_membership()

    def taken_notes(self):
        found, self.notes[:] = list(self.notes), []
        return found

    def read_to(self, offset):
        for partition in self.consumer.assignment:
            self.consumer.seek(*partition, offset)


def settled(*arguments, **options):
    """Return a scene whose member has joined and got all partitions."""
    scene = Scene(*arguments, **options)
    scene.rebalance(*ALL)
    scene.taken_notes()
    return scene


def test_an_eager_member_gives_everything_up_before_it_joins():
    scene = Scene(is_eager=True)
    scene.rebalance(*ALL)
    scene.rebalance(ALL[0])
    assert scene.taken_notes() == [('join', []), ('assigned', ALL), ('revoked', ALL), ('join', []),
                                   ('assigned', ALL[:1])]
    assert scene.consumer.position(*ALL[0]) is None


def test_a_cooperative_member_learns_from_the_join_what_goes_and_keeps_the_rest():
    scene = settled()
    scene.read_to(5)
    scene.rebalance(*ALL[:2])
    scene.rebalance(*ALL[:2])
    assert scene.taken_notes() == [('join', ALL), ('revoked', ALL[2:]), ('assigned', []),
                                   ('join', ALL[:2]), ('assigned', [])]
    assert scene.consumer.position(*ALL[0]) == 5


@pytest.mark.parametrize('is_eager', [True, False])
def test_partitions_of_a_member_that_lost_its_place_are_lost(is_eager):
    scene = settled(is_eager)
    scene.member.has_lost_place = True
    scene.rebalance(*ALL)
    assert scene.taken_notes() == [('lost', ALL), ('join', []), ('assigned', ALL)]


def test_a_place_that_is_lost_during_the_join_loses_the_partitions():
    scene = settled()
    scene.listener.acts = lambda partitions: setattr(scene.member, 'has_lost_place', True)
    scene.member.surrendered = lambda topics, owned: {ALL[0]}
    scene.rebalance(*ALL)
    assert scene.taken_notes() == [('revoked', ALL[:1]), ('join', ALL[1:]), ('lost', ALL[1:]), ('assigned', ALL)]


def test_by_default_lost_partitions_are_reported_as_revoked():
    found = []

    class Revoked(RebalanceListener):
        def on_partitions_revoked(self, partitions):
            found.append(partitions)

    Revoked().on_partitions_lost(ALL)
    RebalanceListener().on_partitions_lost(ALL)
    assert found == [ALL]


@pytest.mark.parametrize('is_eager', [True, False])
def test_a_listener_commits_what_it_gives_up(is_eager):
    scene = settled(is_eager)
    scene.read_to(7)
    scene.listener.acts = lambda partitions: scene.consumer.commit(
        {at: scene.consumer.offsets_to_commit()[at] for at in partitions})
    scene.member.surrendered = lambda topics, owned: set(owned if is_eager else ALL[1:])
    scene.member.script.append([])
    scene.member.must_join = True
    scene.listener.on_partitions_assigned = lambda partitions: None
    scene.consumer._session.keep_membership()
    gone = ALL if is_eager else ALL[1:]
    assert scene.taken_notes()[:2] == [('revoked', gone), ('commit', dict.fromkeys(gone, 7))]


def test_a_position_that_a_listener_sets_is_where_reading_begins():
    scene = Scene()
    scene.listener.acts = lambda partitions: [scene.consumer.seek(*partition, 40) for partition in partitions]
    scene.rebalance(*ALL)
    assert {scene.consumer.position(*partition) for partition in ALL} == {40}


@pytest.mark.parametrize('use', [lambda consumer: consumer.poll(0), lambda consumer: consumer.subscribe(['u']),
                                 lambda consumer: consumer.unsubscribe(), lambda consumer: consumer.close(),
                                 lambda consumer: next(iter(consumer)), lambda consumer: consumer.assign([])])
def test_a_listener_may_not_poll_or_change_the_subscription(use):
    scene = Scene()
    scene.listener.acts = lambda partitions: use(scene.consumer)
    with pytest.raises(RuntimeError, match='in a call of a RebalanceListener'):
        scene.rebalance(*ALL)
    scene.listener.acts = lambda partitions: None
    scene.rebalance(*ALL)


def test_the_error_of_a_listener_is_raised_when_the_rebalance_is_complete():
    scene = settled(is_eager=True)
    scene.listener.acts = lambda partitions: 1 / 0
    with pytest.raises(ZeroDivisionError):
        scene.rebalance(ALL[1])
    assert scene.taken_notes() == [('revoked', ALL), ('join', []), ('assigned', ALL[1:2])]
    assert scene.consumer.assignment == {ALL[1]}
    scene.consumer._session.keep_membership()
    assert scene.taken_notes() == []


def test_a_join_that_fails_is_repeated_without_a_second_revocation():
    scene = Scene(is_eager=True)
    scene.rebalance(*ALL)
    scene.member.script.append(KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED, 'not allowed'))
    scene.member.must_join = True
    with pytest.raises(KafkaError, match='not allowed'):
        scene.consumer._session.keep_membership()
    scene.taken_notes()
    scene.rebalance(*ALL)
    assert scene.taken_notes() == [('join', []), ('assigned', ALL)]


def test_a_join_that_took_longer_than_max_poll_interval_ms_keeps_the_place():
    """The heartbeat thread may run directly after the join, before the poll returns. It must not count the time of the
    join."""
    scene = Scene()
    join = scene.member.join

    def wait_and_join(topics, owned):
        scene.clock.advance(400_000)
        return join(topics, owned)

    scene.member.join = wait_and_join
    scene.member.give_up = lambda: pytest.fail('the consumer polls')
    scene.listener.acts = lambda partitions: scene.consumer._session.heartbeats.step()
    scene.rebalance(*ALL)
    assert scene.consumer.assignment == {*ALL}


def test_metadata_that_a_broken_connection_did_not_bring_is_asked_for_again():
    scene = Scene(sleep=lambda seconds: None)
    scene.rebalance(*ALL)
    failures = [ClientError('the broker restarts')] * 2

    def watch():
        if failures:
            raise failures.pop()

    scene.consumer._cluster.nodes = {1: Node(1, 'h', 1)}    # it was reached before
    scene.consumer._session._watch_topics = watch
    scene.clock.advance(300_000)
    scene.consumer._session.keep_membership()
    assert failures == []


# ---- calls at the end of a subscription

@pytest.mark.parametrize('commits', [True, False])
def test_a_consumer_that_closes_commits_reports_and_leaves(commits):
    scene = settled(enable_auto_commit=commits)
    scene.read_to(3)
    with scene.consumer:
        pass
    committed = [('commit', dict.fromkeys(ALL, 3))] if commits else []
    assert scene.taken_notes() == [*committed, ('revoked', ALL), 'leave']


def test_after_an_error_of_the_block_nothing_is_committed_and_the_listener_not_called():
    """After an error, a listener that commits would commit the positions of records that the block has not
    processed."""
    scene = settled(enable_auto_commit=True)
    scene.read_to(3)
    with pytest.raises(ZeroDivisionError), scene.consumer:
        raise ZeroDivisionError
    assert scene.taken_notes() == ['leave']


def test_a_consumer_that_unsubscribes_leaves_its_group_and_reads_nothing():
    scene = settled(enable_auto_commit=True)
    scene.read_to(3)
    scene.consumer.unsubscribe()
    assert scene.taken_notes() == [('commit', dict.fromkeys(ALL, 3)), ('revoked', ALL), 'leave for good']
    assert scene.consumer.assignment == frozenset()
    scene.consumer.unsubscribe()
    assert scene.taken_notes() == []


def test_partitions_that_were_chosen_are_no_longer_read_either():
    consumer = Consumer('h:1')
    consumer.assign(ALL)
    consumer.pause(ALL[:1])
    consumer.seek(*ALL[1], 5)
    consumer.assign(ALL[1:])
    assert (consumer.position(*ALL[1]), consumer.position(*ALL[2]), consumer.paused) == (5, None, frozenset())
    consumer.unsubscribe()
    assert consumer.assignment == frozenset()


@pytest.mark.parametrize(('end', 'left'), [(lambda consumer: consumer.unsubscribe(), []),
                                           (lambda consumer: consumer.assign(ALL[:1]), ALL[:1])])
def test_the_error_of_a_listener_does_not_keep_a_consumer_in_its_group(end, left):
    scene = settled()
    scene.listener.acts = lambda partitions: 1 / 0
    with pytest.raises(ZeroDivisionError):
        end(scene.consumer)
    assert scene.taken_notes() == [('revoked', ALL), 'leave for good']
    assert scene.consumer.assignment == {*left}
    scene.consumer.close()
    assert scene.taken_notes() == []


def test_a_pause_that_is_refused_pauses_nothing():
    consumer = Consumer('h:1')
    consumer.assign(ALL[:2])
    with pytest.raises(KeyError):
        consumer.pause(ALL)
    assert consumer.paused == frozenset()


def test_a_consumer_that_chooses_its_partitions_has_left_its_group():
    scene = settled()
    scene.read_to(3)
    scene.consumer.assign(ALL[:1])
    assert scene.taken_notes() == [('revoked', ALL), 'leave for good']
    assert (scene.consumer.assignment, scene.consumer.position(*ALL[0])) == ({ALL[0]}, None)


def test_chosen_partitions_of_a_group_are_committed_at_intervals_and_by_close():
    scene = Scene(enable_auto_commit=True, auto_commit_interval_ms=1000)
    scene.consumer.assign(ALL[:1])
    scene.taken_notes()
    for offset, ms in ((1, 1000), (2, 999), (3, 1)):
        scene.clock.advance(ms)
        scene.consumer.seek(*ALL[0], offset)
        scene.consumer._session.keep_membership()
    assert scene.taken_notes() == [('commit', {ALL[0]: 1}), ('commit', {ALL[0]: 3})]
    scene.consumer.seek(*ALL[0], 4)
    scene.consumer.close()
    assert scene.taken_notes() == [('commit', {ALL[0]: 4})]


def test_another_subscription_makes_the_member_join_again():
    scene = Scene()
    scene.rebalance(*ALL)
    scene.consumer.subscribe('u')
    assert scene.member.must_join
    assert scene.consumer._subscription.topics == {'u'}
    scene.consumer.subscribe(pattern='u.*')
    assert scene.consumer._subscription.pattern.fullmatch('user')


@pytest.mark.parametrize(('subscription', 'kind', 'message'), [
    ({}, ValueError, 'found no topics, pattern or regex'), ({'topics': []}, ValueError, 'found no topics'),
    ({'topics': [b't']}, TypeError, 'found bytes as a topic'), ({'pattern': 5}, TypeError, 'found int as pattern'),
    ({'topics': ['t'], 'pattern': 'u'}, ValueError, 'found a pattern beside topics'),
    ({'pattern': '('}, re.error, 'unterminated subpattern')])
def test_a_subscription_that_means_nothing_is_refused_and_leaves_the_former_one(subscription, kind, message):
    scene = Scene()
    with pytest.raises(kind, match=message):
        scene.consumer.subscribe(**subscription)
    assert scene.consumer._subscription.topics == {'t'}


# ---- while a heartbeat waits for its answer

def test_records_are_read_while_the_thread_awaits_the_answer_to_a_heartbeat():
    scene = Scene()
    scene.rebalance(*ALL)
    sends, may_end = threading.Event(), threading.Event()

    def wait():
        sends.set()
        assert may_end.wait(60)

    def run():
        with scene.consumer._session.heartbeats.lock:
            wait()

    thread = threading.Thread(target=run)
    thread.start()
    assert sends.wait(60)
    scene.member.heartbeat = lambda: pytest.fail('the thread has the member')
    try:
        assert scene.consumer._session.keep_membership() == scene.clock.monotonic_ms() + 100
    finally:
        may_end.set()
        thread.join()
    scene.member.heartbeat = lambda: None
    assert scene.consumer._session.keep_membership() == scene.clock.monotonic_ms() + 3000
