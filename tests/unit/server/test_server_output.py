"""Answers to a socket: files that fail or are shorter than announced must not hurt anybody else."""

import asyncio
import socket
from dataclasses import dataclass

import pytest

from tidelog.server.output import SMALL_ANSWER_BYTES, SocketOutput


class BadFile:
    """A file whose range cannot be had."""

    def __init__(self, content: bytes | None) -> None:
        self.content = content

    def fileno(self) -> int:
        raise OSError("gone")

    def read(self, position: int, size: int) -> bytes:
        if self.content is None:
            raise OSError(5, "Input/output error")
        return self.content[position : position + size]


@dataclass
class Range:
    file: BadFile
    position: int
    size_bytes: int


@pytest.mark.parametrize("content", [None, b"short"])
@pytest.mark.parametrize("size", [100, SMALL_ANSWER_BYTES + 1])
def test_a_range_that_cannot_be_read_ends_the_connection_alone(content: bytes | None, size: int) -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        failures: list[str] = []
        output = SocketOutput(
            asyncio.get_running_loop(), ours.fileno(), lambda: None, lambda: failures.append("failed")
        )
        output.queue_chunks([b"head", Range(BadFile(content), 0, size)])
        output.flush()
        output.send_bytes(b"what comes later")
        await asyncio.sleep(0)
        assert failures == ["failed"] and output.closed and output.queued_bytes == 0
        output.close()
        ours.close()
        theirs.settimeout(5)
        received = b""
        while part := theirs.recv(100):
            received += part
        theirs.close()
        assert received in (b"", b"head"), "nothing may follow an answer that is not whole"

    asyncio.run(asyncio.wait_for(scenario(), 10))
