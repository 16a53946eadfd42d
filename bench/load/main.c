/* Puts load on a Kafka broker from raw sockets, in one thread, and prints the figures as JSON.
 *
 *     load HOST:PORT SECONDS WARM_UP_SECONDS BROKER_PID KIND:NAME=VALUE,... ...
 *
 * Kinds: produce, fetch, transaction, stream, idle; `names` below lists their options. During the warm-up only errors
 * are counted. When the time is over, no new work begins; requests in flight are awaited but not counted. So the broker
 * is left without work and without open transactions. BROKER_PID 0: no process to measure. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "load.h"
#include "machine.h"

enum { MAX_LOADS = 8, MAX_EVENTS = 256, DRAIN_S = 30, LATE_NS = 1000000, MAX_CONNECTIONS = 20000, MAX_MEMORY = 1 << 30 };

static struct load loads[MAX_LOADS];
static int loads_count;

/* ---- the command line */

static const struct load_options defaults = {
    .connections = 1, .depth = 1, .partitions = 1, .each = 1, .size = 16384, .record = 100, .records = 1,
    .acks = -1, .version = 2, .wait_ms = 500,
};

static const struct {
    const char *name;
    size_t at;
    int least, most;
} names[] = {
    {"connections", offsetof(struct load_options, connections), 1, MAX_CONNECTIONS},
    {"depth", offsetof(struct load_options, depth), 1, MAX_DEPTH},
    {"partitions", offsetof(struct load_options, partitions), 1, 1000000},
    {"each", offsetof(struct load_options, each), 1, 10000},
    {"size", offsetof(struct load_options, size), 1, 1 << 27},
    {"record", offsetof(struct load_options, record), 0, 1 << 24},
    {"records", offsetof(struct load_options, records), 1, 1000000},
    {"acks", offsetof(struct load_options, acks), -1, 1},
    {"aborts", offsetof(struct load_options, aborts), 0, 100},
    {"version", offsetof(struct load_options, version), 1, 2},
    {"commit_ms", offsetof(struct load_options, commit_ms), 0, 30000},
    {"committed", offsetof(struct load_options, committed), 0, 1},
    {"wait_ms", offsetof(struct load_options, wait_ms), 0, 60000},
    {"once", offsetof(struct load_options, once), 0, 1},
    {"scattered", offsetof(struct load_options, scattered), 0, 1},
    {"session", offsetof(struct load_options, session), 0, 1},
    {"tls", offsetof(struct load_options, tls), 0, 1},
};

static const struct {
    const char *name;
    size_t at;
    int64_t least;
} wide_names[] = {
    {"from", offsetof(struct load_options, from), -1},
    {"span", offsetof(struct load_options, span), 0},
    {"count", offsetof(struct load_options, count), 0},
};

static int64_t number_of(const char *name, const char *text, int64_t least, int64_t most) {
    char *end;
    errno = 0;
    int64_t value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < least || value > most)
        die("%s: found %s, expected %lld to %lld", name, text, (long long)least, (long long)most);
    return value;
}

static void set_name(char *place, const char *name, const char *text) {
    if (strlen(text) >= NAME_BYTES)
        die("found a %s of %zu characters, which is too long", name, strlen(text));
    strcpy(place, text);
}

static void set_option(struct load_options *options, const char *name, const char *text) {
    if (!strcmp(name, "topic")) {
        set_name(options->topic, name, text);
        return;
    }
    if (!strcmp(name, "login")) {
        set_name(options->login, name, text);
        return;
    }
    for (size_t i = 0; i < sizeof wide_names / sizeof *wide_names; i++)
        if (!strcmp(name, wide_names[i].name)) {
            *(int64_t *)((char *)options + wide_names[i].at) = number_of(name, text, wide_names[i].least, INT64_MAX);
            return;
        }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(name, names[i].name)) {
            *(int *)((char *)options + names[i].at) = (int)number_of(name, text, names[i].least, names[i].most);
            return;
        }
    die("unknown option %s", name);
}

