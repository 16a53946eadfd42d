/* A producer with an id, transactional or only idempotent: what kinds of load that have one share. */
#ifndef PRODUCER_H
#define PRODUCER_H

#include "load.h"

enum { END_TXN = 26, END_TXN_VERSION = 5, CONCURRENT_TRANSACTIONS = 51 };

/* The first field of what a kind owns in a connection. */
struct producer {
    struct producer_identity identity;
    char transactional_id[NAME_BYTES + 32];
    bool is_aborted; /* how the transaction is to end */
};

/* Only while a connection is opened: gets its id. With version 2 the epoch goes up with each transaction. */
void introduce_producer(struct connection *connection, bool is_transactional, int transaction_version);
void write_identity(struct writer *writer, const struct producer *producer);
void write_end_txn(struct connection *connection, struct writer *writer);
int read_end_txn(struct producer *producer, struct reader *reader); /* the error code */

#endif
