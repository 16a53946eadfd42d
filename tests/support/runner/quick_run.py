"""The part of the tests that runs while a developer edits: `pytest --quick`, or `make quick`."""
from __future__ import annotations

import pytest
from support.runner.xdist_scheduling import LONGEST

NEEDS_MORE = ('jvm', 'node', 'go', 'browser', 'valgrind', 'strace')
"""The markers of tests that need a slow program, or one that machines often lack."""

SLOW = (
    *LONGEST,
    'tests/client/test_streams_live.py',
    'tests/clients/',
    'tests/environment/',
    'tests/group/test_group_properties.py',
    'tests/log/test_cleaner_power_cuts.py',
    'tests/log/test_cleaner_against_reference.py',
    'tests/test_docs.py::test_the_transaction_of_the_readme_prints_what_the_readme_says',
    'tests/test_examples.py',
    'tests/tools/test_tools_check.py::test_a_repair_of_which_any_write_fails_can_be_done_again',
    'tests/tools/test_tools_dump_gaps.py',
    'tests/tools/test_tools_dump_limits.py',
    'tests/topics/test_many_partitions.py',
    'tests/transaction/test_any_history.py',
    'tests/verifying/test_planted_bugs.py',
)
"""The slow directories and files that the quick run omits. Of all tests that need no other program, theirs take a third
of the time.
"""


def is_quick(item: pytest.Item) -> bool:
    return not (item.nodeid.startswith(SLOW) or any(item.get_closest_marker(marker) for marker in NEEDS_MORE))
