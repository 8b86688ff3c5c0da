"""AlterClientQuotas (key 49), versions 0 and 1: set and unset the limits of users, client ids and addresses
(KIP-546, KIP-612).

Each entity is answered on its own. The name null stands for the default of its type. Limits count on this
broker when the answer comes, on the others within moments.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.config_answers import error_fields
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.controller.commands import AlterClientQuotas, QuotaChange, Result


@dataclass(frozen=True, slots=True)
class Handler:
    """Have the controller change them."""

    metadata: Metadata

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
        body = request.body
        changes = tuple(
            QuotaChange(
                tuple((part.entity_type, part.entity_name) for part in entry.entity),
                tuple((op.key, None if op.remove else float(op.value)) for op in entry.ops),
            )
            for entry in body.entries
        )
        if not changes:
            return {"entries": []}
        delayed = DelayedAnswer()

        def altered(results: tuple[Result, ...]) -> None:
            entries = [
                {
                    **error_fields(result),
                    "entity": [{"entity_type": kind, "entity_name": name} for kind, name in change.entity],
                }
                for change, result in zip(changes, results, strict=True)
            ]
            delayed.answer({"entries": entries})

        self.metadata.submit(AlterClientQuotas(changes, body.validate_only), altered)
        return delayed
