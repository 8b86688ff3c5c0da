"""kafkajs: the JavaScript client, in one Node process that takes and answers one JSON command a line.

kafkajs reads only as a member of a group, so `consume` makes a new group each time.
"""

import base64
import json
import subprocess
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.conformance.drivers.contract import (
    ALL_CODECS,
    ANY_PARTITION,
    DEADLINE_SECONDS,
    Ability,
    DriverTimeout,
    Headers,
    Message,
    in_order,
    require_program,
    unavailable,
)

FOLDER = Path(__file__).parent.parent / "kafkajs"


def encoded(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def as_message(raw: dict[str, Any]) -> Message:
    return Message(
        value=decoded(raw["value"]),
        key=decoded(raw["key"]),
        headers=tuple((name, decoded(value)) for name, value in raw["headers"]),
        partition=raw["partition"],
        timestamp_ms=int(raw["timestamp"]),
        offset=int(raw["offset"]),
    )


class KafkaJsProcess:
    """The Node process. Commands run concurrently; each answer carries its command's number."""

    def __init__(self) -> None:
        node = require_program("node")
        if not (FOLDER / "node_modules" / "kafkajs").is_dir():
            unavailable("kafkajs is not installed")
        self._child = subprocess.Popen(
            [node, str(FOLDER / "client.js")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=FOLDER,
            text=True,
        )
        self._answers: dict[int, dict[str, Any]] = {}
        self._arrived = threading.Condition()
        self._next_number = 0
        threading.Thread(target=self._read_answers, daemon=True).start()

    def _read_answers(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            answer = json.loads(line)
            with self._arrived:
                self._answers[answer["number"]] = answer
                self._arrived.notify_all()

    def begin(self, command: str, **arguments: object) -> int:
        assert self._child.stdin is not None
        with self._arrived:
            number = self._next_number
            self._next_number += 1
            self._child.stdin.write(json.dumps({"number": number, "command": command, **arguments}) + "\n")
            self._child.stdin.flush()
        return number

    def finish(self, number: int, deadline_seconds: float = DEADLINE_SECONDS) -> Any:
        with self._arrived:
            if not self._arrived.wait_for(lambda: number in self._answers, deadline_seconds):
                raise DriverTimeout(f"kafkajs did not answer command {number}")
            answer = self._answers.pop(number)
        if "error" in answer:
            raise AssertionError(f"kafkajs: {answer['error']}")
        return answer["result"]

    def call(self, command: str, **arguments: object) -> Any:
        return self.finish(self.begin(command, **arguments))

    def close(self) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            self._child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()


class KafkaJsDriver:
    name = "kafkajs"
    codecs = ALL_CODECS
    can = frozenset(Ability) - {Ability.NULL_HEADER, Ability.INTERLEAVED_HEADERS}

    def __init__(self, process: KafkaJsProcess, retries: int = 8) -> None:
        self.process = process
        self.retries = retries

    def produce(
        self,
        bootstrap: str,
        topic: str,
        messages: Sequence[Message],
        *,
        codec: str = "none",
        acks: str = "all",
    ) -> None:
        self.process.call(
            "produce",
            bootstrap=bootstrap,
            topic=topic,
            codec=codec,
            retries=self.retries,
            acks=-1 if acks == "all" else int(acks),
            messages=[
                {
                    "key": encoded(message.key),
                    "value": encoded(message.value),
                    "headers": [(name, encoded(value)) for name, value in message.headers],
                    "partition": None if message.partition == ANY_PARTITION else message.partition,
                    "timestamp": message.timestamp_ms,
                }
                for message in messages
            ],
        )

    def presents(self, headers: Headers) -> Headers:
        """An object: repeated names stand together at the place of the first."""
        names = list(dict.fromkeys(name for name, _ in headers))
        return tuple((name, value) for wanted in names for name, value in headers if name == wanted)

    def consume(
        self, bootstrap: str, counts: dict[str, int], partition_count: int
    ) -> dict[str, list[Message]]:
        raw = self.process.call(
            "consume",
            bootstrap=bootstrap,
            group=f"kafkajs-{uuid.uuid4().hex[:8]}",
            topics=list(counts),
            count=sum(counts.values()),
        )
        received: dict[str, list[Message]] = {topic: [] for topic in counts}
        for message in raw:
            received[message["topic"]].append(as_message(message))
        return {topic: in_order(messages) for topic, messages in received.items()}
