"""Types of end_txn.pyx; the documentation stands there."""
from typing import Any

from kbroker.errors import ErrorCode

class EndTxnUnderWay: ...

def handle_frame(broker: Any, connection: Any, sequence: int, version: int, correlation_id: int,
                 client_id: str | None, frame: memoryview, position: int) -> None: ...
def error_response(request: Any, code: ErrorCode, message: str, version: int) -> Any: ...
