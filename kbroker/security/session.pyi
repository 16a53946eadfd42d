"""Types of session.pyx, which has the documentation."""
import enum
from typing import Any

from kbroker.security.access import Access
from kbroker.security.principal import Principal

class LoginState(enum.IntEnum):
    UNIDENTIFIED = 0
    UNKNOWN = 1
    INTRODUCED = 2
    TOKENS = 3
    BARE_TOKENS = 4
    LOGGED_IN = 5
    RENEWING = 6
    RENEWING_BARE = 7
    FAILED = 8

TRANSITIONS: dict[LoginState, tuple[LoginState, ...]]
NEVER: int

class Session:
    principal: Principal
    access: Access | None
    state: LoginState
    expires_ms: int
    is_guarded: bool
    mechanism: str | None
    attempt: Any
    renewed_ms: int
    def __init__(self, principal: Principal, access: Access | None = None,
                 state: LoginState = LoginState.LOGGED_IN) -> None: ...
    @property
    def is_renewing(self) -> bool: ...
    @property
    def takes_bare_tokens(self) -> bool: ...
    def move(self, wanted: LoginState) -> None: ...
    def log_in(self, principal: Principal, access: Access | None, expires_ms: int = ...) -> None: ...