static void add_load(char *text) {
    static const struct load_kind *const kinds[] = {&produce_kind, &fetch_kind, &transaction_kind, &stream_kind,
                                              &idle_kind};
    if (loads_count == MAX_LOADS)
        die("found more than %d loads", MAX_LOADS);
    struct load *load = &loads[loads_count++];
    load->options = defaults;
    const char *kind = strsep(&text, ":");
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (!strcmp(kind, kinds[i]->name))
            load->kind = kinds[i];
    if (!load->kind)
        die("unknown load %s", kind);
    for (char *pair; (pair = strsep(&text, ",")) != NULL;) {
        const char *name = strsep(&pair, "=");
        set_option(&load->options, name, pair ? pair : "");
    }
    if (load->options.acks == 0)
        die("acks=0 has no answers to measure");
    if (load->options.session && (load->options.depth != 1 || load->options.each > load->options.partitions))
        die("a session allows one Fetch in flight, and each partition once");
    if (load->kind == &transaction_kind && load->options.depth != 1)
        die("a producer allows one transaction at a time");
}

/* ---- running */

static void open_loads(char *address, int epoll) {
    char *port = strrchr(address, ':');
    if (!port)
        die("found %s, expected HOST:PORT", address);
    *port++ = '\0';
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    size_t memory = 0;
    for (struct load *load = loads; load < loads + loads_count; load++) {
        load->kind->prepare(load);
        size_t count = (size_t)load->options.connections;
        memory += count * ((size_t)load->options.depth * load->request_bytes + load->answer_bytes);
        if (memory > MAX_MEMORY)
            die("this load takes %zu bytes of memory, expected at most %d", memory, MAX_MEMORY);
        load->connections = calloc(count, sizeof *load->connections);
        for (size_t i = 0; i < count; i++) {
            struct connection *connection = &load->connections[i];
            connection->load = load;
            connection->index = (int)i;
            open_connection(connection, address, port, epoll);
        }
    }
}

static void close_loads(void) {
    for (struct load *load = loads; load < loads + loads_count; load++)
        for (int i = 0; i < load->options.connections; i++)
            close_connection(&load->connections[i]);
}

static bool is_busy(void) {
    int busy = 0;
    for (struct load *load = loads; load < loads + loads_count; load++)
        busy += load->busy;
    return busy > 0;
}

static void start_loads(int epoll) {
    for (struct load *load = loads; load < loads + loads_count; load++)
        for (int i = 0; load->kind->write && i < load->options.connections; i++)
            begin_requests(&load->connections[i], epoll);
}

static struct clocks began, ended;

static void begin_to_measure(int broker_pid) {
    for (struct load *load = loads; load < loads + loads_count; load++)
        memset(&load->figures, 0, sizeof load->figures);
    began = read_clocks(broker_pid);
}

static void end_to_measure(int broker_pid) {
    ended = read_clocks(broker_pid);
    for (struct load *load = loads; load < loads + loads_count; load++) {
        load->measured = load->figures;
        load->has_ended = true;
    }
}

static void wait_for_events(int epoll, uint64_t resume_at_ns, uint64_t next_phase_ns) {
    uint64_t now_ns = clock_ns();
    uint64_t until_ns = resume_at_ns && resume_at_ns < next_phase_ns ? resume_at_ns : next_phase_ns;
    int timeout_ms = until_ns > now_ns ? (int)((until_ns - now_ns + 999999) / 1000000) : 0;
    struct epoll_event events[MAX_EVENTS];
    int count = epoll_wait(epoll, events, MAX_EVENTS, timeout_ms);
    for (int i = 0; i < count; i++)
        be_ready(events[i].data.ptr, events[i].events, epoll);
}

/* With commits, the measurement begins and ends at a commit, so that it covers whole transactions. */
static bool is_between_transactions(void) {
    bool is_between = loads->has_just_committed || !loads->commits;
    loads->has_just_committed = false;
    return is_between;
}

