"""How the console makes clients of confluent-kafka, which read and write records for it.

Everything else is asked with the console's own client (`wire_client`).
"""

from collections.abc import Mapping
from typing import Any

CLIENT_ID = "tidelog-console"


class KafkaClient:
    """One cluster, reached with the properties of librdkafka."""

    def __init__(
        self, bootstrap: str, properties: Mapping[str, str] | None = None, timeout_seconds: float = 10.0
    ) -> None:
        self.bootstrap = bootstrap
        self.properties = dict(properties or {})
        self.timeout_seconds = timeout_seconds

    def __repr__(self) -> str:
        return f"<KafkaClient {self.bootstrap}>"

    def client_properties(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        """The properties for a librdkafka client of this cluster."""
        return {
            "client.id": CLIENT_ID,
            # Brokers come and go; the watcher tells of it once, librdkafka would for every connection.
            "log_level": 0,
            **extra,
            **self.properties,
            "bootstrap.servers": self.bootstrap,
            "error_cb": _ignore_error,
        }


def _ignore_error(error: Any) -> None:
    """librdkafka reports every lost connection here; calls have their own errors."""
