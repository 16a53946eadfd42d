"""What a fenced producer is told: PRODUCER_FENCED, and in the versions before it was known INVALID_PRODUCER_EPOCH."""
from kbroker.errors import ErrorCode


def told_to_producer(code: ErrorCode, version: int, first_version_with_fenced: int) -> int:
    """The error code on the wire for the coordinator's answer `code`."""
    if code is ErrorCode.PRODUCER_FENCED and version < first_version_with_fenced:
        return int(ErrorCode.INVALID_PRODUCER_EPOCH)
    return int(code)
