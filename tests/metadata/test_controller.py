"""The operations of the controller. Their effect is checked in its image, in its log and after a restart."""

from __future__ import annotations

import pytest
from controller_directory import (
    ControllerDirectory,
    CountdownFileSystem,
    allocate_producer_ids,
    alter_configs,
    create_partitions,
    create_topic,
    create_topics,
    delete_topic,
    delete_topics,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.kraft import partition_states, read_log, record_kinds

from kbroker.base.errors import CorruptLogError, ErrorCode, KafkaError
from kbroker.log.fs import FileSystem
from kbroker.metadata.batches import decode_batch, encode_control, encode_data
from kbroker.metadata.controller import MetadataController
from kbroker.metadata.image import MetadataImage, ResourceType
from kbroker.metadata.quorum_log import QuorumLog
from kbroker.metadata.topic_operations import NewTopic
from kbroker.protocol.messages import ConfigRecord, NoOpRecord, RemoveTopicRecord
from kbroker.record.batch import iter_batches
from kbroker.settings.listeners import Listener

TOPIC, PARTITION, CONFIG, PARTITION_CHANGE, REMOVE_TOPIC, PRODUCER_IDS, REGISTRATION_CHANGE, CLEAR_ELR = (
    2,
    3,
    4,
    5,
    9,
    15,
    17,
    28,
)


@pytest.fixture
def controller(node: ControllerDirectory) -> MetadataController:
    return node.start()


def state(image: MetadataImage) -> tuple:
    """Return the parts of an image that a replay must restore, without the position in the log."""
    return (image.topics, image.configs, image.features, image.next_producer_id, image.brokers)


def fails(code: ErrorCode, operation, *arguments, **options) -> str:
    with pytest.raises(KafkaError) as failure:
        operation(*arguments, **options)
    assert failure.value.code is code
    return str(failure.value)


class Written:
    """The records that were appended to the log since this object was made."""

    def __init__(self, node: ControllerDirectory):
        self.node, self.before = node, len(read_log(node.log_dir))

    @property
    def kinds(self) -> list[int]:
        return [api_key for api_key, _ in record_kinds(read_log(self.node.log_dir)[self.before :])]

    @property
    def batches(self) -> int:
        return len({entry.batch_offset for entry in read_log(self.node.log_dir)[self.before :]})


# -- starts and stops


def test_each_start_leads_a_later_epoch_and_elects_a_leader_for_every_partition(node: ControllerDirectory) -> None:
    epochs, broker_epochs, leader_epochs = [], [], []
    for start in range(4):
        controller = node.start()
        if start == 0:
            create_topics(controller, [NewTopic('a', 2), NewTopic('b', 1)])
        epochs.append(controller.image.metadata_epoch)
        broker_epochs.append(controller.broker_epoch)
        leader_epochs.append(
            [partition.leader_epoch for topic in controller.image.topics.values() for partition in topic.partitions]
        )
        if start != 2:
            node.stop(controller)
    assert epochs == [1, 2, 3, 4]
    assert broker_epochs == sorted(set(broker_epochs))
    assert leader_epochs == [[0] * 3, [2] * 3, [4] * 3, [5] * 3]
    assert set(partition_states(read_log(node.log_dir)).values()) == {(-1, 6, 6)}


def test_a_start_registers_with_listeners_features_and_a_new_incarnation(node: ControllerDirectory) -> None:
    incarnations = set()
    for _ in range(2):
        controller = node.open()
        controller.register([Listener('PLAINTEXT', 'example.org', 9094)])
        broker = controller.image.brokers[1]
        incarnations.add(broker.incarnation_id)
        (end_point,) = broker.end_points
        assert (end_point.name, end_point.host, end_point.port, end_point.security_protocol) == (
            'PLAINTEXT',
            'example.org',
            9094,
            0,
        )
        assert {feature.name for feature in broker.features} >= set(controller.image.features)
        assert (broker.fenced, broker.log_dirs, broker.broker_epoch) == (
            False,
            (controller.directory_id,),
            controller.broker_epoch,
        )
    assert len(incarnations) == 2


def test_a_stop_resigns_from_every_partition_then_fences(
    node: ControllerDirectory, controller: MetadataController
) -> None:
    create_topic(controller, 't', 2)
    written = Written(node)
    controller.begin_shutdown()
    assert written.kinds == [REGISTRATION_CHANGE, PARTITION_CHANGE, PARTITION_CHANGE] and written.batches == 1
    partition = controller.image.topics['t'].partitions[0]
    assert (partition.leader, partition.isr, partition.eligible_leader_replicas, partition.last_known_elr) == (
        -1,
        (),
        (1,),
        (1,),
    )
    assert controller.finish_shutdown() == controller.broker_epoch
    assert written.kinds[3:] == [REGISTRATION_CHANGE]
    assert controller.image.brokers[1].fenced and controller.image.brokers[1].in_controlled_shutdown
    fails(ErrorCode.KAFKA_STORAGE_ERROR, create_topic, controller, 'u', 1)


def test_a_stop_without_partitions_only_fences(node: ControllerDirectory, controller: MetadataController) -> None:
    written = Written(node)
    node.stop(controller)
    assert written.kinds == [REGISTRATION_CHANGE]


def test_without_eligible_leader_replicas_the_in_sync_set_survives_a_stop(unpack) -> None:
    node = unpack('kafka-4.4-freshly-formatted')
    (snapshot,) = node.metadata_directory.glob('*.checkpoint')
    data = snapshot.read_bytes()
    (_, control), (header, features), (footer_header, footer) = iter_batches(data)
    kept = [record for record in decode_batch(header, features) if record.name != 'eligible.leader.replicas.version']
    snapshot.chmod(0o600)
    snapshot.write_bytes(
        bytes(control)
        + encode_data(kept, base_offset=3, epoch=0, timestamp_ms=0, metadata_version=30)
        + encode_control(decode_batch(footer_header, footer), base_offset=3 + len(kept), epoch=0, timestamp_ms=0)
    )
    controller = node.start()
    assert controller.image.configs == {}
    written = Written(node)
    create_topic(controller, 't', 1, {'min.insync.replicas': '1'})
    controller.begin_shutdown()
    assert CLEAR_ELR not in written.kinds
    partition = controller.image.topics['t'].partitions[0]
    assert (partition.leader, partition.isr, partition.eligible_leader_replicas) == (-1, (1,), ())
    controller.finish_shutdown()
    partition = node.start().image.topics['t'].partitions[0]
    assert (partition.leader, partition.isr, partition.leader_epoch) == (1, (1,), 2)


# -- topics


def test_a_topic_has_its_partitions_configs_and_a_fresh_id(
    node: ControllerDirectory, controller: MetadataController
) -> None:
    topic = create_topic(controller, 't', 3, {'retention.ms': '5', 'cleanup.policy': 'compact'})
    assert controller.image.topics['t'] is topic and controller.image.topics_by_id[topic.topic_id] is topic
    assert topic.configs == {'retention.ms': '5', 'cleanup.policy': 'compact'}
    assert [
        (
            found.index,
            found.leader,
            found.leader_epoch,
            found.partition_epoch,
            found.replicas,
            found.isr,
            found.directories,
        )
        for found in topic.partitions
    ] == [(index, 1, 0, 0, (1,), (1,), (controller.directory_id,)) for index in range(3)]
    assert create_topic(controller, 'u', 1).topic_id != topic.topic_id


def test_the_topics_of_a_request_are_one_batch_and_the_bad_ones_are_left_out(
    node: ControllerDirectory, controller: MetadataController
) -> None:
    create_topic(controller, 'old', 1)
    written = Written(node)
    results = create_topics(
        controller, [
            NewTopic('a', 1),
            NewTopic('old', 1),
            NewTopic('b', 2, {'min.insync.replicas': '1'}),
            NewTopic('c', 0),
            NewTopic('d', 1, {'x': 'y'}),
            NewTopic('e', 1),
            NewTopic('e', 2),
            NewTopic('x_y', 1),
            NewTopic('x.y', 1),
        ]
    )
    assert [getattr(result, 'code', None) for result in results] == [
        None,
        ErrorCode.TOPIC_ALREADY_EXISTS,
        None,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        None,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
    ]
    assert written.batches == 1
    assert written.kinds == [TOPIC, PARTITION, TOPIC, CONFIG, CLEAR_ELR, PARTITION, PARTITION, TOPIC, PARTITION]
    assert set(controller.image.topics) == {'old', 'a', 'b', 'x_y'}


def test_validating_writes_nothing(node: ControllerDirectory, controller: MetadataController) -> None:
    create_topic(controller, 't', 1)
    before, image = node.files(), controller.image
    (topic,) = create_topics(controller, [NewTopic('u', 4)], validate_only=True)
    assert len(topic.partitions) == 4
    assert len(create_partitions(controller, 't', 2, validate_only=True).partitions) == 2
    assert alter_configs(controller, ResourceType.TOPIC, 't', {'retention.ms': '7'}, validate_only=True) == {}
    assert node.files() == before and controller.image is image


@pytest.mark.parametrize('name', ['', '.', '..', 'a' * 250, 'a/b', 'a b', 'ä', 'a\n'])
def test_names_that_make_no_directory_are_refused(controller: MetadataController, name: str) -> None:
    fails(ErrorCode.INVALID_TOPIC_EXCEPTION, create_topic, controller, name, 1)


@pytest.mark.parametrize('name', ['a' * 249, 'A.b-c_9', '...', '_'])
def test_every_other_name_is_taken(controller: MetadataController, name: str) -> None:
    assert create_topic(controller, name, 1).name == name


def test_names_that_differ_in_dots_and_underscores_collide(controller: MetadataController) -> None:
    create_topic(controller, 'a.b', 1)
    assert "'a.b'" in fails(ErrorCode.INVALID_TOPIC_EXCEPTION, create_topic, controller, 'a_b', 1)
    create_topic(controller, 'ab', 1)


def test_a_request_larger_than_an_atomic_batch_is_refused(controller: MetadataController) -> None:
    fails(ErrorCode.POLICY_VIOLATION, create_topic, controller, 't', 10_000)
    fails(ErrorCode.POLICY_VIOLATION, create_topics, controller, [NewTopic('a', 6_000), NewTopic('b', 6_000)])
    create_topic(controller, 't', 9_999)
    fails(ErrorCode.POLICY_VIOLATION, create_partitions, controller, 't', 20_000)
    assert set(controller.image.topics) == {'t'}


@pytest.mark.usefixtures('any_group_config')
def test_a_change_larger_than_a_batch_is_refused(controller: MetadataController) -> None:
    configs = {f'key.{number}': 'x' * 30_000 for number in range(300)}
    fails(ErrorCode.POLICY_VIOLATION, alter_configs, controller, ResourceType.GROUP, 'g', configs)
    assert (ResourceType.GROUP, 'g') not in controller.image.configs


def test_more_partitions_than_a_batch_holds_are_elected_in_several(
    node: ControllerDirectory, controller: MetadataController
) -> None:
    create_topic(controller, 'a', 6_000)
    create_topic(controller, 'b', 6_000)
    controller.close()
    partitions = [partition for topic in node.start().image.topics.values() for partition in topic.partitions]
    assert [partition.leader_epoch for partition in partitions] == [1] * 12_000


def test_partitions_are_added_behind_those_that_are_there(
    node: ControllerDirectory, controller: MetadataController
) -> None:
    create_topic(controller, 't', 2)
    written = Written(node)
    assert [found.index for found in create_partitions(controller, 't', 4).partitions] == [0, 1, 2, 3]
    assert written.kinds == [PARTITION, PARTITION]
    for count in (4, 3, 0, -1):
        fails(ErrorCode.INVALID_PARTITIONS, create_partitions, controller, 't', count)
    fails(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, create_partitions, controller, 'u', 4)


def test_a_deleted_topic_is_gone_with_its_configs_and_its_name_is_free(
    node: ControllerDirectory, controller: MetadataController
) -> None:
    topic = create_topic(controller, 't', 1, {'retention.ms': '1'})
    written = Written(node)
    assert delete_topic(controller, 't') is topic
    assert written.kinds == [REMOVE_TOPIC]
    assert controller.image.topics == {} and (ResourceType.TOPIC, 't') not in controller.image.configs
    again = create_topic(controller, 't', 1)
    assert again.configs == {} and again.topic_id != topic.topic_id
    assert delete_topic(controller, again.topic_id).name == 't'


def test_topics_are_deleted_by_name_and_id_in_one_batch(
    node: ControllerDirectory, controller: MetadataController
) -> None:
    a, b = create_topic(controller, 'a', 1), create_topic(controller, 'b', 1)
    written = Written(node)
    results = delete_topics(controller, ['a', b.topic_id, 'nope', b'?' * 16, a.topic_id])
    assert results[0] is a and results[1] is b and results[4] is a
    assert [results[2].code, results[3].code] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID]
    assert written.kinds == [REMOVE_TOPIC, REMOVE_TOPIC] and written.batches == 1
    fails(ErrorCode.UNKNOWN_TOPIC_ID, delete_topic, controller, a.topic_id)


