"""Frames as they come over a connection, and what is done with them: one way for all who have no socket."""

import struct
from collections.abc import Iterator
from typing import Any

from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.broker.requests.dispatch import Dispatcher


def framed(*frames: bytes) -> bytearray:
    """Frames behind each other, each with its size before it."""
    return bytearray(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))


def each_frame(data: bytes) -> Iterator[bytes]:
    """The frames that stand behind each other, with their sizes."""
    start = 0
    while start < len(data):
        stop = start + 4 + int.from_bytes(data[start : start + 4], "big")
        yield data[start:stop]
        start = stop


def serve_frames(dispatcher: Dispatcher, context: ConnectionContext, *frames: bytes) -> list[Any]:
    """Serve frames that arrived together, as a connection does: an answer of each, or of several together."""
    view = memoryview(framed(*frames))
    answers: list[Any] = []
    start = 0
    while (served := dispatcher.serve(context, view, start, len(view))) is not None:
        answer, start = served
        answers.append(answer)
    return answers
