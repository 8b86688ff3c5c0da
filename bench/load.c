/* Load generator: sends pre-encoded request frames and counts the answers.
 *
 * One thread, epoll, non-blocking sockets. The frames come from a file, each with its 4-byte length in
 * front; connection i sends frames i, i + C, i + 2C, ... (modulo the number of frames), at most `depth` of
 * them unanswered. Only the correlation id is patched, in a small head kept per request in flight.
 *
 * Every answer is checked: length (--response-bytes), correlation id, error code (--error-at) and, for
 * Produce, that offsets grow per connection and partition (--offset-at). A wrong answer ends the run with
 * exit code 2: a broker that answers with errors must not look fast. The floor is not checked, its answers
 * are canned (--no-check).
 *
 * The result is one JSON line: requests, bytes and seconds of the measured window (after the warm-up),
 * latency percentiles, and the CPU seconds of this process and of the server in that window.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum {
    HEAD_BYTES = 12,     /* length, api key, api version, correlation id */
    CHECKED_BYTES = 256, /* how much of an answer is kept for the checks */
    DEPTH_MAX = 64,
    CONNECTIONS_MAX = 4096,
    RECEIVE_BYTES = 256 * 1024,
    /* Left to itself the kernel grows the window in small steps when many connections hold megabytes in
     * flight, and the generator drowns in acknowledgements: a fixed large buffer keeps the server busy. */
    SOCKET_BUFFER_BYTES = 4 * 1024 * 1024,
    LATENCIES_MAX = 1 << 22,
};

typedef struct {
    uint8_t *bytes;
    uint32_t size;
} Frame;

typedef struct {
    int fd;
    int index;
    int wants_write;
    uint64_t begun; /* frames given a head and a send time */
    uint64_t sent;  /* frames completely written */
    uint64_t done;  /* frames answered */
    uint32_t sent_position;
    uint8_t head[DEPTH_MAX][HEAD_BYTES];
    uint64_t begun_ns[DEPTH_MAX];
    uint8_t answer[CHECKED_BYTES];
    uint32_t answer_have;
    uint64_t answer_size; /* 0 until the length is known */
    uint64_t answer_skip; /* bytes of the answer still to be passed over */
    int64_t *last_offset; /* per frame of the file; NULL when not checked */
} Connection;

static struct {
    const char *host;
    int port, connections, depth, warmup_ms, duration_ms, server_pid, check;
    long response_bytes, error_at, offset_at;
    uint64_t max_bytes;
} option = {"127.0.0.1", 0, 1, 1, 200, 1000, 0, 1, 0, -1, -1, 0};

static Frame *frames;
static uint32_t frame_count;
static Connection *connections;
static int epoll_fd;
static uint8_t *receive_buffer;
static uint32_t *latencies_us10; /* tenths of a microsecond */
static uint64_t latency_count;
static uint64_t window_requests, window_sent_bytes, window_received_bytes, total_done;
static int stopping;

static void fail(const char *what) {
    fprintf(stderr, "load: %s%s%s\n", what, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(2);
}

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000ull + (uint64_t)time.tv_nsec;
}

static double own_cpu_seconds(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

/* utime + stime of all threads of the server, from /proc; -1 when there is none. */
static double server_cpu_seconds(void) {
    if (option.server_pid <= 0) return -1;
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", option.server_pid);
    int fd = open(path, O_RDONLY);
    if (fd < 0) return -1;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    if (size <= 0) return -1;
    text[size] = 0;
    char *after_name = strrchr(text, ')');
    unsigned long user_ticks = 0, system_ticks = 0;
    if (!after_name ||
        sscanf(after_name + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user_ticks, &system_ticks) != 2)
        return -1;
    return (double)(user_ticks + system_ticks) / (double)sysconf(_SC_CLK_TCK);
}

/* Seconds a process was ready to run but had no CPU: what others took from it. -1 when unknown. */
static double wait_seconds(int pid) {
    if (pid <= 0) return -1;
    char path[64], text[128];
    snprintf(path, sizeof path, "/proc/%d/schedstat", pid);
    int fd = open(path, O_RDONLY);
    if (fd < 0) return -1;
    ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
    unsigned long long waited_ns;
    if (size <= 0) return -1;
    text[size] = 0;
    return sscanf(text, "%*u %llu", &waited_ns) == 1 ? (double)waited_ns / 1e9 : -1;
}

static void read_frames(const char *path) {
    int fd = open(path, O_RDONLY);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) < 0) fail(path);
    uint8_t *bytes = malloc((size_t)status.st_size);
    for (ssize_t have = 0; have < status.st_size;) {
        ssize_t size = read(fd, bytes + have, (size_t)(status.st_size - have));
        if (size <= 0) fail(path);
        have += size;
    }
    close(fd);
    for (int pass = 0; pass < 2; pass++) {
        uint64_t position = 0;
        frame_count = 0;
        while (position + HEAD_BYTES <= (uint64_t)status.st_size) {
            uint32_t length;
            memcpy(&length, bytes + position, 4);
            length = ntohl(length) + 4;
            if (pass) frames[frame_count] = (Frame){bytes + position, length};
            frame_count++;
            position += length;
        }
        if (position != (uint64_t)status.st_size || !frame_count) fail("the frame file is malformed");
        if (!pass) frames = calloc(frame_count, sizeof *frames);
    }
}

