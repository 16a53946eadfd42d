"""Types of end_txn.pyx, which has the documentation."""
from typing import Any

from kbroker.apis.serving.request import Api, Handler
from kbroker.base.errors import ErrorCode

API: Api

class EndTxnInFlight: ...

class EndTxnHandler(Handler): ...

def error_response(body: Any, code: ErrorCode, message: str, version: int) -> Any: ...
