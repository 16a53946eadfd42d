"""Tracks the newest connection on which a producer's requests of one kind were executed.

A connection keeps its requests in order. Therefore a request can arrive late only on a connection that the client has
replaced by a newer one. The broker numbers connections in the order in which it accepts them, so a newer connection has
a greater id.
"""
from kbroker.base.errors import ErrorCode, KafkaError


cdef int refuse_late_batch(NewestConnection *newest, const BatchFields *batch, int64_t connection_id,
                           LateRefusal *refusal) except -1:
    """Raise NOT_LEADER_OR_FOLLOWER if a batch arrives late, after its producer has moved to a newer connection.

    The checks of the producer state may accept a late batch: it may have the expected sequence, and a later transaction
    may be open. If a batch was refused although it was not late, the client sends it again after this error.
    """
    refusal[0] = count_refusal(newest)
    raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f'producer {batch.producer_id} epoch {batch.producer_epoch}: '
                     f'found a batch on connection {connection_id}, expected connection {refusal.newest_id} or a '
                     'newer one')
