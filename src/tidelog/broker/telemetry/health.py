"""What a broker says of itself in a few words: whether clients should come, and what fails."""

from dataclasses import dataclass

from tidelog.broker.maintenance.dirty_logs import DirtyLogs
from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.replication.replication import Replication
from tidelog.broker.runtime.background_jobs import BackgroundJobs
from tidelog.broker.runtime.liveness import Liveness
from tidelog.storage.log_directories import LogDirectories


@dataclass(frozen=True, slots=True)
class Health:
    """Looks at one broker."""

    metadata: Metadata
    liveness: Liveness
    jobs: BackgroundJobs
    log_directories: LogDirectories
    dirty_logs: DirtyLogs
    replication: Replication

    def failing(self) -> list[str]:
        """What the broker does by itself and cannot at present; nothing of who or what is in its topics."""
        found = [job.name for job in self.jobs.failing()]
        offline = self.log_directories.offline
        if offline:
            found.append(f"log directories ({len(offline)} offline)")
        uncleanable = self.dirty_logs.uncleanable
        if uncleanable:
            found.append(f"compaction of {len(uncleanable)} partitions")
        return found

    def conditions(self) -> dict[str, bool]:
        """All are true where clients should come."""
        return {
            "registered": self.metadata.broker_epoch >= 0,
            "disks_answer": self.liveness.disk_answers,
            "logs_open": not self.replication.unopened_topics,
        }
