/* A producer with an id, transactional or only idempotent; shared by the kinds of load that need one. */
#ifndef PRODUCER_H
#define PRODUCER_H

#include "load.h"

enum { END_TXN = 26, END_TXN_VERSION = 5, CONCURRENT_TRANSACTIONS = 51 };

/* The first field of such a kind's data in a connection. */
struct producer {
    struct producer_identity identity;
    char transactional_id[NAME_BYTES + 32];
    bool is_aborted; /* whether the transaction ends with an abort */
};

/* Gets a producer id; only while a connection is opened. With version 2 the epoch grows with each transaction. */
void introduce_producer(struct connection *connection, bool is_transactional, int transaction_version);
void write_identity(struct writer *writer, const struct producer *producer);
void write_end_txn(struct connection *connection, struct writer *writer);
int read_end_txn(struct producer *producer, struct reader *reader); /* returns the error code */

#endif
