"""Dead letters of share groups on a broker: what gets one, which topic it goes to, and what happens if it may not.

Covers KIP-1191.
"""
from __future__ import annotations

import contextlib
import errno
import logging
import os

import pytest
from support.disk.held_disk import HeldDisk
from support.messages.message_builder import build
from support.worlds.dead_letter_world import (
    ACCEPT,
    GAP,
    GROUP,
    GROUP_CONFIGS,
    GROUP_RESOURCE,
    QUEUE,
    QUEUE_CONFIGS,
    REJECT,
    RELEASE,
    TOPIC,
    TOPIC_RESOURCE,
    DeadLetterWorld,
    acknowledgements,
    once,
)

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.long_work import run_to_end
from kbroker.group.share.dead_letter import DELIVERY_COUNT, EXCEEDED, MESSAGE, REJECTED
from kbroker.group.share.dead_letter import GROUP as GROUP_HEADER
from kbroker.group.share.partitions import JOB_BYTES
from kbroker.log.fs import File, FileSystem

VALUES = [(b'k%d' % number, b'v%d' % number) for number in range(6)]
LOCK_MS = 30_000


@pytest.fixture
def world(tmp_path):
    with DeadLetterWorld(tmp_path / 'data') as world:
        yield world


def ready(world: DeadLetterWorld, **options: object) -> DeadLetterWorld:
    """Prepare a world with records 0 to 5 in partitions 0 and 1, which the member has acquired."""
    world.prepare(**options)  # type: ignore[arg-type]
    world.produce(0, *VALUES)
    world.produce(1, *VALUES)
    world.fetch()
    return world


def test_a_rejected_record_is_written_to_the_queue_and_then_archived(world):
    ready(world).reject((1, 0), (1, 1))
    assert world.places() == once([(1, 0), (1, 1)])
    assert world.start_offsets()[1] == 0
    assert world.archiving() == set() and world.states(1) == {0: 4, 1: 4}
    partition, record = world.dead_letters()[0]
    assert partition == 1 and (record.key, record.value) == (None, None)
    assert record.timestamp_ms == world.broker.clock.wall_ms()
    assert dict(record.headers) == {
        '__dlq.errors.topic': TOPIC.encode(), '__dlq.errors.partition': b'1', '__dlq.errors.offset': b'0',
        GROUP_HEADER: GROUP.encode(), DELIVERY_COUNT: b'1', MESSAGE: REJECTED.encode()}


@pytest.mark.parametrize('kind', [GAP, ACCEPT, RELEASE])
def test_other_acknowledgements_make_no_dead_letter(world, kind):
    ready(world).acknowledge({(0, 0): kind})
    assert world.places() == once([])


@pytest.mark.parametrize('ending', ['release', 'disconnect', 'lock', 'close'])
def test_a_record_at_the_limit_of_deliveries_gets_a_dead_letter(world, ending):
    ready(world).acknowledge({place: ACCEPT if place != (0, 2) else RELEASE for place in world.held})
    assert world.fetch() == {(0, 2): 2}
    if ending == 'release':
        world.acknowledge({(0, 2): RELEASE})
    elif ending == 'lock':
        world.pass_time(LOCK_MS + 1)
    elif ending == 'disconnect':
        world.disconnect()
    else:
        world.epoch = -1
        world.acknowledge({})
    world.settle()
    (partition, record), = world.dead_letters()
    headers = dict(record.headers)
    assert (partition, headers[DELIVERY_COUNT], headers[MESSAGE]) == (0, b'2', EXCEEDED.encode())
    assert world.archiving() == set()


def test_the_member_is_answered_before_the_dead_letter_exists(world):
    """The answer needs only the row that stores the state ARCHIVING. The start offset waits for the dead letter."""
    ready(world)
    free = world.hold_worker()
    world.reject(*((0, offset) for offset in range(6)))
    assert world.places() == once([]) and world.archiving() == {(0, offset) for offset in range(6)}
    assert world.start_offsets()[0] == 0
    counts = {'waiting': 6, 'written': 0, 'refused': 0, 'failures': 0}
    assert run_to_end(world.broker.share_partitions.dead_letter_counts()) == counts
    free()
    assert run_to_end(world.broker.share_partitions.dead_letter_counts()) == {**counts, 'waiting': 0, 'written': 6}
    assert world.places() == once((0, offset) for offset in range(6))
    world.produce(0, (b'k', b'v'))
    assert world.fetch() == {(1, offset): 1 for offset in range(6)} | {(0, 6): 1}
    world.acknowledge({(0, 6): ACCEPT})
    assert world.start_offsets()[0] == 6


