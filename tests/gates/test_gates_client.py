"""The work of a producer and a consumer for each record is bounded. It is counted in instructions."""
import sys

import pytest
from callgrind import COUNTS_LATER, LIMIT_S, callgrind, read_total, run_program

RECORDS = 10_000
INSTRUCTIONS = {(3, 11): {'send': 3_800, 'send_batch': 350, 'consume': 750}}  # 3,411, 318 and 695
"""Maps each version of Python to the bounds on instructions for a record of 100 bytes."""


@pytest.fixture(scope='module')
def bytecode(tmp_path_factory):
    """Run client_work.py once. Return the directory with its bytecode, so that callgrind does not count the
    compilation.
    """
    directory = tmp_path_factory.mktemp('bytecode')
    run_program('client_work.py', 'send', 0, bytecode=directory)
    return directory


@pytest.mark.valgrind
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.skipif(sys.version_info[:2] not in INSTRUCTIONS,
                    reason='gates: bounds on instructions were measured with other versions of Python')
@pytest.mark.parametrize('work', ['send', 'send_batch', 'consume'])
def test_a_record_takes_no_more_instructions(work, bytecode, tmp_path, verdict):
    run_program('client_work.py', work, RECORDS, under=callgrind(tmp_path / 'out', COUNTS_LATER), bytecode=bytecode)
    verdict(f'{work} of a record of 100 bytes, in instructions', read_total(tmp_path / 'out') // RECORDS,
            most=INSTRUCTIONS[sys.version_info[:2]][work])
