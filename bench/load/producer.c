#include "producer.h"

#include <stdio.h>
#include <unistd.h>

enum { FIND_COORDINATOR = 10, INIT_PRODUCER_ID = 22, TRANSACTION_TIMEOUT_MS = 60000 };
enum { COORDINATOR_LOAD_IN_PROGRESS = 14, COORDINATOR_NOT_AVAILABLE = 15, NOT_COORDINATOR = 16 };
enum { OPENING_TRIES = 1000, OPENING_WAIT_US = 10000 };

static void write_find_coordinator(struct connection *connection, struct writer *writer) {
    write_string(writer, ((struct producer *)connection->own)->transactional_id);
    write_int8(writer, 1);
    write_uvarint(writer, 0);
}

static void write_init_producer_id(struct connection *connection, struct writer *writer) {
    const struct producer *producer = connection->own;
    write_string(writer, producer->identity.is_transactional ? producer->transactional_id : NULL);
    write_int32(writer, TRANSACTION_TIMEOUT_MS);
    write_int64(writer, -1);
    write_int16(writer, -1);
    write_uvarint(writer, 0);
}

static bool passes(int code) {
    return code == COORDINATOR_LOAD_IN_PROGRESS || code == COORDINATOR_NOT_AVAILABLE || code == NOT_COORDINATOR
           || code == CONCURRENT_TRANSACTIONS;
}

/* Repeats a request while its error is transient. The answer begins with throttle time and error code. */
static struct reader ask_with_retries(struct connection *connection,
                                      void (*write)(struct connection *, struct writer *), int16_t api_key,
                                      int16_t version) {
    for (int tries = 0; tries < OPENING_TRIES; tries++) {
        struct reader reader = ask(connection, write, api_key, version);
        read_int32(&reader);
        int code = read_int16(&reader);
        if (!code)
            return reader;
        if (!passes(code))
            die("API %d returned error code %d", api_key, code);
        usleep(OPENING_WAIT_US);
    }
    die("API %d returned %d times that it is not ready", api_key, OPENING_TRIES);
}

void introduce_producer(struct connection *connection, bool is_transactional, int transaction_version) {
    struct producer *producer = connection->own;
    producer->identity.is_transactional = is_transactional;
    snprintf(producer->transactional_id, sizeof producer->transactional_id, "%s-%d", connection->load->options.topic,
             connection->index);
    if (is_transactional)
        ask_with_retries(connection, write_find_coordinator, FIND_COORDINATOR, 3);
    struct reader reader = ask_with_retries(connection, write_init_producer_id, INIT_PRODUCER_ID,
                                            transaction_version == 1 ? 4 : 5);
    producer->identity.producer_id = read_int64(&reader);
    producer->identity.producer_epoch = read_int16(&reader);
}

void write_identity(struct writer *writer, const struct producer *producer) {
    write_string(writer, producer->transactional_id);
    write_int64(writer, producer->identity.producer_id);
    write_int16(writer, producer->identity.producer_epoch);
}

void write_end_txn(struct connection *connection, struct writer *writer) {
    const struct producer *producer = connection->own;
    write_identity(writer, producer);
    write_int8(writer, !producer->is_aborted);
    write_uvarint(writer, 0);
}

int read_end_txn(struct producer *producer, struct reader *reader) {
    read_int32(reader);
    int code = read_int16(reader);
    static const int identity_bytes = 10; /* in version 5 and later */
    if (!code && reader->end - reader->at > identity_bytes) {
        producer->identity.producer_id = read_int64(reader);
        producer->identity.producer_epoch = read_int16(reader);
    }
    return code;
}
