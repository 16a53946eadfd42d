"""A directory with groups of every kind moves between kbroker and Apache Kafka and back, and all members continue.

Covers KIP-848, KIP-932 and KIP-1071.
"""
import pytest
from raw_peer import RawPeer, batch
from support.brokers.broker_process import BrokerProcess, killed_at_the_end
from support.kafka.apache_kafka import KafkaProcess
from support.kafka.shown_metadata import await_shown_metadata

from kbroker.base.errors import ErrorCode
from kbroker.client.assignor import encode_assignment, encode_subscription

pytestmark = [pytest.mark.jvm, pytest.mark.timeout(900)]

TOPIC, PARTITIONS, RECORDS = 'orders', 4, 10
CLASSIC, CONSUMERS, MIXED, SHARED, STREAMING, EMPTY = GROUPS = [
    'classic', 'consumers', 'mixed', 'shared', 'streaming', 'empty']
GROUP_RESOURCE = 32
SESSION_MS, REBALANCE_MS = 300_000, 300_000
ACCEPT, RELEASE = 1, 2
SETTINGS = {
    'group.consumer.session.timeout.ms': '60000', 'group.share.session.timeout.ms': '60000',
    'group.streams.session.timeout.ms': '60000', 'group.initial.rebalance.delay.ms': '0',
    'group.streams.initial.rebalance.delay.ms': '0', 'group.consumer.assignment.interval.ms': '0',
    'group.consumer.min.assignment.interval.ms': '0', 'group.share.record.lock.duration.ms': '60000',
    'share.coordinator.state.topic.replication.factor': '1', 'share.coordinator.state.topic.min.isr': '1',
}
DESCRIPTIONS = {
    'ConsumerGroupDescribe': ([CONSUMERS, MIXED], 1), 'ShareGroupDescribe': ([SHARED], 1),
    'StreamsGroupDescribe': ([STREAMING], 0)}


NOT_KEPT = {'error_message', 'state_changelog_topics'}
"""Fields of descriptions whose values no row contains. The coordinator determines the number of partitions of an
internal topic only at the next heartbeat.
"""