# -- settings


def test_configs_are_set_changed_and_removed(node: ControllerDirectory, controller: MetadataController) -> None:
    create_topic(controller, 't', 1)
    assert alter_configs(controller, 2, 't', {'retention.ms': '1', 'segment.bytes': '1048576'}) == {
        'retention.ms': '1',
        'segment.bytes': '1048576',
    }
    assert alter_configs(controller, 2, 't', {'retention.ms': None, 'segment.bytes': '2097152'}) == {
        'segment.bytes': '2097152'
    }
    assert controller.image.topics['t'].configs == {'segment.bytes': '2097152'}
    assert alter_configs(controller, 4, '', {'log.retention.ms': '100000'})['log.retention.ms'] == '100000'
    assert alter_configs(controller, 4, '1', {'log.retention.ms': '200000'}) == {'log.retention.ms': '200000'}
    assert alter_configs(controller, 32, 'g', {'consumer.session.timeout.ms': '46000'}) == {
        'consumer.session.timeout.ms': '46000'
    }
    assert alter_configs(controller, 16, 's', {'interval.ms': '100'}) == {'interval.ms': '100'}
    written = Written(node)
    alter_configs(controller, 2, 't', {'retention.ms': None, 'segment.bytes': '2097152'})
    assert written.kinds == []