static uint32_t frame_of(const Connection *connection, uint64_t sequence) {
    return (uint32_t)(((uint64_t)connection->index + sequence * (uint64_t)option.connections) % frame_count);
}

static void watch(Connection *connection, int write) {
    if (connection->wants_write == write) return;
    connection->wants_write = write;
    struct epoll_event event = {.events = EPOLLIN | (write ? EPOLLOUT : 0), .data.ptr = connection};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_MOD, connection->fd, &event) < 0) fail("epoll_ctl");
}

/* Fills the window: one sendmsg for everything that may be in flight. */
static void send_frames(Connection *connection, uint64_t time_ns) {
    uint64_t end = connection->done + (uint64_t)option.depth;
    while (!stopping || connection->sent < connection->begun) {
        uint64_t last = stopping ? connection->begun : end;
        if (connection->sent >= last) break;
        struct iovec vector[2 * DEPTH_MAX];
        int used = 0;
        for (uint64_t sequence = connection->sent; sequence < last; sequence++) {
            Frame frame = frames[frame_of(connection, sequence)];
            uint32_t slot = (uint32_t)(sequence % DEPTH_MAX);
            uint8_t *head = connection->head[slot];
            if (sequence == connection->begun) {
                uint32_t correlation = htonl((uint32_t)sequence);
                memcpy(head, frame.bytes, 8);
                memcpy(head + 8, &correlation, 4);
                connection->begun_ns[slot] = time_ns;
                connection->begun++;
            }
            uint32_t position = sequence == connection->sent ? connection->sent_position : 0;
            if (position < HEAD_BYTES) {
                vector[used++] = (struct iovec){head + position, HEAD_BYTES - position};
                position = HEAD_BYTES;
            }
            vector[used++] = (struct iovec){frame.bytes + position, frame.size - position};
        }
        struct msghdr message = {.msg_iov = vector, .msg_iovlen = (size_t)used};
        ssize_t size = sendmsg(connection->fd, &message, MSG_NOSIGNAL);
        if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            watch(connection, 1);
            return;
        }
        if (size < 0) fail("send");
        window_sent_bytes += (uint64_t)size;
        while (size > 0) {
            uint32_t left = frames[frame_of(connection, connection->sent)].size - connection->sent_position;
            if ((uint64_t)size < left) {
                connection->sent_position += (uint32_t)size;
                break;
            }
            size -= left;
            connection->sent++;
            connection->sent_position = 0;
        }
    }
    watch(connection, 0);
}

static void check_answer(Connection *connection) {
    uint64_t sequence = connection->done;
    uint32_t correlation;
    memcpy(&correlation, connection->answer + 4, 4);
    errno = 0;
    if (ntohl(correlation) != (uint32_t)sequence) fail("answers out of order (correlation id)");
    if (option.error_at >= 0) {
        int16_t code;
        memcpy(&code, connection->answer + option.error_at, 2);
        code = (int16_t)ntohs((uint16_t)code);
        if (code != 0) {
            fprintf(stderr, "load: the server answered with error code %d\n", code);
            exit(2);
        }
    }
    if (option.offset_at >= 0 && connection->last_offset) {
        uint64_t big_endian;
        memcpy(&big_endian, connection->answer + option.offset_at, 8);
        int64_t offset = (int64_t)be64toh(big_endian);
        int64_t *last = &connection->last_offset[frame_of(connection, sequence)];
        if (offset < 0 || offset + 1 <= *last) fail("base offsets do not grow");
        *last = offset + 1;
    }
}

static void answer_done(Connection *connection, uint64_t time_ns) {
    if (latency_count < LATENCIES_MAX)
        latencies_us10[latency_count++] =
            (uint32_t)((time_ns - connection->begun_ns[connection->done % DEPTH_MAX]) / 100);
    connection->done++;
    connection->answer_have = 0;
    connection->answer_size = 0;
    window_requests++;
    total_done++;
}

