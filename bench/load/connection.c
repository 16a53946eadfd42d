/* Sockets: sends requests from their slots, receives answers, and retries after a delay. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "load.h"
#include "transport.h"

enum { RETRY_NS = 1000000 };
enum { API_VERSIONS = 18, API_VERSIONS_VERSION = 3 }; /* its response has the old header in every version */

static struct connection *first_to_resume, **last_to_resume = &first_to_resume;

uint64_t clock_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

bool may_begin(struct load *load) {
    int64_t count = load->options.count;
    if (load->has_ended || (count && load->begun >= (uint64_t)count))
        return false;
    load->begun++;
    return true;
}

void count_error(struct load *load, int code) {
    /* -1, UNKNOWN_SERVER_ERROR, and unknown codes share the last element. */
    if (code)
        load->errors[code > 0 && code < ERROR_CODES ? code : ERROR_CODES - 1]++;
}

static void *allocated(size_t count, size_t size) {
    void *memory = calloc(count, size);
    if (memory == NULL)
        die("no memory for %zu x %zu bytes", count, size);
    return memory;
}

/* ---- opening */

static int connected_socket(const char *host, const char *port) {
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *address;
    int fault = getaddrinfo(host, port, &hints, &address);
    if (fault)
        die("%s:%s: %s", host, port, gai_strerror(fault));
    int handle = socket(address->ai_family, address->ai_socktype, 0);
    if (handle < 0 || connect(handle, address->ai_addr, address->ai_addrlen) < 0)
        die("%s:%s: %s", host, port, strerror(errno));
    freeaddrinfo(address);
    setsockopt(handle, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    return handle;
}

static size_t frame_bytes(const uint8_t *data) {
    struct reader reader = {data, data + FRAME_HEAD_BYTES};
    return FRAME_HEAD_BYTES + (size_t)(uint32_t)read_int32(&reader);
}

static bool has_frame(const struct connection *connection, const uint8_t *at) {
    size_t left = (size_t)(connection->received + connection->received_bytes - at);
    if (left < FRAME_HEAD_BYTES)
        return false;
    size_t size = frame_bytes(at);
    if (size > connection->load->answer_bytes)
        die("found an answer of %zu bytes, expected at most %zu", size, connection->load->answer_bytes);
    return left >= size;
}

/* Returns a reader behind the header of an answer, which must be the one to request `number`. */
static struct reader answer_at(const uint8_t *at, uint32_t number, bool has_flexible_header) {
    struct reader reader = {at + FRAME_HEAD_BYTES, at + frame_bytes(at)};
    uint32_t correlation_id = (uint32_t)read_int32(&reader);
    if (correlation_id != number)
        die("found an answer with correlation id %u, expected %u", correlation_id, number);
    if (has_flexible_header)
        skip_tags(&reader);
    return reader;
}

/* Sends a frame and waits for the one that answers it. */
static void exchange(struct connection *connection, const uint8_t *at, const uint8_t *end) {
    while (at < end) {
        struct piece piece = {at, (size_t)(end - at)};
        at += send_pieces(connection->socket, connection->tls, &piece, 1);
    }
    connection->received_bytes = 0;
    while (!has_frame(connection, connection->received))
        connection->received_bytes +=
            receive_bytes(connection->socket, connection->tls, connection->received + connection->received_bytes,
                          connection->load->answer_bytes - connection->received_bytes);
    connection->received_bytes = 0;
}

struct reader ask(struct connection *connection, void (*write)(struct connection *, struct writer *), int16_t api_key,
                  int16_t version) {
    struct writer writer = {connection->slots, connection->slots + connection->load->request_bytes};
    uint8_t *frame = start_request(&writer, api_key, version, 0);
    write(connection, &writer);
    end_request(&writer, frame);
    exchange(connection, frame, writer.at);
    return answer_at(connection->received, 0, api_key != API_VERSIONS);
}

static void write_api_versions(struct connection *connection, struct writer *writer) {
    (void)connection;
    write_string(writer, "load");
    write_string(writer, "1");
    write_uvarint(writer, 0);
}

/* Sends ApiVersions, as every client does first. It also keeps many connections from overflowing the accept queue. */
static void introduce(struct connection *connection) {
    struct reader reader = ask(connection, write_api_versions, API_VERSIONS, API_VERSIONS_VERSION);
    count_error(connection->load, read_int16(&reader));
}

/* Logs in by SASL/PLAIN: SaslHandshake in version 0, whose token travels without a header. A good login is answered by an
 * empty frame, a bad one by the end of the connection. */
static void log_in(struct connection *connection, const char *user) {
    static const uint8_t handshake[] = {0, 0, 0, 17, 0, 17, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 5, 'P', 'L', 'A', 'I', 'N'};
    exchange(connection, handshake, handshake + sizeof handshake);
    uint8_t token[2 * NAME_BYTES + sizeof PASSWORD_SUFFIX + FRAME_HEAD_BYTES + 2];
    int size = snprintf((char *)token + FRAME_HEAD_BYTES, sizeof token - FRAME_HEAD_BYTES, "%c%s%c%s%s", 0, user, 0, user,
                        PASSWORD_SUFFIX);
    place_int32(token, size);
    exchange(connection, token, token + FRAME_HEAD_BYTES + size);
}

void open_connection(struct connection *connection, const char *host, const char *port, int epoll) {
    struct load *load = connection->load;
    size_t depth = (size_t)load->options.depth;
    connection->socket = connected_socket(host, port);
    if (load->options.tls)
        connection->tls = start_tls(connection->socket);
    connection->slots = allocated(depth, load->request_bytes);
    connection->slot_sizes = allocated(depth, sizeof *connection->slot_sizes);
    connection->sent_at_ns = allocated(depth, sizeof *connection->sent_at_ns);
    connection->received = allocated(1, load->answer_bytes);
    introduce(connection);
    if (*load->options.login)
        log_in(connection, load->options.login);
    if (load->kind->open)
        load->kind->open(connection);
    fcntl(connection->socket, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, connection->socket, &event) < 0)
        die("epoll: %s", strerror(errno));
}

