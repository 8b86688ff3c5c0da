"""Broken brokers under sessions of real clients, compared with what Kafka made of the same sessions.

The planted differences are those of `planted`; here are the ones that a client of default settings can see.
"""

import secrets
import time
from collections.abc import Iterator

from tests.oracle import systems
from tests.oracle.clients_driver import driver
from tests.oracle.clients_generator import make_session
from tests.oracle.clients_live import carry_out, differences
from tests.oracle.clients_rules import normalised
from tests.oracle.clients_session import ClientSession, Json
from tests.oracle.planted import PLANTED
from tests.oracle.systems import System

SEEN_BY_CLIENTS = (
    "an existing topic is an invalid request",
    "ListOffsets is one too high",
    "committed metadata gets lost",
    "aborted transactions are not told",
    "read_committed reads everything",
    "the log start does not move",
    "the time index is not asked",
    "everybody may everything",
)


def run(client: str, kafka: System, seeds: range) -> Iterator[tuple[str, int | None, float]]:
    """Every planted difference, after how many sessions it was noticed, and in how many seconds."""
    known: list[tuple[ClientSession, dict[str, Json]]] = []
    with driver(client, kafka) as held:
        for seed in seeds:
            session = make_session(seed, client)
            # a Kafka that runs may have seen these sessions before
            prefix = f"kp{secrets.token_hex(3)}-{seed}-"
            done = carry_out(session, held, kafka, prefix)
            known.append((session, normalised(session, prefix, done.outcomes)))
    for name in SEEN_BY_CLIENTS:
        started = time.monotonic()
        found = _noticed_after(name, client, known)
        yield name, found, time.monotonic() - started


def _noticed_after(name: str, client: str, known: list[tuple[ClientSession, dict[str, Json]]]) -> int | None:
    with PLANTED[name](), systems.tidelog(in_thread=True) as here, driver(client, here) as held:
        for number, (session, expected) in enumerate(known, 1):
            prefix = f"kp{session.seed}-"
            done = carry_out(session, held, here, prefix)
            if differences(session, expected, normalised(session, prefix, done.outcomes)):
                return number
    return None
