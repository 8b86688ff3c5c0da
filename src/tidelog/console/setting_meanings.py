"""What settings mean, from the tables of Tidelog's own settings, which follow Kafka's names."""

from tidelog.model.settings_table import BROKER_SETTINGS, TOPIC_SETTINGS


def topic_meaning(name: str) -> str:
    """A sentence on a topic's setting; empty for one that Tidelog does not have."""
    setting = TOPIC_SETTINGS.get(name)
    return "" if setting is None else setting.documentation


def broker_meaning(name: str) -> str:
    setting = BROKER_SETTINGS.get(name)
    return "" if setting is None else setting.documentation


def topic_choices(name: str) -> tuple[str, ...]:
    """The values that a topic's setting may have, where there are few."""
    setting = TOPIC_SETTINGS.get(name)
    return () if setting is None else tuple(str(choice) for choice in setting.choices)
