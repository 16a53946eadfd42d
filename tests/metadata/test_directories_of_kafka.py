"""Directories of Apache Kafka 4.2 to 4.4: their metadata is read, and kbroker can start and stop on them."""

from __future__ import annotations

import pytest
from controller_directory import DIRECTORIES, allocate_producer_ids, create_topic
from reference.kraft import partition_states, read_log

from kbroker.log.fs import FileSystem
from kbroker.metadata.batches import encode_data
from kbroker.metadata.directory import DirectoryRefusedError, feature_records, read_meta_properties
from kbroker.metadata.features import RELEASES
from kbroker.metadata.image import MetadataImage, ResourceType
from kbroker.metadata.quorum_log import QuorumLog
from kbroker.metadata.snapshots import FORMAT_SNAPSHOT_FILE
from kbroker.record.batch import iter_batches

INTERNAL = {'__consumer_offsets': 3, '__transaction_state': 3}
FEATURES_4_3 = {
    'metadata.version': 30,
    'eligible.leader.replicas.version': 1,
    'group.version': 1,
    'share.version': 1,
    'streams.version': 1,
    'transaction.version': 2,
}
FEATURES_4_4 = {**FEATURES_4_3, 'metadata.version': 33, 'share.version': 2}
FEATURES_4_2 = {
    'metadata.version': 29,
    'eligible.leader.replicas.version': 1,
    'group.version': 1,
    'transaction.version': 2,
}

TAKEN_OVER = {
    'born-outside-kafka-opened-by-4.2-4.4-4.3': ({'born': 2, '__consumer_offsets': 3}, 129, 4, FEATURES_4_2),
    'kafka-4.3-dynamic-voter': ({'t1': 1, '__consumer_offsets': 3}, 84, 3, FEATURES_4_3),
    'kafka-4.3-static-voter': ({}, 25, 1, FEATURES_4_3),
    'kafka-4.4-freshly-formatted': ({}, 0, 0, {}),
    'kafka-4.4.0-formatted': ({}, 0, 0, {}),
    'kafka-4.4.0-shrunk-to-one-node': ({'bills': 2, 'orders': 2, **INTERNAL}, 334, 5, FEATURES_4_3),
    'kafka-4.4.0-stopped-once': (
        {'orders': 4, 'streaming-store-changelog': 4, '__share_group_state': 1, **INTERNAL},
        82,
        1,
        FEATURES_4_4,
    ),
    'kafka-4.4-stopped-once': ({'t1': 3, **INTERNAL}, 330, 1, FEATURES_4_3),
    'kafka-4.4-stopped-three-times-one-kill': ({'t1': 3, **INTERNAL}, 1137, 3, FEATURES_4_3),
    'trimmed-metadata-log-with-snapshots': (
        {'t1': 3, 'full1': 1, 'full2': 1, 'full3': 1, **INTERNAL},
        7552,
        17,
        FEATURES_4_3,
    ),
}
"""Maps each archive to its content: the partitions of each topic, the log end offset, the last epoch and the
features."""


def load(node) -> tuple[MetadataImage, QuorumLog]:
    image, log = MetadataImage(), QuorumLog(FileSystem(), str(node.log_dir), 1 << 30)
    log.load(image)
    return image, log


def test_no_archive_is_left_out() -> None:
    assert {path.stem for path in DIRECTORIES.glob('*.tgz')} == {*TAKEN_OVER, 'broker-1-of-a-cluster-two-log-dirs'}


@pytest.mark.parametrize('archive', TAKEN_OVER)
def test_a_directory_of_kafka_is_read_without_a_change(archive: str, unpack) -> None:
    node = unpack(archive)
    before = node.files()
    image, log = load(node)
    topics, end_offset, epoch, features = TAKEN_OVER[archive]
    assert {topic.name: len(topic.partitions) for topic in image.topics.values()} == topics
    assert (log.end_offset, log.epoch, image.metadata_offset) == (end_offset, epoch, end_offset - 1)
    assert image.features == features
    assert node.files() == before


@pytest.mark.parametrize('archive', [name for name in TAKEN_OVER if not name.startswith('trimmed')])
def test_leaders_and_epochs_are_those_of_the_reference(archive: str, unpack) -> None:
    node = unpack(archive)
    image, _ = load(node)
    assert partition_states(read_log(node.log_dir)) == {
        (topic.name, partition.index): (partition.leader, partition.leader_epoch, partition.partition_epoch)
        for topic in image.topics.values()
        for partition in topic.partitions
    }


def test_what_is_not_used_is_kept(unpack) -> None:
    image, _ = load(unpack('kafka-4.4-stopped-once'))
    assert image.configs[ResourceType.BROKER, '1'] == {'log.cleaner.threads': '1'}
    assert image.configs[ResourceType.BROKER, ''] == {'min.insync.replicas': '1'}
    assert image.configs[ResourceType.CLIENT_METRICS, 'cm1'] == {'interval.ms': '1000'}
    assert image.configs[ResourceType.GROUP, 'g1'] == {'consumer.session.timeout.ms': '50000'}
    assert image.client_quotas == {(('user', 'alice'),): {'consumer_byte_rate': 2048.0}}
    assert set(image.scram_credentials) == {('alice', 1)}
    assert set(image.controllers) == {1}
    assert image.next_producer_id == 1000
    assert image.brokers[1].fenced and image.brokers[1].in_controlled_shutdown and image.brokers[1].broker_epoch == 14
    assert image.topics['t1'].configs == {'retention.ms': '123456789'}
    assert 'doomed' not in image.topics and (ResourceType.TOPIC, 'doomed') not in image.configs
    assert (
        image.topics['t1'].partitions[0].eligible_leader_replicas == (1,) and image.topics['t1'].partitions[0].isr == ()
    )


