"""What holds for the records of a share group: its settings within the broker's bounds, or the broker's."""

from collections.abc import Mapping

from tidelog.model.resource_settings import group_value
from tidelog.model.settings import BrokerSettings
from tidelog.shares.settings import SharePartitionSettings


def share_partition_settings(settings: BrokerSettings, configs: Mapping[str, str]) -> SharePartitionSettings:
    """`configs` is what was set for the group."""

    def number(name: str) -> int:
        value = group_value(name, configs, settings)
        assert isinstance(value, int)
        return value

    return SharePartitionSettings(
        record_lock_duration_ms=number("share.record.lock.duration.ms"),
        delivery_count_limit=number("share.delivery.count.limit"),
        partition_max_record_locks=number("share.partition.max.record.locks"),
        renew_acknowledge_enable=bool(group_value("share.renew.acknowledge.enable", configs, settings)),
        read_committed=group_value("share.isolation.level", configs, settings) == "read_committed",
        retry_backoff_ms=number("tidelog.share.retry.backoff.ms"),
        retry_backoff_max_ms=number("tidelog.share.retry.backoff.max.ms"),
        dead_letter_topic=configs.get("errors.deadletterqueue.topic.name") or None,
        auto_offset_reset=str(group_value("share.auto.offset.reset", configs, settings)).lower(),
    )
