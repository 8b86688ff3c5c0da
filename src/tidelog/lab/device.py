"""A device of the lab: an MQTT 3.1.1 client whose session outlives its connection; every wait has a bound."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

WAIT_SECONDS = 30.0
KEEP_ALIVE_SECONDS = 30


class Device:
    """Connects with `__enter__` or `connect`, and comes back by itself when its connection is lost."""

    def __init__(self, port: int, name: str) -> None:
        import paho.mqtt.client as paho
        from paho.mqtt.enums import CallbackAPIVersion

        self.name = name
        #: topic and value of what came, in order
        self.received: list[tuple[str, str]] = []
        self._port = port
        self._connected = False
        self._granted: dict[int, Any] = {}
        self._changed = threading.Condition()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, name, clean_session=False)
        self._client.reconnect_delay_set(1, 1)
        self._client.on_connect = self._on_connect
        self._client.on_message = self._on_message
        self._client.on_subscribe = self._on_subscribe

    def __repr__(self) -> str:
        return f"<Device {self.name} {len(self.received)} messages>"

    def __enter__(self) -> "Device":
        self.connect()
        self.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def connect(self) -> None:
        """Connect, and return when the gateway has answered; nothing else is read before `listen`."""
        self._client.connect("127.0.0.1", self._port, keepalive=KEEP_ALIVE_SECONDS)
        while not self._connected:
            if self._client.loop(WAIT_SECONDS) != 0:
                raise TimeoutError(f"{self.name} was not let in")

    def listen(self) -> None:
        """From here on what comes is read."""
        self._client.loop_start()

    def come_back(self) -> None:
        """Connect anew: answers that were not read are lost, what was not acknowledged is sent again."""
        self._client.reconnect()
        self.listen()

    def subscribe(self, topic: str, qos: int = 1) -> None:
        """Returns when the gateway has granted it."""
        number = self._client.subscribe(topic, qos)[1]
        if number is None:
            raise ConnectionError(f"{self.name} is not connected")
        self._wait(lambda: number in self._granted, f"the gateway answers about {topic}")
        if any(code.is_failure for code in self._granted[number]):
            raise PermissionError(f"{self.name} may not subscribe to {topic}")

    def publish(self, topic: str, value: str, qos: int = 1) -> Any:
        """Send; see `acknowledged`."""
        return self._client.publish(topic, value, qos)

    def acknowledged(self, sent: Any) -> None:
        """Return when the gateway has acknowledged what was sent."""
        sent.wait_for_publish(WAIT_SECONDS)
        if not sent.is_published():
            raise TimeoutError(f"a message of {self.name} was not acknowledged in {WAIT_SECONDS:g} s")

    def wait_received(self, count: int) -> None:
        self._wait(lambda: len(self.received) >= count, f"{self.name} has {count} messages")

    def close(self) -> None:
        """Say goodbye; the session stays."""
        self._client.disconnect()
        self._client.loop_stop()

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, WAIT_SECONDS):
                raise TimeoutError(f"waited {WAIT_SECONDS:g} s in vain until {what}")

    # Callbacks, mostly in the client's thread

    def _on_connect(self, _: Any, __: Any, ___: Any, reason: Any, ____: Any) -> None:
        self._connected = not reason.is_failure

    def _on_message(self, _: Any, __: Any, message: Any) -> None:
        with self._changed:
            self.received.append((message.topic, message.payload.decode()))
            self._changed.notify_all()

    def _on_subscribe(self, _: Any, __: Any, number: int, reasons: Any, ___: Any) -> None:
        with self._changed:
            self._granted[number] = reasons
            self._changed.notify_all()
