"""The operations on committed offsets of the groups in a shard: OffsetCommit, OffsetFetch, OffsetDelete, and the expiry
of offsets."""
from functools import partial

from libc.stdint cimport INT64_MAX, int32_t, int64_t

from kbroker.base.clock cimport Clock
from kbroker.base.completion cimport Completion
from kbroker.base.long_work cimport LongWork
from kbroker.base.object_memory cimport memory_of
from kbroker.group.classic.sessions cimport Sessions
from kbroker.group.commits cimport Commit, NewOffset
from kbroker.group.group cimport Group
from kbroker.group.offsets.table cimport text_bytes
from kbroker.group.records cimport CommittedOffset, OffsetKey, offset_key
from kbroker.group.shard cimport Shard, TransactionalProducer

from kbroker.base.errors import ErrorCode, KafkaError
from kbroker.group.commits import NO_TOPIC_ID, TXN_VERSION_WITH_CODES_OF_GROUPS
from kbroker.group.group import GROUP_BYTES
from kbroker.group.offsets.table import OFFSET_BYTES
from kbroker.group.shard import coordinator_error
from kbroker.group.turns import Outcome

cdef enum:
    KEYS_A_PART = 200           # the number of offsets that are checked or deleted between two yields
    GROUPS_A_PART = 200

cdef int version_with_codes_of_groups = TXN_VERSION_WITH_CODES_OF_GROUPS
cdef object NONE = ErrorCode.NONE
cdef object GROUP_ID_NOT_FOUND = ErrorCode.GROUP_ID_NOT_FOUND
cdef object ILLEGAL_GENERATION = ErrorCode.ILLEGAL_GENERATION


cdef class FetchedOffset:
    """The result for one partition of an OffsetFetch. `offset` is -1 if no offset is committed."""

    def __init__(self, error=NONE, int64_t offset=-1, int32_t leader_epoch=-1, str metadata not None=''):
        self.error = error
        self.offset = offset
        self.leader_epoch = leader_epoch
        self.metadata = metadata

    def _fields(self):
        return self.error, self.offset, self.leader_epoch, self.metadata

    def __eq__(self, other):
        return isinstance(other, FetchedOffset) and self._fields() == (<FetchedOffset>other)._fields()

    __hash__ = None

    def __repr__(self):
        return f'FetchedOffset{self._fields()!r}'


cdef FetchedOffset NO_OFFSET = FetchedOffset()
cdef FetchedOffset UNSTABLE = FetchedOffset(ErrorCode.UNSTABLE_OFFSET_COMMIT)


cdef class OffsetsInFlight(Completion):
    """A commit or a deletion of offsets that is in flight. When it is durable or has failed, it completes `done` with
    an error code for each partition."""
    cdef list keys
    cdef dict results           # an error code for each partition
    cdef Completion done

    cdef int complete(self, object error, Py_ssize_t part, object result) except -1:
        cdef OffsetKey key
        if error is not None:
            code = coordinator_error(error).code
            for key in self.keys:
                self.results[key.topic, key.partition] = code
        return self.done.complete(None, 0, self.results)


