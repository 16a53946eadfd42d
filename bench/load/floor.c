/* A server that does almost nothing. Its figures are the limit of the processors, the kernel and the load generator.
 *
 *     floor PORT [DIRECTORY]
 *
 * It serves the generator's ApiVersions, Produce and Fetch, and decodes only what it must. It reads and answers a
 * Produce, and discards the records unchecked. A Fetch from offset 0 is answered with the requested number of bytes, in
 * batches that were made once, and with their end as the high watermark. There is one thread, which waits when a socket
 * is full.
 *
 * With a directory it writes the records to a file for each partition, as every broker must: one write for the adjacent
 * bytes of a partition in one receive, into space reserved as kbroker does it. SIGHUP removes the files. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "wire.h"

enum { PRODUCE = 0, FETCH = 1, API_VERSIONS = 18 };
enum {
    REQUEST_HEAD_BYTES = 12, /* size, API key, version, correlation id */
    LARGEST_SMALL_BYTES = 1 << 16, /* of a request that is parsed as a whole */
    RECEIVED_BYTES = 1 << 18,
    ANSWER_BYTES = 128, /* except for a Fetch */
    BATCH_RECORDS = 151, RECORD_BYTES = 100, /* about 16 KiB */
    MOST_FETCHED_BYTES = 1 << 20,
    MOST_PARTITIONS = 256, HEAD_BYTES_A_PARTITION = 96,
    MOST_EVENTS = 256,
    MOST_FILES = 16384, MOST_PIECES = 1024,
    FIRST_RESERVED_BYTES = 1 << 16, MOST_RESERVED_BYTES = 1 << 24,
    LARGEST_HEAD_BYTES = 512, /* of a Produce, up to its first partition */
    LARGEST_PARTITION_HEAD_BYTES = 9,
};

struct client {
    int socket;
    size_t left; /* of a Produce whose head was received */
    size_t to_write; /* of these, for this partition */
    int partition, partitions_left;
    uint32_t correlation_id; /* of this Produce */
    size_t kept_bytes; /* of an incomplete request */
    uint8_t kept[LARGEST_SMALL_BYTES];
};

static uint8_t batches[MOST_FETCHED_BYTES + (1 << 15)];
static size_t one_batch_bytes;
static uint8_t room[LARGEST_SMALL_BYTES + RECEIVED_BYTES]; /* kept bytes are copied right before received ones */
static uint8_t answers[(RECEIVED_BYTES / REQUEST_HEAD_BYTES + 1) * ANSWER_BYTES];
static struct writer answer;

static void make_batches(void) {
    static const struct producer_identity no_producer = {-1, -1, -1, 0};
    static uint8_t sized[1 << 15];
    struct writer writer = {sized, sized + sizeof sized};
    write_records(&writer, &no_producer, BATCH_RECORDS, RECORD_BYTES);
    one_batch_bytes = batch_bytes(BATCH_RECORDS, RECORD_BYTES);
    for (size_t at = 0; at < MOST_FETCHED_BYTES; at += one_batch_bytes) {
        memcpy(batches + at, writer.at - one_batch_bytes, one_batch_bytes);
        place_int64(batches + at, (int64_t)(at / one_batch_bytes * BATCH_RECORDS)); /* the CRC does not cover it */
    }
}

static void send_all(int socket, struct iovec *pieces, size_t count) {
    while (count) {
        struct msghdr message = {.msg_iov = pieces, .msg_iovlen = count};
        ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL);
        if (sent < 0)
            return; /* closed, as the next read reports */
        for (; count && (size_t)sent >= pieces->iov_len; pieces++, count--)
            sent -= (ssize_t)pieces->iov_len;
        if (count) {
            pieces->iov_base = (uint8_t *)pieces->iov_base + sent;
            pieces->iov_len -= (size_t)sent;
        }
    }
}

