"""Topics and the overview of a cluster, asked of a broker in a thread of this process."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tidelog.admin import topics
from tidelog.admin.cluster_admin import ClusterAdmin
from tidelog.admin.offsets import known_offsets
from tidelog.admin.overview import Overview
from tidelog.client.api_keys import CREATE_TOPICS
from tidelog.client.client_settings import ClientSettings
from tidelog.client.cluster import EARLIEST, LATEST
from tidelog.client.faults import BadOption, LinkFault, Refusal
from tidelog.client.link import Link
from tidelog.model.errors import ErrorCode
from tidelog.testing.broker import RunningBroker


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with RunningBroker({"num.partitions": "2", "broker.rack": "here"}) as broker:
        yield broker.bootstrap


@pytest.fixture
def admin(bootstrap: str) -> Iterator[ClusterAdmin]:
    options = {"bootstrap.servers": bootstrap, "default.api.timeout.ms": "5000"}
    with ClusterAdmin(lambda: ClientSettings.from_options(options)) as admin:
        yield admin


def refused(code: ErrorCode, call: Any, *arguments: Any, **named: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        call(*arguments, **named)
    assert caught.value.code is code
    return caught.value


def test_the_life_of_a_topic(admin: ClusterAdmin) -> None:
    assert topics.create_topic(admin, "life", validate_only=True)
    assert topics.topic_views(admin, ["life"]) == {}
    assert topics.create_topic(admin, "life", configs={"retention.ms": "1000"})
    assert len(topics.topic_view(admin, "life").partitions) == 2
    fault = refused(ErrorCode.TOPIC_ALREADY_EXISTS, topics.create_topic, admin, "life", 1, 1)
    assert fault.message is not None and "already exists" in fault.message
    assert topics.create_topic(admin, "life", if_not_exists=True) is False
    topics.add_partitions(admin, "life", 3)
    (view,) = topics.topic_views(admin, ["life", "absent", "not a name"]).values()
    assert [(row.number, row.leader, row.replicas, row.isr) for row in view.partitions] == [
        (number, 1, (1,), (1,)) for number in range(3)
    ]
    refused(ErrorCode.INVALID_PARTITIONS, topics.add_partitions, admin, "life", 3)
    topics.delete_topic(admin, "life")
    refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topics.delete_topic, admin, "life")
    refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topics.topic_view, admin, "life")


@pytest.mark.parametrize(
    "asked",
    [
        {"partitions": 2**31},
        {"replication_factor": 2**15},
        {"configs": {"retention.ms": "1" * 40_000}},
    ],
)
def test_what_no_request_can_say_is_refused(admin: ClusterAdmin, asked: dict[str, Any]) -> None:
    with pytest.raises(BadOption):
        topics.create_topic(admin, "large", **asked)
    with pytest.raises(BadOption):
        topics.add_partitions(admin, "t" * 40_000, 2)


def test_a_change_whose_answer_is_lost_is_not_sent_again(
    admin: ClusterAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second request would be refused, since the first was carried out."""
    sent: list[str] = []
    request = Link.request

    def lossy(link: Link, key: int, fields: dict[str, Any], **versions: int) -> Any:
        answer = request(link, key, fields, **versions)
        if key == CREATE_TOPICS:
            sent.append(fields["topics"][0]["name"])
            raise LinkFault("the connection ended")
        return answer

    monkeypatch.setattr(Link, "request", lossy)
    with pytest.raises(LinkFault, match="ended"):
        topics.create_topic(admin, "lost", 1, 1)
    assert sent == ["lost"] and "lost" in topics.topic_views(admin)


def test_the_controller_is_looked_for_again(admin: ClusterAdmin, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = [ErrorCode.NOT_CONTROLLER] * 2
    request = Link.request

    def moving(link: Link, key: int, fields: dict[str, Any], **versions: int) -> Any:
        if key == CREATE_TOPICS and refusals:
            return SimpleNamespace(topics=[SimpleNamespace(error_code=refusals.pop(), error_message=None)])
        return request(link, key, fields, **versions)

    monkeypatch.setattr(Link, "request", moving)
    assert topics.create_topic(admin, "moving", 1, 1)
    assert not refusals


def test_a_look_tells_brokers_topics_and_ends(admin: ClusterAdmin) -> None:
    topics.create_topic(admin, "seen", 2, 1)
    overview = Overview(admin, "nobody answered")
    found = overview.snapshot({})
    assert found.cluster_id and found.controller == 1 and found.healthy
    assert [(broker.id, broker.rack) for broker in found.brokers.values()] == [(1, "here")]
    assert len(found.topics["seen"].partitions) == 2
    keys = [("seen", 0), ("seen", 1), ("seen", 9), ("absent", 0)]
    assert overview.ends(keys) == {("seen", 0): 0, ("seen", 1): 0}
    assert known_offsets(admin, keys, EARLIEST) == known_offsets(admin, keys, LATEST)
    assert known_offsets(admin, [], LATEST) == {}


def test_a_look_tries_another_broker_when_one_does_not_answer(
    admin: ClusterAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [LinkFault("no answer in time")]
    request = Link.request

    def hanging(link: Link, key: int, fields: dict[str, Any], **versions: int) -> Any:
        if faults:
            raise faults.pop()
        return request(link, key, fields, **versions)

    monkeypatch.setattr(Link, "request", hanging)
    assert Overview(admin, "nobody answered").snapshot({}).brokers
    faults += [LinkFault("gone"), LinkFault("gone too")]
    with pytest.raises(LinkFault, match="gone"):
        Overview(admin, "nobody answered").snapshot({})