def test_the_key_and_the_value_are_copied_if_the_group_says_so(world):
    ready(world, group={**GROUP_CONFIGS, 'errors.deadletterqueue.copy.record.enable': 'true'})
    world.reject((0, 1), (0, 2), (0, 5))
    found = {dict(record.headers)['__dlq.errors.offset']: (record.key, record.value)
             for _, record in world.dead_letters()}
    assert found == {b'%d' % offset: VALUES[offset] for offset in (1, 2, 5)}


def test_records_below_the_start_of_the_log_get_no_dead_letters(world):
    ready(world)
    free = world.hold_worker()
    world.reject(*((0, offset) for offset in range(6)))
    world.broker.topics.get(TOPIC, 0).delete_records(4)
    world.fetch()
    free()
    assert world.places() == once([(0, 4), (0, 5)])


def test_records_that_the_log_deletes_do_not_keep_their_share_partition_in_memory(world):
    ready(world)
    free = world.hold_worker()
    world.reject((0, 0), (0, 1))
    world.broker.topics.get(TOPIC, 0).delete_records(6)
    world.fetch()
    free()
    world.disconnect()
    world.pass_time(100_000)
    assert world.places() == once([]) and world.broker.share_partitions.all() == []


@pytest.mark.parametrize(('options', 'reason'), [
    ({'queue': {}}, 'does not set errors.deadletterqueue.group.enable'),
    ({'queue': None}, 'does not exist'),
    ({'group': {**GROUP_CONFIGS, 'errors.deadletterqueue.topic.name': 'other'}}, 'does not exist'),
])
def test_a_record_is_archived_without_a_dead_letter_if_the_queue_is_not_allowed(world, options, reason, caplog):
    """Kafka loses the dead letter, too."""
    caplog.set_level(logging.WARNING)
    ready(world, **options).reject((0, 0), (0, 1))
    assert world.places() == once([])
    assert world.archiving() == set() and world.states(0) == {0: 4, 1: 4}
    assert [text for text in caplog.messages if reason in text and GROUP in text] != []
    assert world.broker.share_partitions.dead_letters().refused == 2


