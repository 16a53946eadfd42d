"""Types of produce.pyx; the documentation stands there."""
from collections.abc import Iterable
from typing import Any

from kbroker.apis.request import Api, Handler
from kbroker.errors import ErrorCode, KafkaError

API: Api
ADMIN_CLIENT_ID: str
WITHOUT_LOG_START_OFFSET: frozenset[ErrorCode]

class ProduceUnderWay: ...
class ProduceHandler(Handler): ...

def error_response(body: Any, code: ErrorCode, message: str, version: int) -> Any: ...
def as_read(frame: bytes, version: int, position: int = 0) -> tuple[
    str | None, int, list[tuple[bytes, list[tuple[int, bytes | None]]]]]: ...
def as_written(frame: bytes, version: int, correlation_id: int, answers: Iterable[KafkaError | tuple[int, int, int]],
               position: int = 0) -> bytes: ...
