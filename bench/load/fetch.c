/* Fetch, version 12: a cursor for each request in flight follows `each` partitions by the offsets of the batches
 * received. With a `session`, the first request names all of them and later ones those whose position moved, as a
 * consumer does (KIP-227); without one, every request names all. */
#include <stdlib.h>
#include <string.h>

#include "load.h"

enum { FETCH = 1, VERSION = 12, LIST_OFFSETS = 2, LIST_OFFSETS_VERSION = 6, ANSWER_BYTES_A_PARTITION = 4096 };
enum { LARGEST_BATCH_BYTES = 1 << 21, LATEST = -1, EVERYTHING_BYTES = 0x7fffffff };

struct position {
    int32_t partition;
    int64_t offset;
    bool is_at_end; /* a load that reads once stops here */
};

struct cursors {
    int32_t session, epoch; /* 0, -1: none */
    int *moved;             /* the partitions that the session's next request names */
    int moved_count;
    struct position positions[]; /* those of the first cursor, of the second, ... */
};

static struct position *cursor_of(const struct connection *connection, uint32_t number) {
    const struct load_options *options = &connection->load->options;
    struct cursors *cursors = connection->own;
    return cursors->positions + (number % (uint32_t)options->depth) * (uint32_t)options->each;
}

static void prepare(struct load *load) {
    const struct load_options *options = &load->options;
    size_t each = (size_t)options->each;
    load->request_bytes = 128 + strlen(options->topic) + each * 48;
    size_t records = (size_t)options->size * each;
    if (records < LARGEST_BATCH_BYTES)
        records = LARGEST_BATCH_BYTES; /* the first batch is always whole */
    /* There can be an aborted transaction, 17 bytes, for each small batch. */
    load->answer_bytes = records + records / 4 + each * ANSWER_BYTES_A_PARTITION;
}

static void write_list_offsets(struct connection *connection, struct writer *writer) {
    const struct load_options *options = &connection->load->options;
    int cursors = options->depth * options->each;
    write_int32(writer, -1);
    write_int8(writer, (int8_t)options->committed);
    write_uvarint(writer, 2);
    write_string(writer, options->topic);
    write_uvarint(writer, (uint32_t)cursors + 1);
    for (int i = 0; i < cursors; i++) {
        write_int32(writer, ((struct cursors *)connection->own)->positions[i].partition);
        write_int32(writer, -1);
        write_int64(writer, LATEST);
        write_uvarint(writer, 0);
    }
    write_uvarint(writer, 0);
    write_uvarint(writer, 0);
}

static void find_ends(struct connection *connection) {
    const struct load_options *options = &connection->load->options;
    int cursors = options->depth * options->each;
    struct reader reader = ask(connection, write_list_offsets, LIST_OFFSETS, LIST_OFFSETS_VERSION);
    read_int32(&reader);
    for (int topics = read_array(&reader); topics; topics--) {
        skip_string(&reader);
        for (int partitions = read_array(&reader); partitions; partitions--) {
            int32_t partition = read_int32(&reader);
            count_error(connection->load, read_int16(&reader));
            read_int64(&reader);
            int64_t offset = read_int64(&reader);
            read_int32(&reader);
            skip_tags(&reader);
            for (int i = 0; i < cursors; i++) {
                struct position *position = &((struct cursors *)connection->own)->positions[i];
                if (position->partition == partition)
                    position->offset = offset;
            }
        }
        skip_tags(&reader);
    }
}

static void open_cursors(struct connection *connection) {
    const struct load_options *options = &connection->load->options;
    int count = options->depth * options->each;
    struct cursors *cursors = calloc(1, sizeof *cursors + (size_t)count * sizeof *cursors->positions);
    cursors->epoch = options->session ? 0 : -1;
    cursors->moved = calloc((size_t)count, sizeof *cursors->moved);
    cursors->moved_count = options->each;
    for (int i = 0; i < count; i++) {
        cursors->positions[i].partition = (connection->index * count + i) % options->partitions;
        cursors->positions[i].offset = options->from;
        cursors->moved[i] = i;
    }
    connection->own = cursors;
    if (options->from < 0)
        find_ends(connection);
}

static void write_partition(struct writer *writer, const struct position *position, int size) {
    write_int32(writer, position->partition);
    write_int32(writer, -1); /* leader epoch */
    write_int64(writer, position->offset);
    write_int32(writer, -1); /* last fetched epoch */
    write_int64(writer, -1); /* log start offset */
    write_int32(writer, size);
    write_uvarint(writer, 0);
}

static bool is_over(const struct load_options *options, const struct position *cursor) {
    if (!options->once)
        return false;
    for (int i = 0; i < options->each; i++)
        if (!cursor[i].is_at_end)
            return false;
    return true;
}

