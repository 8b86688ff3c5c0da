"""Memory that goes back to the system when large requests are over.

glibc keeps what was freed for the next time: the more large pieces come and go, the larger those that it
keeps (up to 32 MiB each). After eight requests of 100 MB that was 300 MiB, for good. So pieces of
`MAPPED_BYTES_MIN` and more always come from the system and go back to it, and what is free between the
smaller ones is given back a second after much was received.

To set the one size makes glibc forget its own rule for the other: it would shrink the heap whenever 128 KiB
are free at its end, and grow it again for the next piece. A request of 100 MB is read as many pieces, so
`FREE_AT_END_BYTES` may stay until then.

Other C libraries have no such settings, and are left as they are.
"""

import ctypes
from functools import cache
from typing import Any

#: not smaller: batches that are unpacked to be checked should find memory that is mapped already
MAPPED_BYTES_MIN = 4 << 20
#: few of the pieces of a request are larger; it stays, so it should not be much
FREE_AT_END_BYTES = 8 << 20
#: so much receive memory has to be freed before the rest is looked through
TRIMMED_AFTER_BYTES = 8 << 20
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


@cache
def _library() -> Any:
    try:
        library = ctypes.CDLL(None)
        return library if library.mallopt and library.malloc_trim else None
    except (OSError, AttributeError):
        return None


def settle() -> None:
    """Have large pieces go back at once; for the whole process, at its start."""
    if _library() is not None:
        _library().mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES_MIN)
        _library().mallopt(_M_TRIM_THRESHOLD, FREE_AT_END_BYTES)


def trim() -> None:
    """Give back what is free now; takes milliseconds, so not on the event loop."""
    if _library() is not None:
        _library().malloc_trim(0)
