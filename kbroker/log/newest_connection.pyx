"""The newest connection from which requests of one kind were executed for a producer.

A connection keeps the order of its requests. Therefore a request can arrive late only on a connection that its client
has replaced by a newer one. Connection ids grow in the order in which the broker accepts connections.
"""
from kbroker.base.errors import ErrorCode, KafkaError


cdef int refuse_late_batch(NewestConnection *newest, const BatchFields *batch, int64_t connection_id,
                           LateRefusal *refusal) except -1:
    """Raise NOT_LEADER_OR_FOLLOWER for a batch that arrives late: its producer has moved to a newer connection.

    The other checks may accept the late batch: its sequence may be the expected one, and another transaction may be
    open. If the batch is not late after all, its client repeats it after this error.
    """
    refusal[0] = count_refusal(newest)
    raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f'producer {batch.producer_id} epoch {batch.producer_epoch}: '
                     f'found a batch on connection {connection_id}, expected connection {refusal.newest_id} or a '
                     'newer one')