void close_connection(struct connection *connection) {
    if (!connection->load->kind->close)
        return;
    fcntl(connection->socket, F_SETFL, 0);
    connection->load->kind->close(connection);
}

/* ---- out */

static void watch(struct connection *connection, bool wants_to_write, int epoll) {
    if (connection->wants_to_write == wants_to_write)
        return;
    connection->wants_to_write = wants_to_write;
    struct epoll_event event = {.events = EPOLLIN | (wants_to_write ? EPOLLOUT : 0), .data.ptr = connection};
    epoll_ctl(epoll, EPOLL_CTL_MOD, connection->socket, &event);
}

static void send_requests(struct connection *connection, int epoll) {
    uint32_t depth = (uint32_t)connection->load->options.depth;
    while (connection->unsent != connection->next_number) {
        struct piece pieces[MAX_DEPTH];
        int count = 0;
        size_t skipped = connection->unsent_at;
        for (uint32_t number = connection->unsent; number != connection->next_number; number++) {
            uint32_t slot = number % depth;
            pieces[count++] = (struct piece){connection->slots + slot * connection->load->request_bytes + skipped,
                                             connection->slot_sizes[slot] - skipped};
            skipped = 0;
        }
        size_t sent = send_pieces(connection->socket, connection->tls, pieces, count);
        if (!sent)
            break;
        connection->load->figures.bytes_sent += sent;
        for (int i = 0; i < count && sent >= pieces[i].size; i++) {
            sent -= pieces[i].size;
            connection->unsent++;
            connection->unsent_at = 0;
        }
        connection->unsent_at += sent;
    }
    watch(connection, connection->unsent != connection->next_number, epoll);
}

static void note_busy(struct connection *connection) {
    bool is_busy = connection->next_number != connection->answered || connection->resume_at_ns;
    connection->load->busy += is_busy - connection->is_busy;
    connection->is_busy = is_busy;
}

void begin_requests(struct connection *connection, int epoll) {
    struct load *load = connection->load;
    uint32_t depth = (uint32_t)load->options.depth;
    uint64_t now_ns = clock_ns();
    while (!connection->resume_at_ns && connection->next_number - connection->answered < depth) {
        uint32_t slot = connection->next_number % depth;
        uint8_t *start = connection->slots + slot * load->request_bytes;
        struct writer writer = {start, start + load->request_bytes};
        if (!load->kind->write(connection, &writer, connection->next_number))
            break;
        connection->slot_sizes[slot] = (size_t)(writer.at - start);
        connection->sent_at_ns[slot] = now_ns;
        connection->next_number++;
    }
    send_requests(connection, epoll);
    note_busy(connection);
}

/* ---- in */

static int read_answers(struct connection *connection) {
    struct load *load = connection->load;
    const uint8_t *at = connection->received;
    int answers = 0;
    uint64_t now_ns = clock_ns();
    for (; has_frame(connection, at); at += frame_bytes(at), answers++) {
        uint32_t number = connection->answered;
        if (number == connection->next_number)
            die("found an answer without a request");
        struct reader reader = answer_at(at, number, true);
        load->figures.requests++;
        load->kind->read(connection, &reader, number,
                         now_ns - connection->sent_at_ns[number % (uint32_t)load->options.depth]);
        connection->answered++;
    }
    connection->received_bytes -= (size_t)(at - connection->received);
    if (at != connection->received)
        memmove(connection->received, at, connection->received_bytes);
    return answers;
}

static void receive_answers(struct connection *connection, int epoll) {
    size_t capacity = connection->load->answer_bytes;
    for (;;) {
        size_t wanted = capacity - connection->received_bytes;
        size_t got = receive_bytes(connection->socket, connection->tls,
                                   connection->received + connection->received_bytes, wanted);
        connection->received_bytes += got;
        connection->load->figures.bytes_received += got;
        bool is_drained = got < wanted && !connection->tls; /* TLS returns one record at a time */
        if (!got)
            return;
        if (read_answers(connection)) {
            begin_requests(connection, epoll);
            if (is_drained)
                return;
        } else if (is_drained) {
            return;
        }
    }
}

void be_ready(struct connection *connection, uint32_t events, int epoll) {
    if (events & EPOLLOUT)
        send_requests(connection, epoll);
    if (events & ~(uint32_t)EPOLLOUT)
        receive_answers(connection, epoll);
}

/* ---- retries: the delay is constant, so the queue is in order of time */

void try_again_later(struct connection *connection) {
    connection->load->figures.retries++;
    connection->resume_at_ns = clock_ns() + RETRY_NS;
    connection->next_to_resume = NULL;
    *last_to_resume = connection;
    last_to_resume = &connection->next_to_resume;
}

uint64_t resume(uint64_t now_ns, int epoll) {
    while (first_to_resume && first_to_resume->resume_at_ns <= now_ns) {
        struct connection *connection = first_to_resume;
        first_to_resume = connection->next_to_resume;
        if (!first_to_resume)
            last_to_resume = &first_to_resume;
        connection->resume_at_ns = 0;
        begin_requests(connection, epoll);
    }
    return first_to_resume ? first_to_resume->resume_at_ns : 0;
}
