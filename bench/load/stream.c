/* A producer at full speed on each connection, to one partition: consecutive Produce requests and, with `commit_ms`, a
 * commit (of version 2) at this interval; without it, no transactions.
 *
 * The first request of a transaction is sent alone: if the broker is still writing the markers of the previous one, the
 * request is retried. A commit waits for all answers before it, as in a client. */
#include <stdlib.h>
#include <string.h>

#include "producer.h"

enum { PRODUCE = 0, VERSION = 12, TIMEOUT_MS = 30000, ANSWER_BYTES = 65536 };

enum phase { IDLE, FIRST, FLOWING, ENDING };

struct stream {
    struct producer producer; /* first field, used to end a transaction */
    enum phase phase;
    uint64_t commit_at_ns;
    bool has_failed;
};

/* The common part of all requests: the records, preceded by their size, without a producer. */
struct pattern {
    uint8_t *sized;
    size_t size, batch_size;
    int records;
};

static void prepare(struct load *load) {
    static const struct producer_identity no_producer = {-1, -1, -1, 0};
    const struct load_options *options = &load->options;
    size_t around = 2 * (64 + strlen(options->topic));
    struct pattern *pattern = calloc(1, sizeof *pattern);
    pattern->records = records_that_fit((size_t)options->size > around ? (size_t)options->size - around : 0,
                                        options->record);
    pattern->batch_size = batch_bytes(pattern->records, options->record);
    pattern->sized = malloc(pattern->batch_size + 8);
    struct writer writer = {pattern->sized, pattern->sized + pattern->batch_size + 8};
    write_records(&writer, &no_producer, pattern->records, options->record);
    pattern->size = (size_t)(writer.at - pattern->sized);
    load->own = pattern;
    load->request_bytes = 512 + 2 * sizeof load->options.topic + pattern->size;
    load->answer_bytes = ANSWER_BYTES;
    load->commits = load->has_just_committed = options->commit_ms > 0; /* the start counts as a commit */
}

static void open_stream(struct connection *connection) {
    connection->own = calloc(1, sizeof(struct stream));
    introduce_producer(connection, connection->load->options.commit_ms > 0, 2);
}

static void write_produce(struct connection *connection, struct writer *writer) {
    const struct load_options *options = &connection->load->options;
    struct producer *producer = connection->own;
    const struct pattern *pattern = connection->load->own;
    write_string(writer, producer->identity.is_transactional ? producer->transactional_id : NULL);
    write_int16(writer, -1);
    write_int32(writer, TIMEOUT_MS);
    write_uvarint(writer, 2);
    write_string(writer, options->topic);
    write_uvarint(writer, 2);
    write_int32(writer, connection->index % options->partitions);
    write_bytes(writer, pattern->sized, pattern->size);
    place_producer(writer->at - pattern->batch_size, pattern->batch_size, &producer->identity);
    for (int i = 0; i < 3; i++)
        write_uvarint(writer, 0);
    producer->identity.base_sequence += pattern->records;
}

/* Returns false if the next request must wait for answers, or there is none. */
static bool may_go_on(struct connection *connection) {
    struct stream *stream = connection->own;
    bool is_transactional = stream->producer.identity.is_transactional;
    int commit_ms = connection->load->options.commit_ms;
    bool is_in_flight = connection->next_number != connection->answered;
    switch (stream->phase) {
    case IDLE:
        if (!may_begin(connection->load))
            return false;
        stream->phase = is_transactional ? FIRST : FLOWING;
        stream->commit_at_ns = is_transactional ? clock_ns() + (uint64_t)commit_ms * 1000000u : UINT64_MAX;
        return true;
    case FIRST:
        return !is_in_flight;
    case FLOWING:
        if (clock_ns() < stream->commit_at_ns && may_begin(connection->load))
            return true;
        if (is_in_flight || !is_transactional)
            return false;
        stream->phase = ENDING;
        return true;
    case ENDING:
        return !is_in_flight;
    }
    return false;
}

static bool write_request(struct connection *connection, struct writer *writer, uint32_t number) {
    struct stream *stream = connection->own;
    if (stream->has_failed || !may_go_on(connection))
        return false;
    bool is_end = stream->phase == ENDING;
    uint8_t *frame = start_request(writer, is_end ? END_TXN : PRODUCE, is_end ? END_TXN_VERSION : VERSION,
                                   (int32_t)number);
    (is_end ? write_end_txn : write_produce)(connection, writer);
    end_request(writer, frame);
    return true;
}

static int read_produce(struct reader *reader) {
    int code = 0;
    for (int topics = read_array(reader); topics; topics--) {
        skip_string(reader);
        for (int partitions = read_array(reader); partitions; partitions--)
            code = read_partition_of_produce(reader);
        skip_tags(reader);
    }
    return code;
}

static void read_answer(struct connection *connection, struct reader *reader, uint32_t number, uint64_t latency_ns) {
    struct load *load = connection->load;
    struct stream *stream = connection->own;
    (void)number;
    int code = stream->phase == ENDING ? read_end_txn(&stream->producer, reader) : read_produce(reader);
    if (code == CONCURRENT_TRANSACTIONS && stream->phase != FLOWING) {
        if (stream->phase == FIRST)
            stream->producer.identity.base_sequence = 0; /* it will be retried */
        try_again_later(connection);
    } else if (code) {
        count_error(load, code);
        stream->has_failed = true;
    } else if (stream->phase == ENDING) {
        load->figures.transactions++;
        load->has_just_committed = true;
        stream->producer.identity.base_sequence = 0;
        stream->phase = IDLE;
    } else {
        load->figures.records += (uint64_t)((const struct pattern *)load->own)->records;
        add_to_histogram(&load->figures.latency, latency_ns);
        if (stream->phase == FIRST)
            stream->phase = FLOWING;
    }
}

static void wait_for_markers(struct connection *connection) {
    if (connection->load->commits && !((struct stream *)connection->own)->has_failed)
        introduce_producer(connection, true, 2);
}

const struct load_kind stream_kind = {"stream", prepare, open_stream, write_request, read_answer, wait_for_markers};
