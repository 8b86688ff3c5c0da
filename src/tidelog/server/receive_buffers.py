"""Buffers for frames that do not arrive whole, and how they grow.

To move sixty megabytes into a larger buffer takes as many milliseconds, most of them to map memory. So a
large buffer is a mapping of its own, which the system makes larger where it lies; its pages are mapped when
bytes arrive in them. Where that cannot be (mremap is Linux's, and nobody else may look into the buffer) what
there is is moved.
"""

import mmap

#: smaller ones come from the heap
MAPPED_BYTES_MIN = 4 << 20


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
