"""CRC-32C, the checksum of record batches and of producer snapshots: one place decides who computes it.

    crc32c(data)               of any bytes
    crc32c(data, before)       of `data` behind bytes whose checksum is `before`

Why this library: ADR 5.
"""

from fastcrc.crc32 import iscsi as crc32c

__all__ = ["crc32c"]
