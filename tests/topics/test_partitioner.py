"""Group ids and transactional.ids are mapped to the same partitions as in Kafka."""
import pytest

from kbroker.topics.partitioner import partition_for


@pytest.mark.parametrize(('key', 'partition'),
                         [('tx-1', 20), ('my-txn', 45), ('g1', 42), ('console-consumer-1', 24), ('', 0)])
def test_the_known_vectors_over_fifty_partitions(key, partition):
    assert partition_for(key, 50) == partition


def test_a_character_outside_the_basic_plane_counts_as_two_utf_16_units():
    high, low = 0xD83D, 0xDE00                       # U+1F600
    assert partition_for('\U0001F600', 1000) == (31 * high + low) % 1000


def test_the_smallest_int_hash_is_partition_zero():
    assert partition_for('polygenelubricants', 50) == 0     # its Java hash is -2**31


def test_a_negative_hash_is_made_positive_before_the_modulo():
    assert partition_for('my-transactional-id', 50) == 46        # its Java hash is -959806496
