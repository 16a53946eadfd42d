"""The map from keys to their last offsets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.log.offset_map import OffsetMap, sip_hash_128

KEYS = st.lists(st.binary(max_size=20), max_size=200)


@pytest.mark.parametrize(
    ('size', 'expected'), [(0, 'a3817f04ba25a8e66df67214c7550293'), (1, 'da87c1d86b99af44347659119b22fc45')]
)
def test_the_hash_is_siphash_2_4_with_128_bits(size, expected):
    """The expected values are the first test vectors of the authors of SipHash: the key is 00..0f, the input 00 01 02
    ...
    """
    assert sip_hash_128(bytes(range(16)), bytes(range(size))).hex() == expected


@given(KEYS, st.sampled_from([0.1, 0.5, 1.0]))
def test_a_key_has_the_last_offset_that_was_put(keys, load_factor):
    offsets = OffsetMap(1 << 20, load_factor, max_keys=len(keys))
    for offset, key in enumerate(keys):
        assert offsets.put(key, offset)
        assert offsets.latest_offset == offset
    last = {key: offset for offset, key in enumerate(keys)}
    assert {key: offsets.get(key) for key in keys} == last
    assert len(offsets) == len(last)
    assert offsets.get(b'a key that is longer than all others') is None


def test_a_full_map_takes_no_new_key_but_new_offsets_of_those_it_has():
    offsets = OffsetMap(24 * 10, 0.5, max_keys=1000)
    assert (offsets.slots, offsets.max_entries) == (10, 5)
    for number in range(5):
        assert offsets.put(b'%d' % number, number)
    assert not offsets.put(b'new', 5)
    assert offsets.put(b'0', 6)
    assert (offsets.get(b'0'), offsets.get(b'new'), offsets.latest_offset) == (6, None, 6)


def test_a_map_is_no_larger_than_the_keys_that_can_come():
    assert OffsetMap(1 << 40, 0.9, max_keys=9).slots < 20


def test_two_maps_hash_with_secrets_of_their_own():
    """If a client could choose keys with equal hashes, the cleaner would drop a record that must remain."""
    assert sip_hash_128(b'a' * 16, b'key') != sip_hash_128(b'b' * 16, b'key')
    with pytest.raises(ValueError, match='found a secret of 1 bytes'):
        OffsetMap(100, 0.5, 1, secret=b'a')
