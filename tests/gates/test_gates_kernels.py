"""Each compiled path keeps its speed relative to a reference. Both run alternately on the same processor.

`bench/kernels.py` declares them with their bounds. `make gates` prints the ratios, from which a bound is set.
"""
import pytest
from kernels import CASES, CRCMOD
from paired import cpu_ratio


def test_work_done_twice_shows_as_a_ratio_of_a_half():
    data = bytes(16_384)
    assert 0.4 < cpu_ratio(lambda: CRCMOD(data), lambda: (CRCMOD(data), CRCMOD(data))) < 0.6


@pytest.mark.parametrize('name', CASES)
def test_a_kernel_keeps_its_distance_to_the_reference(name, benchmark, verdict, tmp_path):
    kernel = CASES[name].make(tmp_path)
    verdict(f'{name}: CPU time divided by ours', cpu_ratio(kernel.reference, kernel.ours), least=CASES[name].bound)
    benchmark(kernel.ours)
