"""Measures the broker against the floor of this machine, in one run.

    python -m bench.run [--short] [--only PATTERN] [--json FILE] [--markdown [PAGE]]
                        [--floor-only] [--peer NAME=HOST:PORT]

Starts a floor server and a broker, loads them in turn with the same bytes, prints tables and the targets, and
deletes what it wrote. See docs/benchmarks.md for what the numbers mean.
"""

import argparse
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from bench.cases import (
    BATCHES,
    FULL,
    KIB,
    MIB,
    SHORT,
    Bench,
    connection_rows,
    fetch_row,
    footprint,
    partition_rows,
    produce_row,
)
from bench.kafka_messages import WireError
from bench.report import Report, around_results, as_json, as_text, write_markdown
from bench.servers import HERE, BenchFailure, Children, Server

PAGE = HERE.parent / "docs" / "benchmarks.md"
LOAD_AVERAGE_IDLE = 0.5
FETCHES = {"64 KB": 64 * KIB, "1 MB": MIB}


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="fewer and shorter rounds")
    parser.add_argument("--rounds", type=int, help="rounds per case")
    parser.add_argument("--only", default="", help="only the cases whose name matches this pattern")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all measurements to FILE")
    parser.add_argument(
        "--markdown", type=Path, metavar="PAGE", nargs="?", const=PAGE, help="write the tables to PAGE"
    )
    parser.add_argument("--floor-only", action="store_true", help="measure this machine without a broker")
    parser.add_argument(
        "--peer", metavar="NAME=HOST:PORT", help="also measure a running Kafka-protocol broker"
    )
    parser.add_argument("--acks", type=int, default=-1, choices=(-1, 1), help="acks of produce requests")
    parser.add_argument(
        "--broker-command", help="how to call the command line (default: tidelog beside this Python)"
    )
    options = parser.parse_args()
    if options.markdown:
        # Said now, not after a quarter of an hour.
        try:
            around_results(options.markdown)
        except (OSError, ValueError) as fault:
            parser.error(f"--markdown: {fault}")
    return options


def broker_command(options: argparse.Namespace) -> list[str]:
    if options.broker_command:
        return str(options.broker_command).split()
    script = Path(sys.executable).parent / "tidelog"
    return [str(script)] if script.exists() else [sys.executable, "-m", "tidelog.cli"]


def peer_of(options: argparse.Namespace) -> Server | None:
    if not options.peer:
        return None
    name, _, address = options.peer.rpartition("=")
    host, _, port = address.rpartition(":")
    host = "127.0.0.1" if host in ("", "localhost") else host
    return Server(name or "peer", None, host, int(port))


def run_cases(bench: Bench, pattern: str) -> Report:
    report = Report([], [], [], [], None, [])
    load_average = os.getloadavg()[0]
    if load_average > LOAD_AVERAGE_IDLE:
        report.notes.append(
            f"The load average was {load_average:.1f} before the run: others used this machine, so wall "
            "times are too long for all servers and the ratios by CPU time are the better ones."
        )

    def wanted(name: str) -> bool:
        if re.search(pattern, name) is None:
            return False
        bench.say(name)
        return True

    for batch_name in BATCHES:
        for connections in (1, 8):
            if wanted(f"produce {batch_name}, {connections} × 5"):
                report.throughput.append(produce_row(bench, batch_name, connections, 5))
    for body_name, body_bytes in FETCHES.items():
        for connections in (1, 8):
            if wanted(f"fetch {body_name}, {connections} × 5"):
                report.throughput.append(fetch_row(bench, body_name, body_bytes, connections, 5))
    if wanted("latency produce 1 KB"):
        report.latency.append(produce_row(bench, "1 KB", 1, 1))
    for body_name, body_bytes in FETCHES.items():
        if wanted(f"latency fetch {body_name}"):
            report.latency.append(fetch_row(bench, body_name, body_bytes, 1, 1))
    if wanted("partitions"):
        report.partitions = partition_rows(bench)
    if wanted("connections"):
        report.connections = connection_rows(bench)
    if bench.with_broker and wanted("footprint"):
        report.footprint = footprint(bench)
    if not bench.children.programs.compiled:
        report.notes.append(
            "No C compiler here: floor and load generator ran in Python and limit the small batches."
        )
    return report


def say(text: str) -> None:
    print(f"… {text}", file=sys.stderr, flush=True)


def stop(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    options = read_options()
    signal.signal(signal.SIGTERM, stop)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    effort = SHORT if options.short else FULL
    if options.rounds:
        effort = effort.with_rounds(options.rounds)
    directory = Path(tempfile.mkdtemp(prefix="tidelog-bench-"))
    finishers: list[Callable[[], None]] = []
    try:
        children = Children(directory, broker_command(options))
        finishers.append(children.close)
        bench = Bench(children, effort, not options.floor_only, peer_of(options), say, options.acks)
        report = run_cases(bench, options.only)
    except (BenchFailure, WireError) as failure:
        print(f"bench: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("bench: stopped", file=sys.stderr)
        return 130
    finally:
        for finish in finishers:
            finish()
        shutil.rmtree(directory, ignore_errors=True)
    when = time.strftime("%Y-%m-%d")
    print(as_text(report))
    if options.json:
        options.json.write_text(json.dumps(as_json(report, when), indent=1) + "\n")
    if options.markdown:
        write_markdown(report, options.markdown, when)
    return 0


if __name__ == "__main__":
    sys.exit(main())
