"""A request that names the same thing thousands of times: described once, in slices, within bounds."""

import importlib
import tracemalloc
from typing import Any

import pytest

from tests.unit.broker.node import NodeUnderTest
from tests.unit.groups.test_groups_handlers import QUICK, ask, join, send
from tidelog.broker.coordinators.coordinator_runtime import CoordinatorRuntime
from tidelog.broker.requests import dispatch
from tidelog.broker.requests.request import CloseConnection
from tidelog.protocol import schema_writer
from tidelog.protocol.apis import APIS, DESCRIBE_CONFIGS
from tidelog.protocol.messages import encode_response, encode_response_pieces
from tidelog.protocol.slices import running

TIMES = 200
TOPIC = 2
BROKER = 4


def config_resources(kind: int, *names: str) -> dict[str, Any]:
    resources = [{"resource_type": kind, "resource_name": name, "configuration_keys": None} for name in names]
    return {"resources": resources, "include_synonyms": True, "include_documentation": True}


@pytest.fixture
def node() -> NodeUnderTest:
    node = NodeUnderTest(**QUICK)
    node.create_topic("t", 2)
    return node


@pytest.mark.parametrize(
    ("module", "version", "method", "fields", "rows"),
    [
        ("describe_configs", 4, "_explain", config_resources(TOPIC, *["t"] * TIMES), "results"),
        (
            "describe_groups",
            5,
            "_describe",
            {"groups": ["g"] * TIMES, "include_authorized_operations": True},
            "groups",
        ),
        (
            "consumer_group_describe",
            1,
            "machine_for",
            {"group_ids": ["g"] * TIMES, "include_authorized_operations": True},
            "groups",
        ),
        (
            "share_group_describe",
            1,
            "machine_for",
            {"group_ids": ["g"] * TIMES, "include_authorized_operations": True},
            "groups",
        ),
        (
            "describe_transactions",
            0,
            "_describe",
            {"transactional_ids": ["x"] * TIMES},
            "transaction_states",
        ),
        (
            "describe_producers",
            0,
            "_describe",
            {"topics": [{"name": "t", "partition_indexes": [0]}] * TIMES},
            "topics",
        ),
        (
            "offset_fetch",
            9,
            "_ask",
            {"groups": [{"group_id": "g", "topics": None}] * TIMES, "require_stable": False},
            "groups",
        ),
    ],
)
def test_what_is_named_again_is_described_once(
    node: NodeUnderTest,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    version: int,
    method: str,
    fields: dict[str, Any],
    rows: str,
) -> None:
    join(node, 5)
    handler = importlib.import_module(f"tidelog.broker.requests.handlers.{module}").Handler
    described_by = CoordinatorRuntime if method == "machine_for" else handler
    original = getattr(described_by, method)
    calls = 0

    def counted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return original(*arguments)

    monkeypatch.setattr(described_by, method, counted)
    answered = getattr(ask(node, module, version, **fields), rows)
    assert len(answered) == TIMES and len(set(map(str, answered))) == 1
    assert calls == 1, answered


def test_settings_of_many_are_described_in_slices(
    node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        node.create_topic(f"t{number}")

    class Call:
        paused_ns = 0
        pauses = 0

        def pause_if_due(self) -> None:
            self.pauses += 1

    call = Call()
    monkeypatch.setattr(running, "call", call)
    send(node, "describe_configs", 4, **config_resources(TOPIC, *(f"t{number}" for number in range(30))))
    assert call.pauses >= 30


def test_an_answer_that_would_fill_the_memory_closes_the_connection(
    node: NodeUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "ANSWER_BYTES_MAX", 4 << 20)
    monkeypatch.setattr(schema_writer, "PARTS_MAX", 1 << 10)
    some = ask(node, "describe_configs", 4, **config_resources(BROKER, *["1"] * 50))
    assert len(some.results) == 50
    with pytest.raises(CloseConnection, match="DescribeConfigs: the answer would be longer"):
        send(node, "describe_configs", 4, **config_resources(BROKER, *["1"] * 500))


def test_a_long_answer_takes_little_more_than_its_bytes_while_it_is_written() -> None:
    config = {"name": "a.name", "value": "1", "read_only": False, "config_source": 5, "is_sensitive": False}
    config |= {"synonyms": [], "config_type": 3, "documentation": None}
    result = {"error_code": 0, "error_message": None, "resource_type": 2, "resource_name": "t"}
    fields = {"results": [{**result, "configs": [config] * 40}] * 4_000}
    api = APIS[DESCRIBE_CONFIGS]
    tracemalloc.start()
    try:
        pieces = encode_response_pieces(api, 4, fields)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    whole = b"".join(pieces)
    assert whole == encode_response(api, 4, fields)
    assert peak_bytes < 16 * len(whole), (peak_bytes, len(whole))
