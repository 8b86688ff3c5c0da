"""The door to a cluster for those who ask it and change it: our own client behind a lock.

    with ClusterAdmin(settings, explained) as admin:
        admin.asked("the users cannot be read", lambda cluster: …)     # again where that may help

Ordinary requests of the Kafka protocol, so any cluster answers that knows them. One blocking client serves
everyone, a call at a time. `explained` says what its user makes of a fault: it is a context that begins with
what was being done and raises the command line's or the console's own error.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, TypeVar

from tidelog.client.client_settings import ClientSettings
from tidelog.client.cluster import Cluster
from tidelog.client.faults import LinkFault, Refusal

Result = TypeVar("Result")
Explained = Callable[[str], AbstractContextManager[None]]


def unexplained(doing: str) -> AbstractContextManager[None]:
    """Leaves faults as the client raises them."""
    return nullcontext()


class ClusterAdmin:
    """A cluster to ask and to change; connects at the first question."""

    def __init__(self, settings: Callable[[], ClientSettings], explained: Explained = unexplained) -> None:
        self._settings = settings
        self.explained = explained
        self._lock = threading.Lock()
        self._cluster: Cluster | None = None

    def __repr__(self) -> str:
        return f"<ClusterAdmin {self._cluster}>"

    def __enter__(self) -> "ClusterAdmin":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            if self._cluster is not None:
                self._cluster.close()

    def asked(self, what: str, operation: Callable[[Cluster], Result]) -> Result:
        """Run an operation on the cluster, again where that may help; trouble is explained."""
        with self._lock, self.explained(what):
            cluster = self._made()
            return cluster.persist(lambda: operation(cluster))

    def asked_once(self, what: str, operation: Callable[[Cluster], Result]) -> Result:
        """The same with one try, where the first answer is the one that people should hear."""
        with self.explained(what):
            return self.once(operation)

    def once(self, operation: Callable[[Cluster], Result]) -> Result:
        """One try, which raises what the client does: a look does not wait for a broker that is away."""
        with self._lock:
            cluster = self._made()
            try:
                return operation(cluster)
            except (LinkFault, Refusal):
                cluster.forget_places()
                raise

    def _made(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._settings())
        return self._cluster

    def request(
        self, what: str, api_key: int, fields: dict[str, Any], *, lowest: int = 0, highest: int
    ) -> Any:
        """Ask any broker; an answer that is an error as a whole is one here too."""

        def ask(cluster: Cluster) -> Any:
            answer = cluster.any_link().request(api_key, fields, lowest=lowest, highest=highest)
            check(answer, what)
            return answer

        return self.asked(what, ask)

    def probe(self) -> None:
        """Have trouble explained unless some broker can be spoken to."""
        self.asked("no broker can be reached", lambda cluster: cluster.any_link().address)


def check(answer: Any, what: str) -> None:
    """Raise the error that an answer, or a row of one, is."""
    if getattr(answer, "error_code", 0):
        raise Refusal(answer.error_code, what, getattr(answer, "error_message", None))
