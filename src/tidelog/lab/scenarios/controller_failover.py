"""Controller failover: one broker decides for all; when it dies, another decides, and records flow on."""

import time

from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic

SCENARIO = Scenario(
    name="controller-failover",
    title="When the controller dies",
    minutes=5,
    learn=(
        "one broker is the controller: it decides who leads, who is in sync, which topics there are",
        "producers and consumers do not need it: records flow without a controller",
        "when it dies another takes over by itself, with a higher epoch",
        "one that was only asleep cannot decide any more when it wakes up: it is fenced",
    ),
    brokers=3,
    topics=(Topic("orders", partitions=3),),
    summary="the controller is a role, not a place; epochs keep an old one from deciding",
)


@SCENARIO.step(
    "Who decides",
    narration="The brokers elect a controller among themselves. Every broker knows who it is, and passes"
    " requests such as 'create a topic' on to it.",
    action="ask every broker who the controller is",
    prediction="all three name the same one",
)
def who(lab: Lab, see: Observation) -> None:
    answers = {broker: lab.cluster.view(broker).controller_id for broker in lab.cluster.broker_ids}
    see.table(("asked", "controller"), answers.items())
    see.check("all name the same one", len(set(answers.values())) == 1, answers)
    see.check("it is one of them", set(answers.values()) <= set(lab.cluster.broker_ids), answers)


@SCENARIO.step(
    "It dies",
    narration="The controller's session ends with it. The others notice, and the first to take the"
    " vacant place is the next controller. It reads everything that was decided, and finishes what was"
    " begun.",
    action="kill the controller; send records meanwhile to a partition that another broker leads",
    prediction="another controller within seconds; the records are stored without waiting for it",
)
def dies(lab: Lab, see: Observation) -> None:
    old = lab.cluster.wait_controller()
    led_elsewhere = next(number for number in range(3) if lab.leader("orders", number) != old)
    sender = lab.sender(acks=1)
    sender.send("orders", "before", partition=led_elsewhere)
    sender.flush()
    began = time.monotonic()
    lab.faults.kill(old)
    for number in range(20):
        sender.send("orders", f"without a controller {number}", partition=led_elsewhere)
    sent = sender.flush()[1:]
    new = lab.cluster.wait_controller(other_than=old)
    seconds = time.monotonic() - began
    lab.notes["old"] = old
    see.say(f"broker {old} was the controller; broker {new} is, {seconds:.2f} s after the kill")
    see.figure("takeover_seconds", round(seconds, 2))
    worst_ms = max(delivery.latency_ms for delivery in sent)
    see.figure("slowest_record_ms", round(worst_ms))
    see.say(f"20 records were stored meanwhile, the slowest in {worst_ms:.0f} ms")
    see.check("another broker is the controller", new != old, new)
    see.check("all 20 records were stored", all(delivery.acknowledged for delivery in sent), sent)


@SCENARIO.step(
    "The new one decides",
    narration="Two decisions were due: who leads the partitions of the dead broker, and whatever comes next.",
    action="look at the leaders of 'orders', and create a topic",
    prediction="every partition has a living leader, and the topic is created",
)
def decides(lab: Lab, see: Observation) -> None:
    old = lab.notes["old"]
    lab.wait("all partitions have a leader", lambda: all(leader not in (old, -1) for leader in _leaders(lab)))
    lab.create_topic("decided-later", partitions=1, replication_factor=2)
    see.table(("partition of orders", "leader"), enumerate(_leaders(lab)))
    see.check("no partition is led by the dead broker", old not in _leaders(lab), _leaders(lab))
    found = lab.partition("decided-later")
    see.check("the new topic is on the two living brokers", old not in found.replicas, found)


def _leaders(lab: Lab) -> list[int]:
    return [lab.leader("orders", number) for number in range(3)]


@SCENARIO.step(
    "One that was asleep",
    narration="Worse than a dead controller is one that was asleep (a long pause of the machine) and"
    " thinks it still decides. Every decision carries the controller's epoch, and the store refuses an"
    " old one.",
    action="start the dead broker again, then pause the present controller until its session ends, and"
    " wake it",
    prediction="another is the controller; the sleeper wakes as an ordinary broker and nobody hears two"
    " voices",
)
def asleep(lab: Lab, see: Observation) -> None:
    lab.faults.start(lab.notes["old"])
    lab.wait_isr("orders", lab.cluster.broker_ids)
    sleeper = lab.cluster.wait_controller()
    lab.faults.expire_session(sleeper)
    new = lab.cluster.wait_controller(other_than=sleeper)
    lab.wait(
        "all brokers agree again",
        lambda: {lab.cluster.view(broker).controller_id for broker in lab.cluster.broker_ids} == {new},
    )
    lab.wait_isr("orders", lab.cluster.broker_ids)
    answers = {broker: lab.cluster.view(broker).controller_id for broker in lab.cluster.broker_ids}
    see.table(("asked", "controller"), answers.items())
    see.check("the sleeper is not the controller", new != sleeper, new)
    see.check("all three name the same one, the sleeper too", set(answers.values()) == {new}, answers)
    lab.create_topic("after-the-sleep", partitions=1)
    see.check("decisions are made", lab.leader("after-the-sleep") in lab.cluster.broker_ids)
