/* A load: one kind of work, repeated on some connections. Several loads can run concurrently, all in one thread.
 *
 * A connection has `depth` slots, one for each request that may be in flight. A kind writes the next request into a
 * slot and reads its answer. Answers come in the order of the requests, so a request is identified by its number; its
 * slot is that number modulo the depth. */
#ifndef LOAD_H
#define LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "histogram.h"
#include "wire.h"

enum {
    ERROR_CODES = 160, /* more than Kafka has */
    MAX_DEPTH = 256,
    NAME_BYTES = 200,
};
#define PASSWORD_SUFFIX "-secret"

/* Counters of the measured time. */
struct figures {
    uint64_t requests, records, bytes_sent, bytes_received;
    uint64_t transactions, aborted_transactions, retries, empty_answers;
    struct histogram latency; /* of requests, or of whole transactions if the load has any */
};

struct load;
struct connection;

struct load_kind {
    const char *name;
    /* Called before connections are opened; sets `request_bytes` and `answer_bytes`, the largest sizes. */
    void (*prepare)(struct load *load);
    /* Called for a new connection, still blocking: `ask` may be used. May be NULL. */
    void (*open)(struct connection *connection);
    /* Writes the next request; false if there is none now. NULL for connections that only stay open. */
    bool (*write)(struct connection *connection, struct writer *writer, uint32_t number);
    /* Reads the answer to a request, behind its header. */
    void (*read)(struct connection *connection, struct reader *reader, uint32_t number, uint64_t latency_ns);
    /* Called at the end, blocking again: waits for the broker to finish. EndTxn is answered before the markers are
     * written, and deleting their topic then keeps Kafka busy for half a minute. A producer can begin its next
     * transaction once they are written. May be NULL. */
    void (*close)(struct connection *connection);
};

extern const struct load_kind produce_kind, fetch_kind, transaction_kind, stream_kind, idle_kind;

/* The options of the command line. */
struct load_options {
    char topic[NAME_BYTES];
    char login[NAME_BYTES]; /* a user that logs in by SASL/PLAIN, with PASSWORD_SUFFIX behind its name; empty: none */
    int connections, depth;
    int partitions; /* of the topic */
    int each;       /* partitions in each request or transaction */
    int size;       /* bytes: of a produce request, or the limit of a fetch per partition */
    int record;     /* bytes of a record's value */
    int records;    /* in each partition of a transaction */
    int acks;
    int scattered;  /* produce: to random partitions */
    int aborts;     /* percent of transactions */
    int version;    /* of transactions: 1 or 2 */
    int commit_ms;  /* of a stream: duration of a transaction; 0: no transactions */
    int committed;  /* fetch with read_committed */
    int wait_ms;    /* of a fetch at the end */
    int64_t from;   /* offset of the first fetch, -1: the end */
    int once;       /* stop at the end of the log instead of restarting */
    int64_t span;   /* of a fetch: number of offsets from `from` on, then it restarts; 0: to the end */
    int session;    /* fetch as consumers do (KIP-227): all partitions once, then those whose position moved */
    int64_t count;  /* of requests or transactions, over all connections; 0: no limit but time */
    int tls;
};

struct load {
    const struct load_kind *kind;
    struct load_options options;
    size_t request_bytes, answer_bytes;
    bool has_ended; /* no new work */
    bool commits, has_just_committed; /* of a stream: it commits; its last answer was a commit's */
    uint64_t begun; /* requests or transactions */
    int busy;       /* connections with a request in flight or waiting for a retry */
    struct figures figures, measured;
    uint64_t errors[ERROR_CODES]; /* over the whole run, by code */
    struct connection *connections;
    void *own; /* the kind's data */
};

struct connection {
    struct load *load;
    int index; /* within its load */
    int socket;
    void *tls;
    uint32_t next_number, answered; /* requests written, requests answered */
    uint32_t unsent;                /* the first request not sent completely, and how many of its bytes were sent */
    size_t unsent_at;
    bool is_busy, wants_to_write;
    uint8_t *slots;
    size_t *slot_sizes;
    uint64_t *sent_at_ns;
    uint8_t *received; /* answers that were not read yet */
    size_t received_bytes;
    uint64_t resume_at_ns; /* 0 unless it waits for a retry */
    struct connection *next_to_resume;
    void *own; /* the kind's data */
};

/* For kinds. */
bool may_begin(struct load *load); /* counts a request or transaction */
void count_error(struct load *load, int code); /* 0: no error */
void try_again_later(struct connection *connection);
/* Sends a request and waits for its answer; the reader is behind the header. Only for `open`. */
struct reader ask(struct connection *connection, void (*write)(struct connection *, struct writer *), int16_t api_key,
                  int16_t version);
uint64_t clock_ns(void);
int read_partition_of_produce(struct reader *reader); /* reads one partition of the answer; returns its error code */

/* For the loop. */
void open_connection(struct connection *connection, const char *host, const char *port, int epoll);
void be_ready(struct connection *connection, uint32_t events, int epoll); /* epoll's events */
void begin_requests(struct connection *connection, int epoll);
void close_connection(struct connection *connection);
uint64_t resume(uint64_t now_ns, int epoll); /* resumes those that are due; returns the time of the next one, or 0 */

#endif
