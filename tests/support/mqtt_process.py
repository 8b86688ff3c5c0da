"""An MQTT gateway in a process of its own, which a test can kill.

with MqttProcess(bootstrap) as gateway:
    client.connect("127.0.0.1", gateway.port)
"""

from collections.abc import Mapping, Sequence

from tests.support.child_programs import environment
from tidelog.testing.serving_command import ServingCommand


class MqttProcess(ServingCommand):
    """Runs from `start` to `close`; a restart keeps port and name."""

    def __init__(
        self,
        bootstrap: str,
        client: Mapping[str, str] | None = None,
        options: Sequence[str] = (),
        name: str = "one",
    ) -> None:
        self.name = name
        super().__init__(
            ("gateway", "mqtt"),
            bootstrap,
            client=client,
            options=("--name", name, *options),
            environment=environment(),
        )
