"""How many connections there may be: in all, on one listener, from one address, and new ones in a second.

Each limit is looked at before anything is allocated for a connection, its TLS handshake included. Where
brokers have a listener of their own, connections there do not count against the limit of the broker: clients
must not keep the brokers from each other. Deliberate difference from Kafka: above the rate connections are
closed at once instead of being accepted later; clients try again after their backoff.
"""

from collections import Counter
from typing import cast

from tidelog.model.settings import BrokerSettings


class Rate:
    """So many in a second, with a second's worth saved up."""

    __slots__ = ("_filled_ms", "_left", "_per_second")

    def __init__(self, per_second: int, now_ms: int) -> None:
        self._per_second = per_second
        self._left = float(per_second)
        self._filled_ms = now_ms

    def take(self, now_ms: int) -> bool:
        """Take one, if there is one left."""
        elapsed_ms = max(0, now_ms - self._filled_ms)
        self._filled_ms = now_ms
        self._left = min(float(self._per_second), self._left + elapsed_ms * self._per_second / 1000)
        if self._left < 1:
            return False
        self._left -= 1
        return True


class ConnectionLimits:
    """Counts connections in and out."""

    def __init__(self, settings: BrokerSettings, now_ms: int) -> None:
        self._count = 0
        self._addresses: Counter[str] = Counter()
        self._listeners: Counter[str] = Counter()
        self.configure(settings, now_ms)

    def __repr__(self) -> str:
        return f"<ConnectionLimits {self._count} of {self._count_max}>"

    def configure(self, settings: BrokerSettings, now_ms: int) -> None:
        """Take over other limits; those who are connected stay."""
        self.settings = settings
        self._count_max = settings.get_int("max.connections")
        self._per_address_max = settings.get_int("max.connections.per.ip")
        self._address_overrides = _overrides(settings.get_list("max.connections.per.ip.overrides"))
        self._rate = Rate(settings.get_int("max.connection.creation.rate"), now_ms)
        names = [listener.name for listener in settings.listeners]
        self._brokers_own = settings.inter_broker_listener_name if len(names) > 1 else ""
        own = settings.listener_forms
        self._listener_max = {
            name: cast(int, settings.for_listener(name, "max.connections"))
            for name in names
            if f"listener.name.{name.lower()}.max.connections" in own
        }
        self._listener_rates = {
            name: Rate(cast(int, settings.for_listener(name, "max.connection.creation.rate")), now_ms)
            for name in names
            if f"listener.name.{name.lower()}.max.connection.creation.rate" in own
        }

    def enter(self, host: str, listener: str, now_ms: int) -> str | None:
        """Count a connection in; or say why it may not be."""
        if listener != self._brokers_own and self._count >= self._count_max:
            return f"more than {self._count_max} connections (max.connections)"
        listener_max = self._listener_max.get(listener)
        if listener_max is not None and self._listeners[listener] >= listener_max:
            return f"more than {listener_max} connections on listener {listener} (max.connections)"
        address_max = self._address_overrides.get(host, self._per_address_max)
        if self._addresses[host] >= address_max:
            return f"more than {address_max} connections from one address (max.connections.per.ip)"
        rate = self._listener_rates.get(listener)
        late = rate is not None and not rate.take(now_ms)
        if late or (listener != self._brokers_own and not self._rate.take(now_ms)):
            return "too many new connections in a second (max.connection.creation.rate)"
        self._addresses[host] += 1
        self._listeners[listener] += 1
        self._count += listener != self._brokers_own
        return None

    def leave(self, host: str, listener: str) -> None:
        """Count a connection out."""
        self._count -= listener != self._brokers_own
        self._listeners[listener] -= 1
        self._addresses[host] -= 1
        if not self._addresses[host]:
            del self._addresses[host]


def _overrides(entries: tuple[str, ...]) -> dict[str, int]:
    found = {}
    for entry in entries:
        address, _, count = entry.rpartition(":")
        if address and count.isdigit():
            found[address.strip("[]")] = int(count)
    return found
