"""An instance of the schema registry in a process of its own, which a test can kill.

with RegistryProcess(bootstrap) as registry:
    SchemaRegistryClient({"url": registry.url})
"""

from collections.abc import Mapping, Sequence

from tests.support.child_programs import environment
from tidelog.testing.serving_command import ServingCommand


class RegistryProcess(ServingCommand):
    """Runs from `start` to `close`; a restart keeps the port."""

    def __init__(
        self, bootstrap: str, client: Mapping[str, str] | None = None, options: Sequence[str] = ()
    ) -> None:
        super().__init__(("registry",), bootstrap, client=client, options=options, environment=environment())

    @property
    def url(self) -> str:
        """Where it is, as soon as it has listened for the first time."""
        scheme = next(iter(self.ports))
        return f"{scheme}://127.0.0.1:{self.port}"
