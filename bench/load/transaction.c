/* Transactions, one producer on each connection: `records` records in each of `each` partitions, and the end.
 *
 * Version 1 is how clients did it before KIP-890: AddPartitionsToTxn, Produce, EndTxn; the epoch stays and sequences go
 * on. Version 2: the Produce adds the partitions, EndTxn tells the epoch of the next transaction, whose sequences begin
 * at 0. Where the broker still writes the markers of the last transaction it says so, and the same request goes out
 * again a little later, as a client would do it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "load.h"

enum { PRODUCE = 0, FIND_COORDINATOR = 10, INIT_PRODUCER_ID = 22, ADD_PARTITIONS_TO_TXN = 24, END_TXN = 26 };
enum { ANSWER_BYTES = 65536, ANSWER_BYTES_A_PARTITION = 256, TIMEOUT_MS = 30000, TRANSACTION_TIMEOUT_MS = 60000 };
enum {
    COORDINATOR_LOAD_IN_PROGRESS = 14,
    COORDINATOR_NOT_AVAILABLE = 15,
    NOT_COORDINATOR = 16,
    NOT_ENOUGH_REPLICAS = 19, /* what Kafka makes of the next one for a Produce of version 1 */
    CONCURRENT_TRANSACTIONS = 51,
};
enum { OPENING_TRIES = 1000, OPENING_WAIT_US = 10000 };

enum step { ADD_PARTITIONS, PRODUCE_RECORDS, END };

struct producer {
    struct producer_identity identity;
    char transactional_id[NAME_BYTES + 16];
    enum step step;
    uint32_t number; /* of the transaction */
    uint64_t began_ns;
    bool is_aborted;
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

/* ---- opening */

static void write_find_coordinator(struct connection *connection, struct writer *writer) {
    write_string(writer, ((struct producer *)connection->own)->transactional_id);
    write_int8(writer, 1);
    write_uvarint(writer, 0);
}

static void write_init_producer_id(struct connection *connection, struct writer *writer) {
    write_string(writer, ((struct producer *)connection->own)->transactional_id);
    write_int32(writer, TRANSACTION_TIMEOUT_MS);
    write_int64(writer, -1);
    write_int16(writer, -1);
    write_uvarint(writer, 0);
}

static bool passes(int code) {
    return code == COORDINATOR_LOAD_IN_PROGRESS || code == COORDINATOR_NOT_AVAILABLE || code == NOT_COORDINATOR
           || code == CONCURRENT_TRANSACTIONS;
}

/* Asks until the answer is no error that passes. The answer begins with throttle time and error code. */
static struct reader ask_until_it_passes(struct connection *connection,
                                         void (*write)(struct connection *, struct writer *), int16_t api_key,
                                         int16_t version) {
    for (int tries = 0; tries < OPENING_TRIES; tries++) {
        struct reader reader = ask(connection, write, api_key, version);
        read_int32(&reader);
        int code = read_int16(&reader);
        if (!code)
            return reader;
        if (!passes(code))
            die("API %d answers with error code %d", api_key, code);
        usleep(OPENING_WAIT_US);
    }
    die("API %d answered %d times that it is not ready", api_key, OPENING_TRIES);
}

static void open_producer(struct connection *connection) {
    struct load *load = connection->load;
    struct producer *producer = calloc(1, sizeof *producer);
    connection->own = producer;
    snprintf(producer->transactional_id, sizeof producer->transactional_id, "%s-%d", load->options.topic,
             connection->index);
    ask_until_it_passes(connection, write_find_coordinator, FIND_COORDINATOR, 3);
    struct reader reader = ask_until_it_passes(connection, write_init_producer_id, INIT_PRODUCER_ID,
                                               load->options.version == 1 ? 4 : 5);
    int64_t producer_id = read_int64(&reader);
    int16_t producer_epoch = read_int16(&reader);
    producer->identity = (struct producer_identity){producer_id, producer_epoch, 0, 1};
    producer->step = first_step(load);
}

/* ---- requests */

static void write_identity(struct writer *writer, const struct producer *producer) {
    write_string(writer, producer->transactional_id);
    write_int64(writer, producer->identity.producer_id);
    write_int16(writer, producer->identity.producer_epoch);
}

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

static void write_end_txn(struct connection *connection, struct writer *writer) {
    const struct producer *producer = connection->own;
    write_identity(writer, producer);
    write_int8(writer, !producer->is_aborted);
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

static bool begin_transaction(struct connection *connection) {
    struct load *load = connection->load;
    struct producer *producer = connection->own;
    if (!may_begin(load))
        return false;
    uint32_t percent = (uint32_t)load->options.aborts;
    producer->is_aborted = producer->number * percent % 100 + percent >= 100; /* spread evenly */
    producer->number++;
    producer->began_ns = clock_ns();
    return true;
}

static bool write_request(struct connection *connection, struct writer *writer, uint32_t number) {
    struct producer *producer = connection->own;
    if (producer->has_failed)
        return false;
    if (!producer->began_ns && !begin_transaction(connection))
        return false;
    int version = connection->load->options.version;
    uint8_t *frame = start_request(writer, requests[producer->step].api_key,
                                   requests[producer->step].versions[version - 1], (int32_t)number);
    requests[producer->step].write(connection, writer);
    end_request(writer, frame);
    return true;
}

/* ---- answers: each of these gives the one error code that matters */

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

static int read_end_txn(struct producer *producer, struct reader *reader) {
    read_int32(reader);
    int code = read_int16(reader);
    static const int identity_bytes = 10; /* from version 5 on */
    if (!code && reader->end - reader->at > identity_bytes) {
        producer->identity.producer_id = read_int64(reader);
        producer->identity.producer_epoch = read_int16(reader);
    }
    return code;
}

static int (*const answers[])(struct producer *, struct reader *) = {read_add_partitions, read_produce, read_end_txn};

static void finish(struct load *load, struct producer *producer) {
    const struct load_options *options = &load->options;
    load->figures.transactions++;
    load->figures.aborted_transactions += producer->is_aborted;
    load->figures.records += (uint64_t)options->records * (uint64_t)options->each;
    add_to_histogram(&load->figures.latency, clock_ns() - producer->began_ns);
    producer->identity.base_sequence = options->version == 1 ? producer->identity.base_sequence + options->records : 0;
    producer->began_ns = 0;
    producer->step = first_step(load);
}

static void read_answer(struct connection *connection, struct reader *reader, uint32_t number, uint64_t latency_ns) {
    struct load *load = connection->load;
    struct producer *producer = connection->own;
    (void)number, (void)latency_ns;
    int code = answers[producer->step](producer, reader);
    if (code == CONCURRENT_TRANSACTIONS || (code == NOT_ENOUGH_REPLICAS && producer->step == PRODUCE_RECORDS)) {
        try_again_later(connection);
    } else if (code) {
        count_error(load, code);
        producer->has_failed = true;
    } else if (producer->step == END) {
        finish(load, producer);
    } else {
        producer->step++;
    }
}

const struct load_kind transaction_kind = {"transaction", prepare, open_producer, write_request, read_answer};
