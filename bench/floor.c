/* The floor: what this machine can do when a server does no protocol work at all.
 *
 * One thread, epoll. It knows nothing but the 4-byte length in front of every frame. What it receives goes
 * to a file; each complete frame is answered with one canned response, optionally followed by the next
 * --body-bytes of --body-file (sendfile, walking through the file), which is what Fetch looks like.
 *
 *   sink   (default)   whatever one recv() brought goes to the file with one write(), all its answers
 *                      leave with one send(): the least work that still reads, stores and answers
 *   framed (--framed)  one write() per frame, to file number (frame modulo --files): the system calls of a
 *                      broker that appends every batch to the log of its partition
 *
 * The files are cut to zero when the last connection closes, so the disk use of a run is bounded.
 * Prints "port N" when it listens; ends on SIGTERM or with its parent.
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
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    SINK_BYTES = 256 * 1024,
    FRAME_BYTES_MAX = 8 * 1024 * 1024,
    ANSWERS_PER_SEND = 64,
    FILES_MAX = 8192,
};

typedef struct {
    int fd;
    int wants_write;
    uint8_t length[4]; /* sink: of the frame being received */
    uint32_t length_have;
    uint64_t frame_left;
    uint8_t *buffer; /* framed: received, not yet written */
    size_t buffer_have, buffer_size;
    uint64_t pending;       /* answers owed */
    uint64_t answer_position; /* bytes of the current answer already sent */
    off_t body_position;
} Connection;

static const char *directory = ".", *response_path, *body_path;
static int framed, file_count = 1, files[FILES_MAX];
static uint64_t body_bytes, body_size, frames_seen;
static uint8_t *answers; /* the canned response, ANSWERS_PER_SEND times */
static size_t answer_bytes;
static int body_fd = -1, epoll_fd, listen_fd, open_connections;
static uint8_t *sink_buffer;

static void fail(const char *what) {
    fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void prepare_files(void) {
    for (int index = 0; index < file_count; index++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/floor-%04d.log", directory, index);
        files[index] = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
        if (files[index] < 0) fail(path);
    }
    int fd = open(response_path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) < 0) fail(response_path);
    answer_bytes = (size_t)status.st_size;
    answers = malloc(answer_bytes * ANSWERS_PER_SEND);
    if (read(fd, answers, answer_bytes) != (ssize_t)answer_bytes) fail(response_path);
    for (size_t index = 1; index < ANSWERS_PER_SEND; index++)
        memcpy(answers + index * answer_bytes, answers, answer_bytes);
    close(fd);
    if (!body_bytes) return;
    body_fd = open(body_path, O_RDONLY | O_CLOEXEC);
    if (body_fd < 0 || fstat(body_fd, &status) < 0) fail(body_path);
    body_size = (uint64_t)status.st_size / body_bytes * body_bytes;
}

static void watch(Connection *connection, int write) {
    if (connection->wants_write == write) return;
    connection->wants_write = write;
    struct epoll_event event = {.events = EPOLLIN | (write ? EPOLLOUT : 0), .data.ptr = connection};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_MOD, connection->fd, &event) < 0) fail("epoll_ctl");
}

static void close_connection(Connection *connection) {
    close(connection->fd);
    free(connection->buffer);
    free(connection);
    if (--open_connections > 0) return;
    for (int index = 0; index < file_count; index++)
        if (ftruncate(files[index], 0) < 0) fail("ftruncate");
}

/* Sends what is owed. Returns 0 when the connection broke. */
static int answer(Connection *connection) {
    while (connection->pending) {
        ssize_t sent;
        if (connection->answer_position < answer_bytes) {
            uint64_t count = body_bytes ? 1 : connection->pending;
            if (count > ANSWERS_PER_SEND) count = ANSWERS_PER_SEND;
            sent = send(connection->fd, answers + connection->answer_position,
                        count * answer_bytes - connection->answer_position,
                        MSG_NOSIGNAL | (body_bytes ? MSG_MORE : 0));
        } else {
            uint64_t left = answer_bytes + body_bytes - connection->answer_position;
            sent = sendfile(connection->fd, body_fd, &connection->body_position, left);
        }
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            watch(connection, 1);
            return 1;
        }
        if (sent <= 0) return 0;
        connection->answer_position += (uint64_t)sent;
        while (connection->pending && connection->answer_position >= answer_bytes + body_bytes) {
            connection->answer_position -= answer_bytes + body_bytes;
            connection->pending--;
            if (body_bytes && (uint64_t)connection->body_position >= body_size) connection->body_position = 0;
        }
    }
    watch(connection, 0);
    return 1;
}

static void store(const uint8_t *bytes, size_t size, int file) {
    while (size) {
        ssize_t written = write(files[file], bytes, size);
        if (written < 0) fail("write");
        bytes += written;
        size -= (size_t)written;
    }
}

