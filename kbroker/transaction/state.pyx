"""The life of one transactional.id: its states, the order in which they may follow, and what each step may change.

      InitProducerId          partition added           EndTxn, or a fence       every marker durable
           |                        |                        |                          |
           v                        v                        v                          v
         Empty ----------------> Ongoing ---------+--> PrepareCommit ---------> CompleteCommit ---+
           ^                        ^             |                                               |
           |                        |             +--> PrepareAbort ----------> CompleteAbort ----+
           |                        |                        ^                                    |
           +------------------------+------------------------+------------------------------------+
             InitProducerId           the next transaction     an abort with nothing to abort (TV2)

ENTERED_FROM contains the transitions between the states. STORED contains the states that a row in the log may have.

A durable Prepare row is the point of no return: after a restart, the broker can only finish what the row decides. If
PrepareAbort follows Empty or a Complete state, there is nothing to abort. This step of TV2 only bumps the epoch
(KIP-890). If InitProducerId or a timeout aborts a transaction for its producer, PrepareEpochFence is pending before
PrepareAbort.

A step is *prepared*: `pending` holds the next row, and this row is appended to the log. When the row is durable, it is
*adopted*. If it cannot be made durable, it is *abandoned*. A Complete row is adopted before it is durable, because
everything in it follows from durable records. While a row is pending, no other step of the same id may begin. `adopt`
refuses a row that no correct step produces. Only a fault of this program can cause such a row, never a client.

A row has two pairs of producer id and epoch. The batches and markers of the transaction contain the *transaction's*
pair. The *client's* pair is the one that the client uses now. The two pairs are equal until a client keeps the open
transaction of a previous client (KIP-939). After that, the row is *kept* until the transaction is complete:

    step                               transaction's pair                client's pair
    keep                               unchanged                         bumped
    EndTxn of TV2, a fence, a timeout  epoch + 1, which the markers use  bumped
    EndTxn of TV0 and TV1              unchanged                         unchanged
    Complete                           becomes the client's pair         unchanged
"""
import enum

cimport cython
from libc.stdint cimport int16_t, int32_t, int64_t

from kbroker.base.object_memory cimport memory_of

from kbroker.base.errors import ErrorCode, KafkaError

cdef enum:
    # The bytes of memory of a partition in a transaction and its row, and of a topic, measured on 64-bit CPython 3.11.
    PARTITION_BYTES = 200
    TOPIC_BYTES = 300
    LARGEST_TOPIC_BYTES = 920   # with a name of 249 characters
    FEW_PARTITIONS = 3

cdef PartitionSet NO_PARTITIONS = set_of(())


class IllegalTransition(Exception):
    """Raised if an invariant of the coordinator is broken. The message contains the current and the pending row."""


class TransactionState(enum.IntEnum):
    """The states of a transaction, with their ids in the rows of `__transaction_state`."""

    EMPTY = STATUS_EMPTY
    ONGOING = STATUS_ONGOING
    PREPARE_COMMIT = STATUS_PREPARE_COMMIT
    PREPARE_ABORT = STATUS_PREPARE_ABORT
    COMPLETE_COMMIT = STATUS_COMPLETE_COMMIT
    COMPLETE_ABORT = STATUS_COMPLETE_ABORT
    DEAD = STATUS_DEAD
    PREPARE_EPOCH_FENCE = STATUS_PREPARE_EPOCH_FENCE

    @property
    def title(self):
        """The name that Kafka's tools show, for example `PrepareCommit`."""
        return self.name.title().replace('_', '')


_S = TransactionState

IDLE = frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})
"""The states without an open transaction. An id in such a state may begin a transaction, be initialised, or expire."""
PREPARED = frozenset({_S.PREPARE_COMMIT, _S.PREPARE_ABORT})
"""The states in which a transaction is decided, but some of its partitions may lack the marker."""

ENTERED_FROM = {
    _S.EMPTY: IDLE,
    _S.ONGOING: IDLE | {_S.ONGOING},
    _S.PREPARE_COMMIT: frozenset({_S.ONGOING}),
    _S.PREPARE_ABORT: IDLE | {_S.ONGOING, _S.PREPARE_EPOCH_FENCE},
    _S.COMPLETE_COMMIT: frozenset({_S.PREPARE_COMMIT}),
    _S.COMPLETE_ABORT: frozenset({_S.PREPARE_ABORT}),
    _S.DEAD: IDLE,
    _S.PREPARE_EPOCH_FENCE: frozenset({_S.ONGOING}),
}
"""Maps each state to the states that may precede it."""
STORED = frozenset(_S) - {_S.DEAD, _S.PREPARE_EPOCH_FENCE}
"""The states that a row in the log may have. DEAD and PREPARE_EPOCH_FENCE are only states of pending rows."""

