"""The handlers of the metadata plane, through the real codec, in every version they serve."""

import dataclasses
import importlib
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kio.serial import entity_reader
from kio.static.primitive import i8, i16, i32

from tests.support.simulated_store import SimulatedCluster
from tests.unit.broker.node import ManualClock
from tidelog.broker.metadata.election import encode_live, live_key
from tidelog.broker.metadata.metadata import LifecycleCallbacks, Metadata, Registration
from tidelog.broker.runtime.background import InlineBackground
from tidelog.broker.runtime.events import Events
from tidelog.broker.runtime.live_settings import LiveSettings
from tidelog.broker.runtime.peers import NoPeers
from tidelog.broker.runtime.purgatory import DelayedAnswer
from tidelog.broker.runtime.timers import Timers
from tidelog.controller.commands import CreateTopics, LiveBroker, TopicSpec
from tidelog.coordination.store import ABSENT, Write
from tidelog.model.errors import ErrorCode
from tidelog.model.identifiers import TopicPartition
from tidelog.model.metadata import Endpoint, PartitionRecord
from tidelog.model.settings import BrokerSettings
from tidelog.protocol import messages
from tidelog.protocol.apis import APIS

INTERNAL_ID = UUID(int=77 << 64, version=4)
NOT_ASKED = -(2**31)
ROWS = {row.module: row for row in APIS.values()}


class Node:
    """What handlers see of a broker, with real settings and metadata underneath."""

    def __init__(self, broker_count: int = 1, **overrides: str) -> None:
        named = {name.replace("_", "."): value for name, value in overrides.items()}
        self.settings = LiveSettings(BrokerSettings.resolve(named))
        self.node_id = 1
        clock = ManualClock()
        timers, events = Timers(clock), Events(clock, self.node_id)
        self.timers = timers
        peers = NoPeers(lambda call: call())
        cluster = SimulatedCluster()
        self.metadata = Metadata(
            cluster.open,
            self.settings.static,
            InlineBackground(),
            Random(2),
            timers,
            peers,
            self.node_id,
            events,
            LifecycleCallbacks(),
        )
        self.metadata.load()
        self.metadata.listen(self._adopt)
        self.others = []
        for broker_id in range(1, broker_count + 1):
            endpoints = {"PLAINTEXT": Endpoint(f"host{broker_id}", 9000 + broker_id)}
            rack = f"rack{broker_id}"
            if broker_id == self.node_id:
                self.metadata.start(partial(Registration, endpoints, rack), lambda refused: None)
                continue
            live = LiveBroker(broker_id, f"life of {broker_id}", endpoints, rack)
            self.others.append(other := cluster.open())
            other.commit([Write(live_key(broker_id), encode_live(live), ABSENT, ephemeral=True)])
        assert len(self.image.alive_brokers) == broker_count

    def _adopt(self, old: object, new: Any, records: object) -> None:
        own = new.broker_configs.get(str(self.node_id), {})
        self.settings.adopt(new.broker_configs.get("", {}), own)

    @property
    def image(self) -> Any:
        return self.metadata.image

    def create(self, *topics: TopicSpec) -> None:
        self.metadata.submit(CreateTopics(topics), lambda results: None)

    def ask(self, module: str, version: int, body: Any, listener_name: str = "PLAINTEXT") -> Any:
        """Handle a request and read the answer back from its bytes."""
        api = ROWS[module]
        context = SimpleNamespace(listener_name=listener_name, client_id="test", principal="User:ANONYMOUS")
        request = SimpleNamespace(context=context, api=api, version=version, body=body)
        kind = importlib.import_module(f"tidelog.broker.requests.handlers.{module}").Handler
        handler = kind(*(getattr(self, field.name) for field in dataclasses.fields(kind)))
        fields = handler.handle(request)
        if isinstance(fields, DelayedAnswer):
            answers: list[Any] = []
            fields.deliver_to(answers.append)
            [fields] = answers
        encoded = messages.encode_response(api, version, fields)
        name = "".join(word.capitalize() for word in module.split("_")) + "Response"
        schema = importlib.import_module(f"kio.schema.{module}.v{version}.response")
        answer, size = entity_reader(getattr(schema, name))(memoryview(encoded), 0)
        assert size == len(encoded)
        return answer