static void take_bytes(Connection *connection, const uint8_t *bytes, size_t size, uint64_t time_ns) {
    while (size) {
        if (connection->answer_skip) {
            size_t step = size < connection->answer_skip ? size : connection->answer_skip;
            connection->answer_skip -= step;
            bytes += step;
            size -= step;
            if (!connection->answer_skip) answer_done(connection, time_ns);
            continue;
        }
        uint32_t target = connection->answer_size
                              ? (uint32_t)(connection->answer_size < CHECKED_BYTES ? connection->answer_size : CHECKED_BYTES)
                              : 4;
        uint32_t step = target - connection->answer_have;
        if (step > size) step = (uint32_t)size;
        memcpy(connection->answer + connection->answer_have, bytes, step);
        connection->answer_have += step;
        bytes += step;
        size -= step;
        if (connection->answer_have < target) return;
        if (!connection->answer_size) {
            uint32_t length;
            memcpy(&length, connection->answer, 4);
            connection->answer_size = (uint64_t)ntohl(length) + 4;
            errno = 0;
            if (connection->answer_size < 8) fail("an answer is shorter than its header");
            if (option.response_bytes && connection->answer_size != (uint64_t)option.response_bytes) {
                fprintf(stderr, "load: an answer of %llu bytes, %ld expected\n",
                        (unsigned long long)connection->answer_size, option.response_bytes);
                exit(2);
            }
            continue;
        }
        if (option.check) check_answer(connection);
        connection->answer_skip = connection->answer_size - connection->answer_have;
        if (!connection->answer_skip) answer_done(connection, time_ns);
    }
}

static void receive(Connection *connection) {
    ssize_t size = recv(connection->fd, receive_buffer, RECEIVE_BYTES, 0);
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (size < 0) fail("recv");
    errno = 0;
    if (size == 0) fail("the server closed the connection");
    uint64_t time_ns = now_ns();
    window_received_bytes += (uint64_t)size;
    take_bytes(connection, receive_buffer, (size_t)size, time_ns);
    if (!stopping) send_frames(connection, time_ns);
}

static void open_connections(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)option.port)};
    if (inet_pton(AF_INET, option.host, &address.sin_addr) != 1) fail("--host must be an IPv4 address");
    connections = calloc((size_t)option.connections, sizeof *connections);
    int remember = option.offset_at >= 0 && (uint64_t)option.connections * frame_count <= (1u << 22);
    for (int index = 0; index < option.connections; index++) {
        Connection *connection = &connections[index];
        connection->index = index;
        connection->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        int buffer_bytes = SOCKET_BUFFER_BYTES;
        if (connection->fd >= 0)
            setsockopt(connection->fd, SOL_SOCKET, SO_RCVBUF, &buffer_bytes, sizeof buffer_bytes);
        if (connection->fd < 0 || connect(connection->fd, (struct sockaddr *)&address, sizeof address) < 0)
            fail("connect");
        int one = 1;
        setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        fcntl(connection->fd, F_SETFL, fcntl(connection->fd, F_GETFL) | O_NONBLOCK);
        if (remember) connection->last_offset = calloc(frame_count, sizeof(int64_t));
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
        if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, connection->fd, &event) < 0) fail("epoll_ctl");
    }
}

static void turn(void) {
    struct epoll_event events[256];
    int count = epoll_wait(epoll_fd, events, 256, 1000);
    if (count < 0 && errno != EINTR) fail("epoll_wait");
    for (int index = 0; index < count; index++) {
        Connection *connection = events[index].data.ptr;
        if (events[index].events & EPOLLOUT) send_frames(connection, now_ns());
        if (events[index].events & ~(uint32_t)EPOLLOUT) receive(connection);
    }
}