class Members:
    """The members of all groups. They send each request to the broker that currently has the directory."""

    def __init__(self):
        self.peer = None
        self.epochs = {}
        """Maps (group, member) to the member's epoch or generation."""
        self.owned = {}
        """Maps (group, member) to the partitions or tasks in the member's last answer."""
        self.topic_id = None
        self.counts = {}
        """Maps an offset to the lowest delivery count that the state log may have for its record."""
        self.kept = set()
        """Offsets of records that were acquired when the connection ended. The broker may stop before it counts these
        deliveries.
        """
        self.done = set()
        self.offset = 0

    def go_to(self, address):
        self.peer = RawPeer(address, TOPIC)
        self.peer.prepare('FindCoordinator', coordinator_keys=GROUPS, key_type=0)

    def leave_broker(self):
        self.peer.close()

    def ask(self, api, version, **fields):
        return self.peer.ask_settled(api, version, **fields)

    # ---- members of the classic protocol

    def join_classic(self, group, member_id='', owned=()):
        metadata = encode_subscription([TOPIC], [(TOPIC, number) for number in owned])
        answer = self.ask('JoinGroup', 9, group_id=group, member_id=member_id, session_timeout_ms=SESSION_MS,
                          rebalance_timeout_ms=REBALANCE_MS, protocol_type='consumer',
                          protocols=[dict(name='range', metadata=metadata)])
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            return self.join_classic(group, answer.member_id)
        assert answer.error_code == 0, answer
        self.epochs[group, answer.member_id] = answer.generation_id
        return answer.member_id

    def sync_classic(self, group, member_id, partitions=()):
        answer = self.ask('SyncGroup', 5, group_id=group, member_id=member_id, protocol_type='consumer',
                          generation_id=self.epochs[group, member_id], protocol_name='range', assignments=[
                              dict(member_id=member_id, assignment=encode_assignment(
                                  [(TOPIC, number) for number in partitions]))])
        assert answer.error_code == 0, answer
        return answer.assignment

    def beat_classic(self, group, member_id):
        return self.ask('Heartbeat', 4, group_id=group, member_id=member_id,
                        generation_id=self.epochs[group, member_id]).error_code

    # ---- members of consumer, share and streams groups

    def beat(self, api, version, group, member_id, **fields):
        """Send a heartbeat, and adopt the member epoch in the answer."""
        answer = self.ask(api, version, group_id=group, member_id=member_id, **{
            'member_epoch': self.epochs.get((group, member_id), 0), **fields})
        assert answer.error_code == 0, answer
        self.epochs[group, member_id] = answer.member_epoch
        return answer

    def beat_consumer(self, group, member_id, **fields):
        answer = self.beat('ConsumerGroupHeartbeat', 1, group, member_id, **{
            'topic_partitions': self.owned.get((group, member_id), []), **fields})
        if answer.assignment is not None:
            self.owned[group, member_id] = [dict(topic_id=topic.topic_id, partitions=list(topic.partitions))
                                            for topic in answer.assignment.topic_partitions]
        return answer

    def join_consumer(self, group, member_id, **fields):
        return self.beat_consumer(group, member_id, **{
            'rebalance_timeout_ms': REBALANCE_MS, 'subscribed_topic_names': [TOPIC], **fields})

    def beat_share(self, **fields):
        answer = self.beat('ShareGroupHeartbeat', 1, SHARED, 'sharer', **fields)
        if answer.assignment is not None:
            self.owned[SHARED, 'sharer'] = answer.assignment.topic_partitions

    def beat_streams(self, **fields):
        answer = self.beat('StreamsGroupHeartbeat', 0, STREAMING, 'streamer', **fields)
        return answer

    def join_streams(self):
        store = dict(name=f'{STREAMING}-store-changelog', partitions=0, replication_factor=0, topic_configs=[])
        return self.beat_streams(
            rebalance_timeout_ms=REBALANCE_MS, process_id='process', active_tasks=[], standby_tasks=[],
            warmup_tasks=[], topology=dict(epoch=0, subtopologies=[dict(
                subtopology_id='0', source_topics=[TOPIC], source_topic_regex=[], state_changelog_topics=[store],
                repartition_sink_topics=[], repartition_source_topics=[], copartition_groups=[])]))

    # ---- offsets and records

    def commit(self, group, member_id='', epoch=-1):
        answer = self.ask('OffsetCommit', 9, group_id=group, member_id=member_id,
                          generation_id_or_member_epoch=epoch, topics=[dict(name=TOPIC, partitions=[
                              dict(partition_index=0, committed_offset=self.offset, committed_metadata='')])])
        return answer.topics[0].partitions[0].error_code

    def fetch_records(self):
        """Let the member of the share group acquire all available records. Return their offsets with their delivery
        counts.
        """
        found, epoch = {}, 0
        while len(found) < RECORDS - len(self.done):
            self.beat_share()
            topics = [] if epoch else [dict(topic_id=self.topic_id, partitions=[dict(partition_index=0)])]
            answer = self.ask('ShareFetch', 2, group_id=SHARED, member_id='sharer', share_session_epoch=epoch,
                              max_wait_ms=200, min_bytes=1, max_bytes=1 << 20, max_records=100, batch_size=100,
                              share_acquire_mode=0, topics=topics)
            assert answer.error_code == 0, answer
            epoch += 1
            for topic in answer.responses:
                for partition in topic.partitions:
                    # Until the state of a share partition is initialized, Kafka answers UNKNOWN_SERVER_ERROR.
                    assert partition.error_code in (0, ErrorCode.UNKNOWN_SERVER_ERROR), partition
                    for run in partition.acquired_records:
                        found |= dict.fromkeys(range(run.first_offset, run.last_offset + 1), run.delivery_count)
        return found, epoch

    def share_on(self, accepted, released):
        """Acquire the remaining records. Accept some of them, release some, and keep the rest acquired."""
        found, epoch = self.fetch_records()
        expected = {offset: self.counts.get(offset, 0) + 1 for offset in range(RECORDS) if offset not in self.done}
        assert found == {offset: found.get(offset) if offset in self.kept and found.get(offset) == count + 1 else count
                         for offset, count in expected.items()}
        answer = self.ask('ShareAcknowledge', 2, group_id=SHARED, member_id='sharer', share_session_epoch=epoch,
                          topics=[dict(topic_id=self.topic_id, partitions=[dict(
                              partition_index=0, acknowledgement_batches=[
                                  dict(first_offset=offset, last_offset=offset, acknowledge_types=[kind])
                                  for kind, offsets in ((ACCEPT, accepted), (RELEASE, released))
                                  for offset in offsets])])])
        assert answer.responses[0].partitions[0].error_code == 0, answer
        self.done.update(accepted)
        self.kept = found.keys() - {*accepted, *released}
        self.counts = {offset: count - (offset in self.kept) for offset, count in found.items()}

    # ---- the view of an administrator

    def listed(self):
        groups = self.ask('ListGroups', 5, types_filter=[], states_filter=[]).groups
        return sorted((group.group_id, group.group_type, group.group_state) for group in groups)

    def seen(self):
        """Return the descriptions and offsets of all groups."""
        view = {}
        for api, (names, version) in DESCRIPTIONS.items():
            for group in self.ask(api, version, group_ids=names).groups:
                assert group.error_code == 0, group
                view[group.group_id] = in_words(group)
        view |= {group.group_id: in_words(group) for group in self.ask('DescribeGroups', 6, groups=[CLASSIC]).groups}
        fetched = self.ask('OffsetFetch', 9, require_stable=True, groups=[
            dict(group_id=name, topics=[dict(name=TOPIC, partition_indexes=[0])]) for name in GROUPS])
        view['offsets'] = {group.group_id: group.topics[0].partitions[0].committed_offset for group in fetched.groups}
        view['listed'] = self.listed()      # last: all groups are loaded by now
        return view


