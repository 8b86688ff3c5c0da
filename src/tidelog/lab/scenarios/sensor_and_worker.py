"""A sensor that speaks MQTT and a worker that speaks AMQP, at the same topics as everybody else."""

import time
from collections import Counter

from tidelog.lab.device import Device
from tidelog.lab.lab import Lab
from tidelog.lab.queue_worker import Answer, QueueWorker, declare, publish
from tidelog.lab.scenario import Observation, Scenario, Topic
from tidelog.testing.serving_command import ServingCommand

READINGS, COMMANDS = "readings", "commands"
QUEUE, ORDERS = "evaluate", "orders-for-devices"
RULES = """\
[[rule]]
filter = "sensors/+/temperature"
topic = "readings"
key = "{2}"

[[rule]]
filter = "commands/+"
topic = "commands"
key = "{2}"
"""
SENT = [("7", "21.5"), ("8", "18.0"), ("7", "22.0"), ("8", "18.5"), ("7", "40.0"), ("8", "19.0")]
STRANGE = "40.0"
#: who would get a message twice has it by then
SETTLED_SECONDS = 1.5

SCENARIO = Scenario(
    name="sensor-and-worker",
    title="A sensor and a worker",
    minutes=6,
    learn=(
        "a gateway is an ordinary client of the cluster: what comes by MQTT or AMQP is a record like others",
        "a rule says which topic and which key an MQTT topic has",
        "a queue takes nothing away: what a worker has acknowledged is still there for others",
        "sessions of devices are in topics, so they survive a gateway that dies",
    ),
    brokers=1,
    needs=("gateway-clients",),
    topics=(Topic(READINGS), Topic(COMMANDS)),
    settings={"share.coordinator.state.topic.num.partitions": "1"},
    summary="Start gateways where devices and workers are ('tidelog gateway mqtt', 'tidelog gateway amqp'); "
    "everything that they know is in topics, so several may run, and any may die.",
)


def _mqtt(lab: Lab) -> ServingCommand:
    return lab.gateways["mqtt"]


def _amqp(lab: Lab) -> ServingCommand:
    return lab.gateways["amqp"]


@SCENARIO.step(
    "A device publishes",
    narration="A sensor knows nothing of Kafka: it publishes to sensors/7/temperature. A rule of the gateway "
    "says that this is the topic 'readings', and that the number is the key.",
    action=f"start an MQTT gateway and publish {len(SENT)} readings of two devices with QoS 1",
    prediction="each is a record of 'readings' with the device's number as key; each was acknowledged",
)
def publishes(lab: Lab, see: Observation) -> None:
    rules = lab.folder / "rules.toml"
    rules.write_text(RULES)
    gateway = lab.start_gateway("mqtt", "--map", str(rules), "--name", "lab")
    with Device(gateway.port, "gauge") as device:
        for number, value in SENT:
            device.acknowledged(device.publish(f"sensors/{number}/temperature", value))
    records = lab.read(READINGS)
    see.table(("offset", "key", "value"), [(row.offset, row.key, row.value) for row in records])
    see.check(
        "what was acknowledged is in the topic, with its key",
        [(row.key, row.value) for row in records] == SENT,
        [(row.key, row.value) for row in records],
    )


def _puzzled(value: str, again: bool) -> Answer:
    """Gives the strange reading back the first time."""
    return Answer.REQUEUE if value == STRANGE and not again else Answer.ACKNOWLEDGE


@SCENARIO.step(
    "A worker takes them as jobs",
    narration="A worker speaks AMQP, as Celery does. For it the topic is a queue: it gets one reading after "
    "the other, and acknowledges each or gives it back.",
    action=f"start an AMQP gateway, a queue over 'readings', and a worker that gives {STRANGE} back once",
    prediction=f"{STRANGE} comes twice, the second time marked as redelivered; the others come once, and all "
    "are still in the topic",
)
def works(lab: Lab, see: Observation) -> None:
    gateway = lab.start_gateway("amqp")
    declare(gateway.port, QUEUE, {"x-tidelog-topic": READINGS})
    with QueueWorker(gateway.port, QUEUE, _puzzled) as worker:
        lab.wait("everything was delivered", lambda: len(worker.taken) > len(SENT), SETTLED_SECONDS * 4)
        time.sleep(SETTLED_SECONDS)
        taken = worker.taken
    see.table(("reading", "redelivered"), [(value, "yes" if again else "") for value, again in taken])
    times = Counter(value for value, _ in taken)
    expected = Counter({value: 2 if value == STRANGE else 1 for _, value in SENT})
    see.check("each was delivered once, the one that was given back twice", times == expected, times)
    again = [value for value, redelivered in taken if redelivered]
    see.check("the gateway says which one was delivered before", again == [STRANGE], again)
    left = [row.value for row in lab.read(READINGS)]
    see.check("the topic still has them all", left == [value for _, value in SENT], left)