cdef tuple STATES = tuple(TransactionState)
cdef int entered_from_bits[STATUSES]
for _state, _entered in ENTERED_FROM.items():
    entered_from_bits[_state] = sum(1 << found for found in _entered)


@cython.final
cdef class PartitionSet:
    """An immutable set of partitions, which rows share.

    Its sorted and its encoded form are kept after their first use.
    """

    cdef PartitionSet union(self, PartitionSet other):
        if not self.members:
            return other
        return self if other.members <= self.members else set_of(self.members | other.members)

    cdef tuple in_order(self):
        if self.sorted_members is None:
            self.sorted_members = tuple(sorted(self.members))
        return self.sorted_members

    cdef int64_t measure(self) except -1:
        """Compute `held_bytes` from the partitions and, for each topic, its name and the UTF-8 form of the name."""
        cdef set names = set()
        for name, _ in self.members:
            names.add(name)
        self.held_bytes = PARTITION_BYTES * len(self.members)
        for name in names:
            self.held_bytes += TOPIC_BYTES + 2 * memory_of(name)
        return self.held_bytes


cpdef PartitionSet set_of(partitions):
    cdef PartitionSet found = PartitionSet.__new__(PartitionSet)
    cdef Py_ssize_t count
    found.members = frozenset(partitions)
    count = len(found.members)
    # In a small set, each partition counts as much as one whose topic has a name of maximal length.
    found.held_bytes = count * (PARTITION_BYTES + LARGEST_TOPIC_BYTES) if count <= FEW_PARTITIONS else -1
    return found


@cython.final
@cython.freelist(8)
cdef class TransactionRow:
    """The state of a transactional.id at one moment. The log stores all fields, but `last_producer_epoch` only in Empty
    rows.

    - `previous_producer_id` is the client's producer id before the last step. It differs from the client's current
      producer id only after a rotation.
    - `next_producer_id` is set in a Prepare row if the client's epoch was exhausted. It is the producer id that the
      client gets once the transaction is complete.
    - `last_producer_epoch` is the client's epoch before the last bump that was sent to the client. A restart keeps it
      if InitProducerId made the bump. After EndTxn, a restart forgets it: a repeated EndTxn does not need it.

    In a kept row, `next_producer_id` and `next_producer_epoch` are the client's pair. In any other row,
    `next_producer_epoch` is NO_PRODUCER_EPOCH, and the client's pair is the same as the transaction's pair.
    """

    def __init__(self, int state, int64_t producer_id, int16_t producer_epoch, int32_t timeout_ms,
                 int64_t last_update_timestamp_ms, int64_t start_timestamp_ms=NO_TIMESTAMP,
                 frozenset partitions not None=frozenset(), int64_t previous_producer_id=NO_PRODUCER_ID,
                 int64_t next_producer_id=NO_PRODUCER_ID, int16_t last_producer_epoch=NO_PRODUCER_EPOCH,
                 int client_transaction_version=0, int16_t next_producer_epoch=NO_PRODUCER_EPOCH):
        if not 0 <= state < STATUSES:
            raise ValueError(f'found state {state}, expected 0 to {STATUSES - 1}')
        self.fields = RowFields(state, producer_id, producer_epoch, timeout_ms, last_update_timestamp_ms,
                                start_timestamp_ms, previous_producer_id, next_producer_id, last_producer_epoch,
                                client_transaction_version, next_producer_epoch)
        self.partition_set = set_of(partitions)

    def __getattr__(self, str name):
        """Return a field by its name in RowFields."""
        cdef dict fields = self.fields
        if name not in fields:
            raise AttributeError(f'found {name!r}, expected a field of a row')
        return fields[name]

    @property
    def state(self):
        return STATES[self.fields.state]

    @property
    def partitions(self):
        return self.partition_set.members

    @property
    def is_producer_epoch_exhausted(self):
        return self.is_exhausted()

    @property
    def bumps_epoch(self):
        return self.does_bump_epoch()

    @property
    def is_kept(self):
        return self.keeps()

    @property
    def client_producer_id(self):
        return self.id_of_client()

    @property
    def client_producer_epoch(self):
        return self.epoch_of_client()

    def _fields(self):
        """Return the arguments with which the constructor makes an equal row."""
        cdef dict fields = self.fields
        return {**fields, 'state': self.state, 'partitions': self.partitions}

    def _replace(self, **changes):
        """Return a copy of the row in which `changes` replace the values of some fields."""
        return TransactionRow(**(self._fields() | changes))

    def __eq__(self, other):
        return isinstance(other, TransactionRow) and self._fields() == (<TransactionRow>other)._fields()

    def __hash__(self):
        return hash(tuple(self._fields().values()))

    def __repr__(self):
        return f'TransactionRow({", ".join(f"{name}={value!r}" for name, value in self._fields().items())})'

    cdef TransactionRow copy(self):
        """Return a copy. The caller changes the copy to the next row."""
        cdef TransactionRow row = TransactionRow.__new__(TransactionRow)
        row.fields = self.fields
        row.partition_set = self.partition_set
        return row

    cdef bint keeps(self) noexcept:
        return self.fields.next_producer_epoch != NO_PRODUCER_EPOCH

    cdef int64_t id_of_client(self) noexcept:
        return self.fields.next_producer_id if self.keeps() else self.fields.producer_id

    cdef int16_t epoch_of_client(self) noexcept:
        return self.fields.next_producer_epoch if self.keeps() else self.fields.producer_epoch

    cdef bint is_exhausted(self) noexcept:
        """Return whether the client's epoch cannot be bumped further. The next bump then needs a new producer id."""
        return self.epoch_of_client() >= EXHAUSTED_PRODUCER_EPOCH

    cdef bint does_bump_epoch(self) noexcept:
        return self.fields.client_transaction_version >= EPOCH_BUMPS_FROM

    cdef bint has_producer_of(self, TransactionRow other) noexcept:
        return (self.fields.producer_id == other.fields.producer_id
                and self.fields.producer_epoch == other.fields.producer_epoch)


