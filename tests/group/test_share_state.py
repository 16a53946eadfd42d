"""The share coordinator, and the rows of `__share_group_state` that it writes and replays."""
from __future__ import annotations

from typing import Any

import pytest
from support.worlds.held_partitions import HeldRegistry

from kbroker.base.clock import ManualClock, Timers
from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.base.internal_topics import SHARE_GROUP_STATE
from kbroker.base.long_work import LongWork
from kbroker.group.memory import GroupMemory
from kbroker.group.share.merge import merge_batches
from kbroker.group.share.rows import (
    Changes,
    ShareKey,
    ShareState,
    parse_coordinator_key,
    snapshot_row,
    update_row,
)
from kbroker.group.share.state import SNAPSHOT_INTERVAL_MS, ShareStates
from kbroker.record.records import decode_records
from kbroker.topics.partitioner import partition_for

T = 1_700_000_000_000
TOPIC_ID = bytes(range(16))
KEY = ShareKey('g1', TOPIC_ID, 0)
KEY_HEX = '000000026731000102030405060708090a0b0c0d0e0f00000000'
AVAILABLE, ACKNOWLEDGED, ARCHIVING, ARCHIVED = 0, 2, 3, 4


def test_the_key_of_a_share_partition_is_kafkas():
    assert KEY.coordinator_key == 'g1:AAECAwQFBgcICQoLDA0ODw:0'
    assert partition_for(KEY.coordinator_key, 50) == 4
    assert parse_coordinator_key('a:b:AAECAwQFBgcICQoLDA0ODw:7') == ShareKey('a:b', TOPIC_ID, 7)


@pytest.mark.parametrize('text', ['', 'g1', 'g1:AAECAwQFBgcICQoLDA0ODw', ':AAECAwQFBgcICQoLDA0ODw:0', 'g1:short:0',
                                  'g1:AAECAwQFBgcICQoLDA0ODw:x'])
def test_a_malformed_key_of_a_share_partition_is_refused(text):
    with pytest.raises(KafkaError) as raised:
        parse_coordinator_key(text)
    assert raised.value.code is ErrorCode.INVALID_REQUEST


def test_the_first_snapshot_has_kafkas_bytes():
    key, value = snapshot_row(KEY, ShareState(0, 2, 0, -1, -1, T, written_ms=T))
    assert key.hex() == KEY_HEX
    assert value.hex() == ('0000000000000000000200000000ffffffffffffffff0000018bcfe568000000018bcfe568000100')


def test_a_snapshot_of_acknowledged_records_has_kafkas_bytes():
    batches = (5, 6, AVAILABLE, 1), (7, 8, ACKNOWLEDGED, 1)
    _, value = snapshot_row(KEY, ShareState(1, 2, 0, 5, 2, T, batches, written_ms=T))
    assert value.hex() == (
        '000000000001000000020000000000000000000000050000018bcfe56800'
        '0000018bcfe56800030000000000000005000000000000000600000100000000000000000700000000000000080200010001000400000002')


def test_an_update_has_kafkas_bytes():
    key, value = update_row(KEY, 0, Changes(2, 0, 0, 10, [(10, 19, ACKNOWLEDGED, 1)]))
    assert key.hex() == '0001' + KEY_HEX[4:]
    assert value.hex() == '00000000000000000000000000000000000002000000000000000a0000000000000013020001000100040000000a'


def test_updates_of_records_that_wait_for_dead_letters_have_kafkas_bytes():
    _, value = update_row(KEY, 0, Changes(1, 0, 0, 2, [(0, 1, ARCHIVING, 1), (2, 3, AVAILABLE, 1),
                                                       (4, 4, ACKNOWLEDGED, 1), (5, 5, ARCHIVED, 1)]))
    assert value.hex() == (
        '000000000000000000000000000000000000050000000000000000000000000000000103000100000000000000000200'
        '000000000000030000010000000000000000040000000000000004020001000000000000000005000000000000000504'
        '00010001000400000002')
    _, value = update_row(KEY, 0, Changes(1, 0, 0, 3, [(0, 0, ARCHIVED, 1)]))
    assert value.hex() == '00000000000000000000000000000000000002000000000000000000000000000000000400010001000400000003'


