"""Whether a pinned dependency (constraints.txt) is known to be vulnerable: `make audit`.

    python .ci/audit.py                          asks PyPI through pip-audit, in an environment of its own
    python .ci/audit.py --advisories FOLDER      reads a clone of github.com/pypa/advisory-database, offline

Exit code 0: every dependency was looked up and none is known to be vulnerable. 1: some are. 2: some could not
be looked up (no network, an index without advisories), so nothing can be said; it never looks like a success.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints.txt"
TOOL = "pip-audit==2.10.1"
NOTHING, VULNERABLE, UNKNOWN = 0, 1, 2
SECONDS_MAX = 600


def pinned() -> dict[str, str]:
    """The names, normalized, and versions of all dependencies."""
    from packaging.utils import canonicalize_name

    lines = [line.partition("#")[0].strip() for line in CONSTRAINTS.read_text().splitlines()]
    pairs = (line.split("==", 1) for line in lines if line)
    return {canonicalize_name(name): version.partition(";")[0].strip() for name, version in pairs}


# -- online


def tool(folder: Path) -> Path:
    """pip-audit, installed once into an environment that nothing else uses."""
    program = folder / "bin" / "pip-audit"
    stamp = folder / TOOL
    if not stamp.exists():
        venv.create(folder, with_pip=True, clear=True)
        command = [str(folder / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", TOOL]
        subprocess.run(command, check=True, timeout=SECONDS_MAX)
        stamp.touch()
    return program


def audit_online() -> int:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        try:
            command = [str(tool(ROOT / ".venv-audit")), "--requirement", str(CONSTRAINTS), "--no-deps"]
            command += ["--disable-pip", "--format", "json", "--output", str(report)]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False, cwd=ROOT
            )
        except (OSError, subprocess.SubprocessError) as fault:
            print(f"NOT AUDITED: {TOOL} could not be installed or run: {fault}")
            return UNKNOWN
        if not report.exists():
            print(f"NOT AUDITED: {TOOL} came to nothing: {done.stderr.strip().splitlines()[-1:]}")
            return UNKNOWN
        rows: list[dict[str, Any]] = json.loads(report.read_text())["dependencies"]
    skipped = [row["name"] for row in rows if "skip_reason" in row]
    found = [
        (row["name"], row["version"], fault["id"], ", ".join(fault["fix_versions"]) or "nowhere yet")
        for row in rows
        for fault in row.get("vulns", ())
    ]
    return _told(found, skipped, len(rows), f"PyPI, by {TOOL}")


# -- offline


def advisories(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    from ruamel.yaml import YAML

    for path in sorted((folder / "vulns" / name).glob("*.yaml")):
        fields: dict[str, Any] = YAML(typ="safe", pure=True).load(path.read_text())
        if not fields.get("withdrawn"):
            yield fields


def affects(advisory: dict[str, Any], name: str, version: str) -> tuple[bool, str]:
    """Whether an advisory is about this version, and where it was fixed."""
    from packaging.utils import canonicalize_name
    from packaging.version import Version

    wanted = Version(version)
    hit, fixed_in = False, "nowhere yet"
    for affected in advisory.get("affected", ()):
        if canonicalize_name(affected["package"]["name"]) != name:
            continue
        hit = hit or version in affected.get("versions", ())
        for span in affected.get("ranges", ()):
            if span["type"] != "ECOSYSTEM":
                continue
            inside = False
            for event in span["events"]:
                if "introduced" in event and wanted >= Version(event["introduced"]):
                    inside = True
                if "fixed" in event:
                    fixed_in = event["fixed"]
                    inside = inside and wanted < Version(fixed_in)
                if "last_affected" in event:
                    inside = inside and wanted <= Version(event["last_affected"])
            hit = hit or inside
    return hit, fixed_in


def audit_offline(folder: Path) -> int:
    if not (folder / "vulns").is_dir():
        print(f"NOT AUDITED: {folder} is no clone of github.com/pypa/advisory-database")
        return UNKNOWN
    date = subprocess.run(
        ["git", "-C", str(folder), "log", "-1", "--format=%cs"], capture_output=True, text=True, check=False
    )
    found = []
    read = 0
    dependencies = pinned()
    for name, version in dependencies.items():
        for advisory in advisories(folder, name):
            read += 1
            hit, fixed_in = affects(advisory, name, version)
            if hit:
                found.append((name, version, str(advisory["id"]), fixed_in))
    source = f"{read} advisories of {folder}, of {date.stdout.strip() or 'unknown date'}"
    return _told(found, [], len(dependencies), source)


def _told(found: list[tuple[str, str, str, str]], skipped: list[str], count: int, source: str) -> int:
    for name, version, identifier, fixed_in in found:
        print(f"VULNERABLE: {name} {version}: {identifier}, fixed in {fixed_in}")
    if skipped:
        print(
            f"NOT AUDITED: {len(skipped)} of {count}, the index has no advisories for them: {skipped[:5]} …"
        )
    print(
        f"{count - len(skipped)} of {count} dependencies looked up ({source}), {len(found)} vulnerabilities"
    )
    return VULNERABLE if found else UNKNOWN if skipped else NOTHING


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--advisories", type=Path, help="a clone of github.com/pypa/advisory-database")
    options = parser.parse_args()
    return audit_online() if options.advisories is None else audit_offline(options.advisories)


if __name__ == "__main__":
    sys.exit(main())
