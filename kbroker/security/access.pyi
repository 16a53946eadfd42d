"""Types of access.pyx, which has the documentation."""
from typing import Any

from kbroker.security.authorizer import Authorizer
from kbroker.security.principal import Principal

class DecisionCaches:
    generation: int
    held_bytes: int
    most_bytes: int
    most_bytes_of_one: int
    def __init__(self, authorizer: Authorizer) -> None: ...
    def expire(self) -> None: ...

class Access:
    caches: DecisionCaches
    principal: Principal
    host: str
    def __init__(self, caches: DecisionCaches, principal: Principal, host: str) -> None: ...
    def may(self, operation: int, resource_type: int, name: str | None, request: Any = None,
            quiet: bool = False) -> bool: ...
    def may_by_type(self, operation: int, resource_type: int, request: Any = None) -> bool: ...
    def forget(self) -> None: ...
