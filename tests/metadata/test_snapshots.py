"""Snapshots of the metadata: their content, when the controller writes one, and which old segments and snapshots it
then removes."""

from __future__ import annotations

import errno
import os
import pathlib
import random
from typing import Any

import pytest
from controller_directory import (
    DIRECTORIES,
    ControllerDirectory,
    allocate_producer_ids,
    alter_configs,
    create_topic,
    create_topics,
    delete_topic,
)
from support.disk.faulty_file_systems import FailingFileSystem, FreezingFileSystem
from support.disk.held_disk import HeldDisk
from support.worlds.stepwise_work import StepwiseWork

from kbroker.base.long_work import run_to_end
from kbroker.log.fs import FileSystem
from kbroker.metadata.batches import decode_batch
from kbroker.metadata.controller import MetadataController
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.quorum_log import QuorumLog
from kbroker.metadata.snapshot_writer import Limits, SnapshotWriter, encoded_snapshot
from kbroker.metadata.snapshots import read_snapshot
from kbroker.metadata.topic_operations import NewTopic
from kbroker.protocol.messages import (
    AccessControlEntryRecord,
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DelegationTokenRecord,
    FeatureLevelRecord,
    KRaftVersionRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    TopicRecord,
    UserScramCredentialRecord,
    VotersRecord,
)
from kbroker.record.batch import iter_batches

pytestmark = pytest.mark.usefixtures('any_group_config')

TOPIC_ID, DIRECTORY_ID = b'topic id 16 byte', b'dir id 16 bytes.'
PLACE = {'cluster_id', 'node_id', 'metadata_offset', 'metadata_epoch', 'timestamp_ms'}
"""The fields of an image that no record of a snapshot restores: they are in its name or header, or are not in the
log."""
NOT_IN_A_SNAPSHOT = {'leader_change_voters', 'open_transaction', '_changing'}
NONE_DUE = Limits(1 << 40, 0, 1 << 40, -1)


def content(image: MetadataImage) -> dict[str, Any]:
    """Return the parts of an image that a snapshot has to restore."""
    return {
        name: value
        for name, value in vars(image).items()
        if name not in PLACE | NOT_IN_A_SNAPSHOT
    }


def restored(image: MetadataImage) -> MetadataImage:
    """Encode a snapshot of the image, and return the image to which the snapshot replays."""
    found = MetadataImage()
    for header, batch in iter_batches(b''.join(encoded_snapshot(image, 3, 1000))):
        found.replay(decode_batch(header, batch), header.last_offset, 3, 1000)
    return found


def quota(remove: bool = False, **entity: str | None) -> ClientQuotaRecord:
    parts = [ClientQuotaRecord.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()]
    return ClientQuotaRecord(entity=parts, key='producer_byte_rate', value=0.0 if remove else 1024.5, remove=remove)


