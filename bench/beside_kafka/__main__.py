"""Real clients against Tidelog and against Apache Kafka, in turns, in one run.

    python -m bench.beside_kafka [--rounds 3] [--only PATTERN] [--json FILE] [--markdown] [--list]

Both systems run all the time; each line runs against one and then against the other, and who is first changes
from round to round. The table has medians over the rounds and their spread. A ratio above 1 means that
Tidelog is better: more records in a second, less time, less memory. Processor time is that of the brokers.
"""

import argparse
import json
import re
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from bench.beside_kafka.lines import Line, lines, run_line
from bench.beside_kafka.loads import Seen
from bench.beside_kafka.systems import KAFKA, MAKERS, TIDELOG, System
from bench.report import machine_facts
from bench.servers import HERE

PAGE = HERE.parent / "docs" / "benchmarks.md"
MARKER_START, MARKER_END = "<!-- beside-kafka:start -->", "<!-- beside-kafka:end -->"

#: of each line, by system, what each round saw
Results = dict[str, dict[str, list[Seen]]]


def value_of(line: Line, seen: Seen) -> float:
    return seen.per_second if line.what == "per_second" else seen.latencies_ms[line.what]


def measure(chosen: Sequence[Line], rounds: int) -> Results:
    results: Results = {line.title: {TIDELOG: [], KAFKA: []} for line in chosen}
    for brokers in sorted({line.brokers for line in chosen}):
        systems: list[System] = []
        try:
            systems += [make(brokers, {}) for make in MAKERS.values()]
            for number in range(rounds):
                order = systems if number % 2 else systems[::-1]
                for line in (each for each in chosen if each.brokers == brokers):
                    for system in order:
                        seen = run_line(line, system)
                        results[line.title][system.name].append(seen)
                        shown = f"{value_of(line, seen):,.1f} {line.what}, {seen.cpu_seconds:.1f} s of CPU"
                        print(f"{line.title:48} {system.name:8} {shown}", file=sys.stderr, flush=True)
        finally:
            for system in systems:
                system.close()
    return results


def _middle(values: Sequence[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return statistics.median(known) if known else None


def _shown(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


def table(chosen: Sequence[Line], results: Results) -> str:
    """The Markdown table."""
    rows = [
        "| load | | Tidelog | Kafka | ratio | lowest to highest | CPU s/GB | CPU s per million requests |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for line in chosen:
        ours, theirs = results[line.title][TIDELOG], results[line.title][KAFKA]
        pairs = [
            (value_of(line, one), value_of(line, other)) for one, other in zip(ours, theirs, strict=True)
        ]
        ratios = sorted(b / a if line.less_is_better else a / b for a, b in pairs)
        mine, other = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratio = other / mine if line.less_is_better else mine / other
        costs = []
        for cost in ("cpu_per_gigabyte", "cpu_per_million_requests"):
            both = [_shown(_middle([getattr(seen, cost) for seen in side])) for side in (ours, theirs)]
            costs.append(" / ".join(both) if all(both) else "")
        unit = line.what.replace("_", " ")
        rows.append(
            f"| {line.title} | {unit} | {_shown(mine)} | {_shown(other)} | **{ratio:.2f}** "
            f"| {ratios[0]:.2f}–{ratios[-1]:.2f} | {costs[0]} | {costs[1]} |"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="lines whose title matches this pattern")
    parser.add_argument("--json", type=Path, help="write every measurement to this file")
    parser.add_argument("--markdown", action="store_true", help=f"write the table to {PAGE.name}")
    parser.add_argument("--list", action="store_true", help="print the lines and stop")
    options = parser.parse_args()
    chosen = [line for line in lines() if re.search(options.only, line.title)]
    if options.list:
        print(*(line.title for line in chosen), sep="\n")
        return
    results = measure(chosen, options.rounds)
    facts = ", ".join(f"{name} {value}" for name, value in machine_facts().items())
    text = f"{facts}\n\n{table(chosen, results)}"
    print(text)
    if options.json is not None:
        plain = {
            title: {name: [asdict(seen) for seen in runs] for name, runs in by_system.items()}
            for title, by_system in results.items()
        }
        options.json.write_text(json.dumps(plain, indent=1))
    if options.markdown:
        page = PAGE.read_text()
        before, _, rest = page.partition(MARKER_START)
        _, _, after = rest.partition(MARKER_END)
        PAGE.write_text(f"{before}{MARKER_START}\n{text}\n{MARKER_END}{after}")


if __name__ == "__main__":
    main()
