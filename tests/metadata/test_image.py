"""The rules by which an image replays each kind of record."""

from __future__ import annotations

import pytest

from kbroker.base.errors import CorruptLogError
from kbroker.metadata.image import _REPLAY, MetadataImage, ResourceType
from kbroker.protocol import schema
from kbroker.protocol.messages import (
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    EndTransactionRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
    UnregisterControllerRecord,
    UserScramCredentialRecord,
)

TOPIC_ID = b'topic id 16 byte'
DIRECTORY_ID = b'dir id 16 bytes.'


def replayed(*records, image: MetadataImage | None = None) -> MetadataImage:
    after = (image or MetadataImage()).copy()
    after.replay(records, after.metadata_offset + len(records), 1, 0)
    return after


def partition(index: int = 0, **fields) -> PartitionRecord:
    return PartitionRecord(
        **{
            'partition_id': index,
            'topic_id': TOPIC_ID,
            'replicas': [1],
            'isr': [1],
            'leader': 1,
            'leader_epoch': 0,
            'partition_epoch': 0,
            'directories': [DIRECTORY_ID],
            **fields,
        }
    )


def change(**fields) -> PartitionChangeRecord:
    return PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, **fields)


@pytest.fixture
def with_topic() -> MetadataImage:
    return replayed(TopicRecord(name='t', topic_id=TOPIC_ID), partition())


@pytest.fixture
def with_broker() -> MetadataImage:
    return replayed(RegisterBrokerRecord(broker_id=1, broker_epoch=5, fenced=True))


def test_every_record_kind_has_its_rule() -> None:
    kinds = {declaration.name for declaration in schema.declarations().values()
             if declaration.kind == 'record' and declaration.topic is None}
    assert kinds <= {record.__name__ for record in _REPLAY}


def test_naming_the_same_leader_again_raises_its_epoch(with_topic: MetadataImage) -> None:
    after = replayed(change(leader=1), image=with_topic).topics['t'].partitions[0]
    assert (after.leader, after.leader_epoch, after.partition_epoch) == (1, 1, 1)


def test_losing_the_leader_raises_the_leader_epoch(with_topic: MetadataImage) -> None:
    after = replayed(change(leader=-1, isr=[], eligible_leader_replicas=[1], last_known_elr=[1]), image=with_topic)
    found = after.topics['t'].partitions[0]
    assert (found.leader, found.leader_epoch, found.isr, found.eligible_leader_replicas, found.last_known_elr) == (
        -1,
        1,
        (),
        (1,),
        (1,),
    )


def test_a_change_without_a_leader_raises_only_the_partition_epoch(with_topic: MetadataImage) -> None:
    found = replayed(change(directories=[TOPIC_ID]), image=with_topic).topics['t'].partitions[0]
    assert (found.leader, found.leader_epoch, found.partition_epoch, found.directories) == (1, 0, 1, (TOPIC_ID,))


def test_the_leader_recovery_state_stays_until_it_is_named(with_topic: MetadataImage) -> None:
    unclean = replayed(change(leader=1, leader_recovery_state=1), change(leader=1), image=with_topic)
    assert unclean.topics['t'].partitions[0].leader_recovery_state == 1
    assert replayed(change(leader_recovery_state=0), image=unclean).topics['t'].partitions[0].leader_recovery_state == 0


def test_partitions_may_come_in_any_order(with_topic: MetadataImage) -> None:
    after = replayed(partition(3), partition(1), partition(2), image=with_topic)
    assert [found.index for found in after.topics['t'].partitions] == [0, 1, 2, 3]
    assert after.topics_by_id[TOPIC_ID] is after.topics['t']


def test_within_a_batch_each_record_finds_what_those_before_it_have_changed(with_topic: MetadataImage) -> None:
    """For speed, the image builds the tuple of a topic's partitions only once for all records of a batch."""
    eligible = {'eligible_leader_replicas': [1], 'last_known_elr': [1]}
    config = ConfigRecord(resource_type=2, resource_name='t', name='a', value='1')
    after = replayed(partition(1, **eligible), change(**eligible), ClearElrRecord(topic_name='t'), config,
                     change(last_known_elr=[2]), image=with_topic).topics['t']
    assert [found.eligible_leader_replicas for found in after.partitions] == [(), ()]
    assert [found.last_known_elr for found in after.partitions] == [(2,), ()]
    assert (after.partitions[0].partition_epoch, after.configs) == (2, {'a': '1'})
    other = bytes(16)
    again = replayed(change(leader=1), RemoveTopicRecord(topic_id=TOPIC_ID), TopicRecord(name='t', topic_id=other),
                     partition(topic_id=other), image=with_topic)
    assert again.topics == {'t': again.topics_by_id[other]}
    assert again.topics['t'].partitions[0].leader_epoch == 0


