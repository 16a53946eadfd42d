"""Ownership of a directory: formatting, meta.properties, and directories that a broker must not change.

Covers KIP-858.
"""

from __future__ import annotations

import json
import uuid

import pytest
from controller_directory import ControllerDirectory, CountdownFileSystem, create_topic
from reference.kraft import read_log, record_kinds

from kbroker.base.errors import KafkaError
from kbroker.log.fs import FileSystem
from kbroker.metadata import directory as directory_module
from kbroker.metadata.directory import (
    DirectoryRefusedError,
    MetaProperties,
    format_directory,
    format_uuid,
    parse_uuid,
    random_uuid,
    read_meta_properties,
    write_meta_properties,
)
from kbroker.metadata.features import RELEASES
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.quorum_log import QuorumLog
from kbroker.metadata.snapshot_writer import encoded_snapshot
from kbroker.metadata.snapshots import encode_format_snapshot
from kbroker.protocol.messages import (
    FeatureLevelRecord,
    KRaftVersionRecord,
    LeaderChangeMessage,
    PartitionRecord,
    RegisterBrokerRecord,
    TopicRecord,
    VotersRecord,
)


def set_property(node: ControllerDirectory, name: str, value: str | None) -> None:
    path = node.log_dir / 'meta.properties'
    lines = [line for line in path.read_text().splitlines() if not line.startswith(f'{name}=')]
    path.write_text('\n'.join(lines + ([] if value is None else [f'{name}={value}'])) + '\n')


def test_an_empty_directory_is_formatted_and_started(node: ControllerDirectory) -> None:
    controller = node.start()
    assert controller.image.features == {
        'metadata.version': 30,
        'eligible.leader.replicas.version': 1,
        'group.version': 1,
        'share.version': 1,
        'streams.version': 1,
        'transaction.version': 2,
    }
    assert controller.image.configs == {(4, ''): {'min.insync.replicas': '1'}}
    assert controller.image.kraft_version == 1
    assert [(voter.voter_id, voter.voter_directory_id) for voter in controller.image.voters] == [
        (1, controller.directory_id)
    ]
    assert (controller.image.cluster_id, controller.image.node_id) == (controller.cluster_id, 1)
    assert len(controller.cluster_id) == 22
    assert {path.name for path in node.log_dir.iterdir()} == {'meta.properties', '__cluster_metadata-0'}
    assert (
        node.metadata_directory / 'partition.metadata'
    ).read_bytes() == b'version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ'
    assert (node.metadata_directory / 'leader-epoch-checkpoint').read_bytes() == b'0\n1\n1 0\n'
    assert json.loads((node.metadata_directory / 'quorum-state').read_bytes())['leaderEpoch'] == 1


def test_a_directory_that_exists_and_holds_a_lock_is_formatted_too(node: ControllerDirectory) -> None:
    node.log_dir.mkdir()
    (node.log_dir / '.lock').touch()
    assert node.open().image.metadata_version == 30


@pytest.mark.parametrize('name', ['t-0/', 'note.txt', 'bootstrap.checkpoint', '__cluster_metadata-0/quorum-state'])
def test_a_directory_with_anything_else_and_no_meta_properties_is_refused(node: ControllerDirectory, name: str) -> None:
    path = node.log_dir / name
    path.parent.mkdir(parents=True)
    path.mkdir() if name.endswith('/') else path.touch()
    node.assert_refused(DirectoryRefusedError, 'expected an empty directory')


def test_formatting_that_fails_anywhere_can_be_repeated(tmp_path) -> None:
    counting = CountdownFileSystem()
    format_directory(counting, str(tmp_path / 'whole'), 1, 0)
    for allowed in range(counting.changes):
        for torn_percent in (0, 50, 100):
            log_dir = tmp_path / f'{allowed}-{torn_percent}'
            fs = CountdownFileSystem(allowed, torn_percent)
            with pytest.raises(OSError):
                format_directory(fs, str(log_dir), 1, 0)
            node = ControllerDirectory(log_dir)
            assert node.open().image.metadata_version == 30
            read_log(log_dir)
            if not fs.tore_a_write:
                break


def test_a_cluster_id_may_be_given(tmp_path) -> None:
    format_directory(FileSystem(), str(tmp_path / 'data'), 1, 0, cluster_id='mine')
    assert ControllerDirectory(tmp_path / 'data').open().cluster_id == 'mine'


def test_meta_properties_come_back(tmp_path) -> None:
    properties = MetaProperties('cluster', 7, random_uuid())
    write_meta_properties(FileSystem(), str(tmp_path), properties)
    assert read_meta_properties(FileSystem(), str(tmp_path)) == properties


