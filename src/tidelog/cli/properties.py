"""Settings as people write them: `name=value` words on the command line and properties files."""

from pathlib import Path

import click

from tidelog.cli.errors import CommandError


def parse_assignments(pairs: tuple[str, ...], option: str) -> dict[str, str]:
    """Split `name=value` words; a word without '=' is a mistake on the command line."""
    values: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name.strip():
            raise click.BadParameter(f"{pair!r} is not of the form name=value", param_hint=option)
        values[name.strip()] = value.strip()
    return values


def read_properties(path: Path) -> dict[str, str]:
    """Read `name=value` (or `name: value`) lines; '#' begins a comment, a final '\\' joins lines."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as failure:
        raise CommandError(f"cannot read {path}: {failure.strerror}", "check the path") from failure
    except UnicodeDecodeError as failure:
        raise CommandError(f"{path} is not a UTF-8 text file", "give a properties file") from failure
    values: dict[str, str] = {}
    pending = ""
    for number, raw_line in enumerate(text.splitlines(), start=1):
        line = pending + raw_line.strip()
        pending = ""
        if not line or line[0] in "#!":
            continue
        if line.endswith("\\"):
            pending = line[:-1]
            continue
        at = min((line.index(mark) for mark in "=:" if mark in line), default=-1)
        if at <= 0:
            raise CommandError(f"{path}:{number}: {line!r} is not name=value", "write one setting per line")
        values[line[:at].strip()] = line[at + 1 :].strip()
    return values
