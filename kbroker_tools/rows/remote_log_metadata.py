"""Records of `__remote_log_metadata` as text. The texts and error messages are those of Kafka's classes."""
from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

from kbroker.protocol.messages import (
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataSnapshotRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    RemotePartitionDeleteMetadataRecord,
)
from kbroker.protocol.plan import Message

SEGMENT_STATES = ('COPY_SEGMENT_STARTED', 'COPY_SEGMENT_FINISHED', 'DELETE_SEGMENT_STARTED', 'DELETE_SEGMENT_FINISHED')
PARTITION_STATES = ('DELETE_PARTITION_MARKED', 'DELETE_PARTITION_STARTED', 'DELETE_PARTITION_FINISHED')


def remote_log_text(record: Message) -> str:
    """Return the record as text. Raise ValueError with Kafka's message if Kafka's classes refuse the record."""
    return TEXT_OF[type(record)](record)


def _segment(record: Any) -> str:
    if record.start_offset < 0:
        raise ValueError(f'Unexpected start offset = {record.start_offset}. StartOffset for a remote segment cannot be '
                         'negative')
    if record.end_offset < record.start_offset:
        raise ValueError(f'Unexpected end offset = {record.end_offset}. EndOffset for a remote segment cannot be less '
                         f'than startOffset = {record.start_offset}')
    leader_epochs = _leader_epochs(record)
    state = _state(record.remote_log_segment_state, SEGMENT_STATES)         # Kafka checks this last too
    return (f'RemoteLogSegmentMetadata{{remoteLogSegmentId={_segment_id(record.remote_log_segment_id)}, '
            f'startOffset={record.start_offset}, endOffset={record.end_offset}, brokerId={record.broker_id}, '
            f'maxTimestampMs={record.max_timestamp_ms}, eventTimestampMs={record.event_timestamp_ms}, '
            f'segmentLeaderEpochs={leader_epochs}, segmentSizeInBytes={record.segment_size_in_bytes}, '
            f'customMetadata={_custom_metadata(record)}, state={state}, txnIdxEmpty={_bool(record.txn_index_empty)}}}')


def _snapshot(record: Any) -> str:
    state = _state(record.remote_log_segment_state, SEGMENT_STATES)
    return (f'RemoteLogSegmentMetadataSnapshot{{segmentId={_uuid(record.segment_id)}, '
            f'startOffset={record.start_offset}, endOffset={record.end_offset}, '
            f'maxTimestampMs={record.max_timestamp_ms}, segmentLeaderEpochs={_leader_epochs(record)}, '
            f'segmentSizeInBytes={record.segment_size_in_bytes}, customMetadata={_custom_metadata(record)}, '
            f'state={state}, txnIdxEmpty={_bool(record.txn_index_empty)}}}')


def _update(record: Any) -> str:
    state = _state(record.remote_log_segment_state, SEGMENT_STATES)
    return (f'RemoteLogSegmentMetadataUpdate{{remoteLogSegmentId={_segment_id(record.remote_log_segment_id)}, '
            f'customMetadata={_custom_metadata(record)}, state={state}, '
            f'eventTimestampMs={record.event_timestamp_ms}, brokerId={record.broker_id}}}')


def _partition_delete(record: Any) -> str:
    state = _state(record.remote_partition_delete_state, PARTITION_STATES, 'null')
    return (f'RemotePartitionDeleteMetadata{{topicPartition={_partition(record.topic_id_partition)}, '
            f'state={state}, eventTimestampMs={record.event_timestamp_ms}, brokerId={record.broker_id}}}')


def _state(number: int, names: Sequence[str], refusal: str = 'state can not be null') -> str:
    if not 0 <= number < len(names):
        raise ValueError(refusal)
    return names[number]


def _segment_id(segment_id: Any) -> str:
    return (f'RemoteLogSegmentId{{topicIdPartition={_partition(segment_id.topic_id_partition)}, '
            f'id={_uuid(segment_id.id)}}}')


def _partition(partition: Any) -> str:
    return f'{_uuid(partition.id)}:{partition.name}-{partition.partition}'


def _leader_epochs(record: Any) -> str:
    epochs = {entry.leader_epoch: entry.offset for entry in record.segment_leader_epochs}
    if not epochs:
        raise ValueError('segmentLeaderEpochs can not be null or empty')
    return '{' + ', '.join(f'{epoch}={offset}' for epoch, offset in sorted(epochs.items())) + '}'


def _custom_metadata(record: Any) -> str:
    data = record.custom_metadata
    return 'Optional.empty' if data is None else f'Optional[CustomMetadata{{{len(data)} bytes}}]'


def _uuid(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b'=').decode()


def _bool(value: bool) -> str:
    return 'true' if value else 'false'


TEXT_OF: dict[type[Message], Callable[[Any], str]] = {
    RemoteLogSegmentMetadataRecord: _segment,
    RemoteLogSegmentMetadataUpdateRecord: _update,
    RemotePartitionDeleteMetadataRecord: _partition_delete,
    RemoteLogSegmentMetadataSnapshotRecord: _snapshot,
}
