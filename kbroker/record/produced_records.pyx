"""Checks the records of a batch that a producer has sent, by the rules of Apache Kafka. No Python object is created for
a record.
"""
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from kbroker.record.batch cimport COMPRESSION_MASK, LOG_APPEND_TIME_BIT, BatchFields
from kbroker.record.records cimport RecordFields, add_wrapping, refuse_record, take_record
from kbroker.wire.bytes cimport Cursor, take_varint

from kbroker.base.errors import ErrorCode, KafkaError, ProtocolError
from kbroker.record.records import MAX_DECOMPRESSED_BYTES

# The maximum number of faulty records of a batch that a response lists. A batch may have millions of records.
cdef enum:
    MOST_RECORD_ERRORS = 1000

MAX_RECORD_ERRORS = MOST_RECORD_ERRORS

cdef enum:
    RELEASE_GIL_BYTES = 8192

cdef int64_t NO_TIMESTAMP = -1


cdef class ProduceRules:
    """The rules of a topic for produced batches. They do not change: a new configuration of the topic creates new
    rules.

    `max_record_bytes` bounds the body of each record of a compressed batch, as in Apache Kafka 4.4: its bytes behind
    the length. `max_decompressed_bytes` bounds the records of a batch together.
    """

    def __init__(self, log_config, *, Py_ssize_t max_decompressed_bytes=MAX_DECOMPRESSED_BYTES):
        self.max_message_bytes = log_config.max_message_bytes
        self.max_record_bytes = log_config.max_decompressed_message_bytes
        self.segment_bytes = log_config.segment_bytes
        self.is_compacted = 'compact' in log_config.cleanup_policy
        self.is_log_append_time = log_config.message_timestamp_type == 'LogAppendTime'
        self.timestamp_before_max_ms = log_config.message_timestamp_before_max_ms
        self.timestamp_after_max_ms = log_config.message_timestamp_after_max_ms
        self.compression, self.compression_level = compression_of(log_config)
        self.max_decompressed_bytes = max_decompressed_bytes


cdef tuple compression_of(log_config):
    """Return the (codec, level) that the configuration of a topic requires. Codec -1 means that a batch keeps the
    producer's codec.
    """
    name = log_config.compression_type
    if name == 'producer':
        return -1, None
    if name == 'uncompressed':
        return 0, None
    from kbroker.record.compression import Compression
    return int(Compression[name.upper()]), getattr(log_config, f'compression_{name}_level', None)


class InvalidRecordsError(KafkaError):
    """Raised if records of a batch are invalid. `record_errors` has (index in the batch, reason) of at most
    MAX_RECORD_ERRORS records.
    """

    def __init__(self, code, message, record_errors):
        super().__init__(code, message)
        self.record_errors = record_errors


cdef struct Walk:
    # rules
    bint key_needed
    bint timestamp_bounded
    int64_t earliest_ms
    int64_t latest_ms
    int64_t max_body_bytes
    # results
    int64_t max_timestamp_ms
    int32_t faults
    bint has_late


cdef struct Fault:
    int64_t timestamp_ms
    int32_t index
    bint is_late


cdef Walk walk_by(ProduceRules rules, const BatchFields *batch, int64_t now_ms) noexcept:
    cdef Walk walk
    walk.max_body_bytes = rules.max_record_bytes if batch.attributes & COMPRESSION_MASK else INT64_MAX
    walk.key_needed = rules.is_compacted
    walk.timestamp_bounded = not rules.is_log_append_time
    walk.earliest_ms = INT64_MIN
    walk.latest_ms = INT64_MAX
    if rules.timestamp_after_max_ms < INT64_MAX - now_ms:
        walk.latest_ms = now_ms + rules.timestamp_after_max_ms
    if rules.timestamp_before_max_ms < INT64_MAX or walk.latest_ms < INT64_MAX:
        # If the topic has no bound, a timestamp that is more than 2^63-1 ms ago is treated as a future one, as in
        # Apache Kafka.
        walk.earliest_ms = now_ms - rules.timestamp_before_max_ms
    walk.max_timestamp_ms = NO_TIMESTAMP
    walk.faults = 0
    walk.has_late = False
    return walk


cdef inline bint lacks_key(const Walk *walk, const RecordFields *record) noexcept nogil:
    return walk.key_needed and record.key_size < 0


cdef inline bint is_bounded(const Walk *walk, int64_t timestamp_ms) noexcept nogil:
    return walk.timestamp_bounded and timestamp_ms != NO_TIMESTAMP


