"""The hash by which Java producers choose a partition, of one key; many at a time are in `record_batches`."""

MURMUR2_SEED = 0x9747B28C


def murmur2(data: bytes) -> int:
    """The hash of keys that Java producers use, as an unsigned 32-bit number."""
    mask, multiplier = 0xFFFFFFFF, 0x5BD1E995
    state = (MURMUR2_SEED ^ len(data)) & mask
    whole = len(data) - len(data) % 4
    for start in range(0, whole, 4):
        word = int.from_bytes(data[start : start + 4], "little") * multiplier & mask
        word = (word ^ word >> 24) * multiplier & mask
        state = (state * multiplier & mask) ^ word
    if tail := data[whole:]:
        state = (state ^ int.from_bytes(tail, "little")) * multiplier & mask
    state = (state ^ state >> 13) * multiplier & mask
    return state ^ state >> 15
