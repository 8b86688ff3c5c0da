"""The exceptions that say bytes claiming to be records are not.

ValueError
└── CorruptRecord              malformed batch, record or compressed data
    └── DecompressedTooLarge   well-formed perhaps, but larger than the caller allows
"""


class CorruptRecord(ValueError):
    """The bytes of a batch, a record or a compressed block do not follow the format."""


class DecompressedTooLarge(CorruptRecord):
    """Decompressing would pass the caller's limit; nothing beyond the limit was allocated."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"the records are larger than {limit_bytes} bytes when decompressed")
        self.limit_bytes = limit_bytes
