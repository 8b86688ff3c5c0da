"""What pyproject.toml says about the license is in the form that build tools keep (PEP 639)."""

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