@pytest.fixture
def full() -> MetadataImage:
    """Return an image with at least one entry of each kind."""
    endpoint = {'name': 'PLAINTEXT', 'host': 'localhost', 'port': 9092}
    records = [
        KRaftVersionRecord(kraft_version=1),
        VotersRecord(voters=[VotersRecord.Voter(voter_id=1, voter_directory_id=DIRECTORY_ID)]),
        FeatureLevelRecord(name='metadata.version', feature_level=30),
        FeatureLevelRecord(name='group.version', feature_level=1),
        RegisterBrokerRecord(
            broker_id=1,
            incarnation_id=b'1' * 16,
            broker_epoch=5,
            fenced=True,
            rack='r',
            end_points=[RegisterBrokerRecord.BrokerEndpoint(**endpoint, security_protocol=1)],
            features=[RegisterBrokerRecord.BrokerFeature(name='x', min_supported_version=0, max_supported_version=3)],
            log_dirs=[DIRECTORY_ID],
            cordoned_log_dirs=[],
        ),
        BrokerRegistrationChangeRecord(broker_id=1, broker_epoch=5, in_controlled_shutdown=1),
        RegisterBrokerRecord(broker_id=2, incarnation_id=b'2' * 16, broker_epoch=9, fenced=False),
        RegisterControllerRecord(controller_id=1, incarnation_id=b'3' * 16),
        TopicRecord(name='a.b', topic_id=TOPIC_ID),
        *(
            PartitionRecord(
                partition_id=index,
                topic_id=TOPIC_ID,
                replicas=[1, 2],
                isr=[1],
                removing_replicas=[2],
                adding_replicas=[3],
                leader=1,
                leader_epoch=4,
                partition_epoch=6,
                leader_recovery_state=1,
                directories=[DIRECTORY_ID, bytes(16)],
            )
            for index in range(300)
        ),
        PartitionChangeRecord(
            partition_id=7, topic_id=TOPIC_ID, leader=-1, isr=[], eligible_leader_replicas=[1], last_known_elr=[2]
        ),
        TopicRecord(name='empty', topic_id=b'?' * 16),
        ConfigRecord(resource_type=2, resource_name='a.b', name='retention.ms', value='5'),
        ConfigRecord(resource_type=4, resource_name='', name='min.insync.replicas', value='1'),
        ConfigRecord(resource_type=32, resource_name='g', name='k', value='é' * 10_000),
        quota(user='alice'),
        quota(user='alice', **{'client-id': None}),
        quota(user=None),
        ProducerIdsRecord(broker_id=1, broker_epoch=5, next_producer_id=7000),
        AccessControlEntryRecord(
            id=b'4' * 16,
            resource_type=2,
            resource_name='a',
            pattern_type=4,
            principal='User:a',
            host='*',
            operation=3,
            permission_type=3,
        ),
        UserScramCredentialRecord(
            name='alice', mechanism=1, salt=b'salt', stored_key=b'k' * 32, server_key=b's' * 32, iterations=4096
        ),
        DelegationTokenRecord(
            owner='User:a',
            requester='User:b',
            renewers=['User:c'],
            issue_timestamp=1,
            max_timestamp=3,
            expiration_timestamp=2,
            token_id='t',
        ),
    ]
    image = MetadataImage()
    image.replay(records, 400, 3, 1000)
    return image


def test_a_snapshot_restores_all_of_an_image(full: MetadataImage) -> None:
    assert content(restored(full)) == content(full)
    empty = content(MetadataImage())
    same = {name for name, value in content(full).items() if value == empty[name]}
    assert not same, f'the test says nothing about {same}'


def test_a_snapshot_without_voters_or_producer_ids_has_no_records_of_them() -> None:
    image = MetadataImage()
    image.replay([FeatureLevelRecord(name='metadata.version', feature_level=7)], 1, 1, 0)
    batches = [decode_batch(*found) for found in iter_batches(b''.join(encoded_snapshot(image, 1, 1000)))]
    assert [[type(record).__name__ for record in records] for records in batches] == [
        ['SnapshotHeaderRecord'],
        ['FeatureLevelRecord'],
        ['SnapshotFooterRecord'],
    ]


@pytest.mark.parametrize('name', sorted(path.stem for path in DIRECTORIES.glob('*.tgz')))
def test_a_snapshot_restores_what_kafka_wrote(unpack, name: str) -> None:
    node = unpack(name)
    image = MetadataImage()
    QuorumLog(FileSystem(), str(node.log_dir), 1 << 30).load(image)
    if image.metadata_version:
        assert content(restored(image)) == content(image)


# -- writing


class Snapshots:
    """A controller that writes snapshots. The test runs the long work in which it writes them."""

    def __init__(self, node: ControllerDirectory, limits: Limits, fs: FileSystem | None = None,
                 disk: HeldDisk | None = None):
        self.node = node
        self.fs = fs or FileSystem()
        self.disk = disk or HeldDisk(is_held=False)
        self.controller = node.start(self.fs)
        self.long_work = StepwiseWork()
        self.writer = SnapshotWriter(
            self.controller, limits, self.fs, node.clock, self.long_work, self.disk.sync, lambda job, done: done(job())
        )
        self.writer.start()

    @property
    def names(self) -> list[str]:
        """Return the names of the finished snapshots, without the snapshot that formatting wrote."""
        return sorted(path.name for path in self.node.metadata_directory.glob('*.checkpoint'))[1:]

    def write(self) -> None:
        self.long_work.finish()

    @property
    def bases(self) -> list[int]:
        return sorted(int(path.stem) for path in self.node.metadata_directory.glob('*.log'))


