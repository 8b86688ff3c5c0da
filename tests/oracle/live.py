"""Both systems at once: sessions carried out side by side and compared."""

import itertools
import secrets
from concurrent.futures import ThreadPoolExecutor

from oracle.judge import Difference, differences, normalised
from oracle.runner import UNTIL_SECONDS_MAX, Runner
from oracle.session import Json, Session
from oracle.systems import System

QUICK_UNTIL_SECONDS = 1.0


class Pair:
    """Kafka and Tidelog, and the names that were used on them."""

    def __init__(self, kafka: System, here: System) -> None:
        self.kafka = kafka
        self.here = here
        self._pool = ThreadPoolExecutor(2, "oracle")
        #: a system may have seen other runs
        self._run = f"o{secrets.token_hex(3)}"
        self._attempts = itertools.count(1)

    def close(self) -> None:
        self._pool.shutdown()

    def run(
        self, session: Session, until_seconds: float = UNTIL_SECONDS_MAX
    ) -> tuple[dict[str, Json], dict[str, Json]]:
        """The normalised answers of both, under names that nobody used before."""
        prefix = f"{self._run}-{next(self._attempts)}-"
        under_way = [
            self._pool.submit(lambda system=system: Runner(system, prefix, until_seconds).run(session))
            for system in (self.kafka, self.here)
        ]
        kafka, here = (normalised(session, prefix, one.result()) for one in under_way)
        return kafka, here

    def compare(self, session: Session) -> list[Difference]:
        """What differs, and is not meant to."""
        return differences(session, *self.run(session))

    def compare_quickly(self, session: Session) -> list[Difference]:
        """The same where steps were taken out: what those would have made is not waited for."""
        return differences(session, *self.run(session, QUICK_UNTIL_SECONDS))
