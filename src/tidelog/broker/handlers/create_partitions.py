"""CreatePartitions (key 37), versions 0 to 3: a topic grows to a new total of partitions.

A total that is not larger than the present one is refused with INVALID_PARTITIONS. A topic named twice in a
request is refused once.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.broker.config_answers import error_fields
from tidelog.broker.parking import Parked
from tidelog.controller.commands import CreatePartitions, PartitionsSpec, Result

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import Request


def handle(broker: "Broker", request: "Request") -> Mapping[str, object] | Parked:
    """Have the controller add the partitions and answer when they are durable."""
    specs = tuple(
        PartitionsSpec(
            topic.name,
            topic.count,
            None
            if topic.assignments is None
            else tuple(tuple(item.broker_ids) for item in topic.assignments),
        )
        for topic in request.body.topics
    )
    parked = Parked()

    def created(results: tuple[Result, ...]) -> None:
        by_name = {spec.name: result for spec, result in zip(specs, results, strict=True)}
        parked.answer(
            {"results": [{"name": name, **error_fields(result)} for name, result in by_name.items()]}
        )

    broker.metadata.submit(CreatePartitions(specs, request.body.validate_only), created)
    return parked