def test_meta_properties_of_java_are_read(tmp_path) -> None:
    (tmp_path / 'meta.properties').write_text(
        '#\n#a date\nnode.id=1\ndirectory.id=DVRrya8aQdOrzyV1LroyUw\nversion=1\ncluster.id=a\\=b\n'
    )
    assert read_meta_properties(FileSystem(), str(tmp_path)) == MetaProperties(
        'a=b', 1, parse_uuid('DVRrya8aQdOrzyV1LroyUw')
    )


@pytest.mark.parametrize(
    ('name', 'value', 'match'),
    [
        ('version', '0', 'found version 0, expected 1'),
        ('version', '2', 'found version 2'),
        ('version', None, 'found version None'),
        ('node.id', '2', 'found node.id 2 in meta.properties, expected 1'),
        ('node.id', None, 'found no node.id'),
        ('node.id', 'x', 'invalid'),
        ('cluster.id', None, 'found no cluster.id'),
        ('directory.id', None, 'found no directory.id'),
        ('directory.id', 'short', "found 'short'|Invalid"),
        ('directory.id', 'A' * 21 + 'Q', 'reserved'),
        ('directory.id', 'EBESExQVFhcYGRobHB0eHw', 'expected 1 in directory EBESExQVFhcYGRobHB0eHw alone'),
    ],
)
def test_meta_properties_that_do_not_fit_are_refused(
    stopped: ControllerDirectory, name: str, value: str | None, match: str
) -> None:
    set_property(stopped, name, value)
    stopped.assert_refused(DirectoryRefusedError, match)


@pytest.mark.parametrize(
    ('records', 'match'),
    [
        (
            [FeatureLevelRecord(name='metadata.version', feature_level=34)],
            'metadata.version at level 34, expected 7 to 33',
        ),
        (
            [FeatureLevelRecord(name='share.version', feature_level=3)],
            'share.version at level 3, expected 0 to 2',
        ),
        ([FeatureLevelRecord(name='unheard.of', feature_level=1)], 'unheard.of at level 1'),
        (
            [RegisterBrokerRecord(broker_id=2, broker_epoch=1)],
            'found broker 2 registered.* kafka-cluster unregister --id 2',
        ),
        (
            [RegisterBrokerRecord(broker_id=1, broker_epoch=1, log_dirs=[b'1' * 16, b'2' * 16])],
            'found 2 log directories .* kafka-reassign-partitions',
        ),
        (
            [
                TopicRecord(name='u', topic_id=b'1' * 16),
                PartitionRecord(partition_id=1, topic_id=b'1' * 16, replicas=[1]),
            ],
            'found partition 1, expected 0',
        ),
        (
            [
                TopicRecord(name='u', topic_id=b'1' * 16),
                PartitionRecord(partition_id=0, topic_id=b'1' * 16, replicas=[1, 2]),
            ],
            r'replicas \[1, 2\].* kafka-reassign-partitions',
        ),
        (
            [
                TopicRecord(name='u', topic_id=b'1' * 16),
                PartitionRecord(partition_id=0, topic_id=b'1' * 16, replicas=[1], adding_replicas=[2]),
            ],
            'no reassignment',
        ),
    ],
)
def test_metadata_that_speaks_of_more_than_this_node_knows_is_refused(
    stopped: ControllerDirectory, records: list, match: str
) -> None:
    stopped.append_records(*records)
    stopped.assert_refused(DirectoryRefusedError, match)


def voter(voter_id: int, directory_id: bytes) -> VotersRecord.Voter:
    return VotersRecord.Voter(
        voter_id=voter_id,
        voter_directory_id=directory_id,
        kraft_version_feature=VotersRecord.KRaftVersionFeature(max_supported_version=1),
    )


def own_directory(node: ControllerDirectory) -> bytes:
    return read_meta_properties(FileSystem(), str(node.log_dir)).directory_id


def leader_change(leader_id: int, *voter_ids: int) -> LeaderChangeMessage:
    voters = [LeaderChangeMessage.Voter(voter_id=voter_id) for voter_id in voter_ids]
    return LeaderChangeMessage(leader_id=leader_id, voters=voters, granting_voters=voters)


def control_types(node: ControllerDirectory, epoch: int) -> list[int]:
    """Return the types of the control records of an epoch: 2 is LeaderChange, 6 is KRaftVoters."""
    return [
        entry.control_type
        for entry in read_log(node.log_dir)
        if entry.epoch == epoch and entry.control_type is not None
    ]