def versions(module: str) -> list[int]:
    return list(range(ROWS[module].min_version, ROWS[module].max_version + 1))


def body(**fields: Any) -> SimpleNamespace:
    return SimpleNamespace(**fields)


def named(*names: str) -> tuple[SimpleNamespace, ...]:
    return tuple(body(name=name, topic_id=None) for name in names)


# Metadata


@pytest.mark.parametrize("version", versions("metadata"))
def test_metadata_of_all_topics(version: int) -> None:
    node = Node(2)
    node.create(TopicSpec("orders", 3, 2))
    everything = () if version == 0 else None
    answer = node.ask("metadata", version, body(topics=everything))
    assert [(broker.node_id, broker.host, broker.port) for broker in answer.brokers] == [
        (1, "host1", 9001),
        (2, "host2", 9002),
    ]
    [topic] = answer.topics
    assert topic.name == "orders" and [part.partition_index for part in topic.partitions] == [0, 1, 2]
    assert all(part.error_code == 0 and set(part.isr_nodes) == {1, 2} for part in topic.partitions)
    if version >= 1:
        assert answer.controller_id == 1 and answer.brokers[0].rack == "rack1"
    if version >= 2:
        assert answer.cluster_id == node.image.cluster_id
    if version >= 8:
        assert topic.topic_authorized_operations == NOT_ASKED
    if version >= 10:
        assert topic.topic_id == node.image.topics["orders"].topic_id


def test_metadata_of_no_topics_is_not_all_of_them() -> None:
    node = Node()
    node.create(TopicSpec("orders"))
    assert node.ask("metadata", 1, body(topics=())).topics == ()


@pytest.mark.parametrize("version", versions("metadata"))
def test_metadata_creates_unknown_topics_and_waits_for_them(version: int) -> None:
    node = Node(num_partitions="4")
    request = body(topics=named("fresh", "fresh", "bad name"), allow_auto_topic_creation=True)
    if version < 4:
        del request.allow_auto_topic_creation
    [fresh, bad] = node.ask("metadata", version, request).topics
    assert (fresh.error_code, len(fresh.partitions), fresh.partitions[0].leader_id) == (0, 4, 1)
    assert (bad.error_code, bad.partitions) == (ErrorCode.INVALID_TOPIC_EXCEPTION, ())
    assert list(node.image.topics) == ["fresh"]


def test_metadata_does_not_create_where_it_must_not() -> None:
    node = Node()
    request = body(topics=named("fresh"), allow_auto_topic_creation=False)
    assert node.ask("metadata", 12, request).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    closed = Node(auto_create_topics_enable="false")
    request.allow_auto_topic_creation = True
    assert closed.ask("metadata", 12, request).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert not node.image.topics and not closed.image.topics


def test_metadata_says_why_a_topic_could_not_be_created() -> None:
    node = Node(default_replication_factor="3")
    node.create(TopicSpec("a.b", 1, 1))
    request = body(topics=named("fresh", "a_b"), allow_auto_topic_creation=True)
    [fresh, colliding] = node.ask("metadata", 12, request).topics
    assert fresh.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
    assert colliding.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_metadata_creates_internal_topics_as_internal() -> None:
    node = Node(offsets_topic_num_partitions="7")
    request = body(topics=named("__consumer_offsets"), allow_auto_topic_creation=True)
    [topic] = node.ask("metadata", 12, request).topics
    assert topic.is_internal and len(topic.partitions) == 7
    assert node.image.topics["__consumer_offsets"].configs["cleanup.policy"] == "compact"