cdef class TransactionMetadata:
    """The state of one transactional.id:

    `current` is the row in force, `pending` the next row, which is not durable yet.

    `has_failed_epoch_fence` is true if a fence has bumped the epoch in memory but never reached the log. The next fence
    must not bump the epoch again.
    """

    def __init__(self, str transactional_id not None, TransactionRow current not None):
        self.transactional_id = transactional_id
        self.current = current

    @classmethod
    def unborn(cls, transactional_id, int64_t producer_id, int32_t timeout_ms, int64_t now_ms):
        """Return the metadata of an id without a row. Its first InitProducerId gives the client epoch 0."""
        return cls(transactional_id, TransactionRow(STATUS_EMPTY, producer_id, NO_PRODUCER_EPOCH, timeout_ms, now_ms))

    @property
    def is_born(self):
        """True once the id has a row in force. Before that, no producer can know the id."""
        return self.was_born()

    @property
    def is_dying(self):
        """True from the time when the id expires until its tombstone is durable.

        During that time, clients no longer see the id.
        """
        return self.pending is not None and self.pending.fields.state == STATUS_DEAD

    def __repr__(self):
        return f'TransactionMetadata({self.transactional_id!r}, current={self.current}, pending={self.pending})'

    cdef bint was_born(self) noexcept:
        return self.current.fields.producer_epoch != NO_PRODUCER_EPOCH

    # -- steps: each sets `pending` and returns it ---------------------------------------------------------------

    def prepare_epoch_increment(self, int32_t timeout_ms, expected_epoch, int64_t now_ms):
        """Prepare an Empty row with the next epoch, for InitProducerId.

        `expected_epoch` is the epoch that the client names (KIP-360), or None if it names none. A client that did not
        get the reply names the epoch before the last bump, and gets the same reply again. If the client names any other
        epoch than these two, raise PRODUCER_FENCED.
        """
        cdef TransactionRow current = self.current, row
        if current.is_exhausted() and expected_epoch in (None, current.fields.producer_epoch):
            raise IllegalTransition(f'{self!r}: an exhausted epoch cannot be incremented')
        row = emptied(current, timeout_ms, now_ms)
        if expected_epoch is None:
            row.fields.producer_epoch = current.fields.producer_epoch + 1
            row.fields.last_producer_epoch = NO_PRODUCER_EPOCH
        elif not self.was_born() or expected_epoch == current.fields.producer_epoch:
            row.fields.producer_epoch = current.fields.producer_epoch + 1
            row.fields.last_producer_epoch = current.fields.producer_epoch
        elif expected_epoch != current.fields.last_producer_epoch:
            raise KafkaError(ErrorCode.PRODUCER_FENCED, f'found producer epoch {expected_epoch} for '
                             f'{self.transactional_id!r}, expected {current.fields.producer_epoch}')
        return self.prepare(row)

    def prepare_producer_id_rotation(self, int64_t producer_id, int32_t timeout_ms, bint keep_last_epoch,
                                     int64_t now_ms):
        """Prepare an Empty row with a new producer id and epoch 0, for InitProducerId after an exhausted epoch."""
        cdef TransactionRow row = emptied(self.current, timeout_ms, now_ms)
        row.fields.producer_id = producer_id
        row.fields.producer_epoch = 0
        row.fields.last_producer_epoch = self.current.fields.producer_epoch if keep_last_epoch else NO_PRODUCER_EPOCH
        return self.prepare(row)

    cpdef TransactionRow prepare_partitions(self, PartitionSet partitions, int client_transaction_version,
                                            int64_t now_ms):
        """Prepare an Ongoing row that adds `partitions` to the transaction.

        If no transaction is open, the row begins one.
        """
        cdef TransactionRow row = self.current.copy()
        if row.keeps():
            raise IllegalTransition(f'{self!r}: no partition may join a kept transaction')
        if is_idle(row.fields.state):
            row.fields.start_timestamp_ms = now_ms
        row.fields.state = STATUS_ONGOING
        row.partition_set = row.partition_set.union(partitions)
        row.fields.last_update_timestamp_ms = now_ms
        row.fields.client_transaction_version = client_transaction_version
        return self.prepare(row)

    def prepare_keep(self, int32_t timeout_ms, int64_t fresh_producer_id, int64_t now_ms):
        """Prepare an Ongoing row in which the client keeps the open transaction and gets its next pair of producer id
        and epoch (KIP-939).

        The transaction's pair does not change. `fresh_producer_id` is NO_PRODUCER_ID unless the client's epoch is
        exhausted.
        """
        cdef TransactionRow row = self.current.copy()
        if row.fields.state != STATUS_ONGOING:
            raise IllegalTransition(f'{self!r}: there is no open transaction to keep')
        bump_client(row, fresh_producer_id)
        row.fields.timeout_ms = timeout_ms
        row.fields.last_producer_epoch = NO_PRODUCER_EPOCH
        row.fields.last_update_timestamp_ms = now_ms
        return self.prepare(row)

    def prepare_epoch_fence(self):
        """Prepare a row with the epoch with which the coordinator will abort the transaction for its producer.

        The row is never stored: `prepare_end` or `abandon` follows.
        """
        cdef TransactionRow row = self.current.copy()
        row.fields.state = STATUS_PREPARE_EPOCH_FENCE
        if not self.has_failed_epoch_fence and row.fields.producer_epoch != MAX_PRODUCER_EPOCH:
            row.fields.producer_epoch += 1
        return self.prepare(row)

    cpdef TransactionRow prepare_end(self, int status, int transaction_version, int64_t fresh_producer_id,
                                     int64_t now_ms):
        """Prepare the row that decides the transaction. `status` is its state, PrepareCommit or PrepareAbort.

        TV2 bumps the epoch in this row, so that no late batch can join the next transaction. `fresh_producer_id` is
        NO_PRODUCER_ID unless the client's epoch is exhausted before this bump.

        If a fence is pending, this row is the abort for which the fence was prepared. Under TV0 and TV1, the fence
        takes effect in memory immediately, even if the append then fails. Refusing the old producer too early is safe,
        but letting it continue is not (KAFKA-9666). Under TV2, the bump in the Prepare row is the fence, so the fence
        itself must not bump the epoch a second time (KAFKA-19367).
        """
        cdef TransactionRow fence = self.take_fence(), row
        cdef bint bumps_epoch = transaction_version >= EPOCH_BUMPS_FROM
        if fence is not None and not bumps_epoch:
            row = self.current.copy()
            row.fields.producer_epoch = fence.fields.producer_epoch
            row.fields.last_producer_epoch = NO_PRODUCER_EPOCH
            if row.keeps():
                bump_client(row, fresh_producer_id)
            self.current = row
        row = self.current.copy()
        if bumps_epoch:
            row.fields.last_producer_epoch = row.epoch_of_client()
            row.fields.producer_epoch = min(row.fields.producer_epoch + 1, <int>MAX_PRODUCER_EPOCH)
        if not row.keeps():
            row.fields.next_producer_id = fresh_producer_id
        elif bumps_epoch:
            bump_client(row, fresh_producer_id)
        if is_idle(row.fields.state):
            row.fields.start_timestamp_ms = now_ms
        row.fields.state = status
        row.fields.last_update_timestamp_ms = now_ms
        row.fields.client_transaction_version = EPOCH_BUMPS_FROM if bumps_epoch else 0
        return self.prepare(row)

    cpdef TransactionRow prepare_complete(self, int64_t now_ms):
        """Prepare the Complete row of a decided transaction. The client's pair becomes the transaction's pair.

        If the row is not kept, and its Prepare row has reserved a producer id, the client continues with that producer
        id and epoch 0.
        """
        cdef TransactionRow row = self.current.copy()
        cdef int64_t producer_id_before_bump = row.fields.previous_producer_id
        self.has_failed_epoch_fence = False
        row.fields.state = (STATUS_COMPLETE_COMMIT if row.fields.state == STATUS_PREPARE_COMMIT
                            else STATUS_COMPLETE_ABORT)
        row.partition_set = NO_PARTITIONS
        row.fields.last_update_timestamp_ms = now_ms
        if row.keeps():
            row.fields.producer_id = row.fields.next_producer_id
            row.fields.producer_epoch = row.fields.next_producer_epoch
            forget_next(row)
            self.prepare(row)
            row.fields.previous_producer_id = producer_id_before_bump      # a retried EndTxn contains it
            return row
        if row.fields.next_producer_id != NO_PRODUCER_ID:
            row.fields.producer_id = row.fields.next_producer_id
            row.fields.producer_epoch = 0
        row.fields.next_producer_id = NO_PRODUCER_ID
        return self.prepare(row)

    def prepare_dead(self):
        """Prepare a row that marks the id as expired until its tombstone is durable."""
        cdef TransactionRow row = self.current.copy()
        row.fields.state = STATUS_DEAD
        return self.prepare(row)

    # -- the outcome of a step -----------------------------------------------------------------------------------

    cpdef TransactionRow adopt(self):
        """Put the pending row in force, because it is durable.

        Raise IllegalTransition if no correct step produces this row.
        """
        cdef TransactionRow row = self.pending
        if row is None or row.fields.state == STATUS_DEAD or row.fields.state == STATUS_PREPARE_EPOCH_FENCE:
            raise IllegalTransition(f'{self!r}: there is no row to adopt')
        if not follows(self.current, row):
            raise IllegalTransition(f'{self!r}: the pending row does not follow from the current one')
        self.current, self.pending = row, None
        return row

    def abandon(self):
        """Drop the pending row, because it did not reach the log."""
        self.pending = None

    cdef TransactionRow take_fence(self):
        cdef TransactionRow fence = self.pending
        if fence is None or fence.fields.state != STATUS_PREPARE_EPOCH_FENCE:
            return None
        self.pending = None
        return fence

    cdef TransactionRow prepare(self, TransactionRow row):
        """Make `row` pending.

        Raise IllegalTransition if its state must not follow the current one, or if another row is pending.
        """
        if self.pending is not None:
            raise IllegalTransition(f'{self!r}: cannot prepare {row.state.title} while a row is pending')
        if not entered_from_bits[row.fields.state] >> self.current.fields.state & 1:
            raise IllegalTransition(f'{self!r}: {row.state.title} cannot follow {self.current.state.title}')
        if row.fields.producer_id < 0 or (row.fields.producer_epoch < 0 and row.fields.state != STATUS_DEAD):
            raise IllegalTransition(f'{self!r}: no producer id or epoch in {row}')
        row.fields.previous_producer_id = self.current.id_of_client()
        self.pending = row
        return row