static uint8_t *start_answer(struct writer *writer, uint32_t correlation_id) {
    uint8_t *frame = writer->at;
    write_int32(writer, 0);
    write_int32(writer, (int32_t)correlation_id);
    return frame;
}

static void answer_api_versions(uint32_t correlation_id) {
    uint8_t *frame = start_answer(&answer, correlation_id);
    write_int16(&answer, 0);
    write_uvarint(&answer, 1);
    write_int32(&answer, 0);
    write_uvarint(&answer, 0);
    end_request(&answer, frame);
}

static void answer_produce(uint32_t correlation_id) {
    uint8_t *frame = start_answer(&answer, correlation_id);
    write_uvarint(&answer, 0);
    write_uvarint(&answer, 2);
    write_string(&answer, "floor");
    write_uvarint(&answer, 2);
    write_int32(&answer, 0);
    write_int16(&answer, 0);
    write_int64(&answer, 0); /* base offset */
    write_int64(&answer, -1);
    write_int64(&answer, 0);
    write_uvarint(&answer, 1);
    write_uvarint(&answer, 0);
    for (int i = 0; i < 2; i++)
        write_uvarint(&answer, 0);
    write_int32(&answer, 0);
    write_uvarint(&answer, 0);
    end_request(&answer, frame);
}

static size_t least(size_t one, size_t other) { return one < other ? one : other; }
static size_t most(size_t one, size_t other) { return one > other ? one : other; }

/* ---- files */

static struct file {
    int handle;
    int64_t size, reserved;
} files[MOST_FILES];
static const char *directory; /* NULL: no files */
static struct iovec pieces[MOST_PIECES]; /* to be written, all to one partition */
static size_t pieces_count, pieces_bytes;
static int pieces_partition;

static void name_file(char *name, size_t size, int partition) { snprintf(name, size, "%s/%d", directory, partition); }

static struct file *file_of(int partition) {
    if (partition < 0 || partition >= MOST_FILES)
        die("found partition %d, expected at most %d", partition, MOST_FILES - 1);
    struct file *file = &files[partition];
    char name[4096];
    if (!file->handle) {
        name_file(name, sizeof name, partition);
        file->handle = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
        if (file->handle < 0)
            die("%s: %s", name, strerror(errno));
    }
    return file;
}

static void write_pieces(void) {
    if (!pieces_count)
        return;
    struct file *file = file_of(pieces_partition);
    int64_t end = file->size + (int64_t)pieces_bytes;
    if (end > file->reserved) {
        size_t chunk = most(FIRST_RESERVED_BYTES, least((size_t)file->size, MOST_RESERVED_BYTES));
        file->reserved = file->size + (int64_t)most(chunk, pieces_bytes);
        fallocate(file->handle, FALLOC_FL_KEEP_SIZE, file->size, file->reserved - file->size); /* for speed */
    }
    if (pwritev(file->handle, pieces, (int)pieces_count, file->size) != (ssize_t)pieces_bytes)
        die("partition %d cannot be written: %s", pieces_partition, strerror(errno));
    file->size = end;
    pieces_count = pieces_bytes = 0;
}

static void add_piece(int partition, const uint8_t *data, size_t size) {
    if (pieces_count == MOST_PIECES || (pieces_count && pieces_partition != partition))
        write_pieces();
    pieces_partition = partition;
    pieces[pieces_count++] = (struct iovec){(uint8_t *)data, size};
    pieces_bytes += size;
}

static void remove_files(void) {
    char name[4096];
    for (int partition = 0; partition < MOST_FILES; partition++)
        if (files[partition].handle) {
            close(files[partition].handle);
            name_file(name, sizeof name, partition);
            unlink(name);
            files[partition] = (struct file){0};
        }
}

/* ---- requests */