def test_metadata_by_topic_id() -> None:
    node = Node()
    node.create(TopicSpec("orders"))
    topic_id = node.image.topics["orders"].topic_id
    asked = (body(name=None, topic_id=topic_id), body(name=None, topic_id=INTERNAL_ID))
    [known, unknown] = node.ask("metadata", 12, body(topics=asked, allow_auto_topic_creation=True)).topics
    assert (known.name, known.error_code) == ("orders", 0)
    assert (unknown.name, unknown.error_code, unknown.topic_id) == (
        None,
        ErrorCode.UNKNOWN_TOPIC_ID,
        INTERNAL_ID,
    )


def test_names_do_not_count_beside_topic_ids() -> None:
    """Java's consumers send empty names with ids."""
    node = Node()
    node.create(TopicSpec("orders"))
    topic_id = node.image.topics["orders"].topic_id
    asked = (body(name="", topic_id=topic_id), body(name="new", topic_id=None))
    [known] = node.ask("metadata", 13, body(topics=asked, allow_auto_topic_creation=True)).topics
    assert (known.name, known.error_code, known.topic_id) == ("orders", 0, topic_id)
    assert set(node.image.topics) == {"orders"}


def test_metadata_tells_permitted_operations_when_asked() -> None:
    node = Node()
    node.create(TopicSpec("orders"))
    request = body(
        topics=None, include_cluster_authorized_operations=True, include_topic_authorized_operations=True
    )
    answer = node.ask("metadata", 9, request)
    assert (
        answer.cluster_authorized_operations == 8096 and answer.topics[0].topic_authorized_operations == 3576
    )


@pytest.mark.parametrize(
    ("version", "error"), [(5, ErrorCode.LEADER_NOT_AVAILABLE), (6, ErrorCode.LISTENER_NOT_FOUND)]
)
def test_metadata_on_a_listener_the_leader_lacks(version: int, error: ErrorCode) -> None:
    node = Node()
    node.create(TopicSpec("orders"))
    answer = node.ask("metadata", version, body(topics=None), listener_name="INTERNAL")
    assert answer.brokers == () and answer.topics[0].partitions[0].error_code == error


# CreateTopics, DeleteTopics, CreatePartitions


def creatable(name: str, partitions: int = 1, replicas: int = 1, **configs: str | None) -> SimpleNamespace:
    pairs = tuple(body(name=key.replace("_", "."), value=value) for key, value in configs.items())
    return body(
        name=name,
        num_partitions=i32(partitions),
        replication_factor=i16(replicas),
        assignments=(),
        configs=pairs,
    )


@pytest.mark.parametrize("version", versions("create_topics"))
def test_create_topics(version: int) -> None:
    node = Node()
    topics = (
        creatable("good", 3, 1, retention_ms="5"),
        creatable("bad", 1, 2),
        creatable("odd", 1, 1, x="1"),
    )
    answer = node.ask("create_topics", version, body(topics=topics, validate_only=False))
    assert [topic.name for topic in answer.topics] == ["good", "bad", "odd"]
    good, bad, odd = answer.topics
    assert (good.error_code, bad.error_code, odd.error_code) == (
        0,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_CONFIG,
    )
    assert good.error_message is None and "2" in bad.error_message and "'x'" in odd.error_message
    if version >= 5:
        values = {config.name: (config.value, config.config_source) for config in good.configs}
        assert values["retention.ms"] == ("5", 1) and values["segment.bytes"] == ("1073741824", 5)
        assert (good.num_partitions, good.replication_factor) == (3, 1)
        assert bad.configs == () and bad.num_partitions == -1
    if version >= 7:
        assert good.topic_id == node.image.topics["good"].topic_id


def test_create_topics_named_twice_is_answered_once() -> None:
    node = Node()
    answer = node.ask("create_topics", 7, body(topics=(creatable("a"), creatable("a")), validate_only=False))
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.INVALID_REQUEST]
    assert not node.image.topics