@pytest.mark.parametrize(('old', 'new', 'start', 'expected'), [
    ([], [(0, 4, 0, 1), (5, 9, 0, 1)], 0, [(0, 9, 0, 1)]),
    ([(0, 4, 0, 1)], [(0, 1, 3, 1)], 0, [(0, 1, 3, 1), (2, 4, 0, 1)]),
    ([(0, 4, 3, 1)], [(1, 2, 4, 1)], 0, [(0, 0, 3, 1), (1, 2, 4, 1), (3, 4, 3, 1)]),
    ([(0, 4, 4, 1)], [(1, 2, 3, 1)], 0, [(0, 4, 4, 1)]),
    ([(0, 9, 0, 1)], [(3, 5, 2, 1)], 0, [(0, 2, 0, 1), (3, 5, 2, 1), (6, 9, 0, 1)]),
    ([(0, 9, 2, 1)], [(3, 5, 0, 1)], 0, [(0, 9, 2, 1)]),
    ([(0, 9, 2, 1)], [(3, 5, 0, 2)], 0, [(0, 2, 2, 1), (3, 5, 0, 2), (6, 9, 2, 1)]),
    ([(0, 4, 0, 1), (10, 14, 0, 1)], [(5, 9, 0, 1)], 0, [(0, 14, 0, 1)]),
    ([(0, 4, 0, 1), (10, 14, 0, 1)], [(3, 11, 2, 1)], 0, [(0, 2, 0, 1), (3, 11, 2, 1), (12, 14, 0, 1)]),
    ([(0, 4, 2, 1), (10, 14, 0, 1)], [], 12, [(12, 14, 0, 1)]),
    ([(0, 4, 2, 1), (10, 14, 0, 1)], [(0, 4, 2, 2)], 12, [(12, 14, 0, 1)]),
    ([(0, 4, 2, 1)], [(0, 9, 4, 1)], 3, [(3, 9, 4, 1)]),
    ([(0, 0, 0, 1)], [(5, 5, 0, 1)], 0, [(0, 0, 0, 1), (5, 5, 0, 1)]),
])
def test_batches_are_merged_by_count_then_state(old, new, start, expected):
    merged = merge_batches(tuple(old), new, start)
    assert list(merged) == expected


class Coordinator:
    """A share coordinator whose partitions are held in memory, with the topic `orders`, which has two partitions."""

    def __init__(self, *, immediate: bool = True, topics: HeldRegistry | None = None, updates: int = 500):
        self.clock = ManualClock()
        self.timers = Timers(self.clock)
        self.long_work = LongWork(self.timers)
        self.topics = topics or HeldRegistry(self.clock, immediate=immediate, internal_partitions=2)
        if topics is None:
            self.topics.create('orders', 2)
        self.memory = GroupMemory(1 << 20, self.clock)
        self.states = ShareStates(self.clock, self.timers, self.topics, self.long_work, self.memory, lambda: updates)
        self.states.start()
        topic = self.topics.topic('orders')
        self.key = ShareKey('g1', bytes(16) if topic is None else topic.topic_id, 0)

    def initialize(self, *keys: ShareKey, state_epoch: int = 1, start_offset: int = -1) -> list[Any]:
        answers: list[Any] = []
        self.states.initialize(dict.fromkeys(keys or (self.key,), start_offset), state_epoch, answers.append)
        self.run()
        return answers

    def write(self, *batches: tuple[int, int, int, int], start: int = 0, complete: int = 0, state_epoch: int = 1,
              leader_epoch: int = 0) -> list[Any]:
        answers: list[Any] = []
        self.states.write(self.key, Changes(state_epoch, leader_epoch, start, complete,
                                            batches), answers.append)
        return answers

    def read(self, leader_epoch: int = 0) -> list[Any]:
        answers: list[Any] = []
        self.states.read(self.key, leader_epoch, lambda error, state: answers.append(error or state))
        return answers

    def run(self) -> None:
        while len(self.long_work):
            self.timers.run_due()

    def flush(self) -> None:
        for partition in self.topics.topic(SHARE_GROUP_STATE).partitions:
            partition.flush()

    @property
    def log(self) -> Any:
        partitions = self.topics.topic(SHARE_GROUP_STATE).partitions
        return partitions[partition_for(self.key.coordinator_key, len(partitions))]

    def row_types(self) -> list[int]:
        return [record.key[1] for batch in self.log.stored for record in decode_records(batch)]

    def restarted(self, *, power_loss: bool = True) -> Coordinator:
        self.states.close()
        self.topics.on_topic_created.clear()
        self.topics.on_topic_deleted.clear()
        if power_loss:
            self.topics.power_loss()
        return Coordinator(topics=self.topics)


