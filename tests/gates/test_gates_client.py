"""The work of a producer for each record stays short, in instructions."""
import sys

import pytest
from callgrind import COUNTS_LATER, LIMIT_S, callgrind, read_total, run_program
from support.attempts import TooSlow

RECORDS = 10_000
INSTRUCTIONS = {(3, 11): 40_000_000}  # 33,965,559 for `send` and 3,085,732 for `send_batch`
"""The most instructions of so many sends of 100 bytes and one `send_batch` of as many rows, by version of Python."""


@pytest.mark.valgrind
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.skipif(sys.version_info[:2] not in INSTRUCTIONS,
                    reason='gates: bounds on instructions were measured with other versions of Python')
def test_sending_takes_no_more_instructions(tmp_path):
    counts = []
    run_program('client_sends.py', 0, 0, bytecode=tmp_path / 'bytecode')
    for records in (0, RECORDS):
        run_program('client_sends.py', records, records, under=callgrind(tmp_path / 'out', COUNTS_LATER),
                    bytecode=tmp_path / 'bytecode')
        counts.append(read_total(tmp_path / 'out'))
    found, bound = counts[1] - counts[0], INSTRUCTIONS[sys.version_info[:2]]
    print(f'{RECORDS} sends and a send_batch of {RECORDS} rows: {found} instructions, at most {bound} expected')
    if found > bound:
        raise TooSlow(f'{RECORDS} sends and a send_batch: found {found} instructions, expected at most {bound}')