def in_words(value):
    """Return a message as plain values. Lists are sorted."""
    if isinstance(value, list):
        return sorted((in_words(item) for item in value), key=repr)
    names = getattr(getattr(value, '_layout', None), 'names', None)
    if names is None:
        return value
    return {name: in_words(getattr(value, name)) for name in names if name not in NOT_KEPT}


def create_topics(peer):
    topic_id = peer.create_topic(TOPIC, PARTITIONS)
    peer.prepare('IncrementalAlterConfigs', resources=[dict(
        resource_type=GROUP_RESOURCE, resource_name=SHARED, configs=[dict(
            name='share.auto.offset.reset', config_operation=0, value='earliest')])])
    peer.prepare('Produce', 9, acks=-1, timeout_ms=30000, topic_data=[dict(name=TOPIC, partition_data=[
        dict(index=0, records=batch(*(b'%d' % number for number in range(RECORDS))))])])
    return topic_id


def form_groups(members):
    """Let members of every kind join their groups, until all are stable."""
    classic = members.join_classic(CLASSIC)
    members.sync_classic(CLASSIC, classic, range(PARTITIONS))
    members.join_consumer(CONSUMERS, 'dynamic')
    members.join_consumer(CONSUMERS, 'static', instance_id='one', rack_id='r')
    members.join_consumer(CONSUMERS, 'pattern', subscribed_topic_names=None, subscribed_topic_regex='ord.*')
    mixed = members.join_classic(MIXED)
    members.sync_classic(MIXED, mixed, range(PARTITIONS))
    members.join_consumer(MIXED, 'today')
    kept = [0, 1]
    while members.beat_classic(MIXED, mixed) or 'today' not in {
            name for (group, name), owned in members.owned.items() if group == MIXED and owned}:
        members.join_classic(MIXED, mixed, kept)
        members.sync_classic(MIXED, mixed)
        members.beat_consumer(MIXED, 'today')
    members.beat_share(subscribed_topic_names=[TOPIC])
    members.join_streams()
    while True:
        for name in ('dynamic', 'static', 'pattern'):
            members.beat_consumer(CONSUMERS, name)
        members.beat_consumer(MIXED, 'today')
        members.beat_share()
        answer = members.beat_streams()
        if answer.active_tasks is not None:
            members.owned[STREAMING, 'streamer'] = [
                dict(subtopology_id=tasks.subtopology_id, partitions=list(tasks.partitions))
                for tasks in answer.active_tasks]
        members.beat_streams(active_tasks=members.owned.get((STREAMING, 'streamer'), []), standby_tasks=[],
                             warmup_tasks=[])
        # Kafka assigns the partitions of a share group only after their state is initialized.
        if members.owned[SHARED, 'sharer'] and {state for _, _, state in members.listed()} == {'Stable'}:
            return classic, mixed


