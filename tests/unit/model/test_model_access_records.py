"""ACLs and quotas as stored: every name comes back, what went away reads as nothing, filters choose."""

import pytest

from tidelog.model.acls import (
    AclEntry,
    AclFilter,
    AclOperation,
    AclsRecord,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from tidelog.model.client_quotas import CLIENT_ID, IP, USER, QuotasRecord, quota_entity
from tidelog.model.image import ClusterImage
from tidelog.model.metadata import MetadataCorruptError, record_from_entry

READ = AclEntry("User:a/b\tc", "*", AclOperation.READ, PermissionType.ALLOW)
DENY = AclEntry("User:*", "10.0.0.1", AclOperation.ALL, PermissionType.DENY)
NAMES = ("orders", "a/b", "tab\tline\n", "%2F", "ö", "..", "*")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", [PatternType.LITERAL, PatternType.PREFIXED])
def test_acls_come_back_under_any_name(name: str, way: PatternType) -> None:
    record = AclsRecord(ResourcePattern(ResourceType.GROUP, name, way), frozenset({READ, DENY}))
    [(key, value)] = record.writes()
    assert value is not None and "\n" not in key and "\t" not in key
    assert record_from_entry(key, value) == record
    [(same_key, nothing)] = AclsRecord(record.pattern).writes()
    assert (same_key, nothing) == (key, None)
    # The change log writes `{}` for a key that went away.
    assert record_from_entry(key, b"{}") == AclsRecord(record.pattern)


@pytest.mark.parametrize("name", [*NAMES, "<default>", None])
def test_quotas_come_back_under_any_name(name: str | None) -> None:
    for entity in (
        quota_entity({USER: name}),
        quota_entity({USER: name, CLIENT_ID: name}),
        quota_entity({IP: name}),
    ):
        record = QuotasRecord(entity, {"producer_byte_rate": 1024.5})
        [(key, value)] = record.writes()
        assert value is not None and record_from_entry(key, value) == record
        assert record_from_entry(key, b"{}") == QuotasRecord(entity)
    assert (
        QuotasRecord(quota_entity({USER: None})).writes() != QuotasRecord((("user", "<default>"),)).writes()
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("acls/nothing/literal/a", b'{"entries":[]}'),
        ("acls/topic/literal/a", b'{"entries":[["User:a","*","READ"]]}'),
        ("acls/topic/literal/a", b'{"entries":[["User:a","*","READ","PERHAPS"]]}'),
        ("quotas/planet/earth", b'{"producer_byte_rate":1}'),
        ("quotas/user", b'{"producer_byte_rate":1}'),
        ("quotas/user/a", b'{"producer_byte_rate":"many"}'),
    ],
)
def test_damaged_entries_are_named(key: str, value: bytes) -> None:
    with pytest.raises(MetadataCorruptError, match=key):
        record_from_entry(key, value)


def test_the_image_holds_them_and_older_images_do_not_change() -> None:
    pattern = ResourcePattern(ResourceType.TOPIC, "orders")
    entity = quota_entity({USER: "alice"})
    before = ClusterImage()
    after = before.apply(
        [AclsRecord(pattern, frozenset({READ})), QuotasRecord(entity, {"request_percentage": 1})]
    )
    assert (before.acls, before.client_quotas) == ({}, {})
    assert after.acls == {pattern: frozenset({READ})}
    assert after.client_quotas == {entity: {"request_percentage": 1}}
    assert after.apply([]).acls is after.acls
    last = after.apply([AclsRecord(pattern), QuotasRecord(entity)])
    assert (last.acls, last.client_quotas) == ({}, {})


def test_filters_choose_patterns_as_kafka_does() -> None:
    literal = ResourcePattern(ResourceType.TOPIC, "orders")
    prefixed = ResourcePattern(ResourceType.TOPIC, "ord", PatternType.PREFIXED)
    everything = ResourcePattern(ResourceType.TOPIC, "*")
    other = ResourcePattern(ResourceType.GROUP, "orders")
    patterns = (literal, prefixed, everything, other)

    def chosen(**wanted: object) -> set[ResourcePattern]:
        one = AclFilter(**wanted)  # type: ignore[arg-type]
        return {pattern for pattern in patterns if one.matches_pattern(pattern)}

    topic = {"resource_type": ResourceType.TOPIC}
    assert chosen() == set(patterns)
    assert chosen(**topic, name="orders", pattern_type=PatternType.LITERAL) == {literal}
    assert chosen(**topic, name="orders", pattern_type=PatternType.ANY) == {literal}
    assert chosen(**topic, name="orders", pattern_type=PatternType.MATCH) == {literal, prefixed, everything}
    assert chosen(**topic, name="ord", pattern_type=PatternType.PREFIXED) == {prefixed}
    assert chosen(**topic, pattern_type=PatternType.LITERAL) == {literal, everything}
    assert AclFilter(principal="User:*").matches_entry(DENY)
    assert not AclFilter(principal="User:*").matches_entry(READ)
    assert AclFilter(operation=AclOperation.UNKNOWN).unknown and not AclFilter().unknown
