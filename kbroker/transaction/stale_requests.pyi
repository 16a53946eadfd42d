"""Types of stale_requests.pyx, which has the documentation."""
from collections.abc import Callable
from typing import Any

from kbroker.settings.config import Config

MOST_GROUPS: int

class GroupConnection: ...

class StaleRequests:
    most_groups: int
    find_connection: Callable[[int], Any]
    @property
    def is_enabled(self) -> bool: ...
    @property
    def refused(self) -> int: ...
    @property
    def groups_count(self) -> int: ...
    def __init__(self, config: Config) -> None: ...
    def check_offsets(self, transactional_id: str, producer_id: int, producer_epoch: int, group_id: str,
                      connection: Any) -> None: ...

def no_connection(_connection_id: int) -> None: ...
