"""docs/share-groups.md draws the table of states as it is."""

from tests.support.child_programs import ROOT
from tidelog.shares.states import mermaid


def test_the_page_has_the_table_of_states() -> None:
    assert mermaid() in (ROOT / "docs" / "share-groups.md").read_text()
