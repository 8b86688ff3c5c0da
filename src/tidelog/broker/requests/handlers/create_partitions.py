"""CreatePartitions (key 37), versions 0 to 3: a topic grows to a new total of partitions.

A total that is not larger than the present one is refused with INVALID_PARTITIONS. A topic named twice in a
request is refused once.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.requests.config_answers import error_fields
from tidelog.broker.requests.request import Request
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.controller.commands import CreatePartitions, PartitionsSpec, Result


@dataclass(frozen=True, slots=True)
class Handler:
    """Have the controller add the partitions and answer when they are durable."""

    metadata: Metadata

    def handle(self, request: Request) -> Mapping[str, object] | DelayedAnswer:
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
        delayed = DelayedAnswer()

        def created(results: tuple[Result, ...]) -> None:
            by_name = {spec.name: result for spec, result in zip(specs, results, strict=True)}
            delayed.answer(
                {"results": [{"name": name, **error_fields(result)} for name, result in by_name.items()]}
            )

        self.metadata.submit(CreatePartitions(specs, request.body.validate_only), created)
        return delayed
