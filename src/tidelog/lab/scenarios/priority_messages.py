"""Priority messages as a pattern: a topic per priority; the consumer looks at the urgent one first."""

from collections.abc import Callable

from confluent_kafka import Consumer, TopicPartition

from tidelog.lab.clients import client_config, text
from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic

NORMAL = 20
WAIT_SECONDS = 15.0

SCENARIO = Scenario(
    name="priority-messages",
    title="Priority messages",
    minutes=4,
    learn=(
        "a log has no lane for overtaking: an urgent record waits for all in front of it",
        "with a topic for each priority the consumer decides before every record",
        "strict priority can starve the others; shares cannot",
    ),
    brokers=1,
    topics=(Topic("jobs"), Topic("jobs.urgent"), Topic("jobs.normal")),
    summary="Two or three topics by priority, and a consumer that gives the urgent one a larger share, "
    "not all of it.",
)


class Lane:
    """A topic of one partition, read record by record by somebody who knows whether there is one more."""

    def __init__(self, lab: Lab, topic: str) -> None:
        options = {"group_id": f"lane-{topic}", "enable_auto_commit": False, "fetch_wait_max_ms": 20}
        self._place = TopicPartition(topic, 0, 0)
        self._consumer = Consumer(client_config(lab.bootstrap, options))
        self._consumer.assign([self._place])
        self._position = 0

    def waiting(self) -> int:
        """How many records are there to be read, as the broker says now."""
        bounds = self._consumer.get_watermark_offsets(self._place, timeout=WAIT_SECONDS, cached=False)
        return int(bounds[1]) - self._position

    def take(self) -> str:
        """The next record."""
        message = self._consumer.poll(WAIT_SECONDS)
        if message is None or message.error() is not None:
            raise TimeoutError(f"a record of {self._place.topic} was announced and did not come")
        self._position = (message.offset() or 0) + 1
        return text(message.value()) or ""

    def close(self) -> None:
        self._consumer.close()


Choice = Callable[[Lane, Lane, int], Lane]


def strict(urgent: Lane, normal: Lane, number: int) -> Lane:
    """The urgent lane whenever something waits there."""
    return urgent if urgent.waiting() else normal


def shares(urgent: Lane, normal: Lane, number: int) -> Lane:
    """Three of four records from the urgent lane, the fourth from the normal one, as far as there are any."""
    if number % 4 == 3 and normal.waiting():
        return normal
    return urgent if urgent.waiting() else normal


def _work(lab: Lab, choose: Choice, count: int, meanwhile: Callable[[int], None] | None = None) -> list[str]:
    """Process `count` records in the order that `choose` makes; `meanwhile(n)` happens after the nth."""
    lanes: tuple[Lane, Lane] = lab.notes["lanes"]
    done: list[str] = []
    for number in range(count):
        done.append(choose(*lanes, number).take())
        if meanwhile is not None:
            meanwhile(number + 1)
    return done


@SCENARIO.step(
    "One topic",
    narration="Twenty normal jobs are waiting when an urgent one comes.",
    action="send all of them to one topic and read",
    prediction="the urgent job is the last one",
)
def one_topic(lab: Lab, see: Observation) -> None:
    lab.produce("jobs", [*(f"normal {number}" for number in range(NORMAL)), "urgent"])
    order = [record.value for record in lab.read("jobs")]
    place = order.index("urgent") + 1 if "urgent" in order else 0
    see.figure("place_of_the_urgent_job", place)
    see.say(f"The urgent job was number {place} of {len(order)}.")
    see.check("it came last", place == NORMAL + 1, place)


@SCENARIO.step(
    "Two topics",
    narration="Now urgent jobs have a topic of their own, and the consumer looks there before every job.",
    action="twenty normal jobs wait; two urgent ones come after the fifth job",
    prediction="they are the sixth and the seventh",
)
def two_topics(lab: Lab, see: Observation) -> None:
    lab.notes["lanes"] = (Lane(lab, "jobs.urgent"), Lane(lab, "jobs.normal"))
    lab.produce("jobs.normal", [f"normal {number}" for number in range(NORMAL)])

    def meanwhile(done: int) -> None:
        if done == 5:
            lab.produce("jobs.urgent", ["urgent 0", "urgent 1"])

    order = _work(lab, strict, NORMAL + 2, meanwhile)
    see.say("Order of work: " + ", ".join(order[:9]) + ", …")
    places = [order.index(name) + 1 for name in ("urgent 0", "urgent 1") if name in order]
    see.figure("places_of_the_urgent_jobs", places)
    see.check("the urgent jobs came next", places == [6, 7], places)
    normal = [name for name in order if name.startswith("normal")]
    see.check("the normal ones kept their order", normal == [f"normal {n}" for n in range(NORMAL)], normal)


@SCENARIO.step(
    "Starving",
    narration="Somebody marks everything as urgent: an urgent job comes for every one that is done.",
    action="one normal job waits; do twelve jobs by strict priority",
    prediction="the normal job is never done",
)
def starving(lab: Lab, see: Observation) -> None:
    lab.produce("jobs.normal", ["the normal one"])
    lab.produce("jobs.urgent", ["urgent"])
    order = _work(lab, strict, 12, lambda done: _one_more(lab))
    see.figure("urgent_done", len(order))
    see.say(
        f"{order.count('urgent')} urgent jobs were done, {len(order) - order.count('urgent')} normal ones."
    )
    see.check("twelve urgent jobs, not the normal one", order == ["urgent"] * 12, order)


def _one_more(lab: Lab) -> None:
    lab.produce("jobs.urgent", ["urgent"])


@SCENARIO.step(
    "Shares",
    narration="Three of four jobs are taken from the urgent topic, the fourth from the normal one.",
    action="do four more jobs by shares, while urgent ones keep coming",
    prediction="the fourth is the normal one",
)
def by_shares(lab: Lab, see: Observation) -> None:
    order = _work(lab, shares, 4, lambda done: _one_more(lab))
    see.figure("order", order)
    see.say("Order of work: " + ", ".join(order) + ".")
    see.check("the normal job was the fourth", order == ["urgent"] * 3 + ["the normal one"], order)
    for lane in lab.notes["lanes"]:
        lane.close()
