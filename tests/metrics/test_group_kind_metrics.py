"""The metrics of groups whose members heartbeat: kinds, states, members, and the lag of a share group."""
from support.brokers.collected import collected
from support.brokers.in_process_broker import InProcessBroker
from support.clients.tv1_producer import InProcessPeer, create_topics
from support.messages.message_builder import build

from kbroker.metrics import groups
from kbroker.record.batch import encode_batch


def settle(broker):
    while True:
        broker.turn()
        if not len(broker.long_work) and broker.timers.next_delay_ms() != 0:
            return


def test_members_are_counted_by_kind_and_a_share_group_lags_behind_its_finished_records(tmp_path):
    with InProcessBroker(tmp_path / 'data', {'share.coordinator.state.topic.num.partitions': '1',
                                             'group.share.min.record.lock.duration.ms': '1000'}) as broker:
        create_topics(InProcessPeer(broker), jobs=1)
        broker.ask(build('FindCoordinatorRequest', key_type=0, coordinator_keys=['any']))
        batch = bytes(encode_batch([(broker.clock.wall_ms(), None, b'value') for _ in range(5)]))
        broker.ask(build('ProduceRequest', acks=-1, timeout_ms=1000, topic_data=[
            dict(name='jobs', partition_data=[dict(index=0, records=batch)])]), 12)
        broker.ask(build('IncrementalAlterConfigsRequest', resources=[dict(
            resource_type=32, resource_name='sharers', configs=[
                dict(name='share.auto.offset.reset', config_operation=0, value='earliest')])]))
        for name in ('one', 'two'):
            broker.begin(build('ConsumerGroupHeartbeatRequest', group_id='readers', member_id=name, member_epoch=0,
                               rebalance_timeout_ms=60_000, subscribed_topic_names=['jobs'], topic_partitions=[]), 1)
        broker.begin(build('ShareGroupHeartbeatRequest', group_id='sharers', member_id='three', member_epoch=0,
                           subscribed_topic_names=['jobs']), 1)
        for _ in range(5):
            broker.clock.advance(5_000)
            settle(broker)
        found = collected(groups.collect(broker))
        assert {labels[0]: value for (name, *labels), value in found.items() if name == 'kbroker_groups'} == {
            'consumer': 1, 'share': 1}
        assert found['kbroker_group_members', 'consumer', 'readers'] == 2
        assert found['kbroker_group_members', 'share', 'sharers'] == 1
        assert ('kbroker_group_lag', 'readers') not in found       # it has committed no offset
        topic_id = broker.topics.topic('jobs').topic_id
        connection = broker.connect()
        for epoch in range(2):
            broker.begin(build('ShareFetchRequest', group_id='sharers', member_id='three', share_session_epoch=epoch,
                               max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, max_records=10, batch_size=10, topics=[
                                   dict(topic_id=topic_id, partitions=[dict(partition_index=0)])]), 1, connection)
            settle(broker)
        broker.begin(build('ShareAcknowledgeRequest', group_id='sharers', member_id='three', share_session_epoch=2,
                           topics=[dict(topic_id=topic_id, partitions=[dict(
                               partition_index=0, acknowledgement_batches=[dict(
                                   first_offset=0, last_offset=1, acknowledge_types=[1])])])]), 1, connection)
        settle(broker)
        found = collected(groups.collect(broker))
        assert (found['kbroker_group_lag', 'sharers'], found['kbroker_group_stable_lag', 'sharers']) == (3, 3)
        assert found['kbroker_group_topic_lag', 'sharers', 'jobs'] == 3
