"""The table of attacks has the medians of the runs."""
from hostile.attack_measurements import Measurement, rows_of


def test_the_table_has_the_medians_of_the_growth_and_of_the_ratio():
    runs = [Measurement(40, 60, 2.0, 4.0), Measurement(40, 90, 1.0, 9.0), Measurement(50, 75, 2.0, 5.0)]
    assert rows_of([run.line('flood') for run in runs] + [runs[0].line('a drip')]) == [
        '| a drip | 20 MB | 2.0 | 4.0 ms | 1 |', '| flood | 25 MB | 2.5 | 5.0 ms | 3 |']
