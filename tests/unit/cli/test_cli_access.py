"""`tidelog acl`, `tidelog quota` and `tidelog user` against a broker in a thread of this process."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tidelog.admin.access import users
from tidelog.cli.acl import principal_of
from tidelog.cli.main import tidelog
from tidelog.cli.quota import parse_amount
from tidelog.console.faults import ConsoleFault
from tidelog.console.wire_client import cluster_admin
from tidelog.model.access_settings import STANDARD_AUTHORIZER
from tidelog.testing.broker import RunningBroker

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
    with RunningBroker(settings) as broker:
        yield broker.bootstrap


@pytest.fixture
def run(bootstrap: str) -> Run:
    def invoke(*words: str, code: int = 0) -> Result:
        done = CliRunner().invoke(tidelog, [*words, "--bootstrap", bootstrap])
        assert done.exit_code == code, (words, done.output, done.exception)
        return done

    return invoke


def listed(run: Run, *words: str) -> Any:
    return json.loads(run(*words, "--json").stdout)


def test_acls_come_and_go(run: Run) -> None:
    allowed = run("acl", "allow", "alice", "read", "write", "--topic", "orders", "--group", "g", code=2)
    assert "write is nothing that can be done to a group" in allowed.output
    said = run("acl", "allow", "alice", "read", "--topic", "orders", "--group", "g").stdout
    assert "User:alice may read topic orders." in said and "User:alice may read group g." in said
    said = run("acl", "deny", "*", "all", "--topic", "secret.", "--prefix", "--host", "10.0.0.7").stdout
    assert said == "User:* may not all topics that begin with secret. from 10.0.0.7.\n"
    run("acl", "allow", "ops", "alter", "--cluster")
    rows = listed(run, "acl", "list")
    assert {(row["principal"], row["resource"], row["name"]) for row in rows} == {
        ("User:alice", "topic", "orders"),
        ("User:alice", "group", "g"),
        ("User:*", "topic", "secret."),
        ("User:ops", "cluster", "kafka-cluster"),
    }
    assert [row["name"] for row in listed(run, "acl", "list", "--topic", "secret.a", "--matching")] == [
        "secret."
    ]
    assert listed(run, "acl", "list", "--topic", "secret.a") == []
    assert "no such ACLs" in run("acl", "list", "--user", "nobody").stdout
    assert "Deleted 2 ACLs" in run("acl", "delete", "--user", "alice", "--yes").stdout
    assert "say which" in run("acl", "delete", "--yes", code=2).output
    assert "Deleted 1 ACL:" in run("acl", "delete", "--topic", "secret.", "--prefix", "--yes").stdout
    assert [row["principal"] for row in listed(run, "acl", "list")] == ["User:ops"]


def test_what_an_acl_is_for_has_to_be_named(run: Run) -> None:
    assert "--topic, --group" in run("acl", "allow", "alice", "read", code=2).output
    assert "is no principal" in run("acl", "allow", "User:", "read", "--topic", "t", code=1).output


def test_quotas_come_and_go(run: Run) -> None:
    said = run("quota", "set", "producer_byte_rate=1MB", "request_percentage=12.5", "--user", "alice").stdout
    assert "producer_byte_rate of user alice is at most 1e+06." in said
    run("quota", "set", "connection_creation_rate=500", "--default-ip")
    run("quota", "set", "consumer_byte_rate=1Ki", "--user", "alice", "--default-client-id")
    rows = listed(run, "quota", "list", "--user", "alice")
    assert [row["limits"] for row in rows] == [
        {"producer_byte_rate": 1e6, "request_percentage": 12.5},
        {"consumer_byte_rate": 1024.0},
    ]
    assert "ip (default)" in run("quota", "list").stdout
    run("quota", "unset", "producer_byte_rate", "request_percentage", "--user", "alice")
    run("quota", "unset", "consumer_byte_rate", "--user", "alice", "--default-client-id")
    run("quota", "unset", "connection_creation_rate", "--default-ip")
    assert listed(run, "quota", "list") == []


def test_mistakes_with_quotas_are_told(run: Run) -> None:
    assert "say who" in run("quota", "set", "producer_byte_rate=1", code=2).output
    assert "there is no limit" in run("quota", "set", "speed=1", "--user", "a", code=2).output
    assert "is no amount" in run("quota", "set", "producer_byte_rate=fast", "--user", "a", code=2).output
    both = ("quota", "set", "producer_byte_rate=1", "--user", "a", "--default-user")
    assert "not both" in run(*both, code=2).output
    assert "INVALID_REQUEST" in run("quota", "set", "producer_byte_rate=0", "--user", "a", code=1).output


@pytest.mark.parametrize("sees_others", [False, True])
def test_a_broker_is_not_emptied_by_somebody_who_does_not_see_every_topic(sees_others: bool) -> None:
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}
    with RunningBroker(settings) as broker:
        broker.create_topic("secret")
        at = ("--bootstrap", broker.bootstrap)

        def invoke(*words: str) -> Result:
            return CliRunner().invoke(tidelog, [*words, *at])

        # The broker would say so itself if it could go.
        assert "without broker 1" in invoke("cluster", "decommission", "1").output
        for rights in (
            ("allow", "ANONYMOUS", "alter", "--cluster"),
            *([("allow", "ANONYMOUS", "describe", "--topic", "*")] if sees_others else []),
            (
                "deny" if sees_others else "allow",
                "ANONYMOUS" if sees_others else "boss",
                "all",
                "--topic",
                "secret",
            ),
            *([] if sees_others else [("allow", "boss", "all", "--topic", "*")]),
        ):
            done = invoke("acl", *rights)
            assert done.exit_code == 0, done.output
        for words in (("1",), ("1", "--execute")):
            done = invoke("cluster", "decommission", *words)
            assert done.exit_code == 1 and "not shown every topic" in done.output, done.output
            assert "describe --topic" in done.output


@pytest.fixture(scope="module")
def without_rights() -> Iterator[str]:
    """Where whoever does not log in may do nothing."""
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:boss"}
    with RunningBroker(settings) as broker:
        yield broker.bootstrap


@pytest.mark.parametrize("words", [(), ("-X", "security.protocol=PLAINTEXT")])
def test_an_empty_list_of_topics_may_be_a_matter_of_rights(
    without_rights: str, words: tuple[str, ...]
) -> None:
    """Who says how they come in is told that there may be topics which are not shown to them."""
    done = CliRunner().invoke(tidelog, ["topic", "list", "--bootstrap", without_rights, *words])
    assert done.exit_code == 0 and "There are no topics yet" in done.stdout, done.output
    assert ("(or none that this user may see)" in done.stdout) is bool(words)


@pytest.mark.parametrize(
    "words",
    [
        ("user", "list"),
        ("user", "describe", "alice"),
        ("user", "create", "eve", "--generate"),
        ("user", "password", "eve", "--generate"),
        ("user", "delete", "eve", "--yes"),
        ("quota", "list"),
        ("acl", "list"),
    ],
)
def test_without_rights_the_way_to_them_is_told(without_rights: str, words: tuple[str, ...]) -> None:
    """In a process of its own: librdkafka crashed with the answer about users."""
    command = [sys.executable, "-m", "tidelog.cli", *words, "--bootstrap", without_rights]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert "CLUSTER_AUTHORIZATION_FAILED" in done.stderr and "tidelog acl allow USER" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("describe", "g"),
        ("lag", "g"),
        ("delete", "g", "--yes"),
        ("delete-offsets", "g", "--topic", "t", "--yes"),
        ("reset-offsets", "g", "--to-current"),
    ],
)
def test_without_rights_groups_are_out_of_reach(without_rights: str, words: tuple[str, ...]) -> None:
    """In a process of its own: librdkafka ended it over such answers."""
    command = [sys.executable, "-m", "tidelog.cli", "group", *words, "--bootstrap", without_rights]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, (done.returncode, done.stderr)
    assert "Broker: Group authorization failed (GROUP_AUTHORIZATION_FAILED)" in done.stderr
    assert "this user may not use the group: ask for an ACL" in done.stderr


def test_without_rights_the_console_shows_why(without_rights: str) -> None:
    with pytest.raises(ConsoleFault, match="users cannot be read: Cluster authorization failed") as refused:
        users(cluster_admin(without_rights, {}))
    assert (refused.value.status, refused.value.hint) == (
        403,
        "The console's user is not allowed to do this.",
    )


def test_users_come_and_go(run: Run, bootstrap: str) -> None:
    assert listed(run, "user", "list") == []
    run("user", "create", "alice", "--generate")
    assert "exists" in run("user", "create", "alice", "--generate", code=1).output
    assert "was not changed" in run("user", "create", "", "--generate", code=1).output
    run("user", "create", "bob", "--generate", "--mechanism", "SCRAM-SHA-512", "--iterations", "4096")
    assert listed(run, "user", "describe", "bob", "alice") == [
        {
            "user": "alice",
            "credentials": [
                {"mechanism": "SCRAM-SHA-256", "iterations": 8192},
                {"mechanism": "SCRAM-SHA-512", "iterations": 8192},
            ],
        },
        {"user": "bob", "credentials": [{"mechanism": "SCRAM-SHA-512", "iterations": 4096}]},
    ]
    found = users(cluster_admin(bootstrap, {}))
    assert [(user.name, tuple(map(str, user.credentials))) for user in found] == [
        ("alice", ("SCRAM-SHA-256 (8192 iterations)", "SCRAM-SHA-512 (8192 iterations)")),
        ("bob", ("SCRAM-SHA-512 (4096 iterations)",)),
    ]
    assert "'tidelog user list' shows the users" in run("user", "describe", "eve", code=1).output
    run("user", "delete", "alice", "--yes")
    run("user", "delete", "bob", "--yes")
    assert listed(run, "user", "list") == []


def test_without_an_authorizer_the_way_to_one_is_told() -> None:
    with RunningBroker() as broker:
        done = CliRunner().invoke(tidelog, ["acl", "list", "--bootstrap", broker.bootstrap])
        assert done.exit_code == 1 and "authorizer.class.name" in done.output


@pytest.mark.parametrize(
    ("text", "amount"), [("5", 5), ("1MB", 1e6), ("2mi", 2 << 20), ("1.5k", 1500), ("3GB/s", 3e9)]
)
def test_amounts(text: str, amount: float) -> None:
    assert parse_amount(text) == amount


def test_principals() -> None:
    assert principal_of("alice") == "User:alice"
    assert principal_of("User:CN=a") == "User:CN=a"
