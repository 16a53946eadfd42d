"""Types of request.pyx; the documentation stands there."""
from collections.abc import Callable, Generator, Mapping
from typing import Any, NoReturn

from kbroker.errors import ErrorCode
from kbroker.protocol.api_keys import ApiKey

_Handle = Callable[[Request, Any], Any]
_Steps = Generator[None]

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
    def is_wanted(self) -> bool: ...

class Handler: ...

class DecodingHandler(Handler):
    def __init__(self, handle: _Handle, request_class: type) -> None: ...

LONGEST_FRAME_BYTES: int

def serve_in_slices(request: Request, request_class: type, handle: _Handle, data: bytes) -> _Steps: ...
def answer_in_slices(request: Request, message: Any, response: Any) -> _Steps: ...
def reply_in_slices(request: Request, response: Any) -> _Steps: ...
def raise_again(error: Exception, _request: Request, _message: Any) -> NoReturn: ...

class Api:
    key: ApiKey
    min_version: int
    max_version: int
    max_frame_bytes: int
    advertised_min_version: int | None
    error_response: Callable[[Any, ErrorCode, str, int], Any] | None
    def __init__(self, key: ApiKey, min_version: int, max_version: int,
                 handle: _Handle | Handler | Mapping[tuple[int, int], _Handle | Handler],
                 error_response: Callable[[Any, ErrorCode, str, int], Any] | None = None,
                 advertised_min_version: int | None = None) -> None: ...
    def failure(self, body: Any, code: ErrorCode, message: str, version: int) -> Any: ...
