"""Schemas and references as people read and write them."""

import json
from collections.abc import Mapping
from typing import Any


def schema_text(answer: Mapping[str, Any]) -> str:
    """The schema of a registry's answer: JSON on lines of its own, Protobuf as it was written."""
    text = str(answer["schema"])
    if answer.get("schemaType") == "PROTOBUF":
        return text.rstrip()
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def reference_text(reference: Mapping[str, Any]) -> str:
    """`name=subject:version`."""
    return f"{reference['name']}={reference['subject']}:{reference['version']}"


def reference_of(text: str) -> dict[str, Any]:
    """The same read back; ValueError for another text."""
    name, _, place = text.partition("=")
    subject, _, version = place.rpartition(":")
    if not name or not subject or not version.isdigit():
        raise ValueError(f"{text[:80]!r} is not name=subject:version")
    return {"name": name, "subject": subject, "version": int(version)}
