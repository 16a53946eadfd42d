"""Types of context.pyx; the documentation stands there."""
from collections.abc import Callable
from typing import Any

from kbroker.apis.frame_handler import FrameHandler
from kbroker.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey

NO_REPLY: object

class RequestContext:
    broker: Any
    api_key: ApiKey
    version: int
    correlation_id: int
    client_id: str | None
    def __init__(self, broker: Any, api_key: ApiKey, version: int, correlation_id: int, client_id: str | None,
                 connection: Any, sequence: int, answer_has_tags: bool) -> None: ...
    @property
    def client_host(self) -> str: ...
    @property
    def connection_id(self) -> int: ...
    @property
    def advertised_address(self) -> tuple[str, int]: ...
    def reply(self, response: Any) -> None: ...
    def let_next_pass(self) -> None: ...
    def close(self, reason: str) -> None: ...

class Api:
    key: ApiKey
    min_version: int
    max_version: int
    handle: Callable[[RequestContext, Any], Any] | None
    error_response: Callable[[Any, ErrorCode, str, int], Any] | None
    advertised_min_version: int | None
    frame_handler: FrameHandler | None
    def __init__(self, key: ApiKey, min_version: int, max_version: int,
                 handle: Callable[[RequestContext, Any], Any] | None,
                 error_response: Callable[[Any, ErrorCode, str, int], Any] | None = None,
                 advertised_min_version: int | None = None, frame_handler: FrameHandler | None = None) -> None: ...