def test_removing_a_topic_removes_its_configs(with_topic: MetadataImage) -> None:
    config = ConfigRecord(resource_type=2, resource_name='t', name='retention.ms', value='1')
    after = replayed(config, RemoveTopicRecord(topic_id=TOPIC_ID), image=with_topic)
    assert (after.topics, after.topics_by_id, after.configs) == ({}, {}, {})


def test_configs_of_a_topic_show_in_the_topic(with_topic: MetadataImage) -> None:
    after = replayed(ConfigRecord(resource_type=2, resource_name='t', name='a', value='1'), image=with_topic)
    assert after.topics['t'].configs == after.topics_by_id[TOPIC_ID].configs == {'a': '1'}
    gone = replayed(ConfigRecord(resource_type=2, resource_name='t', name='a', value=None), image=after)
    assert gone.topics['t'].configs == {} and gone.configs == {}


def test_configs_of_a_topic_that_does_not_exist_are_accepted() -> None:
    after = replayed(ConfigRecord(resource_type=2, resource_name='t', name='a', value='1'))
    assert after.configs == {(ResourceType.TOPIC, 't'): {'a': '1'}}
    assert replayed(TopicRecord(name='t', topic_id=TOPIC_ID), image=after).topics['t'].configs == {'a': '1'}


@pytest.mark.parametrize('topic_name', ['t', ''])
def test_clear_elr_forgets_the_eligible_leader_replicas(with_topic: MetadataImage, topic_name: str) -> None:
    stopped = replayed(change(eligible_leader_replicas=[1], last_known_elr=[1]), image=with_topic)
    found = replayed(ClearElrRecord(topic_name=topic_name), image=stopped).topics['t'].partitions[0]
    assert (found.eligible_leader_replicas, found.last_known_elr) == ((), ())


def test_records_of_a_transaction_count_at_its_end(with_topic: MetadataImage) -> None:
    opened = replayed(BeginTransactionRecord(), RemoveTopicRecord(topic_id=TOPIC_ID), image=with_topic)
    assert 't' in opened.topics
    assert 't' not in replayed(EndTransactionRecord(), image=opened).topics
    assert 't' in replayed(AbortTransactionRecord(), NoOpRecord(), image=opened).topics


def test_a_feature_at_level_0_is_gone_and_kraft_version_is_not_taken_from_data() -> None:
    after = replayed(
        FeatureLevelRecord(name='group.version', feature_level=1),
        FeatureLevelRecord(name='kraft.version', feature_level=1),
    )
    assert (after.features, after.kraft_version) == ({'group.version': 1}, 0)
    assert replayed(FeatureLevelRecord(name='group.version', feature_level=0), image=after).features == {}


def test_a_registration_is_changed_and_removed(with_broker: MetadataImage) -> None:
    unfenced = replayed(BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5, fenced=-1), image=with_broker)
    assert with_broker.brokers[1].fenced and not unfenced.brokers[1].fenced
    stopping = replayed(
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5, in_controlled_shutdown=1),
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5, cordoned_log_dirs=[DIRECTORY_ID]),
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5, log_dirs=[DIRECTORY_ID]),
        image=unfenced,
    ).brokers[1]
    assert (stopping.fenced, stopping.in_controlled_shutdown) == (False, True)
    assert (stopping.cordoned_log_dirs, stopping.log_dirs) == ((DIRECTORY_ID,), (DIRECTORY_ID,))
    assert replayed(FenceBrokerRecord(id=1, epoch=5), image=unfenced).brokers[1].fenced
    assert not replayed(UnfenceBrokerRecord(id=1, epoch=5), image=with_broker).brokers[1].fenced
    assert replayed(UnregisterBrokerRecord(broker_id=1, broker_epoch=5), image=with_broker).brokers == {}


