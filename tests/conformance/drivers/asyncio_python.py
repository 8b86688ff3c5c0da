"""aiokafka: the asyncio client. Each call runs its own event loop."""

import asyncio
from collections.abc import Sequence

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from tests.conformance.drivers.contract import (
    ALL_CODECS,
    ANY_PARTITION,
    DEADLINE_SECONDS,
    Ability,
    DriverTimeout,
    Headers,
    Message,
    in_order,
)


def as_message(raw: object) -> Message:
    return Message(
        value=raw.value,  # type: ignore[attr-defined]
        key=raw.key,  # type: ignore[attr-defined]
        headers=tuple(raw.headers),  # type: ignore[attr-defined]
        partition=raw.partition,  # type: ignore[attr-defined]
        timestamp_ms=raw.timestamp,  # type: ignore[attr-defined]
        offset=raw.offset,  # type: ignore[attr-defined]
    )


class AioKafkaDriver:
    name = "aiokafka"
    codecs = ALL_CODECS
    can = frozenset(Ability)

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        *,
        codec: str = "none",
        acks: str = "all",
    ) -> None:
        asyncio.run(
            asyncio.wait_for(self._produce(bootstrap, topic, messages, codec, acks), DEADLINE_SECONDS)
        )

    async def _produce(
        self, bootstrap: str, topic: str, messages: Sequence[Message], codec: str, acks: str
    ) -> None:
        client = AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            acks=acks if acks == "all" else int(acks),
        )
        await client.start()
        try:
            futures = [
                await client.send(
                    topic,
                    value=message.value,
                    key=message.key,
                    headers=list(message.headers),
                    partition=None if message.partition == ANY_PARTITION else message.partition,
                    timestamp_ms=message.timestamp_ms,
                )
                for message in messages
            ]
            await asyncio.gather(*futures)
        finally:
            await client.stop()

    def presents(self, headers: Headers) -> Headers:
        return headers

    def consume(
        self, bootstrap: str, counts: dict[str, int], partition_count: int
    ) -> dict[str, list[Message]]:
        return asyncio.run(self._consume(bootstrap, counts, partition_count))

    async def _consume(
        self, bootstrap: str, counts: dict[str, int], partition_count: int
    ) -> dict[str, list[Message]]:
        client = AIOKafkaConsumer(
            bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="earliest", fetch_max_wait_ms=100
        )
        received: dict[str, list[Message]] = {topic: [] for topic in counts}
        wanted = sum(counts.values())
        await client.start()
        try:
            client.assign(
                [TopicPartition(topic, index) for topic in counts for index in range(partition_count)]
            )
            async with asyncio.timeout(DEADLINE_SECONDS):
                while wanted:
                    for records in (await client.getmany(timeout_ms=200, max_records=wanted)).values():
                        wanted -= len(records)
                        for raw in records:
                            received[raw.topic].append(as_message(raw))
        except TimeoutError:
            raise DriverTimeout(f"{wanted} of {sum(counts.values())} messages did not come") from None
        finally:
            await client.stop()
        return {topic: in_order(messages) for topic, messages in received.items()}
