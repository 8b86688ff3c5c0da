"""The report of a run: tables for people (plain text or Markdown), targets, and JSON for machines."""

import math
import os
import platform
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.cases import BROKER, FLOOR, FRAMED, PYTHON, Footprint, Row
from bench.servers import PINNED, Measurement

MARKER_START, MARKER_END = "<!-- results:start -->", "<!-- results:end -->"
SATURATED = 0.95
"""A load generator busier than this may be the limit itself; its rows are marked."""
LOST_MAX = 0.05
"""Where others took more of the CPU than this, no verdict is given on a wall-time ratio."""

Table = tuple[list[str], list[list[str]]]


def requests_per_second(one: Measurement) -> float:
    return one.requests_per_second


def p50(one: Measurement) -> float:
    return one.p50_us


def lost_share(one: Measurement) -> float:
    return one.lost_share


def server_cost(one: Measurement) -> float:
    """CPU time of the server per request; wall time where the server's CPU cannot be read (a peer)."""
    cost = one.server_us_per_request
    return one.wall_us_per_request if math.isnan(cost) else cost


@dataclass(frozen=True, slots=True)
class Target:
    """One number the project promised, and what this run saw."""

    name: str
    wanted: str
    seen: str
    verdict: str


def verdict(met: bool, lost: float = 0.0) -> str:
    if lost > LOST_MAX:
        return f"UNCLEAR: others took {lost:.0%} of the CPU"
    return "met" if met else "NOT MET"


@dataclass(slots=True)
class Report:
    """Everything one run measured."""

    throughput: list[Row]
    latency: list[Row]
    partitions: list[Row]
    connections: list[Row]
    footprint: Footprint | None
    notes: list[str]

    def rows(self) -> list[Row]:
        return [*self.throughput, *self.latency, *self.partitions, *self.connections]


def servers_of(rows: list[Row]) -> list[str]:
    """Floors first, then the broker, then a peer."""
    names = {name for row in rows for name in row.rounds}
    known = [name for name in (FLOOR, FRAMED, PYTHON, BROKER) if name in names]
    return known + sorted(names - set(known))


def number(value: float) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def share(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.0%}"


def throughput_table(rows: list[Row]) -> Table:
    head = [
        "load",
        "server",
        "requests/s",
        "MB/s",
        "p50 µs",
        "p99 µs",
        "CPU server",
        "CPU load",
        "lost",
        "CPU µs/request",
    ]
    bases = [name for name in servers_of(rows) if name in (FLOOR, FRAMED, PYTHON)]
    head += [f"ratio to {base}" for base in bases]
    body = []
    for row in rows:
        for name in servers_of([row]):
            load_share = row.median(name, lambda one: one.load_cpu_share)
            line = [
                row.name.partition(": ")[2],
                name,
                number(row.median(name, requests_per_second)),
                number(row.median(name, lambda one: one.megabytes_per_second)),
                number(row.median(name, p50)),
                number(row.median(name, lambda one: one.p99_us)),
                share(row.median(name, lambda one: one.server_cpu_share)),
                share(load_share) + (" *" if load_share > SATURATED else ""),
                share(row.median(name, lost_share)),
                number(row.median(name, lambda one: one.server_us_per_request)),
            ]
            for base in bases:
                known = base in row.rounds and name not in bases
                line.append(f"{row.ratio(name, base, requests_per_second):.2f}" if known else "")
            body.append(line)
    return head, body


def scale_table(rows: list[Row]) -> Table:
    head = [
        "load",
        "server",
        "requests/s",
        "wall µs/request",
        "server CPU µs/request",
        "growth of CPU",
        "growth of wall",
    ]
    body = []
    for row in rows:
        for name in servers_of([row]):
            first = first_like(row, rows)
            base = first.rounds.get(name)
            line = [
                row.name.replace(": ", " "),
                name,
                number(row.median(name, requests_per_second)),
                number(row.median(name, lambda one: one.wall_us_per_request)),
                number(row.median(name, lambda one: one.server_us_per_request)),
                f"{growth(row, first, name, server_cost):.2f} ×" if base else "",
                f"{growth(row, first, name, lambda one: one.wall_us_per_request):.2f} ×" if base else "",
            ]
            body.append(line)
    return head, body


