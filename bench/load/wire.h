/* Writes and reads the types of Kafka's protocol; record batches of magic 2; CRC-32C.
 *
 * Both directions check bounds: writing past the end of a slot, or reading past the end of an answer, ends the program
 * with an error message. All requests have a flexible version (KIP-482). */
#ifndef WIRE_H
#define WIRE_H

#include <stddef.h>
#include <stdint.h>

_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));

struct writer {
    uint8_t *at, *end;
};

void write_int8(struct writer *writer, int8_t value);
void write_int16(struct writer *writer, int16_t value);
void write_int32(struct writer *writer, int32_t value);
void write_int64(struct writer *writer, int64_t value);
void write_uvarint(struct writer *writer, uint32_t value);
void write_varint(struct writer *writer, int32_t value); /* zigzag */
void write_string(struct writer *writer, const char *text); /* compact; NULL is null */
void write_bytes(struct writer *writer, const void *data, size_t size);

/* A frame: `start_request` reserves its size, which `end_request` fills in. The correlation id is at
 * CORRELATION_ID_AT. */
enum { FRAME_HEAD_BYTES = 4, CORRELATION_ID_AT = 8 };
uint8_t *start_request(struct writer *writer, int16_t api_key, int16_t version, int32_t correlation_id);
void end_request(struct writer *writer, uint8_t *frame);
void place_int32(uint8_t *at, int32_t value);
void place_int64(uint8_t *at, int64_t value);

struct reader {
    const uint8_t *at, *end;
};

int8_t read_int8(struct reader *reader);
int16_t read_int16(struct reader *reader);
int32_t read_int32(struct reader *reader);
int64_t read_int64(struct reader *reader);
uint32_t read_uvarint(struct reader *reader);
const uint8_t *read_bytes(struct reader *reader, size_t size);
void skip_string(struct reader *reader); /* compact, nullable */
int read_array(struct reader *reader); /* compact; returns the number of elements, 0 for a null array */
void skip_tags(struct reader *reader);

/* The producer of a batch; all -1 for a producer without an id. */
struct producer_identity {
    int64_t producer_id;
    int16_t producer_epoch;
    int32_t base_sequence;
    int is_transactional;
};

/* Batches hold records without key and headers, each with a value of `value_bytes`. */
int records_that_fit(size_t batch_bytes, int value_bytes); /* at least one */
size_t batch_bytes(int records, int value_bytes);
/* Writes a batch as the `records` of a Produce request: its size, which needs room for 5 bytes, then the batch. */
void write_records(struct writer *writer, const struct producer_identity *producer, int records, int value_bytes);

/* Sets the producer of a written batch, and updates its CRC. */
void place_producer(uint8_t *batch, size_t size, const struct producer_identity *producer);

/* Reads the header of a batch in an answer. Returns its size, or 0 if it is incomplete. */
struct batch_view {
    int64_t base_offset, last_offset;
    int records;
    int is_control;
};
size_t view_batch(const uint8_t *data, size_t size, struct batch_view *view);

#endif
