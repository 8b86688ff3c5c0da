"""AlterClientQuotas (key 49), versions 0 and 1: set and unset the limits of users, client ids and addresses
(KIP-546, KIP-612).

Each entity is answered on its own. The name null stands for the default of its type. Limits count on this
broker when the answer comes, on the others within moments.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.broker.config_answers import error_fields
from tidelog.broker.parking import Parked
from tidelog.controller.commands import AlterClientQuotas, QuotaChange, Result

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Request


def handle(broker: "Broker", request: "Request") -> Mapping[str, object] | Parked:
    """Have the controller change them."""
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
    parked = Parked()

    def altered(results: tuple[Result, ...]) -> None:
        entries = [
            {
                **error_fields(result),
                "entity": [{"entity_type": kind, "entity_name": name} for kind, name in change.entity],
            }
            for change, result in zip(changes, results, strict=True)
        ]
        parked.answer({"entries": entries})

    broker.metadata.submit(AlterClientQuotas(changes, body.validate_only), altered)
    return parked
