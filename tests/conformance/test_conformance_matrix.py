"""Every client with every codec and acks value: what one writes, each of them reads back byte for byte.

A topic has a partition for each form of a message: bare, with a key, with headers, with both.
"""

import time
from collections.abc import Callable

import pytest

from tests.conformance.drivers.confluent import ConfluentDriver
from tests.conformance.drivers.contract import (
    ALL_ACKS,
    ALL_CODECS,
    DRIVER_NAMES,
    Ability,
    Driver,
    Headers,
    Message,
    new_name,
)

FORMS = ("bare", "key", "headers", "key and headers")
PARTITION_COUNT = len(FORMS)
FIRST_TIMESTAMP_MS = 1_700_000_000_000
# Every byte value, text long enough for codecs to bite on, and one byte.
VALUES = (bytes(range(256)), "Grüße, 世界 ".encode() * 200, b"\x00")
TEXT_HEADERS: Headers = (
    ("trace", b"4bf92f3577b34da6"),
    ("trace", b"second"),
    ("straße", "größe".encode()),
    ("empty", b""),
)


def messages_for(driver: Driver) -> list[Message]:
    """The four forms with all that this client can express, by partition."""
    headers = TEXT_HEADERS
    if Ability.BINARY_HEADERS in driver.can:
        headers += (("binary", bytes(range(256))),)
    if Ability.INTERLEAVED_HEADERS in driver.can:
        headers += (("trace", b"third"),)
    if Ability.NULL_HEADER in driver.can:
        headers += (("null", None),)
    values: list[bytes | None] = list(VALUES)
    if Ability.EMPTY_VALUE in driver.can:
        values.append(b"")
    keys = [b"key-%d" % index for index in range(len(values))]
    keys[0] = b"\xff\xfe\x00binary"
    if Ability.EMPTY_KEY in driver.can:
        keys[1] = b""
    messages = []
    for partition, form in enumerate(FORMS):
        with_key = "key" in form
        # A null value makes sense with a key alone (it deletes it), and some clients insist.
        tombstone: list[bytes | None] = [None] if with_key and Ability.NULL_VALUE in driver.can else [b"last"]
        for index, value in enumerate(values + tombstone):
            # Times as a user gives them: neither equal nor rising.
            timestamp_ms = FIRST_TIMESTAMP_MS + (index * 7919) % 100_000
            messages.append(
                Message(
                    value=value,
                    key=keys[index % len(keys)] if with_key else None,
                    headers=headers if "headers" in form else (),
                    partition=partition,
                    timestamp_ms=timestamp_ms if Ability.TIMESTAMP in driver.can else None,
                )
            )
    return messages


def assert_same(sent: list[Message], received: list[Message], reader: Driver, since_ms: int) -> None:
    assert [(m.partition, m.key, m.value, reader.presents(m.headers)) for m in sent] == [
        (m.partition, *m.content) for m in received
    ]
    per_partition = len(sent) // PARTITION_COUNT
    assert [m.offset for m in received] == list(range(per_partition)) * PARTITION_COUNT
    for before, after in zip(sent, received, strict=True):
        assert after.timestamp_ms is not None
        if before.timestamp_ms is None:
            assert since_ms - 1000 <= after.timestamp_ms <= time.time() * 1000 + 1000
        else:
            assert after.timestamp_ms == before.timestamp_ms


Matrix = dict[tuple[str, str, str], str]


@pytest.fixture(scope="module")
def matrix_topics(make_topics: Callable[..., None]) -> Matrix:
    """A topic for each client, codec and acks, all made in one request."""
    topics = {
        (name, codec, acks): new_name(f"matrix-{name}-{codec}-{acks}")
        for name in DRIVER_NAMES
        for codec in ALL_CODECS
        for acks in ALL_ACKS
    }
    make_topics(list(topics.values()), PARTITION_COUNT)
    return topics


@pytest.mark.parametrize("acks", ALL_ACKS)
@pytest.mark.parametrize("codec", ALL_CODECS)
@pytest.mark.parametrize("client", DRIVER_NAMES)
def test_what_a_client_writes_comes_back(
    client: str,
    codec: str,
    acks: str,
    bootstrap: str,
    find_driver: Callable[[str], Driver],
    matrix_topics: Matrix,
) -> None:
    driver = find_driver(client)
    topic = matrix_topics[client, codec, acks]
    sent = messages_for(driver)
    since_ms = int(time.time() * 1000)
    driver.produce(bootstrap, topic, sent, codec=codec, acks=acks)
    reader = ConfluentDriver()
    received = reader.consume(bootstrap, {topic: len(sent)}, PARTITION_COUNT)[topic]
    assert_same(sent, received, reader, since_ms)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def written(
    bootstrap: str, find_driver: Callable[[str], Driver], make_topics: Callable[..., None]
) -> dict[tuple[str, str], tuple[str, list[Message], int]]:
    """One topic by each client and codec: its name, the messages, when they were sent."""
    topics = {
        (name, codec): new_name(f"cross-{name}-{codec}") for name in DRIVER_NAMES for codec in ALL_CODECS
    }
    make_topics(list(topics.values()), PARTITION_COUNT)
    result = {}
    for (name, codec), topic in topics.items():
        try:
            driver = find_driver(name)
        except pytest.skip.Exception:  # its own tests say so; the other clients still read each other
            continue
        sent = messages_for(driver)
        since_ms = int(time.time() * 1000)
        driver.produce(bootstrap, topic, sent, codec=codec)
        result[name, codec] = topic, sent, since_ms
    return result


@pytest.mark.parametrize("client", DRIVER_NAMES)
def test_each_client_reads_what_all_wrote(
    client: str,
    bootstrap: str,
    find_driver: Callable[[str], Driver],
    written: dict[tuple[str, str], tuple[str, list[Message], int]],
) -> None:
    driver = find_driver(client)
    counts = {topic: len(sent) for topic, sent, _ in written.values()}
    received = driver.consume(bootstrap, counts, PARTITION_COUNT)
    for topic, sent, since_ms in written.values():
        assert_same(sent, received[topic], driver, since_ms)