def test_quotas_credentials_tokens_entries_and_controllers_come_and_go() -> None:
    user = [
        ClientQuotaRecord.EntityData(entity_type='user', entity_name=None),
        ClientQuotaRecord.EntityData(entity_type='client-id', entity_name='c'),
    ]
    after = replayed(
        ClientQuotaRecord(entity=user, key='rate', value=1.5),
        UserScramCredentialRecord(name='u', mechanism=1),
        DelegationTokenRecord(token_id='d'),
        AccessControlEntryRecord(id=TOPIC_ID),
        RegisterControllerRecord(controller_id=3),
    )
    assert after.client_quotas == {(('client-id', 'c'), ('user', None)): {'rate': 1.5}}
    assert (set(after.scram_credentials), set(after.delegation_tokens)) == ({('u', 1)}, {'d'})
    assert (set(after.access_control_entries), set(after.controllers)) == ({TOPIC_ID}, {3})
    gone = replayed(
        ClientQuotaRecord(entity=list(reversed(user)), key='rate', remove=True),
        RemoveUserScramCredentialRecord(name='u', mechanism=1),
        RemoveDelegationTokenRecord(token_id='d'),
        RemoveAccessControlEntryRecord(id=TOPIC_ID),
        UnregisterControllerRecord(controller_id=3),
        image=after,
    )
    assert not any(
        (
            gone.client_quotas,
            gone.scram_credentials,
            gone.delegation_tokens,
            gone.access_control_entries,
            gone.controllers,
        )
    )


def test_a_change_of_a_config_or_a_quota_leaves_earlier_images_as_they_were() -> None:
    user = [ClientQuotaRecord.EntityData(entity_type='user', entity_name='u')]
    broker = (ResourceType.BROKER, '1')
    config = ConfigRecord(resource_type=broker[0], resource_name=broker[1], name='a', value='1')
    first = replayed(config, ClientQuotaRecord(entity=user, key='rate', value=1.0))
    more = replayed(
        ConfigRecord(resource_type=broker[0], resource_name=broker[1], name='b', value='2'),
        ClientQuotaRecord(entity=user, key='percentage', value=2.0),
        image=first,
    )
    less = replayed(
        ConfigRecord(resource_type=broker[0], resource_name=broker[1], name='a', value=None),
        ClientQuotaRecord(entity=user, key='rate', remove=True),
        image=more,
    )
    assert [image.configs[broker] for image in (first, more, less)] == [{'a': '1'}, {'a': '1', 'b': '2'}, {'b': '2'}]
    assert [image.client_quotas[('user', 'u'),] for image in (first, more, less)] == [
        {'rate': 1.0}, {'rate': 1.0, 'percentage': 2.0}, {'percentage': 2.0}]


@pytest.mark.parametrize(
    ('records', 'reason'),
    [
        ([TopicRecord(name='t', topic_id=DIRECTORY_ID)], 'the name or the id is taken'),
        ([TopicRecord(name='u', topic_id=TOPIC_ID)], 'the name or the id is taken'),
        ([partition(topic_id=DIRECTORY_ID)], 'names no topic'),
        ([PartitionChangeRecord(partition_id=7, topic_id=TOPIC_ID)], 'does not exist'),
        ([RemoveTopicRecord(topic_id=DIRECTORY_ID)], 'names no topic'),
        ([ClearElrRecord(topic_name='u')], 'does not exist'),
        (
            [ProducerIdsRecord(next_producer_id=1000), ProducerIdsRecord(next_producer_id=1000)],
            'expected more than 1000',
        ),
        ([BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=6)], 'expected 5'),
        ([BrokerRegistrationChangeRecord(broker_id=2, broker_epoch=5)], 'not registered'),
        ([BeginTransactionRecord(), BeginTransactionRecord()], 'inside a transaction'),
        ([EndTransactionRecord()], 'no transaction is open'),
        ([AbortTransactionRecord()], 'no transaction is open'),
    ],
)
def test_a_record_that_contradicts_the_state_is_refused_and_changes_nothing(
    with_topic: MetadataImage, records: list, reason: str
) -> None:
    image = replayed(RegisterBrokerRecord(broker_id=1, broker_epoch=5), image=with_topic)
    before = image.copy()
    with pytest.raises(CorruptLogError, match=reason):
        replayed(*records, image=image)
    assert image == before
