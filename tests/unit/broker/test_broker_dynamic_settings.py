"""A broker on which a setting is changed while it runs is like one that was started with it.

For every setting that says that it is dynamic. Everything that two brokers hold is compared, so a value that
some part keeps from its start and never looks at again is found, wherever it is. One broker is started with
the setting, the other gets it by IncrementalAlterConfigs when its log is open. What lies outside of
`tidelog.broker` is changed on a running broker in `tests/wire/test_wire_dynamic_settings.py` (limits of
connections) and `tests/unit/server/test_server_tls.py` (certificates).
"""

import functools
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, MethodType, SimpleNamespace
from typing import Any

import pytest

from tests.support.simulated_disk import SimulatedDisk
from tests.support.simulated_store import SimulatedStore
from tests.unit.broker.node import NodeUnderTest, batch, produce_frame
from tidelog.broker.broker import Broker
from tidelog.broker.metadata.metadata import Metadata
from tidelog.broker.runtime.metrics import Metrics
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.broker.runtime.timers import Timers
from tidelog.model.errors import ErrorCode
from tidelog.model.image import ClusterImage
from tidelog.model.resource_settings import CLIENT_METRICS_SETTINGS, GROUP_SETTINGS
from tidelog.model.setting_rows import Setting, UpdateMode
from tidelog.model.setting_values import format_value
from tidelog.model.settings import BrokerSettings
from tidelog.model.settings_table import BROKER_SETTINGS, TOPIC_SETTINGS
from tidelog.protocol.apis import APIS

TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1
#: read by `tidelog.server` and `tidelog.security`
OUTSIDE = {
    "max.connection.creation.rate",
    "max.connections",
    "max.connections.per.ip",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.type",
}
#: what differs because one of the two was asked to change something
METADATA = (ClusterImage, Metadata, SimulatedDisk, SimulatedStore, Timers)
#: counts and real time
UNLIKE = (*METADATA, Metrics)
#: what the broker was started with, what differs between any two brokers, and what is brought up to date
#: before each use (`CoordinatorRuntime`)
NOT_COMPARED = {"_settings_source", "directory_id", "image_version", "static"}
#: kept by no part, but asked of the broker's present settings each time
ASKED_EACH_TIME = {
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "log.cleaner.backoff.ms",
    "log.cleaner.dedupe.buffer.size",
    "replica.alter.log.dirs.io.max.bytes.per.second",
    "transaction.partition.verification.enable",
}
SOURCE = Path(__file__).parents[3] / "src" / "tidelog" / "broker"
#: values that differ from the default, where the next number would not do
OTHER_VALUES = {
    "tidelog.delay.target": "elsewhere",
    "cleanup.policy": "compact",
    "log.cleanup.policy": "compact",
    "leader.replication.throttled.replicas": "0:1",
    "follower.replication.throttled.replicas": "0:1",
    "min.cleanable.dirty.ratio": "0.25",
    "log.cleaner.min.cleanable.ratio": "0.25",
}


def dynamic(settings: dict[str, Setting]) -> list[str]:
    return sorted(
        name
        for name, setting in settings.items()
        if not setting.inert and setting.update_mode is not UpdateMode.READ_ONLY
    )


def another(setting: Setting) -> str:
    """A legal value that is not the default."""
    if setting.name in OTHER_VALUES:
        return OTHER_VALUES[setting.name]
    present = setting.default
    if setting.choices:
        return next(str(choice) for choice in setting.choices if str(choice) != format_value(present))
    if isinstance(present, bool):
        return "false" if present else "true"
    assert present is None or isinstance(present, int), setting
    number = 60_000 if present is None else int(present)
    least = setting.minimum
    return str(number - 1 if least is None or number > least else number + 1)


def fields_of(thing: object) -> Iterator[tuple[str, object]]:
    for owner in type(thing).__mro__:
        for name in getattr(owner, "__slots__", ()):
            if hasattr(thing, name):
                yield name, getattr(thing, name)
    yield from getattr(thing, "__dict__", {}).items()


def parts_of(thing: object) -> Iterator[tuple[str, object]]:
    """What a thing is made of: fields, elements, and what functions were made with."""
    match thing:
        case dict():
            for key, value in thing.items():
                yield f"[{key!r:.60}]", value
        case list() | tuple() | set() | frozenset():
            for index, value in enumerate(sorted(thing, key=repr) if isinstance(thing, set) else thing):
                yield f"[{index}]", value
        case functools.partial():
            yield from (("func", thing.func), ("args", thing.args), ("keywords", thing.keywords))
        case MethodType():
            yield "self", thing.__self__
        case FunctionType():
            for index, cell in enumerate(thing.__closure__ or ()):
                yield f"closure{index}", cell.cell_contents
        case _ if type(thing).__module__.startswith("tidelog."):
            yield from fields_of(thing)


