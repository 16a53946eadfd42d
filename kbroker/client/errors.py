"""The client's errors: ClientError for a network failure, KafkaError for an error that a broker returns."""
from kbroker.base.errors import ErrorCode, KafkaError

DENIALS = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED,
           ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
"""The errors of a client that lacks a right."""


class ClientError(OSError):
    """A failure of the network or of the peer. The message is one line with the address and a hint.

    If `is_lasting`, a retry does not help, for example for an untrusted certificate, or a port that is not a broker's.
    """

    def __init__(self, message: str, is_lasting: bool = False):
        super().__init__(message)
        self.is_lasting = is_lasting


class PartitionOffline(KafkaError):
    """A partition has no leader, although a broker that has a replica is running.

    The log directory of that broker has failed, or files of the partition are damaged. A retry does not help.
    """


class AnswerTimeout(ClientError):
    """No answer arrived in time. The answer may still arrive: the connection can be used while it is open."""


def known_code(code: int) -> ErrorCode:
    """Return the ErrorCode with this number, or UNKNOWN_SERVER_ERROR for an unknown number."""
    return ErrorCode._value2member_map_.get(code, ErrorCode.UNKNOWN_SERVER_ERROR)  # type: ignore[return-value]


def error_of(code: int, what: str, message: str | None = None, api: str = '') -> KafkaError:
    """Return the KafkaError for the error code of an answer. Its text has `what`, and the broker's message if it has
    one. Otherwise, `api` names the request, for the right that it needs.
    """
    known = known_code(code)
    name = known.name if known == code else f'error code {code}'
    if not message and known in DENIALS:
        from kbroker.client.rights import right_for  # seldom needed

        message = right_for(api, known)
    return KafkaError(known, f'{what}: {name}: {message or known.message}')


def check(code: int, what: str, message: str | None = None, api: str = '') -> None:
    """Raise the KafkaError that `error_of` returns, unless `code` is NONE."""
    if code:
        raise error_of(code, what, message, api)
