"""A strict reader of Prometheus' text format, written apart from the writer that it checks."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (-?(?:[0-9.eE+-]+|\+Inf|NaN))$")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')


@dataclass
class ReadFamily:
    kind: str
    help: str
    samples: dict[tuple[str, frozenset[tuple[str, str]]], float] = field(default_factory=dict)


def read(text: str) -> dict[str, ReadFamily]:
    """All families; asserts everything the format demands."""
    assert text.endswith("\n")
    families: dict[str, ReadFamily] = {}
    current = ""
    helps: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            name, _, words = line[7:].partition(" ")
            assert name not in helps, f"{name} has two HELP lines"
            helps[name] = words
        elif line.startswith("# TYPE "):
            current, kind = line[7:].split(" ")
            assert current not in families, f"{current} is written in two pieces"
            families[current] = ReadFamily(kind, helps[current])
        else:
            found = _SAMPLE.match(line)
            assert found is not None, f"not a sample: {line!r}"
            name, labels_text, value = found[1], found[2] or "", found[3]
            family = families[current]
            suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
            assert name in [current + suffix for suffix in suffixes], f"{name} stands under {current}"
            labels = frozenset((m[1], _unescaped(m[2])) for m in _LABEL.finditer(labels_text))
            assert _LABEL.sub("", labels_text) == "", f"not labels: {labels_text!r}"
            assert (name, labels) not in family.samples, f"twice: {line!r}"
            family.samples[name, labels] = float(value)
    for name, family in families.items():
        if family.kind == "histogram":
            _check_histogram(name, family)
    return families


def value(families: Mapping[str, ReadFamily], name: str, **labels: str) -> float:
    """One sample; `name` may have a suffix of a histogram."""
    family = families.get(name) or families[re.sub("_(bucket|sum|count)$", "", name)]
    return family.samples[name, frozenset(labels.items())]


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], text)


def _check_histogram(name: str, family: ReadFamily) -> None:
    buckets: dict[frozenset[tuple[str, str]], list[tuple[float, float]]] = {}
    for (sample, labels), count in family.samples.items():
        if sample == f"{name}_bucket":
            bound = float(dict(labels)["le"])
            rest = frozenset(label for label in labels if label[0] != "le")
            buckets.setdefault(rest, []).append((bound, count))
    for labels, found in buckets.items():
        assert found == sorted(found), f"{name}: bounds or counts go back"
        assert [count for _, count in found] == sorted(count for _, count in found), f"{name}: not cumulative"
        assert found[-1] == (float("inf"), family.samples[f"{name}_count", labels])
        assert (f"{name}_sum", labels) in family.samples
