/* Transactions, one producer on each connection: `records` records in each of `each` partitions, and the end.
 *
 * Version 1, before KIP-890: AddPartitionsToTxn, Produce, EndTxn; the epoch stays and sequences continue. Version 2:
 * Produce adds the partitions; EndTxn returns the epoch of the next transaction, whose sequences begin at 0. If the
 * broker is still writing the markers of the previous transaction, the request is retried after a delay, as in a
 * client. */
#include <stdlib.h>
#include <string.h>

#include "producer.h"

enum { PRODUCE = 0, ADD_PARTITIONS_TO_TXN = 24 };
enum { ANSWER_BYTES = 65536, ANSWER_BYTES_A_PARTITION = 256, TIMEOUT_MS = 30000 };
enum { NOT_ENOUGH_REPLICAS = 19 }; /* Kafka's substitute for CONCURRENT_TRANSACTIONS in a Produce of version 1 */

enum step { ADD_PARTITIONS, PRODUCE_RECORDS, END };

struct state {
    struct producer producer; /* first field, used to end a transaction */
    enum step step;
    uint32_t number; /* of the transaction */
    uint64_t began_ns;
    bool has_failed;
};

static enum step first_step(const struct load *load) {
    return load->options.version == 1 ? ADD_PARTITIONS : PRODUCE_RECORDS;
}

static int32_t partition_of(const struct connection *connection, int i) {
    const struct load_options *options = &connection->load->options;
    return (connection->index * options->each + i) % options->partitions;
}

static void prepare(struct load *load) {
    const struct load_options *options = &load->options;
    size_t each = (size_t)options->each;
    load->request_bytes =
        512 + 2 * sizeof load->options.topic + each * (batch_bytes(options->records, options->record) + 16);
    load->answer_bytes = ANSWER_BYTES + each * ANSWER_BYTES_A_PARTITION;
}

/* ---- requests */

static void write_add_partitions(struct connection *connection, struct writer *writer) {
    const struct load_options *options = &connection->load->options;
    write_identity(writer, connection->own);
    write_uvarint(writer, 2);
    write_string(writer, options->topic);
    write_uvarint(writer, (uint32_t)options->each + 1);
    for (int i = 0; i < options->each; i++)
        write_int32(writer, partition_of(connection, i));
    write_uvarint(writer, 0);
    write_uvarint(writer, 0);
}

static void write_produce(struct connection *connection, struct writer *writer) {
    const struct load_options *options = &connection->load->options;
    const struct producer *producer = connection->own;
    write_string(writer, producer->transactional_id);
    write_int16(writer, -1);
    write_int32(writer, TIMEOUT_MS);
    write_uvarint(writer, 2);
    write_string(writer, options->topic);
    write_uvarint(writer, (uint32_t)options->each + 1);
    for (int i = 0; i < options->each; i++) {
        write_int32(writer, partition_of(connection, i));
        write_records(writer, &producer->identity, options->records, options->record);
        write_uvarint(writer, 0);
    }
    write_uvarint(writer, 0);
    write_uvarint(writer, 0);
}

static const struct {
    int16_t api_key, versions[2]; /* of transaction versions 1 and 2 */
    void (*write)(struct connection *, struct writer *);
} requests[] = {
    [ADD_PARTITIONS] = {ADD_PARTITIONS_TO_TXN, {3, 3}, write_add_partitions},
    [PRODUCE_RECORDS] = {PRODUCE, {11, 12}, write_produce},
    [END] = {END_TXN, {4, 5}, write_end_txn},
};

static void open_transactions(struct connection *connection) {
    struct state *state = calloc(1, sizeof *state);
    connection->own = state;
    introduce_producer(connection, true, connection->load->options.version);
    state->step = first_step(connection->load);
}

static void wait_for_markers(struct connection *connection) {
    if (!((struct state *)connection->own)->has_failed)
        introduce_producer(connection, true, connection->load->options.version);
}

static bool begin_transaction(struct connection *connection) {
    struct load *load = connection->load;
    struct state *state = connection->own;
    if (!may_begin(load))
        return false;
    uint32_t percent = (uint32_t)load->options.aborts;
    state->producer.is_aborted = state->number * percent % 100 + percent >= 100; /* spread evenly */
    state->number++;
    state->began_ns = clock_ns();
    return true;
}

static bool write_request(struct connection *connection, struct writer *writer, uint32_t number) {
    struct state *state = connection->own;
    if (state->has_failed)
        return false;
    if (!state->began_ns && !begin_transaction(connection))
        return false;
    int version = connection->load->options.version;
    uint8_t *frame = start_request(writer, requests[state->step].api_key,
                                   requests[state->step].versions[version - 1], (int32_t)number);
    requests[state->step].write(connection, writer);
    end_request(writer, frame);
    return true;
}

/* ---- answers: each function returns the decisive error code */

static int read_add_partitions(struct producer *producer, struct reader *reader) {
    (void)producer;
    int code = 0;
    read_int32(reader);
    for (int topics = read_array(reader); topics; topics--) {
        skip_string(reader);
        for (int partitions = read_array(reader); partitions; partitions--) {
            read_int32(reader);
            int here = read_int16(reader);
            code = here ? here : code;
            skip_tags(reader);
        }
        skip_tags(reader);
    }
    return code;
}

static int read_produce(struct producer *producer, struct reader *reader) {
    (void)producer;
    int code = 0;
    for (int topics = read_array(reader); topics; topics--) {
        skip_string(reader);
        for (int partitions = read_array(reader); partitions; partitions--) {
            int here = read_partition_of_produce(reader);
            code = here ? here : code;
        }
        skip_tags(reader);
    }
    return code;
}

static int (*const answers[])(struct producer *, struct reader *) = {read_add_partitions, read_produce, read_end_txn};

static void finish(struct load *load, struct state *state) {
    const struct load_options *options = &load->options;
    load->figures.transactions++;
    load->figures.aborted_transactions += state->producer.is_aborted;
    load->figures.records += (uint64_t)options->records * (uint64_t)options->each;
    add_to_histogram(&load->figures.latency, clock_ns() - state->began_ns);
    state->producer.identity.base_sequence = options->version == 1 ? state->producer.identity.base_sequence + options->records : 0;
    state->began_ns = 0;
    state->step = first_step(load);
}

static void read_answer(struct connection *connection, struct reader *reader, uint32_t number, uint64_t latency_ns) {
    struct load *load = connection->load;
    struct state *state = connection->own;
    (void)number, (void)latency_ns;
    int code = answers[state->step](&state->producer, reader);
    if (code == CONCURRENT_TRANSACTIONS || (code == NOT_ENOUGH_REPLICAS && state->step == PRODUCE_RECORDS)) {
        try_again_later(connection);
    } else if (code) {
        count_error(load, code);
        state->has_failed = true;
    } else if (state->step == END) {
        finish(load, state);
    } else {
        state->step++;
    }
}

const struct load_kind transaction_kind = {"transaction", prepare, open_transactions, write_request, read_answer,
                                             wait_for_markers};