static int receive_sink(Connection *connection) {
    ssize_t size = recv(connection->fd, sink_buffer, SINK_BYTES, 0);
    if (size < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (size == 0) return 0;
    store(sink_buffer, (size_t)size, 0);
    const uint8_t *bytes = sink_buffer;
    while (size) {
        if (!connection->frame_left) {
            connection->length[connection->length_have++] = *bytes++;
            size--;
            if (connection->length_have < 4) continue;
            uint32_t length;
            memcpy(&length, connection->length, 4);
            connection->frame_left = ntohl(length);
            connection->length_have = 0;
            continue;
        }
        uint64_t step = (uint64_t)size < connection->frame_left ? (uint64_t)size : connection->frame_left;
        bytes += step;
        size -= (ssize_t)step;
        connection->frame_left -= step;
        if (!connection->frame_left) connection->pending++;
    }
    return answer(connection);
}

static int receive_framed(Connection *connection) {
    ssize_t size = recv(connection->fd, connection->buffer + connection->buffer_have,
                        connection->buffer_size - connection->buffer_have, 0);
    if (size < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (size == 0) return 0;
    connection->buffer_have += (size_t)size;
    size_t position = 0;
    size_t needed = SINK_BYTES;
    while (connection->buffer_have - position >= 4) {
        uint32_t length;
        memcpy(&length, connection->buffer + position, 4);
        size_t frame = (size_t)ntohl(length) + 4;
        if (frame > FRAME_BYTES_MAX) return 0;
        if (connection->buffer_have - position < frame) {
            needed = frame;
            break;
        }
        store(connection->buffer + position, frame, (int)(frames_seen++ % (uint64_t)file_count));
        position += frame;
        connection->pending++;
    }
    connection->buffer_have -= position;
    if (position && connection->buffer_have)
        memmove(connection->buffer, connection->buffer + position, connection->buffer_have);
    if (needed > connection->buffer_size) {
        connection->buffer = realloc(connection->buffer, needed);
        connection->buffer_size = needed;
    }
    return answer(connection);
}

static void accept_connection(void) {
    int fd = accept4(listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    Connection *connection = calloc(1, sizeof *connection);
    connection->fd = fd;
    if (framed) {
        connection->buffer_size = SINK_BYTES;
        connection->buffer = malloc(connection->buffer_size);
    }
    /* Connections start at different places of the body file, as consumers of one topic do. */
    if (body_bytes) connection->body_position = (off_t)((uint64_t)open_connections * body_bytes % body_size);
    open_connections++;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = connection};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0) fail("epoll_ctl");
}

static void serve(void) {
    struct epoll_event events[256];
    for (;;) {
        int count = epoll_wait(epoll_fd, events, 256, -1);
        if (count < 0 && errno != EINTR) fail("epoll_wait");
        for (int index = 0; index < count; index++) {
            Connection *connection = events[index].data.ptr;
            if (!connection) {
                accept_connection();
                continue;
            }
            int alive = 1;
            if (events[index].events & EPOLLOUT) alive = answer(connection);
            if (alive && (events[index].events & ~(uint32_t)EPOLLOUT))
                alive = framed ? receive_framed(connection) : receive_sink(connection);
            if (!alive) close_connection(connection);
        }
    }
}

static void listen_on_free_port(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listen_fd < 0 || bind(listen_fd, (struct sockaddr *)&address, size) < 0 || listen(listen_fd, 1024) < 0 ||
        getsockname(listen_fd, (struct sockaddr *)&address, &size) < 0)
        fail("listen");
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listen_fd, &event) < 0) fail("epoll_ctl");
    printf("port %d\n", ntohs(address.sin_port));
    fflush(stdout);
}

int main(int argc, char **argv) {
    static const struct option names[] = {
        {"directory", 1, 0, 'd'},  {"response", 1, 0, 'r'}, {"body-file", 1, 0, 'b'},
        {"body-bytes", 1, 0, 'n'}, {"files", 1, 0, 'f'},    {"framed", 0, 0, 'm'},
        {0, 0, 0, 0},
    };
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int name;
    while ((name = getopt_long(argc, argv, "", names, NULL)) != -1) {
        switch (name) {
        case 'd': directory = optarg; break;
        case 'r': response_path = optarg; break;
        case 'b': body_path = optarg; break;
        case 'n': body_bytes = strtoull(optarg, NULL, 10); break;
        case 'f': file_count = atoi(optarg); break;
        case 'm': framed = 1; break;
        default: exit(2);
        }
    }
    if (!response_path || file_count < 1 || file_count > FILES_MAX || (body_bytes && !body_path)) {
        fprintf(stderr, "usage: floor --response FILE [--directory DIR] [--framed] [--files N] "
                        "[--body-file FILE --body-bytes N]\n");
        exit(2);
    }
    sink_buffer = malloc(SINK_BYTES);
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    prepare_files();
    listen_on_free_port();
    serve();
    return 0;
}
