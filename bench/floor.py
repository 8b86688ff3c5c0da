"""The floor as a raw Python socket sink: the sink of `floor.c` in Python.

It is measured beside the C floor, as the most a Python server could do here, and stands in for it on
machines without a C compiler. One thread, epoll: what a recv() brought goes to a file, every complete frame
is answered with a canned response, optionally followed by bytes of a file (sendfile). Options and output are
those of `floor.c`; `--framed` and `--files` do not exist here.
"""

import argparse
import os
import select
import signal
import socket
import struct
from pathlib import Path

SINK_BYTES = 256 * 1024
ANSWERS_PER_SEND = 64


class Connection:
    """Counts the frames of one socket and sends the answers it owes."""

    def __init__(self, client: socket.socket, floor: "Floor", body_position: int) -> None:
        self.socket = client
        self.floor = floor
        self.length = b""
        self.frame_left = 0
        self.pending = 0
        self.answer_position = 0
        self.body_position = body_position
        self.wants_write = False

    def count_frames(self, data: memoryview) -> None:
        position, size = 0, len(data)
        while position < size:
            if not self.frame_left:
                needed = 4 - len(self.length)
                self.length += data[position : position + needed]
                position += needed
                if len(self.length) == 4:
                    self.frame_left = struct.unpack(">i", self.length)[0]
                    self.length = b""
                continue
            step = min(self.frame_left, size - position)
            position += step
            self.frame_left -= step
            if not self.frame_left:
                self.pending += 1

    def answer(self) -> None:
        """Sends what is owed, as far as the kernel takes it."""
        floor = self.floor
        head_bytes, whole_bytes = floor.answer_bytes, floor.answer_bytes + floor.body_bytes
        try:
            while self.pending:
                if self.answer_position < head_bytes:
                    count = 1 if floor.body_bytes else min(self.pending, ANSWERS_PER_SEND)
                    data = floor.answers[self.answer_position : count * head_bytes]
                    self.answer_position += self.socket.send(data, socket.MSG_MORE if floor.body_bytes else 0)
                else:
                    left = whole_bytes - self.answer_position
                    sent = os.sendfile(self.socket.fileno(), floor.body_fd, self.body_position, left)
                    self.body_position = (self.body_position + sent) % floor.body_size
                    self.answer_position += sent
                finished, self.answer_position = divmod(self.answer_position, whole_bytes)
                self.pending -= finished
        except BlockingIOError:
            pass


class Floor:
    """The listener, the sink file and the canned answer."""

    def __init__(self, options: argparse.Namespace) -> None:
        response = Path(options.response).read_bytes()
        self.answers = memoryview(response * ANSWERS_PER_SEND)
        self.answer_bytes = len(response)
        self.body_bytes: int = options.body_bytes
        self.body_fd = os.open(options.body_file, os.O_RDONLY) if options.body_bytes else -1
        size = os.fstat(self.body_fd).st_size if options.body_bytes else 0
        self.body_size = size // self.body_bytes * self.body_bytes if options.body_bytes else 0
        path = Path(options.directory) / "floor-python.log"
        self.file_fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
        self.buffer = memoryview(bytearray(SINK_BYTES))
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.listener.setblocking(False)
        self.connections: dict[int, Connection] = {}
        self.epoll = select.epoll()
        self.epoll.register(self.listener.fileno(), select.EPOLLIN)

    def serve(self) -> None:
        print(f"port {self.listener.getsockname()[1]}", flush=True)
        while True:
            for fd, events in self.epoll.poll():
                if fd == self.listener.fileno():
                    self.accept()
                    continue
                connection = self.connections[fd]
                try:
                    alive = self.turn(connection, events)
                except (ConnectionError, BrokenPipeError):
                    alive = False
                if not alive:
                    self.close(fd)

    def accept(self) -> None:
        client, _ = self.listener.accept()
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        start = len(self.connections) * self.body_bytes % self.body_size if self.body_bytes else 0
        self.connections[client.fileno()] = Connection(client, self, start)
        self.epoll.register(client.fileno(), select.EPOLLIN)

    def turn(self, connection: Connection, events: int) -> bool:
        if events & ~select.EPOLLOUT:
            size = connection.socket.recv_into(self.buffer)
            if not size:
                return False
            data = self.buffer[:size]
            os.write(self.file_fd, data)
            connection.count_frames(data)
        connection.answer()
        if (connection.pending > 0) != connection.wants_write:
            connection.wants_write = connection.pending > 0
            wanted = select.EPOLLIN | (select.EPOLLOUT if connection.wants_write else 0)
            self.epoll.modify(connection.socket.fileno(), wanted)
        return True

    def close(self, fd: int) -> None:
        self.epoll.unregister(fd)
        self.connections.pop(fd).socket.close()
        if not self.connections:
            os.ftruncate(self.file_fd, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--response", required=True)
    parser.add_argument("--directory", default=".")
    parser.add_argument("--body-file", default="")
    parser.add_argument("--body-bytes", type=int, default=0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    Floor(parser.parse_args()).serve()


if __name__ == "__main__":
    main()
