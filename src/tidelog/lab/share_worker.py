"""Members of a share group in threads: each record is handed to a function that says what becomes of it."""

import threading
from collections import Counter
from collections.abc import Callable
from enum import StrEnum
from types import TracebackType
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException

from tidelog.lab.clients import client_config, text

if TYPE_CHECKING:
    from confluent_kafka import Message

POLL_SECONDS = 0.2
COMMIT_SECONDS = 20.0
JOIN_SECONDS = 20.0


class Said(StrEnum):
    """What a member says of a record."""

    ACCEPT = "ACCEPT"
    RELEASE = "RELEASE"
    REJECT = "REJECT"


#: what becomes of a record, given its value and how often this member has had it; None: nothing is said
Decision = Callable[[str, int], Said | None]


class ShareWorker:
    """A member that polls until it is closed; one that once said nothing hangs from then on."""

    def __init__(self, bootstrap: str, group: str, topic: str, name: str, decide: Decision) -> None:
        self.name = name
        self.fault: str | None = None
        self._decide = decide
        self._had: Counter[str] = Counter()
        self._taken: list[str] = []
        self._stop = threading.Event()
        # Clients before 2.15 have no share consumers.
        from confluent_kafka import ShareConsumer

        options = {"group_id": group, "client_id": name, "share_acknowledgement_mode": "explicit"}
        self._consumer = ShareConsumer(client_config(bootstrap, options))
        self._consumer.subscribe([topic])
        self._thread = threading.Thread(target=self._run, name=f"lab-{name}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<ShareWorker {self.name} {len(self._taken)} deliveries>"

    def __enter__(self) -> "ShareWorker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(JOIN_SECONDS)

    @property
    def taken(self) -> list[str]:
        """The value of every delivery so far."""
        return list(self._taken)

    def _run(self) -> None:
        try:
            while not self._stop.is_set() and self._work():
                pass
            self._stop.wait()
        except KafkaException as failure:
            self.fault = str(failure)
        finally:
            self._consumer.close()

    def _work(self) -> bool:
        """One poll; False where the member hangs with what it got."""
        from confluent_kafka import AcknowledgeType

        messages: list[Message] = list(self._consumer.poll(POLL_SECONDS))
        hangs = False
        for message in messages:
            if (error := message.error()) is not None:
                raise KafkaException(error)
            value = text(message.value()) or ""
            self._had[value] += 1
            kind = self._decide(value, self._had[value])
            self._taken.append(value)
            if kind is None:
                hangs = True
            else:
                self._consumer.acknowledge(message, AcknowledgeType[kind])
        if messages and not hangs:
            for fault in self._consumer.commit_sync(COMMIT_SECONDS).values():
                if fault is not None:
                    raise KafkaException(fault)
        return not hangs


def accept(value: str, times: int) -> Said | None:
    """A member that can do everything."""
    return Said.ACCEPT
