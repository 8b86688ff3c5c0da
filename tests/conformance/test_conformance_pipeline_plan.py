"""`tidelog pipeline plan` against a cluster with access rules: what is missing is said, and nothing changes.

A user gets one right after the other, each asked for by a sentence, until nothing is left to say.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from tests.conformance.test_conformance_acls import SETTINGS, outcome, properties_of
from tidelog.pipelines.checking import check_cluster_of
from tidelog.pipelines.commit_protocol import COMMIT_LOG_TOPIC
from tidelog.pipelines.definition import load_definition
from tidelog.pipelines.planning import make_plan
from tidelog.pipelines.problems import Findings
from tidelog.testing.broker import RunningBroker

SECONDS_MAX = 30
FLOW = """\
sources:
  orders: {topic: orders}
sinks:
  - topic: out
    options: {delivery: %s}
dead_letters: dead
"""


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with RunningBroker(SETTINGS, mode="process") as broker:
        yield broker.bootstrap


@pytest.fixture(scope="module")
def admin(bootstrap: str) -> AdminClient:
    return AdminClient(properties_of("admin", bootstrap))


def make(admin: AdminClient, name: str, partitions: int = 1, **config: str) -> None:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    assert outcome(admin.create_topics([NewTopic(name, partitions, 1, config=settings)])) is None


def allow(
    admin: AdminClient, kind: ResourceType, name: str, operation: AclOperation, prefix: bool = False
) -> None:
    way = ResourcePatternType.PREFIXED if prefix else ResourcePatternType.LITERAL
    rule = AclBinding(kind, name, way, "User:alice", "*", operation, AclPermissionType.ALLOW)
    assert outcome(admin.create_acls([rule])) is None


@pytest.fixture
def check(bootstrap: str, tmp_path: Path) -> Callable[..., Findings]:
    """Look at a file as a user; the properties are in the file."""

    def look(text: str, user: str = "admin") -> Findings:
        client = properties_of(user, bootstrap)
        lines = "".join(f"  {name}: {value}\n" for name, value in client.items())
        path = tmp_path / "big.yaml"
        path.write_text(f"kafka:\n{lines}{text}")
        return check_cluster_of(make_plan(load_definition(path)))

    return look


def sentences(findings: Findings) -> list[str]:
    return [one.sentence for one in findings.problems]


def test_what_is_missing_is_said_until_nothing_is(admin: AdminClient, check: Callable[..., Findings]) -> None:
    exactly_once = FLOW % "exactly_once"
    assert sentences(check(exactly_once)) == [
        "topic orders is not there; 'tidelog topic list' shows those that are",
        "topic out is not there; make it with 'tidelog topic create out'",
        "topic dead is not there; make it with 'tidelog topic create dead'",
    ]
    for name in ("orders", "out", "dead"):
        make(admin, name)
    assert check(exactly_once) == Findings()
    assert (
        check(exactly_once.replace("orders}", "ordres}"))
        .problems[0]
        .sentence.endswith("did you mean orders?")
    )

    # Rights, one by one.
    needed: list[tuple[tuple[Any, ...], str]] = [
        ((ResourceType.TOPIC, "orders", AclOperation.DESCRIBE), "may not see topic orders: it needs READ"),
        ((ResourceType.TOPIC, "orders", AclOperation.READ), "may not read topic orders: it needs READ"),
        ((ResourceType.TOPIC, "out", AclOperation.READ), "may not see topic out: it needs WRITE"),
        ((ResourceType.TOPIC, "out", AclOperation.WRITE), "may not write topic out: it needs WRITE"),
        ((ResourceType.TOPIC, "dead", AclOperation.WRITE), "may not see topic dead: it needs WRITE"),
        ((ResourceType.TOPIC, COMMIT_LOG_TOPIC, AclOperation.DESCRIBE), "exactly once takes READ and WRITE"),
        ((ResourceType.TOPIC, COMMIT_LOG_TOPIC, AclOperation.CREATE), "may not make it: it needs CREATE"),
        (
            (ResourceType.TOPIC, COMMIT_LOG_TOPIC, AclOperation.READ),
            f"READ and WRITE on topic {COMMIT_LOG_TOPIC}",
        ),
        (
            (ResourceType.TOPIC, COMMIT_LOG_TOPIC, AclOperation.WRITE),
            f"READ and WRITE on topic {COMMIT_LOG_TOPIC}",
        ),
        (
            (ResourceType.TRANSACTIONAL_ID, "tidelog-spark-", AclOperation.DESCRIBE, True),
            "takes WRITE on the transactional ids that begin with tidelog-spark-",
        ),
        (
            (ResourceType.TRANSACTIONAL_ID, "tidelog-spark-", AclOperation.WRITE, True),
            "takes WRITE on the transactional ids that begin with tidelog-spark-",
        ),
    ]
    for rule, said in needed:
        found = sentences(check(exactly_once, "alice"))
        assert any(said in sentence for sentence in found), (said, found)
        allow(admin, *rule)
        if rule[2] is AclOperation.CREATE:
            # Looking has not made it. What may be done with a topic is known once it is there.
            assert COMMIT_LOG_TOPIC not in admin.list_topics(timeout=SECONDS_MAX).topics
            make(admin, COMMIT_LOG_TOPIC)
    left = check(exactly_once, "alice")
    assert sentences(left) == []
    assert left.notes and "its lag will not show" in left.notes[0]
    allow(admin, ResourceType.GROUP, "tidelog-pipeline-big-", AclOperation.READ, True)
    assert check(exactly_once, "alice") == Findings()


def test_at_least_once_needs_no_right_on_transactions(
    admin: AdminClient, check: Callable[..., Findings]
) -> None:
    for name in ("plain-in", "plain-out"):
        make(admin, name)
    text = "sources: {a: {topic: plain-in}}\nsinks: [{topic: plain-out, options: {delivery: %s}}]\n"
    rules = (
        (ResourceType.TOPIC, "plain-in", AclOperation.READ),
        (ResourceType.TOPIC, "plain-out", AclOperation.WRITE),
    )
    for kind, name, operation in rules:
        rule = AclBinding(
            kind, name, ResourcePatternType.LITERAL, "User:bob", "*", operation, AclPermissionType.ALLOW
        )
        assert outcome(admin.create_acls([rule])) is None
    assert sentences(check(text % "at_least_once", "bob")) == []
    assert len(sentences(check(text % "exactly_once", "bob"))) == 2


def test_partitions_keys_names_and_options(admin: AdminClient, check: Callable[..., Findings]) -> None:
    make(admin, "three", 3)
    make(admin, "two", 2)
    make(admin, "kept", 1, cleanup_policy="compact")
    mirror = "kind: mirror\noptions: {topic: three, to: %s, create: %s}\n"
    (problem,) = check(mirror % ("two", "true")).problems
    assert problem.sentence.startswith("topic two has 2 partitions and three has 3, whose records keep")
    assert sentences(check(mirror % ("new", "true"))) == []
    assert sentences(check(mirror % ("new", "false"))) == [
        "topic new is not there; make it with 'tidelog topic create new'"
    ]
    (problem,) = check(mirror % ("'not a topic!'", "true")).problems
    assert "not a topic!" in problem.sentence
    flow = "sources: {a: {topic: three%s}}\nsinks:\n  - {topic: kept, value: CAST(value AS STRING)%s}\n"
    (problem,) = check(flow % ("", "")).problems
    assert problem.where == ("sinks", 0, "topic") and "its records need a key" in problem.sentence
    assert sentences(check(flow % ("", ", key: key"))) == []
    (problem,) = check(flow % (", options: {startingOffset: latest}", ", key: key")).problems
    assert "startingOffsets" in problem.sentence and problem.where == ("sources", "a", "options")


def test_a_cluster_that_is_away_or_does_not_believe_us_is_one_sentence(
    bootstrap: str, check: Callable[..., Findings], tmp_path: Path
) -> None:
    (problem,) = check(FLOW % "exactly_once", "nobody").problems
    assert problem.where == ("bootstrap",) and "cannot be asked" in problem.sentence
    path = tmp_path / "away.yaml"
    path.write_text("bootstrap: 127.0.0.1:1\n" + FLOW % "exactly_once")
    (problem,) = check_cluster_of(make_plan(load_definition(path))).problems
    assert "the cluster at 127.0.0.1:1 cannot be asked" in problem.sentence