static bool write_request(struct connection *connection, struct writer *writer, uint32_t number) {
    struct load *load = connection->load;
    const struct load_options *options = &load->options;
    struct cursors *cursors = connection->own;
    const struct position *cursor = cursor_of(connection, number);
    if (is_over(options, cursor) || !may_begin(load))
        return false;
    uint8_t *frame = start_request(writer, FETCH, VERSION, (int32_t)number);
    write_int32(writer, -1); /* replica */
    write_int32(writer, options->wait_ms);
    write_int32(writer, 1); /* min bytes */
    write_int32(writer, options->each == 1 ? options->size : EVERYTHING_BYTES);
    write_int8(writer, (int8_t)options->committed);
    write_int32(writer, cursors->session);
    write_int32(writer, cursors->epoch);
    if (cursors->moved_count) {
        write_uvarint(writer, 2);
        write_string(writer, options->topic);
        write_uvarint(writer, (uint32_t)cursors->moved_count + 1);
        for (int i = 0; i < cursors->moved_count; i++)
            write_partition(writer, &cursor[cursors->moved[i]], options->size);
        write_uvarint(writer, 0);
    } else {
        write_uvarint(writer, 1);
    }
    write_uvarint(writer, 1); /* forgotten topics: none */
    write_string(writer, ""); /* rack */
    write_uvarint(writer, 0);
    end_request(writer, frame);
    return true;
}

/* Advances the position over whole batches. Returns their number of records. */
static uint64_t follow(struct position *position, const uint8_t *data, size_t size) {
    struct batch_view batch;
    uint64_t records = 0;
    for (size_t whole; (whole = view_batch(data, size, &batch)) != 0; data += whole, size -= whole) {
        if (batch.base_offset > position->offset || batch.last_offset < position->offset)
            die("partition %d: found batch %lld-%lld, expected offset %lld", position->partition,
                (long long)batch.base_offset, (long long)batch.last_offset, (long long)position->offset);
        position->offset = batch.last_offset + 1;
        records += batch.is_control ? 0 : (uint64_t)batch.records;
    }
    return records;
}

static int64_t end_of(const struct load_options *options, int64_t readable) {
    return options->span && options->from + options->span < readable ? options->from + options->span : readable;
}

/* Adopts the session of the first answer, and checks that of later ones. */
static void go_on_with(struct cursors *cursors, int32_t session) {
    if (!session || (cursors->session && session != cursors->session))
        die("found an answer of session %d, expected %d", session, cursors->session);
    cursors->session = session;
    cursors->epoch = cursors->epoch == INT32_MAX ? 1 : cursors->epoch + 1;
    cursors->moved_count = 0;
}

static size_t read_partition(struct connection *connection, struct reader *reader, struct position *cursor) {
    struct load *load = connection->load;
    int32_t index = read_int32(reader);
    int code = read_int16(reader);
    int64_t high_watermark = read_int64(reader), last_stable_offset = read_int64(reader);
    int64_t log_start_offset = read_int64(reader);
    for (int aborted = read_array(reader); aborted; aborted--) {
        read_bytes(reader, 2 * sizeof(int64_t)); /* producer id, first offset */
        skip_tags(reader);
        load->figures.aborted_transactions++;
    }
    read_int32(reader); /* preferred replica */
    size_t size = (size_t)read_array(reader);
    const uint8_t *records = read_bytes(reader, size);
    skip_tags(reader);
    count_error(load, code);
    const struct load_options *options = &load->options;
    int number = (index - cursor->partition + options->partitions) % options->partitions; /* they are consecutive */
    if (index < 0 || number < 0 || number >= options->each)
        die("found partition %d, which was not requested", index);
    struct position *position = &cursor[number];
    load->figures.records += follow(position, records, size);
    struct cursors *cursors = connection->own;
    if (options->session && size)
        cursors->moved[cursors->moved_count++] = number;
    int64_t readable = options->committed ? last_stable_offset : high_watermark;
    if (options->from >= 0 && position->offset >= end_of(options, readable)) {
        position->is_at_end = options->once;
        if (!options->once)
            position->offset = options->from > log_start_offset ? options->from : log_start_offset;
    }
    return size;
}

static void read_answer(struct connection *connection, struct reader *reader, uint32_t number, uint64_t latency_ns) {
    struct load *load = connection->load;
    struct position *cursor = cursor_of(connection, number);
    size_t size = 0;
    read_int32(reader); /* throttle time */
    count_error(load, read_int16(reader));
    int32_t session = read_int32(reader);
    if (load->options.session)
        go_on_with(connection->own, session);
    for (int topics = read_array(reader); topics; topics--) {
        skip_string(reader);
        for (int partitions = read_array(reader); partitions; partitions--)
            size += read_partition(connection, reader, cursor);
        skip_tags(reader);
    }
    load->figures.empty_answers += !size;
    add_to_histogram(&load->figures.latency, latency_ns);
}

const struct load_kind fetch_kind = {"fetch", prepare, open_cursors, write_request, read_answer, NULL};
