"""Commands and the status of a broker show durations and sizes in words."""

import pytest

from kbroker.base.words import words_for_bytes, words_for_duration, words_for_seconds


@pytest.mark.parametrize(('duration_ms', 'words'), [
    (0, '0 ms'), (45, '45 ms'), (3210, '3.2 s'), (60_000, '1 min'), (725_000, '12 min 5 s'), (12_000_000, '3 h 20 min'),
    (439_200_000, '5 d 2 h'), (-45, '-45 ms')])
def test_durations_in_words(duration_ms, words):
    assert words_for_duration(duration_ms) == words


def test_whole_seconds_in_words():
    assert [words_for_seconds(seconds) for seconds in (0, 59, 60, 3 * 3600 + 120 + 1, 10 * 86400)] == [
        '0 s', '59 s', '1 min', '3 h 2 min', '10 d']


def test_sizes_in_words():
    assert [words_for_bytes(size) for size in (0, 512, 1023, 1024, 1536, 64 << 20, 3 << 29, 3 << 30, 5 << 40)] == [
        '0 B', '512 B', '1023 B', '1.0 KiB', '1.5 KiB', '64.0 MiB', '1.5 GiB', '3.0 GiB', '5.0 TiB']
