"""Types of end_txn.pyx; the documentation stands there."""
from typing import Any

from kbroker.apis.context import Api
from kbroker.apis.frame_handler import FrameHandler
from kbroker.errors import ErrorCode

API: Api

class EndTxnUnderWay: ...

class EndTxnHandler(FrameHandler): ...

def error_response(request: Any, code: ErrorCode, message: str, version: int) -> Any: ...