cdef TransactionRow emptied(TransactionRow current, int32_t timeout_ms, int64_t now_ms):
    cdef TransactionRow row = current.copy()
    row.fields.state = STATUS_EMPTY
    row.partition_set = NO_PARTITIONS
    row.fields.start_timestamp_ms = NO_TIMESTAMP
    row.fields.timeout_ms = timeout_ms
    row.fields.last_update_timestamp_ms = now_ms
    forget_next(row)
    return row


cdef int bump_client(TransactionRow row, int64_t fresh_producer_id) except -1:
    """Give the client its next pair of producer id and epoch in `row`. With this, `row` is a kept row."""
    if fresh_producer_id != NO_PRODUCER_ID:
        row.fields.next_producer_id, row.fields.next_producer_epoch = fresh_producer_id, 0
    elif row.is_exhausted():
        raise IllegalTransition(f'{row!r}: an exhausted epoch cannot be incremented')
    else:
        row.fields.next_producer_id, row.fields.next_producer_epoch = row.id_of_client(), row.epoch_of_client() + 1
    return 0


cdef int forget_next(TransactionRow row) except -1:
    row.fields.next_producer_id = NO_PRODUCER_ID
    row.fields.next_producer_epoch = NO_PRODUCER_EPOCH
    return 0


cdef bint follows(TransactionRow current, TransactionRow row) except -1:
    if row.fields.state == STATUS_EMPTY:
        return empty_follows(current, row)
    if row.fields.state == STATUS_ONGOING:
        return ongoing_follows(current, row)
    if is_prepared(row.fields.state):
        return prepared_follows(current, row)
    return completed_follows(current, row)