def test_min_insync_replicas_clears_the_eligible_leader_replicas(
    node: ControllerDirectory, controller: MetadataController
) -> None:
    create_topic(controller, 't', 1)
    written = Written(node)
    alter_configs(controller, 2, 't', {'min.insync.replicas': '2', 'retention.ms': '1'})
    alter_configs(controller, 4, '', {'min.insync.replicas': '2'})
    assert written.kinds == [CONFIG, CONFIG, CLEAR_ELR, CONFIG, CLEAR_ELR] and written.batches == 2
    fails(ErrorCode.INVALID_CONFIG, alter_configs, controller, 4, '', {'min.insync.replicas': None})
    fails(ErrorCode.INVALID_CONFIG, alter_configs, controller, 4, '1', {'min.insync.replicas': '1'})


@pytest.mark.parametrize(
    ('resource_type', 'name', 'changes', 'code'),
    [
        (2, 'nope', {'retention.ms': '1'}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (2, 't', {'retention.ms': 'abc'}, ErrorCode.INVALID_CONFIG),
        (2, 't', {'no.such.key': '1'}, ErrorCode.INVALID_CONFIG),
        (2, 't', {'min.compaction.lag.ms': '9', 'max.compaction.lag.ms': '8'}, ErrorCode.INVALID_CONFIG),
        (4, '2', {'log.retention.ms': '1'}, ErrorCode.BROKER_ID_NOT_REGISTERED),
        (4, '', {'log.retention.ms': 'x'}, ErrorCode.INVALID_REQUEST),
        (4, '', {'node.id': '2'}, ErrorCode.INVALID_REQUEST),
        (8, '1', {'x': 'INFO'}, ErrorCode.INVALID_REQUEST),
        (32, '', {'x': '1'}, ErrorCode.INVALID_REQUEST),
        (32, 'g', {'x': 'é' * 16_384}, ErrorCode.INVALID_CONFIG),
        (32, 'g', {'k' * 32_768: None}, ErrorCode.INVALID_CONFIG),
        (99, 'g', {}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_configs_that_cannot_be_parsed_are_refused(
    controller: MetadataController, resource_type: int, name: str, changes: dict, code: ErrorCode
) -> None:
    create_topic(controller, 't', 1)
    image = controller.image
    fails(code, alter_configs, controller, resource_type, name, changes)
    assert controller.image is image


def test_a_config_of_a_newer_kafka_stays_until_it_is_removed(controller: MetadataController) -> None:
    create_topic(controller, 't', 1)
    controller._write([ConfigRecord(resource_type=2, resource_name='t', name='from.the.future', value='1')])
    assert alter_configs(controller, 2, 't', {'retention.ms': '1'}) == {'from.the.future': '1', 'retention.ms': '1'}
    assert alter_configs(controller, 2, 't', {'from.the.future': None}) == {'retention.ms': '1'}


# -- producer ids


def test_no_producer_id_is_given_out_twice(node: ControllerDirectory) -> None:
    given_out: set[int] = set()
    for _ in range(3):
        controller = node.start()
        for _ in range(2):
            block = allocate_producer_ids(controller)
            assert len(block) == 1000 and given_out.isdisjoint(block)
            given_out.update(block)
        controller.close()
    assert min(given_out) == 0 and max(given_out) == 5999


def test_producer_ids_run_out_without_wrapping(controller: MetadataController) -> None:
    controller.image.next_producer_id = 2**63 - 1 - 999
    fails(ErrorCode.UNKNOWN_SERVER_ERROR, allocate_producer_ids, controller)


# -- replay, and operations that fail

OPERATIONS = {
    'open': lambda node, controller: None,
    'create topics': lambda node, controller: create_topics(
        controller, [NewTopic('new', 3, {'retention.ms': '1'}), NewTopic('newer', 1)]
    ),
    'create partitions': lambda node, controller: create_partitions(controller, 't', 5),
    'delete topics': lambda node, controller: delete_topics(controller, ['t', 'u']),
    'alter configs': lambda node, controller: alter_configs(
        controller, 2, 't', {'retention.ms': None, 'min.insync.replicas': '1'}
    ),
    'allocate producer ids': lambda node, controller: allocate_producer_ids(controller),
    'begin shutdown': lambda node, controller: controller.begin_shutdown(),
    'finish shutdown': lambda node, controller: controller.finish_shutdown(),
}


@pytest.mark.parametrize('operation', [name for name in OPERATIONS if name != 'open'])
def test_an_operation_that_fails_is_there_as_a_whole_or_not_at_all(tmp_path, operation: str) -> None:
    """In turn, each write and each sync of the operation fails. A failed write has changed the file not at all, in
    part, or in full."""

    def prepared(name: str, fs: CountdownFileSystem) -> tuple[ControllerDirectory, MetadataController]:
        node = ControllerDirectory(tmp_path / name)
        controller = node.start(fs)
        create_topics(controller, [NewTopic('t', 2, {'retention.ms': '5'}), NewTopic('u', 1)])
        return node, controller

    def outcome(image: MetadataImage) -> tuple:
        """Return the parts of an image in which the effects of the operations differ, without random ids and
        elections."""
        return (
            {
                topic.name: (topic.configs, [(found.index, found.leader) for found in topic.partitions])
                for topic in image.topics.values()
            },
            image.configs,
            image.next_producer_id,
            image.brokers[1].fenced,
            image.brokers[1].in_controlled_shutdown,
        )

    def reloaded(node: ControllerDirectory) -> tuple:
        image = MetadataImage()
        QuorumLog(FileSystem(), str(node.log_dir), 1 << 30).load(image)
        return outcome(image)

    counting = CountdownFileSystem()
    node, controller = prepared('whole', counting)
    old, start = outcome(controller.image), counting.changes
    OPERATIONS[operation](node, controller)
    new = outcome(controller.image)
    assert counting.changes > start and old != new
    seen = []
    for allowed in range(counting.changes - start):
        for torn_percent in (0, 1, 50, 99, 100):
            fs = CountdownFileSystem(torn_percent=torn_percent)
            node, controller = prepared(f'{allowed}-{torn_percent}', fs)
            fs.allowed = fs.changes + allowed
            image = controller.image
            fails(ErrorCode.KAFKA_STORAGE_ERROR, OPERATIONS[operation], node, controller)
            assert controller.image is image
            seen.append(reloaded(node))
            assert seen[-1] in (old, new)
            create_topic(node.start(), 'after', 1)
            if not fs.tore_a_write:
                break
    assert old in seen and new in seen


@pytest.mark.usefixtures('any_group_config')
def test_a_roll_that_fails_anywhere_leaves_a_log_that_opens(tmp_path) -> None:
    big = {f'key.{number}': 'x' * 30_000 for number in range(250)}
    for allowed in range(5):
        node = ControllerDirectory(tmp_path / str(allowed), metadata_log_segment_bytes='8388608')
        fs = CountdownFileSystem(torn_percent=50)
        controller = node.start(fs)
        alter_configs(controller, 32, 'g', big)
        fs.allowed = fs.changes + allowed
        try:
            alter_configs(controller, 32, 'h', big)
        except KafkaError as error:
            assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
        controller = node.start()
        assert set(controller.image.configs) in ({(4, ''), (32, 'g')}, {(4, ''), (32, 'g'), (32, 'h')})


names = st.sampled_from(['a', 'b', 'c', 'd.e', 'd_e'])
steps = st.one_of(
    st.tuples(st.just('create'), names, st.integers(0, 4)),
    st.tuples(st.just('grow'), names, st.integers(0, 6)),
    st.tuples(st.just('delete'), names),
    st.tuples(st.just('set'), names, st.sampled_from(['1', '2', None])),
    st.tuples(st.just('ids')),
    st.tuples(st.just('restart')),
    st.tuples(st.just('crash')),
)


@settings(max_examples=25, deadline=None)
@given(st.lists(steps, max_size=14))
def test_the_state_is_always_what_a_replay_of_the_log_gives(
    tmp_path_factory: pytest.TempPathFactory, program: list[tuple]
) -> None:
    node = ControllerDirectory(tmp_path_factory.mktemp('replay') / 'data')
    controller = node.start()
    for step, *arguments in program:
        try:
            if step == 'create':
                create_topic(controller, *arguments)
            elif step == 'grow':
                create_partitions(controller, *arguments)
            elif step == 'delete':
                delete_topic(controller, *arguments)
            elif step == 'set':
                configs = {'retention.ms': arguments[1], 'min.insync.replicas': '1'}
                alter_configs(controller, ResourceType.TOPIC, arguments[0], configs)
            elif step == 'ids':
                allocate_producer_ids(controller)
            else:
                if step == 'restart':
                    controller.begin_shutdown()
                    controller.finish_shutdown()
                before = controller.image
                controller = node.open()
                assert state(controller.image) == state(before)
                controller.register([])
        except KafkaError as error:
            assert error.code is not ErrorCode.KAFKA_STORAGE_ERROR
    assert partition_states(read_log(node.log_dir)) == {
        (topic.name, found.index): (found.leader, found.leader_epoch, found.partition_epoch)
        for topic in controller.image.topics.values()
        for found in topic.partitions
    }


def test_a_change_that_could_not_be_read_back_is_never_written(
    node: ControllerDirectory, controller: MetadataController
) -> None:
    before = node.files()
    with pytest.raises(CorruptLogError):
        controller._write([NoOpRecord(), RemoveTopicRecord(topic_id=b'?' * 16)])
    assert node.files() == before
