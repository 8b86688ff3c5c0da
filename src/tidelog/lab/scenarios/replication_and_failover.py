"""Replication and failover: a leader dies, another leads, the dead one returns and catches up."""

import time

from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic

SCENARIO = Scenario(
    name="replication-and-failover",
    title="Replication and failover",
    minutes=6,
    learn=(
        "followers copy the leader's log byte for byte; the high watermark is what all in sync have",
        "when the leader dies, the controller makes a replica in sync the leader, in a new epoch",
        "clients find the new leader by themselves; what was acknowledged is there",
        "a returning broker catches up, rejoins the ISR, and the preferred leader can lead again",
    ),
    brokers=3,
    topics=(Topic("orders", partitions=1),),
    settings={"auto.leader.rebalance.enable": "false"},
    summary="a copy on three brokers, one of them leads; a failure costs a moment, not data",
)


def _show(lab: Lab, see: Observation) -> None:
    positions = lab.positions("orders")
    see.table(
        ("broker", "role", "in sync", "log end", "high watermark"),
        [
            (
                item.broker,
                "leader" if item.leads else "follower" if item.alive else "dead",
                "yes" if item.in_sync else "no",
                item.log_end,
                positions.high_watermark if item.leads else None,
            )
            for item in lab.replicas("orders")
        ],
    )


@SCENARIO.step(
    "Three copies",
    narration="One replica leads: producers and consumers talk to it alone. The others fetch from it all"
    " the time, like consumers, and write the same bytes at the same offsets.",
    action="send 20 records with acks=all and compare the files of the three brokers",
    prediction="three logs of the same length, equal to the last byte",
)
def copies(lab: Lab, see: Observation) -> None:
    lab.produce("orders", [f"order {number}" for number in range(20)], acks="all")
    lab.wait("all logs are equally long", lambda: {item.log_end for item in lab.replicas("orders")} == {20})
    _show(lab, see)
    contents = {broker: lab.log_bytes(broker, "orders") for broker in lab.cluster.broker_ids}
    sizes = {broker: len(content) for broker, content in contents.items()}
    see.figure("bytes_of_each_copy", sizes)
    same = len(set(contents.values())) == 1
    see.check("the three files are equal to the last byte", same, sizes)
    see.check("all three replicas are in sync", len(lab.partition("orders").isr) == 3)


@SCENARIO.step(
    "The leader dies",
    narration="Nobody is asked and nobody is called at night: the controller sees that the broker's"
    " session is over and makes another replica in sync the leader.",
    action="kill the leader with SIGKILL",
    prediction="within a few seconds another broker leads, and the ISR has two",
)
def leader_dies(lab: Lab, see: Observation) -> None:
    dead = lab.leader("orders")
    lab.notes["dead"] = dead
    began = time.monotonic()
    lab.faults.kill(dead)
    new = lab.wait_leader("orders", other_than=dead)
    seconds = time.monotonic() - began
    lab.wait_isr("orders", set(lab.cluster.broker_ids) - {dead})
    _show(lab, see)
    see.say(f"broker {new} took over {seconds:.2f} s after broker {dead} was killed")
    see.figure("failover_seconds", round(seconds, 2))
    see.check("another broker leads", new not in (dead, -1), new)
    lab.wait_committed("orders")
    read = [record.value for record in lab.read("orders")]
    see.check("all 20 records are there", read == [f"order {number}" for number in range(20)], len(read))


@SCENARIO.step(
    "Work goes on",
    narration="Clients that talked to the dead broker ask the others who leads now, and go on. Meanwhile"
    " the logs of the living and of the dead drift apart.",
    action="send ten more records with acks=all",
    prediction="they are stored; the dead broker's copy is ten records behind",
)
def goes_on(lab: Lab, see: Observation) -> None:
    sent = lab.produce("orders", [f"later {number}" for number in range(10)], acks="all")
    _show(lab, see)
    see.check("all ten are acknowledged", all(delivery.acknowledged for delivery in sent), sent)
    ends = {item.broker: item.log_end for item in lab.replicas("orders")}
    see.check("the dead copy is ten behind", ends[lab.notes["dead"]] == 20, ends)


@SCENARIO.step(
    "It comes back",
    narration="A returning broker may have records that never were acknowledged. It asks the leader how"
    " far their histories agree (by leader epochs), cuts the rest off, and copies what it missed.",
    action="start the dead broker again",
    prediction="it catches up and is in sync, as a follower",
)
def returns(lab: Lab, see: Observation) -> None:
    dead = lab.notes["dead"]
    began = time.monotonic()
    lab.faults.start(dead)
    lab.wait_isr("orders", lab.cluster.broker_ids)
    seconds = time.monotonic() - began
    _show(lab, see)
    see.say(f"in sync again {seconds:.1f} s after its start")
    see.figure("back_in_sync_seconds", round(seconds, 1))
    ends = {item.broker: item.log_end for item in lab.replicas("orders")}
    see.check("all three logs end at 30", set(ends.values()) == {30}, ends)
    see.check("it follows", lab.leader("orders") != dead)


@SCENARIO.step(
    "The preferred leader",
    narration="The first replica of a partition is its preferred leader; placement spreads those evenly."
    " After a failure others lead more than their share, so leadership goes back: by itself every few"
    " minutes (auto.leader.rebalance.enable), or when you ask.",
    action="elect the preferred leader",
    prediction="the broker that died leads again",
)
def preferred(lab: Lab, see: Observation) -> None:
    first = lab.partition("orders").replicas[0]
    lab.elect_preferred_leader("orders")
    sent = lab.produce("orders", ["after the election"], acks="all")
    epochs: dict[int, int] = {}
    for header in lab.headers(first, "orders"):
        epochs.setdefault(header.partition_leader_epoch, header.base_offset)
    _show(lab, see)
    see.table(("leader epoch", "from offset"), epochs.items(), title="under whom the records were written")
    see.check("the preferred replica leads", lab.leader("orders") == first)
    see.check("each leader wrote in an epoch of its own", list(epochs.values()) == [0, 20, 30], epochs)
    see.check("and takes writes", sent[0].acknowledged and sent[0].offset == 30, sent)