def loaded(node: ControllerDirectory) -> tuple[MetadataImage, QuorumLog]:
    image = MetadataImage()
    log = QuorumLog(FileSystem(), str(node.log_dir), 1 << 30)
    log.load(image)
    return image, log


def change_everything(controller: MetadataController, start: int = 0) -> None:
    for number in range(start, start + 4):
        create_topics(controller, [NewTopic(f't{number}', 3, {'retention.ms': '7'})])
        alter_configs(controller, 32, f'g{number}', {'k': 'v'})
        allocate_producer_ids(controller)
        run_to_end(controller.commits.write([quota(user=f'user{number}')]))
    delete_topic(controller, f't{start + 1}')
    alter_configs(controller, 32, f'g{start + 2}', {'k': None})
    run_to_end(controller.commits.write([quota(user=f'user{start}', remove=True)]))


def test_a_snapshot_and_the_log_behind_it_lead_where_the_whole_log_leads(node: ControllerDirectory) -> None:
    snapshots = Snapshots(node, NONE_DUE._replace(between_bytes=3000))
    change_everything(snapshots.controller)
    snapshots.write()
    assert len(snapshots.names) == 1
    change_everything(snapshots.controller, 10)
    image, log = loaded(node)
    assert (image.metadata_offset, image.metadata_epoch) == (snapshots.controller.end_offset - 1, 1)
    for name in snapshots.names:
        (node.metadata_directory / name).unlink()
    whole, whole_log = loaded(node)
    assert content(image) == content(whole) == content(snapshots.controller.image)
    assert log.removed_topics == whole_log.removed_topics and len(log.removed_topics) == 2
    assert log.is_complete and 0 < log.uncovered_bytes < whole_log.uncovered_bytes


def test_a_snapshot_is_due_after_so_many_bytes_of_records(node: ControllerDirectory) -> None:
    snapshots = Snapshots(node, NONE_DUE._replace(between_bytes=20_000))
    written = 0
    for number in range(200):
        alter_configs(snapshots.controller, 32, f'g{number}', {'k': 'x' * 400})
        snapshots.write()
        written += 400
    assert 3 <= len(snapshots.names) <= 5
    # After each snapshot, the log begins a segment at the end offset of the snapshot.
    assert set(snapshots.bases[1:]) <= {int(name.split('-')[0]) for name in snapshots.names}


def test_a_restart_counts_the_bytes_behind_the_snapshot(node: ControllerDirectory) -> None:
    snapshots = Snapshots(node, NONE_DUE)
    alter_configs(snapshots.controller, 32, 'g', {'k': 'x' * 5000})
    again = Snapshots(node, NONE_DUE._replace(between_bytes=5000))
    again.write()
    assert len(again.names) == 1


def test_a_snapshot_is_due_with_the_first_change_after_the_interval(node: ControllerDirectory) -> None:
    snapshots = Snapshots(node, NONE_DUE._replace(interval_ms=60_000))
    create_topic(snapshots.controller, 'a', 1)
    node.clock.advance(59_999)
    create_topic(snapshots.controller, 'b', 1)
    snapshots.write()
    assert not snapshots.names
    node.clock.advance(1)
    create_topic(snapshots.controller, 'c', 1)
    snapshots.write()
    assert snapshots.names == [f'{snapshots.controller.end_offset:020}-{1:010}.checkpoint']
    create_topic(snapshots.controller, 'd', 1)
    snapshots.write()
    assert len(snapshots.names) == 1


