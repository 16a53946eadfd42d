"""The errors that Kafka may send in answer to each API, as far as an application must cope with them."""
from __future__ import annotations

from kbroker.base.errors import ErrorCode
from kbroker.base.suggestions import did_you_mean

_COORDINATOR = frozenset({'COORDINATOR_LOAD_IN_PROGRESS', 'COORDINATOR_NOT_AVAILABLE', 'NOT_COORDINATOR'})
_LEADER = frozenset({'NOT_LEADER_OR_FOLLOWER', 'UNKNOWN_TOPIC_OR_PARTITION', 'KAFKA_STORAGE_ERROR'})
_EPOCH = frozenset({'FENCED_LEADER_EPOCH', 'UNKNOWN_LEADER_EPOCH'})
_TOPIC_RIGHT = frozenset({'TOPIC_AUTHORIZATION_FAILED'})
_GROUP = _COORDINATOR | {'GROUP_AUTHORIZATION_FAILED', 'INVALID_GROUP_ID'}
_MEMBER = _GROUP | {'UNKNOWN_MEMBER_ID', 'FENCED_INSTANCE_ID'}
_OFFSETS = frozenset({'OFFSET_METADATA_TOO_LARGE', 'INVALID_COMMIT_OFFSET_SIZE', 'UNKNOWN_TOPIC_OR_PARTITION'})
_TRANSACTION = _COORDINATOR | {'TRANSACTIONAL_ID_AUTHORIZATION_FAILED', 'CONCURRENT_TRANSACTIONS',
                               'INVALID_PRODUCER_EPOCH', 'PRODUCER_FENCED'}
_TRANSACTION_STATE = frozenset({'INVALID_PRODUCER_ID_MAPPING', 'INVALID_TXN_STATE'})