def test_create_topics_by_hand_and_validate_only() -> None:
    node = Node(2)
    topic = creatable("manual", -1, -1)
    topic.assignments = (body(partition_index=i32(0), broker_ids=(i32(2), i32(1))),)
    assert node.ask("create_topics", 7, body(topics=(topic,), validate_only=True)).topics[0].error_code == 0
    assert not node.image.topics
    node.ask("create_topics", 7, body(topics=(topic,), validate_only=False))
    assert node.image.topics["manual"].partitions[0].replicas == (2, 1)


@pytest.mark.parametrize("version", versions("delete_topics"))
def test_delete_topics(version: int) -> None:
    node = Node()
    node.create(TopicSpec("a"), TopicSpec("b"))
    topic_id = node.image.topics["b"].topic_id
    if version < 6:
        answer = node.ask("delete_topics", version, body(topic_names=("a", "missing")))
        assert [(item.name, item.error_code) for item in answer.responses] == [
            ("a", 0),
            ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ]
        return
    topics = (*named("a"), body(name=None, topic_id=topic_id), body(name=None, topic_id=INTERNAL_ID))
    answer = node.ask("delete_topics", version, body(topics=topics))
    assert [(item.name, item.error_code) for item in answer.responses] == [
        ("a", 0),
        ("b", 0),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
    ]
    assert answer.responses[1].topic_id == topic_id and not node.image.topics


def test_delete_topics_switched_off() -> None:
    node = Node(delete_topic_enable="false")
    node.create(TopicSpec("a"))
    [old] = node.ask("delete_topics", 2, body(topic_names=("a",))).responses
    [new] = node.ask("delete_topics", 5, body(topic_names=("a",))).responses
    assert (old.error_code, new.error_code) == (ErrorCode.INVALID_REQUEST, ErrorCode.TOPIC_DELETION_DISABLED)


@pytest.mark.parametrize("version", versions("create_partitions"))
def test_create_partitions(version: int) -> None:
    node = Node()
    node.create(TopicSpec("a"), TopicSpec("b", 4))
    topics = (
        body(name="a", count=i32(3), assignments=None),
        body(name="b", count=i32(4), assignments=None),
    )
    answer = node.ask("create_partitions", version, body(topics=topics, validate_only=False))
    assert [(item.name, item.error_code) for item in answer.results] == [
        ("a", 0),
        ("b", ErrorCode.INVALID_PARTITIONS),
    ]
    assert len(node.image.topics["a"].partitions) == 3
    by_hand = (body(name="a", count=i32(4), assignments=(body(broker_ids=(i32(9),)),)),)
    [refused] = node.ask("create_partitions", version, body(topics=by_hand, validate_only=False)).results
    assert refused.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


# Settings


def describe(kind: int, name: str, keys: tuple[str, ...] | None = None) -> SimpleNamespace:
    return body(resource_type=i8(kind), resource_name=name, configuration_keys=keys)


@pytest.mark.parametrize("version", versions("describe_configs"))
def test_describe_configs_of_a_topic(version: int) -> None:
    node = Node(log_retention_minutes="5")
    node.create(TopicSpec("a", configs={"segment.ms": "7"}))
    request = body(
        resources=(describe(2, "a", ("segment.ms", "retention.ms", "no.such")),),
        include_synonyms=True,
        include_documentation=True,
    )
    [result] = node.ask("describe_configs", version, request).results
    [retention, segment] = result.configs
    assert (retention.name, retention.value, retention.config_source) == ("retention.ms", "300000", 5)
    assert (segment.name, segment.value, segment.config_source) == ("segment.ms", "7", 1)
    assert [(item.name, item.value, item.source) for item in segment.synonyms] == [
        ("segment.ms", "7", 1),
    ]
    # Set for the broker, but not by the name that the topic's setting goes by: Kafka lists nothing.
    assert retention.synonyms == ()
    assert not segment.read_only and not segment.is_sensitive
    if version >= 3:
        assert (segment.config_type, segment.documentation) == (5, "The age at which a new segment begins.")


