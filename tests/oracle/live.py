"""Both systems at once: sessions carried out side by side and compared."""

import itertools
import secrets
from concurrent.futures import ThreadPoolExecutor, wait

from tests.oracle.judge import Difference, differences, normalised
from tests.oracle.runner import UNTIL_SECONDS_MAX, Runner
from tests.oracle.session import Json, Session
from tests.oracle.systems import System

QUICK_UNTIL_SECONDS = 1.0
#: how many times as long changes are waited for where a difference may be one of time
SLOWLY = 8


class Pair:
    """Kafka and Tidelog, and the names that were used on them."""

    def __init__(self, kafka: System, here: System) -> None:
        self.kafka = kafka
        self.here = here
        self._pool = ThreadPoolExecutor(2, "oracle")
        #: a system may have seen other runs
        self._run = f"o{secrets.token_hex(3)}"
        self._attempts = itertools.count(1)
        #: by fault: seconds until the next answer on the first system and on the second
        self.waits: dict[str, list[tuple[float, float]]] = {}

    def close(self) -> None:
        self._pool.shutdown()

    def run(
        self, session: Session, until_seconds: float = UNTIL_SECONDS_MAX
    ) -> tuple[dict[str, Json], dict[str, Json]]:
        """The normalised answers of both, under names that nobody used before."""
        prefix = f"{self._run}-{next(self._attempts)}-"
        runners = [Runner(system, prefix, until_seconds) for system in (self.kafka, self.here)]
        under_way = [self._pool.submit(runner.run, session) for runner in runners]
        # both have to be at their end before anything else is done with them
        wait(under_way)
        kafka, here = (normalised(session, prefix, one.result()) for one in under_way)
        # where steps were taken out clients wait for other things
        waits = [runner.waits for runner in runners if until_seconds == UNTIL_SECONDS_MAX]
        for first, second in zip(*waits, strict=False):
            self.waits.setdefault(first[0], []).append((first[1], second[1]))
        return kafka, here

    def compare(self, session: Session) -> list[Difference]:
        """What differs, and is not meant to."""
        return differences(session, *self.run(session))

    def compare_slowly(self, session: Session) -> list[Difference]:
        """The same with more time for changes to be heard of everywhere: the machine may be busy."""
        systems = self.kafka, self.here
        self.kafka, self.here = (
            system._replace(settle_seconds=system.settle_seconds * SLOWLY) for system in systems
        )
        try:
            return self.compare(session)
        finally:
            self.kafka, self.here = systems

    def compare_quickly(self, session: Session) -> list[Difference]:
        """The same where steps were taken out: what those would have made is not waited for."""
        return differences(session, *self.run(session, QUICK_UNTIL_SECONDS))
