"""Unclean election: only a replica that is behind is left; wait, or lose records."""

from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic

SCENARIO = Scenario(
    name="unclean-election",
    title="Unclean election: what is lost",
    minutes=5,
    learn=(
        "only a replica in sync may lead; if all of those are gone, the partition waits",
        "waiting keeps the data and costs availability; that is the default",
        "unclean.leader.election.enable=true takes a replica that is behind: what it lacks is lost",
        "the old leader, when it returns, cuts its extra records off: histories never differ for readers",
    ),
    brokers=2,
    topics=(Topic("orders", replication_factor=2, configs={"min.insync.replicas": "1"}),),
    summary="unclean election is a choice of availability over data; leave it off unless you can lose"
    " records",
)


def _values(lab: Lab) -> list[str | None]:
    lab.wait_committed("orders")
    return [record.value for record in lab.read("orders")]


@SCENARIO.step(
    "A follower falls behind",
    narration="Two copies. The follower dies, the leader goes on alone (min.insync.replicas is 1 here,"
    " which is the mistake that makes the rest possible).",
    action="send five records, kill the follower, send five more",
    prediction="all ten are acknowledged; the follower's copy has five",
)
def falls_behind(lab: Lab, see: Observation) -> None:
    leader = lab.leader("orders")
    [follower] = lab.followers("orders")
    lab.notes.update(leader=leader, follower=follower)
    both = lab.produce("orders", [f"on both {number}" for number in range(5)], acks="all")
    lab.faults.kill(follower)
    lab.wait_isr("orders", {leader})
    alone = lab.produce("orders", [f"on the leader alone {number}" for number in range(5)], acks="all")
    ends = {item.broker: item.log_end for item in lab.replicas("orders")}
    see.table(
        ("broker", "log end", "in sync"), [(i.broker, i.log_end, i.in_sync) for i in lab.replicas("orders")]
    )
    see.check("all ten were acknowledged", all(d.acknowledged for d in [*both, *alone]), alone)
    see.check("the follower has five, the leader ten", (ends[follower], ends[leader]) == (5, 10), ends)


@SCENARIO.step(
    "The leader dies, the follower returns",
    narration="Now the only replica in sync is dead. The follower is back, but it lacks five records"
    " that were acknowledged.",
    action="kill the leader, start the follower",
    prediction="nobody leads: the partition waits for the broker that has everything",
)
def waits(lab: Lab, see: Observation) -> None:
    leader, follower = lab.notes["leader"], lab.notes["follower"]
    lab.faults.kill(leader)
    lab.faults.start(follower)
    lab.wait("the dead leader is noticed", lambda: lab.leader("orders") != leader)
    found = lab.partition("orders")
    see.table(
        ("leader", "ISR", "alive"), [("nobody" if found.leader < 0 else found.leader, found.isr, follower)]
    )
    see.check("nobody leads", found.leader == -1, found)
    sent = lab.produce("orders", ["can this be stored?"], message_timeout_ms=1500, timeout_seconds=10)
    told = sent[0].error if sent else "no answer"
    see.check("writing fails", told == "_MSG_TIMED_OUT", told)


@SCENARIO.step(
    "The unclean choice",
    narration="If the disk of the old leader is lost for good, one may prefer half of the records to none.",
    action="set unclean.leader.election.enable=true on the topic",
    prediction="the follower leads; five acknowledged records are gone",
)
def unclean(lab: Lab, see: Observation) -> None:
    lab.set_topic_config("orders", "unclean.leader.election.enable", "true")
    new = lab.wait_leader("orders")
    values = _values(lab)
    see.say(f"broker {new} leads; the log has {len(values)} records")
    see.figure("records_left", len(values))
    see.figure("acknowledged_records_lost", 10 - len(values))
    see.check("the follower leads", new == lab.notes["follower"], new)
    see.check(
        "what only the old leader had is gone", values == [f"on both {number}" for number in range(5)], values
    )


@SCENARIO.step(
    "The old leader returns",
    narration="New records take the offsets of the lost ones. The old leader has other records there: it"
    " asks by leader epoch where the histories part, and cuts its own off.",
    action="send eight records, start the old leader, read its file",
    prediction="its log ends at 13 like the new leader's, and its five extra records are cut off",
)
def truncates(lab: Lab, see: Observation) -> None:
    old = lab.notes["leader"]
    lab.produce("orders", [f"after the election {number}" for number in range(8)], acks=1)
    before = next(item.log_end for item in lab.replicas("orders") if item.broker == old)
    lab.faults.start(old)
    lab.wait_isr("orders", lab.cluster.broker_ids)
    ends = {item.broker: item.log_end for item in lab.replicas("orders")}
    see.say(f"the old leader's log ended at {before}, now at {ends[old]}: five are cut off, eight copied")
    see.figure("old_leader_end_before", before)
    see.figure("old_leader_end_after", ends[old])
    values = _values(lab)
    see.check("both logs end at 13", set(ends.values()) == {13}, ends)
    see.check("the lost records do not come back", not any("alone" in str(value) for value in values), values)
    stored = lab.log_bytes(old, "orders")
    see.check("not even in the old leader's file", b"on the leader alone" not in stored)