cdef inline bint is_out_of_time(const Walk *walk, int64_t timestamp_ms) noexcept nogil:
    return is_bounded(walk, timestamp_ms) and (timestamp_ms < walk.earliest_ms or timestamp_ms > walk.latest_ms)


cdef inline const uint8_t *pass_varint(const uint8_t *at, const uint8_t *end, int max_bytes,
                                       uint64_t *value) noexcept nogil:
    """Read a varint of at most `max_bytes` bytes into `value`, without zigzag decoding. Return the address of the byte
    behind it, NULL if the varint does not end.
    """
    cdef uint64_t found, group
    cdef int shift = 7
    if at >= end:
        return NULL
    found = at[0]
    if found >= 0x80:
        if end - at > max_bytes:
            end = at + max_bytes
        found &= 0x7f
        while True:
            at += 1
            if at == end:
                return NULL
            group = at[0]
            found |= (group & 0x7f) << shift
            if group < 0x80:
                break
            shift += 7
    value[0] = found
    return at + 1


cdef inline const uint8_t *pass_blob(const uint8_t *at, const uint8_t *end, int64_t least,
                                     bint *is_null) noexcept nogil:
    """Skip a length and the bytes of this length. Return the address of the next byte. Return NULL if bytes are
    missing, or if the length is below `least` (-1 allows null).
    """
    cdef uint64_t raw
    cdef int64_t size
    at = pass_varint(at, end, 5, &raw)
    if at == NULL:
        return NULL
    size = <int32_t>(<uint32_t>raw >> 1) ^ -<int32_t>(<uint32_t>raw & 1)
    is_null[0] = size < 0
    if size < least or size > end - at:
        return NULL
    return at if size < 0 else at + size


cdef const uint8_t *pass_record(const uint8_t *at, const uint8_t *end, int32_t index, const BatchFields *batch,
                                Walk *walk) noexcept nogil:
    """Skip one record, and return the address of the next one. Return NULL if the record breaks a rule; `walk_records`
    then finds out which.
    """
    cdef uint64_t raw, delta
    cdef int64_t timestamp_ms
    cdef int32_t headers
    cdef bint is_null = False
    at = pass_varint(at, end, 5, &raw)
    if at == NULL or raw & 1 or <int64_t>(<uint32_t>raw >> 1) > end - at or raw == 0:
        return NULL
    if <int64_t>(<uint32_t>raw >> 1) > walk.max_body_bytes:
        return NULL
    end = at + (<uint32_t>raw >> 1)
    at = pass_varint(at + 1, end, 10, &delta)
    if at == NULL:
        return NULL
    at = pass_varint(at, end, 5, &raw)
    if at == NULL or <uint32_t>raw != <uint32_t>index << 1:
        return NULL
    timestamp_ms = add_wrapping(batch.base_timestamp_ms, <int64_t>(delta >> 1) ^ -<int64_t>(delta & 1))
    if timestamp_ms > walk.max_timestamp_ms:
        walk.max_timestamp_ms = timestamp_ms
    if is_out_of_time(walk, timestamp_ms):
        return NULL
    at = pass_blob(at, end, -1, &is_null)
    if at == NULL or (is_null and walk.key_needed):
        return NULL
    at = pass_blob(at, end, -1, &is_null)
    if at == NULL:
        return NULL
    at = pass_varint(at, end, 5, &raw)
    if at == NULL or raw & 1:
        return NULL
    headers = <int32_t>(<uint32_t>raw >> 1)
    while headers:
        headers -= 1
        at = pass_blob(at, end, 0, &is_null)
        if at == NULL:
            return NULL
        at = pass_blob(at, end, -1, &is_null)
        if at == NULL:
            return NULL
    return at if at == end else NULL


cdef bint pass_records(Cursor cursor, const BatchFields *batch, Walk *walk) noexcept nogil:
    """Return whether all records meet all rules, which is the usual case. This is several times as fast as
    `walk_records`, because it raises no error. Return False for a batch with LogAppendTime, which no client sends.
    """
    cdef const uint8_t *at = cursor.at
    cdef int32_t i
    if batch.attributes & LOG_APPEND_TIME_BIT:
        return False
    for i in range(batch.records_count):
        at = pass_record(at, cursor.end, i, batch, walk)
        if at == NULL:
            return False
    return at == cursor.end


cdef int check_body(Cursor cursor, int64_t max_body_bytes, int32_t index) except -1 nogil:
    """Raise ProtocolError if the body of the record at the cursor is too large. In Apache Kafka, too, this error comes
    before the faults of single records, and lists none of them.
    """
    cdef int64_t body_bytes = take_varint(&cursor)
    if body_bytes > max_body_bytes:
        with gil:
            raise ProtocolError(f'found {body_bytes} bytes in record {index} of a compressed batch, expected at most '
                                f'{max_body_bytes} (max.decompressed.message.bytes)')
    return 0


