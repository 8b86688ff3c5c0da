"""Dead letters: a record that cannot be processed blocks its partition, unless it is put aside."""

import json
from dataclasses import dataclass, field

from confluent_kafka import Consumer, Message

from tidelog.lab.clients import client_config, text
from tidelog.lab.group_view import lag
from tidelog.lab.lab import Lab
from tidelog.lab.scenario import Observation, Scenario, Topic
from tidelog.lab.to_the_end import to_the_end

RECORDS = 10
POISON = 4
ATTEMPTS = 3

SCENARIO = Scenario(
    name="dead-letter",
    title="Dead letters",
    minutes=4,
    learn=(
        "a consumer that fails on a record and starts again meets the same record again",
        "put aside what fails several times, with where it came from and why",
        "a dead letter topic is read by people and can be sent back",
    ),
    brokers=1,
    topics=(Topic("orders"), Topic("orders.dead-letter")),
    summary="Give every consumer that parses or calls others a dead letter topic, and watch that "
    "topic's length.",
)


def _amount(value: str) -> int:
    """The work: an order must be JSON with an amount."""
    amount = json.loads(value)["amount"]
    if not isinstance(amount, int):
        raise ValueError(f"amount is {amount!r}")
    return amount


@dataclass(slots=True)
class Life:
    """What one life of the consumer did."""

    amounts: list[int] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)
    died_at: int = -1


def _put_aside(lab: Lab, message: Message, fault: Exception) -> None:
    sender = lab.sender(acks="all")
    headers = [
        ("original-topic", message.topic()),
        ("original-partition", str(message.partition())),
        ("original-offset", str(message.offset())),
        ("error", f"{type(fault).__name__}: {fault}"),
        ("attempts", str(ATTEMPTS)),
    ]
    sender.send("orders.dead-letter", text(message.value()), text(message.key()), headers=headers)
    sender.flush()


def _work(lab: Lab, *, dead_letters: bool) -> Life:
    """One life of a consumer of 'orders', up to the end or to the record that kills it."""
    options = {
        "group_id": "billing",
        "group_instance_id": "billing-1",
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        "enable_partition_eof": True,
    }
    consumer, life = Consumer(client_config(lab.bootstrap, options)), Life()
    try:
        consumer.subscribe(["orders"])
        for message in to_the_end(consumer):
            if not _take(lab, message, life, dead_letters=dead_letters):
                break
            consumer.commit(message=message, asynchronous=False)
    finally:
        consumer.close()
    return life


def _take(lab: Lab, message: Message, life: Life, *, dead_letters: bool) -> bool:
    """Process a record, several times if need be; False where the consumer dies of it."""
    offset = message.offset()
    assert offset is not None
    for attempt in range(1, ATTEMPTS + 1):
        try:
            life.amounts.append(_amount(text(message.value()) or ""))
            return True
        except (ValueError, KeyError) as fault:
            if attempt == ATTEMPTS and dead_letters:
                _put_aside(lab, message, fault)
                life.dead.append(offset)
                return True
    life.died_at = offset
    return False


@SCENARIO.step(
    "A poison record",
    narration=f"Ten orders; the one at offset {POISON} is not what it should be. The consumer fails, "
    f"and is started "
    "again by whoever looks after it.",
    action="run the consumer three times",
    prediction=f"it dies at offset {POISON} each time, and the orders behind it wait",
)
def poison(lab: Lab, see: Observation) -> None:
    orders = [json.dumps({"amount": number}) for number in range(RECORDS)]
    orders[POISON] = '{"amount": "a lot"}'
    lab.produce("orders", [(f"customer-{number}", order) for number, order in enumerate(orders)])
    lives = [_work(lab, dead_letters=False) for _ in range(3)]
    died = [life.died_at for life in lives]
    done = [len(life.amounts) for life in lives]
    behind = lag(lab, "billing", "orders", 1)
    see.table(("life", "processed", "died at offset"), [(n + 1, done[n], died[n]) for n in range(3)])
    see.figure("lag", behind[0])
    see.check("it died at the same record each time", died == [POISON] * 3, died)
    see.check("only the first life did anything", done == [POISON, 0, 0], done)
    see.check("everything from there on waits", behind == {0: RECORDS - POISON}, behind)


@SCENARIO.step(
    "Put aside",
    narration=f"Now the consumer tries a record {ATTEMPTS} times, then sends it to 'orders.dead-letter' "
    f"and goes on.",
    action="run the consumer with dead letters",
    prediction="one record is put aside, all the others are processed, the lag is 0",
)
def put_aside(lab: Lab, see: Observation) -> None:
    life = _work(lab, dead_letters=True)
    behind = lag(lab, "billing", "orders", 1)
    see.figure("processed", len(life.amounts))
    see.figure("put_aside", len(life.dead))
    see.say(f"{len(life.amounts)} orders were processed, the one at offset {life.dead} was put aside.")
    see.check("the others were processed", life.amounts == [5, 6, 7, 8, 9], life.amounts)
    see.check("one was put aside", life.dead == [POISON], life.dead)
    see.check("nothing waits", behind == {0: 0}, behind)


@SCENARIO.step(
    "Look at it",
    narration="A dead letter says where it came from, why, and after how many attempts.",
    action="read 'orders.dead-letter'",
    prediction="the value is unchanged, and headers tell the story",
)
def look(lab: Lab, see: Observation) -> None:
    letters = lab.read("orders.dead-letter")
    headers = {name: (value or b"").decode() for name, value in letters[0].headers} if letters else {}
    see.table(("header", "value"), sorted(headers.items()))
    values = [letter.value for letter in letters]
    see.check("the record is unchanged", values == ['{"amount": "a lot"}'], values)
    place = [headers.get(f"original-{name}") for name in ("topic", "partition", "offset")]
    see.check("it says where it came from", place == ["orders", "0", str(POISON)], place)
    see.check("and why", headers.get("error", "").startswith("ValueError"), headers.get("error"))


@SCENARIO.step(
    "Send it back",
    narration="Somebody has repaired the record. It goes to the end of 'orders': its old place in the "
    "order is lost.",
    action="send the repaired record to 'orders' and run the consumer",
    prediction="it is processed now: all ten orders are done",
)
def send_back(lab: Lab, see: Observation) -> None:
    letter = lab.read("orders.dead-letter")[0]
    lab.produce("orders", [(letter.key, json.dumps({"amount": POISON}))])
    life = _work(lab, dead_letters=True)
    see.figure("processed", life.amounts)
    see.say(f"The consumer processed the amounts {life.amounts}.")
    see.check("the repaired order was processed", life.amounts == [POISON], life.amounts)
    see.check("no new dead letter", life.dead == [], life.dead)
