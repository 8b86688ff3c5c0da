"""The checksum against another implementation, whole and in parts, whatever kind of bytes it is given."""

import os
import random

import crc32c as other
import pytest

from tidelog.records.checksum import crc32c


@pytest.mark.parametrize(
    "size", [0, 1, 7, 8, 15, 16, 63, 64, 255, 256, 1_000, 4_095, 4_096, 100_000, 1 << 20]
)
def test_it_is_that_of_another_library(size: int) -> None:
    data = os.urandom(size + 3)
    for start in range(4):
        view = memoryview(data)[start : start + size]
        assert crc32c(view) == crc32c(view, 0) == crc32c(bytearray(view)) == other.crc32c(view)


def test_it_goes_on_from_a_checksum() -> None:
    data = os.urandom(5_000)
    for _ in range(200):
        cut = random.randrange(len(data) + 1)
        assert crc32c(data[cut:], crc32c(data[:cut])) == other.crc32c(data)
    assert crc32c(b"123456789") == 0xE3069283
