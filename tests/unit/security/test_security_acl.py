"""What ACLs allow: patterns, principals, hosts, implied operations, denials, defaults."""

from random import Random

import pytest

from tidelog.model.acls import (
    AclEntry,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from tidelog.security.acl import AclIndex, parse_super_users

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
READ, WRITE, DESCRIBE, ALL = (
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.DESCRIBE,
    AclOperation.ALL,
)
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = PermissionType.ALLOW, PermissionType.DENY

Row = tuple[str, PatternType, str, AclOperation, PermissionType]


def index(*rows: Row, default: bool = False, host: str = "*") -> AclIndex:
    acls: dict[ResourcePattern, frozenset[AclEntry]] = {}
    for name, way, principal, operation, permission in rows:
        pattern = ResourcePattern(TOPIC, name, way)
        entry = AclEntry(principal, host, operation, permission)
        acls[pattern] = acls.get(pattern, frozenset()) | {entry}
    return AclIndex(acls, frozenset({"User:root"}), default)


def may(acls: AclIndex, operation: AclOperation, name: str, principal: str = "User:alice") -> bool:
    return acls.allows(principal, "10.0.0.1", operation, TOPIC, name)


def test_without_acls_the_default_decides_and_super_users_may() -> None:
    assert not may(index(), READ, "orders")
    assert may(index(default=True), READ, "orders")
    assert may(index(), READ, "orders", "User:root")


def test_where_there_is_an_acl_the_default_does_not_count() -> None:
    acls = index(("orders", LITERAL, "User:bob", READ, ALLOW), default=True)
    assert not may(acls, READ, "orders")
    assert may(acls, READ, "orders", "User:bob") and may(acls, READ, "others")
    assert not may(index(("ord", PREFIXED, "User:bob", READ, ALLOW), default=True), READ, "orders")


@pytest.mark.parametrize(
    ("name", "way", "fits"),
    [
        ("orders", LITERAL, True),
        ("*", LITERAL, True),
        ("ord", PREFIXED, True),
        ("orders", PREFIXED, True),
        ("ord", LITERAL, False),
        ("orders-eu", PREFIXED, False),
        ("*", PREFIXED, False),
        ("o", PREFIXED, True),
    ],
)
def test_patterns(name: str, way: PatternType, fits: bool) -> None:
    assert may(index((name, way, "User:alice", READ, ALLOW)), READ, "orders") is fits


def test_principals_and_hosts() -> None:
    assert may(index(("orders", LITERAL, "User:*", READ, ALLOW)), READ, "orders")
    assert may(index(("orders", LITERAL, "User:alice", READ, ALLOW), host="10.0.0.1"), READ, "orders")
    assert not may(index(("orders", LITERAL, "User:alice", READ, ALLOW), host="10.0.0.2"), READ, "orders")
    assert not may(index(("orders", LITERAL, "Group:alice", READ, ALLOW)), READ, "orders")
    groups = AclIndex(
        {ResourcePattern(GROUP, "orders"): frozenset({AclEntry("User:alice", "*", READ, ALLOW)})},
        frozenset(),
        False,
    )
    assert not may(groups, READ, "orders")


@pytest.mark.parametrize("operation", [o for o in AclOperation if o > AclOperation.ALL])
def test_what_operations_imply(operation: AclOperation) -> None:
    acls = index(("orders", LITERAL, "User:alice", operation, ALLOW))
    implied = {operation}
    if operation.name in ("READ", "WRITE", "DELETE", "ALTER"):
        implied.add(DESCRIBE)
    if operation is AclOperation.ALTER_CONFIGS:
        implied.add(AclOperation.DESCRIBE_CONFIGS)
    assert {o for o in AclOperation if o > AclOperation.ALL and may(acls, o, "orders")} == implied
    assert may(index(("orders", LITERAL, "User:alice", ALL, ALLOW)), operation, "orders")


def test_a_denial_wins_and_implies_nothing() -> None:
    allow = ("orders", LITERAL, "User:alice", ALL, ALLOW)
    for deny in (
        ("orders", LITERAL, "User:alice", READ, DENY),
        ("*", LITERAL, "User:*", READ, DENY),
        ("or", PREFIXED, "User:alice", READ, DENY),
    ):
        acls = index(allow, deny)
        assert not may(acls, READ, "orders")
        assert may(acls, WRITE, "orders") and may(acls, DESCRIBE, "orders")
    assert not may(index(allow, ("orders", LITERAL, "User:alice", ALL, DENY)), DESCRIBE, "orders")


def test_any_resource_of_a_type() -> None:
    def any_write(*rows: Row, default: bool = False) -> bool:
        return index(*rows, default=default).allows_any("User:alice", "h", WRITE, TOPIC)

    allow = ("orders", LITERAL, "User:alice", WRITE, ALLOW)
    prefix = ("or", PREFIXED, "User:alice", WRITE, ALLOW)
    assert not any_write() and any_write(default=True)
    assert any_write(allow) and any_write(prefix)
    assert not any_write(("orders", LITERAL, "User:alice", READ, ALLOW))
    assert not any_write(allow, ("orders", LITERAL, "User:*", WRITE, DENY))
    assert not any_write(allow, prefix, ("o", PREFIXED, "User:alice", ALL, DENY))
    assert any_write(allow, prefix, ("orders", LITERAL, "User:alice", WRITE, DENY))
    assert not any_write(allow, ("*", LITERAL, "User:alice", WRITE, DENY))
    assert any_write(("*", LITERAL, "User:alice", WRITE, ALLOW), ("x", PREFIXED, "User:alice", WRITE, DENY))
    assert index().allows_any("User:root", "h", WRITE, TOPIC)


def test_super_users_are_parted_by_semicolons() -> None:
    text = " User:alice;User:CN=bob,O=acme ; "
    assert parse_super_users(text) == {"User:alice", "User:CN=bob,O=acme"}
    assert parse_super_users(None) == frozenset()


def by_the_book(rows: list[Row], default: bool, operation: AclOperation, name: str) -> bool:
    """The same question answered slowly, by going through every ACL."""
    applying = [
        row for row in rows if (name.startswith(row[0]) if row[1] is PREFIXED else row[0] in (name, "*"))
    ]
    mine = [row for row in applying if row[2] in ("User:alice", "User:*")]
    if any(row[4] is DENY and row[3] in (operation, ALL) for row in mine):
        return False
    wanted = {operation, ALL} | ({READ, WRITE} if operation is DESCRIBE else set())
    if any(row[4] is ALLOW and row[3] in wanted for row in mine):
        return True
    return default and not applying


def test_any_mix_of_acls_is_decided_as_by_the_book() -> None:
    random = Random(6)
    names = ["a", "ab", "abc", "b", "*"]
    for _ in range(3000):
        rows: list[Row] = [
            (
                random.choice(names),
                random.choice([LITERAL, PREFIXED]),
                random.choice(["User:alice", "User:bob", "User:*"]),
                random.choice([READ, WRITE, DESCRIBE, ALL]),
                random.choice([ALLOW, ALLOW, DENY]),
            )
            for _ in range(random.randrange(6))
        ]
        default = random.random() < 0.5
        operation, name = random.choice([READ, WRITE, DESCRIBE]), random.choice(["a", "ab", "abcd", "c"])
        expected = by_the_book(rows, default, operation, name)
        assert may(index(*rows, default=default), operation, name) is expected, (rows, operation, name)