def code(answer: Any) -> ErrorCode:
    assert isinstance(answer, KafkaError), answer
    return answer.code


def test_the_topic_is_created_by_the_first_initialization():
    world = Coordinator()
    assert world.topics.topic(SHARE_GROUP_STATE) is None
    assert world.initialize() == [{}]
    assert world.states.summary(world.key).start_offset == -1


def test_what_was_never_initialized_is_neither_read_nor_written():
    world = Coordinator()
    assert code(world.read()[0]) is ErrorCode.INVALID_REQUEST
    world.initialize(ShareKey('g2', world.key.topic_id, 1))
    assert code(world.read()[0]) is code(world.write((0, 1, 2, 1))[0]) is ErrorCode.INVALID_REQUEST


def test_a_write_is_visible_once_it_is_durable():
    world = Coordinator(immediate=False)
    answers = world.initialize()
    assert answers == [] and world.states.summary(world.key) is None
    world.flush()
    assert answers == [{}]
    written, read = world.write((0, 9, ACKNOWLEDGED, 1)), world.read()
    assert written == read == [] and world.states.summary(world.key).batches == ()
    world.flush()
    assert written == [None] and read[0].batches == ((0, 9, ACKNOWLEDGED, 1),)


def test_writes_under_way_build_on_each_other():
    world = Coordinator(immediate=False)
    world.initialize()
    world.write((0, 4, ACKNOWLEDGED, 1))
    world.write((5, 9, ACKNOWLEDGED, 1), complete=10)
    world.flush()
    state = world.states.summary(world.key)
    assert (state.batches, state.delivery_complete_count) == (((0, 9, ACKNOWLEDGED, 1),), 10)


def test_a_crash_takes_only_what_was_not_confirmed():
    world = Coordinator(immediate=False)
    world.initialize()
    world.flush()
    confirmed = world.write((0, 4, ACKNOWLEDGED, 1))
    world.flush()
    lost = world.write((5, 9, ACKNOWLEDGED, 1))
    after = world.restarted()
    assert confirmed == [None] and lost == []
    assert after.read()[0].batches == ((0, 4, ACKNOWLEDGED, 1),)


def test_lower_epochs_are_fenced():
    world = Coordinator()
    world.initialize(state_epoch=3)
    assert code(world.initialize(state_epoch=2)[0][world.key]) is ErrorCode.FENCED_STATE_EPOCH
    assert code(world.write((0, 1, 2, 1), state_epoch=2)[0]) is ErrorCode.FENCED_STATE_EPOCH
    assert world.read(leader_epoch=4)[0].leader_epoch == 4
    assert code(world.write((0, 1, 2, 1), state_epoch=3, leader_epoch=3)[0]) is ErrorCode.FENCED_LEADER_EPOCH
    assert code(world.read(leader_epoch=3)[0]) is ErrorCode.FENCED_LEADER_EPOCH


