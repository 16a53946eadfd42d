"""The memory of an object is measured in a way that does not change while the object lives. Tables of names from
clients have a bound on this memory.
"""
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.base.object_memory import RecentEntries, memory_of
from kbroker.protocol.codec import encode
from kbroker.protocol.messages import HeartbeatRequest

LETTERS = st.sampled_from(['a', '\x7f', '\xe9', '\u20ac', '\U0001f600', '\ud800'])
EMOJI = '\U0001f600'


@given(st.text(LETTERS, max_size=40))
def test_the_memory_of_a_string_is_that_of_its_characters_and_of_its_utf_8(text):
    utf8_bytes = 0 if text.isascii() else len(text.encode('utf-8', 'surrogatepass')) + 1
    own_bytes = sys.getsizeof(''.join(list(text)))      # a string that no codec has seen
    assert own_bytes + utf8_bytes <= memory_of(text) <= own_bytes + utf8_bytes + 2 * 15


def test_one_emoji_makes_each_character_take_four_bytes():
    assert memory_of('a' * 30_000) < 30_100
    assert 150_000 < memory_of('a' * 30_000 + EMOJI) < 150_300


@pytest.mark.parametrize('value', [b'', b'abc', b'x' * 1000, (), ('a', 'b'), (1, None, b'c')])
def test_bytes_and_tuples_count_what_python_says(value):
    parts = sum(memory_of(part) for part in value) if isinstance(value, tuple) else 0
    assert sys.getsizeof(value) + parts <= memory_of(value) <= sys.getsizeof(value) + parts + 48


def test_what_is_counted_out_is_what_was_counted_in_though_a_codec_has_seen_the_string():
    """The size of a string that Python reports grows when a response contains the string. With that size, the counted
    memory of the groups fell below 0.
    """
    name = 'a' * 30_000 + EMOJI
    counted, python_says = memory_of(name), sys.getsizeof(name)
    encode(HeartbeatRequest(group_id=name, generation_id=1, member_id='m'), 4)
    assert memory_of(name) == counted
    assert python_says < sys.getsizeof(name) <= counted


def test_an_object_whose_memory_is_not_known_is_refused():
    with pytest.raises(TypeError, match='found dict'):
        memory_of({})


def test_the_entries_that_were_used_longest_ago_make_room():
    entries = RecentEntries(most_bytes=10_000, most_entries=3, entry_bytes=100)
    for key in 'abc':
        entries.put(key, key)
    assert entries.get('a') == 'a'
    entries.put('d', 'd')
    assert entries.oldest() == ('c', 'c')
    with pytest.raises(KeyError):
        entries.get('b')
    assert (len(entries), entries.held_bytes) == (3, 3 * (100 + memory_of('a')))


def test_a_long_key_takes_the_room_of_many_short_ones():
    entries = RecentEntries(most_bytes=10_000, most_entries=1000, entry_bytes=100)
    for number in range(50):
        entries.put(f'{number:02}', number)
    entries.put('x' * 1500 + EMOJI, 'long')
    assert len(entries) < 20 and entries.get('x' * 1500 + EMOJI) == 'long'
    entries.put('x' * 3000 + EMOJI, 'longer than all the room')
    with pytest.raises(KeyError):
        entries.get('x' * 3000 + EMOJI)
    entries.forget('x' * 1500 + EMOJI)
    assert entries.held_bytes == (100 + memory_of('00')) * len(entries)
    entries.clear()
    assert (len(entries), entries.held_bytes) == (0, 0)
