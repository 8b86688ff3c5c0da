"""The controller's decisions about ACLs and client quotas."""

from random import Random

import pytest

from tidelog.controller.commands import (
    AclsDeleted,
    AlterClientQuotas,
    CreateAcls,
    DeleteAcls,
    Done,
    QuotaChange,
    Result,
)
from tidelog.controller.machine import Controller
from tidelog.model.acls import (
    AclBinding,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourceType,
)
from tidelog.model.errors import ErrorCode, Refused
from tidelog.model.image import ClusterImage
from tidelog.model.settings import BrokerSettings

SETTINGS = BrokerSettings.resolve({"log.dirs": "/data"})


def acl(**changes: object) -> AclBinding:
    fields: dict[str, object] = {
        "resource_type": ResourceType.TOPIC,
        "name": "orders",
        "pattern_type": PatternType.LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": AclOperation.READ,
        "permission": PermissionType.ALLOW,
    }
    return AclBinding(**{**fields, **changes})  # type: ignore[arg-type]


def decide(image: ClusterImage, command: object) -> tuple[ClusterImage, tuple[Result, ...]]:
    decision = Controller(SETTINGS).handle(command, image, Random(1))  # type: ignore[arg-type]
    return (image.apply(decision.records) if decision.records else image), decision.results


def codes(results: tuple[Result, ...]) -> list[ErrorCode]:
    return [result.code if isinstance(result, Refused) else ErrorCode.NONE for result in results]


def test_acls_are_created_once() -> None:
    image, results = decide(ClusterImage(), CreateAcls((acl(), acl(operation=AclOperation.WRITE), acl())))
    assert results == (Done(), Done(), Done())
    assert len(image.acls[acl().pattern]) == 2
    again, results = decide(image, CreateAcls((acl(),)))
    assert again is image and results == (Done(),)


@pytest.mark.parametrize(
    "bad",
    [
        acl(name=""),
        acl(name="n" * 5000),
        acl(resource_type=ResourceType.ANY),
        acl(resource_type=ResourceType.CLUSTER, name="other"),
        acl(pattern_type=PatternType.MATCH),
        acl(operation=AclOperation.ANY),
        acl(permission=PermissionType.UNKNOWN),
        acl(principal="alice"),
        acl(principal="User:"),
    ],
    ids=repr,
)
def test_a_malformed_acl_is_refused_and_the_others_are_created(bad: AclBinding) -> None:
    image, results = decide(ClusterImage(), CreateAcls((bad, acl())))
    assert codes(results) == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert list(image.acls) == [acl().pattern]


def test_filters_delete_what_they_choose() -> None:
    deny = acl(permission=PermissionType.DENY, principal="User:bob")
    prefixed = acl(name="ord", pattern_type=PatternType.PREFIXED)
    image, _ = decide(ClusterImage(), CreateAcls((acl(), deny, prefixed)))
    by_bob = AclFilter(principal="User:bob")
    nobody = AclFilter(principal="User:carol")
    unknown = AclFilter(operation=AclOperation.UNKNOWN)
    after, results = decide(image, DeleteAcls((by_bob, nobody, unknown)))
    assert results[:2] == (AclsDeleted((deny,)), AclsDeleted(()))
    assert codes(results)[2] is ErrorCode.INVALID_REQUEST
    assert set(after.acls) == {acl().pattern, prefixed.pattern}
    last, _ = decide(after, DeleteAcls((AclFilter(),)))
    assert last.acls == {}


def change(entity: dict[str, str | None], **values: float | None) -> QuotaChange:
    return QuotaChange(tuple(entity.items()), tuple(values.items()))


def test_quotas_are_set_and_unset_key_by_key() -> None:
    both = {"user": "alice", "client-id": None}
    image, results = decide(
        ClusterImage(),
        AlterClientQuotas((change(both, producer_byte_rate=1000.0, request_percentage=12.5),)),
    )
    entity = (("client-id", None), ("user", "alice"))
    assert results == (Done(),)
    assert image.client_quotas == {entity: {"producer_byte_rate": 1000.0, "request_percentage": 12.5}}
    image, _ = decide(image, AlterClientQuotas((change(both, request_percentage=None),)))
    assert image.client_quotas == {entity: {"producer_byte_rate": 1000.0}}
    same, _ = decide(image, AlterClientQuotas((change(both, consumer_byte_rate=1.0),), validate_only=True))
    assert same is image
    image, _ = decide(image, AlterClientQuotas((change(both, producer_byte_rate=None),)))
    assert image.client_quotas == {}


@pytest.mark.parametrize(
    "bad",
    [
        change({}, producer_byte_rate=1.0),
        change({"planet": "earth"}, producer_byte_rate=1.0),
        change({"user": ""}, producer_byte_rate=1.0),
        change({"ip": "10.0.0.1", "user": "a"}, connection_creation_rate=1.0),
        change({"ip": "no address"}, connection_creation_rate=1.0),
        change({"ip": "10.0.0.1"}, producer_byte_rate=1.0),
        change({"user": "a"}, connection_creation_rate=1.0),
        change({"user": "a"}, producer_byte_rate=0.0),
        change({"user": "a"}, producer_byte_rate=1.5),
        change({"user": "a"}, producer_byte_rate=1e30),
        change({"user": "a"}, producer_byte_rate=float("nan")),
        QuotaChange((("user", "a"), ("user", "b")), (("producer_byte_rate", 1.0),)),
        QuotaChange((("user", "a"),), (("producer_byte_rate", 1.0), ("producer_byte_rate", 2.0))),
    ],
    ids=repr,
)
def test_a_malformed_quota_is_refused_and_the_others_are_set(bad: QuotaChange) -> None:
    good = change({"ip": None}, connection_creation_rate=5.0)
    image, results = decide(ClusterImage(), AlterClientQuotas((bad, good)))
    assert codes(results) == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert list(image.client_quotas) == [(("ip", None),)]
