"""Types of txn_offset_commit.pyx; the documentation stands there."""
from typing import Any

from kbroker.apis.request import Api, Request
from kbroker.completion import Completion
from kbroker.errors import ErrorCode

API: Api

class TxnOffsetCommitUnderWay(Completion): ...

def handle(request: Request, body: Any) -> Any: ...
def error_response(body: Any, code: ErrorCode, message: str, version: int) -> Any: ...
