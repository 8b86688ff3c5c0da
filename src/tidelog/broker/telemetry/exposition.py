"""Metrics as Prometheus' text format, version 0.0.4.

A family is written as a whole: its help, its type, its samples. Only families of the table can be written,
and only with the labels that the table names.
"""

from collections.abc import Iterable, Mapping

from tidelog.broker.runtime.metrics import Histogram
from tidelog.broker.telemetry.metric_families import FAMILIES, Kind

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Labels = tuple[str, ...]
Sample = tuple[Labels, float]

#: buckets that are shown: from 16 µs to 17 s
_BITS_FIRST, _BITS_LAST = 14, 34
_BOUNDS = [repr((1 << bits) / 1e9) for bits in range(_BITS_FIRST, _BITS_LAST + 1)]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return repr(value) if isinstance(value, float) else str(int(value))


def _header(name: str) -> str:
    family = FAMILIES[name]
    return f"# HELP {name} {family.meaning}\n# TYPE {name} {family.kind.value}\n"


def _label_text(name: str, values: Labels) -> str:
    names = FAMILIES[name].labels
    assert len(names) == len(values), f"{name} has the labels {names}, not {values}"
    return ",".join(f'{label}="{_escaped(value)}"' for label, value in zip(names, values, strict=True))


def family(name: str, samples: Iterable[Sample]) -> str:
    """A counter or gauge with its samples."""
    assert FAMILIES[name].kind is not Kind.HISTOGRAM, name
    lines = [_header(name)]
    for labels, value in samples:
        text = _label_text(name, labels)
        lines.append(f"{name}{{{text}}} {_number(value)}\n" if text else f"{name} {_number(value)}\n")
    return "".join(lines)


def single(name: str, value: float) -> str:
    """A counter or gauge without labels."""
    return family(name, [((), value)])


def histograms(name: str, found: Mapping[Labels, Histogram]) -> str:
    """A histogram family; buckets are cumulative, times in seconds."""
    assert FAMILIES[name].kind is Kind.HISTOGRAM, name
    lines = [_header(name)]
    for labels, histogram in found.items():
        text = _label_text(name, labels)
        comma = "," if text else ""
        counts = histogram.counts
        below = sum(counts[:_BITS_FIRST])
        for bits, bound in enumerate(_BOUNDS, _BITS_FIRST):
            below += counts[bits]
            lines.append(f'{name}_bucket{{{text}{comma}le="{bound}"}} {below}\n')
        total = below + sum(counts[_BITS_LAST + 1 :])
        braced = f"{{{text}}}" if text else ""
        lines.append(f'{name}_bucket{{{text}{comma}le="+Inf"}} {total}\n')
        lines.append(f"{name}_sum{braced} {histogram.sum_ns / 1e9!r}\n{name}_count{braced} {total}\n")
    return "".join(lines)
