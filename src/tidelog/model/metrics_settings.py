"""The settings of metrics: rows of the one table (see settings_table)."""

from tidelog.model.setting_rows import Importance, SettingType
from tidelog.model.setting_rows import broker_setting as _broker

_INT, _STRING = SettingType.INT, SettingType.STRING
_MEDIUM, _LOW = Importance.MEDIUM, Importance.LOW

METRICS_SETTINGS = (
    _broker(
        "tidelog.metrics.port", _INT, None, _MEDIUM,
        "Serve /metrics, /healthz, /readyz and /events over HTTP on this port; 0 picks a free one, and "
        "nothing is served when not set.", minimum=0, maximum=65_535,
    ),
    _broker(
        "tidelog.metrics.host", _STRING, "127.0.0.1", _MEDIUM,
        "The address that tidelog.metrics.port listens on. Beyond the loopback set "
        "tidelog.metrics.credentials.file, and let only the network of the monitoring reach it.",
    ),
    _broker(
        "tidelog.metrics.credentials.file", _STRING, None, _MEDIUM,
        "A file with a line user:password (basic authentication) or a token alone (bearer) for each who may "
        "read /metrics and /events; everybody may when not set. It is read again when it changes.",
    ),
    _broker(
        "tidelog.metrics.topics.max", _INT, 1_000, _LOW,
        "How many topics have metrics of their own; tidelog_topics_left_out counts the others.", minimum=0,
    ),
    _broker(
        "tidelog.metrics.groups.max", _INT, 1_000, _LOW,
        "How many groups have metrics of their own, those with most lag first.", minimum=0,
    ),
    _broker(
        "tidelog.metrics.group.partitions.max", _INT, 10_000, _LOW,
        "How many partitions of groups have their lag told, those of the groups with most lag first.",
        minimum=0,
    ),
)  # fmt: skip