cdef class Offsets:
    """The operations on the offsets of one shard. The offsets in memory change when the rows of an operation are
    replayed, that is, when these rows are durable."""

    def __init__(self, Shard shard not None, Sessions sessions not None, turns not None, config, Clock clock not None,
                 LongWork long_work not None):
        self._shard = shard
        self._sessions = sessions
        self._turns = turns
        self._longest_metadata = config.offset_metadata_max_bytes
        self._retention_ms = config.offsets_retention_minutes * 60_000
        self._clock = clock
        self._long_work = long_work
        self._deleted_topics = {}

    # Commit

    cpdef commit(self, Commit commit, int version, Completion done):
        """Serve an OffsetCommit. `done` completes with an error code for each partition, once the offsets are durable.

        Raise the errors of the group's `check_commit`. If the group does not exist and the commit has a generation,
        raise GROUP_ID_NOT_FOUND, or ILLEGAL_GENERATION in versions below 9.
        """
        cdef Group group = self.group_of(commit, GROUP_ID_NOT_FOUND if version >= 9 else ILLEGAL_GENERATION)
        if group is not None:
            group.check_commit(commit, version)
            self._sessions.touch(group, commit.member_id)
        self.append(commit, done, None)

    cpdef commit_transactional(self, Commit commit, int version, TransactionalProducer producer, Completion done):
        """Serve a TxnOffsetCommit of a transaction to which the group's partition of `__consumer_offsets` was added.
        The offsets are pending until the marker that ends the transaction.

        `done` completes as in `commit`. Raise the errors of the group's `check_transactional_commit`. If the group does
        not exist and the commit has a generation, raise GROUP_ID_NOT_FOUND, or ILLEGAL_GENERATION in versions below 6.
        """
        cdef Group group = self.group_of(
            commit, GROUP_ID_NOT_FOUND if version >= version_with_codes_of_groups else ILLEGAL_GENERATION)
        if group is not None:
            group.check_transactional_commit(commit, version)
        self.append(commit, done, producer)

    cdef Group group_of(self, Commit commit, missing):
        """Return the group of a commit. If the group does not exist, raise the error `missing` if the commit has a
        generation, else return None: the replay of the commit then creates the group."""
        cdef Group group = self._shard.groups.get(commit.group_id)
        if group is None and commit.generation >= 0:
            raise KafkaError(missing, f'group {commit.group_id} does not exist')
        return group

    def prepare(self, Commit commit not None):
        """Make the rows of a commit of many partitions before the commit is served. This is a generator, which works in
        parts."""
        cdef list offsets = list(commit.offsets.items())
        cdef Py_ssize_t start
        for start in range(0, len(offsets), KEYS_A_PART):
            self.make_rows(commit, dict(offsets[start:start + KEYS_A_PART]))
            yield

    cdef make_rows(self, Commit commit, dict offsets):
        """Make the rows of `offsets`, which are some or all offsets of the commit."""
        cdef int64_t now_ms = self._clock.wall_ms()
        cdef CommittedOffset committed
        cdef NewOffset new
        if commit.keys is None:
            commit.keys, commit.rows, commit.results = [], [], {}
        group_id = commit.group_id
        known = self._shard.groups.get(group_id)
        if known is not None:
            group_id = (<Group>known).group_id       # all offsets of a group share one string
        expire_timestamp_ms = None
        if commit.retention_ms != -1:
            expire_timestamp_ms = now_ms + min(commit.retention_ms, INT64_MAX - now_ms)
        for partition, new in offsets.items():
            metadata = new.metadata or ''
            if len(metadata) > self._longest_metadata:
                commit.results[partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            commit.results[partition] = NONE
            committed = CommittedOffset.__new__(CommittedOffset)
            committed.offset = new.offset
            committed.metadata = metadata
            committed.commit_timestamp_ms = now_ms
            committed.expire_timestamp_ms = expire_timestamp_ms
            # The offset in memory has exactly the fields that a replay of its row would set. The row has no leader
            # epoch and no topic id if it has an expiry time. As in Kafka 4.4, rows in a transaction have the topic id
            # with every version of TxnOffsetCommit (KIP-1319).
            committed.leader_epoch = new.leader_epoch if expire_timestamp_ms is None else -1
            committed.topic_id = new.topic_id if expire_timestamp_ms is None else NO_TOPIC_ID
            commit.keys.append(offset_key(group_id, partition[0], partition[1]))
            commit.rows.append(committed)

    cdef append(self, Commit commit, Completion done, TransactionalProducer producer):
        """Append the rows of a commit as one batch."""
        cdef OffsetsInFlight in_flight
        if commit.keys is None:
            self.make_rows(commit, commit.offsets)
        if not commit.keys:
            done.complete(None, 0, commit.results)
            return
        if self._shard.memory.is_nearly_full():
            self.check_memory(commit.group_id, commit.keys, commit.rows)
        in_flight = OffsetsInFlight.__new__(OffsetsInFlight)
        in_flight.keys = commit.keys
        in_flight.results = commit.results
        in_flight.done = done
        self._shard.append_offsets(commit.keys, commit.rows, in_flight, producer)

    # Fetch

    cpdef dict fetch(self, str group_id, partitions, bint require_stable, bytes topic_id=NO_TOPIC_ID):
        """Return {(topic, partition): result}. The result is NO_OFFSET if the partition has no committed offset. If
        `require_stable` is true, it is UNSTABLE while a transaction holds an offset of the partition.

        If a `topic_id` is given, an offset that was committed for a deleted topic with the same name counts as none.
        """
        return {
            (topic, partition): self.fetch_one(offset_key(group_id, topic, partition), require_stable, topic_id)
            for topic, partition in partitions
        }

    cdef FetchedOffset fetch_one(self, OffsetKey key, bint require_stable, bytes topic_id):
        cdef CommittedOffset found
        cdef FetchedOffset fetched
        if require_stable and not self._shard.offsets.is_stable(key):
            return UNSTABLE
        found = self._shard.offsets.committed(key)
        if found is None:
            return NO_OFFSET
        if topic_id != NO_TOPIC_ID and found.topic_id != NO_TOPIC_ID and found.topic_id != topic_id:
            return NO_OFFSET
        fetched = FetchedOffset.__new__(FetchedOffset)
        fetched.error = NONE
        fetched.offset = found.offset
        fetched.leader_epoch = found.leader_epoch
        fetched.metadata = found.metadata
        return fetched

    cdef check_memory(self, str group_id, list keys, list offsets):
        """Raise COORDINATOR_LOAD_IN_PROGRESS if there is not enough memory for the offsets."""
        cdef OffsetKey key
        cdef Py_ssize_t i
        cdef int64_t more_bytes = 0
        if group_id not in self._shard.groups:
            more_bytes += <int64_t>GROUP_BYTES + memory_of(group_id)
        for i in range(len(keys)):
            if self._shard.offsets.committed(keys[i]) is None:
                more_bytes += OFFSET_BYTES
            more_bytes += text_bytes((<CommittedOffset>offsets[i]).metadata)
        if more_bytes:
            self._shard.memory.check(more_bytes)

    # Delete and expire

    cpdef delete(self, str group_id, partitions, Completion done):
        """Serve an OffsetDelete (KIP-496). `done` completes with an error code for each partition.

        The code is GROUP_SUBSCRIBED_TO_TOPIC if a member of the group reads the partition's topic. Raise
        GROUP_ID_NOT_FOUND if the group does not exist, and the errors of its `check_offset_deletion`.
        """
        cdef Group group = self.living_group(group_id)
        group.check_offset_deletion()
        self._long_work.start(self._delete(group, partitions, done))

    cdef Group living_group(self, str group_id):
        group = self._shard.groups.get(group_id)
        if group is None or group.is_dead:
            raise KafkaError(GROUP_ID_NOT_FOUND, f'group {group_id} does not exist')
        return group

    def _delete(self, Group group, partitions, Completion done):
        """Append the tombstones of an OffsetDelete. This is a generator, which works in parts."""
        cdef OffsetsInFlight in_flight = OffsetsInFlight.__new__(OffsetsInFlight)
        cdef OffsetKey key
        cdef list keys = []
        in_flight.keys = []
        in_flight.results = {}
        in_flight.done = done
        yield from group.read_subscriptions()
        try:
            for looked_at, (topic, partition) in enumerate(partitions):
                if looked_at and looked_at % KEYS_A_PART == 0:
                    keys = self._flush_tombstones(keys)
                    yield
                    group = self._shard.groups.get(group.group_id, group)   # a turn may have replaced the group
                key = offset_key(group.group_id, topic, partition)
                if group.is_subscribed_to(topic):
                    in_flight.results[topic, partition] = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                    continue
                in_flight.results[topic, partition] = NONE
                in_flight.keys.append(key)
                if self._shard.offsets.knows(key):
                    keys.append(key)
            self._flush_tombstones(keys)
        except KafkaError as error:
            in_flight.complete(error, 0, None)
            return
        self._shard.await_appended(in_flight)

    def _flush_tombstones(self, list keys):
        """Append tombstones for the keys in the list, if it is not empty. Return a new empty list, to which the caller
        adds the next keys."""
        if keys:
            self._shard.append_tombstones(keys)
        return []

    cpdef delete_group(self, str group_id, Completion done):
        """Delete a group. `done` completes when the group's tombstones are durable, or with an error.

        The errors are GROUP_ID_NOT_FOUND and NON_EMPTY_GROUP.
        """
        self._turns.submit(group_id, self._deletion, done)

    def _deletion(self, Group group):
        """Append the tombstones of a group's offsets in parts, and return those of the group. This is an operation of a
        turn."""
        cdef list keys
        cdef Py_ssize_t start
        if group is None or group.is_dead:
            raise KafkaError(GROUP_ID_NOT_FOUND, 'the group does not exist')
        if not group.is_empty:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f'group {group.group_id} has members')
        group.bury(self._clock.wall_ms())
        keys = self._shard.offsets.keys_to_forget(group.group_id)
        for start in range(0, len(keys), KEYS_A_PART):
            if start:
                yield
            self._shard.append_tombstones(keys[start:start + KEYS_A_PART])
        return Outcome(group.tombstones())

    def forget_topic(self, str topic, Completion done not None):
        """Append tombstones for all offsets of a deleted topic that are in the log now. Offsets that are committed
        later, for a new topic with the same name, stay."""
        is_running = bool(self._deleted_topics)
        self._deleted_topics[topic] = self._shard.partition.log_end_offset
        if not is_running:
            self._long_work.start(self._forget_deleted(done))

    def _forget_deleted(self, Completion done):
        """Append tombstones for the offsets of deleted topics. This is a generator, which works in parts. It includes
        topics that are deleted while it runs."""
        cdef dict forgotten = {}
        while self._deleted_topics != forgotten:
            forgotten = dict(self._deleted_topics)
            yield from self._forget_where(
                lambda key, committed: committed.log_offset < forgotten.get(key.topic, -1), done)
        self._deleted_topics = {}

    def forget_deleted_topics(self, is_known, Completion done not None):
        """Append tombstones for all offsets with the id of a topic that does not exist. `is_known(topic_id)` returns
        whether the topic exists.

        Such offsets remain after a crash if the deletion of their topic became durable before the crash, and their
        tombstones did not.
        """
        self._long_work.start(self._forget_where(
            lambda key, committed: committed.topic_id != NO_TOPIC_ID and not is_known(committed.topic_id), done))

    def _forget_where(self, is_gone, Completion done):
        """Append tombstones for all offsets for which `is_gone(key, offset)` returns True. This is a generator, which
        works in parts.

        A tombstone deletes all offsets of a key. So a key with a committed offset that is not gone keeps its offsets.
        """
        cdef dict in_flight = self._shard.offsets_in_flight()
        cdef list keys = [key for key, committed in in_flight.items() if is_gone(key, committed)]
        cdef Py_ssize_t looked_at = 0
        try:
            for table in self._shard.offsets.tables():
                for key, _ in table:
                    looked_at += 1
                    if looked_at % KEYS_A_PART == 0:
                        keys = self._flush_tombstones(keys)
                        yield
                    # A tombstone deletes every row of its key that is before it in the log. It must not delete a row
                    # that is in flight.
                    if key in in_flight or self._shard.offsets.is_in_flight(key):
                        continue
                    latest, committed = self._shard.offsets.latest(key), self._shard.offsets.committed(key)
                    if (latest is not None and is_gone(key, latest)
                            and (committed is None or committed is latest or is_gone(key, committed))):
                        keys.append(key)
            self._flush_tombstones(keys)
        except KafkaError as error:
            done.complete(error, 0, None)

    def expire(self, Completion done not None):
        """Append tombstones for expired offsets, and end empty groups whose offsets have all expired (KIP-211). This is
        a generator, which works in parts."""
        cdef Py_ssize_t looked_at = 0
        cdef Group group
        for group_id in list(self._shard.groups):
            looked_at += 1
            if looked_at % GROUPS_A_PART == 0:
                yield
            group = self._shard.groups.get(group_id)
            if group is not None and not group.is_dead:
                try:
                    yield from self._expire_group(group, done)
                except KafkaError as error:
                    done.complete(error, 0, None)
                    return

    def _expire_group(self, Group group, Completion done):
        cdef list keys = self._shard.offsets.committed_keys(group.group_id)
        cdef set expired = set()
        cdef Py_ssize_t start
        if keys:
            yield from group.read_subscriptions()
        for start in range(0, len(keys), KEYS_A_PART):
            if start:
                yield
            group = self._shard.groups.get(group.group_id, group)       # a turn may have replaced the group
            due = [key for key in keys[start:start + KEYS_A_PART] if self._is_expired(group, key)]
            expired.update(due)
            self._flush_tombstones(due)
        if self._has_ended(group, expired):
            self._turns.submit(group.group_id, partial(self._end, expired), done)

    def _has_ended(self, Group group, set expired):
        """Return whether the group must end when the offsets with the keys in `expired` are deleted, because it has no
        other offsets and no members."""
        return (group is not None and group.may_expire and not group.is_dead
                and not self._shard.offsets.has_open_work(group.group_id)
                and expired.issuperset(self._shard.offsets.committed_keys(group.group_id)))

    def _end(self, set expired, Group group):
        """Return the tombstones of a group whose offsets have all expired. This is an operation of a turn."""
        if not self._has_ended(group, expired):
            return Outcome()
        group.bury(self._clock.wall_ms())
        return Outcome(group.tombstones())

    def _is_expired(self, Group group, OffsetKey key):
        cdef CommittedOffset committed = self._shard.offsets.committed(key)
        if committed is None or group.is_dead:
            return False
        since_ms = group.kept_since_ms(committed)
        if since_ms is None or group.is_subscribed_to(key.topic):
            return False
        if not self._shard.offsets.is_stable(key) or self._shard.offsets.is_in_flight(key):
            return False
        now_ms = self._clock.wall_ms()
        if committed.expire_timestamp_ms is not None:
            return now_ms >= committed.expire_timestamp_ms
        return now_ms - since_ms >= self._retention_ms
