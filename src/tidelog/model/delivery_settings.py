"""The settings of topics whose records say when they are to be delivered: rows of the one table (see
settings_table).
"""

from collections.abc import Mapping

from tidelog.model.identifiers import INTERNAL_TOPICS, topic_name_fault
from tidelog.model.setting_rows import DAY_MS, INT64_MAX, SettingType, SettingValue
from tidelog.model.setting_rows import topic_setting as _topic

_BOOLEAN, _STRING, _LONG = SettingType.BOOLEAN, SettingType.STRING, SettingType.LONG

DELIVERY_SETTINGS = (
    _topic(
        "tidelog.delay.max.ms", _LONG, 365 * DAY_MS,
        "How far ahead a record of a topic with tidelog.delay.target may be due; later ones are refused.",
        minimum=0, maximum=INT64_MAX,
    ),
    _topic(
        "tidelog.delay.ms", _LONG, 0,
        "How long after its timestamp a record is due that does not say when; see tidelog.delay.target.",
        minimum=0, maximum=INT64_MAX,
    ),
    _topic(
        "tidelog.delay.target", _STRING, "",
        "The topic that gets each record of this one when it is due; where it is empty, nothing is delayed.",
    ),
    _topic(
        "tidelog.priority.ageing.ms", _LONG, 10_000,
        "After how long a record of a topic with tidelog.priority.enable counts as one priority higher.",
        minimum=1, maximum=INT64_MAX,
    ),
    _topic(
        "tidelog.priority.enable", _BOOLEAN, False,
        "Whether share groups get records of a higher priority first (header tidelog-priority, 0 to 9).",
    ),
    _topic(
        "tidelog.ttl.enable", _BOOLEAN, False,
        "Whether records expire (header tidelog-ttl-ms): no share group gets them, the cleaner takes them.",
    ),
    _topic(
        "tidelog.ttl.ms", _LONG, -1,
        "How long after its timestamp a record expires that does not say when; -1 is never.",
        minimum=-1, maximum=INT64_MAX,
    ),
)  # fmt: skip


def delivery_config_faults(topic: str | None, values: Mapping[str, SettingValue]) -> list[str]:
    """What is wrong with the settings of a topic (None while it has no name) beside each of them."""
    target = values.get("tidelog.delay.target", "")
    if not target:
        return []
    assert isinstance(target, str)
    faults: list[str] = []
    name_fault = topic_name_fault(target)
    if name_fault is not None:
        faults.append(f"tidelog.delay.target: {name_fault}")
    elif target == topic:
        faults.append("tidelog.delay.target must be another topic")
    elif target in INTERNAL_TOPICS:
        faults.append(f"tidelog.delay.target must not be the internal topic {target}")
    cleanup = values.get("cleanup.policy", ())
    if isinstance(cleanup, tuple) and "compact" in cleanup:
        faults.append("a topic with tidelog.delay.target cannot be compacted: records that wait would go")
    return faults + _delay_faults(values)


def _delay_faults(values: Mapping[str, SettingValue]) -> list[str]:
    defaults = {setting.name: setting.default for setting in DELIVERY_SETTINGS}
    delay_ms = values.get("tidelog.delay.ms", defaults["tidelog.delay.ms"])
    max_ms = values.get("tidelog.delay.max.ms", defaults["tidelog.delay.max.ms"])
    assert isinstance(delay_ms, int) and isinstance(max_ms, int)
    if delay_ms > max_ms:
        return [f"tidelog.delay.ms ({delay_ms}) must not exceed tidelog.delay.max.ms ({max_ms})"]
    return []
