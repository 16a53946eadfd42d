/* A load: one kind of work, done over and over on some connections. Several can run at once, all in one thread.
 *
 * A connection has `depth` places, one for each request that may be in flight. A kind writes the next request into a
 * place and reads the answer to it; answers come in the order of the requests, so a request is told by its number, and
 * its place is that number modulo the depth. */
#ifndef LOAD_H
#define LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "histogram.h"
#include "wire.h"

enum {
    ERROR_CODES = 160, /* as many as Kafka has, and room for more */
    MAX_DEPTH = 256,
    NAME_BYTES = 200,
};

/* The counts of a measurement. */
struct figures {
    uint64_t requests, records, bytes_sent, bytes_received;
    uint64_t transactions, aborted_transactions, retries, empty_answers;
    struct histogram latency; /* of requests; of whole transactions where there are any */
};

struct load;
struct connection;

struct load_kind {
    const char *name;
    /* Before the connections are opened; sets `request_bytes` and `answer_bytes`, the most that one takes. */
    void (*prepare)(struct load *load);
    /* A new connection, still blocking: `ask` may be used. May be NULL. */
    void (*open)(struct connection *connection);
    /* The next request; false if there is none now. NULL for connections that only stay open. */
    bool (*write)(struct connection *connection, struct writer *writer, uint32_t number);
    /* The answer to a request, behind its header. */
    void (*read)(struct connection *connection, struct reader *reader, uint32_t number, uint64_t latency_ns);
    /* When all is over, blocking again: waits for what the broker still has to do. EndTxn is answered before the
     * markers are written, and who deletes their topic then keeps Kafka busy for half a minute; a producer can begin
     * anew when they are there. May be NULL. */
    void (*close)(struct connection *connection);
};

extern const struct load_kind produce_kind, fetch_kind, transaction_kind, stream_kind, idle_kind;

/* The options of a load on the command line. */
struct load_options {
    char topic[NAME_BYTES];
    int connections, depth;
    int partitions; /* of the topic */
    int each;       /* partitions in each request or transaction */
    int size;       /* bytes: of a produce request; of what a fetch may bring from a partition */
    int record;     /* bytes of a record's value */
    int records;    /* in each partition of a transaction */
    int acks;
    int scattered;  /* produce: over partitions at random */
    int aborts;     /* percent of transactions */
    int version;    /* of transactions: 1 or 2 */
    int commit_ms;  /* of a stream: how long a transaction lasts; 0: without */
    int committed;  /* fetch with read_committed */
    int wait_ms;    /* of a fetch at the end */
    int64_t from;   /* offset of the first fetch, -1: the end */
    int once;       /* do not begin anew at the end of the log */
    int64_t span;   /* of a fetch: offsets from `from` on, behind which it begins anew; 0: to the end */
    int session;    /* fetch as consumers do (KIP-227): all partitions once, then those whose position moved */
    int64_t count;  /* of requests or transactions, over all connections; 0: as long as there is time */
    int tls;
};

struct load {
    const struct load_kind *kind;
    struct load_options options;
    size_t request_bytes, answer_bytes;
    bool has_ended; /* no new work */
    bool commits, has_just_committed; /* of a stream: between its work, and in what was read last */
    uint64_t begun; /* requests or transactions */
    int busy;       /* connections with something in flight or waiting to be tried again */
    struct figures figures, measured;
    uint64_t errors[ERROR_CODES]; /* over the whole run, by code */
    struct connection *connections;
    void *own; /* the kind's */
};

struct connection {
    struct load *load;
    int index; /* within its load */
    int socket;
    void *tls;
    uint32_t next_number, answered; /* requests written, requests answered */
    uint32_t unsent;                /* the first that has not left whole, and how many bytes of it have */
    size_t unsent_at;
    bool is_busy, wants_to_write;
    uint8_t *places;
    size_t *place_sizes;
    uint64_t *sent_at_ns;
    uint8_t *received; /* bytes of answers that have not been read */
    size_t received_bytes;
    uint64_t resume_at_ns; /* 0 unless it waits to try again */
    struct connection *next_to_resume;
    void *own; /* the kind's */
};

/* For kinds. */
bool may_begin(struct load *load); /* counts what begins */
void count_error(struct load *load, int code); /* 0 is none */
void try_again_later(struct connection *connection);
/* Sends a request and waits for its answer; the reader stands behind the header. Only for `open`. */
struct reader ask(struct connection *connection, void (*write)(struct connection *, struct writer *), int16_t api_key,
                  int16_t version);
uint64_t clock_ns(void);
int read_partition_of_produce(struct reader *reader); /* one partition of its answer: the error code */

/* For the loop. */
void open_connection(struct connection *connection, const char *host, const char *port, int epoll);
void be_ready(struct connection *connection, uint32_t events, int epoll); /* epoll's events */
void begin_requests(struct connection *connection, int epoll);
void close_connection(struct connection *connection);
uint64_t resume(uint64_t now_ns, int epoll); /* those whose time has come; when the next one's comes, or 0 */

#endif