def first_like(row: Row, rows: list[Row]) -> Row:
    """The row that others under the same load are compared with."""
    return next(one for one in rows if one.name.partition(",")[2] == row.name.partition(",")[2])


def growth(row: Row, first: Row, name: str, cost: Callable[[Measurement], float]) -> float:
    pairs = zip(row.rounds[name], first.rounds[name], strict=True)
    return statistics.median(cost(many) / cost(one) for many, one in pairs)


def targets(report: Report) -> list[Target]:
    """What the broker should reach, judged against the raw Python sink of the same run.

    The ratios to the C floors stand beside it: they also hold what the language costs.
    """
    wanted = {
        "produce 1 KB, 8 × 5": 0.35,
        "produce 100 KB, 1 × 5": 0.85,
        "produce 100 KB, 8 × 5": 0.85,
        "produce 1 MB, 1 × 5": 0.85,
        "produce 1 MB, 8 × 5": 0.85,
        "fetch 1 MB, 1 × 5": 0.85,
        "fetch 1 MB, 8 × 5": 0.85,
    }
    found = []
    for row in report.throughput:
        name = row.name.partition(": ")[2]
        if name in wanted and BROKER in row.rounds:
            judge = PYTHON if PYTHON in row.rounds else FLOOR
            ratio = row.ratio(BROKER, judge, requests_per_second)
            low, high = row.ratio_range(BROKER, judge, requests_per_second)
            # Requests per second of server CPU: what the ratio would be if nobody else used the machine.
            by_cpu = row.ratio(judge, BROKER, server_cost)
            seen = f"{ratio:.2f} ({low:.2f} to {high:.2f}), {by_cpu:.2f} by CPU time"
            for other in (FLOOR, FRAMED):
                if other in row.rounds and other != judge:
                    seen += f"; {row.ratio(BROKER, other, requests_per_second):.2f} × {other}"
            lost = max(row.median(server, lost_share) for server in (BROKER, judge))
            found.append(
                Target(name, f"≥ {wanted[name]} × {judge}", seen, verdict(ratio >= wanted[name], lost))
            )
    if report.partitions and BROKER in report.partitions[0].rounds:
        for row in report.partitions:
            if " 2000" in row.name:
                seen_growth = growth(row, first_like(row, report.partitions), BROKER, server_cost)
                name = f"cost per request, 1 to {row.name.partition(': ')[2]} partitions"
                # Five in flight: only those of one partition can be written with one call.
                judged = row.name.endswith("in flight") or " of " in row.name
                found.append(
                    Target(
                        name.replace(", one in flight partitions", " partitions, one in flight"),
                        "< 1.3 ×" if judged else "",
                        f"{seen_growth:.2f} ×",
                        verdict(seen_growth < 1.3) if judged else "not judged",
                    )
                )
    if report.footprint is not None:
        found += footprint_targets(report.footprint)
    return found


def footprint_targets(seen: Footprint) -> list[Target]:
    resident = max(seen.resident_bytes, seen.resident_bytes_after_restart) / 1e6
    start_ms = statistics.median(seen.start_seconds) * 1000
    again_ms = statistics.median(seen.start_seconds_with_partitions) * 1000
    return [
        Target(
            "memory, idle with 100 partitions",
            "< 60 MB",
            f"{resident:.1f} MB resident",
            verdict(resident < 60),
        ),
        Target("start-up, empty data folder", "< 400 ms", f"{start_ms:.0f} ms", verdict(start_ms < 400)),
        Target("start-up with 100 partitions", "< 400 ms", f"{again_ms:.0f} ms", verdict(again_ms < 400)),
    ]


def target_table(found: list[Target]) -> Table:
    return ["target", "wanted", "seen", ""], [
        [target.name, target.wanted, target.seen, target.verdict] for target in found
    ]


