"""The bytes of the markers that end a transaction, and the coordinator's reactions to failed markers."""
import enum

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from kbroker.record.batch cimport (
    ATTRIBUTES_AT, BASE_TIMESTAMP_AT, CRC_AT, HEADER_BYTES, MAX_TIMESTAMP_AT, PRODUCER_EPOCH_AT, PRODUCER_ID_AT,
)
from kbroker.transaction.state cimport STATUS_PREPARE_COMMIT, TransactionRow
from kbroker.wire.bytes cimport write_int16, write_int32, write_int64
from kbroker.wire.crc32c cimport crc32c_update

from kbroker.base.errors import ErrorCode
from kbroker.record.control import encode_end_txn_marker

cdef enum:
    # The batch of a marker has one record after its header, with these fields: length, attributes, timestamp delta,
    # offset delta, length of the key, key (version, type), length of the value, value (version, coordinator epoch),
    # count of headers. Outside the key and the value, each field takes one byte.
    CONTROL_TYPE_AT = HEADER_BYTES + 7
    COORDINATOR_EPOCH_AT = HEADER_BYTES + 12
    ABORT = 0
    COMMIT = 1


class Reaction(enum.Enum):
    """The coordinator's reaction to a marker that a partition did not accept.

    - RETRY: append the marker again after a backoff.
    - GIVE_UP: another coordinator has already decided about this producer. The transaction stays prepared until the
      next load.
    - DONE: the partition needs no marker.
    """

    RETRY = 'retry'
    GIVE_UP = 'give up'
    DONE = 'done'


REACTIONS = {
    ErrorCode.INVALID_PRODUCER_EPOCH: Reaction.GIVE_UP,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: Reaction.GIVE_UP,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT: Reaction.DONE,
    ErrorCode.UNSUPPORTED_VERSION: Reaction.DONE,
}
"""Maps error codes of a failed marker to the reaction. For all other error codes, the coordinator retries.

Kafka instead drops a marker whose error it does not list, until its next restart.
"""

cdef bytes A_MARKER = bytes(encode_end_txn_marker(commit=True, producer_id=0, producer_epoch=0, coordinator_epoch=0,
                                                  timestamp_ms=0))
assert len(A_MARKER) == MARKER_BYTES


cdef int write_marker(uint8_t *at, TransactionRow prepared, int32_t coordinator_epoch, int64_t now_ms) except -1:
    """Write the batch of the marker for the decision of `prepared`.

    The bytes equal the result of `encode_end_txn_marker`.
    """
    memcpy(at, PyBytes_AS_STRING(A_MARKER), MARKER_BYTES)
    write_int64(at + BASE_TIMESTAMP_AT, now_ms)
    write_int64(at + MAX_TIMESTAMP_AT, now_ms)
    write_int64(at + PRODUCER_ID_AT, prepared.fields.producer_id)
    write_int16(at + PRODUCER_EPOCH_AT, prepared.fields.producer_epoch)
    write_int16(at + CONTROL_TYPE_AT, COMMIT if prepared.fields.state == STATUS_PREPARE_COMMIT else ABORT)
    write_int32(at + COORDINATOR_EPOCH_AT, coordinator_epoch)
    write_int32(at + CRC_AT, <int32_t>crc32c_update(0, at + ATTRIBUTES_AT, MARKER_BYTES - ATTRIBUTES_AT))
    return 0