def test_describe_configs_of_brokers() -> None:
    node = Node(log_retention_bytes="7")
    plain = body(include_synonyms=False, include_documentation=False)
    plain.resources = (
        describe(4, "1"),
        describe(4, ""),
        describe(4, "2"),
        describe(8, "2"),
        describe(32, ""),
        describe(16, ""),
        describe(7, "x"),
    )
    own, shared, *refused = node.ask("describe_configs", 4, plain).results
    values = {config.name: config for config in own.configs}
    assert (values["log.retention.bytes"].value, values["log.retention.bytes"].config_source) == ("7", 4)
    assert values["node.id"].read_only and not values["log.retention.bytes"].read_only
    assert values["node.id"].synonyms == () and values["node.id"].documentation is None
    assert shared.configs == () and shared.error_code == 0
    assert [result.error_code for result in refused] == [ErrorCode.INVALID_REQUEST] * 5


def test_describe_configs_of_topics_that_are_not_there() -> None:
    request = body(resources=(describe(2, "no"), describe(2, "n o")), include_synonyms=False)
    [missing, illegal] = Node().ask("describe_configs", 1, request).results
    assert missing.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and "'no'" in missing.error_message
    assert illegal.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def change(name: str, operation: int, value: str | None) -> SimpleNamespace:
    return body(name=name, config_operation=i8(operation), value=value)


def resource(kind: int, name: str, *configs: SimpleNamespace) -> SimpleNamespace:
    return body(resource_type=i8(kind), resource_name=name, configs=configs)


@pytest.mark.parametrize("version", versions("incremental_alter_configs"))
def test_incremental_alter_configs(version: int) -> None:
    node = Node()
    node.create(TopicSpec("a", configs={"segment.ms": "7"}))
    request = body(
        resources=(
            resource(7, "metrics"),
            resource(2, "a", change("cleanup.policy", 2, "compact"), change("segment.ms", 1, None)),
            resource(4, "1", change("log.retention.ms", 0, "9")),
            resource(2, "a2", change("segment.ms", 9, "1")),
            resource(4, "", change("node.id", 0, "3")),
        ),
        validate_only=False,
    )
    answer = node.ask("incremental_alter_configs", version, request)
    assert [(item.resource_type, item.resource_name, item.error_code) for item in answer.responses] == [
        (7, "metrics", ErrorCode.INVALID_REQUEST),
        (2, "a", 0),
        (4, "1", 0),
        (2, "a2", ErrorCode.INVALID_REQUEST),
        (4, "", ErrorCode.INVALID_CONFIG),
    ]
    assert node.image.topics["a"].configs == {"cleanup.policy": "delete,compact"}
    plain = body(resources=(describe(4, "1", ("log.retention.ms",)),), include_synonyms=False)
    [result] = node.ask("describe_configs", 2, plain).results
    assert (result.configs[0].value, result.configs[0].config_source) == ("9", 2)


@pytest.mark.parametrize("version", versions("alter_configs"))
def test_alter_configs_replaces_everything(version: int) -> None:
    node = Node()
    node.create(TopicSpec("a", configs={"segment.ms": "7"}))
    request = body(
        resources=(resource(2, "a", body(name="retention.ms", value="5")), resource(8, "1")),
        validate_only=True,
    )
    node.ask("alter_configs", version, request)
    assert node.image.topics["a"].configs == {"segment.ms": "7"}
    request.validate_only = False
    answer = node.ask("alter_configs", version, request)
    assert [item.error_code for item in answer.responses] == [0, ErrorCode.INVALID_REQUEST]
    assert node.image.topics["a"].configs == {"retention.ms": "5"}
    only_unsupported = body(resources=(resource(8, "1"),), validate_only=False)
    assert len(node.ask("alter_configs", version, only_unsupported).responses) == 1


# The cluster


