"""Run the three workers, each with a crash at its worst moment; print what was lost and what was repeated.

python run.py                               with a Tidelog broker of its own
python run.py --bootstrap localhost:9092    with any Kafka
"""

import argparse
from contextlib import ExitStack
from pathlib import Path

from shop import demonstrate

PROGRAMS = ("at_most_once", "at_least_once", "exactly_once")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bootstrap", help="a running Kafka; without it a broker is started")
    options = parser.parse_args()
    with ExitStack() as stack:
        bootstrap = options.bootstrap
        if bootstrap is None:
            from tidelog.testing.broker import RunningBroker

            bootstrap = stack.enter_context(RunningBroker(mode="process")).bootstrap
        print(f"{'worker':15}{'records in':>12}{'processed':>12}{'lost':>8}{'repeated':>12}")
        for name in PROGRAMS:
            outcome = demonstrate(Path(__file__).with_name(f"{name}.py"), bootstrap)
            figures = f"{outcome.orders:12}{outcome.processed:12}{outcome.lost:8}{outcome.repeated:12}"
            print(f"{name.replace('_', ' '):15}{figures}", flush=True)


if __name__ == "__main__":
    main()
