"""The command for real clients: `python -m tests.oracle --clients java,librdkafka --sessions 100`."""

import argparse
import contextlib
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from tests.oracle import clients_planted
from tests.oracle.clients_driver import CLIENTS, driver
from tests.oracle.clients_faults import make_fault_session
from tests.oracle.clients_generator import make_session
from tests.oracle.clients_live import ClientDifference, ClientPair, shrunk, told
from tests.oracle.clients_session import ClientSession
from tests.oracle.judge import short
from tests.oracle.systems import System

#: sessions of one client that are under way at once
AT_ONCE = 4


def planted(options: argparse.Namespace, kafka: System) -> int:
    """Every planted difference under every client; the exit code."""
    unnoticed = 0
    for client in options.clients.split(","):
        seeds = range(options.seed, options.seed + options.sessions)
        for name, after, seconds in clients_planted.run(client, kafka, seeds):
            unnoticed += after is None
            told_after = f"after {after} sessions" if after else "NOT NOTICED"
            print(f"{client}: {name}: {told_after}, {seconds:.1f} s", flush=True)
    return 1 if unnoticed else 0


def run(options: argparse.Namespace, kafka: System, here: System) -> int:
    """Every session of every client; the exit code."""
    found = 0
    for client in options.clients.split(","):
        if client not in CLIENTS:
            raise SystemExit(f"--clients {client}: there are {', '.join(CLIENTS)}")
        with contextlib.ExitStack() as stack:
            drivers = (
                stack.enter_context(driver(client, kafka)),
                stack.enter_context(driver(client, here)),
            )
            pair = ClientPair(drivers, (kafka, here))
            stack.callback(pair.close)
            found += _compare_all(client, pair, options)
            if options.faults:
                print(pair.recoveries.table(), flush=True)
    return 1 if found else 0


def _compare_all(client: str, pair: ClientPair, options: argparse.Namespace) -> int:
    kinds: Counter[str] = Counter()
    unsteady: Counter[str] = Counter()
    operations: Counter[str] = Counter()
    started = time.monotonic()
    make = make_fault_session if options.faults else make_session
    sessions = [
        make(seed, client, options.brokers) for seed in range(options.seed, options.seed + options.sessions)
    ]
    # a killed broker is one of all sessions
    with ThreadPoolExecutor(1 if options.faults else AT_ONCE, "sessions") as pool:
        for number, (session, found) in enumerate(
            zip(sessions, pool.map(pair.compare, sessions), strict=True), 1
        ):
            operations.update(one.name for one in session.operations)
            if options.show:
                print(told(session, found), flush=True)
            if found:
                _judge(pair, session, found, kinds, unsteady, options)
            if number % 10 == 0 or number == len(sessions):
                seconds = time.monotonic() - started
                print(
                    f"{client}: {number} sessions, {operations.total()} operations, {len(kinds)} kinds of"
                    f" differences, {unsteady.total()} unsteady, given up {pair.given_up}, {seconds:.0f} s",
                    flush=True,
                )
            if len(kinds) >= options.stop_after:
                pool.shutdown(cancel_futures=True)
                break
    for kind, count in kinds.most_common():
        print(f"{count:5} {kind}")
    if options.show:
        print(", ".join(f"{name} {count}" for name, count in operations.most_common()))
    return len(kinds)


def _judge(
    pair: ClientPair,
    session: ClientSession,
    found: list[ClientDifference],
    kinds: Counter[str],
    unsteady: Counter[str],
    options: argparse.Namespace,
) -> None:
    """Tell of a difference that comes again; one that does not depends on time."""
    # What comes behind the first one may follow from it.
    first = found[0]
    if first.kind in kinds:
        kinds[first.kind] += 1
        return
    again = pair.compare(session)
    if not any(one.kind == first.kind for one in again):
        unsteady[first.kind] += 1
        print(f"once, {session.client} seed {session.seed}: {first.operation.label} {first.kind}")
        for one in found[:3]:
            print(f"    {one.operation} ≠ {one.path}: {short(one.kafka)} | {short(one.here)}", flush=True)
        return
    kinds[first.kind] += 1
    if options.no_shrink or session.kills:
        print(told(session, found[:3]), flush=True)
        return
    print(f"{session.client} seed {session.seed}: {first.operation.label} {first.kind}", flush=True)
    session = shrunk(session, first, pair.compare)
    print(told(session, pair.compare(session)[:3] or [first]), flush=True)
