"""Buffers for frames that do not arrive whole, and how they grow.

To move sixty megabytes into a larger buffer takes as many milliseconds, most of them to map memory. So a
large buffer is a mapping of its own, which the system makes larger where it lies; its pages are mapped when
bytes arrive in them. Where that cannot be (mremap is Linux's, and nobody else may look into the buffer) what
there is is moved.
"""

import mmap

#: from this size of frame on a connection keeps its private buffer for the next ones
LARGE_FRAME_BYTES = 64 << 10
#: a buffer for large frames holds several, up to this size, so that few of them have to be moved; clients
#: have five requests in flight if nobody told them otherwise, and all of them are best taken at once
BULK_BUFFER_BYTES = 1 << 20
BULK_FRAMES = 6
#: when less room than this is left behind a partial frame it is moved to the front
ROOM_BYTES_MIN = 64 << 10
#: smaller ones come from the heap
MAPPED_BYTES_MIN = 4 << 20


def buffer_capacity(frame_bytes: int) -> int:
    """How large a private buffer for frames of this size grows.

    A little more than the frame at least: a read that fills the whole buffer would make the loop read on
    and on from one connection.
    """
    if frame_bytes < LARGE_FRAME_BYTES:
        return frame_bytes
    return max(min(BULK_FRAMES * frame_bytes, BULK_BUFFER_BYTES), frame_bytes + ROOM_BYTES_MIN)


def new_buffer(size_bytes: int) -> memoryview:
    """A buffer of zeros."""
    if size_bytes < MAPPED_BYTES_MIN:
        return memoryview(bytearray(size_bytes))
    # Private: a shared mapping ends where it ended when it was made, and to write beyond is a fault.
    return memoryview(mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


def grown(buffer: memoryview, start: int, end: int, size_bytes: int) -> memoryview:
    """A larger buffer with what is between `start` and `end` of this one, which must not be used any more."""
    mapping = buffer.obj
    if start == 0 and isinstance(mapping, mmap.mmap):
        buffer.release()
        try:
            mapping.resize(size_bytes)
            return memoryview(mapping)
        except (BufferError, OSError, SystemError):
            buffer = memoryview(mapping)
    larger = new_buffer(size_bytes)
    larger[: end - start] = buffer[start:end]
    return larger
