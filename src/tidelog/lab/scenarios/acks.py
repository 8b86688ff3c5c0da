"""acks: what 0, 1 and all promise, and what each loses when the leader dies."""

from tidelog.lab.clients import Delivery
from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic

RECORDS = 10

SCENARIO = Scenario(
    name="acks",
    title="acks: what an acknowledgement is worth",
    minutes=7,
    learn=(
        "acks=0: 'sent' means that it left the producer, nothing more",
        "acks=1: the leader has it; if the leader dies before a follower copied it, it is gone",
        "acks=all: every replica in sync has it; what was acknowledged survives the leader",
        "the producer's acks is a promise about acknowledged records only",
    ),
    brokers=3,
    topics=(Topic("acks-0"), Topic("acks-1"), Topic("acks-all"), Topic("acks-safe")),
    summary="acks=all (the default of today's clients) with min.insync.replicas=2 for what must not be lost",
)


def _values(name: str) -> list[str]:
    return [f"{name} {number}" for number in range(RECORDS)]


def _table(lab: Lab, see: Observation, topic: str, acknowledged: int) -> int:
    """Show what was acknowledged and what is there now; how many acknowledged records are lost."""
    lab.wait_committed(topic)
    there = {record.value for record in lab.read(topic)}
    left = sum(value in there for value in _values(topic))
    see.table(("topic", "acknowledged", "in the log now"), [(topic, f"{acknowledged} of {RECORDS}", left)])
    return acknowledged - left


def _back(lab: Lab, topic: str, broker: int) -> None:
    """Start the broker again and wait until it has caught up."""
    lab.faults.start(broker)
    lab.wait_isr(topic, lab.cluster.broker_ids)


@SCENARIO.step(
    "acks=0: sent and forgotten",
    narration="With acks=0 the broker does not answer, so the producer takes a record for delivered as"
    " soon as it is written to the connection. Here the leader stands still (SIGSTOP) when the records"
    " come: they wait in the buffers of the network.",
    action="pause the leader, send ten records with acks=0, then kill the leader",
    prediction="all ten are reported as delivered, and none of them is in the log",
)
def acks_0(lab: Lab, see: Observation) -> None:
    sender = lab.sender(acks=0)
    sender.send("acks-0", "a first record opens the connection")
    sender.flush()
    leader = lab.leader("acks-0")
    lab.wait("the first record is stored", lambda: lab.positions("acks-0").high_watermark == 1)
    lab.faults.pause(leader)
    for value in _values("acks-0"):
        sender.send("acks-0", value)
    sent = sender.flush(5)[1:]
    lab.faults.kill(leader)
    lab.wait_leader("acks-0", other_than=leader)
    acknowledged = sum(delivery.acknowledged for delivery in sent)
    lost = _table(lab, see, "acks-0", acknowledged)
    see.figure("acknowledged", acknowledged)
    see.figure("lost", lost)
    see.check("the producer took all ten for delivered", acknowledged == RECORDS, sent)
    see.check("all ten are lost", lost == RECORDS, f"{lost} are lost")
    _back(lab, "acks-0", leader)


def _send_while_followers_are_cut(lab: Lab, topic: str, **options: object) -> tuple[int, list[Delivery]]:
    """Cut both followers off, send, kill the leader, heal; the dead leader and what the producer was told."""
    leader = lab.leader(topic)
    sender = lab.sender(**options)
    sender.send(topic, "a first record opens the connection")
    sender.flush()
    followers = lab.followers(topic)
    for follower in followers:
        lab.faults.cut(follower)
    for value in _values(topic):
        sender.send(topic, value)
    sent = sender.flush(8)[1:]
    lab.faults.kill(leader)
    for follower in followers:
        lab.faults.heal(follower)
    sender.abandon()
    lab.wait_leader(topic, other_than=leader)
    return leader, sent


@SCENARIO.step(
    "acks=1: the leader has it",
    narration="With acks=1 the leader answers when it has written the records itself. Followers copy them a"
    " moment later. Here that moment is stretched: the followers are cut off, then the leader dies.",
    action="cut both followers off, send ten records with acks=1, kill the leader, heal the network",
    prediction="all ten are acknowledged, and lost: the new leader never had them",
)
def acks_1(lab: Lab, see: Observation) -> None:
    leader, sent = _send_while_followers_are_cut(lab, "acks-1", acks=1)
    acknowledged = sum(delivery.acknowledged for delivery in sent)
    lost = _table(lab, see, "acks-1", acknowledged)
    see.figure("acknowledged", acknowledged)
    see.figure("lost", lost)
    see.check("the leader acknowledged all ten", acknowledged == RECORDS, sent)
    see.check("all ten are lost", lost == RECORDS, f"{lost} are lost")
    _back(lab, "acks-1", leader)


@SCENARIO.step(
    "acks=all: the same trouble",
    narration="With acks=all the leader answers when every replica in sync has the records. In the same"
    " trouble it cannot know that, so it does not answer, and the producer knows that it does not know.",
    action="cut both followers off, send ten records with acks=all and two seconds of patience, kill the"
    " leader",
    prediction="nothing is acknowledged, so nothing that was acknowledged is lost",
)
def acks_all(lab: Lab, see: Observation) -> None:
    leader, sent = _send_while_followers_are_cut(lab, "acks-all", acks="all", message_timeout_ms=2000)
    acknowledged = sum(delivery.acknowledged for delivery in sent)
    lost = _table(lab, see, "acks-all", acknowledged)
    see.figure("acknowledged", acknowledged)
    see.say(f"the producer was told: {sorted({str(delivery.error) for delivery in sent})}")
    see.check("no record was acknowledged", acknowledged == 0, sent)
    see.check("the producer was told of every record", len(sent) == RECORDS, len(sent))
    see.check("no acknowledged record is lost", lost <= 0, f"{lost} are lost")
    _back(lab, "acks-all", leader)


@SCENARIO.step(
    "acks=all: what is acknowledged stays",
    narration="Without a cut the followers have the records before the producer hears of them. Killing the"
    " leader right then costs nothing but a moment.",
    action="send ten records with acks=all, kill the leader as soon as they are acknowledged",
    prediction="all ten are there, on the new leader",
)
def acks_safe(lab: Lab, see: Observation) -> None:
    leader = lab.leader("acks-safe")
    sent = lab.produce("acks-safe", _values("acks-safe"), acks="all")
    lab.faults.kill(leader)
    new = lab.wait_leader("acks-safe", other_than=leader)
    acknowledged = sum(delivery.acknowledged for delivery in sent)
    lost = _table(lab, see, "acks-safe", acknowledged)
    see.say(f"broker {leader} is dead, broker {new} leads")
    see.figure("acknowledged", acknowledged)
    see.figure("lost", lost)
    see.check("all ten were acknowledged", acknowledged == RECORDS, sent)
    see.check("none is lost", lost == 0, f"{lost} are lost")
