"""The refusal of requests that arrive late.

A client from before KIP-890 uses the same producer id and epoch for many transactions. If its EndTxn of transaction 1
arrives late, during transaction 2, its bytes equal those of an EndTxn of transaction 2. The broker would commit the
first half of transaction 2. Only the connection shows the difference. A connection keeps the order of its requests. So
a request can be late only on a connection that its client has given up for a newer one.

The rule: a request is refused if another request of its class and its producer was executed on a newer connection. The
rule is applied when the request is executed, which may be after a wait. The classes, their requests, the scope of the
rule and the error code are

    K          AddPartitionsToTxn 0-3, AddOffsetsToTxn, EndTxn 0-4    transactional id     NOT_COORDINATOR
    offsets    TxnOffsetCommit                                        group                NOT_COORDINATOR
    batches    Produce 3-11                                           partition            NOT_LEADER_OR_FOLLOWER

A client with KIP-890 uses a new epoch for each transaction, so only its offsets can be late. A transaction may commit
offsets of a partition several times, and late offsets would replace newer ones.

Known clients use one connection for a class, but may use different connections for different classes. So the rule is
applied to each class separately. The log applies the rule for batches, after it has checked for duplicates. For a new
producer id or epoch, and after a start of the broker, no newest connection is known.

If a client sends each class on one connection at a time, its requests are refused only if they are late. If a client
uses two connections for a class, the older one would be refused forever. So after MOST_REFUSALS refusals without an
execution, the broker forgets the newest connection.
"""
import logging
from collections import OrderedDict

from libc.stdint cimport int16_t, int64_t

from kbroker.log.newest_connection cimport (
    MOST_REFUSALS, LateRefusal, NewestConnection, count_execution, count_refusal, forget_connection, is_late,
)
from kbroker.transaction.state cimport TransactionMetadata, TransactionRow

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.security.escape import shown

logger = logging.getLogger(__name__)

MOST_GROUPS = 10_000
"""The most pairs of a producer and a group whose newest connection is remembered.

If there are more pairs, the broker forgets the least recently used pair. Late offsets of that pair are then executed. A
pair takes at most 520 bytes, or 280 bytes if its producer has many groups (measured with tracemalloc on CPython 3.11).
The length of the group id does not matter, because only its hash is kept.

Two groups of one producer whose ids have the same hash count as one group. This does no harm to known clients, because
they send the offsets of all groups on one connection. If a client has a separate connection for each group, it may be
refused MOST_REFUSALS times in a row. Groups of other producers are not affected.
"""


cdef class GroupConnection:
    """The newest connection on which a producer committed offsets of one group."""


cdef class StaleRequests:
    """Detects and refuses late requests. Counts and logs the refusals."""

    def __init__(self, config):
        self.is_enabled = config.kbroker_transaction_stale_request_check_enable
        self.most_groups = MOST_GROUPS
        self.find_connection = no_connection
        self.groups = OrderedDict()
        self.groups_of = {}

    cdef int check(self, TransactionMetadata metadata, object connection, str what) except -1:
        """Raise NOT_COORDINATOR for a late request of class K. The caller has checked the producer id and the epoch.

        If the rule does not apply to a request, its `connection` is None.
        """
        cdef TransactionRow row = metadata.current
        cdef int64_t connection_id
        if connection is None or not self.is_enabled:
            return 0
        connection_id = connection.connection_id
        if (metadata.newest_producer_epoch != row.epoch_of_client()
                or metadata.newest_producer_id != row.id_of_client()):
            forget_connection(&metadata.newest_connection)
            metadata.newest_producer_id = row.id_of_client()
            metadata.newest_producer_epoch = row.epoch_of_client()
        if not is_late(&metadata.newest_connection, connection_id):
            return count_execution(&metadata.newest_connection, connection_id)
        self.report(what, metadata.transactional_id, connection, row.id_of_client(), row.epoch_of_client(),
                    count_refusal(&metadata.newest_connection))
        raise KafkaError(ErrorCode.NOT_COORDINATOR, f'{what} arrived late')

    cpdef int check_offsets(self, str transactional_id, int64_t producer_id, int16_t producer_epoch, str group_id,
                            object connection) except -1:
        """Raise NOT_COORDINATOR for a late TxnOffsetCommit, because it would replace newer offsets of the group."""
        cdef GroupConnection known
        cdef int64_t connection_id
        if not self.is_enabled:
            return 0
        connection_id = connection.connection_id
        known = self.connection_of_group(producer_id, producer_epoch, group_id)
        if producer_epoch < known.producer_epoch:
            return 0            # the group coordinator fences it
        if producer_epoch > known.producer_epoch:
            known.producer_epoch = producer_epoch
            forget_connection(&known.newest)
        if not is_late(&known.newest, connection_id):
            return count_execution(&known.newest, connection_id)
        what = f'offsets of {shown(group_id)}'
        self.report(what, transactional_id, connection, producer_id, producer_epoch, count_refusal(&known.newest))
        raise KafkaError(ErrorCode.NOT_COORDINATOR, f'{what} arrived late')

    @property
    def groups_count(self):
        return len(self.groups)

    cdef GroupConnection connection_of_group(self, int64_t producer_id, int16_t producer_epoch, str group_id):
        cdef object group_hash = hash(group_id)
        cdef tuple pair = (producer_id, group_hash)
        cdef GroupConnection known = self.groups.get(pair)
        if known is not None:
            self.groups.move_to_end(pair)
            return known
        if len(self.groups) >= self.most_groups:
            self.forget_least_used()
        known = GroupConnection.__new__(GroupConnection)
        known.producer_epoch = producer_epoch
        self.groups[pair] = known
        self.groups_of.setdefault(producer_id, set()).add(group_hash)
        return known

    cdef int forget_least_used(self) except -1:
        """Forget the least recently used pair of a producer and a group."""
        (producer_id, group_hash), _ = self.groups.popitem(last=False)
        hashes = self.groups_of[producer_id]
        hashes.remove(group_hash)
        if not hashes:
            del self.groups_of[producer_id]
        return 0

    cdef int forget_producer(self, int64_t producer_id) except -1:
        for group_hash in self.groups_of.pop(producer_id, ()):
            del self.groups[producer_id, group_hash]
        return 0

    cdef int report(self, str what, str transactional_id, object connection, int64_t producer_id,
                    int16_t producer_epoch, LateRefusal refusal) except -1:
        """Count and log the refusal of a late request, which arrived on `connection`."""
        newest = self.find_connection(refusal.newest_id)
        self.refused += 1
        logger.warning('%s: refused %s of producer %d epoch %d on %r: it is late, its client has moved to %s',
                       shown(transactional_id), what, producer_id, producer_epoch, connection,
                       f'connection {refusal.newest_id}, which is closed' if newest is None else newest)
        if refusal.number == MOST_REFUSALS:
            logger.warning('%s: refused %d requests of producer %d epoch %d in a row. Its client may use several '
                           'connections at a time, so the next request is not compared with connection %d',
                           shown(transactional_id), refusal.number, producer_id, producer_epoch, refusal.newest_id)
        return 0


def no_connection(_connection_id):
    """Return None for every connection id. Used without a server: no connection is open."""
    return None