def test_two_voters_are_refused_with_the_command_that_removes_one(stopped: ControllerDirectory) -> None:
    stopped.append_records(VotersRecord(voters=[voter(1, own_directory(stopped)), voter(2, b'2' * 16)]), control=True)
    stopped.assert_refused(
        DirectoryRefusedError, 'found the voters 1 in directory .* kafka-metadata-quorum remove-controller'
    )


def test_the_directory_of_a_node_that_was_removed_is_refused(stopped: ControllerDirectory) -> None:
    stopped.append_records(VotersRecord(voters=[voter(2, b'2' * 16)]), control=True)
    stopped.assert_refused(DirectoryRefusedError, 'found the voters 2 in directory .* expected 1 in directory')


def test_a_voter_with_another_directory_of_this_node_is_refused(stopped: ControllerDirectory) -> None:
    stopped.append_records(VotersRecord(voters=[voter(1, b'2' * 16)]), control=True)
    stopped.assert_refused(DirectoryRefusedError, 'found the voters 1 in directory MjIy.* expected 1 in .* alone$')


def test_kraft_version_1_without_voters_is_refused(unpack) -> None:
    node = unpack('kafka-4.3-static-voter')
    node.append_records(KRaftVersionRecord(kraft_version=1), control=True)
    node.assert_refused(DirectoryRefusedError, 'found the voters none; expected 1 in directory')


def test_two_controllers_of_a_static_quorum_are_refused(unpack) -> None:
    node = unpack('kafka-4.3-static-voter')
    node.append_records(leader_change(1, 1, 2), control=True)
    node.assert_refused(
        DirectoryRefusedError,
        r'controllers \[1, 2\], expected \[1\].* kafka-features upgrade --feature kraft.version=1',
    )


def shrink(node: ControllerDirectory) -> int:
    """Append what a cluster of three nodes leaves when it shrinks to node 1. Return the epoch.

    Node 2 was elected by all three, and then removed itself and node 3.
    """
    epoch = node.next_place()['epoch'] + 1
    own = own_directory(node)
    node.append_records(leader_change(2, 1, 2, 3), control=True, epoch=epoch)
    for voters in ([voter(1, own), voter(2, b'2' * 16)], [voter(1, own)]):
        node.append_records(VotersRecord(voters=voters), control=True)
    return epoch


def test_a_cluster_that_shrank_to_this_node_opens_whatever_its_last_election_lists(
    stopped: ControllerDirectory,
) -> None:
    """The voters of the last election stayed in the log of a cluster that shrank. kbroker refused such a directory."""
    epoch = shrink(stopped)
    controller = stopped.start()
    assert controller.image.leader_change_voters == (1,)
    stopped.stop(controller)
    assert control_types(stopped, epoch + 1) == [2]
    assert stopped.open().image.voters[0].voter_directory_id == own_directory(stopped)


def test_voters_in_a_snapshot_decide_over_an_election_after_it(stopped: ControllerDirectory) -> None:
    shrink(stopped)
    image = MetadataImage()
    QuorumLog(FileSystem(), str(stopped.log_dir), 1 << 30).load(image)
    place = stopped.next_place()
    path = stopped.metadata_directory / f'{place["base_offset"]:020}-{place["epoch"]:010}.checkpoint'
    path.write_bytes(b''.join(encoded_snapshot(image, place['epoch'], 0)))
    stopped.append_records(leader_change(2, 1, 2, 3), control=True, epoch=place['epoch'] + 1)
    assert stopped.start().image.leader_change_voters == (1,)
    assert control_types(stopped, place['epoch'] + 2) == [2]


def test_a_static_quorum_that_became_dynamic_is_opened(unpack) -> None:
    """`kafka-features upgrade --feature kraft.version=1` writes the two control records in the middle of the log."""
    node = unpack('kafka-4.3-static-voter')
    records = KRaftVersionRecord(kraft_version=1), VotersRecord(voters=[voter(1, own_directory(node))])
    node.append_records(*records, control=True)
    node.start()
    assert json.loads((node.metadata_directory / 'quorum-state').read_bytes())['data_version'] == 1
    assert control_types(node, node.next_place()['epoch']) == [2]


def test_a_kraft_version_that_is_not_known_is_refused(stopped: ControllerDirectory) -> None:
    stopped.append_records(KRaftVersionRecord(kraft_version=2), control=True)
    stopped.assert_refused(DirectoryRefusedError, 'kraft.version at level 2')


