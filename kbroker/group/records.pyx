"""The decoder of the rows of `__consumer_offsets`, and the versions in which these rows are written.

A key consists of the row's type (int16) and a body. A value consists of its version (int16) and a body. A row without a
value is a tombstone.

* Offsets are written in version 4.
* If the client sends a retention time, its offsets are written in version 1, because no other version has an expiry
  time.
* Rows of classic groups are written in version 3, rows of other groups in version 0.

The module `kinds` applies the rows of groups.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t

from kbroker.wire.bytes cimport Cursor, read_int16, read_int32, take

from kbroker.base.errors import CorruptLogError, ProtocolError
from kbroker.base.internal_topics import CONSUMER_OFFSETS
from kbroker.group.commits import NO_TOPIC_ID
from kbroker.protocol.messages import LegacyOffsetCommitKey, LegacyOffsetCommitValue, OffsetCommitKey
from kbroker.protocol.rows import (
    RowError,
    decode_row_key,
    decode_row_value,
    encode_row_key,
    row_classes,
)

OFFSET_VERSION, EXPIRING_OFFSET_VERSION, GROUP_VERSION = 4, 1, 3

cdef frozenset offset_keys = frozenset((LegacyOffsetCommitKey, OffsetCommitKey))


cdef class OffsetKey:
    """The key of an offset: group, topic and partition. Keys are sorted by group, then by topic, then by partition."""

    def __init__(self, str group_id not None, str topic not None, int32_t partition):
        self.group_id = group_id
        self.topic = topic
        self.partition = partition

    def __hash__(self):
        return hash(self.topic) ^ self.partition * <Py_ssize_t>0x9e3779b1

    def __eq__(self, other):
        if not isinstance(other, OffsetKey):
            return NotImplemented
        return (self.partition == (<OffsetKey>other).partition and self.topic == (<OffsetKey>other).topic
                and self.group_id == (<OffsetKey>other).group_id)

    def __lt__(self, OffsetKey other not None):
        return (self.group_id, self.topic, self.partition) < (other.group_id, other.topic, other.partition)

    def __repr__(self):
        return f'OffsetKey({self.group_id!r}, {self.topic!r}, {self.partition})'


cdef class CommittedOffset:
    """A committed offset with the fields of its row. `log_offset` is the position of the row in the log. If several
    commits have the same key, the one with the highest `log_offset` wins."""

    def __init__(self, int64_t offset, int32_t leader_epoch, str metadata not None, int64_t commit_timestamp_ms,
                 expire_timestamp_ms=None, bytes topic_id not None=NO_TOPIC_ID, int64_t log_offset=-1):
        self.offset = offset
        self.leader_epoch = leader_epoch
        self.metadata = metadata
        self.commit_timestamp_ms = commit_timestamp_ms
        self.expire_timestamp_ms = expire_timestamp_ms
        self.topic_id = topic_id
        self.log_offset = log_offset

    def _fields(self):
        return (self.offset, self.leader_epoch, self.metadata, self.commit_timestamp_ms, self.expire_timestamp_ms,
                self.topic_id, self.log_offset)

    def __eq__(self, other):
        return isinstance(other, CommittedOffset) and self._fields() == (<CommittedOffset>other)._fields()

    __hash__ = None

    def __repr__(self):
        return f'CommittedOffset{self._fields()!r}'


cdef class OffsetRow:
    """A decoded row of an offset. `committed` is None if the row is a tombstone."""

    def __init__(self, OffsetKey key not None, CommittedOffset committed):
        self.key = key
        self.committed = committed

    def __eq__(self, other):
        return (isinstance(other, OffsetRow) and self.key == (<OffsetRow>other).key
                and self.committed == (<OffsetRow>other).committed)

    __hash__ = None

    def __repr__(self):
        return f'OffsetRow({self.key!r}, {self.committed!r})'


cdef class GroupRow:
    """A decoded row of a group of any kind: its key and its value as message objects. `value` is None if the row is a
    tombstone."""

    def __init__(self, key, value):
        self.key = key
        self.value = value

    def __eq__(self, other):
        return (isinstance(other, GroupRow) and self.key == (<GroupRow>other).key
                and self.value == (<GroupRow>other).value)

    __hash__ = None

    def __repr__(self):
        return f'GroupRow({self.key!r}, {self.value!r})'


cdef OffsetKey offset_key(str group_id, str topic, int32_t partition):
    cdef OffsetKey key = OffsetKey.__new__(OffsetKey)
    key.group_id = group_id
    key.topic = topic
    key.partition = partition
    return key


def offset_tombstone(OffsetKey key not None):
    """Return the encoded tombstone of an offset: its key, and None as its value."""
    return encode_row_key(OffsetCommitKey(group=key.group_id, topic=key.topic, partition=key.partition)), None


cpdef object read_row(bytes key, bytes value, int64_t log_offset):
    """Return an OffsetRow or a GroupRow; None for a row of an unknown type.

    Raise CorruptLogError if the row cannot be read or has a newer version. Skipping the row instead would lose offsets.
    """
    try:
        if key is None:
            raise RowError('found no key')
        named = decode_row_key(CONSUMER_OFFSETS, key)
        if named is None:
            return None
        found = None if value is None else decode_row_value(row_classes(CONSUMER_OFFSETS)[named.row_type][1], value)
    except RowError as error:
        raise CorruptLogError(f'{CONSUMER_OFFSETS}: the row at offset {log_offset} cannot be read: {error}') from error
    if type(named) not in offset_keys:
        return GroupRow(named, found)
    return OffsetRow(offset_key(named.group, named.topic, named.partition),
                     None if found is None else committed_of(found, log_offset))


cdef CommittedOffset committed_of(found, int64_t log_offset):
    cdef CommittedOffset committed = CommittedOffset.__new__(CommittedOffset)
    committed.offset = found.offset
    committed.metadata = found.metadata
    committed.commit_timestamp_ms = found.commit_timestamp
    committed.log_offset = log_offset
    committed.leader_epoch = -1
    committed.topic_id = NO_TOPIC_ID
    if not isinstance(found, LegacyOffsetCommitValue):
        committed.leader_epoch = found.leader_epoch
        committed.topic_id = found.topic_id
        if found.expire_timestamp != -1:
            committed.expire_timestamp_ms = found.expire_timestamp
    return committed


cpdef Py_ssize_t row_bytes(tuple row) except -1:
    """Return an upper bound, in bytes, of the space that the row takes in a batch."""
    key, value = row
    return len(key) + len(value or b'') + 32


def topics_of_subscription(bytes metadata not None):
    """Yield the names of the subscribed topics in a consumer's metadata. Raise ValueError if the bytes are not the
    metadata of a consumer.

    The metadata consists of a version (int16) and a ConsumerProtocolSubscription. All versions begin with an array of
    the topic names.
    """
    cdef Cursor cursor
    cdef int32_t count
    cdef int16_t length
    cdef const uint8_t *name
    cdef Py_ssize_t read = 0
    cursor.at = <const uint8_t *>PyBytes_AS_STRING(metadata)
    cursor.end = cursor.at + PyBytes_GET_SIZE(metadata)
    try:
        take(&cursor, 2)
        count = read_int32(take(&cursor, 4))
        if count < 0:
            raise ValueError(f'found {count} topics')
        while read < count:
            length = read_int16(take(&cursor, 2))
            if length < 0:
                raise ValueError(f'found a topic of {length} bytes')
            name = take(&cursor, length)
            topic = PyUnicode_DecodeUTF8(<const char *>name, length, NULL)
            read += 1
            yield topic
    except (ProtocolError, UnicodeDecodeError) as error:
        raise ValueError(f'not the metadata of a consumer: {error}') from error