cdef bint empty_follows(TransactionRow current, TransactionRow row) except -1:
    cdef int bumps = row.fields.producer_epoch - current.fields.producer_epoch
    cdef bint rotated = row.fields.producer_epoch == 0 and row.fields.producer_id != current.fields.producer_id
    return ((bumps in (0, 1) or rotated) and not row.partition_set.members
            and row.fields.start_timestamp_ms == NO_TIMESTAMP)


cdef bint ongoing_follows(TransactionRow current, TransactionRow row) except -1:
    if row.keeps():
        return (current.fields.state == STATUS_ONGOING and row.has_producer_of(current)
                and client_is_bumped(current, row)
                and row.fields.timeout_ms in (current.fields.timeout_ms, NEVER_TIMES_OUT_MS)
                and row.fields.start_timestamp_ms == current.fields.start_timestamp_ms
                and row.partition_set is current.partition_set)
    return (row.has_producer_of(current) and row.fields.timeout_ms == current.fields.timeout_ms and not current.keeps()
            and row.partition_set.members >= current.partition_set.members)


cdef bint client_is_bumped(TransactionRow current, TransactionRow row) except -1:
    if row.fields.next_producer_id == current.id_of_client():
        return row.fields.next_producer_epoch == current.epoch_of_client() + 1
    return row.fields.next_producer_epoch == 0


