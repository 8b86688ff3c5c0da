"""Share groups: a topic as a queue, with any number of workers, redelivery, and dead letters."""

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack

from tidelog.lab.clients import ReadRecord
from tidelog.lab.group_view import members
from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic
from tidelog.lab.share_worker import Decision, Said, ShareWorker, accept

GROUP = "packers"
LETTERS = "dlq.parcels"
NAMES = ("anna", "ben", "cleo")
PARCELS = 12
LOCK_MS = 1_500
LIMIT = 3

SCENARIO = Scenario(
    name="share-group",
    title="A queue: share groups",
    minutes=5,
    learn=(
        "members of a share group get records one by one: there may be more of them than partitions",
        "a record is accepted, released or rejected on its own, and nothing waits behind it",
        "who takes a record and says nothing loses it; what fails too often becomes a dead letter",
    ),
    brokers=1,
    needs=("share-consumer",),
    topics=(
        Topic("parcels"),
        Topic(LETTERS, configs={"errors.deadletterqueue.group.enable": "true"}),
    ),
    settings={
        "group.share.min.record.lock.duration.ms": str(LOCK_MS),
        "share.coordinator.state.topic.num.partitions": "1",
    },
    summary="A share group for work that needs no order; a lock longer than the work, and a topic for dead "
    "letters. 'tidelog share describe' shows who has what.",
)


def _workers(lab: Lab, stack: ExitStack, **plans: Decision) -> list[ShareWorker]:
    return [
        stack.enter_context(ShareWorker(lab.bootstrap, GROUP, "parcels", name, decide))
        for name, decide in plans.items()
    ]


def _deliveries(workers: Sequence[ShareWorker]) -> Counter[str]:
    """How often each record was delivered, to whomever."""
    return Counter(value for worker in workers for value in worker.taken)


def _dead(lab: Lab) -> list[ReadRecord]:
    return lab.read(LETTERS)


def _said(letter: ReadRecord) -> dict[str, str]:
    """What a dead letter says of itself."""
    prefix = "__dlq.errors."
    return {
        name.removeprefix(prefix): (value or b"").decode()
        for name, value in letter.headers
        if name.startswith(prefix)
    }


@SCENARIO.step(
    "More workers than partitions",
    narration="The topic has one partition. In a consumer group one consumer would work and the others would "
    "look on. A share group gives each record to whoever asks.",
    action=f"start {len(NAMES)} workers in one share group and send {PARCELS} parcels, one after the other",
    prediction="each parcel goes to one worker, and more than one of them has work",
)
def many(lab: Lab, see: Observation) -> None:
    lab.set_group_config(
        GROUP,
        {
            "share.auto.offset.reset": "earliest",
            "share.record.lock.duration.ms": str(LOCK_MS),
            "share.delivery.count.limit": str(LIMIT),
            "errors.deadletterqueue.topic.name": LETTERS,
            "errors.deadletterqueue.copy.record.enable": "true",
        },
    )
    with ExitStack() as stack:
        workers = _workers(lab, stack, **dict.fromkeys(NAMES, accept))
        lab.wait("all have joined", lambda: members(lab, GROUP, "share") == {name: [0] for name in NAMES})
        names = [f"parcel {number}" for number in range(PARCELS)]
        for count, name in enumerate(names, 1):
            lab.produce("parcels", [name])
            lab.wait(f"{name} is taken", lambda count=count: sum(_deliveries(workers).values()) >= count)  # type: ignore[misc]
        shares = {worker.name: len(worker.taken) for worker in workers}
        times = _deliveries(workers)
    see.table(("worker", "parcels"), sorted(shares.items()))
    see.figure("parcels_by_worker", shares)
    see.check("each parcel was delivered once", times == Counter(names), times)
    see.check("more than one worker had work", sum(count > 0 for count in shares.values()) > 1, shares)


def _picky(value: str, times: int) -> Said:
    """A torn parcel is rejected, a heavy one released the first time."""
    if value == "torn":
        return Said.REJECT
    return Said.RELEASE if value == "heavy" and times == 1 else Said.ACCEPT


