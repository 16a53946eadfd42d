"""Checks of a request that is about to change a transaction. Each check raises KafkaError to refuse the request."""
from libc.stdint cimport int16_t, int64_t

from kbroker.transaction.state cimport TransactionMetadata

from kbroker.base.errors import ErrorCode, KafkaError

cdef object CONCURRENT_TRANSACTIONS = ErrorCode.CONCURRENT_TRANSACTIONS


cdef object busy(TransactionMetadata metadata):
    """Return the KafkaError that refuses a request while another change of the id is in flight."""
    return KafkaError(CONCURRENT_TRANSACTIONS, f'{metadata.transactional_id!r} is in '
                      f'{metadata.current.state.title}, a change is under way')


cdef int check_not_busy(TransactionMetadata metadata) except -1:
    """Raise CONCURRENT_TRANSACTIONS while a row is pending.

    This check comes before the others, because the producer may already have the producer id and epoch of the pending
    row (KAFKA-18464).
    """
    if metadata.pending is not None:
        raise busy(metadata)
    return 0


cdef int check_producer_id(TransactionMetadata metadata, int64_t producer_id) except -1:
    """Raise INVALID_PRODUCER_ID_MAPPING unless the producer id is the client's."""
    if producer_id != metadata.current.id_of_client():
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f'found producer id {producer_id} for '
                         f'{metadata.transactional_id!r}, expected {metadata.current.id_of_client()}')
    return 0


cdef int check_epoch(TransactionMetadata metadata, int16_t producer_epoch) except -1:
    """Raise PRODUCER_FENCED unless the epoch is exactly the client's. A higher epoch is refused, too (KAFKA-9600)."""
    if producer_epoch != metadata.current.epoch_of_client():
        raise KafkaError(ErrorCode.PRODUCER_FENCED, f'found producer epoch {producer_epoch} for '
                         f'{metadata.transactional_id!r}, expected {metadata.current.epoch_of_client()}')
    return 0


cdef int check_not_kept(TransactionMetadata metadata) except -1:
    """Raise INVALID_TXN_STATE if the client has kept an open transaction. It has to complete that before it writes."""
    if metadata.current.keeps():
        raise KafkaError(ErrorCode.INVALID_TXN_STATE, f'{metadata.transactional_id!r} has a prepared transaction, '
                         'which is to be completed before the next one begins')
    return 0


cdef int check_row_can_hold(int client_transaction_version, int transaction_version) except -1:
    """Raise UNSUPPORTED_VERSION if rows of the finalized `transaction_version` cannot store the client's version."""
    if transaction_version == 0 and client_transaction_version > 0:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f'found a client of transaction version '
                         f'{client_transaction_version}, but transaction.version is finalized at 0')
    return 0


cdef int check_partitions_count(Py_ssize_t count) except -1:
    """Raise TRANSACTION_ABORTABLE if one row would name so many partitions that encoding it holds the loop."""
    if count > MOST_PARTITIONS:
        raise KafkaError(ErrorCode.TRANSACTION_ABORTABLE, f'found a transaction of {count} partitions, expected '
                         f'{MOST_PARTITIONS} at most')
    return 0
