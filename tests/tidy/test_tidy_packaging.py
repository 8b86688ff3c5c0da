"""What pyproject.toml says is true: the license in the form that build tools keep (PEP 639), the system."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: the first setuptools that knows that form
SETUPTOOLS_MIN = 77


def test_the_license_is_an_spdx_expression() -> None:
    content = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = content["project"]
    assert project["license"] == "Apache-2.0"
    assert project["license-files"] == ["LICENSE"] and (ROOT / "LICENSE").is_file()
    assert not [line for line in project["classifiers"] if line.startswith("License ::")]
    [builder] = content["build-system"]["requires"]
    name, _, lowest = builder.partition(">=")
    assert name == "setuptools" and int(lowest.split(".")[0]) >= SETUPTOOLS_MIN


def test_the_system_is_the_one_whose_calls_are_made() -> None:
    """TCP_USER_TIMEOUT, MSG_MORE, fdatasync, fallocate and /proc are Linux's; nothing is tried elsewhere."""
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    systems = [line for line in classifiers if line.startswith("Operating System")]
    assert systems == ["Operating System :: POSIX :: Linux"]
    assert "You need Linux" in (ROOT / "README.md").read_text()
