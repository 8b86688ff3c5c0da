"""Links to the brokers of a cluster, asked one by one; what they would not answer is noted, not raised."""

from collections.abc import Mapping
from typing import Any

from tidelog.client.faults import ClientFault, known_code
from tidelog.client.link import Link
from tidelog.model.errors import ErrorCode


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
        try:
            answer = self.links[broker].request(api_key, fields, lowest=lowest, highest=highest)
        except ClientFault as fault:
            self.unseen[f"{what} of broker {broker}: {fault}"] = None
            return None
        return answer if self.allowed(getattr(answer, "error_code", ErrorCode.NONE), what) else None

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
