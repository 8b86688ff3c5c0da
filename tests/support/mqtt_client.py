"""paho-mqtt for tests: every wait has a bound, and what came is kept in order."""

import threading
import time
from collections.abc import Callable
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

SECONDS_MAX = 20.0
V311, V5 = paho.MQTTv311, paho.MQTTv5


def connect_properties(**values: Any) -> Properties:
    found = Properties(PacketTypes.CONNECT)
    for name, value in values.items():
        setattr(found, name, value)
    return found


class MqttClient:
    """A client with a thread; usable as a context manager, which says goodbye."""

    def __init__(
        self,
        port: int,
        client_id: str = "",
        version: int = V311,
        *,
        clean: bool = True,
        expiry_seconds: int = 0,
        user: str | None = None,
        password: str | None = None,
        transport: Any = "tcp",
        prepare: Callable[[paho.Client], None] | None = None,
    ) -> None:
        session = {"clean_session": clean} if version == V311 else {}
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id,
            protocol=MQTTProtocolVersion(version),
            transport=transport,
            **session,
        )
        self.version = version
        self.messages: list[paho.MQTTMessage] = []
        self.reason: Any = None
        self.disconnected: Any = None
        self.present: bool | None = None
        self.connack: Any = None
        self._changed = threading.Condition()
        self._answers: dict[int, Any] = {}
        self._port = port
        self._clean = clean
        self._expiry_seconds = expiry_seconds
        if user is not None:
            self.paho.username_pw_set(user, password)
        if prepare is not None:
            prepare(self.paho)
        self.paho.reconnect_delay_set(1, 1)
        self.paho.on_connect = self._on_connect
        self.paho.on_disconnect = self._on_disconnect
        self.paho.on_message = self._on_message
        self.paho.on_subscribe = self._on_answer
        self.paho.on_unsubscribe = self._on_answer

    def __enter__(self) -> "MqttClient":
        return self.connect()

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self) -> "MqttClient":
        """Connect, and return when the gateway has answered."""
        more: dict[str, Any] = {}
        if self.version == V5:
            more = {
                "clean_start": self._clean,
                "properties": connect_properties(SessionExpiryInterval=self._expiry_seconds),
            }
        self.paho.connect("127.0.0.1", self._port, keepalive=30, **more)
        self.paho.loop_start()
        self.wait(lambda: self.reason is not None, "CONNACK")
        return self

    def subscribe(self, *filters: str, qos: int = 2, **options: Any) -> list[int]:
        """The reasons of the SUBACK."""
        if self.version == V5:
            given: Any = [(text, SubscribeOptions(qos, **options)) for text in filters]
        else:
            given = [(text, qos) for text in filters]
        _, packet_id = self.paho.subscribe(given)
        return self._answer(packet_id)

    def unsubscribe(self, *filters: str) -> list[int]:
        _, packet_id = self.paho.unsubscribe(list(filters))
        return self._answer(packet_id)

    def _answer(self, packet_id: int | None) -> list[int]:
        assert packet_id is not None
        self.wait(lambda: packet_id in self._answers, "SUBACK or UNSUBACK")
        return [int(code.value) for code in self._answers.pop(packet_id)]

    def publish(self, topic: str, payload: bytes, qos: int = 1, retain: bool = False, **more: Any) -> None:
        """Publish, and return when it is acknowledged."""
        info = self.paho.publish(topic, payload, qos, retain, **more)
        if qos:
            info.wait_for_publish(SECONDS_MAX)
            assert info.is_published(), "not acknowledged in time"

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = SECONDS_MAX) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, seconds), f"no {what} within {seconds:g} s"

    def expect(self, count: int, seconds: float = SECONDS_MAX) -> list[tuple[str, bytes]]:
        """The first messages, once there are so many."""
        self.wait(
            lambda: len(self.messages) >= count, f"{count} messages, {len(self.messages)} came", seconds
        )
        return [(message.topic, bytes(message.payload)) for message in self.messages[:count]]

    def expect_no_more(self, count: int, seconds: float = 0.5) -> None:
        time.sleep(seconds)
        assert [(each.topic, each.payload) for each in self.messages[count:]] == []

    def drop(self) -> None:
        """Cut the connection without a goodbye."""
        self.paho.loop_stop()
        stream = self.paho.socket()
        if stream is not None:
            stream.close()

    def close(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()

    # Callbacks, in the client's thread

    def _on_connect(self, _: Any, __: Any, flags: Any, reason: Any, properties: Any) -> None:
        with self._changed:
            self.reason, self.present, self.connack = reason, flags.session_present, properties
            self._changed.notify_all()

    def _on_disconnect(self, _: Any, __: Any, ___: Any, reason: Any, properties: Any) -> None:
        with self._changed:
            self.disconnected = reason
            self._changed.notify_all()

    def _on_message(self, _: Any, __: Any, message: paho.MQTTMessage) -> None:
        with self._changed:
            self.messages.append(message)
            self._changed.notify_all()

    def _on_answer(self, _: Any, __: Any, packet_id: int, reasons: Any, ___: Any) -> None:
        with self._changed:
            self._answers[packet_id] = reasons
            self._changed.notify_all()
