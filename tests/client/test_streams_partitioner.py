"""The choice of a partition: by the hash that all Kafka clients share, and sticky for records without a key."""
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from kbroker.client.partitioner import StickyPartitions, murmur2, partition_for_key


@pytest.mark.parametrize(('key', 'hashed'), [
    (b'21', -973932308), (b'foobar', -790332482), (b'a-little-bit-long-string', -985981536),
    (b'a-little-bit-longer-string', -1486304829), (b'lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8', -58897971),
    (b'abc', 479470107)])
def test_a_key_has_the_hash_that_the_java_client_gives_it(key, hashed):
    assert murmur2(key) == hashed


@given(st.binary(max_size=40))
def test_a_key_has_the_hash_that_another_client_gives_it(key):
    assert murmur2(key) & 0xFFFFFFFF == kafka_python_murmur2(key)


@given(st.binary(max_size=40), st.integers(1, 1000))
def test_a_partition_is_always_within_the_topic(key, partitions):
    assert 0 <= partition_for_key(key, partitions) < partitions


def test_keyless_records_stay_on_a_partition_until_a_batch_is_there():
    sticky = StickyPartitions(100, random.Random(1))
    places = [sticky.place(30, range(3)) for _ in range(12)]
    assert places[:4] == [places[0]] * 4
    assert places[4:8] == [places[4]] * 4
    assert places[4] != places[0]


def test_a_partition_without_a_leader_is_left_at_once():
    sticky = StickyPartitions(1000, random.Random(1))
    first = sticky.place(1, [0, 1])
    assert sticky.place(1, [1 - first]) == 1 - first


def test_a_topic_of_one_partition_has_one_place():
    sticky = StickyPartitions(10)
    assert {sticky.place(20, [0]) for _ in range(5)} == {0}
