"""The audit of dependencies finds what it should, and says so when it could not look."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ADVISORY = """
id: PYSEC-2021-66
affected:
- package: {name: Jinja2, ecosystem: PyPI}
  ranges:
  - type: ECOSYSTEM
    events: [{introduced: '2.0'}, {fixed: 2.11.3}, {introduced: 3.0.0}, {fixed: 3.0.2}]
  versions: [2.11.2]
"""


@pytest.fixture
def audit() -> ModuleType:
    path = Path(__file__).parents[2] / ".ci" / "audit.py"
    spec = importlib.util.spec_from_file_location("tidelog_audit", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "vulns" / "jinja2").mkdir(parents=True)
    (tmp_path / "vulns" / "jinja2" / "PYSEC-2021-66.yaml").write_text(ADVISORY)
    (tmp_path / "vulns" / "jinja2" / "PYSEC-withdrawn.yaml").write_text(ADVISORY + "withdrawn: 2022-01-01\n")
    return tmp_path


@pytest.mark.parametrize(
    ("version", "code"), [("2.10", 1), ("2.11.2", 1), ("2.11.3", 0), ("1.9", 0), ("3.0.1", 1), ("3.1.6", 0)]
)
def test_a_vulnerable_version_is_found(
    audit: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch, version: str, code: int
) -> None:
    path = folder / "constraints.txt"
    path.write_text(f"Jinja2=={version}\nclick==8.1.0  # the command line\n")
    monkeypatch.setattr(audit, "CONSTRAINTS", path)
    assert audit.audit_offline(folder) == code


def test_what_could_not_be_looked_up_is_no_success(
    audit: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit.audit_offline(tmp_path) == audit.UNKNOWN
    assert audit._told([], ["click"], 2, "here") == audit.UNKNOWN
    assert audit._told([("a", "1", "X-1", "2")], ["click"], 2, "here") == audit.VULNERABLE
    assert "NOT AUDITED" in capsys.readouterr().out


def test_every_dependency_is_pinned(audit: ModuleType) -> None:
    assert audit.pinned()["cryptography"] and all(audit.pinned().values())
