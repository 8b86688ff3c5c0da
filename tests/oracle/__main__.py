"""The command: `python -m tests.oracle --sessions 200 --seed 1`. See the package's own words."""

import argparse
import contextlib
import itertools
import math
import sys
import time
from collections.abc import Iterator

from tests.oracle import clients_main, recording, selection, systems
from tests.oracle.campaign import Campaign
from tests.oracle.compatibility import PAGE, written
from tests.oracle.coverage import Coverage
from tests.oracle.faults import make_fault_session
from tests.oracle.generator import Versions, make_session
from tests.oracle.live import Pair
from tests.oracle.planted import PLANTED, noticed_after
from tests.oracle.runner import advertised, common_versions, prepare
from tests.oracle.session import Session
from tests.oracle.shrink import told


def main() -> int:
    options = _options()
    if options.compatibility:
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    if options.planted and not options.clients:
        return _planted(options)
    if options.replay:
        return _replay()
    with _systems(options) as (kafka, here):
        for system in (kafka, here):
            prepare(system)
        if options.clients and options.planted:
            return clients_main.planted(options, kafka)
        if options.clients:
            return clients_main.run(options, kafka, here)
        versions = common_versions(advertised(kafka), advertised(here))
        if options.record:
            return _record(kafka, here, versions, options)
        return _compare(Pair(kafka, here), versions, options)


def _compare(pair: Pair, versions: Versions, options: argparse.Namespace) -> int:
    def make(seed: int) -> Session:
        if options.faults:
            session = make_fault_session(seed, versions, options.brokers, kills=options.kills)
        else:
            session = make_session(seed, versions, options.brokers, about=options.about)
        if options.show:
            print(told(session, []))
        return session

    campaign = Campaign(
        pair,
        Coverage(versions),
        shrink=not options.no_shrink,
        kinds_max=options.stop_after,
        seconds_max=options.minutes * 60,
        every_version=not (options.faults or options.about),
    )
    try:
        campaign.run(range(options.seed, options.seed + options.sessions), make)
    except KeyboardInterrupt:
        print("ended early")
    finally:
        pair.close()
        print(campaign.summary(), flush=True)
    return 1 if campaign.found else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="oracle", description=__doc__)
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=math.inf, help="behind which no session begins")
    parser.add_argument("--seed", type=int, default=1, help="of the first session")
    parser.add_argument(
        "--about", default="", metavar="WORD", help="what activities are about: shares, topics …"
    )
    parser.add_argument("--brokers", type=int, choices=(1, 3), default=1)
    parser.add_argument("--store", choices=("embedded", "zookeeper"), default="embedded")
    parser.add_argument(
        "--faults", action="store_true", help="sessions in which answers are lost and brokers are killed"
    )
    parser.add_argument("--kills", type=int, default=4, help="in every so-many-th of them brokers are killed")
    parser.add_argument("--show", action="store_true", help="print every session that is carried out")
    parser.add_argument("--no-shrink", action="store_true", help="print differences of sessions as they are")
    parser.add_argument("--stop-after", type=int, default=20, help="kinds of differences")
    parser.add_argument(
        "--record", type=int, metavar="COUNT", help="write so many sessions with Kafka's answers"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep what is recorded, and add what it does not notice"
    )
    parser.add_argument("--replay", action="store_true", help="only the recorded sessions, without Kafka")
    parser.add_argument(
        "--planted", action="store_true", help="the recorded sessions on every planted difference"
    )
    parser.add_argument(
        "--compatibility", action="store_true", help="write the tables of docs/compatibility.md"
    )
    parser.add_argument("--clients", metavar="java,librdkafka", help="sessions of real clients instead")
    parser.add_argument("--kafka", metavar="PORT,PORT", help="a Kafka that runs: its plain and its SASL port")
    return parser.parse_args()


def _record(
    kafka: systems.System, here: systems.System, versions: Versions, options: argparse.Namespace
) -> int:
    if options.faults:
        path = recording.LOST_ANSWERS
        seeds = itertools.count(options.seed)
        telling = (make_fault_session(seed, versions, kills=0) for seed in seeds)
        rows = list(itertools.islice(recording.record(kafka, telling, "o"), options.record))
    else:
        path = recording.ONE_BROKER
        rows = selection.kept(versions) if options.keep else []
        rows = rows or selection.selected(kafka, versions, options.seed, options.record)
        rows += selection.noticing(kafka, here, versions, options.seed, rows)
    coverage = Coverage(versions)
    coverage.note(row.session for row in rows)
    recording.write(path, systems.kafka_version(), versions, rows)
    print(coverage.table())
    print(f"{len(rows)} sessions in {path}: {path.stat().st_size} bytes")
    return 0


def _replay() -> int:
    failed = 0
    with systems.tidelog() as here:
        prepare(here)
        every = (recording.read(path) for path in recording.FOLDER.glob("*.gz"))
        for number, recorded in enumerate(itertools.chain(*every)):
            if found := recording.replay(here, recorded, f"o{number}-"):
                failed += 1
                print(told(recorded.session, found[:3]))
    print(f"{failed} of {number + 1} recorded sessions are answered differently")
    return 1 if failed else 0


def _planted(options: argparse.Namespace) -> int:
    unnoticed = 0
    for name, plant in PLANTED.items():
        started = time.monotonic()
        found = noticed_after(plant, options.sessions)
        unnoticed += found is None
        after = f"after {found} sessions" if found else "NOT NOTICED"
        print(f"{name}: {after}, {time.monotonic() - started:.1f} s", flush=True)
    return 1 if unnoticed else 0


@contextlib.contextmanager
def _systems(options: argparse.Namespace) -> Iterator[tuple[systems.System, systems.System]]:
    with contextlib.ExitStack() as stack:
        if options.kafka:
            plain, login = map(int, options.kafka.split(","))
            kafka = systems.System("Kafka", {1: (plain, login)}, settle_seconds=0.04)
        else:
            kafka = stack.enter_context(systems.kafka(options.brokers))
        yield (
            kafka,
            stack.enter_context(
                systems.tidelog(options.brokers, store=options.store, killable=options.faults)
            ),
        )


if __name__ == "__main__":
    sys.exit(main())
