"""The cost of a start is bounded, in instructions and in imported modules."""
import sys

import pytest
from callgrind import LIMIT_S, callgrind, read_total, run_program

INSTRUCTIONS = {(3, 11): 617_000_000}  # 612,107,339
"""Maps each version of Python to the bound on instructions of a start on an empty directory with compiled bytecode."""
NOT_AT_A_START = {'asyncio', 'ssl', 'cryptography', 'rich', 'subprocess', 'tempfile', 'pyarrow', 'multiprocessing',
                  'concurrent.futures', 'backports.zstd', 'compression.zstd', 'lz4', 'cramjam', 'kbroker.client',
                  'kbroker.control', 'kbroker.control.rules', 'kbroker.topics.controlled_flusher',
                  'kbroker.protocol.targets'}
"""The start must not import these modules: they are slow to import, and only some features need them.

Without the modules of control, no operation can be held or made to fail.
"""


@pytest.fixture(scope='module')
def bytecode(tmp_path_factory):
    return tmp_path_factory.mktemp('bytecode')


@pytest.fixture(scope='module')
def modules(bytecode, tmp_path_factory):
    return run_program('started_broker.py', tmp_path_factory.mktemp('start') / 'data', bytecode=bytecode).split()


def test_a_start_leaves_out_what_it_does_not_need(modules):
    assert 'kbroker.daemon.broker' in modules
    assert NOT_AT_A_START.isdisjoint(modules), NOT_AT_A_START & set(modules)


@pytest.mark.valgrind
@pytest.mark.timeout(LIMIT_S)
@pytest.mark.skipif(sys.version_info[:2] not in INSTRUCTIONS,
                    reason='gates: bounds on instructions were measured with other versions of Python')
def test_a_start_takes_no_more_instructions(modules, bytecode, tmp_path, verdict):
    run_program('started_broker.py', tmp_path / 'data', under=callgrind(tmp_path / 'out'), bytecode=bytecode)
    verdict('a start, in instructions', read_total(tmp_path / 'out'), most=INSTRUCTIONS[sys.version_info[:2]])