@pytest.mark.parametrize("version", versions("describe_cluster"))
def test_describe_cluster(version: int) -> None:
    node = Node(2)
    answer = node.ask("describe_cluster", version, body(include_cluster_authorized_operations=True))
    assert (answer.cluster_id, answer.controller_id) == (node.image.cluster_id, 1)
    assert [(broker.broker_id, broker.host, broker.port) for broker in answer.brokers] == [
        (1, "host1", 9001),
        (2, "host2", 9002),
    ]
    assert answer.cluster_authorized_operations == 8096


def test_describe_cluster_of_controllers_is_refused() -> None:
    request = body(include_cluster_authorized_operations=False, endpoint_type=i8(2))
    assert Node().ask("describe_cluster", 1, request).error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE
    request.endpoint_type = i8(7)
    assert Node().ask("describe_cluster", 1, request).error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE


@pytest.mark.parametrize("version", versions("describe_quorum"))
def test_describe_quorum_tells_who_decides_and_how_far_the_metadata_has_come(version: int) -> None:
    node = Node(2)
    asked = body(topic_name="__cluster_metadata", partitions=[body(partition_index=i32(0))])
    other = body(topic_name="orders", partitions=[body(partition_index=i32(0))])

    def ask() -> Any:
        return node.ask("describe_quorum", version, body(topics=[asked, other]))

    [metadata], [unknown] = (topic.partitions for topic in ask().topics)
    assert (metadata.leader_id, metadata.leader_epoch) == (1, node.image.controller_epoch)
    assert [voter.replica_id for voter in metadata.current_voters] == [1, 2]
    if version >= 2:
        nodes = {each.node_id: each.listeners for each in ask().nodes}
        assert set(nodes) == {1, 2}
        assert all(len(listeners) == 1 and listeners[0].port for listeners in nodes.values())
        assert metadata.error_message is None and unknown.error_message
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    before = metadata.high_watermark
    node.create(TopicSpec("orders"))
    assert ask().topics[0].partitions[0].high_watermark == before + 1


def page(node: Node, names: tuple[str, ...], limit: int, cursor: Any = None) -> Any:
    request = body(topics=named(*names), response_partition_limit=i32(limit), cursor=cursor)
    return node.ask("describe_topic_partitions", 0, request)


def test_describe_topic_partitions_page_by_page() -> None:
    node = Node()
    node.create(TopicSpec("b", 3), TopicSpec("a", 2), TopicSpec("c", 1))
    seen: list[tuple[str, int]] = []
    cursor = None
    pages = 0
    while True:
        answer = page(node, (), 2, cursor)
        for topic in answer.topics:
            for part in topic.partitions:
                seen.append((topic.name, part.partition_index))
                assert part.eligible_leader_replicas == () and part.last_known_elr == ()
        assert sum(len(topic.partitions) for topic in answer.topics) <= 2
        pages += 1
        cursor = answer.next_cursor
        if cursor is None:
            break
    assert seen == [("a", 0), ("a", 1), ("b", 0), ("b", 1), ("b", 2), ("c", 0)] and pages == 3


def test_describe_topic_partitions_shows_eligible_leaders() -> None:
    node = Node()
    node.create(TopicSpec("a", 2))
    record = PartitionRecord(
        "a", 1, -1, 3, (1, 2, 3), (), 4, elr=(3,), last_known_elr=(1, 2), unclean_leader_epoch=2
    )
    node.metadata._current.image = node.image.apply([record])
    [answer] = page(node, ("a",), 10).topics
    first, second = answer.partitions
    assert (first.eligible_leader_replicas, first.last_known_elr) == ((), ())
    assert (second.leader_id, second.isr_nodes) == (-1, ())
    assert (second.eligible_leader_replicas, second.last_known_elr) == ((3,), (1, 2))