@SCENARIO.step(
    "A worker goes without a word",
    narration="A worker has taken a reading and is gone before it said what became of it.",
    action="publish one more reading, let a worker take it and end its connection, then start another worker",
    prediction="the other worker gets it, marked as redelivered",
)
def goes(lab: Lab, see: Observation) -> None:
    with Device(_mqtt(lab).port, "gauge") as device:
        device.acknowledged(device.publish("sensors/7/temperature", "23.5"))
    with QueueWorker(_amqp(lab).port, QUEUE, lambda value, again: Answer.KEEP) as first:
        lab.wait("the first worker has it", lambda: bool(first.taken))
    with QueueWorker(_amqp(lab).port, QUEUE) as second:
        seconds = lab.wait("the second worker has it", lambda: bool(second.taken))
        taken = second.taken
    see.figure("seconds", round(seconds, 1))
    see.say(f"{seconds:.1f} s after the first worker went, the second one had it.")
    see.check("it is the same reading, redelivered", taken == [("23.5", True)], taken)


@SCENARIO.step(
    "An order for a device that is away",
    narration="The way back: a worker sends orders to the topic 'commands', with the device's number as key. "
    "The device has subscribed to commands/7, and is away. Then the MQTT gateway is killed.",
    action="send three orders for device 7 and one for device 8 by AMQP, kill the gateway with SIGKILL, "
    "start it again, and let device 7 come back",
    prediction="device 7 gets its three orders, in their order, each once",
)
def orders(lab: Lab, see: Observation) -> None:
    with Device(_mqtt(lab).port, "device-7") as device:
        device.subscribe("commands/7")
    declare(_amqp(lab).port, ORDERS, {"x-tidelog-topic": COMMANDS})
    publish(_amqp(lab).port, ORDERS, ["slower", "slower", "stop"], {"tidelog-key": "7"})
    publish(_amqp(lab).port, ORDERS, ["faster"], {"tidelog-key": "8"})
    _mqtt(lab).kill()
    _mqtt(lab).start()
    with Device(_mqtt(lab).port, "device-7") as device:
        device.wait_received(3)
        time.sleep(SETTLED_SECONDS)
        received = list(device.received)
    see.table(("MQTT topic", "order"), received)
    expected = [("commands/7", value) for value in ("slower", "slower", "stop")]
    see.check("its orders came, in order, each once", received == expected, received)


@SCENARIO.step(
    "Exactly once",
    narration="With QoS 2 a message is written once, whatever happens. The worst moment: the gateway has "
    "written it, and dies before its answer arrives. The device cannot know, and sends it again.",
    action="publish an alarm with QoS 2 and do not read the answer; when the record is in the topic, kill "
    "the gateway, start it again, and let the device go on",
    prediction="the device comes to its end, and the topic has the alarm once",
)
def exactly_once(lab: Lab, see: Observation) -> None:
    alarm = "alarm"

    def alarms() -> int:
        return [row.value for row in lab.read(READINGS, isolation_level="read_committed")].count(alarm)

    device = Device(_mqtt(lab).port, "device-7")
    try:
        device.connect()
        sent = device.publish("sensors/7/temperature", alarm, qos=2)
        lab.wait("the alarm is in the topic", lambda: alarms() > 0)
        _mqtt(lab).kill()
        _mqtt(lab).start()
        device.come_back()
        device.acknowledged(sent)
    finally:
        device.close()
    count = alarms()
    see.figure("alarms", count)
    see.say(f"The topic has the alarm {count} time{'' if count == 1 else 's'}.")
    see.check("the alarm is there once", count == 1, count)