def test_changes_during_the_writing_of_a_snapshot_are_behind_it(node: ControllerDirectory) -> None:
    disk = HeldDisk(is_held=True)
    snapshots = Snapshots(node, NONE_DUE._replace(interval_ms=1), disk=disk)
    create_topics(snapshots.controller, [NewTopic('before', 2000)])
    node.clock.advance(1)
    create_topic(snapshots.controller, 'due', 1)
    end_offset = snapshots.controller.end_offset
    snapshots.long_work.step()
    delete_topic(snapshots.controller, 'before')
    create_topic(snapshots.controller, 'after', 1)
    snapshots.write()
    assert not snapshots.names and len(disk.jobs) == 1  # it gets its name after its sync
    disk.finish()
    snapshots.write()
    disk.finish()
    snapshots.write()
    assert snapshots.names == [f'{end_offset:020}-{1:010}.checkpoint']
    (path,) = (node.metadata_directory / name for name in snapshots.names)
    topics = {record.name for _, records in read_snapshot(FileSystem(), str(path)) for record in records
              if isinstance(record, TopicRecord)}
    assert topics == {'before', 'due'}
    assert content(loaded(node)[0]) == content(snapshots.controller.image)
    snapshots.long_work.assert_parts_were_short()


def test_a_snapshot_that_is_given_up_by_a_stop_leaves_nothing_that_counts(node: ControllerDirectory) -> None:
    snapshots = Snapshots(node, NONE_DUE._replace(between_bytes=3000))
    create_topics(snapshots.controller, [NewTopic('t', 2000)])
    snapshots.long_work.step()
    snapshots.writer.stop()
    node.stop(snapshots.controller)
    snapshots.write()
    assert not snapshots.names and list(node.metadata_directory.glob('*.part'))
    again = Snapshots(node, NONE_DUE)
    assert not list(node.metadata_directory.glob('*.part'))
    assert len(again.controller.image.topics['t'].partitions) == 2000


# -- removing


@pytest.fixture
def trimmed(node: ControllerDirectory) -> Snapshots:
    """Return the snapshots of a controller whose log begins above offset 0."""
    snapshots = Snapshots(node, Limits(3000, 0, 8000, -1))
    for start in range(0, 200, 10):
        change_everything(snapshots.controller, start)
        snapshots.write()
    assert min(snapshots.bases) > 0
    return snapshots


def test_old_segments_and_snapshots_are_removed_and_the_rest_says_the_same(trimmed: Snapshots) -> None:
    node, controller = trimmed.node, trimmed.controller
    files = [path for pattern in ('*.log', '*.checkpoint') for path in node.metadata_directory.glob(pattern)]
    newest = max(trimmed.names)
    behind = controller.end_offset - int(newest.split('-')[0])
    assert sum(path.stat().st_size for path in files) < 8000 + (node.metadata_directory / newest).stat().st_size + 4000
    assert behind < 100
    image, log = loaded(node)
    assert content(image) == content(controller.image)
    assert log.start_offset == min(trimmed.bases) == controller.log.start_offset and not log.is_complete
    assert (node.metadata_directory / f'{0:020}-{0:010}.checkpoint').exists()


def test_a_trimmed_log_goes_on_after_restarts(trimmed: Snapshots) -> None:
    node = trimmed.node
    topics = set(trimmed.controller.image.topics)
    for number in range(3):
        again = Snapshots(node, Limits(3000, 0, 8000, -1))
        change_everything(again.controller, 1000 + 10 * number)
        again.write()
        if number != 1:
            node.stop(again.controller)
    image, _ = loaded(node)
    assert content(image) == content(again.controller.image) and set(image.topics) > topics
    first_epoch, first_offset = (node.metadata_directory / 'leader-epoch-checkpoint').read_text().split('\n')[2].split()
    assert (int(first_epoch), int(first_offset)) >= (1, min(trimmed.bases))