static void run(int epoll, double seconds, double warm_up_s, int broker_pid) {
    enum { WARMING_UP, MEASURING, DRAINING } phase = WARMING_UP;
    uint64_t next_phase_ns = clock_ns() + (uint64_t)(warm_up_s * 1e9);
    start_loads(epoll);
    for (;;) {
        if (!is_busy()) /* a load bounded by a count may end early, even in the warm-up */
            break;
        uint64_t now_ns = clock_ns();
        bool is_between = is_between_transactions();
        if (now_ns >= next_phase_ns && (is_between || phase == DRAINING)) {
            if (phase == DRAINING)
                die("answers are still missing %d seconds after the end", DRAIN_S);
            if (phase == WARMING_UP)
                begin_to_measure(broker_pid);
            else
                end_to_measure(broker_pid);
            next_phase_ns = now_ns + (uint64_t)((phase == WARMING_UP ? seconds : DRAIN_S) * 1e9);
            phase++;
        }
        wait_for_events(epoll, resume(now_ns, epoll), next_phase_ns > now_ns ? next_phase_ns : now_ns + LATE_NS);
    }
    if (phase != DRAINING)
        end_to_measure(broker_pid);
}

/* ---- the figures */

static void print_load(const struct load *load) {
    const struct figures *figures = &load->measured;
    const struct histogram *latency = &figures->latency;
    printf("{\"kind\": \"%s\", \"requests\": %llu, \"records\": %llu, \"bytes_sent\": %llu, \"bytes_received\": %llu, "
           "\"transactions\": %llu, \"aborted_transactions\": %llu, \"retries\": %llu, \"empty_answers\": %llu, ",
           load->kind->name, (unsigned long long)figures->requests, (unsigned long long)figures->records,
           (unsigned long long)figures->bytes_sent, (unsigned long long)figures->bytes_received,
           (unsigned long long)figures->transactions, (unsigned long long)figures->aborted_transactions,
           (unsigned long long)figures->retries, (unsigned long long)figures->empty_answers);
    printf("\"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, \"max_us\": %.1f, \"request_bytes\": %zu, \"errors\": {",
           (double)percentile_ns(latency, 0.5) / 1e3, (double)percentile_ns(latency, 0.99) / 1e3,
           (double)percentile_ns(latency, 0.999) / 1e3, (double)latency->max_ns / 1e3, load->request_bytes);
    const char *separator = "";
    for (int code = 1; code < ERROR_CODES; code++)
        if (load->errors[code]) {
            printf("%s\"%d\": %llu", separator, code == ERROR_CODES - 1 ? -1 : code,
                   (unsigned long long)load->errors[code]);
            separator = ", ";
        }
    printf("}}");
}

static void print_figures(void) {
    double seconds = ended.wall_s - began.wall_s, own_s = ended.own_s - began.own_s;
    double broker_s = ended.broker_s - began.broker_s, busy_s = ended.busy_s - began.busy_s;
    printf("{\"seconds\": %.6f, \"client_cpu_s\": %.6f, \"broker_cpu_s\": %.6f, \"others_cpu_s\": %.2f, \"steal_s\": %.2f, "
           "\"loads\": [", seconds, own_s, broker_s, busy_s - own_s - broker_s, ended.steal_s - began.steal_s);
    for (int i = 0; i < loads_count; i++) {
        printf(i ? ", " : "");
        print_load(&loads[i]);
    }
    printf("]}\n");
}

int main(int argc, char **argv) {
    if (argc < 6)
        die("usage: load HOST:PORT SECONDS WARM_UP_SECONDS BROKER_PID KIND:NAME=VALUE,... ...");
    signal(SIGPIPE, SIG_IGN);
    double seconds = atof(argv[2]), warm_up_s = atof(argv[3]);
    int broker_pid = (int)number_of("BROKER_PID", argv[4], 0, INT32_MAX);
    for (int i = 5; i < argc; i++)
        add_load(argv[i]);
    int epoll = epoll_create1(0);
    open_loads(argv[1], epoll);
    began = read_clocks(broker_pid);
    run(epoll, seconds, warm_up_s, broker_pid);
    close_loads();
    print_figures();
    return 0;
}
