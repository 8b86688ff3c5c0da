"""Links to the brokers of a cluster, asked one by one; what they would not answer is noted, not raised."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from tidelog.admin.cluster_admin import check
from tidelog.client.faults import ClientFault, Refusal, known_code
from tidelog.client.link import Link
from tidelog.model.errors import ErrorCode

Result = TypeVar("Result")


class BrokerLinks:
    """The brokers that answer, by their ids, and `unseen`: what could not be asked of them, and why."""

    def __init__(self, links: Mapping[int, Link]) -> None:
        self.links = dict(links)
        #: in the order of asking, each once
        self.unseen: dict[str, None] = {}

    def __repr__(self) -> str:
        return f"<BrokerLinks {sorted(self.links)} unseen={len(self.unseen)}>"

    def ask(
        self, broker: int, api_key: int, fields: dict[str, Any], what: str, *, lowest: int = 0, highest: int
    ) -> Any:
        """The answer, or None with `what` among the things unseen."""

        def request(link: Link) -> Any:
            answer = link.request(api_key, fields, lowest=lowest, highest=highest)
            check(answer, what)
            return answer

        return self.attempt(broker, what, request)

    def attempt(self, broker: int, what: str, question: Callable[[Link], Result]) -> Result | None:
        """What a question to a broker finds out, or None with `what` among the things unseen."""
        try:
            return question(self.links[broker])
        except Refusal as refusal:
            self.refused(refusal, what)
        except ClientFault as fault:
            self.unseen[f"{what} of broker {broker}: {fault}"] = None
        return None

    def refused(self, refusal: Refusal, what: str | None = None) -> None:
        """Note what a broker would not tell."""
        self.unseen[f"{what or refusal.what}: {refusal.code.name}"] = None

    def allowed(self, error_code: int, what: str) -> bool:
        """False, with a note, for an error."""
        code = known_code(error_code)
        if code is not ErrorCode.NONE:
            self.unseen[f"{what}: {code.name}"] = None
        return code is ErrorCode.NONE

    def offers(self, broker: int, api_key: int, version: int = 0) -> bool:
        """True if the broker has this version of an API, or a later one."""
        offered = self.links[broker].offers(api_key)
        return offered is not None and offered[1] >= version

    def close(self) -> None:
        for link in self.links.values():
            link.close()
