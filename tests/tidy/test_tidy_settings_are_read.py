"""A setting that nobody reads would lie: it must be read somewhere, or be marked as inert."""

from pathlib import Path

from tidelog.model.settings_table import BROKER_SETTINGS, TOPIC_SETTINGS

SOURCE = Path(__file__).parents[2] / "src" / "tidelog"


def test_every_broker_setting_is_read_or_inert() -> None:
    text = "".join(path.read_text() for path in SOURCE.rglob("*.py") if path.name != "settings_table.py")
    through_topics = {synonym.name for setting in TOPIC_SETTINGS.values() for synonym in setting.synonyms}
    unread = [
        name
        for name, setting in BROKER_SETTINGS.items()
        if not setting.inert and name not in through_topics and f'"{name}"' not in text
    ]
    assert unread == []
