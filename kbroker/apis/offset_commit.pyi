"""Types of offset_commit.pyx; the documentation stands there."""
from typing import Any

from kbroker.apis.request import Api, Request
from kbroker.completion import Completion
from kbroker.errors import ErrorCode

API: Api

class OffsetCommitUnderWay(Completion): ...

def handle(request: Request, body: Any) -> None: ...
def error_response(body: Any, code: ErrorCode, message: str, version: int) -> Any: ...
