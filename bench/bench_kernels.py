"""The compiled paths, each next to its reference. Compare only times of the same group in the same run.

    python -m pytest bench/bench_kernels.py --benchmark-group-by=group --benchmark-columns=median,iqr,rounds
"""
import pytest
from kernels import CASES


@pytest.mark.parametrize('side', ['ours', 'reference'])
@pytest.mark.parametrize('name', CASES)
def test_kernel(benchmark, name, side, tmp_path):
    benchmark.group = name
    benchmark(getattr(CASES[name].make(tmp_path), side))
