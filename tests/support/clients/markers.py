"""A function that waits until a broker has written the markers of all decided transactions."""
from __future__ import annotations

import time

from kbroker.client import Admin

LIMIT_S = 240


def await_markers(address: str) -> None:
    """Wait until each decided transaction has its markers. Raise AssertionError if it takes longer than LIMIT_S."""
    end = time.monotonic() + LIMIT_S
    with Admin(address) as admin:
        while left := [row for row in admin.list_transactions() if row.state.startswith('Prepare')]:
            assert time.monotonic() < end, left     # a kill may have come between a decision and its markers
