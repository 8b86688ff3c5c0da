"""A setting that nobody reads would lie: it must be read somewhere, or be marked as inert; in every table.

That a change of a dynamic one takes effect is in `tests/unit/broker/test_broker_dynamic_settings.py`.
"""

import re
from pathlib import Path

from tidelog.model import resource_settings
from tidelog.model.log_config import LogConfig
from tidelog.model.resource_settings import CLIENT_METRICS_SETTINGS, GROUP_SETTINGS
from tidelog.model.setting_rows import Setting
from tidelog.model.settings_table import BROKER_SETTINGS, TOPIC_SETTINGS

SOURCE = Path(__file__).parents[2] / "src" / "tidelog"
#: the packages that a broker is made of; others may name a setting of it without reading it
PACKAGES = (
    *("model", "storage", "coordination", "security", "controller", "replication"),
    *("records", "groups", "shares", "transactions", "broker", "server"),
)
#: the tables themselves
TABLES = {
    *("settings_table.py", "access_settings.py", "coordination_settings.py", "metrics_settings.py"),
    *("noted_settings.py", "refused_settings.py", "replication_settings.py", "resource_settings.py"),
    *("security_settings.py", "share_settings.py", "delivery_settings.py"),
}
TEXT = "".join(
    path.read_text()
    for package in PACKAGES
    for path in sorted((SOURCE / package).rglob("*.py"))
    if path.name not in TABLES
)


def names(settings: dict[str, Setting], *, inert: bool) -> list[str]:
    return [name for name, setting in settings.items() if setting.inert is inert]


def is_read(setting: Setting) -> bool:
    # What can have one value only needs no reader.
    written = {setting.name, setting.name.removeprefix("sasl.oauthbearer.")}
    return len(setting.choices) == 1 or any(f'"{name}"' in TEXT for name in written)


def test_every_table_is_known() -> None:
    """One that is not would count as the reader of its own rows."""
    rows = re.compile(r"\b(broker|topic|noted|refused)_setting\b")
    makers = {path.name for path in (SOURCE / "model").glob("*.py") if rows.search(path.read_text())}
    assert makers - {"setting_rows.py"} == TABLES


def test_every_broker_setting_is_read_or_inert() -> None:
    through_topics = {synonym.name for setting in TOPIC_SETTINGS.values() for synonym in setting.synonyms}
    # `group_value` reads what a group without a value of its own goes by, and the bounds of its values.
    served = [GROUP_SETTINGS[name] for name in names(GROUP_SETTINGS, inert=False)]
    through_groups = {synonym.name for setting in served for synonym in setting.synonyms}
    for setting in served:
        through_groups.update(resource_settings.BOUNDED.get(setting.name, ()))
    unread = [
        name
        for name in names(BROKER_SETTINGS, inert=False)
        if name not in through_topics | through_groups and not is_read(BROKER_SETTINGS[name])
    ]
    assert unread == []


def test_no_setting_without_effect_is_read() -> None:
    read = [name for name in names(BROKER_SETTINGS, inert=True) if re.search(rf'get\w*\(\s*"{name}"', TEXT)]
    assert read == []


def test_every_topic_setting_is_a_field_of_the_log_that_is_read_or_inert() -> None:
    fields = {name: name.replace(".", "_") for name in TOPIC_SETTINGS}
    for name in names(TOPIC_SETTINGS, inert=False):
        assert fields[name] in LogConfig.__dataclass_fields__, name
        assert re.search(rf"\bconfig\.{fields[name]}\b|\"{name}\"", TEXT) or name == "cleanup.policy", name
    for name in names(TOPIC_SETTINGS, inert=True):
        assert fields[name] not in LogConfig.__dataclass_fields__, name
    # The policy is asked for by what follows from it.
    assert "config.compacted" in TEXT and "config.deletes" in TEXT


def test_every_group_setting_is_read_or_inert() -> None:
    constants = {value: name for name, value in vars(resource_settings).items() if isinstance(value, str)}
    for name in names(GROUP_SETTINGS, inert=False):
        written = rf"\b{constants[name]}\b" if name in constants else rf'"{name}"'
        assert re.search(written, TEXT), name
    assert names(CLIENT_METRICS_SETTINGS, inert=False) == []