def test_a_queue_needs_the_prefix_of_the_broker(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    with DeadLetterWorld(tmp_path / 'data', settings={'errors.deadletterqueue.topic.name.prefix': 'dead.'}) as world:
        ready(world).reject((0, 0))
        assert world.places() == once([]) and world.archiving() == set()
        assert any("does not begin with 'dead.'" in text for text in caplog.messages)


def test_the_broker_creates_the_queue_if_it_may(tmp_path):
    settings = {'errors.deadletterqueue.auto.create.topics.enable': 'true', 'num.partitions': '2'}
    with DeadLetterWorld(tmp_path / 'data', settings=settings) as world:
        ready(world, queue=None).reject((0, 0), (1, 0))
        assert world.places() == once([(0, 0), (1, 0)])
        topic = world.broker.topics.topic(QUEUE)
        assert topic.overrides == {**QUEUE_CONFIGS, 'message.timestamp.type': 'CreateTime'}
        assert len(topic.partitions) == 2


def test_an_impossible_name_of_a_queue_is_reported(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    settings = {'errors.deadletterqueue.auto.create.topics.enable': 'true',
                'errors.deadletterqueue.topic.name.prefix': ''}
    with DeadLetterWorld(tmp_path / 'data', settings=settings) as world:
        ready(world, group={**GROUP_CONFIGS, 'errors.deadletterqueue.topic.name': 'bad name!'}).reject((0, 0))
        assert world.archiving() == set()
        assert any('bad name!' in text for text in caplog.messages)


def test_without_share_version_2_or_a_queue_there_are_no_dead_letters(tmp_path):
    for number, options in enumerate(({'share_version': 1}, {'group': {'share.delivery.count.limit': '2'}})):
        with DeadLetterWorld(tmp_path / str(number)) as world:
            ready(world, **options).reject((0, 0))
            assert world.places() == once([]) and world.states(0) == {0: 4}
            assert world.broker.share_partitions._letters is None


def test_a_change_of_the_configs_holds_from_the_next_acknowledgement_on(world):
    ready(world, group={'share.delivery.count.limit': '2'})
    world.reject((0, 0))
    world.configure(GROUP_RESOURCE, GROUP, {'errors.deadletterqueue.topic.name': QUEUE})
    world.reject((0, 1))
    world.configure(GROUP_RESOURCE, GROUP, {'errors.deadletterqueue.topic.name': None})
    world.reject((0, 2))
    world.configure(GROUP_RESOURCE, GROUP, {'errors.deadletterqueue.topic.name': QUEUE})
    world.configure(TOPIC_RESOURCE, QUEUE, {'errors.deadletterqueue.group.enable': 'false'})
    world.reject((0, 3))
    assert world.places() == once([(0, 1)])
    assert world.archiving() == set()


def test_a_topic_that_refuses_dead_letters_does_not_hold_the_records(world, caplog):
    """A compacted topic takes no records without a key. As in Kafka, the dead letters are lost."""
    caplog.set_level(logging.WARNING)
    ready(world, queue={**QUEUE_CONFIGS, 'cleanup.policy': 'compact'}).reject((0, 0), (0, 1))
    assert world.places() == once([]) and world.archiving() == set()
    assert any('get no dead letters' in text for text in caplog.messages)


def test_dead_letters_follow_the_rules_of_their_topic(world):
    ready(world, queue={**QUEUE_CONFIGS, 'compression.type': 'gzip', 'message.timestamp.type': 'LogAppendTime'})
    world.reject((0, 0))
    header, _ = next(iter(world.broker.topics.get(QUEUE, 0).batches()))
    assert (header.compression, header.is_log_append_time, header.producer_id) == (1, True, -1)


def test_a_share_partition_stays_in_memory_while_records_wait_for_dead_letters(world):
    ready(world)
    free = world.hold_worker()
    world.reject((0, 0))
    world.disconnect()
    world.pass_time(100_000)
    live, = world.broker.share_partitions.all()
    assert live.key.partition == 0
    free()
    assert world.places() == once([(0, 0)])
    world.pass_time(100_000)
    assert world.broker.share_partitions.all() == []
    assert world.broker.groups.memory.held_bytes == sum(
        world.broker.share_states.summary(world.key(index)).held_bytes for index in range(3)) + name_bytes(world)


def name_bytes(world: DeadLetterWorld) -> int:
    from kbroker.base.object_memory import memory_of

    return 3 * memory_of(GROUP)


def test_a_reset_of_the_offsets_ends_the_wait_for_a_dead_letter(world):
    """The records of before the reset are not ARCHIVING any more, and may be delivered again."""
    ready(world)
    free = world.hold_worker()
    world.reject((0, 0))
    world.disconnect()
    world.initialize(state_epoch=2)
    free()
    assert world.places() == once([]) and world.archiving() == set()
    assert (0, 0) in world.fetch()


@contextlib.contextmanager
def a_rejection_before_a_held_disk(place):
    """Reject a record whose dead letter waits for the worker, and hold all later syncs of the disk. Yield the world,
    the disk, and the function that frees the worker."""
    disk = HeldDisk(is_held=False)
    with DeadLetterWorld(place, sync=disk.sync) as world:
        disk.kick = world.broker.flusher.kick
        ready(world)
        free = world.hold_worker()
        world.reject((0, 0))
        world.disconnect()
        disk.is_held = True
        yield world, disk, free


def test_no_dead_letter_is_written_while_a_reset_is_in_flight(tmp_path):
    """Its time would be later than that of the new share state. After a crash, it would count as the dead letter of the
    same record when that is rejected again."""
    with a_rejection_before_a_held_disk(tmp_path / 'data') as (world, disk, free):
        failed = []
        world.broker.share_states.initialize({world.key(0): 0}, 2, failed.append)
        world.settle()
        assert failed == [] and world.archiving() == {(0, 0)}, 'the reset is not durable'
        free()
        assert world.places() == once([])
        disk.release()
        world.settle()
        assert failed == [{}] and world.archiving() == set() and world.places() == once([])


def test_a_record_of_before_a_reset_is_not_archived_after_it(tmp_path):
    """The dead letter becomes durable while the reset is in flight. The record is then delivered again."""
    with a_rejection_before_a_held_disk(tmp_path / 'data') as (world, disk, free):
        free()
        assert world.places() == once([(0, 0)]) and world.archiving() == {(0, 0)}
        failed = []
        world.broker.share_states.initialize({world.key(0): 0}, 1, failed.append)
        world.settle()
        disk.release()
        world.settle()
        assert failed == [{}] and world.states(0) == {} and (0, 0) in world.fetch()


def test_the_deletion_of_the_topic_ends_the_wait_for_a_dead_letter(world):
    ready(world)
    free = world.hold_worker()
    world.reject((0, 0))
    answer = world.ask('DeleteTopics', 6, topics=[{'name': TOPIC}], timeout_ms=1000)
    assert answer.responses[0].error_code == 0
    free()
    assert world.dead_letters() == []


def test_a_queue_that_is_deleted_during_the_write_is_looked_up_again(world, caplog):
    caplog.set_level(logging.WARNING)
    ready(world)
    free = world.hold_worker()
    world.reject((0, 0))
    world.ask('DeleteTopics', 6, topics=[{'name': QUEUE}], timeout_ms=1000)
    free()
    assert world.archiving() == set()
    assert any('does not exist' in text for text in caplog.messages)


def test_rejects_of_many_records_of_all_partitions_are_each_written_once(world):
    world.prepare(group={**GROUP_CONFIGS, 'errors.deadletterqueue.copy.record.enable': 'true'})
    for partition in range(3):
        for _ in range(40):
            world.produce(partition, *VALUES)
    for _ in range(20):
        world.fetch(500)
        if not world.held:
            break
        world.acknowledge({place: REJECT if place[1] % 3 else ACCEPT for place in world.held})
    assert world.places() == once((partition, offset) for partition in range(3) for offset in range(240) if offset % 3)
    assert {record.value for _, record in world.dead_letters()} == {value for _, value in VALUES if value != b'v0'
                                                                    and value != b'v3'}
    assert world.start_offsets() == [240] * 3 or world.archiving() == set()


def test_a_member_may_leave_before_its_rejection_is_stored(tmp_path):
    """The share partition is then removed from memory. It is loaded again for the dead letter."""
    disk = HeldDisk(is_held=False)
    with DeadLetterWorld(tmp_path / 'data', sync=disk.sync) as world:
        disk.kick = world.broker.flusher.kick
        ready(world).acknowledge({place: ACCEPT for place in world.held if place != (0, 0)})
        disk.is_held = True
        request = build('ShareAcknowledgeRequest', group_id=GROUP, member_id=world.member,
                        share_session_epoch=world.epoch, topics=[
                            {'topic_id': world.key(0).topic_id, 'partitions': acknowledgements({(0, 0): REJECT})}])
        world.broker.begin(request, 2, world.connection)
        world.disconnect()
        assert world.broker.share_partitions.all() == [] and world.archiving() == set()
        disk.release()
        world.settle()
        assert world.archiving() == {(0, 0)} and world.places() == once([])
        world.pass_time(1_000)
        assert world.archiving() == set() and world.places() == once([(0, 0)])


# ---- failures

class FileSystemWithoutDescriptors(FileSystem):
    """A file system on which no file with `without` in its path can be created while it is set."""

    without = ''

    def open(self, path: str, create: bool = False) -> File:
        if create and self.without and self.without in path:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return super().open(path, create)


def test_a_dead_letter_is_written_when_descriptors_are_free_again(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    fs = FileSystemWithoutDescriptors()
    with DeadLetterWorld(tmp_path / 'data', fs=fs) as world:
        ready(world)
        fs.without = f'{QUEUE}-0'
        world.reject((0, 0), (0, 1))
        assert world.archiving() == {(0, 0), (0, 1)}
        world.pass_time(1_000)
        assert world.archiving() == {(0, 0), (0, 1)}
        assert any('are not written yet' in text for text in caplog.messages)
        fs.without = ''
        world.pass_time(2_000)
        assert world.archiving() == set() and world.places() == once([(0, 0), (0, 1)])
        assert run_to_end(world.broker.share_partitions.dead_letter_counts()) == {
            'waiting': 0, 'written': 2, 'refused': 0, 'failures': 2}


@pytest.mark.parametrize('code', [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.FENCED_STATE_EPOCH,
                                  ErrorCode.UNKNOWN_SERVER_ERROR])
def test_a_dead_letter_is_not_written_again_if_its_end_cannot_be_stored(world, monkeypatch, code):
    """With some of the codes, the share partition is removed from memory. When it is loaded again, the dead letter is
    found in the queue."""
    states, failed = world.broker.share_states, []
    write = states.write

    def refuse_once(key, changes, done):
        if not failed and any(state == 4 for _, _, state, _ in changes.batches):
            failed.append(changes)
            done(KafkaError(code, 'for the test'))
        else:
            write(key, changes, done)

    monkeypatch.setattr(states, 'write', refuse_once)
    ready(world).reject((0, 0))
    assert failed != [] and world.archiving() == {(0, 0)} and world.places() == once([(0, 0)])
    world.pass_time(1_000)
    assert world.archiving() == set() and world.places() == once([(0, 0)])


def test_the_end_of_a_lock_is_stored_again_before_a_dead_letter_follows(world, monkeypatch):
    ready(world, group={**GROUP_CONFIGS, 'share.delivery.count.limit': '2'})
    world.disconnect()
    world.fetch()
    states, failed = world.broker.share_states, []
    write = states.write

    def refuse_once(key, changes, done):
        if key.partition == 0 and not failed:
            failed.append(changes)
            done(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, 'for the test'))
        else:
            write(key, changes, done)

    monkeypatch.setattr(states, 'write', refuse_once)
    world.pass_time(LOCK_MS + 1)
    assert failed != [] and world.places() == once((1, offset) for offset in range(6))
    world.pass_time(1_000)
    assert world.places() == once((partition, offset) for partition in range(2) for offset in range(6))


def test_a_lower_share_version_ends_no_wait_for_a_dead_letter(world):
    """The feature decides at the acknowledgement. A record that waits was promised a dead letter."""
    ready(world)
    free = world.hold_worker()
    world.reject((0, 0))
    answer = world.ask('UpdateFeatures', 1, feature_updates=[
        {'feature': 'share.version', 'max_version_level': 1, 'upgrade_type': 2}])
    assert answer.error_code == 0
    world.reject((0, 1))
    free()
    assert world.places() == once([(0, 0)]) and world.archiving() == set()


def test_the_deletion_of_the_share_state_ends_the_wait_for_a_dead_letter(world):
    ready(world)
    free = world.hold_worker()
    world.reject((0, 0))
    failed = []
    world.broker.share_states.delete([world.key(0)], failed.append)
    free()
    assert failed == [{}] and world.places() == once([])


def test_the_ranges_that_wait_for_dead_letters_count_towards_the_memory_of_groups(world):
    ready(world)
    free = world.hold_worker()
    before = world.broker.groups.memory.held_bytes
    world.acknowledge({(0, offset): REJECT if offset % 2 else ACCEPT for offset in range(6)})
    assert world.broker.groups.memory.held_bytes >= before + 3 * JOB_BYTES
    free()
    assert world.broker.share_partitions.all()[0].jobs == 0


def test_a_stop_leaves_dead_letters_that_are_not_begun_to_the_next_start(tmp_path):
    with DeadLetterWorld(tmp_path / 'data') as world:
        ready(world)
        world.hold_worker()
        world.reject((0, 0))
        world.fetch()
        world.disconnect()
    with DeadLetterWorld(tmp_path / 'data') as world:
        world.settle()
        assert world.places() == once([(0, 0)]) and world.archiving() == set()