/* Answers the next requested partition: writes its head; its batches follow the head. */
static size_t answer_partition(struct reader *asked, struct writer *head) {
    int32_t index = read_int32(asked);
    read_int32(asked);
    if (read_int64(asked) != 0)
        die("found a Fetch from an offset other than 0");
    read_bytes(asked, sizeof(int32_t) + sizeof(int64_t));
    size_t size = (size_t)read_int32(asked);
    skip_tags(asked);
    size = size < MOST_FETCHED_BYTES ? size : MOST_FETCHED_BYTES;
    int64_t end = (int64_t)(size / one_batch_bytes * BATCH_RECORDS);
    write_int32(head, index);
    write_int16(head, 0);
    write_int64(head, end);
    write_int64(head, end);
    write_int64(head, 0);
    write_uvarint(head, 0);
    write_int32(head, -1);
    write_uvarint(head, (uint32_t)size + 1);
    return size;
}

static void answer_fetch(int socket, struct reader *asked, uint32_t correlation_id) {
    static uint8_t heads[(MOST_PARTITIONS + 1) * HEAD_BYTES_A_PARTITION];
    struct writer head = {heads, heads + sizeof heads};
    struct iovec pieces[2 * MOST_PARTITIONS + 1];
    read_bytes(asked, 4 * sizeof(int32_t) + 1 + 2 * sizeof(int32_t)); /* the fields before the topics */
    if (read_array(asked) != 1)
        die("found a Fetch of more than one topic");
    skip_string(asked);
    int partitions = read_array(asked);
    if (partitions > MOST_PARTITIONS)
        die("found a Fetch of %d partitions, expected at most %d", partitions, MOST_PARTITIONS);
    uint8_t *from = start_answer(&head, correlation_id);
    write_uvarint(&head, 0);
    write_int32(&head, 0);
    write_int16(&head, 0);
    write_int32(&head, 0);
    write_uvarint(&head, 2);
    write_string(&head, "floor");
    write_uvarint(&head, (uint32_t)partitions + 1);
    size_t records = 0, count = 0;
    for (int i = 0; i < partitions; i++) {
        size_t size = answer_partition(asked, &head);
        pieces[count++] = (struct iovec){from, (size_t)(head.at - from)};
        pieces[count++] = (struct iovec){batches, size};
        records += size;
        from = head.at;
        write_uvarint(&head, 0);
    }
    write_uvarint(&head, 0);
    write_uvarint(&head, 0);
    pieces[count++] = (struct iovec){from, (size_t)(head.at - from)};
    place_int32(heads, (int32_t)((size_t)(head.at - heads) + records - FRAME_HEAD_BYTES));
    send_all(socket, pieces, count);
}

static void serve(struct client *client, int api_key, uint32_t correlation_id, struct reader *reader) {
    if (api_key == API_VERSIONS) {
        answer_api_versions(correlation_id);
        return;
    }
    if (api_key != FETCH)
        die("found API %d, which is not supported", api_key);
    read_bytes(reader, (size_t)read_int16(reader)); /* client id */
    skip_tags(reader);
    answer_fetch(client->socket, reader, correlation_id);
}

/* Reads the fields before the partitions. */
static void begin_to_write(struct client *client, struct reader *reader) {
    read_bytes(reader, (size_t)read_int16(reader)); /* client id */
    skip_tags(reader);
    skip_string(reader); /* transactional id */
    read_bytes(reader, sizeof(int16_t) + sizeof(int32_t)); /* acks, timeout */
    if (read_array(reader) != 1)
        die("found a Produce to more than one topic");
    skip_string(reader);
    client->partitions_left = read_array(reader);
}

/* Consumes the received part of the current Produce. Returns the byte behind it. */
static const uint8_t *take_records(struct client *client, const uint8_t *at, const uint8_t *end) {
    while (client->partitions_left) {
        if (!client->to_write) {
            if ((size_t)(end - at) < least(LARGEST_PARTITION_HEAD_BYTES, client->left))
                return at;
            struct reader reader = {at, end};
            client->partition = read_int32(&reader);
            client->to_write = (size_t)read_array(&reader) + 1; /* with the tag byte before the next head */
            client->left -= (size_t)(reader.at - at);
            at = reader.at;
        }
        size_t now = least((size_t)(end - at), client->to_write);
        if (!now)
            return at;
        add_piece(client->partition, at, now);
        at += now;
        client->left -= now;
        client->to_write -= now;
        client->partitions_left -= !client->to_write;
    }
    size_t now = least((size_t)(end - at), client->left);
    client->left -= now;
    return at + now;
}

