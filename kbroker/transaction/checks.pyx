"""Checks of a request that is about to change a transaction. Each check raises KafkaError to refuse the request."""
from libc.stdint cimport int16_t, int64_t

from kbroker.transaction.state cimport TransactionMetadata

from kbroker.base.errors import ErrorCode, KafkaError

cdef object CONCURRENT_TRANSACTIONS = ErrorCode.CONCURRENT_TRANSACTIONS


cdef object busy(TransactionMetadata metadata):
    """Return the KafkaError that refuses a request while another change of the transactional.id is in flight."""
    return KafkaError(CONCURRENT_TRANSACTIONS, f'{metadata.transactional_id!r} is in '
                      f'{metadata.current.state.title}, a change is under way')


cdef int check_not_busy(TransactionMetadata metadata) except -1:
    """Raise CONCURRENT_TRANSACTIONS while a row of the transactional.id is pending.

    Call this check first, because the producer may already have the producer id and epoch of the pending row
    (KAFKA-18464).
    """
    if metadata.pending is not None:
        raise busy(metadata)
    return 0


cdef int check_producer_id(TransactionMetadata metadata, int64_t producer_id) except -1:
    """Raise INVALID_PRODUCER_ID_MAPPING if the request's producer id is not the client's current one."""
    if producer_id != metadata.current.id_of_client():
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f'found producer id {producer_id} for '
                         f'{metadata.transactional_id!r}, expected {metadata.current.id_of_client()}')
    return 0


cdef int check_epoch(TransactionMetadata metadata, int16_t producer_epoch) except -1:
    """Raise PRODUCER_FENCED if the request's epoch is not the client's current one.

    A higher epoch is refused, too (KAFKA-9600).
    """
    if producer_epoch != metadata.current.epoch_of_client():
        raise KafkaError(ErrorCode.PRODUCER_FENCED, f'found producer epoch {producer_epoch} for '
                         f'{metadata.transactional_id!r}, expected {metadata.current.epoch_of_client()}')
    return 0


cdef int check_not_kept(TransactionMetadata metadata) except -1:
    """Raise INVALID_TXN_STATE if the client has kept an open transaction.

    It must complete that transaction before it writes.
    """
    if metadata.current.keeps():
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, f'{metadata.transactional_id!r} has a prepared transaction, '
                         'which is to be completed before the next one begins')
    return 0


cdef int check_row_can_hold(int client_transaction_version, int transaction_version) except -1:
    """Raise UNSUPPORTED_VERSION if rows of level `transaction_version` have no field for the client's version."""
    if transaction_version == 0 and client_transaction_version > 0:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f'found a client of transaction version '
                         f'{client_transaction_version}, but transaction.version is finalized at 0')
    return 0


cdef int check_partitions_count(Py_ssize_t count) except -1:
    """Raise TRANSACTION_ABORTABLE if a row with `count` partitions would take too long to encode, and would hold the
    loop.
    """
    if count > MOST_PARTITIONS:
        raise KafkaError(ErrorCode.TRANSACTION_ABORTABLE, f'found a transaction of {count} partitions, expected '
                         f'{MOST_PARTITIONS} at most')
    return 0
