"""Which sessions a recording is made of, so that few of them that take little time show much.

First come sessions that have every version of every API in them, then others in the order of their seeds,
and last, for each planted difference that none of these notices, one that does. Sessions that wait for long,
as fetches of share groups do, are avoided: a replay waits as long. A recording may also be kept; then only
what notices a planted difference that it does not is added.
"""

import itertools
from collections.abc import Iterable, Iterator

from tests.oracle import recording, systems
from tests.oracle.coverage import Coverage, covered_by
from tests.oracle.generator import Versions, make_session
from tests.oracle.judge import differences, normalised
from tests.oracle.planted import PLANTED, Plant, noticed_by
from tests.oracle.recording import Recorded
from tests.oracle.runner import Runner, prepare
from tests.oracle.session import Session
from tests.oracle.systems import System

#: how many seeds are looked through for sessions with versions that are not recorded yet
POOL = 2000
#: how long a session may wait that is recorded for none of its versions
WAITS_MS_MAX = 4000
#: how many sessions are tried for a planted difference that is not noticed yet
CANDIDATES = 400
#: what sessions are about that notice it, where few sessions do
_ABOUT = {
    "headers get lost when the broker compresses": "producing",
    "quotas are shown as whole numbers": "security",
    "a token lives as long as it may be renewed": "security",
    "any epoch of a share session will do": "shares",
    "a share session that ends keeps its records": "shares",
    "rejected records are delivered again": "shares",
    "prefixes do not count": "security",
    "rights do not count": "security",
}


def waits_ms(session: Session) -> int:
    """How long the fetches of a session wait at most, all together."""
    return sum(max(0, step.fields.get("max_wait") or 0) for step in session.steps)


def covering(sessions: Iterable[Session], covered: Coverage) -> Iterator[Session]:
    """Sessions that exercise what is not covered yet: the most of it for the time that they take comes first.

    Who takes them notes in `covered` which of them count.
    """
    left = {session.seed: (session, covered_by(session)) for session in sessions}
    while left and (missing := set(covered.missing())):

        def worth(seed: int, missing: set[tuple[str, int]] = missing) -> float:
            session, covers = left[seed]
            return len(covers & missing) / (1000 + waits_ms(session))

        seed = max(left, key=worth)
        if not worth(seed):
            return
        yield left.pop(seed)[0]


def selected(kafka: System, versions: Versions, first_seed: int, count: int) -> list[Recorded]:
    """So many sessions with Kafka's answers."""
    made = [make_session(seed, versions) for seed in range(first_seed, first_seed + POOL)]
    coverage = Coverage(versions)
    chosen: list[Recorded] = []
    for recorded in recording.record(kafka, covering(made, coverage), "o"):
        coverage.note([recorded.session])
        chosen.append(recorded)
    print(f"{len(chosen)} sessions have every version in them", flush=True)
    known = {recorded.session.seed for recorded in chosen}
    quick = (one for one in made if one.seed not in known and waits_ms(one) <= WAITS_MS_MAX)
    more = itertools.islice(recording.record(kafka, quick, "o"), max(0, count - len(chosen)))
    return [*chosen, *more]


def kept(versions: Versions) -> list[Recorded]:
    """What is recorded already, without what takes long and adds no version."""
    coverage = Coverage(versions)
    rows = []
    for recorded in recording.read(recording.ONE_BROKER):
        adds = covered_by(recorded.session) & set(coverage.missing())
        if adds or waits_ms(recorded.session) <= WAITS_MS_MAX:
            coverage.note([recorded.session])
            rows.append(recorded)
    return rows


def noticing(
    kafka: System, here: System, versions: Versions, first_seed: int, chosen: list[Recorded]
) -> Iterator[Recorded]:
    """A further session for each planted difference that none of the chosen ones, or of these, notices."""
    rows = list(chosen)
    for name, plant in PLANTED.items():
        if noticed_by(plant, rows) is not None:
            continue
        about = _ABOUT.get(name, "")
        # other seeds for each: names of sessions go by them
        start = first_seed + POOL + CANDIDATES * sorted({"", *_ABOUT.values()}).index(about)
        made = (make_session(seed, versions, about=about) for seed in range(start, start + CANDIDATES))
        found = _first_noticing(kafka, here, plant, made)
        if found is None:
            print(f"{name}: NOT NOTICED by {CANDIDATES} more sessions", flush=True)
            continue
        print(f"{name}: noticed by session {found.session.seed} about {about or 'all'}", flush=True)
        rows.append(found)
        yield found


def _first_noticing(
    kafka: System, here: System, plant: Plant, sessions: Iterator[Session]
) -> Recorded | None:
    """The first session that notices a planted difference. Kafka is asked where two brokers here differ."""
    with plant(), systems.tidelog(in_thread=True) as broken:
        prepare(broken)
        for session in sessions:
            if waits_ms(session) > WAITS_MS_MAX:
                continue
            prefix = f"n{session.seed}-"
            right, wrong = (
                normalised(session, prefix, Runner(one, prefix).run(session)) for one in (here, broken)
            )
            if not differences(session, right, wrong):
                continue
            for recorded in recording.record(kafka, [session], "o"):
                replays = (recording.replay(one, recorded, f"m{session.seed}-") for one in (here, broken))
                if [bool(found) for found in replays] == [False, True]:
                    return recorded
    return None