cdef int walk_records(Cursor cursor, const BatchFields *batch, Walk *walk, Fault *faults) except -1 nogil:
    """Read all records, and list the first MAX_RECORD_ERRORS records that break a rule in `faults`. Raise ProtocolError
    unless there are `records_count` records with the offset deltas 0, 1, 2, ..., none of which is too large.

    Kafka and the readers in this project treat a length below -1 as null. This function refuses it, because librdkafka
    cannot read beyond it. In a batch with LogAppendTime, each record has the batch's maximum timestamp. If the topic
    has no bound for that timestamp, the record counts as late.
    """
    cdef bint is_stamped = batch.attributes & LOG_APPEND_TIME_BIT != 0
    cdef RecordFields record
    cdef int64_t timestamp_ms
    cdef bint is_late
    cdef int32_t i
    for i in range(batch.records_count):
        check_body(cursor, walk.max_body_bytes, i)
        take_record(&cursor, &record)
        if record.offset_delta != i:
            refuse_record(b'offset delta of a record, expected its index', record.offset_delta)
        if record.has_odd_null:
            refuse_record(b'length below -1 in a record, expected none: index', i)
        timestamp_ms = add_wrapping(batch.base_timestamp_ms, record.timestamp_delta_ms)
        if is_stamped:
            timestamp_ms = batch.max_timestamp_ms
        if timestamp_ms > walk.max_timestamp_ms:
            walk.max_timestamp_ms = timestamp_ms
        is_late = is_out_of_time(walk, timestamp_ms) or (is_stamped and not is_bounded(walk, timestamp_ms))
        if lacks_key(walk, &record):
            is_late = False
        elif not is_late:
            continue
        if walk.faults < MOST_RECORD_ERRORS:
            faults[walk.faults] = Fault(timestamp_ms, i, is_late)
        walk.faults += 1
        walk.has_late = walk.has_late or is_late
    if cursor.at != cursor.end:
        refuse_record(b'bytes after the last record, expected none', cursor.end - cursor.at)
    return 0


cdef object error_of(const BatchFields *batch, const Walk *walk, const Fault *faults):
    """Return the error that lists the faulty records of a batch, after `walk_records` has found them."""
    cdef list errors = []
    cdef int32_t i
    for i in range(min(walk.faults, <int32_t>MOST_RECORD_ERRORS)):
        if faults[i].is_late and not is_bounded(walk, faults[i].timestamp_ms):
            reason = 'found timestamp type LogAppendTime, expected CreateTime: only the broker sets the other'
        elif faults[i].is_late:
            reason = f'found timestamp {faults[i].timestamp_ms}, expected {walk.earliest_ms} to {walk.latest_ms}'
        else:
            reason = 'found no key, expected one because the topic is compacted'
        errors.append((faults[i].index, reason))
    code = ErrorCode.INVALID_TIMESTAMP if walk.has_late else ErrorCode.INVALID_RECORD
    message = f'{walk.faults} of {batch.records_count} records are refused; the first: {errors[0][1]}'
    return InvalidRecordsError(code, message, errors)


cdef int refuse_batch(str message) except -1:
    raise KafkaError(ErrorCode.INVALID_RECORD, message)


cdef int64_t check_records(Cursor cursor, const BatchFields *batch, ProduceRules rules, int64_t now_ms) except -2:
    """Check every record of the batch. Return the largest timestamp in ms, -1 if no record has a timestamp. Raise
    KafkaError if a record breaks a rule.
    """
    cdef Walk walk = walk_by(rules, batch, now_ms)
    cdef bint sound
    if cursor.end - cursor.at < RELEASE_GIL_BYTES:
        sound = pass_records(cursor, batch, &walk)
    else:
        with nogil:
            sound = pass_records(cursor, batch, &walk)
    return walk.max_timestamp_ms if sound else check_each(cursor, batch, rules, now_ms)


cdef int64_t check_each(Cursor cursor, const BatchFields *batch, ProduceRules rules, int64_t now_ms) except -2:
    """Check the records like `check_records`, but more slowly, and raise the error that describes the faults."""
    cdef Walk walk = walk_by(rules, batch, now_ms)
    cdef Fault faults[MOST_RECORD_ERRORS]
    try:
        with nogil:
            walk_records(cursor, batch, &walk, faults)
    except ProtocolError as error:
        refuse_batch(str(error))
    if walk.faults:
        raise error_of(batch, &walk, faults)
    return walk.max_timestamp_ms