def test_snapshots_are_removed_by_age_while_there_is_a_newer_one(node: ControllerDirectory) -> None:
    snapshots = Snapshots(node, NONE_DUE._replace(between_bytes=2000, age_ms=60_000))

    def snapshot_now(start: int) -> None:
        known = set(node.metadata_directory.glob('*.checkpoint')) if start else set()
        change_everything(snapshots.controller, start)
        snapshots.write()
        for path in set(node.metadata_directory.glob('*.checkpoint')) - known:
            os.utime(path, (0, node.clock.wall_ms() / 1000))

    for start in (0, 10, 20):
        snapshot_now(start)
        node.clock.advance(20_000)
    assert len(snapshots.names) == 3 and min(snapshots.bases) == 0
    second = snapshots.names[1]
    snapshot_now(30)
    assert len(snapshots.names) == 4  # the oldest is as old as the limit, and no older
    node.clock.advance(1000)
    snapshot_now(40)
    assert len(snapshots.names) == 4
    assert snapshots.names[0] == second and min(snapshots.bases) == int(second.split('-')[0])
    assert content(loaded(node)[0]) == content(snapshots.controller.image)


def test_files_that_kafka_keeps_beside_a_segment_go_with_it(node: ControllerDirectory) -> None:
    for suffix in ('index', 'timeindex', 'snapshot'):
        node.open()
        (node.metadata_directory / f'{0:020}.{suffix}').write_bytes(b'')
    snapshots = Snapshots(node, Limits(3000, 0, 0, -1))
    for start in (0, 10):
        change_everything(snapshots.controller, start)
        snapshots.write()
    assert not list(node.metadata_directory.glob(f'{0:020}.*'))


# -- failures


def test_a_snapshot_that_cannot_be_written_is_tried_again_later(node: ControllerDirectory, caplog) -> None:
    failures = iter([True] + [False] * 1000)
    fs = FailingFileSystem(
        lambda operation, path: errno.ENOSPC
        if operation == 'write' and path.endswith('.part') and next(failures) else None
    )
    snapshots = Snapshots(node, NONE_DUE._replace(between_bytes=3000), fs)
    change_everything(snapshots.controller)
    snapshots.write()
    assert not snapshots.names and not list(node.metadata_directory.glob('*.part'))
    assert 'cannot write the snapshot' in caplog.text
    change_everything(snapshots.controller, 10)
    snapshots.write()
    assert len(snapshots.names) == 1 and content(loaded(node)[0]) == content(snapshots.controller.image)




@pytest.mark.parametrize('seed', range(25))
def test_a_power_cut_at_any_moment_leaves_a_log_that_says_the_same(tmp_path: pathlib.Path, seed: int) -> None:
    """The power is cut before a sync of the log, of a snapshot or of the directory, or between two removals."""
    rng = random.Random(seed)
    (tmp_path / 'root').mkdir()
    moments: list[tuple[str, set[str]]] = []
    images: list[MetadataImage] = []
    snapshots: Snapshots | None = None

    def cut(change: str, _path: str) -> None:
        if snapshots is None or change not in ('sync', 'unlink') or rng.random() > 0.15:
            return
        destination = tmp_path / f'after-{len(moments)}'
        fs.crash(destination, rng)
        moments.append((destination.name, set(snapshots.controller.image.topics)))
        images.append(snapshots.controller.image)

    fs = FreezingFileSystem(tmp_path / 'root', cut)
    snapshots = Snapshots(ControllerDirectory(tmp_path / 'root' / 'data'), Limits(2000, 0, 5000, -1), fs)
    for start in range(0, 80, 10):
        change_everything(snapshots.controller, start)
        snapshots.write()
    assert len(moments) > 10
    for (name, topics), image in zip(moments, images, strict=True):
        after, _ = loaded(ControllerDirectory(tmp_path / name / 'data'))
        assert after.metadata_offset >= image.metadata_offset
        assert set(after.topics) >= topics or after.metadata_offset > image.metadata_offset
        if after.metadata_offset == image.metadata_offset:
            assert content(after) == content(image)
