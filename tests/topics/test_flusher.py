import pytest

from kbroker.topics.flusher import PARTITIONS_AT_ONCE, Flusher


class Spy:
    """Stands in for a partition. `end` is its log end offset, and `durable` is the offset up to which the flusher has
    reported a sync."""

    def __init__(self, name):
        self.name, self.end, self.durable, self.is_deleted = name, 0, 0, False

    def files_to_sync(self):
        return [self.name], self.end

    def append(self, flusher):
        self.end += 1
        flusher.request(self)

    def flushed(self, offset):
        self.durable = offset


@pytest.fixture
def failures():
    return []


@pytest.fixture
def flusher(disk, failures):
    return Flusher(disk.sync, failures.append)


def finish(disk, name, error=None):
    index = next(index for index, (files, _) in enumerate(disk.jobs) if files == [name])
    disk.jobs.pop(index)[1](error)


def test_a_partition_does_not_wait_for_the_sync_of_another(flusher, disk):
    slow, fast = Spy('slow'), Spy('fast')
    slow.append(flusher)
    fast.append(flusher)
    flusher.kick()
    finish(disk, 'fast')
    assert (slow.durable, fast.durable) == (0, 1)
    fast.append(flusher)
    flusher.kick()
    finish(disk, 'fast')
    assert (slow.durable, fast.durable) == (0, 2)


def test_a_partition_has_one_sync_under_way_and_the_next_covers_all_that_gathered(flusher, disk):
    partition = Spy('orders')
    for _ in range(3):
        partition.append(flusher)
        flusher.kick()
    assert len(disk.jobs) == 1
    finish(disk, 'orders')
    assert partition.durable == 1
    flusher.kick()
    finish(disk, 'orders')
    assert partition.durable == 3
    flusher.kick()
    assert not disk.jobs


def test_no_more_partitions_are_synced_at_once_than_the_limit(flusher, disk):
    partitions = [Spy(index) for index in range(PARTITIONS_AT_ONCE + 2)]
    for partition in partitions:
        partition.append(flusher)
    flusher.kick()
    assert [files for files, _ in disk.jobs] == [[index] for index in range(PARTITIONS_AT_ONCE)]
    partitions[-1].append(flusher)      # requested before its sync has begun
    finish(disk, 3)
    finish(disk, 4)
    flusher.kick()
    finish(disk, partitions[-1].name)
    assert partitions[-1].durable == 2


def test_after_a_failed_sync_nothing_is_flushed_and_nothing_called_durable(flusher, disk, failures):
    broken, sound, late = Spy('broken'), Spy('sound'), Spy('late')
    broken.append(flusher)
    sound.append(flusher)
    flusher.kick()
    late.append(flusher)
    error = OSError(5, 'Input/output error')
    finish(disk, 'broken', error)
    finish(disk, 'sound', OSError(5, 'again'))
    flusher.kick()
    assert failures == [error] and not disk.jobs
    assert broken.durable == sound.durable == late.durable == 0


def test_a_partition_that_was_deleted_is_left_alone(flusher, disk):
    partition = Spy('orders')
    partition.append(flusher)
    partition.is_deleted = True
    flusher.kick()
    assert not disk.jobs
