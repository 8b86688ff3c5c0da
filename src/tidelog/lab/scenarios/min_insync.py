"""min.insync.replicas: three copies with two required, and the mistake of requiring three."""

from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic

SCENARIO = Scenario(
    name="min-insync",
    title="How many must have it: min.insync.replicas",
    minutes=5,
    learn=(
        "acks=all means all replicas in sync: without a minimum that may be one",
        "3 replicas with 2 required: one broker may be away and everything goes on",
        "below the minimum writes with acks=all are refused, reads go on",
        "3 required of 3: every restart of a broker stops the writers",
    ),
    brokers=3,
    topics=(
        Topic("payments", configs={"min.insync.replicas": "2"}),
        Topic("strict", configs={"min.insync.replicas": "3"}),
    ),
    summary="replication factor 3, min.insync.replicas 2, acks=all: one broker may fail at any time",
)


def _try(lab: Lab, topic: str, value: str, acks: str | int = "all") -> str:
    """Send one record without retries: 'stored', or the broker's refusal."""
    sent = lab.produce(topic, [value], acks=acks, retries=0, message_timeout_ms=8000)
    return (sent[0].error or "stored") if sent else "no answer"


@SCENARIO.step(
    "All three are there",
    narration="The topic 'payments' has three copies and min.insync.replicas=2; 'strict' requires all three.",
    action="send a record with acks=all to both",
    prediction="both are stored",
)
def all_there(lab: Lab, see: Observation) -> None:
    told = {topic: _try(lab, topic, "all are there") for topic in ("payments", "strict")}
    see.table(("topic", "in sync", "acks=all"), [(t, len(lab.partition(t).isr), told[t]) for t in told])
    see.check("payments is stored", told["payments"] == "stored", told)
    see.check("strict is stored", told["strict"] == "stored", told)


@SCENARIO.step(
    "One broker is away",
    narration="A broker dies, or is restarted for an upgrade: it leaves the in-sync set (ISR).",
    action="kill a follower, then send to both topics with acks=all",
    prediction="'payments' goes on with two copies; 'strict' refuses: NOT_ENOUGH_REPLICAS",
)
def one_away(lab: Lab, see: Observation) -> None:
    leaders = {lab.leader("payments"), lab.leader("strict")}
    away = next(broker for broker in lab.cluster.broker_ids if broker not in leaders)
    lab.notes["away"] = [away]
    lab.faults.kill(away)
    staying = set(lab.cluster.broker_ids) - {away}
    for topic in ("payments", "strict"):
        lab.wait_isr(topic, staying)
    told = {topic: _try(lab, topic, "one is away") for topic in ("payments", "strict")}
    see.table(("topic", "in sync", "acks=all"), [(t, len(lab.partition(t).isr), told[t]) for t in told])
    see.check("payments is stored", told["payments"] == "stored", told)
    refused = told["strict"] in ("NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND")
    see.check("strict refuses: this is the mistake of requiring all", refused, told)


@SCENARIO.step(
    "Two brokers are away",
    narration="Only one copy of 'payments' is in sync now. If writes were accepted, one more failure"
    " would lose them: so they are refused. What is stored can still be read.",
    action="kill another follower of 'payments', then write with acks=all and read",
    prediction="the write is refused, the read works",
)
def two_away(lab: Lab, see: Observation) -> None:
    leader = lab.leader("payments")
    second = next(b for b in lab.cluster.broker_ids if b != leader and b not in lab.notes["away"])
    lab.notes["away"].append(second)
    lab.faults.kill(second)
    lab.wait_isr("payments", {leader})
    told = _try(lab, "payments", "two are away")
    read = [record.value for record in lab.read("payments")]
    see.table(("in sync", "acks=all", "records read"), [(1, told, len(read))])
    refused = told in ("NOT_ENOUGH_REPLICAS", "NOT_ENOUGH_REPLICAS_AFTER_APPEND")
    see.check("the write is refused", refused, told)
    see.check("reading goes on", read == ["all are there", "one is away"], read)


@SCENARIO.step(
    "acks=1 walks past it",
    narration="The minimum counts for acks=all only. A producer with acks=1 is still served, and trusts"
    " one disk.",
    action="send a record with acks=1",
    prediction="it is stored, in a single copy",
)
def acks_1_passes(lab: Lab, see: Observation) -> None:
    told = _try(lab, "payments", "a single copy", acks=1)
    rows = [(item.broker, item.log_end, item.alive) for item in lab.replicas("payments")]
    see.table(("broker", "log end", "alive"), rows)
    see.check("acks=1 is stored", told == "stored", told)
    ends = sorted(item[1] for item in rows)
    see.check("only one copy has it", ends[-1] > ends[-2], ends)


@SCENARIO.step(
    "They come back",
    narration="Returning brokers copy what they missed from the leader and rejoin the in-sync set by"
    " themselves.",
    action="start both brokers again, and send to both topics with acks=all",
    prediction="both topics are whole again and take writes",
)
def back(lab: Lab, see: Observation) -> None:
    for broker in lab.notes["away"]:
        lab.faults.start(broker)
    for topic in ("payments", "strict"):
        lab.wait_isr(topic, lab.cluster.broker_ids)
    told = {topic: _try(lab, topic, "all are back") for topic in ("payments", "strict")}
    ends = {item.broker: item.log_end for item in lab.replicas("payments")}
    see.table(("broker", "log end of payments"), ends.items())
    see.check("both take writes again", set(told.values()) == {"stored"}, told)
    see.check("all copies are equally long", len(set(ends.values())) == 1, ends)