POSSIBLE_ERRORS: dict[str, frozenset[str]] = {
    'Produce': _LEADER | _TOPIC_RIGHT | {
        'CLUSTER_AUTHORIZATION_FAILED', 'CORRUPT_MESSAGE', 'INVALID_PRODUCER_EPOCH', 'INVALID_RECORD',
        'INVALID_TIMESTAMP', 'INVALID_TXN_STATE', 'MESSAGE_TOO_LARGE', 'NOT_ENOUGH_REPLICAS',
        'NOT_ENOUGH_REPLICAS_AFTER_APPEND', 'OUT_OF_ORDER_SEQUENCE_NUMBER', 'POLICY_VIOLATION', 'RECORD_LIST_TOO_LARGE',
        'REQUEST_TIMED_OUT', 'TRANSACTIONAL_ID_AUTHORIZATION_FAILED', 'UNKNOWN_PRODUCER_ID'},
    'Fetch': _LEADER | _EPOCH | _TOPIC_RIGHT | {
        'CORRUPT_MESSAGE', 'FETCH_SESSION_ID_NOT_FOUND', 'FETCH_SESSION_TOPIC_ID_ERROR', 'INCONSISTENT_TOPIC_ID',
        'INVALID_FETCH_SESSION_EPOCH', 'OFFSET_NOT_AVAILABLE', 'OFFSET_OUT_OF_RANGE', 'REPLICA_NOT_AVAILABLE',
        'UNKNOWN_TOPIC_ID'},
    'ListOffsets': _LEADER | _EPOCH | _TOPIC_RIGHT | {
        'OFFSET_NOT_AVAILABLE', 'REPLICA_NOT_AVAILABLE', 'REQUEST_TIMED_OUT'},
    'OffsetForLeaderEpoch': _LEADER | _EPOCH | _TOPIC_RIGHT,
    'Metadata': _TOPIC_RIGHT | {'INVALID_TOPIC_EXCEPTION', 'LEADER_NOT_AVAILABLE', 'LISTENER_NOT_FOUND',
                                'REPLICA_NOT_AVAILABLE', 'UNKNOWN_TOPIC_ID', 'UNKNOWN_TOPIC_OR_PARTITION'},
    'FindCoordinator': frozenset({'COORDINATOR_LOAD_IN_PROGRESS', 'COORDINATOR_NOT_AVAILABLE',
                                  'GROUP_AUTHORIZATION_FAILED', 'TRANSACTIONAL_ID_AUTHORIZATION_FAILED'}),
    'JoinGroup': _MEMBER | {'GROUP_MAX_SIZE_REACHED', 'INCONSISTENT_GROUP_PROTOCOL', 'INVALID_SESSION_TIMEOUT',
                            'MEMBER_ID_REQUIRED', 'REBALANCE_IN_PROGRESS'},
    'SyncGroup': _MEMBER | {'ILLEGAL_GENERATION', 'INCONSISTENT_GROUP_PROTOCOL', 'REBALANCE_IN_PROGRESS'},
    'Heartbeat': _MEMBER | {'ILLEGAL_GENERATION', 'REBALANCE_IN_PROGRESS'},
    'LeaveGroup': _MEMBER,
    'ConsumerGroupHeartbeat': _MEMBER | {'FENCED_MEMBER_EPOCH', 'GROUP_MAX_SIZE_REACHED', 'UNRELEASED_INSTANCE_ID',
                                         'UNSUPPORTED_ASSIGNOR'},
    'ShareGroupHeartbeat': _MEMBER | {'FENCED_MEMBER_EPOCH', 'GROUP_MAX_SIZE_REACHED'},
    'ShareFetch': _LEADER | _TOPIC_RIGHT | {'GROUP_AUTHORIZATION_FAILED', 'INVALID_SHARE_SESSION_EPOCH',
                                            'SHARE_SESSION_LIMIT_REACHED', 'SHARE_SESSION_NOT_FOUND',
                                            'UNKNOWN_TOPIC_ID'},
    'ShareAcknowledge': _LEADER | _TOPIC_RIGHT | {'GROUP_AUTHORIZATION_FAILED', 'INVALID_RECORD_STATE',
                                                  'INVALID_SHARE_SESSION_EPOCH', 'SHARE_SESSION_NOT_FOUND',
                                                  'UNKNOWN_TOPIC_ID'},
    'OffsetCommit': _MEMBER | _OFFSETS | _TOPIC_RIGHT | {
        'ILLEGAL_GENERATION', 'REBALANCE_IN_PROGRESS', 'STALE_MEMBER_EPOCH'},
    'OffsetFetch': _MEMBER | _TOPIC_RIGHT | {'STALE_MEMBER_EPOCH', 'UNSTABLE_OFFSET_COMMIT'},
    'InitProducerId': _TRANSACTION | {'CLUSTER_AUTHORIZATION_FAILED', 'INVALID_PRODUCER_ID_MAPPING',
                                      'INVALID_TRANSACTION_TIMEOUT'},
    'AddPartitionsToTxn': _TRANSACTION | _TRANSACTION_STATE | _TOPIC_RIGHT | {
        'OPERATION_NOT_ATTEMPTED', 'UNKNOWN_TOPIC_OR_PARTITION'},
    'AddOffsetsToTxn': _TRANSACTION | _TRANSACTION_STATE | {'GROUP_AUTHORIZATION_FAILED'},
    'TxnOffsetCommit': _MEMBER | _OFFSETS | _TOPIC_RIGHT | {
        'ILLEGAL_GENERATION', 'INVALID_PRODUCER_EPOCH', 'TRANSACTIONAL_ID_AUTHORIZATION_FAILED'},
    'EndTxn': _TRANSACTION | _TRANSACTION_STATE,
}
"""The APIs that applications use on their way through records, offsets, groups and transactions. For an API that is
missing here, an exploration injects no errors.
"""


def apis_with(error: str) -> set[str]:
    """Return the APIs in answer to which Kafka may send an error. Raise ValueError if there is none."""
    found = {api for api, errors in POSSIBLE_ERRORS.items() if error in errors}
    if not found:
        known = sorted(set().union(*POSSIBLE_ERRORS.values()))
        if error in ErrorCode.__members__:
            raise ValueError(f'error: Kafka sends {error} in answer to no API that is explored; expected an error such '
                             f'as {", ".join(known[:3])}')
        raise ValueError(f'error: found {error!r}, expected the name of an error of Kafka'
                         f'{did_you_mean(error.lower(), known)}')
    return found