cdef bint client_is_unchanged(TransactionRow current, TransactionRow row) except -1:
    return (row.fields.next_producer_id == current.fields.next_producer_id
            and row.fields.next_producer_epoch == current.fields.next_producer_epoch)


cdef bint prepared_follows(TransactionRow current, TransactionRow row) except -1:
    cdef bint producer_follows, is_empty_abort
    if row.does_bump_epoch():
        producer_follows = (row.fields.producer_id == current.fields.producer_id
                            and row.fields.last_producer_epoch == current.epoch_of_client())
    else:
        producer_follows = row.has_producer_of(current)
    if current.keeps() or row.keeps():
        producer_follows = producer_follows and current.keeps() and (
            client_is_bumped(current, row) if row.does_bump_epoch() else client_is_unchanged(current, row))
    is_empty_abort = (row.fields.state == STATUS_PREPARE_ABORT and row.does_bump_epoch()
                      and is_idle(current.fields.state))
    return (producer_follows and row.fields.timeout_ms == current.fields.timeout_ms
            and (is_empty_abort or row.fields.start_timestamp_ms == current.fields.start_timestamp_ms)
            and (row.partition_set is current.partition_set or row.partitions == current.partitions))


cdef bint completed_follows(TransactionRow current, TransactionRow row) except -1:
    cdef bint producer_follows
    if current.keeps():
        producer_follows = (row.fields.producer_id == current.fields.next_producer_id
                            and row.fields.producer_epoch == current.fields.next_producer_epoch
                            and row.fields.previous_producer_id == current.fields.previous_producer_id
                            and not row.keeps())
    elif row.does_bump_epoch() and row.fields.producer_epoch == 0:
        producer_follows = (row.fields.last_producer_epoch == current.fields.last_producer_epoch
                            and row.fields.previous_producer_id == current.fields.producer_id)
    else:
        producer_follows = row.has_producer_of(current)
    return (producer_follows and row.fields.timeout_ms == current.fields.timeout_ms and not row.partition_set.members
            and row.fields.start_timestamp_ms != NO_TIMESTAMP)
