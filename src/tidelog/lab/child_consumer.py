"""A consumer as the child of a `ConsumerProcess`: `python -m tidelog.lab.child_consumer NAME`.

Standard input is a pipe from the parent; its first line is a JSON object (see `ConsumerPlan`), and its end
means that the parent is gone. Standard output takes one JSON object per line for everything that happens:
`assigned`, `revoked`, `record`, `committed`, `error`, `stopped`. SIGTERM makes it leave its group and end.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tidelog.server.child_broker import be_continued_without_parent, end_with_parent, read_instructions

POLL_SECONDS = 0.1


class ChildConsumer:
    """One consumer and its loop."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.ending = False
        self.processed = 0
        self.uncommitted = 0
        self._consumer = Consumer(plan["config"])

    def run(self) -> None:
        """Read until SIGTERM; then leave the group."""
        if self.plan["partitions"] is not None:
            self._consumer.assign([TopicPartition(*place) for place in self.plan["partitions"]])
        else:
            self._consumer.subscribe(
                self.plan["topics"], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost
            )
        try:
            while not self.ending:
                message = self._consumer.poll(POLL_SECONDS)
                if message is not None:
                    self._take(message)
        finally:
            self._consumer.close()
            tell("stopped", processed=self.processed)

    def _take(self, message: Message) -> None:
        fault = message.error()
        if fault is not None:
            if fault.code() != KafkaError._PARTITION_EOF:
                tell("error", error=fault.name(), text=fault.str())
            return
        crash = self.processed + 1 == self.plan["crash_at"]
        if self.plan["commit"] == "before":
            self._commit(message)
            self._crash_if(crash)
            self._process(message)
        else:
            self._process(message)
            self._crash_if(crash)
            if self.plan["commit"] == "after":
                self.uncommitted += 1
                if self.uncommitted >= self.plan["commit_every"]:
                    self._commit(message)

    def _process(self, message: Message) -> None:
        if self.plan["work_ms"]:
            time.sleep(self.plan["work_ms"] / 1000)
        self.processed += 1
        key, value = message.key(), message.value()
        tell(
            "record",
            topic=message.topic(),
            partition=message.partition(),
            offset=message.offset(),
            key=key.decode(errors="replace") if isinstance(key, bytes) else key,
            value=value.decode(errors="replace") if isinstance(value, bytes) else value,
        )

    def _commit(self, message: Message) -> None:
        try:
            self._consumer.commit(message=message, asynchronous=False)
        except KafkaException as refused:
            tell("error", error=refused.args[0].name(), text=refused.args[0].str())
            return
        self.uncommitted = 0
        offset = message.offset()
        assert offset is not None
        tell("committed", topic=message.topic(), partition=message.partition(), offset=offset + 1)

    def _crash_if(self, crash: bool) -> None:
        if crash:
            os.kill(os.getpid(), signal.SIGKILL)

    def _assigned(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        tell("assigned", partitions=[[place.topic, place.partition] for place in places])

    def _revoked(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        tell("revoked", partitions=[[place.topic, place.partition] for place in places])

    def _lost(self, consumer: Consumer, places: list[TopicPartition]) -> None:
        tell("lost", partitions=[[place.topic, place.partition] for place in places])


def tell(kind: str, **fields: Any) -> None:
    """One line to the parent."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps({"kind": kind, "at": time.time(), **fields}).encode() + b"\n")


def main() -> int:
    plan = read_instructions()
    be_continued_without_parent()
    threading.Thread(target=end_with_parent, name="parent-watch", daemon=True).start()
    child = ChildConsumer(plan)

    def end(number: int, frame: object) -> None:
        child.ending = True

    signal.signal(signal.SIGTERM, end)
    tell("started", process_id=os.getpid())
    child.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