def test_describe_topic_partitions_of_named_topics() -> None:
    node = Node()
    node.create(TopicSpec("b", 3), TopicSpec("a", 2))
    answer = page(node, ("b", "missing", "n o"), 0)
    assert [(topic.name, topic.error_code, len(topic.partitions)) for topic in answer.topics] == [("b", 0, 1)]
    assert (answer.next_cursor.topic_name, answer.next_cursor.partition_index) == ("b", 1)
    rest = page(node, ("b", "missing", "n o"), 100, answer.next_cursor)
    assert [(topic.name, topic.error_code, len(topic.partitions)) for topic in rest.topics] == [
        ("b", 0, 2),
        ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0),
        ("n o", ErrorCode.INVALID_TOPIC_EXCEPTION, 0),
    ]
    assert rest.topics[0].topic_authorized_operations == 3576
    assert rest.next_cursor is None


def test_describe_topic_partitions_with_a_cursor_that_cannot_be() -> None:
    node = Node()
    node.create(TopicSpec("a", 2))
    for cursor in (body(topic_name="z", partition_index=0), body(topic_name="a", partition_index=-1)):
        answer = page(node, ("a",), 10, cursor)
        assert [topic.error_code for topic in answer.topics] == [ErrorCode.INVALID_REQUEST]
    beyond = page(node, ("a",), 10, body(topic_name="a", partition_index=5))
    assert beyond.topics[0].partitions == () and beyond.next_cursor is None


@pytest.mark.parametrize("version", versions("describe_log_dirs"))
def test_describe_log_dirs(version: int, tmp_path: Any) -> None:
    node = Node()
    first, second = tmp_path / "first", tmp_path / "gone"
    first.mkdir()

    def log(topic: str, index: int, directory: Any, size_bytes: int) -> SimpleNamespace:
        key = TopicPartition(topic, index)
        return body(directory=f"{directory}/{key}", topic_partition=key, size_bytes=size_bytes)

    logs = [log("a", 1, first, 10), log("a", 0, second, 20), log("b", 0, first, 30)]
    node.log_moves = body(futures={})  # type: ignore[attr-defined]
    node.log_directories = body(  # type: ignore[attr-defined]
        directories=[body(path=f"{first}/"), body(path=str(second))],
        offline=[],
        logs={item.topic_partition: item for item in logs},
    )

    def sizes(answer: Any) -> list[dict[tuple[str, int], int]]:
        return [
            {
                (topic.name, part.partition_index): part.partition_size
                for topic in result.topics
                for part in topic.partitions
            }
            for result in answer.results
        ]

    answer = node.ask("describe_log_dirs", version, body(topics=None))
    assert [result.log_dir for result in answer.results] == [str(first), str(second)]
    assert sizes(answer) == [{("a", 1): 10, ("b", 0): 30}, {("a", 0): 20}]
    if version >= 4:
        assert answer.results[0].total_bytes >= answer.results[0].usable_bytes > 0
        assert (answer.results[1].total_bytes, answer.results[1].usable_bytes) == (-1, -1)
    chosen = (body(topic="a", partitions=(i32(1), i32(9))),)
    assert sizes(node.ask("describe_log_dirs", version, body(topics=chosen))) == [{("a", 1): 10}, {}]


def test_list_config_resources() -> None:
    node = Node(2)
    node.create(TopicSpec("b"), TopicSpec("a"))
    assert node.ask("list_config_resources", 0, body()).config_resources == ()
    everything = node.ask("list_config_resources", 1, body(resource_types=())).config_resources
    assert [(item.resource_type, item.resource_name) for item in everything] == [
        *((8, "1"), (8, "2"), (4, "1"), (4, "2")),
        *((2, "a"), (2, "b")),
    ]
    brokers = node.ask("list_config_resources", 1, body(resource_types=(i8(4), i8(4)))).config_resources
    assert [item.resource_name for item in brokers] == ["1", "2"]
    odd = node.ask("list_config_resources", 1, body(resource_types=(i8(99),)))
    assert odd.error_code == ErrorCode.UNSUPPORTED_VERSION