/* Serves all complete requests. Returns the byte behind them. */
static const uint8_t *serve_all(struct client *client, const uint8_t *at, const uint8_t *end) {
    for (;;) {
        if (client->left) {
            at = take_records(client, at, end);
            if (client->left)
                return at;
            answer_produce(client->correlation_id);
        }
        if (end - at < REQUEST_HEAD_BYTES)
            return at;
        struct reader reader = {at, end};
        size_t size = FRAME_HEAD_BYTES + (size_t)(uint32_t)read_int32(&reader);
        int api_key = read_int16(&reader);
        read_int16(&reader);
        uint32_t correlation_id = (uint32_t)read_int32(&reader);
        if (api_key == PRODUCE) {
            if (directory && (size_t)(end - at) < least(size, LARGEST_HEAD_BYTES))
                return at;
            if (directory)
                begin_to_write(client, &reader);
            client->correlation_id = correlation_id;
            client->left = size - (size_t)(reader.at - at);
            at = reader.at;
            continue;
        }
        if (size > LARGEST_SMALL_BYTES)
            die("found a request of %zu bytes", size);
        if ((size_t)(end - at) < size)
            return at;
        reader.end = at + size;
        serve(client, api_key, correlation_id, &reader);
        at += size;
    }
}

static void be_ready(struct client *client) {
    uint8_t *from = room + LARGEST_SMALL_BYTES;
    ssize_t got = recv(client->socket, from, RECEIVED_BYTES, MSG_DONTWAIT);
    if (got <= 0) {
        close(client->socket);
        free(client);
        return;
    }
    const uint8_t *end = from + got;
    from -= client->kept_bytes;
    memcpy(from, client->kept, client->kept_bytes);
    answer = (struct writer){answers, answers + sizeof answers};
    const uint8_t *left = serve_all(client, from, end);
    client->kept_bytes = (size_t)(end - left);
    memcpy(client->kept, left, client->kept_bytes);
    write_pieces();
    if (answer.at != answers)
        send_all(client->socket, &(struct iovec){answers, (size_t)(answer.at - answers)}, 1);
}

static void watch(int epoll, int socket, void *data) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = data};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, socket, &event) < 0)
        die("epoll rejects a socket");
}

static int listen_at(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    if (bind(listener, (struct sockaddr *)&address, sizeof address) < 0 || listen(listener, 4096) < 0)
        die("port %d cannot be bound", port);
    getsockname(listener, (struct sockaddr *)&address, &(socklen_t){sizeof address});
    printf("ready 127.0.0.1:%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return listener;
}

static volatile sig_atomic_t is_to_forget;

static void note_hangup(int number) { is_to_forget = number; }

int main(int argc, char **argv) {
    signal(SIGHUP, note_hangup);
    directory = argc > 2 ? argv[2] : NULL;
    make_batches();
    int listener = listen_at(argc > 1 ? atoi(argv[1]) : 0), epoll = epoll_create1(0);
    watch(epoll, listener, NULL);
    for (;;) {
        struct epoll_event events[MOST_EVENTS];
        int count = epoll_wait(epoll, events, MOST_EVENTS, -1);
        if (is_to_forget)
            remove_files();
        is_to_forget = 0;
        for (int i = 0; i < count; i++) {
            if (events[i].data.ptr) {
                be_ready(events[i].data.ptr);
                continue;
            }
            struct client *client = calloc(1, sizeof *client);
            client->socket = accept(listener, NULL, NULL);
            setsockopt(client->socket, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
            watch(epoll, client->socket, client);
        }
    }
}
