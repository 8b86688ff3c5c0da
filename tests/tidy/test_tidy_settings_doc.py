"""docs/settings.md is what the table of settings says now."""

from pathlib import Path

import pytest

from tidelog.model.resource_settings import CLIENT_METRICS_SETTINGS, GROUP_SETTINGS
from tidelog.model.settings_doc import main, settings_page
from tidelog.model.settings_table import BROKER_SETTINGS, TOPIC_SETTINGS

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def test_the_page_is_not_stale() -> None:
    assert PAGE.read_text(encoding="utf-8") == settings_page(), (
        "run: python -m tidelog.model.settings_doc docs/settings.md"
    )


def test_every_setting_has_a_row() -> None:
    page = settings_page()
    for name in (*BROKER_SETTINGS, *TOPIC_SETTINGS, *GROUP_SETTINGS, *CLIENT_METRICS_SETTINGS):
        assert f"| `{name}` |" in page


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "settings.md"
    assert main([str(target)]) == 0
    assert target.read_text(encoding="utf-8") == settings_page()
    assert main([]) == 0
    assert capsys.readouterr().out == settings_page()
    assert main(["a", "b"]) == 2
