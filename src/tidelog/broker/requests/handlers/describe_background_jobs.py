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
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from tidelog.broker.maintenance.dirty_logs import DirtyLogs
from tidelog.broker.replication.followed_logs import FollowedLogs
from tidelog.broker.requests.connection_context import ConnectionContext
from tidelog.broker.runtime.background_jobs import BackgroundJobs
from tidelog.model.acls import CLUSTER_NAME, AclOperation, ResourceType
from tidelog.model.errors import ErrorCode
from tidelog.storage.log_directories import LogDirectories

if TYPE_CHECKING:
    from tidelog.broker.requests.authorization import Authorization

UNCLEANABLE_SHOWN_MAX = 100
CUTS_SHOWN_MAX = 100
REASON_CHARACTERS_MAX = 300


@dataclass(frozen=True, slots=True)
class Handler:
    """The encoded body of the answer."""

    authorization: "Authorization | None"
    jobs: BackgroundJobs
    dirty_logs: DirtyLogs
    log_directories: LogDirectories
    followed_logs: FollowedLogs

    def handle(self, context: ConnectionContext) -> bytes:
        authorization = self.authorization
        if authorization is not None and not authorization.allows(
            context, AclOperation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME
        ):
            return _encoded({"error_code": int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)})
        jobs, uncleanable = self.jobs, self.dirty_logs.uncleanable
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
                    {"path": offline.path, "reason": offline.reason}
                    for offline in self.log_directories.offline
                ],
                "refused_cuts": [
                    {
                        "partition": str(place),
                        "leader": cut.leader_id,
                        "offset": cut.offset,
                        "high_watermark": cut.high_watermark,
                    }
                    for place, cut in islice(self.followed_logs.refused_cuts.items(), CUTS_SHOWN_MAX)
                ],
                "refused_cuts_count": len(self.followed_logs.refused_cuts),
            }
        )


def _encoded(answer: dict[str, object]) -> bytes:
    return json.dumps(answer, separators=(",", ":")).encode()