def held_by(broker: Broker, setting: str) -> dict[str, object]:
    """Every plain value that a broker holds, by the way to it; of settings the one of this name."""
    values: dict[str, object] = {}
    seen: set[int] = set()
    waiting: deque[tuple[str, object]] = deque([("broker", broker)])
    while waiting:
        path, thing = waiting.popleft()
        if thing is None or isinstance(thing, bool | int | float | str | bytes):
            values[path] = thing
        elif isinstance(thing, BrokerSettings):
            values[path] = thing.get(setting)
        elif isinstance(thing, UNLIKE) or id(thing) in seen:
            continue
        else:
            seen.add(id(thing))
            waiting += [
                (f"{path}.{name}", part) for name, part in parts_of(thing) if name not in NOT_COMPARED
            ]
    return values


def alter(node: NodeUnderTest, kind: int, resource: str, name: str, value: str | None) -> None:
    change = SimpleNamespace(name=name, config_operation=DELETE if value is None else SET, value=value)
    asked = SimpleNamespace(resource_type=kind, resource_name=resource, configs=(change,))
    body = SimpleNamespace(resources=(asked,), validate_only=False)
    context = SimpleNamespace(listener_name="PLAINTEXT", client_id="test", principal="User:ANONYMOUS")
    request: Any = SimpleNamespace(context=context, version=1, body=body)
    answer = node.broker.make_handler(APIS[44]).handle(request)
    answers: list[Any] = [answer]
    if isinstance(answer, DelayedAnswer):
        answers = []
        answer.deliver_to(answers.append)
    [response] = answers[0]["responses"]
    assert response["error_code"] == ErrorCode.NONE, response


def running(**settings: Any) -> NodeUnderTest:
    """A broker with an open log and all its parts."""
    node = NodeUnderTest(**settings)
    node.create_topic("t")
    # Made when they are first needed.
    assert node.broker.groups.get() and node.broker.transactions.get() and node.broker.delays.get()
    return node


def difference(setting: str, one: NodeUnderTest, other: NodeUnderTest) -> dict[str, tuple[object, object]]:
    mine, others = held_by(one.broker, setting), held_by(other.broker, setting)
    return {
        path: (mine.get(path, "nothing"), others.get(path, "nothing"))
        for path in sorted(mine.keys() | others.keys())
        if mine.get(path, "nothing") != others.get(path, "nothing")
    }


@pytest.mark.parametrize("name", [name for name in dynamic(BROKER_SETTINGS) if name not in OUTSIDE])
def test_a_broker_obeys_a_changed_setting_as_if_it_was_started_with_it(name: str) -> None:
    setting = BROKER_SETTINGS[name]
    value = another(setting)
    started, changed = running(**{name.replace(".", "_"): value}), running()
    resource = "" if setting.update_mode is UpdateMode.CLUSTER_WIDE else "1"
    alter(changed, BROKER, resource, name, value)
    assert difference(name, changed, started) == {}
    kept_by_parts = difference(name, changed, running()).keys() - {"broker.settings.current"}
    assert bool(kept_by_parts) is (name not in ASKED_EACH_TIME)
    alter(changed, BROKER, resource, name, None)
    assert difference(name, changed, running()) == {}
    alter(changed, BROKER, resource, name, value)
    for node in (started, changed):
        node.handle(produce_frame(9, batch(b"a")))
    assert difference(name, changed, started) == {}


@pytest.mark.parametrize("name", dynamic(TOPIC_SETTINGS))
def test_a_log_obeys_a_changed_setting_of_its_topic_as_if_it_was_created_with_it(name: str) -> None:
    value = another(TOPIC_SETTINGS[name])
    created, changed = NodeUnderTest(), running()
    created.create_topic("t", **{name.replace(".", "_"): value})  # type: ignore[arg-type]
    assert created.broker.groups.get() and created.broker.transactions.get() and created.broker.delays.get()
    alter(changed, TOPIC, "t", name, value)
    assert difference("num.partitions", changed, created) == {}
    assert difference("num.partitions", changed, running()) != {}
    alter(changed, TOPIC, "t", name, None)
    assert difference("num.partitions", changed, running()) == {}


def test_what_no_part_keeps_is_asked_of_the_present_settings() -> None:
    text = "".join(path.read_text() for path in SOURCE.rglob("*.py"))
    asked = {name for name in ASKED_EACH_TIME if re.search(rf"\b_?settings\.get_\w+\(\s*\"{name}\"", text)}
    assert asked == ASKED_EACH_TIME


def test_every_dynamic_setting_is_changed_by_a_test() -> None:
    """Those of groups are in `test_broker_config_resources` and, of share groups, `test_broker_share_groups`
    and `test_broker_share_dead_letters`; those of client metrics have no effect.
    """
    of_shares = ("share.", "errors.deadletterqueue.", "tidelog.share.")
    assert set(dynamic(BROKER_SETTINGS)) >= OUTSIDE
    assert [name for name in dynamic(GROUP_SETTINGS) if not name.startswith(of_shares)] == [
        "consumer.heartbeat.interval.ms",
        "consumer.session.timeout.ms",
    ]
    assert dynamic(CLIENT_METRICS_SETTINGS) == []
