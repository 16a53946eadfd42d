"""Types of request.pyx; the documentation stands there."""
from collections.abc import Callable, Mapping
from typing import Any

from kbroker.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey

_Handle = Callable[[Request, Any], Any]

class Request:
    node: Any
    api: Api
    connection: Any
    client_id: str | None
    version: int
    correlation_id: int
    @property
    def client_host(self) -> str: ...
    @property
    def connection_id(self) -> int: ...
    @property
    def advertised_address(self) -> tuple[str, int]: ...
    def reply(self, response: Any) -> None: ...
    def let_next_pass(self) -> None: ...

class Handler: ...

class DecodingHandler(Handler):
    def __init__(self, handle: _Handle, request_class: type) -> None: ...

def answer_later(request: Request, message: Any, error: Exception | None, response: Any) -> None: ...

class Api:
    key: ApiKey
    min_version: int
    max_version: int
    advertised_min_version: int | None
    error_response: Callable[[Any, ErrorCode, str, int], Any] | None
    def __init__(self, key: ApiKey, min_version: int, max_version: int,
                 handle: _Handle | Handler | Mapping[tuple[int, int], _Handle | Handler],
                 error_response: Callable[[Any, ErrorCode, str, int], Any] | None = None,
                 advertised_min_version: int | None = None) -> None: ...
    def failure(self, body: Any, code: ErrorCode, message: str, version: int) -> Any: ...
