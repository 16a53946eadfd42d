"""Types of txn_offset_commit.pyx; the documentation stands there."""
from typing import Any

from kbroker.apis.context import Api, RequestContext
from kbroker.errors import ErrorCode

API: Api

def handle(context: RequestContext, request: Any) -> Any: ...
def error_response(request: Any, code: ErrorCode, message: str, version: int) -> Any: ...
