"""The error code for a fenced producer: PRODUCER_FENCED, or INVALID_PRODUCER_EPOCH in versions without
PRODUCER_FENCED."""
from kbroker.base.errors import ErrorCode


def fencing_code(code: ErrorCode, version: int, first_version_with_fenced: int) -> int:
    """Return the error code to send for the transaction coordinator's result `code`."""
    if code is ErrorCode.PRODUCER_FENCED and version < first_version_with_fenced:
        return int(ErrorCode.INVALID_PRODUCER_EPOCH)
    return int(code)
