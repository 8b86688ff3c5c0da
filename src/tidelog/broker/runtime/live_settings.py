"""The settings of a broker as they are now: they change while it runs (`update_mode`).

Parts keep this, and read a setting where they use it. What a part takes over at its start never changes.
"""

from collections.abc import Callable, Mapping

from tidelog.model.log_config import LogConfig
from tidelog.model.setting_rows import SettingValue
from tidelog.model.settings import BrokerSettings


class LiveSettings:
    """Reads the newest settings of the broker."""

    __slots__ = ("_listeners", "current", "fetch_bytes_max", "static")

    def __init__(self, static: BrokerSettings) -> None:
        #: what the broker was started with
        self.static = static
        #: that, with the dynamic settings of the cluster and of this broker
        self.current = static
        #: at hand for every Fetch request
        self.fetch_bytes_max = static.get_int("fetch.max.bytes")
        self._listeners: list[Callable[[], None]] = []

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every change."""
        self._listeners.append(listener)

    def adopt(self, cluster: Mapping[str, str], own: Mapping[str, str]) -> None:
        """Take over the dynamic settings that the newest image has."""
        self.current = self.static.with_dynamic(cluster, own)
        for listener in self._listeners:
            listener()

    @property
    def rack(self) -> str | None:
        return self.current.rack

    def get(self, name: str) -> SettingValue:
        return self.current.get(name)

    def get_int(self, name: str) -> int:
        return self.current.get_int(name)

    def get_bool(self, name: str) -> bool:
        return self.current.get_bool(name)

    def get_str(self, name: str) -> str:
        return self.current.get_str(name)

    def get_list(self, name: str) -> tuple[str, ...]:
        return self.current.get_list(name)

    def log_config(self, topic_configs: Mapping[str, str] | None = None) -> LogConfig:
        """The settings of a log whose topic has these of its own."""
        return self.current.log_config(topic_configs)

    def __repr__(self) -> str:
        return f"<LiveSettings {self.current!r}>"