def go_on(members, classic, mixed):
    """Let all members send heartbeats with the epochs that they had before the move, and commit offsets."""
    before = dict(members.epochs)
    assert (members.beat_classic(CLASSIC, classic), members.beat_classic(MIXED, mixed)) == (0, 0)
    for group, name in ((CONSUMERS, 'dynamic'), (CONSUMERS, 'static'), (CONSUMERS, 'pattern'), (MIXED, 'today')):
        answer = members.beat_consumer(group, name, topic_partitions=None)
        assert answer.assignment is None, (group, name, answer)
    members.beat_share()
    assert members.beat_streams().active_tasks is None
    assert members.epochs == before
    members.offset += 1
    assert members.commit(EMPTY) == 0
    for group, name in ((CLASSIC, classic), (CONSUMERS, 'dynamic'), (MIXED, 'today'), (MIXED, mixed),
                        (STREAMING, 'streamer')):
        assert members.commit(group, name, members.epochs[group, name]) == 0, group
    assert members.commit(CONSUMERS, 'dynamic', before[CONSUMERS, 'dynamic'] + 1) == ErrorCode.STALE_MEMBER_EPOCH


def end_groups(members, classic, mixed):
    """Roll the mixed group back to the classic protocol, and let all other members leave."""
    members.beat_consumer(MIXED, 'today', member_epoch=-1, topic_partitions=None)
    assert members.beat_classic(MIXED, mixed) == ErrorCode.REBALANCE_IN_PROGRESS
    members.join_classic(MIXED, mixed)
    members.sync_classic(MIXED, mixed, range(PARTITIONS))
    assert members.beat_classic(MIXED, mixed) == 0
    for name in ('dynamic', 'static', 'pattern'):
        members.beat_consumer(CONSUMERS, name, member_epoch=-1, topic_partitions=None)
    members.beat_share(member_epoch=-1)
    members.beat_streams(member_epoch=-1)
    assert members.ask('LeaveGroup', 5, group_id=CLASSIC, members=[dict(member_id=classic)]).error_code == 0
    states = {name: (kind, state) for name, kind, state in members.listed()}
    assert states == {CLASSIC: ('classic', 'Empty'), CONSUMERS: ('consumer', 'Empty'), MIXED: ('classic', 'Stable'),
                      SHARED: ('share', 'Empty'), STREAMING: ('streams', 'Empty'), EMPTY: ('classic', 'Empty')}


@pytest.mark.parametrize(('first_type', 'second_type'), [(BrokerProcess, KafkaProcess), (KafkaProcess, BrokerProcess)],
                         ids=['apache-kafka-opens-it', 'kbroker-opens-it'])
def test_members_of_every_kind_go_on_at_the_other_broker_and_back(tmp_path, first_type, second_type):
    first, second = first_type(tmp_path / 'data', SETTINGS), second_type(tmp_path / 'data', SETTINGS)
    members = Members()
    with killed_at_the_end(first, second):
        first.start()
        members.go_to(first.address)
        members.topic_id = create_topics(members.peer)
        await_shown_metadata(first.address)     # a share group begins where its config says when it meets a partition
        classic, mixed = form_groups(members)
        go_on(members, classic, mixed)
        members.share_on(accepted=[0, 1, 3], released=[4, 5, 6])
        for place, previous, accepted, released in ((second, first, [4], [5, 7]), (first, second, [2, 5], [6, 7])):
            before = members.seen()
            members.leave_broker()
            previous.stop()
            place.start()
            members.go_to(place.address)
            assert members.seen() == before
            go_on(members, classic, mixed)
            members.share_on(accepted, released)
        end_groups(members, classic, mixed)
