"""Kafka's error codes and the broker's exceptions."""
import enum
from collections.abc import Sequence


class ErrorCode(enum.IntEnum):
    """Kafka's error codes. Each row has the code on the wire, whether a client may retry, and the message."""

    retriable: bool
    message: str

    def __new__(cls, code: int, retriable: bool, message: str) -> 'ErrorCode':
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.message = message
        return member

    UNKNOWN_SERVER_ERROR = -1, False, 'The broker met an error that it did not expect.'
    NONE = 0, False, ''
    OFFSET_OUT_OF_RANGE = 1, False, 'The offset is outside the range that the partition holds.'
    CORRUPT_MESSAGE = 2, True, 'The batch failed its checksum, or its sizes contradict each other.'
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, 'This broker does not host this topic or partition.'
    INVALID_FETCH_SIZE = 4, False, 'The fetch size is not valid.'
    LEADER_NOT_AVAILABLE = 5, True, 'The partition has no leader at the moment.'
    NOT_LEADER_OR_FOLLOWER = 6, True, 'This broker is not the leader or replica that the request needs.'
    REQUEST_TIMED_OUT = 7, True, 'The request took longer than it was given.'
    BROKER_NOT_AVAILABLE = 8, False, 'The broker is not available.'
    REPLICA_NOT_AVAILABLE = 9, True, 'The replica is not available.'
    MESSAGE_TOO_LARGE = 10, False, 'The batch is larger than max.message.bytes.'
    STALE_CONTROLLER_EPOCH = 11, False, 'The controller moved to another broker.'
    OFFSET_METADATA_TOO_LARGE = 12, False, 'The metadata of the offset commit is longer than offset.metadata.max.bytes.'
    NETWORK_EXCEPTION = 13, True, 'The server disconnected before an answer came.'
    COORDINATOR_LOAD_IN_PROGRESS = 14, True, 'The coordinator is loading.'
    COORDINATOR_NOT_AVAILABLE = 15, True, 'The coordinator is not available.'
    NOT_COORDINATOR = 16, True, 'This broker is not the coordinator asked for.'
    INVALID_TOPIC_EXCEPTION = 17, False, 'The topic name is not valid, or the topic may not be used this way.'
    RECORD_LIST_TOO_LARGE = 18, False, 'The batch is larger than a segment.'
    NOT_ENOUGH_REPLICAS = 19, True, 'Fewer replicas are in sync than the write needs.'
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, True, 'The write is in the log, but on fewer replicas than it needs.'
    INVALID_REQUIRED_ACKS = 21, False, 'acks is none of -1, 0 and 1.'
    ILLEGAL_GENERATION = 22, False, 'The generation is not the current one of the group.'
    INCONSISTENT_GROUP_PROTOCOL = 23, False, 'The member has no protocol type or assignor in common with the group.'
    INVALID_GROUP_ID = 24, False, 'The group id is not valid.'
    UNKNOWN_MEMBER_ID = 25, False, 'The coordinator does not know this member.'
    INVALID_SESSION_TIMEOUT = 26, False, 'The session timeout is outside the range that the broker allows.'
    REBALANCE_IN_PROGRESS = 27, False, 'The group is rebalancing: join again.'
    INVALID_COMMIT_OFFSET_SIZE = 28, False, 'The offset commit is too large.'
    TOPIC_AUTHORIZATION_FAILED = 29, False, 'Access to the topic is denied.'
    GROUP_AUTHORIZATION_FAILED = 30, False, 'Access to the group is denied.'
    CLUSTER_AUTHORIZATION_FAILED = 31, False, 'Access to the cluster is denied.'
    INVALID_TIMESTAMP = 32, False, 'The timestamp of a record is outside the range that the topic accepts.'
    UNSUPPORTED_SASL_MECHANISM = 33, False, 'The SASL mechanism is not supported.'
    ILLEGAL_SASL_STATE = 34, False, 'The request does not fit the state of the SASL exchange.'
    UNSUPPORTED_VERSION = 35, False, 'The version of the API is not supported.'
    TOPIC_ALREADY_EXISTS = 36, False, 'A topic of this name exists already.'
    INVALID_PARTITIONS = 37, False, 'The number of partitions is not valid.'
    INVALID_REPLICATION_FACTOR = 38, False, 'The replication factor is below 1 or above the number of brokers.'
    INVALID_REPLICA_ASSIGNMENT = 39, False, 'The replica assignment is not valid.'
    INVALID_CONFIG = 40, False, 'The configuration is not valid.'
    NOT_CONTROLLER = 41, True, 'This is not the controller.'
    INVALID_REQUEST = 42, False, 'The request contradicts itself, or the protocol.'
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, False, 'The message format of the log does not support this.'
    POLICY_VIOLATION = 44, False, 'The request violates a policy of the cluster.'
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, False, 'The sequence number does not follow the last one of the producer.'
    DUPLICATE_SEQUENCE_NUMBER = 46, False, 'The sequence number was written before.'
    INVALID_PRODUCER_EPOCH = 47, False, 'The producer epoch is older than the one in use.'
    INVALID_TXN_STATE = 48, False, 'The transaction is not in a state that allows this.'
    INVALID_PRODUCER_ID_MAPPING = 49, False, 'The producer id is not the one of this transactional id.'
    INVALID_TRANSACTION_TIMEOUT = 50, False, 'The transaction timeout is below 1 or above transaction.max.timeout.ms.'
    CONCURRENT_TRANSACTIONS = 51, True, 'The transactional id has an operation under way.'
    TRANSACTION_COORDINATOR_FENCED = 52, False, 'The marker comes from a coordinator that has been replaced.'
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, 'Access to the transactional id is denied.'
    SECURITY_DISABLED = 54, False, 'Security features are switched off.'
    OPERATION_NOT_ATTEMPTED = 55, False, 'Not attempted, because another part of the request failed.'
    KAFKA_STORAGE_ERROR = 56, True, 'The log directory of the partition failed.'
    LOG_DIR_NOT_FOUND = 57, False, 'The log directory is not in the configuration.'
    SASL_AUTHENTICATION_FAILED = 58, False, 'SASL authentication failed.'
    UNKNOWN_PRODUCER_ID = 59, False, 'The partition has no state for this producer id.'
    REASSIGNMENT_IN_PROGRESS = 60, False, 'A reassignment of the partition is in progress.'
    DELEGATION_TOKEN_AUTH_DISABLED = 61, False, 'Delegation tokens are not enabled.'
    DELEGATION_TOKEN_NOT_FOUND = 62, False, 'The delegation token does not exist.'
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, False, 'The principal is neither owner nor renewer of the token.'
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64, False, 'Delegation tokens are not allowed on this connection.'
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, False, 'Access to the delegation token is denied.'
    DELEGATION_TOKEN_EXPIRED = 66, False, 'The delegation token has expired.'
    INVALID_PRINCIPAL_TYPE = 67, False, 'The type of the principal is not supported.'
    NON_EMPTY_GROUP = 68, False, 'The group has members.'
    GROUP_ID_NOT_FOUND = 69, False, 'The group does not exist.'
    FETCH_SESSION_ID_NOT_FOUND = 70, True, 'The fetch session does not exist.'
    INVALID_FETCH_SESSION_EPOCH = 71, True, 'The epoch of the fetch session is not the expected one.'
    LISTENER_NOT_FOUND = 72, True, 'The leader has no listener of this name.'
    TOPIC_DELETION_DISABLED = 73, False, 'delete.topic.enable is false.'
    FENCED_LEADER_EPOCH = 74, True, 'The leader epoch of the request is older than the current one.'
    UNKNOWN_LEADER_EPOCH = 75, True, 'The leader epoch of the request is newer than the current one.'
    UNSUPPORTED_COMPRESSION_TYPE = 76, False, 'The version of the request does not know this compression.'
    STALE_BROKER_EPOCH = 77, False, 'The broker epoch has changed.'
    OFFSET_NOT_AVAILABLE = 78, True, 'The high watermark has not caught up since the election.'
    MEMBER_ID_REQUIRED = 79, False, 'Join again with the member id that this answer carries.'
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True, 'The preferred leader is not available.'
    GROUP_MAX_SIZE_REACHED = 81, False, 'The group has group.max.size members.'
    FENCED_INSTANCE_ID = 82, False, 'Another member has taken this group.instance.id.'
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True, 'No replica is eligible to lead the partition.'
    ELECTION_NOT_NEEDED = 84, True, 'The partition has the leader it should have.'
    NO_REASSIGNMENT_IN_PROGRESS = 85, False, 'No reassignment is in progress.'
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False, 'A member of the group is subscribed to the topic.'
    INVALID_RECORD = 87, False, 'A record failed the validation of the broker.'
    UNSTABLE_OFFSET_COMMIT = 88, True, 'An open transaction holds an offset of the partition.'
    THROTTLING_QUOTA_EXCEEDED = 89, True, 'The quota is exceeded.'
    PRODUCER_FENCED = 90, False, 'A newer producer has taken this transactional id.'
    RESOURCE_NOT_FOUND = 91, False, 'The resource does not exist.'
    DUPLICATE_RESOURCE = 92, False, 'The resource is named twice.'
    UNACCEPTABLE_CREDENTIAL = 93, False, 'The credential does not meet the requirements.'
    INCONSISTENT_VOTER_SET = 94, False, 'The voter is not in the voter set.'
    INVALID_UPDATE_VERSION = 95, False, 'The version of the update is not valid.'
    FEATURE_UPDATE_FAILED = 96, False, 'The features could not be updated.'
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, False, 'The forwarded principal could not be read.'
    SNAPSHOT_NOT_FOUND = 98, False, 'The snapshot does not exist.'
    POSITION_OUT_OF_RANGE = 99, False, 'The position is outside the snapshot.'
    UNKNOWN_TOPIC_ID = 100, True, 'This broker hosts no topic of this id.'
    DUPLICATE_BROKER_REGISTRATION = 101, False, 'The broker id is registered already.'
    BROKER_ID_NOT_REGISTERED = 102, False, 'The broker id is not registered.'
    INCONSISTENT_TOPIC_ID = 103, True, 'The topic id of the log differs from the one in the request.'
    INCONSISTENT_CLUSTER_ID = 104, False, 'The cluster id differs from the one in the request.'
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, 'The transactional id does not exist.'
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True, 'The fetch session mixes topic names and topic ids.'
    INELIGIBLE_REPLICA = 107, False, 'The new in-sync replicas contain one that is not eligible.'
    NEW_LEADER_ELECTED = 108, False, 'The leader changed while the request was under way.'
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, False, 'The offset is in remote storage.'
    FENCED_MEMBER_EPOCH = 110, False, 'The member epoch was fenced by the coordinator.'
    UNRELEASED_INSTANCE_ID = 111, False, 'Another member still holds this group.instance.id.'
    UNSUPPORTED_ASSIGNOR = 112, False, 'The assignor of the member is not supported.'
    STALE_MEMBER_EPOCH = 113, False, 'The member epoch is stale: heartbeat, then retry.'
    MISMATCHED_ENDPOINT_TYPE = 114, False, 'The request was sent to an endpoint of the wrong type.'
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, 'The type of the endpoint is not supported.'
    UNKNOWN_CONTROLLER_ID = 116, False, 'The controller id is not known.'
    UNKNOWN_SUBSCRIPTION_ID = 117, False, 'The telemetry subscription is stale or not valid.'
    TELEMETRY_TOO_LARGE = 118, False, 'The telemetry is larger than the broker accepts.'
    INVALID_REGISTRATION = 119, False, 'The registration is not valid.'
    TRANSACTION_ABORTABLE = 120, False, 'The transaction met an error: abort it to go on.'
    INVALID_RECORD_STATE = 121, False, 'The record is not in a state that allows this.'
    SHARE_SESSION_NOT_FOUND = 122, True, 'The share session does not exist.'
    INVALID_SHARE_SESSION_EPOCH = 123, True, 'The epoch of the share session is not the expected one.'
    FENCED_STATE_EPOCH = 124, False, 'The state epoch of the share coordinator is older than the one in use.'
    INVALID_VOTER_KEY = 125, False, 'The voter key does not fit the receiver.'
    DUPLICATE_VOTER = 126, False, 'The voter is in the set already.'
    VOTER_NOT_FOUND = 127, False, 'The voter is not in the set.'
    INVALID_REGULAR_EXPRESSION = 128, False, 'The regular expression is not valid.'
    REBOOTSTRAP_REQUIRED = 129, False, 'The client has stale metadata: bootstrap again.'
    STREAMS_INVALID_TOPOLOGY = 130, False, 'The topology of the streams group is not valid.'
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, False, 'The epoch of the topology is not valid.'
    STREAMS_TOPOLOGY_FENCED = 132, False, 'The epoch of the topology is older than the one in use.'
    SHARE_SESSION_LIMIT_REACHED = 133, True, 'The broker holds group.share.max.share.sessions share sessions.'
    GROUP_DELETION_FAILED = 134, False, 'The group could not be deleted.'
    STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED = 135, False, 'The topology description could not be stored.'
    CONTROLLER_ID_NOT_REGISTERED = 136, False, 'The controller id is not registered.'


