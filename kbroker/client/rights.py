"""The rights that requests need whose answers have no text for an error. Kafka's documentation of ACLs has the list."""
from __future__ import annotations

from kbroker.base.errors import ErrorCode

TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
TRANSACTIONAL_ID = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

READ_GROUP = {GROUP: 'READ on the group'}
WRITE_TOPIC = {TOPIC: 'WRITE on the topic'}
WRITE_ID = {TRANSACTIONAL_ID: 'WRITE on the transactional id'}
RIGHTS: dict[str, dict[ErrorCode, str]] = {
    'Produce': WRITE_TOPIC | WRITE_ID,
    'Fetch': {TOPIC: 'READ on the topic'},
    'Metadata': {TOPIC: 'DESCRIBE on the topic, which READ and WRITE include'},
    'ListOffsets': {TOPIC: 'DESCRIBE on the topic, which READ and WRITE include'},
    'JoinGroup': READ_GROUP, 'SyncGroup': READ_GROUP, 'Heartbeat': READ_GROUP,
    'OffsetCommit': READ_GROUP | {TOPIC: 'READ on the topic'},
    'OffsetFetch': {GROUP: 'DESCRIBE on the group, which READ includes',
                    TOPIC: 'DESCRIBE on the topic, which READ and WRITE include'},
    'OffsetDelete': {GROUP: 'DELETE on the group', TOPIC: 'READ on the topic'},
    'DeleteGroups': {GROUP: 'DELETE on the group'},
    'DeleteRecords': {TOPIC: 'DELETE on the topic'},
    'InitProducerId': WRITE_ID | {CLUSTER: 'WRITE on a topic, or IDEMPOTENT_WRITE on the cluster'},
    'AddPartitionsToTxn': WRITE_ID | WRITE_TOPIC,
    'AddOffsetsToTxn': WRITE_ID | READ_GROUP,
    'TxnOffsetCommit': WRITE_ID | READ_GROUP | {TOPIC: 'READ on the topic'},
    'EndTxn': WRITE_ID,
    'WriteTxnMarkers': {CLUSTER: 'ALTER on the cluster'},
    'DescribeLogDirs': {CLUSTER: 'DESCRIBE on the cluster'},
    'ListConfigResources': {CLUSTER: 'DESCRIBE_CONFIGS on the cluster'},
    'DescribeTransactions': {TRANSACTIONAL_ID: 'DESCRIBE on the transactional id, which WRITE includes'},
}


def right_for(api: str, code: ErrorCode) -> str | None:
    """Return which right a client lacks, or None if it is not known."""
    right = RIGHTS.get(api, {}).get(code)
    return None if right is None else f'the user of this client needs {right}'
