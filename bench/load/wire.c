#include "wire.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    BATCH_HEAD_BYTES = 61,
    LOG_OVERHEAD_BYTES = 12,
    CRC_AT = 17,
    CRC_FROM = 21,
    ATTRIBUTES_AT = 21,
    PRODUCER_ID_AT = 43,
    LAST_OFFSET_DELTA_AT = 23,
    RECORDS_COUNT_AT = 57,
    MAGIC_AT = 16,
    TRANSACTIONAL_BIT = 0x10,
    CONTROL_BIT = 0x20,
};

void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("load: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

/* ---- writing */

static uint8_t *room(struct writer *writer, size_t size) {
    if ((size_t)(writer->end - writer->at) < size)
        die("a request does not fit into its slot: %zu bytes more, %td left", size, writer->end - writer->at);
    uint8_t *at = writer->at;
    writer->at += size;
    return at;
}

static void place(uint8_t *at, uint64_t value, int size) {
    while (size--) {
        at[size] = (uint8_t)value;
        value >>= 8;
    }
}

void place_int32(uint8_t *at, int32_t value) { place(at, (uint32_t)value, 4); }
void place_int64(uint8_t *at, int64_t value) { place(at, (uint64_t)value, 8); }
void write_int8(struct writer *writer, int8_t value) { *room(writer, 1) = (uint8_t)value; }
void write_int16(struct writer *writer, int16_t value) { place(room(writer, 2), (uint16_t)value, 2); }
void write_int32(struct writer *writer, int32_t value) { place_int32(room(writer, 4), value); }
void write_int64(struct writer *writer, int64_t value) { place_int64(room(writer, 8), value); }
void write_bytes(struct writer *writer, const void *data, size_t size) { memcpy(room(writer, size), data, size); }

void write_uvarint(struct writer *writer, uint32_t value) {
    for (; value >= 0x80; value >>= 7)
        *room(writer, 1) = (uint8_t)(value | 0x80);
    *room(writer, 1) = (uint8_t)value;
}

void write_varint(struct writer *writer, int32_t value) {
    write_uvarint(writer, ((uint32_t)value << 1) ^ (uint32_t)(value >> 31));
}

void write_string(struct writer *writer, const char *text) {
    if (text == NULL) {
        write_uvarint(writer, 0);
        return;
    }
    size_t size = strlen(text);
    write_uvarint(writer, (uint32_t)size + 1);
    write_bytes(writer, text, size);
}

uint8_t *start_request(struct writer *writer, int16_t api_key, int16_t version, int32_t correlation_id) {
    static const char client_id[] = "load";
    uint8_t *frame = room(writer, FRAME_HEAD_BYTES);
    write_int16(writer, api_key);
    write_int16(writer, version);
    write_int32(writer, correlation_id);
    write_int16(writer, sizeof client_id - 1);
    write_bytes(writer, client_id, sizeof client_id - 1);
    write_uvarint(writer, 0);
    return frame;
}

void end_request(struct writer *writer, uint8_t *frame) {
    place_int32(frame, (int32_t)(writer->at - frame - FRAME_HEAD_BYTES));
}

/* ---- reading */

const uint8_t *read_bytes(struct reader *reader, size_t size) {
    if ((size_t)(reader->end - reader->at) < size)
        die("an answer is too short: %zu more bytes expected, %td left", size, reader->end - reader->at);
    const uint8_t *at = reader->at;
    reader->at += size;
    return at;
}

static uint64_t value_at(const uint8_t *at, int size) {
    uint64_t value = 0;
    while (size--)
        value = value << 8 | *at++;
    return value;
}

int8_t read_int8(struct reader *reader) { return (int8_t)*read_bytes(reader, 1); }
int16_t read_int16(struct reader *reader) { return (int16_t)value_at(read_bytes(reader, 2), 2); }
int32_t read_int32(struct reader *reader) { return (int32_t)value_at(read_bytes(reader, 4), 4); }
int64_t read_int64(struct reader *reader) { return (int64_t)value_at(read_bytes(reader, 8), 8); }

uint32_t read_uvarint(struct reader *reader) {
    uint32_t value = 0;
    for (int shift = 0; shift < 35; shift += 7) {
        uint8_t byte = *read_bytes(reader, 1);
        value |= (uint32_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return value;
    }
    die("found a varint of more than five bytes in an answer");
}

int read_array(struct reader *reader) {
    uint32_t count = read_uvarint(reader);
    return count ? (int)count - 1 : 0;
}

void skip_string(struct reader *reader) { read_bytes(reader, (size_t)read_array(reader)); }

void skip_tags(struct reader *reader) {
    for (uint32_t count = read_uvarint(reader); count; count--) {
        read_uvarint(reader);
        read_bytes(reader, read_uvarint(reader));
    }
}

/* ---- CRC-32C */

static uint32_t crc_by_table(uint32_t crc, const uint8_t *data, size_t size) {
    static uint32_t table[256];
    if (!table[1])
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t remainder = byte;
            for (int bit = 0; bit < 8; bit++)
                remainder = remainder >> 1 ^ (remainder & 1 ? 0x82f63b78 : 0);
            table[byte] = remainder;
        }
    while (size--)
        crc = crc >> 8 ^ table[(uint8_t)crc ^ *data++];
    return crc;
}

#ifdef __x86_64__
/* Clang has separated the crc32 instruction from sse4.2 in version 14. */
#if defined(__clang__) && __clang_major__ >= 14
#define SSE42 "sse4.2,crc32"
#else
#define SSE42 "sse4.2"
#endif

__attribute__((target(SSE42))) static uint32_t crc_by_instruction(uint32_t crc, const uint8_t *data, size_t size) {
    uint64_t wide = crc;
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    crc = (uint32_t)wide;
    while (size--)
        crc = __builtin_ia32_crc32qi(crc, *data++);
    return crc;
}
#endif

static uint32_t crc32c(const uint8_t *data, size_t size) {
#ifdef __x86_64__
    if (__builtin_cpu_supports("sse4.2"))
        return ~crc_by_instruction(~0u, data, size);
#endif
    return ~crc_by_table(~0u, data, size);
}

/* ---- batches */

static int varint_bytes(int32_t value) {
    uint32_t zigzag = ((uint32_t)value << 1) ^ (uint32_t)(value >> 31);
    int size = 1;
    for (; zigzag >= 0x80; zigzag >>= 7)
        size++;
    return size;
}

/* Returns the size of a record without its length. */
static int record_bytes(int offset_delta, int value_bytes) {
    static const int attributes_time_and_key = 3, headers = 1;
    return attributes_time_and_key + varint_bytes(offset_delta) + varint_bytes(value_bytes) + value_bytes + headers;
}

size_t batch_bytes(int records, int value_bytes) {
    size_t size = BATCH_HEAD_BYTES;
    for (int i = 0; i < records; i++) {
        int record = record_bytes(i, value_bytes);
        size += (size_t)(varint_bytes(record) + record);
    }
    return size;
}

int records_that_fit(size_t size, int value_bytes) {
    int records = 0;
    for (size_t taken = BATCH_HEAD_BYTES; taken <= size; records++) {
        int record = record_bytes(records, value_bytes);
        taken += (size_t)(varint_bytes(record) + record);
    }
    return records > 2 ? records - 1 : 1;
}

static void write_record(struct writer *writer, int offset_delta, int value_bytes) {
    write_varint(writer, record_bytes(offset_delta, value_bytes));
    write_int8(writer, 0);
    write_varint(writer, 0);
    write_varint(writer, offset_delta);
    write_varint(writer, -1);
    write_varint(writer, value_bytes);
    uint8_t *value = room(writer, (size_t)value_bytes);
    uint32_t state = (uint32_t)offset_delta * 2654435761u + 1; /* pseudo-random bytes, the same in every run */
    for (int i = 0; i < value_bytes; i++) {
        state = state * 1664525 + 1013904223;
        value[i] = (uint8_t)(state >> 24);
    }
    write_varint(writer, 0);
}

static void write_batch(struct writer *writer, const struct producer_identity *producer, int records, int value_bytes) {
    uint8_t *start = writer->at;
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    int64_t now_ms = time.tv_sec * 1000LL + time.tv_nsec / 1000000;
    write_int64(writer, 0); /* base offset */
    write_int32(writer, 0); /* length, below */
    write_int32(writer, -1); /* leader epoch */
    write_int8(writer, 2); /* magic */
    write_int32(writer, 0); /* CRC, below */
    write_int16(writer, producer->is_transactional ? TRANSACTIONAL_BIT : 0);
    write_int32(writer, records - 1);
    write_int64(writer, now_ms);
    write_int64(writer, now_ms);
    write_int64(writer, producer->producer_id);
    write_int16(writer, producer->producer_epoch);
    write_int32(writer, producer->base_sequence);
    write_int32(writer, records);
    for (int i = 0; i < records; i++)
        write_record(writer, i, value_bytes);
    place_int32(start + 8, (int32_t)(writer->at - start - LOG_OVERHEAD_BYTES));
    place_int32(start + CRC_AT, (int32_t)crc32c(start + CRC_FROM, (size_t)(writer->at - start - CRC_FROM)));
}

void place_producer(uint8_t *batch, size_t size, const struct producer_identity *producer) {
    struct writer writer = {batch + ATTRIBUTES_AT, batch + size};
    write_int16(&writer, producer->is_transactional ? TRANSACTIONAL_BIT : 0);
    writer.at = batch + PRODUCER_ID_AT;
    write_int64(&writer, producer->producer_id);
    write_int16(&writer, producer->producer_epoch);
    write_int32(&writer, producer->base_sequence);
    place_int32(batch + CRC_AT, (int32_t)crc32c(batch + CRC_FROM, size - CRC_FROM));
}

void write_records(struct writer *writer, const struct producer_identity *producer, int records, int value_bytes) {
    enum { WIDEST_VARINT_BYTES = 5 };
    struct writer size = *writer;
    uint8_t *batch = room(writer, WIDEST_VARINT_BYTES) + WIDEST_VARINT_BYTES;
    write_batch(writer, producer, records, value_bytes);
    size_t bytes = (size_t)(writer->at - batch);
    write_uvarint(&size, (uint32_t)bytes + 1);
    memmove(size.at, batch, bytes);
    writer->at = size.at + bytes;
}

size_t view_batch(const uint8_t *data, size_t size, struct batch_view *view) {
    if (size < BATCH_HEAD_BYTES)
        return 0;
    size_t whole = (size_t)value_at(data + 8, 4) + LOG_OVERHEAD_BYTES;
    if (data[MAGIC_AT] != 2 || whole < BATCH_HEAD_BYTES)
        die("found a batch of magic %d and %zu bytes in an answer", data[MAGIC_AT], whole);
    if (size < whole)
        return 0;
    view->base_offset = (int64_t)value_at(data, 8);
    view->last_offset = view->base_offset + (int32_t)value_at(data + LAST_OFFSET_DELTA_AT, 4);
    view->records = (int)value_at(data + RECORDS_COUNT_AT, 4);
    view->is_control = (value_at(data + ATTRIBUTES_AT, 2) & CONTROL_BIT) != 0;
    return whole;
}