static int ascending(const void *left, const void *right) {
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

static double percentile_us(double share) {
    if (!latency_count) return 0;
    uint64_t index = (uint64_t)(share * (double)(latency_count - 1) + 0.5);
    return latencies_us10[index] / 10.0;
}

/* Whether every connection had every frame it will ever send answered once, so that each partition is open. */
static int all_frames_answered(void) {
    uint32_t step = (uint32_t)option.connections, cycle = frame_count;
    while (step) {
        uint32_t rest = cycle % step;
        cycle = step;
        step = rest;
    }
    for (int index = 0; index < option.connections; index++)
        if (connections[index].done < frame_count / cycle) return 0;
    return 1;
}

static void run(void) {
    uint64_t start_ns = now_ns();
    for (int index = 0; index < option.connections; index++) send_frames(&connections[index], start_ns);
    uint64_t warm_ns = start_ns + (uint64_t)option.warmup_ms * 1000000ull;
    uint64_t give_up_ns = warm_ns + 60ull * 1000000000ull;
    while (now_ns() < warm_ns || !all_frames_answered()) {
        turn();
        errno = 0;
        if (now_ns() > give_up_ns) fail("no progress while warming up");
    }
    window_requests = window_sent_bytes = window_received_bytes = latency_count = 0;
    double own_start = own_cpu_seconds(), server_start = server_cpu_seconds();
    double own_wait_start = wait_seconds(getpid()), server_wait_start = wait_seconds(option.server_pid);
    uint64_t window_ns = now_ns(), end_ns = window_ns + (uint64_t)option.duration_ms * 1000000ull, time_ns;
    while ((time_ns = now_ns()) < end_ns) {
        if (option.max_bytes && window_sent_bytes + window_received_bytes >= option.max_bytes) break;
        turn();
    }
    double seconds = (double)(time_ns - window_ns) / 1e9;
    double own = own_cpu_seconds() - own_start;
    double server = server_start < 0 ? -1 : server_cpu_seconds() - server_start;
    double own_wait = own_wait_start < 0 ? -1 : wait_seconds(getpid()) - own_wait_start;
    double server_wait = server_wait_start < 0 ? -1 : wait_seconds(option.server_pid) - server_wait_start;
    uint64_t requests = window_requests, sent = window_sent_bytes, received = window_received_bytes;
    uint64_t latencies = latency_count;
    stopping = 1;
    uint64_t drain_ns = now_ns() + 5000000000ull;
    for (;;) {
        int open = 0;
        for (int index = 0; index < option.connections; index++)
            open |= connections[index].done < connections[index].begun;
        if (!open || now_ns() > drain_ns) break;
        turn();
    }
    latency_count = latencies;
    qsort(latencies_us10, latency_count, sizeof *latencies_us10, ascending);
    printf("{\"requests\": %llu, \"seconds\": %.6f, \"sent_bytes\": %llu, \"received_bytes\": %llu, "
           "\"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f, \"load_cpu_seconds\": %.4f, "
           "\"server_cpu_seconds\": %.4f, \"load_wait_seconds\": %.4f, \"server_wait_seconds\": %.4f, "
           "\"total_requests\": %llu}\n",
           (unsigned long long)requests, seconds, (unsigned long long)sent, (unsigned long long)received,
           percentile_us(0.50), percentile_us(0.99), percentile_us(1.0), own, server, own_wait, server_wait,
           (unsigned long long)total_done);
}

static void read_options(int argc, char **argv) {
    static const struct option names[] = {
        {"host", 1, 0, 'h'},          {"port", 1, 0, 'p'},       {"connections", 1, 0, 'c'},
        {"depth", 1, 0, 'd'},         {"requests", 1, 0, 'r'},   {"warmup-ms", 1, 0, 'w'},
        {"duration-ms", 1, 0, 't'},   {"max-bytes", 1, 0, 'b'},  {"response-bytes", 1, 0, 'n'},
        {"error-at", 1, 0, 'e'},      {"offset-at", 1, 0, 'o'},  {"server-pid", 1, 0, 's'},
        {"no-check", 0, 0, 'x'},      {0, 0, 0, 0},
    };
    const char *requests = NULL;
    int name;
    while ((name = getopt_long(argc, argv, "", names, NULL)) != -1) {
        switch (name) {
        case 'h': option.host = optarg; break;
        case 'p': option.port = atoi(optarg); break;
        case 'c': option.connections = atoi(optarg); break;
        case 'd': option.depth = atoi(optarg); break;
        case 'r': requests = optarg; break;
        case 'w': option.warmup_ms = atoi(optarg); break;
        case 't': option.duration_ms = atoi(optarg); break;
        case 'b': option.max_bytes = strtoull(optarg, NULL, 10); break;
        case 'n': option.response_bytes = atol(optarg); break;
        case 'e': option.error_at = atol(optarg); break;
        case 'o': option.offset_at = atol(optarg); break;
        case 's': option.server_pid = atoi(optarg); break;
        case 'x': option.check = 0; break;
        default: exit(2);
        }
    }
    if (!requests || option.port <= 0 || option.connections < 1 || option.connections > CONNECTIONS_MAX ||
        option.depth < 1 || option.depth > DEPTH_MAX || option.error_at > CHECKED_BYTES - 2 ||
        option.offset_at > CHECKED_BYTES - 8)
        fail("usage: load --port N --requests FILE [--connections N] [--depth N] ...");
    read_frames(requests);
}

int main(int argc, char **argv) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    read_options(argc, argv);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    receive_buffer = malloc(RECEIVE_BYTES);
    latencies_us10 = malloc(LATENCIES_MAX * sizeof *latencies_us10);
    open_connections();
    run();
    return 0;
}
