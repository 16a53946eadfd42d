/* Produce, version 12: requests of equal size, each to `each` partitions, in turn over all of the topic's, or to random
 * ones (`scattered`), as a client without keys fills a batch for one partition and then picks another.
 *
 * A request is built once; its number and its partitions are patched in the slot. */
#include <stdlib.h>
#include <string.h>

#include "load.h"

enum { PRODUCE = 0, VERSION = 12, TIMEOUT_MS = 30000, ANSWER_BYTES = 65536, ANSWER_BYTES_A_PARTITION = 256 };

struct pattern {
    uint8_t *frame;
    size_t size, first_partition_at, partition_step;
    int records;
};

static void write_frame(struct pattern *pattern, struct writer *writer, const struct load_options *options) {
    static const struct producer_identity no_producer = {-1, -1, -1, 0};
    uint8_t *frame = start_request(writer, PRODUCE, VERSION, 0);
    write_string(writer, NULL); /* transactional id */
    write_int16(writer, (int16_t)options->acks);
    write_int32(writer, TIMEOUT_MS);
    write_uvarint(writer, 2);
    write_string(writer, options->topic);
    write_uvarint(writer, (uint32_t)options->each + 1);
    for (int i = 0; i < options->each; i++) {
        size_t at = (size_t)(writer->at - frame);
        if (i == 0)
            pattern->first_partition_at = at;
        else if (i == 1)
            pattern->partition_step = at - pattern->first_partition_at;
        write_int32(writer, 0);
        write_records(writer, &no_producer, pattern->records, options->record);
        write_uvarint(writer, 0);
    }
    write_uvarint(writer, 0);
    write_uvarint(writer, 0);
    end_request(writer, frame);
    pattern->size = (size_t)(writer->at - frame);
}

static void prepare(struct load *load) {
    const struct load_options *options = &load->options;
    size_t around = 64 + strlen(options->topic);
    size_t share = (size_t)options->size > around ? ((size_t)options->size - around) / (size_t)options->each : 0;
    struct pattern *pattern = calloc(1, sizeof *pattern);
    pattern->records = records_that_fit(share, options->record);
    size_t capacity = around + (size_t)options->each * (batch_bytes(pattern->records, options->record) + 16);
    pattern->frame = malloc(capacity);
    struct writer writer = {pattern->frame, pattern->frame + capacity};
    write_frame(pattern, &writer, options);
    load->own = pattern;
    load->request_bytes = pattern->size;
    load->answer_bytes = ANSWER_BYTES + (size_t)options->each * ANSWER_BYTES_A_PARTITION;
}

/* Returns a pseudo-random number, the same in every run (splitmix64). */
static uint64_t scattered(uint64_t value) {
    value *= 0x9e3779b97f4a7c15u;
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

static bool write_request(struct connection *connection, struct writer *writer, uint32_t number) {
    struct load *load = connection->load;
    const struct load_options *options = &load->options;
    const struct pattern *pattern = load->own;
    if (!may_begin(load))
        return false;
    uint8_t *frame = writer->at;
    if (number < (uint32_t)options->depth)
        memcpy(frame, pattern->frame, pattern->size);
    place_int32(frame + CORRELATION_ID_AT, (int32_t)number);
    uint64_t turn = (uint64_t)connection->index + (uint64_t)number * (uint64_t)options->connections;
    uint64_t first = (options->scattered ? scattered(turn + 1) : turn) * (uint64_t)options->each;
    for (int i = 0; i < options->each; i++)
        place_int32(frame + pattern->first_partition_at + (size_t)i * pattern->partition_step,
                    (int32_t)((first + (uint64_t)i) % (uint64_t)options->partitions));
    writer->at += pattern->size;
    return true;
}

static void read_answer(struct connection *connection, struct reader *reader, uint32_t number, uint64_t latency_ns) {
    struct load *load = connection->load;
    (void)number;
    for (int topics = read_array(reader); topics; topics--) {
        skip_string(reader);
        for (int partitions = read_array(reader); partitions; partitions--) {
            int code = read_partition_of_produce(reader);
            count_error(load, code);
            if (!code)
                load->figures.records += (uint64_t)((struct pattern *)load->own)->records;
        }
        skip_tags(reader);
    }
    add_to_histogram(&load->figures.latency, latency_ns);
}

int read_partition_of_produce(struct reader *reader) {
    read_int32(reader); /* index */
    int code = read_int16(reader);
    read_bytes(reader, 3 * sizeof(int64_t)); /* base offset, append time, log start offset */
    for (int errors = read_array(reader); errors; errors--) {
        read_int32(reader);
        skip_string(reader);
        skip_tags(reader);
    }
    skip_string(reader);
    skip_tags(reader);
    return code;
}

const struct load_kind produce_kind = {"produce", prepare, NULL, write_request, read_answer, NULL};