def test_an_unknown_partition_is_refused():
    world = Coordinator()
    missing = world.key._replace(partition=2)
    assert code(world.initialize(missing)[0][missing]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_second_initialization_forgets_what_was_acknowledged():
    world = Coordinator()
    reset = []
    world.states.on_reset.append(reset.append)
    world.initialize()
    world.write((0, 9, ACKNOWLEDGED, 1))
    assert world.initialize(state_epoch=2, start_offset=7) == [{}]
    state = world.read()[0]
    assert (state.snapshot_epoch, state.state_epoch, state.start_offset) == (1, 2, 7)
    assert (state.delivery_complete_count, state.batches) == (0, ())
    assert reset == [world.key, world.key]


def test_a_snapshot_follows_the_configured_number_of_updates():
    world = Coordinator(updates=3)
    world.initialize()
    for offset in range(5):
        assert world.write((offset, offset, ACKNOWLEDGED, 1)) == [None]
    assert world.row_types() == [0, 1, 1, 1, 0, 1]
    state = world.restarted().read()[0]
    assert (state.snapshot_epoch, state.batches, state.updates) == (1, ((0, 4, ACKNOWLEDGED, 1),), 1)


def test_quiet_share_partitions_get_a_snapshot_and_the_log_is_pruned_behind_it():
    world = Coordinator()
    world.initialize()
    world.write((0, 4, ACKNOWLEDGED, 1), complete=5)
    for _ in range(2):
        world.clock.advance(SNAPSHOT_INTERVAL_MS)
        world.timers.run_due()
        world.run()
    assert world.row_types() == [0] and world.log.log_start_offset == 2
    after = world.restarted(power_loss=False)
    assert after.read()[0].batches == ((0, 4, ACKNOWLEDGED, 1),)


def test_pruning_keeps_the_oldest_snapshot_that_is_needed():
    world = Coordinator(updates=1)
    world.topics.internal_partitions = 1
    other = ShareKey('g2', world.key.topic_id, 1)
    world.initialize(other)
    world.initialize()
    world.write((0, 4, ACKNOWLEDGED, 1))
    world.clock.advance(SNAPSHOT_INTERVAL_MS)
    world.timers.run_due()
    world.run()
    assert world.log.log_start_offset == 0


def test_a_deleted_topic_leaves_tombstones():
    world = Coordinator()
    world.initialize()
    world.write((0, 4, ACKNOWLEDGED, 1))
    assert world.memory.held_bytes > 0
    world.topics.delete('orders')
    world.run()
    assert world.states.summary(world.key) is None and world.memory.held_bytes == 0
    assert world.row_types() == [0, 1, 0]
    assert world.restarted().states.summary(world.key) is None


def test_deleted_states_are_gone_once_that_is_durable():
    world = Coordinator(immediate=False)
    world.initialize()
    world.flush()
    answers = []
    world.states.delete([world.key, world.key._replace(partition=1)], answers.append)
    world.run()
    assert answers == [] and world.states.summary(world.key) is not None
    world.flush()
    assert answers == [{}] and world.states.summary(world.key) is None


def test_a_refused_write_changes_nothing():
    world = Coordinator()
    world.initialize()
    world.log.refuse(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, 'the disk is gone'))
    assert code(world.write((0, 4, ACKNOWLEDGED, 1))[0]) is ErrorCode.NOT_COORDINATOR
    assert world.states.summary(world.key).batches == ()


def test_new_share_partitions_are_refused_without_memory():
    world = Coordinator()
    world.initialize()
    world.memory.hold(1 << 20)
    other = world.key._replace(partition=1)
    assert code(world.initialize(other)[0][other]) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert world.write((0, 4, ACKNOWLEDGED, 1)) == [None]