@SCENARIO.step(
    "Accept, release, reject",
    narration="A worker says of each record what became of it: it is done, somebody shall try it again, or "
    "nobody ever can. The others do not wait for it.",
    action="send 'light', 'heavy', 'torn' and 'flat'; the worker gives 'heavy' back once and rejects 'torn'",
    prediction="'heavy' is delivered twice, the others once, and 'torn' becomes a dead letter",
)
def say(lab: Lab, see: Observation) -> None:
    names = ["light", "heavy", "torn", "flat"]
    with ExitStack() as stack:
        workers = _workers(lab, stack, anna=_picky)
        lab.produce("parcels", names)
        lab.wait("everything was tried", lambda: _deliveries(workers)["heavy"] == 2)
        lab.wait("the dead letter is there", lambda: bool(_dead(lab)) or _deliveries(workers)["torn"] > 1)
        # Whoever is given 'torn' again is given it by now.
        time.sleep(LOCK_MS / 1000)
        times = _deliveries(workers)
    see.table(("parcel", "deliveries"), [(name, times[name]) for name in names])
    expected = Counter({name: 2 if name == "heavy" else 1 for name in names})
    see.check("only 'heavy' came twice", times == expected, times)
    letters = _dead(lab)
    see.check("'torn' is the dead letter", [letter.value for letter in letters] == ["torn"], letters)
    told = _said(letters[0]) if letters else {}
    see.table(("header", "value"), sorted(told.items()))
    place = (told.get("topic"), told.get("group"), told.get("delivery.count"))
    see.check("it says where it came from", place == ("parcels", GROUP, "1"), told)


@SCENARIO.step(
    "A worker hangs",
    narration=f"A worker takes a parcel and says nothing more. The parcel is locked for it for {LOCK_MS} ms, "
    "and nobody else gets it meanwhile.",
    action="let one worker take a parcel and hang, then start another one",
    prediction=f"the other one gets the parcel when the lock ends, not before {LOCK_MS} ms are over",
)
def hang(lab: Lab, see: Observation) -> None:
    with ExitStack() as stack:
        [dora] = _workers(lab, stack, dora=lambda value, times: None)
        lab.produce("parcels", ["fragile"])
        lab.wait("somebody has it", lambda: dora.taken == ["fragile"])
        began = time.monotonic()
        [emil] = _workers(lab, stack, emil=accept)
        lab.wait("the other one has it", lambda: bool(emil.taken))
        seconds = time.monotonic() - began
    see.figure("seconds", round(seconds, 1))
    see.say(f"After {seconds:.1f} s the other worker had it.")
    see.check("it is the same parcel", emil.taken == ["fragile"], emil.taken)
    # The lock began a little before we saw the parcel with its holder.
    see.check("not before the lock ended", seconds > LOCK_MS / 1000 / 2, seconds)


@SCENARIO.step(
    "Too often",
    narration=f"A parcel that everybody gives back would go round for ever. After {LIMIT} deliveries it is "
    "given up, and becomes a dead letter.",
    action="send a parcel that no worker can pack, and one that all can",
    prediction=f"it is delivered {LIMIT} times, then it is a dead letter; the other one is packed",
)
def too_often(lab: Lab, see: Observation) -> None:
    with ExitStack() as stack:
        workers = _workers(
            lab,
            stack,
            anna=lambda value, times: Said.RELEASE if value == "cursed" else Said.ACCEPT,
            ben=lambda value, times: Said.RELEASE if value == "cursed" else Said.ACCEPT,
        )
        lab.produce("parcels", ["cursed", "plain"])
        lab.wait("it is given up", lambda: len(_dead(lab)) >= 2 or _deliveries(workers)["cursed"] > LIMIT)
        times = _deliveries(workers)
    letters = _dead(lab)
    see.table(("parcel", "deliveries"), sorted(times.items()))
    see.figure("deliveries", times["cursed"])
    see.check(f"it was delivered {LIMIT} times", times["cursed"] == LIMIT, times)
    see.check("the other one was packed", times["plain"] == 1, times)
    last = _said(letters[-1]) if letters else {}
    see.check("the dead letter says how often", last.get("delivery.count") == str(LIMIT), last)
    see.say(last.get("message", "There is no dead letter."))
