"""docs/acls.md shows the table of rules as it is.

To write it anew: `python -m tests.unit.security.test_security_rules_doc`.
"""

import re
from pathlib import Path

from tests.support.authorization_rules import RULES

PAGE = Path(__file__).parents[3] / "docs" / "acls.md"
_PART = re.compile(r"(<!-- rules: begin [^>]*-->\n)(.*?)(<!-- rules: end -->)", re.DOTALL)


def rules_table() -> str:
    lines = ["", "| API | needs |", "|---|---|"]
    for name, needs in RULES.items():
        words = [
            f"{need.operation.name} on {need.resource_type.name.lower().replace('_', ' ')}"
            + (f" ({need.when})" if need.when else "")
            for need in needs
        ]
        lines.append(f"| {name} | {'; '.join(words) or 'nothing'} |")
    return "\n".join([*lines, "", ""])


def test_the_page_shows_the_table() -> None:
    found = _PART.search(PAGE.read_text(encoding="utf-8"))
    assert found is not None and found[2] == rules_table(), f"run: python -m {__name__}"


if __name__ == "__main__":
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(_PART.sub(lambda found: found[1] + rules_table() + found[3], page), encoding="utf-8")
