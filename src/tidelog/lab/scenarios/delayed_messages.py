"""Delayed messages as a pattern: one topic per delay, and a forwarder that waits for the first record."""

import time
from collections.abc import Sequence

from confluent_kafka import Consumer, Message, TopicPartition

from tidelog.lab.clients import client_config, text
from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic

SHORT_MS = 500
LONG_MS = 2_500
WAIT_SECONDS = 15.0
#: how much later than due a message may come on a busy machine
LATE_MS_MAX = 1_500

SCENARIO = Scenario(
    name="delayed-messages",
    title="Delayed messages",
    minutes=4,
    learn=(
        "a log is read in order, so a record that waits holds up those behind it",
        "with one topic per delay the first record is always the next one due",
        "the forwarder commits after it has passed a record on, so a crash loses none",
    ),
    brokers=1,
    topics=(Topic("mixed"), Topic("delay-short"), Topic("delay-long"), Topic("reminders")),
    summary="Use one topic for each delay you need; what is due at arbitrary times belongs into a store "
    "with an index.",
)


def _send_delayed(lab: Lab, topic: str, name: str, delay_ms: int) -> None:
    due_ms = int(time.time() * 1000) + delay_ms
    sender = lab.sender()
    sender.send(topic, name, headers=[("due-ms", str(due_ms))])
    sender.flush()


def _due_ms(message: Message) -> int:
    headers = dict(message.headers() or [])
    return int(text(headers["due-ms"]) or 0)


class Forwarder:
    """Passes the records of some topics on to 'reminders', each when it is due and no sooner."""

    def __init__(self, lab: Lab, topics: Sequence[str]) -> None:
        self._lab = lab
        options = {"group_id": "forwarder", "auto_offset_reset": "earliest", "enable_auto_commit": False}
        self._consumers = {topic: Consumer(client_config(lab.bootstrap, options)) for topic in topics}
        for topic, consumer in self._consumers.items():
            places = consumer.committed([TopicPartition(topic, 0)], timeout=WAIT_SECONDS)
            start = max(0, places[0].offset)
            consumer.assign([TopicPartition(topic, 0, start)])
        self._waiting: dict[str, Message] = {}

    def run(self, count: int, *, crash_after: int = 0) -> list[tuple[str, int]]:
        """Pass so many records on; name and how many ms after its time each one went.

        With `crash_after`, stop for good after so many, before the commit of the last.
        """
        passed: list[tuple[str, int]] = []
        deadline = time.monotonic() + WAIT_SECONDS
        while len(passed) < count and time.monotonic() < deadline:
            for topic, consumer in self._consumers.items():
                if topic not in self._waiting:
                    message = consumer.poll(0.02)
                    if message is None or message.error() is not None:
                        continue
                    self._waiting[topic] = message
                waiting = self._waiting[topic]
                late_ms = int(time.time() * 1000) - _due_ms(waiting)
                if late_ms < 0:
                    continue  # its time has not come; what is behind it waits as well
                self._lab.produce("reminders", [text(waiting.value()) or ""])
                passed.append((text(waiting.value()) or "", late_ms))
                del self._waiting[topic]
                if len(passed) == crash_after:
                    return passed
                consumer.commit(message=waiting, asynchronous=False)
        return passed

    def close(self) -> None:
        for consumer in self._consumers.values():
            consumer.close()


def _forward(lab: Lab, topics: Sequence[str], count: int, crash_after: int = 0) -> list[tuple[str, int]]:
    forwarder = Forwarder(lab, topics)
    try:
        return forwarder.run(count, crash_after=crash_after)
    finally:
        forwarder.close()


@SCENARIO.step(
    "One topic for all delays",
    narration="Two reminders: one is due in 2.5 s, the next one in 0.5 s. A forwarder reads them in "
    "order and waits until each is due.",
    action="send both to the topic 'mixed'",
    prediction="the second reminder is about 2 s late: it had to wait behind the first",
)
def mixed(lab: Lab, see: Observation) -> None:
    _send_delayed(lab, "mixed", "in 2.5 s", LONG_MS)
    _send_delayed(lab, "mixed", "in 0.5 s", SHORT_MS)
    passed = _forward(lab, ["mixed"], 2)
    see.table(("reminder", "late by ms"), passed)
    late = dict(passed)
    see.figure("late_ms", late)
    see.check(
        "both came, the long one first", [name for name, _ in passed] == ["in 2.5 s", "in 0.5 s"], passed
    )
    see.check(
        "the short one was late by the difference", late.get("in 0.5 s", 0) >= LONG_MS - SHORT_MS - 100, late
    )


@SCENARIO.step(
    "A topic for each delay",
    narration="All records of a topic have the same delay now, so the first one is always the next one due.",
    action="send a reminder to 'delay-long' and one to 'delay-short'",
    prediction="each comes when it is due, the short one first; none comes too early",
)
def separate(lab: Lab, see: Observation) -> None:
    _send_delayed(lab, "delay-long", "in 2.5 s", LONG_MS)
    _send_delayed(lab, "delay-short", "in 0.5 s", SHORT_MS)
    passed = _forward(lab, ["delay-long", "delay-short"], 2)
    see.table(("reminder", "late by ms"), passed)
    see.figure("late_ms", dict(passed))
    see.check("the short one came first", [name for name, _ in passed] == ["in 0.5 s", "in 2.5 s"], passed)
    on_time = all(0 <= late_ms <= LATE_MS_MAX for _, late_ms in passed)
    see.check("both came on time, not before it", on_time, passed)


@SCENARIO.step(
    "The forwarder dies",
    narration="The waiting records are in a topic, not in the forwarder's memory. It commits after it "
    "has passed a record on; it dies just before such a commit.",
    action="send 3 reminders, let the forwarder die after passing on the second, start it again",
    prediction="none is lost; the one that was not committed comes twice",
)
def crash(lab: Lab, see: Observation) -> None:
    before = len(lab.read("reminders"))
    for number in range(3):
        _send_delayed(lab, "delay-short", f"reminder {number}", SHORT_MS)
    _forward(lab, ["delay-short"], 3, crash_after=2)
    _forward(lab, ["delay-short"], 2)
    came = [record.value for record in lab.read("reminders")[before:]]
    see.figure("came", came)
    see.say("In 'reminders': " + ", ".join(str(name) for name in came) + ".")
    expected = ["reminder 0", "reminder 1", "reminder 1", "reminder 2"]
    see.check("none was lost, one was repeated", came == expected, came)