def footprint_table(seen: Footprint) -> Table:
    fresh, again = seen.start_seconds, seen.start_seconds_with_partitions
    return ["footprint", "seen"], [
        ["resident memory, idle, 100 partitions just made", f"{seen.resident_bytes / 1e6:.1f} MB"],
        ["resident memory, idle, restarted with them", f"{seen.resident_bytes_after_restart / 1e6:.1f} MB"],
        ["start-up, empty data folder (median, best, worst)", spread_ms(fresh)],
        ["start-up, 100 partitions (median, best, worst)", spread_ms(again)],
    ]


def spread_ms(seconds: list[float]) -> str:
    return f"{statistics.median(seconds) * 1e3:.0f}, {min(seconds) * 1e3:.0f}, {max(seconds) * 1e3:.0f} ms"


def machine_facts() -> dict[str, str | int]:
    processor = next(
        (line.partition(":")[2].strip() for line in cpu_lines() if line.startswith("model name")),
        platform.machine(),
    )
    return {
        "processor": processor,
        "cores": os.cpu_count() or 0,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "pinned": "server and load on one core each" if PINNED else "no",
        "load_average": " ".join(f"{value:.2f}" for value in os.getloadavg()),
    }


def cpu_lines() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def tables(report: Report) -> list[tuple[str, Table]]:
    found = []
    if report.throughput:
        found.append(("Throughput", throughput_table(report.throughput)))
    if report.latency:
        found.append(("Latency, one request at a time", throughput_table(report.latency)))
    if report.partitions:
        found.append(
            ("Cost per request by number of partitions (1 KB, 8 connections)", scale_table(report.partitions))
        )
    if report.connections:
        found.append(
            ("Cost per request by number of connections (1 KB, 5 in flight)", scale_table(report.connections))
        )
    if report.footprint is not None:
        found.append(("Footprint", footprint_table(report.footprint)))
    judged = targets(report)
    if judged:
        found.append(("Targets", target_table(judged)))
    return found


def as_text(report: Report) -> str:
    parts = []
    for title, (head, body) in tables(report):
        widths = [max(len(line[column]) for line in [head, *body]) for column in range(len(head))]
        lines = [
            "  ".join(
                cell.ljust(width) if column < 2 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in [head, *body]
        ]
        parts.append("\n".join([title, "-" * len(title), *lines]))
    return "\n\n".join([*parts, *report.notes])


def as_markdown(report: Report, when: str) -> str:
    facts = machine_facts()
    parts = [
        f"Run of {when}: "
        + ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.items())
        + "."
    ]
    for title, (head, body) in tables(report):
        lines = [f"### {title}", "", "| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        lines += ["| " + " | ".join(line) + " |" for line in body]
        parts.append("\n".join(lines))
    return "\n\n".join([*parts, *report.notes])


def write_markdown(report: Report, page: Path, when: str) -> None:
    """Puts the results between the markers of the page and leaves the rest as it is."""
    before, after = around_results(page)
    page.write_text(f"{before}{MARKER_START}\n{as_markdown(report, when)}\n{MARKER_END}{after}")


def around_results(page: Path) -> tuple[str, str]:
    """What stands before and after the results; raises OSError or ValueError if they have no place."""
    before, start, rest = page.read_text().partition(MARKER_START)
    _, end, after = rest.partition(MARKER_END)
    if not start or not end:
        raise ValueError(f"{page} has no {MARKER_START} … {MARKER_END}")
    return before, after


def as_json(report: Report, when: str) -> dict[str, object]:
    return {
        "when": when,
        "machine": machine_facts(),
        "rows": [
            {
                "name": row.name,
                "rounds": {name: [asdict(one) for one in seen] for name, seen in row.rounds.items()},
            }
            for row in report.rows()
        ],
        "footprint": asdict(report.footprint) if report.footprint else None,
        "targets": [asdict(target) for target in targets(report)],
        "notes": report.notes,
    }
