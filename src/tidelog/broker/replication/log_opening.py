"""Opens the logs of replicas here, as their topics' settings and those of the broker ask for it."""

import logging

from tidelog.broker.maintenance.removals import Removals
from tidelog.broker.replicas.partition import Partition
from tidelog.broker.replication.disk_faults import DiskFaults
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.liveness import Liveness
from tidelog.model.identifiers import TopicPartition
from tidelog.model.image import TopicImage
from tidelog.model.log_config import LogConfig
from tidelog.model.ports import Clock
from tidelog.storage.log_directories import LogDirectories
from tidelog.storage.partition_log import PartitionLog

log = logging.getLogger(__name__)


class LogOpening:
    """Opens the logs of one broker."""

    def __init__(
        self,
        log_directories: LogDirectories,
        removals: Removals,
        disk_faults: DiskFaults,
        settings: LiveSettings,
        clock: Clock,
        liveness: Liveness,
    ) -> None:
        self._log_directories = log_directories
        self._removals = removals
        self._disk_faults = disk_faults
        self._settings = settings
        self._clock = clock
        self._liveness = liveness
        settings.listen(self._adopt_settings)
        self._adopt_settings()

    def __repr__(self) -> str:
        return f"<LogOpening in {self._log_directories!r}>"

    def _adopt_settings(self) -> None:
        expiration = self._log_directories.producer_expiration
        expiration.idle_ms = self._settings.get_int("producer.id.expiration.ms")

    def config_of(self, topic: TopicImage) -> LogConfig:
        """What the logs of a topic obey now."""
        return self._settings.log_config(topic.configs)

    def open(self, topic: TopicImage, index: int, config: LogConfig, directory_id: str) -> Partition | None:
        """The replica of a partition, which follows nobody yet; None if its log cannot be opened now.

        A log that does not exist yet begins in the directory of this id, if it is one of them.
        """
        place = TopicPartition(topic.name, index)
        try:
            partition_log = self._open_log(place, topic, config, directory_id)
        except OSError as fault:
            log.error("the log of %s could not be opened: %s", place, fault)
            self._disk_faults.noticed(fault)
            return None
        finally:
            # Thousands of new logs take their time, but they come about.
            self._liveness.moved()
        return Partition(
            topic.name,
            topic.topic_id,
            index,
            partition_log,
            topic.partitions[index].leader_epoch,
            high_watermark=self._log_directories.high_watermark(place),
            walk_always=self._settings.get_str("tidelog.validate.records") == "always",
            decompressed_bytes_max=self._settings.get_int("tidelog.decompressed.bytes.max"),
            monotonic_ms=self._clock.monotonic_ms,
            on_fault=self._disk_faults.noticed,
        )

    def _open_log(
        self, place: TopicPartition, topic: TopicImage, config: LogConfig, directory_id: str
    ) -> PartitionLog:
        for _ in range(2):
            partition_log = self._log_directories.open_log(
                place,
                config,
                now_ms=self._clock.now_ms(),
                topic_id=topic.topic_id,
                directory_id=directory_id,
            )
            if partition_log.topic_id in (None, topic.topic_id):
                break
            # Left by a deleted topic of the same name.
            self._removals.discard_log(place, config.file_delete_delay_ms)
        return partition_log
