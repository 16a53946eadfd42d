"""How the client tells of failure: what the network did (ClientError), and what a broker answered (KafkaError)."""
from kbroker.errors import ErrorCode, KafkaError


class ClientError(OSError):
    """The network, or what is at its other end, failed: one line that names the address and says what to do.

    `is_lasting`: trying again will not help (a certificate that is not trusted, a port that is not a broker's).
    """

    def __init__(self, message: str, is_lasting: bool = False):
        super().__init__(message)
        self.is_lasting = is_lasting


class AnswerTimeout(ClientError):
    """No answer came in time. It may still come: the connection stays in order as long as it is open."""


def known_code(code: int) -> ErrorCode:
    """A code that this client does not know is an error that it did not expect."""
    return ErrorCode._value2member_map_.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)  # type: ignore[return-value]


def error_of(code: int, what: str, message: str | None = None) -> KafkaError:
    """The error that a broker answered for `what`, in the broker's words where it sent some."""
    known = known_code(code)
    name = known.name if known == code else f'error code {code}'
    return KafkaError(known, f'{what}: {name}: {message or known.message}')


def check(code: int, what: str, message: str | None = None) -> None:
    """Raises KafkaError unless `code` is NONE."""
    if code:
        raise error_of(code, what, message)
