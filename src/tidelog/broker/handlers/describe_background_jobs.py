"""DescribeBackgroundJobs (key 10001), version 0: how the jobs that a broker does by itself fare, and what it
refuses to do.

Kafka tells this through JMX alone, where no client sees it; `tidelog doctor` asks over the connection that it
has. Never advertised, no tagged fields, an empty body; the answer is JSON:

    {"jobs": [{"name": "retention", "failed_in_a_row": 2, "seconds_since_last_run": 7.5, "fault": "..."}],
     "uncleanable": [{"partition": "orders-3", "failures": 4, "reason": "..."}], "uncleanable_count": 1,
     "unexpected_errors": 0,
     "offline_directories": [{"path": "/data/y", "reason": "..."}],
     "refused_cuts": [{"partition": "orders-3", "leader": 1, "offset": 0, "high_watermark": 10}],
     "refused_cuts_count": 1}
    {"error_code": 31}        who asks may not Describe the cluster
"""

import json
from itertools import islice
from typing import TYPE_CHECKING

from tidelog.model.acls import CLUSTER_NAME, AclOperation, ResourceType
from tidelog.model.errors import ErrorCode

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.dispatch import ConnectionContext

UNCLEANABLE_SHOWN_MAX = 100
CUTS_SHOWN_MAX = 100
REASON_CHARACTERS_MAX = 300


def handle(broker: "Broker", context: "ConnectionContext") -> bytes:
    """The encoded body of the answer."""
    authorization = broker.authorization
    if authorization is not None and not authorization.allows(
        context, AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME
    ):
        return _encoded({"error_code": int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)})
    jobs, uncleanable = broker.jobs, broker.housekeeping.uncleanable
    return _encoded(
        {
            "jobs": [
                {
                    "name": job.name,
                    "failed_in_a_row": job.failed_in_a_row,
                    "seconds_since_last_run": jobs.seconds_since_last_run(job),
                    "fault": job.fault,
                }
                for job in jobs
            ],
            "uncleanable": [
                {
                    "partition": f"{partition.topic}-{partition.index}",
                    "failures": found.failures,
                    "reason": found.reason[:REASON_CHARACTERS_MAX],
                }
                for partition, found in islice(uncleanable.items(), UNCLEANABLE_SHOWN_MAX)
            ],
            "uncleanable_count": len(uncleanable),
            "unexpected_errors": jobs.unexpected_count,
            "offline_directories": [
                {"path": offline.path, "reason": offline.reason} for offline in broker.log_directories.offline
            ],
            "refused_cuts": [
                {
                    "partition": str(place),
                    "leader": cut.leader_id,
                    "offset": cut.offset,
                    "high_watermark": cut.high_watermark,
                }
                for place, cut in islice(broker.replication.refused_cuts.items(), CUTS_SHOWN_MAX)
            ],
            "refused_cuts_count": len(broker.replication.refused_cuts),
        }
    )


def _encoded(answer: dict[str, object]) -> bytes:
    return json.dumps(answer, separators=(",", ":")).encode()