def test_the_levels_of_4_4_0_and_an_acl_for_an_address_range_are_kept(unpack) -> None:
    node = unpack('kafka-4.4.0-stopped-once')
    image, _ = load(node)
    (entry,) = image.access_control_entries.values()
    assert (entry.principal, entry.host, entry.resource_name) == ('User:alice', '10.0.0.0/8', 'orders')
    node.stop(node.start())
    again, _ = load(node)
    assert (again.features, again.access_control_entries) == (FEATURES_4_4, image.access_control_entries)


def test_the_features_are_formatted_in_the_bytes_of_4_4_0(unpack) -> None:
    node = unpack('kafka-4.4.0-formatted')
    snapshot = (node.metadata_directory / FORMAT_SNAPSHOT_FILE).read_bytes()
    _, (header, batch), _ = iter_batches(snapshot)
    assert bytes(batch) == encode_data(
        feature_records(RELEASES['4.4']),
        base_offset=header.base_offset,
        epoch=0,
        timestamp_ms=header.base_timestamp_ms,
        metadata_version=33,
    )


def test_a_trimmed_log_continues_its_newest_snapshot(unpack) -> None:
    image, log = load(unpack('trimmed-metadata-log-with-snapshots'))
    assert log.start_offset == 4469
    assert image.configs[ResourceType.TOPIC, 't1'] == {'retention.ms': '123456789', 'max.message.bytes': '1234567'}
    assert [partition.leader_epoch for partition in image.topics['t1'].partitions] == [27, 27, 27]


@pytest.mark.parametrize('archive', TAKEN_OVER)
def test_a_directory_of_kafka_is_taken_over_changed_and_left(archive: str, unpack) -> None:
    node = unpack(archive)
    before, _ = load(node)
    quorum_state = node.metadata_directory / 'quorum-state'
    kraft_version_1 = b'"data_version":0' not in (quorum_state.read_bytes() if quorum_state.exists() else b'')
    controller = node.start()
    properties = read_meta_properties(FileSystem(), str(node.log_dir))
    assert (controller.cluster_id, controller.directory_id) == (properties.cluster_id, properties.directory_id)
    for topic in before.topics.values():
        elected = controller.image.topics[topic.name].partitions
        assert [partition.leader for partition in elected] == [1] * len(topic.partitions)
        assert all(new.leader_epoch > old.leader_epoch for new, old in zip(elected, topic.partitions, strict=True))
        assert {
            (partition.isr, partition.eligible_leader_replicas, partition.last_known_elr) for partition in elected
        } == {((1,), (), ())}
    assert not controller.image.brokers[1].fenced
    created = create_topic(controller, 'ours', 2, {'retention.ms': '1000'})
    block = allocate_producer_ids(controller)
    assert block.start == before.next_producer_id
    node.stop(controller)

    assert (b'"data_version":1' in quorum_state.read_bytes()) == kraft_version_1
    again, log = load(node)
    assert again.topics['ours'].topic_id == created.topic_id and again.topics['ours'].configs == {
        'retention.ms': '1000'
    }
    assert again.next_producer_id == block.stop
    assert set(again.topics) == {*before.topics, 'ours'}
    assert (again.scram_credentials, again.client_quotas) == (before.scram_credentials, before.client_quotas)
    assert again.features == (
        before.features or (FEATURES_4_4 if archive == 'kafka-4.4.0-formatted' else FEATURES_4_3)
    )
    assert again.brokers[1].fenced
    read_log(node.log_dir)
    rows = (node.metadata_directory / 'leader-epoch-checkpoint').read_text().splitlines()[2:]
    assert rows[-1].split()[0] == str(log.epoch)


def test_the_node_that_stays_of_a_cluster_is_opened_although_its_last_leader_was_elected_by_three(unpack) -> None:
    """The removed nodes stay registered as controllers: the directory is below metadata.version 33."""
    node = unpack('kafka-4.4.0-shrunk-to-one-node')
    image, _ = load(node)
    assert (image.leader_change_voters, set(image.controllers), set(image.brokers)) == ((1, 2, 3), {1, 2, 3}, {1})
    node.stop(node.start())
    again, _ = load(node)
    assert again.leader_change_voters == (1,)


def test_the_directory_of_a_broker_of_a_larger_cluster_is_refused(unpack) -> None:
    node = unpack('broker-1-of-a-cluster-two-log-dirs')
    image, _ = load(node)
    assert set(image.brokers) == {1, 2}
    before = node.files()
    with pytest.raises(DirectoryRefusedError, match=r'found the voters 100 in directory .* expected 1 in .* alone'):
        node.open()
    assert node.files() == before
