"""Types of produce.pyx; the documentation stands there."""
from typing import Any

from kbroker.apis.context import RequestContext
from kbroker.errors import ErrorCode

ACKS_ALL: int
ADMIN_CLIENT_ID: str
IMPLICIT_ADD_VERSION: int
ZSTD_VERSION: int
MAGIC_AT: int
CURRENT_MAGIC: int
WITHOUT_LOG_START_OFFSET: frozenset[ErrorCode]

class Batch: ...

class ProduceUnderWay:
    def __init__(self, context: RequestContext, request: Any) -> None: ...
    def verified(self, errors: dict[tuple[str, int], Any]) -> None: ...

class DurableBatch:
    def __init__(self, request: ProduceUnderWay, answer: Any) -> None: ...
    def __call__(self, error: Any) -> None: ...

def handle(context: RequestContext, request: Any) -> Any: ...
def error_response(request: Any, code: ErrorCode, message: str, version: int) -> Any: ...
