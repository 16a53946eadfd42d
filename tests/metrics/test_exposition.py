"""The text form of metrics with odd labels and with too many series."""
import itertools

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from kbroker.metrics.exposition import OPENMETRICS, SAMPLES_AT_ONCE, text_of
from kbroker.metrics.table import MOST_SERIES, Metric

LAG = Metric('kbroker_group_lag', 'gauge', 'The lag.', labels=('group',))


@pytest.mark.parametrize('name', ['a\r# HELP b', 'a\n# TYPE b', '"\\\\', '<b>', '\x85\u2028# x', '\0\x1b[31m'])
def test_a_name_with_odd_characters_is_the_value_of_its_label(name):
    names = [*map(str, range(SAMPLES_AT_ONCE)), name]
    text = b''.join(text_of([(LAG, (each,), 1) for each in names], OPENMETRICS)).decode()
    [family] = text_string_to_metric_families(text)
    assert [sample.labels['group'] for sample in family.samples] == names


def test_series_that_are_left_out_are_counted_in_short_parts():
    taken, waits = 0, []

    def samples():
        nonlocal taken
        for taken in range(1, 3 * MOST_SERIES + 1):
            yield LAG, (str(taken),), 1

    text = b''
    for part in text_of(samples(), OPENMETRICS):
        waits.append(taken)
        text += part or b''
    assert f'kbroker_metrics_series_left_out{{metric="kbroker_group_lag"}} {2.0 * MOST_SERIES}' in text.decode()
    assert max(later - earlier for earlier, later in itertools.pairwise(waits)) <= 1000