MOST_CHARACTERS = 8_000
"""The most characters of an error message.

Even at four bytes for each character, a message then fits into a string of a response, which has at most 32,767 bytes.
"""


class KafkaError(Exception):
    """Raised if a request, or one element of a request, fails.

    `code` goes into the response. If the response has an error text, the message goes there. A message says what was
    found and what was expected. It may quote a long name from a client. So messages are cut to fit into a string of a
    response.

    To keep an error as a result, call `with_traceback(None)` first. Otherwise its traceback and the frame that keeps it
    form a cycle.
    """

    def __init__(self, code: ErrorCode, message: str = ''):
        if len(message) > MOST_CHARACTERS:
            message = f'{message[:MOST_CHARACTERS]}...'
        super().__init__(message or code.message)
        self.code = code


class ProtocolError(Exception):
    """Raised if the peer violates the framing or the schema.

    The broker cannot assign a response to a request, so it closes the connection.
    """


class FrameMemoryError(Exception):
    """Raised if the system has no memory for a frame.

    The broker closes only the connection of the peer that sends the frame.
    """


class CorruptLogError(Exception):
    """Raised if bytes on the disk violate the format.

    The message has the file, the position, the bytes found and the bytes expected.
    """


class NewerFormatError(CorruptLogError):
    """Raised if sound bytes on the disk have a format that only a later release knows.

    `records` has the metadata records of the same batch that could be read.
    """

    records: Sequence[object] = ()


class LogDirectoryError(Exception):
    """Raised if the log directory cannot be used. The message says what was found and what to do."""


class ConfigError(Exception):
    """Raised if a setting is unknown or its value is not valid. `name` is the setting's dotted name."""

    def __init__(self, name: str, message: str):
        super().__init__(message)
        self.name = name