def test_the_voters_of_a_format_snapshot_are_checked_before_the_first_start(unpack) -> None:
    node = unpack('kafka-4.4-freshly-formatted')
    set_property(node, 'directory.id', 'EBESExQVFhcYGRobHB0eHw')
    node.assert_refused(DirectoryRefusedError, 'expected 1 in directory EBESExQVFhcYGRobHB0eHw alone')


@pytest.mark.parametrize(
    ('features', 'match'),
    [
        ({'metadata.version': 34}, 'metadata.version at level 34'),
        ({'metadata.version': 30, 'unheard.of': 1}, 'unheard.of at level 1'),
        ({'group.version': 1}, 'no level of metadata.version'),
    ],
)
def test_features_of_a_format_snapshot_are_checked_before_the_first_start(unpack, features: dict, match: str) -> None:
    node = unpack('kafka-4.4-freshly-formatted')
    format_with(node, features)
    node.assert_refused(DirectoryRefusedError, match)


def test_a_directory_with_the_levels_of_kafka_4_4_is_opened_and_keeps_them(unpack) -> None:
    node = unpack('kafka-4.4-freshly-formatted')
    format_with(node, RELEASES['4.4'])
    controller = node.start()
    assert controller.image.features == RELEASES['4.4']
    create_topic(controller, 't', 1)
    node.stop(controller)
    again = node.start()
    assert again.image.features == RELEASES['4.4'] and 't' in again.image.topics


def format_with(node: ControllerDirectory, features: dict[str, int]) -> None:
    """Replace the snapshot that formatting wrote by one with the levels `features`."""
    (snapshot,) = node.metadata_directory.glob('*.checkpoint')
    properties = read_meta_properties(FileSystem(), str(node.log_dir))
    snapshot.chmod(0o600)
    snapshot.write_bytes(
        encode_format_snapshot(
            [KRaftVersionRecord(kraft_version=1), VotersRecord(voters=[voter(1, properties.directory_id)])],
            [FeatureLevelRecord(name=name, feature_level=level) for name, level in features.items()],
            metadata_version=30,
            timestamp_ms=0,
        )
    )


def test_features_of_a_bootstrap_file_win_over_those_of_the_format_snapshot(unpack) -> None:
    older, node = unpack('kafka-4.3-static-voter'), unpack('kafka-4.4-freshly-formatted')
    bootstrap = (older.log_dir / 'bootstrap.checkpoint').read_bytes()
    (node.log_dir / 'bootstrap.checkpoint').write_bytes(bootstrap)
    node.open()
    written = [entry for entry in read_log(node.log_dir) if entry.control_type is None]
    assert all(entry.value in bootstrap for entry in written if entry.value[1] == 12)
    assert record_kinds(written)[0] == (23, 0) and record_kinds(written)[-1] == (24, 0)


def test_a_new_log_gets_the_static_min_insync_replicas(tmp_path) -> None:
    node = ControllerDirectory(tmp_path / 'data', min_insync_replicas='2')
    assert node.open().image.configs[4, ''] == {'min.insync.replicas': '2'}


def test_generated_uuids_do_not_look_like_options(monkeypatch: pytest.MonkeyPatch) -> None:
    values = iter([uuid.UUID(bytes=b'\xf8' + bytes(15)), uuid.UUID(bytes=b'\x01' * 16)])
    monkeypatch.setattr(directory_module.uuid, 'uuid4', lambda: next(values))
    assert random_uuid() == b'\x01' * 16


def test_uuids_come_back() -> None:
    assert parse_uuid(format_uuid(b'\xff' * 16)) == b'\xff' * 16
    for text in ('', 'A' * 21, 'A' * 23, 'A' * 21 + 'B', 'é' * 22):
        with pytest.raises(ValueError):
            parse_uuid(text)


def test_opening_that_fails_anywhere_can_be_repeated(tmp_path, unpack) -> None:
    """In turn, each write from formatting to the first election fails. The directory then still opens, and is
    complete."""
    counting = CountdownFileSystem()
    ControllerDirectory(tmp_path / 'whole').start(counting)
    for allowed in range(counting.changes):
        for torn_percent in (0, 50, 100):
            node = ControllerDirectory(tmp_path / f'{allowed}-{torn_percent}')
            fs = CountdownFileSystem(allowed, torn_percent)
            with pytest.raises((OSError, KafkaError)):
                node.start(fs)
            controller = node.start()
            assert controller.image.metadata_version == 30 and controller.image.kraft_version == 1
            assert not controller.image.brokers[1].fenced
            read_log(node.log_dir)
            if not fs.tore_a_write:
                break
